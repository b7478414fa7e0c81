"""Boundaries: what does not fit is refused with the path to it, and nothing changes its type in silence."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_core import Url

from keylane.journal.codec import Undecodable, pack, unpack
from keylane.journal.errors import InvalidInput, InvalidOutput, RegistrationError
from keylane.objects.types import boundary_of, make_boundary


class Item(BaseModel):
    amount: Decimal
    note: str | None = None


class Order(BaseModel):
    items: list[Item]
    by: dict[str, Item] = {}


class Card(BaseModel):
    kind: Literal["card"] = "card"
    number: int


class Cash(BaseModel):
    kind: Literal["cash"] = "cash"
    coins: int


Payment = Annotated[Card | Cash, Field(discriminator="kind")]


class Colour(Enum):
    RED = "red"


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    number: int
    colour: Colour = Colour.RED


class Locked(BaseModel):
    password: SecretStr


@dataclass
class Point:
    x: int
    y: int = 0


GOOD = {"amount": "1.50"}


@pytest.mark.parametrize(
    ("form", "data", "path", "words"),
    [
        (int, "x", "request", "valid integer"),
        (Order, {"items": [GOOD, GOOD, {"amount": "x"}]}, "request.items[2].amount", "valid decimal"),
        (Order, {"items": [GOOD, {}]}, "request.items[1].amount", "Field required"),
        (Order, {"items": [], "by": {"a b": {"amount": []}}}, "request.by['a b'].amount", "Decimal"),
        (Order, [], "request", "valid dictionary or instance"),
        (Payment, {"kind": "card", "number": "x"}, "request.number", "valid integer"),
        (Payment, {"kind": "cheque"}, "request", "does not match any of the expected tags"),
        (Card | Cash | None, {"kind": "cash", "number": "x"}, "request.kind", "Input should be 'card'"),
        (dict[int, Item], {1: {}}, "request[1].amount", "Field required"),
        (tuple[int, str], (1,), "request[1]", "Field required"),
        (int | list[int], "x", "request", "valid integer, unable to parse string as an integer or: Input should"),
        (Annotated[int, Field(gt=0)], -1, "request", "greater than 0"),
        (Point, {"x": 1, "y": "b"}, "request.y", "valid integer"),
        (Strict, {"number": "5"}, "request.number", "valid integer"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_path_of_the_field(form: Any, data: Any, path: str, words: str) -> None:
    """Reading names the offending field as one would write it in code."""
    with pytest.raises(InvalidInput) as caught:
        make_boundary(form, where="request").load(pack(data))

    assert caught.value.path == path
    assert words in caught.value.reason


@pytest.mark.parametrize(
    ("form", "value", "path"),
    [
        (int, "x", "result"),
        (Order, Order.model_construct(items=[Item.model_construct(amount="x")]), "result.items[0].amount"),
        (list[Item], [{"amount": 1}, {"note": "x"}], "result[1].amount"),
        (Literal["a"], "b", "result"),
        (Annotated[int, Field(gt=0)], -1, "result"),
        (Decimal, Decimal("NaN"), "result"),
        (dict[str, Any], {"a": [1, object()]}, "result.a[1]"),
        (Any, {"a": Item(amount=Decimal(1))}, "result"),
        (Any, Colour.RED, "result"),
        (Any, {"a": ["\ud800"]}, "result.a[0]"),
        (str, "\ud800", "result"),
    ],
)
def test_what_a_handler_makes_is_checked_before_it_is_written(form: Any, value: Any, path: str) -> None:
    """A value that could not be read again is refused by the one who made it, with the path."""
    with pytest.raises(InvalidOutput) as caught:
        make_boundary(form, where="result", refusal=InvalidOutput).dump(value)

    assert caught.value.path == path


@pytest.mark.parametrize(
    ("form", "value", "same"),
    [(Item, {"amount": "1.50"}, Item(amount=Decimal("1.50"))), (float, 1, 1.0), (list[int], (1, 2), [1, 2])],
)
def test_what_validation_converts_may_be_given(form: Any, value: Any, same: Any) -> None:
    """A dict for a model, or a tuple for a list, arrives as what is declared."""
    boundary = boundary_of(form)

    assert boundary.load(boundary.dump(value)) == same


@pytest.mark.parametrize(
    ("form", "value"),
    [
        (Colour | str, Colour.RED),
        (str | Path, Path("a")),
        (dict[str, Any], {"at": Path("a")}),
        (str | Url, Url("https://example.org/")),
    ],
)
def test_a_value_that_would_come_back_as_something_else_is_refused(form: Any, value: Any) -> None:
    """Where text and object can't be told apart afterwards, the writer is told at once."""
    with pytest.raises(InvalidInput, match="would come back as something else"):
        boundary_of(form).dump(value)


