"""When two calls with one idempotency key are the same call.

The fingerprint is made over the typed value without its unset fields, in a canonical form: the order of fields and of
set members, and the trailing zeros of a Decimal, do not matter; a field that is left out differs from one that is null.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final, cast

from ..journal.codec import pack, step_into, unpack

FINGERPRINT_BYTES: Final = 8
_LENGTH: Final = struct.Struct(">I")
_ABSENT: Final = object()
#: What is packed as it is; most values of most arguments are such.
_LEAVES: Final = frozenset({str, int, float, bool, bytes, type(None)})


def fingerprint(handler_name: str, basis: bytes | None) -> bytes:
    """Eight bytes that tell one call from another.

    Args:
        handler_name: Part of the fingerprint: one key can't be used for two handlers.
        basis: The argument, loaded by its declared type and dumped without unset fields (`Boundary.dump_unset`);
            None for a handler that takes none.
    """
    argument = b"" if basis is None else canonical(unpack(basis))
    return _digest(_joined(b"c", (handler_name.encode(), argument)))


def raw_digest(payload: bytes | None) -> bytes:
    """Eight bytes over the argument as it was sent; equal ones need no look at the types."""
    return _digest(b"" if payload is None else payload)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=FINGERPRINT_BYTES).digest()


def canonical(value: Any) -> bytes:
    """Bytes that are equal for equal values, whatever the order of their fields."""
    if type(value) in _LEAVES:
        return pack(value)
    match value:
        case dict():
            items = cast("dict[object, object]", value).items()
            return _joined(b"m", sorted(_joined(b"p", (canonical(key), canonical(child))) for key, child in items))
        case list():
            return _joined(b"l", map(canonical, cast("list[object]", value)))
        case tuple():
            return _joined(b"t", map(canonical, cast("tuple[object, ...]", value)))
        case set() | frozenset():
            return _joined(b"s", sorted(map(canonical, cast("set[object]", value))))
        case Decimal():
            return _joined(b"d", (_canonical_decimal(value).encode(),))
        case _:
            return pack(value)


def _joined(kind: bytes, parts: Iterable[bytes]) -> bytes:
    # The length before each part keeps ("ab", "c") and ("a", "bc") apart.
    return kind + b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def _canonical_decimal(value: Decimal) -> str:
    # Not Decimal.normalize: it rounds to the precision of the context.
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return str(value)
    text = "".join(map(str, digits)).lstrip("0")
    shortest = text.rstrip("0")
    if not shortest:
        return "0"
    return f"{'-' * sign}{shortest}E{exponent + len(text) - len(shortest)}"


def differing_fields(first: object, second: object, where: str = "") -> tuple[str, ...]:
    """Paths of the fields in which two arguments differ, e.g. `("request.amount",)`.

    Args:
        first: The one argument, dumped and unpacked: plain values.
        second: The other one.
        where: The name of the parameter, in front of each path.

    Returns:
        The deepest paths that tell them apart; none when they are the same in all that is compared.
    """
    return tuple(_differing(first, second, where))


def _differing(first: object, second: object, path: str) -> Iterator[str]:
    if first is not _ABSENT and second is not _ABSENT and canonical(first) == canonical(second):
        return
    steps = _common_steps(first, second)
    if steps is None:
        yield path or "the argument"
        return
    for step, left, right in steps:
        yield from _differing(left, right, step_into(path, step))


def _common_steps(first: object, second: object) -> list[tuple[object, object, object]] | None:
    if isinstance(first, dict) and isinstance(second, dict):
        return _by_key(cast("dict[object, object]", first), cast("dict[object, object]", second))
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        ours, theirs = cast("list[object]", first), cast("list[object]", second)
        if len(ours) == len(theirs):
            return [(index, *pair) for index, pair in enumerate(zip(ours, theirs, strict=True))]
    return None


def _by_key(first: Mapping[object, object], second: Mapping[object, object]) -> list[tuple[object, object, object]]:
    keys = [*first, *(key for key in second if key not in first)]
    return [(key, first.get(key, _ABSENT), second.get(key, _ABSENT)) for key in keys]
