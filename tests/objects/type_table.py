"""One row for each kind of type that must come back equal, from every place at which a value is written down."""

from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Network
from pathlib import PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
from pydantic import AliasChoices, AnyUrl, BaseModel, ConfigDict, Field, Json, RootModel, computed_field
from typing_extensions import TypedDict

T = TypeVar("T")
BERLIN = ZoneInfo("Europe/Berlin")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mood(StrEnum):
    GOOD = "good"


class Money(BaseModel):
    amount: Decimal
    currency: str = "EUR"


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    good: bool


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


class Page(BaseModel, Generic[T]):
    items: list[T]
    next: int | None = None


@dataclass
class Point:
    x: int
    y: Decimal
    tags: set[str] = field(default_factory=set[str])


@dataclass(frozen=True)
class Segment:
    ends: tuple[Point, Point]
    colour: Colour | None = None


@pydantic.dataclasses.dataclass
class Checked:
    count: Annotated[int, Field(gt=0)]
    at: datetime


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict, total=False):
    limit: int
    names: list[str]


class Everything(BaseModel):
    when: datetime
    due: timedelta
    data: bytes
    share: Decimal
    colours: dict[Colour, frozenset[int]]
    shape: Segment | Point | None
    anything: Any = None


class Aliased(BaseModel):
    full_name: str = Field(alias="fullName")
    size: int = Field(1, validation_alias=AliasChoices("size_cm", "sizeCm"), serialization_alias="sizeCentimetres")


class WithComputed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: int

    @computed_field
    @property
    def area(self) -> int:
        return self.width**2


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    colour: Colour
    point: Point
    where: PurePosixPath
    money: Money


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    known: int


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []


class Names(RootModel[dict[str, list[int]]]):
    pass


class Settled(BaseModel):
    model_config = ConfigDict(frozen=True)
    id: UUID


def _everything() -> Everything:
    return Everything(
        when=datetime(2026, 11, 29, 16, 26, 0, 123456, tzinfo=UTC),
        due=timedelta(days=-1, microseconds=1),
        data=b"\x00\xff",
        share=Decimal("0.333333333333333333333333333333"),
        colours={Colour.RED: frozenset({1, 2})},
        shape=Segment((Point(1, Decimal("1.10")), Point(2, Decimal(0), {"a"})), Colour.BLUE),
        anything={"plain": [1, None, b"x", Decimal("1.0")]},
    )