@pytest.mark.parametrize(
    ("form", "value"), [(Locked, Locked(password=SecretStr("hunter2"))), (Any, SecretStr("hunter2"))]
)
def test_a_secret_is_refused_and_not_masked(form: Any, value: Any) -> None:
    """A masked secret in the journal would be lost, an open one would be a leak."""
    with pytest.raises(InvalidInput) as caught:
        boundary_of(form).dump(value)

    assert "hunter2" not in str(caught.value)


def test_a_generator_is_refused() -> None:
    """What can be read only once can't be compared with what was written."""
    with pytest.raises(InvalidInput):
        boundary_of(Iterable[int]).dump(iter([1]))


def test_bytes_that_are_no_value_stay_undecodable() -> None:
    """They are no fault of a field."""
    with pytest.raises(Undecodable):
        boundary_of(Item).load(b"\xc1")


def test_a_strict_model_reads_its_own_dump() -> None:
    """Strict validation asks for members; the journal holds their values."""
    boundary = boundary_of(Strict)

    assert unpack(boundary.dump(Strict(number=1))) == {"number": 1, "colour": "red"}
    assert boundary.load(boundary.dump(Strict(number=1))) == Strict(number=1)


BASES: list[tuple[Any, Any, Any]] = [
    (Item, Item(amount=Decimal(1)), {"amount": Decimal(1)}),
    (Item, Item(amount=Decimal(1), note=None), {"amount": Decimal(1), "note": None}),
    (Order, Order(items=[Item(amount=Decimal(1))]), {"items": [{"amount": Decimal(1)}]}),
    (list[Payment], [Card(number=1)], [{"kind": "card", "number": 1}]),
    (dict[str, Point], {"a": Point(1)}, {"a": {"x": 1}}),
    (Point, Point(1, 2), {"x": 1, "y": 2}),
    (tuple[Point, list[Point]], (Point(0), [Point(3, 0)]), ({"x": 0}, [{"x": 3}])),
    (Item, {"amount": "1.0"}, {"amount": Decimal("1.0")}),
]


@pytest.mark.parametrize(("form", "value", "basis"), BASES)
def test_the_basis_leaves_out_what_nobody_has_set(form: Any, value: Any, basis: Any) -> None:
    """A dataclass does not know what was set; what equals its default counts as not set. Tags stay."""
    assert unpack(boundary_of(form).dump_unset(value)) == basis
    assert boundary_of(form).dump_both(value) == (boundary_of(form).dump(value), boundary_of(form).dump_unset(value))


class Near(BaseModel):
    x: int


class Far(BaseModel):
    x: int
    y: int = 0


def test_the_basis_keeps_what_a_union_is_told_apart_by() -> None:
    """Without its default, Far would be read as Near."""
    assert unpack(boundary_of(Near | Far).dump_unset(Far(x=1))) == {"x": 1, "y": 0}
    assert unpack(boundary_of(Near | Far).dump_both(Far(x=1))[1]) == {"x": 1, "y": 0}


def test_unions_are_told_apart_by_their_order() -> None:
    """`A | B` equals `B | A` in Python and is not the same to pydantic, so the two are kept apart."""
    data = pack({"x": 1})

    assert type(boundary_of(Near | Far).load(data)) is Near
    assert boundary_of(Near | Far) is not boundary_of(Far | Near)


def test_boundaries_are_made_once() -> None:
    """A type costs its schema once, however often state is read."""
    assert boundary_of(list[Item]) is boundary_of(list[Item])


def test_a_type_that_cannot_be_a_cache_key_works() -> None:
    """Metadata may be unhashable."""
    assert boundary_of(Annotated[int, Field(json_schema_extra={"a": []}), []]).load(pack(1)) == 1


class Plain:
    pass


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (Plain, "declare a pydantic model, a dataclass or plain types"),
        (list["Missing"], "needs the name 'Missing', which is not defined"),  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
        (print, "is the function print: declare a type"),
        (lambda: 1, "is the function <lambda>: declare a type"),
    ],
)
def test_what_pydantic_cannot_take_is_refused_with_a_remedy(form: Any, words: str) -> None:
    """The error comes with the declaration, not with the first call."""
    with pytest.raises(RegistrationError, match=words) as caught:
        make_boundary(form, where="request")

    assert caught.value.parameter == "request"


def test_a_callable_field_is_refused_when_it_is_written() -> None:
    """Code is no data."""
    with pytest.raises(InvalidInput):
        boundary_of(Callable[[], int]).dump(lambda: 1)
