"""Values as bytes: exact, readable for ever, and never an exception that nobody expects."""

import contextlib
import math
from collections import OrderedDict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keylane.journal.codec import NESTED_EXTENSIONS_MAX, Encoder, NotEncodable, Undecodable, pack, unpack

GOLDEN = Path(__file__).parent / "golden" / "codec"
BERLIN = ZoneInfo("Europe/Berlin")

VALUES: dict[str, Any] = {
    "plain": {
        "none": None,
        "yes": True,
        "int": -7,
        "float": 0.1,
        "text": "Grüße",
        "bytes": b"\x00\xff",
        "list": [1, [2]],
    },
    "int_64_bits": [2**64 - 1, -(2**63)],
    "int_above_64_bits": [2**64, 2**70, 2**71 - 1],
    "int_below_64_bits": [-(2**63) - 1, -(2**70), -(2**71)],
    "decimal": [Decimal("123456789012345.678901234567890"), Decimal("-0"), Decimal("10.00"), Decimal("1E+3")],
    "decimal_infinity": [Decimal("Infinity"), Decimal("-Infinity")],
    "datetime_naive": datetime(2026, 11, 29, 16, 26),  # noqa: DTZ001  naive on purpose
    "datetime_utc": datetime(2026, 11, 29, 16, 26, 0, 123456, tzinfo=UTC),
    "datetime_offset": datetime(2026, 11, 29, tzinfo=timezone(timedelta(hours=-5, minutes=-30))),
    "datetime_zone": datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN),
    "datetime_zone_fold": datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
    "date": [date(1, 1, 1), date(9999, 12, 31)],
    "time": [time(1, 2, 3, 4), time(tzinfo=UTC), time(2, 30, tzinfo=BERLIN, fold=1)],
    "timedelta": [timedelta(0), timedelta.min, timedelta.max, timedelta(days=-1, microseconds=1)],
    "uuid": UUID("0193a0b0-c0d0-7e0f-8001-020304050607"),
    "tuple": [(), (1, "a"), ((1,), (2, [3]))],
    "set": [set[int](), {1, 2, 3}, {"a", (1, 2)}],
    "frozenset": [frozenset({frozenset({1}), frozenset[int]()})],
    "keys": {1: "int", None: "none", (1, "a"): "tuple", date(2026, 1, 1): "date", b"x": "bytes", 2**70: "big"},
}


def exactly(value: object) -> str:
    """What must be the same: type and zone and fold, not only equality."""
    kind = type(value).__name__
    if isinstance(value, set | frozenset):
        return f"{kind}{sorted(map(repr, cast('set[object]', value)))}"
    return repr(value)


@pytest.mark.parametrize("name", VALUES)
def test_a_golden_value_is_read_for_ever(name: str) -> None:
    """What any release wrote is read as the same value, type by type."""
    data = (GOLDEN / f"{name}.msgpack").read_bytes()

    assert unpack(data) == VALUES[name]
    assert exactly(unpack(data)) == exactly(VALUES[name])


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_written_as_its_golden_bytes(name: str) -> None:
    """The form of a value does not change: its bytes are compared when a call is repeated."""
    assert pack(VALUES[name]) == (GOLDEN / f"{name}.msgpack").read_bytes()


def test_every_golden_file_is_read_by_a_test() -> None:
    """No golden file lies there without a test that reads it."""
    assert {path.stem for path in GOLDEN.iterdir()} == VALUES.keys()


def test_every_extension_type_has_a_golden_file() -> None:
    """Codes 1 to 10 of the table all occur."""
    seen: set[int] = set()

    def note(code: int, data: bytes) -> int:
        seen.add(code)
        return len(seen)

    for path in GOLDEN.iterdir():
        msgpack.unpackb(path.read_bytes(), ext_hook=note, strict_map_key=False)

    assert seen == set(range(1, 11))


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.none() | st.timezones() | st.just(UTC), allow_imaginary=True)
    | st.dates()
    | st.times(timezones=st.none() | st.just(UTC))
    | st.timedeltas()
    | st.uuids()
)
keys = st.recursive(scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner, max_size=4) | st.tuples(inner, inner) | st.sets(keys),
    max_leaves=12,
)


@given(values)
def test_every_value_comes_back_exactly(value: object) -> None:
    """Equal, of the same type, and packed to the same bytes again."""
    data = pack(value)
    returned = unpack(data)

    assert returned == value
    assert type(returned) is type(value)
    assert pack(returned) == data


@given(st.binary())
@example(b"\xd6\xff\xff\xff\xff\xff")
@example(b"\xc7\x0c\xff" + b"\xff" * 12)
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\xd4\x02x")
@example(b"\xc7\x0a\x03[../../../x")
@example(b"\xc7\x0f\x03[Europe/Nowhere]")
def test_garbage_is_undecodable_and_nothing_else(data: bytes) -> None:
    """Bytes from outside raise one named error or are a value that can be written again."""
    with contextlib.suppress(Undecodable):
        unpack(pack(unpack(data)))


