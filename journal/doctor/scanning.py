"""Walking over all keys of a namespace: in pages, on every node, with what stands under each name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..store import Store
from .names import KeyName, parse

#: Keys that one call of `survey` looks at.
SURVEY_KEYS: Final = 100

FOR_EVER: Final = -1


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands under a name.

    Args:
        name: The name.
        kind: Its type as the server calls it, `none` when it is gone.
        left_ms: For how long it is kept: -1 for ever, -2 when it is gone.
        entries: How many entries it has, where it is a stream.
    """

    name: KeyName
    kind: bytes
    left_ms: int
    entries: int


async def survey(store: Store, names: Sequence[KeyName]) -> list[Standing]:
    """Look at what stands under names, in one turn; those of one partition share calls of a bounded length.

    Raises:
        StoreUnavailable: The store is away.
    """
    by_partition: dict[tuple[str, int], list[KeyName]] = defaultdict(list)
    for name in names:
        by_partition[name.type_name, name.number].append(name)
    pieces = [
        each[start : start + SURVEY_KEYS]
        for each in by_partition.values()
        for start in range(0, len(each), SURVEY_KEYS)
    ]
    calls = [store.words("survey", [name.raw for name in piece], read_only=True) for piece in pieces]
    replies = await store.together_fcall(calls)
    found: list[Standing] = []
    for piece, reply in zip(pieces, replies, strict=True):
        if isinstance(reply, Exception):
            raise reply
        found.extend(Standing(name, *reply[3 * at : 3 * at + 3]) for at, name in enumerate(piece))
    return found


def names_of(namespace: str, raw_names: Sequence[bytes]) -> list[KeyName]:
    """Return the names that stand under tags of a namespace's partitions."""
    parsed = (parse(namespace, raw) for raw in raw_names)
    return [name for name in parsed if name is not None]
