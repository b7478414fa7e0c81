"""Pauses that operators order: of an invocation, of an object, or of a type, which is one for each partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from .codec import Undecodable
from .descriptions import ObjectPause
from .fields import Layout, a_number, a_text, decode_tagged, pack, some_bytes
from .keyspace import PartitionSpace
from .lane_reading import ask
from .noted import moment
from .store import Store

#: The field of the hash of pauses that stands for all objects of a partition; no object has an empty key.
ALL: Final = ""
#: Fields that one reading asks for.
AT_ONCE: Final = 500
_UNREADABLE: Final = "what was written of it can't be read"


@dataclass(frozen=True, slots=True)
class PauseOrder:
    """The payload of a request to pause.

    Args:
        invocation: Raw id of the invocation; empty where the object is to be paused that the request names, or where it
            names none, all objects of the partition.
        by: Who asks for it.
        reason: Why, in words.
    """

    invocation: bytes
    by: str
    reason: str

    def encode(self) -> bytes:
        """Return the bytes of the order."""
        return pack((_PAUSE_ORDER, self.invocation, self.by, self.reason))

    @classmethod
    def decode(cls, data: bytes) -> PauseOrder:
        """Return the order that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        return decode_tagged(data, _ORDERS, "pause order")


@dataclass(frozen=True, slots=True)
class Pausing:
    """A pause of an object or of a type that is in force, as it is kept.

    Args:
        by: Who ordered it.
        reason: Why, in words.
        since_ms: Since when, by the partition's time.
    """

    by: str
    reason: str
    since_ms: int

    def encode(self) -> bytes:
        """Return the bytes of the pause."""
        return pack((_PAUSING, self.by, self.reason, self.since_ms))

    @classmethod
    def decode(cls, data: bytes) -> Pausing:
        """Return the pause that bytes hold: it is one also where they can't be read."""
        try:
            return decode_tagged(data, _PAUSINGS, "pause")
        except Undecodable:
            return cls("", _UNREADABLE, 0)


_PAUSE_ORDER: Final = 108
_PAUSING: Final = 109
_ORDERS: Final[Mapping[int, Layout[PauseOrder]]] = {_PAUSE_ORDER: Layout(PauseOrder, (some_bytes, a_text, a_text))}
_PAUSINGS: Final[Mapping[int, Layout[Pausing]]] = {_PAUSING: Layout(Pausing, (a_text, a_text, a_number))}


async def read_pauses(store: Store, space: PartitionSpace, most: int | None = None) -> dict[str, Pausing]:
    """Read the pauses of a partition's objects, a page at a time.

    Args:
        store: The open store.
        space: The partition.
        most: How many are enough; None for all.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where the hash belongs.
    """
    found: dict[str, Pausing] = {}
    cursor = b"0"
    while most is None or len(found) < most:
        words = ("HSCAN", space.paused, cursor, "COUNT", AT_ONCE)
        ((cursor, flat),) = await ask(store, [words], [space.paused])
        for name, data in zip(flat[::2], flat[1::2], strict=True):
            found[name.decode(errors="replace")] = Pausing.decode(data)
        if cursor == b"0":
            break
    return found


def words_of(space: PartitionSpace, key_text: str) -> tuple[Any, ...]:
    """Return the read that tells what of an object is paused; `told` makes sense of its reply."""
    return ("HMGET", space.paused, ALL, key_text)


def told(reply: Sequence[bytes | None], in_charge: str | None) -> tuple[ObjectPause, ...]:
    """Return the pauses that hold an object up, the one of its type first."""
    return tuple(
        described(scope, Pausing.decode(data), in_charge)
        for scope, data in zip(("type", "object"), reply, strict=True)
        if data is not None
    )


def described(scope: str, pausing: Pausing, in_charge: str | None) -> ObjectPause:
    """Return a pause as readers are told of it."""
    since: datetime = moment(pausing.since_ms)
    return ObjectPause(scope, pausing.by, pausing.reason, since, in_charge)