@given(values, st.data())
def test_damaged_bytes_are_undecodable_and_nothing_else(value: object, data: st.DataObject) -> None:
    """One changed byte, or a missing tail, never leads to another exception."""
    good = pack(value)
    place = data.draw(st.integers(0, len(good) - 1))
    damaged = good[:place] + bytes([data.draw(st.integers(0, 255))]) + good[place + 1 :]

    for bad in (damaged, good[:place]):
        with contextlib.suppress(Undecodable):
            unpack(bad)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "at byte 0: it ends too early"),
        (b"\x92\x01", "it ends too early"),
        (b"\x01\x02", "at byte 1: more bytes follow the value"),
        (b"\xc1", "at byte 0: no value begins with this byte"),
        (b"\xa1\xff", "its text is not UTF-8"),
        (b"\xd4\x50\x01", "extension type 80 is not in the table"),
        (b"\x91" * 3000, "nested too deeply"),
        (b"\xd4\x08\x01", "a tuple or set is not an array"),
    ],
)
def test_an_undecodable_value_says_what_and_where(data: bytes, words: str) -> None:
    """The error helps somebody who looks at the raw bytes."""
    with pytest.raises(Undecodable, match=words):
        unpack(data)


def nested_tuples(levels: int) -> tuple[object, ...]:
    """Tuples, one within the other."""
    value: tuple[object, ...] = ()
    for _ in range(levels - 1):
        value = (value,)
    return value


def test_whatever_depth_can_be_written_can_be_read() -> None:
    """The two directions have the same bound."""
    deepest = nested_tuples(NESTED_EXTENSIONS_MAX)

    assert unpack(pack(deepest)) == deepest
    with pytest.raises(NotEncodable, match="nested too deeply"):
        pack(nested_tuples(NESTED_EXTENSIONS_MAX + 1))


def test_extensions_nested_without_end_do_not_crash_the_process() -> None:
    """A few kilobytes from outside can't overrun the stack."""
    data = b"\x90"
    for _ in range(3000):
        data = b"\xc9" + len(data).to_bytes(4, "big") + b"\x08" + b"\x91" + data

    with pytest.raises(Undecodable, match="nested too deeply"):
        unpack(data)


def test_a_value_that_contains_itself_is_refused() -> None:
    """It is noticed, and not followed for ever."""
    loop: list[object] = []
    loop.append(([loop],))

    with pytest.raises(NotEncodable, match="contains itself"):
        pack(loop)


@pytest.mark.parametrize(
    ("value", "path", "type_name"),
    [
        (object(), "", "object"),
        ({"items": [1, 2, {"amount": object()}]}, "items[2].amount", "object"),
        ([[{"a b": (1, {2: 3j})}]], "[0][0]['a b'][1][2]", "complex"),
        ({"a": {1, 2j}}, "a[2j]", "complex"),
        ({(1, 2j): 3}, "[(1, 2j)][1]", "complex"),
        ({"text": "\ud800"}, "text", "str"),
        ({"ok": deque[object]([1, {"a": print}])}, "ok[1].a", "builtin_function_or_method"),
    ],
)
def test_what_cannot_be_written_is_named_by_its_path(value: object, path: str, type_name: str) -> None:
    """The error leads to the element, however deep."""
    with pytest.raises(NotEncodable) as caught:
        pack(value)

    assert (caught.value.path, caught.value.type_name) == (path, type_name)


class Colour(Enum):
    RED = "red"
    BIG = 2**70
    PAIR = (1, "a")


class Level(IntEnum):
    LOW = 1


class Mood(StrEnum):
    GOOD = "good"


class Pair(NamedTuple):
    left: int
    right: str


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not this"


class Moment(datetime):
    pass


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Colour.RED, "red"),
        (Colour.BIG, 2**70),
        (Colour.PAIR, (1, "a")),
        (Level.LOW, 1),
        (Mood.GOOD, "good"),
        (Pair(1, "a"), (1, "a")),
        (Text("this"), "this"),
        (OrderedDict[str, int](b=1, a=2), {"b": 1, "a": 2}),
        (MappingProxyType({"a": (1,)}), {"a": (1,)}),
        (deque([1, 2]), [1, 2]),
        (bytearray(b"x"), b"x"),
        (Moment(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1), datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)),
    ],
)
def test_members_and_subclasses_are_written_as_plain_values(value: object, plain: object) -> None:
    """The declared type at the other end brings them back."""
    assert unpack(pack(value)) == plain
    assert pack(value) == pack(plain)


def test_not_a_number_stays_not_a_number() -> None:
    """Floats and decimals, quiet and signalling, with their payload."""
    assert math.isnan(unpack(pack(float("nan"))))
    assert [str(unpack(pack(Decimal(text)))) for text in ("NaN", "-NaN123", "sNaN")] == ["NaN", "-NaN123", "sNaN"]


def test_the_bytes_of_a_set_do_not_depend_on_its_order() -> None:
    """Two processes hash strings differently and still write the same bytes."""
    one, other = set(map(str, range(100))), set(map(str, reversed(range(100))))

    assert pack(one) == pack(other)


def test_the_timestamp_of_msgpack_is_read_as_a_datetime() -> None:
    """A client in another language may send its own library's timestamps."""
    half_a_second = (500_000_000 << 34 | 1_796_000_000).to_bytes(8, "big")

    assert unpack(b"\xd7\xff" + half_a_second) == datetime.fromtimestamp(1_796_000_000.5, UTC)


def test_an_encoder_may_be_given_a_plain_form_for_other_types() -> None:
    """The boundary of a declared type says how the rest is written."""
    encoder = Encoder(str)

    assert unpack(encoder.pack({"at": Path("/a"), "in": ({Path("/b")},)})) == {"at": "/a", "in": ({"/b"},)}