# (name, declared type, value)
TYPE_TABLE: list[tuple[str, Any, Any]] = [
    ("none", None, None),
    ("bool", bool, True),
    ("int", int, -7),
    ("int above 64 bits", int, 2**70),
    ("int below 64 bits", int, -(2**70)),
    ("float", float, 0.1),
    ("infinity", float, float("-inf")),
    ("str", str, "Grüße 🎈\x00"),
    ("bytes", bytes, bytes(range(256))),
    ("bytes or str", bytes | str, b"abc"),
    ("str or bytes", bytes | str, "abc"),
    ("model", Money, Money(amount=Decimal("40.00"))),
    ("list of models", list[Money], [Money(amount=Decimal(1)), Money(amount=Decimal("1E+3"), currency="USD")]),
    ("dict of models", dict[str, Money], {"a": Money(amount=Decimal("-0.0"))}),
    ("model or none", Money | None, Money(amount=Decimal(2))),
    ("none of a model", Money | None, None),
    ("dataclass", Point, Point(1, Decimal("2.50"), {"a", "b"})),
    (
        "nested dataclass",
        Segment,
        Segment((Point(1, Decimal(1)), Point(2, Decimal(2)))),
    ),
    ("pydantic dataclass", Checked, Checked(1, datetime(2026, 1, 1, tzinfo=UTC))),
    ("enum", Colour, Colour.BLUE),
    ("int enum", Level, Level.HIGH),
    ("str enum", Mood, Mood.GOOD),
    ("literal", Literal["a", 2], 2),
    ("Decimal of 30 digits", Decimal, Decimal("123456789012345.678901234567890")),
    ("Decimal with trailing zeros", Decimal, Decimal("10.00")),
    ("negative zero", Decimal, Decimal("-0")),
    ("Decimal or str, a Decimal", Decimal | str, Decimal("1.50")),
    ("Decimal or str, a str", Decimal | str, "1.50"),
    ("str or datetime, a str", str | datetime, "2026-11-29T16:26:00Z"),
    ("str or datetime, a datetime", str | datetime, datetime(2026, 11, 29, tzinfo=UTC)),
    ("int or float, an int", int | float, 1),
    ("int or float, a float", int | float, 1.0),
    ("aware datetime with microseconds", datetime, datetime(2026, 11, 29, 16, 26, 0, 123456, tzinfo=UTC)),
    ("datetime with an offset", datetime, datetime(2026, 11, 29, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
    ("datetime with a zone", datetime, datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)),
    ("the second half past two", datetime, datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)),
    ("naive datetime", datetime, datetime(1, 1, 1)),  # noqa: DTZ001  naive on purpose
    ("date", date, date(2026, 2, 28)),
    ("time", time, time(1, 2, 3, 4, tzinfo=UTC)),
    ("timedelta", timedelta, timedelta(days=-3, seconds=1, microseconds=7)),
    ("UUID", UUID, UUID(int=2**100 + 7)),
    ("tuple", tuple[int, str], (1, "a")),
    ("tuple of any length", tuple[Decimal, ...], (Decimal(1), Decimal("2.0"))),
    ("empty tuple", tuple[()], ()),
    ("set", set[int], {3, 1, 2}),
    ("frozenset of tuples", frozenset[tuple[int, int]], frozenset({(1, 2), (3, 4)})),
    ("deque", deque[int], deque([1, 2])),
    ("dict with int keys", dict[int, str], {1: "a", 2: "b"}),
    ("dict with tuple keys", dict[tuple[int, str], date], {(1, "a"): date(2026, 1, 1)}),
    ("dict with enum keys", dict[Colour, int], {Colour.RED: 1}),
    ("named tuple", Pair, Pair(1, "a")),
    ("typed dict", Options, {"names": ["a"]}),
    ("discriminated union", Pet, Dog(good=True)),
    ("list of a discriminated union", list[Pet], [Cat(lives=9), Dog(good=False)]),
    ("union of models", Money | Point, Point(1, Decimal(2))),
    ("generic model", Page[Money], Page[Money](items=[Money(amount=Decimal(1))], next=2)),
    ("generic model of a union", Page[int | str], Page[int | str](items=[1, "1"])),
    ("everything in one model", Everything, _everything()),
    ("aliases", Aliased, Aliased.model_validate({"fullName": "Ada", "sizeCm": 5})),
    ("computed field", WithComputed, WithComputed(width=3)),
    (
        "strict model",
        Strict,
        Strict(
            colour=Colour.RED, point=Point(1, Decimal(1)), where=PurePosixPath("a/b"), money=Money(amount=Decimal(1))
        ),
    ),
    ("extra fields", Extra, Extra.model_validate({"known": 1, "more": [1]})),
    ("recursive model", Tree, Tree(value=1, children=[Tree(value=2)])),
    ("root model", Names, Names({"a": [1]})),
    ("frozen model", Settled, Settled(id=UUID(int=1))),
    ("constrained", Annotated[int, Field(ge=0)], 0),
    ("JSON text", Json[list[int]], [1, 2]),
    ("path", PurePosixPath, PurePosixPath("/a/b.txt")),
    ("IP address", IPv4Address, IPv4Address("10.0.0.1")),
    ("IP network", IPv6Network, IPv6Network("2001:db8::/32")),
    ("URL", AnyUrl, AnyUrl("https://example.org/a?b=c")),
    ("fraction", Fraction, Fraction(1, 3)),
    ("zone", ZoneInfo, BERLIN),
    ("any, plain data", Any, {"a": [1, (2, {3}), Decimal("1.0"), None]}),
    ("dict of any", dict[str, Any], {"a": b"x", "b": datetime(2026, 1, 1, tzinfo=UTC)}),
]
TYPE_TABLE_NAMES = [name for name, _, _ in TYPE_TABLE]


def exactly(value: object) -> str:
    """What must be the same after the round trip: more than equality, which takes 1 for True and 1.0 for 1."""
    kind = type(value).__name__
    match value:
        case set() | frozenset():
            return f"{kind}{sorted(exactly(member) for member in cast('set[object]', value))}"
        case datetime():
            return f"{value!r} {value.fold} {value.utcoffset()}"
        case dict():
            return f"{kind}{[exactly(item) for item in cast('dict[object, object]', value).items()]}"
        case list() | tuple() | deque():
            return f"{kind}{[exactly(child) for child in cast('list[object]', value)]}"
        case BaseModel():
            return f"{kind}{exactly(value.__dict__)}{exactly(value.model_extra)}"
        case _ if hasattr(value, "__dataclass_fields__"):
            return f"{kind}{exactly(vars(value))}"
        case _:
            return f"{kind} {value!r}"
