"""How much there may be of what handlers make: names, state, records. It is checked before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..journal.errors import InvalidInput, PayloadTooLarge
from ..journal.utf8 import LONE_SURROGATE, utf8_bytes
from .checkpoints import count_kept_back
from .large_values import total_bytes

if TYPE_CHECKING:
    from .invocation import Invocation
    from .lane import Lane

#: Bytes of UTF-8 that the name of a state value or of a step may have.
NAME_LIMIT_BYTES: Final = 256
#: How much the reason may say that somebody gives for what they decide.
REASON_LIMIT_BYTES: Final = 4_096
#: Values that one object may have, and names that an invocation may write between two durable points.
STATE_NAMES_MAX: Final = 1_000
#: A character has at most four bytes, so a name of so many needs no second look.
SHORT_NAME: Final = NAME_LIMIT_BYTES // 4
_SHOWN_CHARACTERS: Final = 40
#: Nothing that is counted comes to as many.
COUNTED_MAX: Final = 2**31


def check_unpacked(what: str, name: str, value: object, limit_bytes: int) -> None:
    """Refuse text and bytes that are too large before they are packed: that takes long, and everybody waits for it.

    Raises:
        PayloadTooLarge: They are.
    """
    if (type(value) is bytes or type(value) is str) and len(value) > limit_bytes:
        raise PayloadTooLarge(f"{what} {name}".rstrip(), len(value), limit_bytes)


def check_packed(what: str, name: str, packed: bytes, limit_bytes: int) -> None:
    """Refuse a value that is too large to be written.

    Raises:
        PayloadTooLarge: It is above the limit.
    """
    if len(packed) > limit_bytes:
        raise PayloadTooLarge(f"{what} {name}".rstrip(), len(packed), limit_bytes)


def check_text(what: str, given: object) -> None:
    """Refuse what is no text before it is written where its reader expects one.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(given, str):
        raise TypeError(f"{what} is text, not {type(given).__name__}")


def check_operation_id(given: object) -> None:
    """Refuse what names no operation of any object, before it is looked for or written down.

    Raises:
        TypeError: It is no text.
        InvalidInput: It has a lone surrogate.
    """
    if not isinstance(given, str):
        raise TypeError(f"operation_id is text, not {type(given).__name__}")
    if utf8_bytes(given) is None:
        raise InvalidInput("operation_id", f"it {LONE_SURROGATE}; replace it")


def check_own_name(what: str, given: str) -> None:
    """Refuse a name under which asking again is safe where it is no text, empty, or can't be written.

    An empty one is what a caller without a name sends by mistake, and would be the same for all of them.

    Raises:
        TypeError: It is no text.
        InvalidInput: It is empty, or has a lone surrogate.
    """
    check_text(what, given)
    if not given:
        raise InvalidInput(what, "it is empty: name what is asked for, or leave it out")
    if utf8_bytes(given) is None:
        raise InvalidInput(what, f"it {LONE_SURROGATE}; replace it")


def check_decision(by: str, reason: str) -> None:
    """Refuse what does not say in words who decides something, and why.

    Raises:
        TypeError: One of them is no text.
        InvalidInput: One of them is blank.
        PayloadTooLarge: The name has more than 256 bytes, or the reason more than 4 KiB.
    """
    check_wish(by, reason)
    check_who(by)
    if not reason.strip():
        raise InvalidInput("reason", "say why; it goes into the record")


def check_wish(by: str, reason: str) -> None:
    """Refuse a name and a reason that can't go into the record; either may be left out.

    Raises:
        TypeError: One of them is no text.
        PayloadTooLarge: The name has more than 256 bytes, or the reason more than 4 KiB.
    """
    check_text("by", by)
    check_text("reason", reason)
    check_name("by", by)
    check_reason(reason)


def check_who(by: str) -> None:
    """Refuse a decision for which nobody answers.

    Raises:
        InvalidInput: The name is blank.
    """
    if not by.strip():
        raise InvalidInput("by", "somebody has to answer for it")


def check_reason(reason: str) -> None:
    """Refuse a reason that is too long for the record.

    Raises:
        PayloadTooLarge: It is.
    """
    size_bytes = len(reason.encode(errors="surrogatepass"))
    if size_bytes > REASON_LIMIT_BYTES:
        raise PayloadTooLarge("the reason", size_bytes, REASON_LIMIT_BYTES, remedy="say it in fewer words")


def check_number(what: str, given: object) -> None:
    """Refuse what is no whole number that can be written down.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is negative, or larger than anything that is counted.
    """
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{what} is a whole number, not {type(given).__name__}")
    if not 0 <= given < COUNTED_MAX:
        raise ValueError(f"{what} is {given}: it has to be 0 or more, and less than {COUNTED_MAX:,}")


def check_name(what: str, name: str) -> None:
    """Refuse what is no text, or a name that is too long.

    Raises:
        TypeError: It is no text.
        PayloadTooLarge: It is too long.
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - what a user gives is not checked
        raise TypeError(f"the name of a {what} is text, not {type(name).__name__}")
    size_bytes = len(name.encode(errors="surrogatepass"))
    if size_bytes > NAME_LIMIT_BYTES:
        shown = f"the name of {what} {name[:_SHOWN_CHARACTERS]!r}…"
        raise PayloadTooLarge(shown, size_bytes, NAME_LIMIT_BYTES, remedy="shorten it, and put data into the value")


def check_written(writes: dict[str, bytes | None], name: str) -> None:
    """Refuse a write of one name too many between two durable points.

    Raises:
        PayloadTooLarge: It is one.
    """
    if len(writes) >= STATE_NAMES_MAX and name not in writes:
        what = "the state written since the last durable point"
        remedy = "keep what belongs together in one value, or spread it over more objects"
        raise PayloadTooLarge(what, len(writes) + 1, STATE_NAMES_MAX, unit="names", remedy=remedy)


def check_state(lane: Lane, writes: dict[str, bytes | None], name: str, packed: bytes) -> None:
    """Refuse a write with which an object would have too many values, or too much in all.

    A value of usual size needs no such look while there are few: all of them together are far below any limit.

    Raises:
        PayloadTooLarge: It would.
    """
    merged: dict[str, bytes | None] = {**lane.queued, **writes, name: packed}
    values = {name: packed for name, packed in merged.items() if packed is not None}
    if len(values) > STATE_NAMES_MAX:
        remedy = "keep what belongs together in one value, or spread it over more objects"
        raise PayloadTooLarge("the state of this object", len(values), STATE_NAMES_MAX, unit="names", remedy=remedy)
    limit = lane.partition.settings.state_limit_bytes
    size_bytes = total_bytes(values.values())
    if size_bytes > limit:
        remedy = "clear what is not needed, spread it over more objects, or raise KEYLANE_STATE_LIMIT_BYTES"
        raise PayloadTooLarge("the state of this object", size_bytes, limit, remedy=remedy)


def has_too_many_records(invocation: Invocation, limit: int) -> bool:
    """Return whether an invocation must not begin anything that leaves one more record.

    What it has begun is still recorded, and so are a pause, a resumption and its end.
    """
    standing = invocation.standing
    records = 0 if standing is None else standing.records
    return records >= limit or records + count_kept_back(invocation) >= limit


def why_too_many(invocation: Invocation) -> str:
    """Return what a person is told who finds an invocation parked for its number of records."""
    count = 0 if invocation.standing is None else invocation.standing.records
    return (
        f"it has {count:,} records, as many as one invocation may have: split its work over several invocations, "
        "or raise KEYLANE_RECORDS_PER_INVOCATION, and resume it"
    )
