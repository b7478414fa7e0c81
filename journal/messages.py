"""Messages between objects: who sent one and waits for its reply, and the ids that are the same in every replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, cast

import msgpack

from .codec import Undecodable
from .fields import Layout, decode_tagged, pack, some_bytes
from .place import Place, a_place, place_bytes

_TIME_BYTES: Final = 6
_DIGEST_BYTES: Final = 10


@dataclass(frozen=True, slots=True)
class Held:
    """A lane that is held for as long as a call lasts, by one of those who wait for it.

    Args:
        type_name: The object type.
        key: The object, as `tenant/key`.
        handler: The handler that holds it.
    """

    type_name: str
    key: str
    handler: str

    def __str__(self) -> str:
        """Return it as it stands in the path of a `Deadlock`."""
        return f"{self.type_name}.{self.handler} at {self.key}"


@dataclass(frozen=True, slots=True)
class Caller:
    """An invocation that waits for the reply to a call, and all the lanes that are held meanwhile.

    Args:
        type_name: Its object type.
        partition: The number of its partition.
        key: Its object, as `tenant/key`.
        invocation: Its raw id.
        index: The place of the call among its commands.
        path: The lanes that are held until the call has ended: the outermost caller's first, its own last.
    """

    type_name: str
    partition: int
    key: str
    invocation: bytes
    index: Place
    path: tuple[Held, ...]

    def encode(self) -> bytes:
        """Return the bytes of the caller."""
        path = [(held.type_name, held.key, held.handler) for held in self.path]
        return pack((self.type_name, self.partition, self.key, self.invocation, self.index, path))

    @classmethod
    def decode(cls, data: bytes) -> Caller:
        """Return the caller that bytes hold; what a later version adds behind it is left out.

        Raises:
            Undecodable: They hold none.
        """
        try:
            value: Any = msgpack.unpackb(data, unicode_errors="surrogatepass")
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise Undecodable("a caller is not msgpack") from error
        match _some(value, _CALLER_FIELDS):
            case [str() as name, int() as number, str() as key, bytes() as raw_id, index, path]:
                return cls(name, number, key, raw_id, _place(index), tuple(map(_held, _items(path))))
            case _:
                raise Undecodable("not a caller")


@dataclass(frozen=True, slots=True)
class Attached:
    """An invocation that waits for the end of one that it did not ask for.

    Args:
        caller: Who waits.
        target: Raw id of what it waits for: the one that ends, or a repetition of it by its idempotency key.
    """

    caller: Caller
    target: bytes

    def encode(self) -> bytes:
        """Return the bytes under which it is noted."""
        return pack((self.target, self.caller.encode()))

    @classmethod
    def decode(cls, data: bytes) -> Attached:
        """Return what was noted.

        Raises:
            Undecodable: It is something else.
        """
        try:
            match cast("object", msgpack.unpackb(data)):
                case [bytes() as target, bytes() as caller]:
                    return cls(Caller.decode(caller), target)
                case _:
                    raise Undecodable("not a note of one that waits")
        except (ValueError, TypeError) as error:
            raise Undecodable("a note of one that waits is not msgpack") from error


def _items(value: object) -> list[object]:
    if not isinstance(value, list):
        raise Undecodable("not an array")
    return cast("list[object]", value)


def _some(value: object, count: int) -> list[object]:
    """Return so many items of an array; what a later version adds behind them is left out."""
    return _items(value)[:count]


_CALLER_FIELDS: Final = 6
_HELD_FIELDS: Final = 3


def _place(value: object) -> Place:
    if isinstance(value, int):
        return value
    numbers = _items(value)
    if not all(type(number) is int for number in numbers):
        raise Undecodable("not a place")
    return tuple(cast("list[int]", numbers))


def _held(value: object) -> Held:
    match _some(value, _HELD_FIELDS):
        case [str() as type_name, str() as key, str() as handler]:
            return Held(type_name, key, handler)
        case _:
            raise Undecodable("not a held lane")


def a_caller(value: object) -> Caller | None:
    """Read a caller out of a field that may be empty."""
    return None if value is None else Caller.decode(cast("bytes", some_bytes(value)))


def closes(path: Sequence[Held], type_name: str, key: str) -> bool:
    """Return whether a call of an exclusive handler would wait for one of those who wait for it."""
    return any(held.type_name == type_name and held.key == key for held in path)


def child_id(parent: bytes, index: Place, restarts: int = 0) -> bytes:
    """Return the raw id of the invocation that a command asks for: the same one however often the command is run.

    Args:
        parent: Who asks.
        index: The place of the command.
        restarts: How often the one who asks was begun again from an earlier command: then it asks anew.
    """
    again = b"r" + restarts.to_bytes(4, "big") if restarts else b""
    digest = blake2b(parent + place_bytes(index) + again, digest_size=_DIGEST_BYTES).digest()
    return parent[:_TIME_BYTES] + digest


def reply_id(callee: bytes) -> bytes:
    """Return the raw id of the message that carries the outcome of a called invocation."""
    return callee[:_TIME_BYTES] + blake2b(callee, digest_size=_DIGEST_BYTES, person=b"reply").digest()


@dataclass(frozen=True, slots=True)
class Reply:
    """The payload of a reply.

    Args:
        invocation: Raw id of the caller.
        index: The place of the call among its commands.
        outcome: The encoded outcome.
        attached: Raw id of the invocation that has ended, where the caller had not asked for it; else empty.
    """

    invocation: bytes
    index: Place
    outcome: bytes
    attached: bytes = b""

    def encode(self) -> bytes:
        """Return the bytes of the reply."""
        fields = (_REPLY, self.invocation, self.index, self.outcome)
        return pack((*fields, self.attached) if self.attached else fields)

    @classmethod
    def decode(cls, data: bytes) -> Reply:
        """Return the reply that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        return decode_tagged(data, _REPLIES, "reply")


_REPLY: Final = 121
_REPLIES: Final[Mapping[int, Layout[Reply]]] = {_REPLY: Layout(Reply, (some_bytes, a_place, some_bytes), (some_bytes,))}
