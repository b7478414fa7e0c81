"""What a key is for, told by its name: every structure that may stand under our tags, and of what type it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ..key import key_text
from ..keyspace import PartitionSpace
from ..requests import ID_BYTES


class Structure(StrEnum):
    """The structures under a partition's tag."""

    OWNER = "owner"
    INBOX = "inbox"
    DUE = "due"
    RUNNABLE = "run"
    UNDECODABLE = "bad"
    LANE = "q:"
    OBJECT = "o:"
    INVOCATION = "i:"
    RESULT = "r:"
    CLAIMS = "k:"
    SENT = "sent"
    OUTBOX = "x:"
    BASES = "bases"
    MARKS = "marks"
    WITNESS = "w"
    HISTORIES = "hist"
    OBJECT_BLOBS = "b:"
    BLOBS = "blobs"
    SET_ASIDE = "p:"
    BLOCKED = "blocked"
    SIGNALS = "g:"
    ATTACHED = "l:"
    PAUSED = "paused"
    EFFECTS = "e:"
    PROPOSALS = "v:"
    AGENDA = "agenda"
    QUEUE = "queue"
    PROPOSED = "proposed"
    LEDGER = "ledger"
    ALERTS = "alerts"


#: The type of each; what has a name of its own ends with a colon and goes on with that.
TYPES: Final = {
    Structure.OWNER: b"hash",
    Structure.INBOX: b"stream",
    Structure.DUE: b"zset",
    Structure.RUNNABLE: b"set",
    Structure.UNDECODABLE: b"stream",
    Structure.LANE: b"list",
    Structure.OBJECT: b"stream",
    Structure.INVOCATION: b"stream",
    Structure.RESULT: b"string",
    Structure.CLAIMS: b"hash",
    Structure.SENT: b"hash",
    Structure.OUTBOX: b"stream",
    Structure.BASES: b"hash",
    Structure.MARKS: b"hash",
    Structure.WITNESS: b"string",
    Structure.HISTORIES: b"zset",
    Structure.OBJECT_BLOBS: b"hash",
    Structure.BLOBS: b"zset",
    Structure.SET_ASIDE: b"set",
    Structure.BLOCKED: b"set",
    Structure.SIGNALS: b"hash",
    Structure.ATTACHED: b"set",
    Structure.PAUSED: b"hash",
    Structure.EFFECTS: b"hash",
    Structure.PROPOSALS: b"hash",
    Structure.AGENDA: b"zset",
    Structure.QUEUE: b"zset",
    Structure.PROPOSED: b"zset",
    Structure.LEDGER: b"stream",
    Structure.ALERTS: b"stream",
}

_FIXED: Final = {each.value.encode(): each for each in Structure if not each.value.endswith(":")}
_NAMED: Final = {each.value.encode(): each for each in Structure if each.value.endswith(":")}
_NAMED_LENGTH: Final = 2


@dataclass(frozen=True, slots=True)
class KeyName:
    """A key under the tag of one of our partitions.

    Args:
        type_name: The object type.
        number: The partition's number.
        structure: What it is for, None where nothing of ours has such a name.
        rest: What follows the name of the structure: a lane's key, a raw id, a day.
        raw: The whole name.
    """

    type_name: str
    number: int
    structure: Structure | None
    rest: bytes
    raw: bytes

    def space(self, namespace: str) -> PartitionSpace:
        """Return the partition that it belongs to."""
        return PartitionSpace(namespace, self.type_name, self.number)


def parse(namespace: str, raw: bytes) -> KeyName | None:
    """Read a key's name.

    Returns:
        None for a key of another namespace, or of nobody that has partitions.
    """
    head = b"{%s:" % namespace.encode()
    tag, brace, suffix = raw.partition(b"}:")
    if not brace or not tag.startswith(head):
        return None
    type_name, colon, number = tag[len(head) :].partition(b":")
    if not colon or not number.isdigit():
        return None
    structure, rest = _structure(suffix)
    return KeyName(type_name.decode(errors="replace"), int(number), structure, rest, raw)


def _structure(suffix: bytes) -> tuple[Structure | None, bytes]:
    fixed = _FIXED.get(suffix)
    if fixed is not None:
        return fixed, b""
    structure, rest = _NAMED.get(suffix[:_NAMED_LENGTH]), suffix[_NAMED_LENGTH:]
    return (None if structure is None or not _fits(structure, rest) else structure), rest


def _fits(structure: Structure, rest: bytes) -> bool:
    """Return whether a name of ours can go on like this."""
    match structure:
        case Structure.INVOCATION | Structure.RESULT | Structure.ATTACHED:
            return len(rest) == ID_BYTES
        case Structure.LANE | Structure.OBJECT | Structure.OBJECT_BLOBS | Structure.SET_ASIDE | Structure.SIGNALS:
            return key_text(rest) is not None
        case Structure.EFFECTS | Structure.PROPOSALS:
            return key_text(rest) is not None
        case Structure.CLAIMS:
            return rest.isdigit()
        case _:
            return bool(rest)


def printable(raw: bytes) -> str:
    """Return a key for people: ids in hexadecimal, what is no text with escapes."""
    tag, brace, suffix = raw.partition(b"}:")
    if brace and suffix[:_NAMED_LENGTH] in (b"i:", b"r:"):
        return f"{tag.decode(errors='replace')}}}:{suffix[:2].decode()}{suffix[2:].hex()}"
    return raw.decode(errors="backslashreplace")
