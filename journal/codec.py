"""Values as bytes: msgpack with a fixed table of extension types.

    code  type        payload
    1     int         outside 64 bits: two's complement, big-endian, shortest form
    2     Decimal     its text, exact to the digit, also -0, NaN and Infinity
    3     datetime    ISO 8601 text; then [zone] for a ZoneInfo by name, then [fold=1] for the second 2:30
    4     date        ISO 8601 text
    5     time        as datetime
    6     timedelta   days, seconds, microseconds: three big-endian int32
    7     UUID        16 bytes
    8     tuple       a packed array
    9     set         a packed array, its members in the order of their packed bytes
    10    frozenset   as set
    64    (none)      stands for a whole value that is kept elsewhere: its digest (16 bytes), its size (4); see `blobs`

The table is part of the format of the journal and of the wire: a code never changes its meaning.
Members of enumerations are written as their values and subclasses of plain types as the plain type;
the declared type at the other end brings them back. The timestamp type of msgpack itself is read, for
clients in other languages, and never written. Both directions have the same bound on depth, so
whatever is written can be read.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from msgpack import ExtraData, ExtType, FormatError, Packer, StackError, Unpacker, unpackb

from .errors import KeylaneError
from .utf8 import LONE_SURROGATE

# A tuple or set inside another costs one C frame of the unpacker; deeper nesting than this could
# overrun the stack of a thread, and Python could not turn that into an exception.
NESTED_EXTENSIONS_MAX: Final = 32

BIG_INT, DECIMAL, DATETIME, DATE, TIME, TIMEDELTA, UUID_, TUPLE, SET, FROZENSET = range(1, 11)

#: What stands for a value that is kept elsewhere begins with these bytes and has this length; no value has both.
REFERENCE_HEAD: Final = bytes((0xC7, 20, 64))
REFERENCE_BYTES: Final = 23

_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**64 - 1
_TIMEDELTA: Final = struct.Struct(">iii")
_FOLD: Final = "fold=1"
# The packer's own start size of 256 KiB makes the allocator map and unmap pages for each nested value.
_BUFFER_BYTES: Final = 1024
_AS_DATETIME: Final = 3
TOO_DEEP: Final = "it is nested too deeply, or contains itself"

Plain = Callable[[object], object]


class NotEncodable(KeylaneError):
    """A value holds something that has no form on the wire.

    Attributes:
        path: Where it is inside the value, e.g. `items[2].amount`; empty for the value itself.
        type_name: What was found there.
        reason: Why it can't be written.
    """

    code = "not-encodable"
    field_names = ("path", "type_name", "reason")

    def __init__(self, path: str, type_name: str, reason: str) -> None:
        super().__init__(f"{path or 'the value'} ({type_name}) can't be written down: {reason}")
        self.path = path
        self.type_name = type_name
        self.reason = reason


class Undecodable(KeylaneError):
    """Bytes that are not a packed value.

    Attributes:
        reason: What is wrong with them.
        offset: The byte at which reading failed, where it is known.
    """

    code = "undecodable"
    field_names = ("reason", "offset")

    def __init__(self, reason: str, offset: int | None = None) -> None:
        place = "" if offset is None else f" at byte {offset}"
        super().__init__(f"not a packed value{place}: {reason}")
        self.reason = reason
        self.offset = offset


def step_into(path: str, step: object) -> str:
    """Extend the path of a value by a field, an index or a key: `items`, `items[2]`, `items[2].amount`."""
    if isinstance(step, str) and step.isidentifier():
        return f"{path}.{step}" if path else step
    return f"{path}[{step!r}]"


class Encoder:
    """Packs values.

    Args:
        plain: Is given what the table lacks; returns something that it has, or raises `NotEncodable`.
    """

    __slots__ = ("_inner", "_plain")

    def __init__(self, plain: Plain | None = None, *, nested_max: int = NESTED_EXTENSIONS_MAX) -> None:
        self._plain = plain
        self._inner = Encoder(plain, nested_max=nested_max - 1) if nested_max else None

    def pack(self, value: object) -> bytes:
        """Turn a value into bytes.

        Raises:
            NotEncodable: Something in it has no form on the wire.
        """
        try:
            return self.pack_anonymously(value)
        except Exception as error:
            raise self._located(value, error) from error

    def pack_anonymously(self, value: object) -> bytes:
        """Do as `pack`, but let out whatever went wrong as it is, without the path to it."""
        # A packer of its own for each value costs 50 ns and may be used by any thread, and from within itself.
        data = Packer(default=self._extended, strict_types=True, buf_size=_BUFFER_BYTES).pack(value)
        if len(data) == REFERENCE_BYTES and data.startswith(REFERENCE_HEAD):
            raise NotEncodable("", type(value).__name__, "its extension type is reserved")
        return data

    def _extended(self, value: Any) -> object:
        while True:
            kind = cast("type[object]", type(value))
            if kind in _NATIVE:
                return value
            if kind is int:
                return value if _INT_MIN <= value <= _INT_MAX else ExtType(BIG_INT, _int_bytes(value))
            if kind in _SCALARS:
                code, encode = _SCALARS[kind]
                return ExtType(code, encode(value))
            if kind in _CONTAINERS:
                return ExtType(_CONTAINERS[kind], self._members(value))
            value = self._simpler(value)

    def _members(self, value: tuple[object, ...] | set[object] | frozenset[object]) -> bytes:
        if self._inner is None:
            raise RecursionError
        if isinstance(value, tuple):
            return self._inner.pack_anonymously(list(value))
        members = sorted(map(self._inner.pack_anonymously, value))
        return Packer(buf_size=16).pack_array_header(len(members)) + b"".join(members)

    def _simpler(self, value: object) -> object:
        if isinstance(value, Enum):
            return value.value
        for kind, simplify in _SIMPLER.items():
            if isinstance(value, kind):
                return simplify(value)
        if self._plain is None:
            raise NotEncodable("", type(value).__name__, "its type has no form on the wire")
        return self._plain(value)

    def _located(self, value: object, error: Exception) -> NotEncodable:
        """Walk to the element that can't be packed; only a failure pays for this."""
        path, culprit = "", value
        # A value that contains itself would be walked for ever.
        while not _is_depth(error):
            for step, child in _children(culprit):
                found = self._failure(child)
                if found is not None:
                    path, culprit, error = step_into(path, step), child, found
                    break
            else:
                break
        return NotEncodable(path, type(culprit).__name__, _reason(error))

    def _failure(self, value: object) -> Exception | None:
        try:
            self.pack_anonymously(value)
        except Exception as error:  # noqa: BLE001  whatever it is becomes the reason
            return error
        return None


