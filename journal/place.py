"""Where a command of a handler stands: what a journal and a replay know it by, whatever else runs beside it."""

from __future__ import annotations

from typing import Final, TypeAlias, cast

from .fields import a_number, sequence_of

#: The index of a command in the handler's main branch; in another branch the numbers that lead there, flattened: a
#: fork, one of its branches, and so on, with the index in the last branch at the end.
Place: TypeAlias = int | tuple[int, ...]

#: The path of a branch: forks and branches in turn; the handler's main branch has none.
Path: TypeAlias = tuple[int, ...]

MAIN: Final[Path] = ()
_SEPARATOR: Final = "-"
#: How many digits a number of a place may have: each is written in four bytes.
_DIGITS_MAX: Final = 9


def path_of(place: Place) -> Path:
    """Return the branch that a command stands in."""
    return MAIN if isinstance(place, int) else place[:-1]


def index_in_branch(place: Place) -> int:
    """Return how many commands come before it in its branch."""
    return place if isinstance(place, int) else place[-1]


def place_in(path: Path, index: int) -> Place:
    """Return the place of a command in a branch."""
    return (*path, index) if path else index


def place_bytes(place: Place) -> bytes:
    """Return bytes that no other place has."""
    numbers = (place,) if isinstance(place, int) else place
    return b"".join(number.to_bytes(4, "big") for number in numbers)


def format_place(place: Place) -> str:
    """Return a place as people read it, such as `7` or `2-0-1`."""
    return str(place) if isinstance(place, int) else _SEPARATOR.join(map(str, place))


def parse_place(text: str) -> Place | None:
    """Return the place that a text stands for, None for any other text."""
    parts = text.split(_SEPARATOR)
    if not all(part.isascii() and part.isdigit() and len(part) <= _DIGITS_MAX for part in parts):
        return None
    numbers = tuple(map(int, parts))
    return numbers[0] if len(numbers) == 1 else numbers


def sort_key(place: Place) -> tuple[int, ...]:
    """Return what puts places into the order in which people read them."""
    return (place,) if isinstance(place, int) else place


def a_place(value: object) -> Place:
    """Read a place out of a field."""
    if type(value) is int:
        return value
    return cast("tuple[int, ...]", sequence_of(a_number)(value))
