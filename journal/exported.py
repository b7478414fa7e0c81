"""The journal of one invocation by itself, and the file that it is handed on in: lines of JSON, for ever readable.

A file holds one journal or several. Each begins with a head line, which says in which form the lines behind it are, and
ends with a line that counts its records, so that a file that was cut off is noticed. Records and values stand there as
the bytes of the store; what stands beside them in words is for people.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from .codec import Undecodable
from .key import format_id, parse_id
from .record_bytes import decode
from .records import Accepted, Record

FORM: Final = 1
_KIND: Final = "journal"


@dataclass(frozen=True, slots=True)
class Written:
    """A record as it lies in the store.

    Args:
        at_ms: When it was written, in the partition's time.
        data: Its bytes.
    """

    at_ms: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Journal:
    """All that a replay of an invocation goes by.

    Args:
        type_name: The object type.
        partition: The partition's number.
        key: The object.
        invocation: Raw id.
        records: Its records as far as they can be read, oldest first.
        begun_ms: The partition's time at the first of them.
        undecodable: Why the next one can't be read, None where all can.
        state: The object's packed values, some of them references.
        state_version: The version that they were written by.
        large: Large values by digest, as far as they are at hand.
    """

    type_name: str
    partition: int
    key: str
    invocation: bytes
    records: tuple[Record, ...]
    begun_ms: int = 0
    undecodable: str | None = None
    state: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    state_version: int = 1
    large: Mapping[bytes, bytes] = field(default_factory=dict[bytes, bytes])

    @property
    def id(self) -> str:
        """The invocation's id as users see it."""
        return format_id(self.type_name, self.partition, self.invocation)

    @property
    def accepted(self) -> Accepted | None:
        """Its first record, None where that can't be read."""
        first = self.records[0] if self.records else None
        return first if isinstance(first, Accepted) else None


def decoded(written: Iterable[Written]) -> tuple[tuple[Record, ...], str | None]:
    """Return records as far as they can be read, and why the next one can't be."""
    records: list[Record] = []
    for number, each in enumerate(written):
        try:
            records.append(decode(each.data))
        except Undecodable as error:
            return tuple(records), f"record {number}: {error.reason}"
    return tuple(records), None


def lines_of(journal: Journal, written: Sequence[Written]) -> Iterator[str]:
    """Return the lines of a file that hold a journal.

    Args:
        journal: The journal.
        written: Its records as they lie in the store.
    """
    accepted = journal.accepted
    head = {
        "keylane": _KIND,
        "form": FORM,
        "id": journal.id,
        "key": journal.key,
        "state_version": journal.state_version,
    }
    if accepted is not None:
        head |= {"handler": accepted.handler, "version": accepted.version}
    yield json.dumps(head)
    for name, packed in sorted(journal.state.items()):
        yield json.dumps({"state": name, "value": _text(packed)})
    for digest, packed in sorted(journal.large.items()):
        yield json.dumps({"large": digest.hex(), "value": _text(packed)})
    for each in written:
        yield json.dumps({"at_ms": each.at_ms, "says": _says(each.data), "record": _text(each.data)})
    yield json.dumps({"end": len(written)})


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _says(data: bytes) -> str:
    try:
        return type(decode(data)).__name__
    except Undecodable:
        return "unreadable"


def journals_in(lines: Iterable[str]) -> Iterator[Journal]:
    """Return the journals that the lines of a file hold.

    Raises:
        Undecodable: A line is none of such a file, it is in a form of a later release, or it is cut off.
    """
    reader = _Reader()
    for number, line in enumerate(lines, start=1):
        try:
            journal = reader.take(line)
        except (Undecodable, KeyError, TypeError, ValueError) as error:
            why = error.reason if isinstance(error, Undecodable) else f"{type(error).__name__}: {error}"
            raise Undecodable(f"line {number}: {why}") from error
        if journal is not None:
            yield journal
    if reader.reading is not None:
        raise Undecodable("it is cut off: the last journal has no end")


class _Reader:
    """Takes the lines of a file, one after the other."""

    def __init__(self) -> None:
        self.reading: _Reading | None = None

    def take(self, line: str) -> Journal | None:
        """Take one line, and return the journal that it ends."""
        if not line.strip():
            return None
        fields = _fields(line)
        reading = self.reading
        if "keylane" in fields:
            if reading is not None:
                raise Undecodable("a journal begins before the one ahead of it has ended")
            self.reading = _Reading.of(fields)
            return None
        if reading is None:
            raise Undecodable("it does not begin with the head of a journal")
        if "end" not in fields:
            reading.take(fields)
            return None
        self.reading = None
        return reading.ended(fields["end"])


def _fields(line: str) -> dict[str, Any]:
    value: Any = json.loads(line)
    if not isinstance(value, dict):
        raise Undecodable("no JSON object")
    return cast("dict[str, Any]", value)


@dataclass(slots=True)
class _Reading:
    """A journal of which some lines are read."""

    head: dict[str, Any]
    state: dict[str, bytes] = field(default_factory=dict[str, bytes])
    large: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    written: list[Written] = field(default_factory=list[Written])

    @classmethod
    def of(cls, head: dict[str, Any]) -> _Reading:
        """Begin with a head line."""
        if head["keylane"] != _KIND:
            raise Undecodable(f"it holds {head['keylane']!r:.50}, no journal")
        if head["form"] != FORM:
            raise Undecodable(f"its form is {head['form']!r:.50}, and this release reads {FORM}: use a later one")
        return cls(head)

    def take(self, fields: dict[str, Any]) -> None:
        """Take one more line in; one of a kind that this release does not know adds nothing to a replay."""
        if "state" in fields:
            self.state[fields["state"]] = _bytes(fields["value"])
        elif "large" in fields:
            self.large[bytes.fromhex(fields["large"])] = _bytes(fields["value"])
        elif "record" in fields:
            self.written.append(Written(int(fields["at_ms"]), _bytes(fields["record"])))

    def ended(self, count: object) -> Journal:
        """Return the journal."""
        if count != len(self.written):
            raise Undecodable(f"{len(self.written)} records where {count!r:.50} belong")
        invocation = parse_id(self.head["id"])
        records, undecodable = decoded(self.written)
        return Journal(
            invocation.type_name,
            invocation.partition,
            self.head["key"],
            invocation.raw,
            records,
            self.written[0].at_ms if self.written else 0,
            undecodable,
            self.state,
            int(self.head["state_version"]),
            self.large,
        )


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise Undecodable(f"no base64: {error}") from error