def _children(value: object) -> Iterable[tuple[object, object]]:
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value)
        return [*((key, key) for key in items), *items.items()]
    if isinstance(value, list | tuple | deque):
        return enumerate(cast("Iterable[object]", value))
    if isinstance(value, set | frozenset):
        return ((member, member) for member in cast("Iterable[object]", value))
    return ()


def _is_depth(error: Exception) -> bool:
    return isinstance(error, RecursionError) or (isinstance(error, ValueError) and "recursion" in str(error))


def _reason(error: Exception) -> str:
    match error:
        case NotEncodable():
            return error.reason
        case UnicodeEncodeError():
            return f"its text {LONE_SURROGATE}"
        case _ if _is_depth(error):
            return TOO_DEEP
        case _:
            return f"{type(error).__name__}: {error}"


def unpack(data: bytes) -> Any:
    """Turn bytes back into the value.

    Raises:
        Undecodable: They are not a packed value.
    """
    try:
        return unpackb(data, ext_hook=_OUTERMOST, strict_map_key=False, timestamp=_AS_DATETIME)
    except Exception as error:
        raise _garbage(data, error) from error


def _garbage(data: object, error: Exception) -> Undecodable:
    match error:
        case Undecodable():
            reason = error.reason
        case ExtraData():
            reason = "more bytes follow the value"
        case StackError():
            reason = TOO_DEEP
        case FormatError():
            reason = "no value begins with this byte"
        case UnicodeDecodeError():
            reason = "its text is not UTF-8"
        case ValueError() if "incomplete" in str(error):
            reason = "it ends too early"
        case _:
            reason = f"{type(error).__name__}: {error}"
    return Undecodable(reason, _offset(data))


def _offset(data: object) -> int | None:
    """Read once more with the reader that counts; only a failure pays for this."""
    if not isinstance(data, bytes):
        return None
    reader = Unpacker(ext_hook=_OUTERMOST, strict_map_key=False, timestamp=_AS_DATETIME)
    try:
        reader.feed(data)
        reader.unpack()
    except Exception:  # noqa: BLE001  what went wrong is known, only the place was asked for
        return reader.tell()
    return reader.tell()


