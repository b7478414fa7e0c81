"""An object's state out of its stream: the newest snapshot and the deltas after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgpack

from .codec import Undecodable
from .fields import pack
from .keyspace import PartitionSpace

#: A stream entry as the server answers it: id, then fields and values in turn.
Entry = tuple[bytes, list[bytes]]

#: The fields of the entry that is left of an object whose history was shrunk.
_SHRUNK = ([b"s"], [b"s", b"p"])

#: The version of a state that says nothing of it.
FIRST_VERSION: Final = 1
#: Under which a snapshot or a delta has the version of the state: bytes, since the names of values are text.
_VERSION: Final = b"v"

#: How many entries a first read asks for; the newest snapshot is among them unless many wrote nothing.
FIRST_READ_ENTRIES = 48


@dataclass(slots=True)
class ObjectState:
    """The packed values of an object, how far its newest snapshot lies back, and whether there is nothing else.

    `version` is the version of the object type's state that the values were written by.
    """

    values: dict[str, bytes]
    deltas_since_snapshot: int = 0
    # How it lies in the store is no part of what the state is.
    is_shrunk: bool = field(default=False, compare=False)
    version: int = FIRST_VERSION


def encode_values(values: dict[str, bytes] | dict[str, bytes | None], version: int | None = None) -> bytes:
    """Return the bytes of a snapshot or of a delta, in which None stands for a value that was cleared.

    Args:
        values: The values by name.
        version: The version of the state, where it is to be said.
    """
    return pack(values if version is None else {**values, _VERSION: version})


def decode_values(data: bytes) -> dict[str, bytes | None]:
    """Return the values that a snapshot or delta holds.

    Raises:
        Undecodable: The bytes hold neither.
    """
    return decode_state(data)[0]


def decode_state(data: bytes) -> tuple[dict[str, bytes | None], int | None]:
    """Return what a snapshot or delta holds: values, and the version of the state where it says one.

    Raises:
        Undecodable: The bytes hold neither.
    """
    try:
        values = msgpack.unpackb(data, unicode_errors="surrogatepass")
    except (ValueError, TypeError, RecursionError) as error:
        raise Undecodable(f"a state delta is not msgpack: {error}") from error
    if not isinstance(values, dict):
        raise Undecodable("a state delta is not a map")
    version = cast("dict[object, object]", values).pop(_VERSION, None)
    if version is not None and not isinstance(version, int):
        raise Undecodable(f"a state delta has {version!r:.50} for its version")
    for name, value in cast("dict[object, object]", values).items():
        if not (isinstance(name, str) and (value is None or isinstance(value, bytes))):
            raise Undecodable(f"a state delta holds {value!r:.50} under {name!r:.50}, which is no packed value")
    return cast("dict[str, bytes | None]", values), version


def newest_words(space: PartitionSpace, key_text: str) -> tuple[Any, ...]:
    """Return the command that reads the newest entries of an object's stream."""
    return ("XREVRANGE", space.object(key_text), "+", "-", "COUNT", FIRST_READ_ENTRIES)


def older_words(space: PartitionSpace, key_text: str, oldest: bytes) -> tuple[Any, ...]:
    """Return the command that reads what lies before an entry, a larger piece at a time."""
    return ("XREVRANGE", space.object(key_text), b"(" + oldest, "-", "COUNT", FIRST_READ_ENTRIES * 8)


def is_whole(entries: list[Entry], asked: int) -> bool:
    """Return whether entries, newest first, reach back to a snapshot or to the stream's beginning."""
    return len(entries) < asked or any(b"s" in fields[::2] for _, fields in entries)


def fold(entries: list[Entry]) -> ObjectState:
    """Return the state that entries, newest first and whole, add up to.

    Raises:
        Undecodable: An entry that the state needs can't be read; the message names it.
    """
    deltas: list[dict[str, bytes | None]] = []
    base: dict[str, bytes | None] = {}
    version: int | None = None
    for entry_id, fields in entries:
        named = dict(zip(fields[::2], fields[1::2], strict=True))
        try:
            if b"s" in named:
                base, said = decode_state(named[b"s"])
                version = version or said
                break
            if b"d" in named:
                delta, said = decode_state(named[b"d"])
                deltas.append(delta)
                version = version or said
        except Undecodable as error:
            raise Undecodable(f"entry {entry_id.decode()}: {error}") from error
    for delta in reversed(deltas):
        base.update(delta)
    values = {name: value for name, value in base.items() if value is not None}
    return ObjectState(values, len(deltas), is_shrunk(entries), version or FIRST_VERSION)


def is_shrunk(entries: list[Entry]) -> bool:
    """Return whether an object's entries are all that must be kept of it: one snapshot, or nothing."""
    return not entries or (len(entries) == 1 and entries[0][1][::2] in _SHRUNK)


def aside_of(fields: Mapping[bytes, bytes]) -> list[bytes]:
    """Return the ids of parked invocations that the snapshot of a shrunk object names."""
    try:
        ids: Any = msgpack.unpackb(fields[b"p"]) if b"p" in fields else []
    except (ValueError, TypeError, RecursionError):
        return []
    named = cast("list[object]", ids) if isinstance(ids, list) else []
    return [raw_id for raw_id in named if isinstance(raw_id, bytes)]
