"""Positional msgpack arrays with a tag in front: how records and outcomes lie in the store.

The tag says which fact follows and so which fields stand at which place. Fields are only ever added at the end: a
reader takes the ones that it knows and lets the rest be, so a worker of the version before can read what the next one
wrote. User payloads are opaque bytes here; `codec` made them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import msgpack

from .codec import Undecodable

Fact = TypeVar("Fact")
Reader = Callable[[object], Any]

# One packer for all: making one costs more than packing a record. Names and messages may hold lone surrogates (Python's
# own exceptions do, for file names), and a record must never fail to be written because of them.
pack: Callable[[object], bytes] = msgpack.Packer(use_bin_type=True, unicode_errors="surrogatepass").pack


class _Misfit(Exception):
    """A field does not hold what its place asks for."""


@dataclass(frozen=True, slots=True)
class Layout(Generic[Fact]):
    """What follows a tag: the fact that the fields make, and a reader for each of them in order.

    Args:
        make: Makes the fact.
        readers: For the fields that are always there.
        later: For those that stand behind them where they say something, in order.
    """

    make: Callable[..., Fact]
    readers: tuple[Reader, ...]
    later: tuple[Reader, ...] = ()

    def read(self, fields: list[object]) -> Fact:
        """Return the fact made of the fields behind the tag; fields of a later version are left out."""
        if len(fields) < len(self.readers):
            raise _Misfit(f"{len(fields)} fields where {len(self.readers)} are needed")
        readers = self.readers if len(fields) == len(self.readers) else self.readers + self.later
        return self.make(*[read(value) for read, value in zip(readers, fields, strict=False)])


def decode_tagged(data: bytes, layouts: Mapping[int, Layout[Fact]], what: str) -> Fact:
    """Return the fact that tagged bytes hold.

    Args:
        data: The bytes as they lie in the store.
        layouts: The layout of each tag.
        what: What the bytes should be, for the message.

    Raises:
        Undecodable: The bytes are not msgpack, or not one of these facts.
    """
    fields = _unpack_array(data, what)
    tag = fields[0]
    layout = layouts.get(tag) if type(tag) is int else None
    if layout is None:
        raise Undecodable(f"unknown tag {tag!r} of a {what}")
    try:
        return layout.read(fields[1:])
    except _Misfit as misfit:
        raise Undecodable(f"a {what} with tag {tag} is malformed: {misfit}") from misfit


def _unpack_array(data: bytes, what: str) -> list[object]:
    try:
        value: object = msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogatepass")
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Undecodable(f"a {what} is not msgpack: {error}") from error
    if not isinstance(value, list) or not value:
        raise Undecodable(f"a {what} is not a tagged array")
    return cast("list[object]", value)


def _exactly(kind: type) -> Reader:
    def read(value: object) -> object:
        # `type is` and not isinstance: a bool is no number here.
        if type(value) is not kind:
            raise _Misfit(f"{type(value).__name__} where {kind.__name__} belongs")
        return value

    return read


a_number = _exactly(int)
a_text = _exactly(str)
a_flag = _exactly(bool)
some_bytes = _exactly(bytes)


def optional(read: Reader) -> Reader:
    """Return a reader that lets nil pass."""

    def read_optional(value: object) -> object:
        return None if value is None else read(value)

    return read_optional


def text_of(*choices: str) -> Reader:
    """Return a reader for one of a few texts."""

    def read(value: object) -> object:
        if value not in choices:
            raise _Misfit(f"{value!r} where one of {choices} belongs")
        return value

    return read


def one_of(members: Callable[[str], object]) -> Reader:
    """Return a reader for a member of an enumeration of texts."""

    def read(value: object) -> object:
        try:
            return members(cast("str", a_text(value)))
        except ValueError as error:
            raise _Misfit(str(error)) from error

    return read


def nested(layout: Layout[Any]) -> Reader:
    """Return a reader for an array that is itself laid out."""

    def read(value: object) -> object:
        return layout.read(cast("list[object]", _a_list(value)))

    return read


def sequence_of(read: Reader) -> Reader:
    """Return a reader for an array whose items are all alike."""

    def read_sequence(value: object) -> tuple[object, ...]:
        return tuple(read(item) for item in cast("list[object]", _a_list(value)))

    return read_sequence


def sequence_of_bytes(value: object) -> tuple[bytes, ...]:
    """Read an array whose items are all bytes."""
    return tuple(some_bytes(item) for item in cast("list[object]", _a_list(value)))


def map_to_bytes(value: object) -> dict[str, bytes | None]:
    """Read a map from names to bytes or nil."""
    if not isinstance(value, dict):
        raise _Misfit(f"{type(value).__name__} where a map belongs")
    items = cast("dict[object, object]", value).items()
    return {a_text(name): _optional_bytes(item) for name, item in items}


_a_list = _exactly(list)
_optional_bytes = optional(some_bytes)