def _reader(depth: int) -> Callable[[int, bytes], object]:
    def read(code: int, data: bytes) -> object:
        if code in _READ_CONTAINERS:
            return _READ_CONTAINERS[code](_array(data, depth))
        if code not in _READ_SCALARS:
            raise Undecodable(f"extension type {code} is not in the table")
        return _READ_SCALARS[code](data)

    return read


def _array(data: bytes, depth: int) -> list[Any]:
    if depth == NESTED_EXTENSIONS_MAX:
        raise Undecodable(TOO_DEEP)
    value = unpackb(data, ext_hook=_READERS[depth + 1], strict_map_key=False, timestamp=_AS_DATETIME)
    if not isinstance(value, list):
        raise Undecodable("a tuple or set is not an array")
    return cast("list[Any]", value)


def _int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _moment_bytes(value: datetime | time) -> bytes:
    zone = value.tzinfo.key if isinstance(value.tzinfo, ZoneInfo) else None
    text = f"{value.replace(tzinfo=None).isoformat()}[{zone}]" if zone else value.isoformat()
    return (f"{text}[fold=1]" if value.fold else text).encode()


def _read_datetime(data: bytes) -> datetime:
    text, marks = _marks(data)
    value = datetime.fromisoformat(text)
    for mark in marks:
        value = value.replace(fold=1) if mark == _FOLD else value.replace(tzinfo=ZoneInfo(mark))
    return value


def _read_time(data: bytes) -> time:
    text, marks = _marks(data)
    value = time.fromisoformat(text)
    for mark in marks:
        value = value.replace(fold=1) if mark == _FOLD else value.replace(tzinfo=ZoneInfo(mark))
    return value


def _marks(data: bytes) -> tuple[str, list[str]]:
    text, *marks = data.decode().split("[")
    return text, [mark.removesuffix("]") for mark in marks]


def _read_timedelta(data: bytes) -> timedelta:
    return timedelta(*_TIMEDELTA.unpack(data))


# What the packer writes by itself.
_NATIVE: Final = frozenset({type(None), bool, float, str, bytes, list, dict})

_SCALARS: Final[Mapping[type, tuple[int, Callable[[Any], bytes]]]] = {
    Decimal: (DECIMAL, lambda value: str(value).encode()),
    datetime: (DATETIME, _moment_bytes),
    date: (DATE, lambda value: value.isoformat().encode()),
    time: (TIME, _moment_bytes),
    timedelta: (TIMEDELTA, lambda value: _TIMEDELTA.pack(value.days, value.seconds, value.microseconds)),
    UUID: (UUID_, lambda value: value.bytes),
}
_CONTAINERS: Final[Mapping[type, int]] = {tuple: TUPLE, set: SET, frozenset: FROZENSET}

# The order decides: a datetime is a date too. The unbound methods make the plain value whatever a subclass overrides.
_SIMPLER: Final[Mapping[type, Callable[[Any], object]]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: lambda value: bytes(memoryview(value)),
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    Mapping: dict,
    deque: list,
    Decimal: Decimal,
    datetime: lambda value: datetime.combine(
        date(value.year, value.month, value.day),
        time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold),
    ),
    date: lambda value: date(value.year, value.month, value.day),
    timedelta: lambda value: timedelta(value.days, value.seconds, value.microseconds),
    UUID: lambda value: UUID(bytes=value.bytes),
}

_READ_SCALARS: Final[Mapping[int, Callable[[bytes], object]]] = {
    BIG_INT: lambda data: int.from_bytes(data, "big", signed=True),
    DECIMAL: lambda data: Decimal(data.decode()),
    DATETIME: _read_datetime,
    DATE: lambda data: date.fromisoformat(data.decode()),
    TIME: _read_time,
    TIMEDELTA: _read_timedelta,
    UUID_: lambda data: UUID(bytes=data),
}
_READ_CONTAINERS: Final[Mapping[int, Callable[[list[Any]], object]]] = {TUPLE: tuple, SET: set, FROZENSET: frozenset}

_READERS: Final = tuple(_reader(depth) for depth in range(NESTED_EXTENSIONS_MAX + 1))
_OUTERMOST: Final = _READERS[0]

pack: Final = Encoder().pack
