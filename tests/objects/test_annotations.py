"""Annotations as strings: inside functions, around closures, and names that only a type checker sees."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from pydantic import BaseModel

from keylane.journal.errors import InvalidOutput, RegistrationError
from keylane.objects.context import ObjectContext
from keylane.objects.handler import Handler
from keylane.objects.signature import result_boundary
from keylane.objects.virtual_object import VirtualObject

if TYPE_CHECKING:
    from decimal import Decimal


class Top(BaseModel):
    x: int


def test_local_types_are_found() -> None:
    """A model that is made in the same function as the handler works, and so does what it is made of."""
    order = VirtualObject("Order", owner="me")

    @dataclass
    class Line:
        amount: int

    @dataclass
    class Ask:
        lines: list[Line]

    @order.handler
    async def refund(ctx: ObjectContext, request: Ask) -> dict[str, Line]:
        return {}

    assert refund.input is not None
    assert refund.input.load(refund.input.dump(Ask([Line(1)]))) == Ask([Line(1)])
    assert refund.output.form == dict[str, Line]


def test_types_of_an_enclosing_function_are_found() -> None:
    """A factory of handlers may be given the type as an argument."""

    def make(model: type[Any]) -> Handler[Any, Any]:
        order = VirtualObject("Order", owner="me")

        @order.handler
        async def refund(ctx: ObjectContext, request: model) -> None: ...  # pyright: ignore[reportInvalidTypeForm, reportUnknownParameterType]

        return cast("Handler[Any, Any]", refund)

    made = make(Top)

    assert made.input is not None
    assert made.input.form is Top


def test_a_name_that_only_the_type_checker_sees_is_refused_with_a_remedy() -> None:
    """The error names the parameter, the annotation and what to do about it."""

    async def refund(ctx: ObjectContext, request: Decimal) -> None: ...

    with pytest.raises(RegistrationError) as caught:
        VirtualObject("Order", owner="me").handler(refund)

    assert caught.value.parameter == "request"
    assert "is annotated 'Decimal'" in str(caught.value)
    assert "import the name outside `if TYPE_CHECKING:`" in str(caught.value)


def plain(amount: int) -> Top:
    return Top(x=amount)


async def awaited() -> list[Top]:
    return []


def promising() -> Awaitable[Top]:
    raise NotImplementedError


def unresolved() -> Decimal:
    raise NotImplementedError


class Callable_:  # noqa: N801  a class like a function
    def __call__(self) -> Top:
        return Top(x=1)

    def method(self) -> dict[str, Top]:
        return {}


@pytest.mark.parametrize(
    ("action", "form"),
    [
        (plain, Top),
        (awaited, list[Top]),
        (promising, Top),
        (partial(plain, 1), Top),
        (Callable_(), Top),
        (Callable_().method, dict[str, Top]),
        (lambda: 1, Any),
        (len, Any),
    ],
)
def test_the_result_type_of_a_step_is_its_return_annotation(action: Callable[..., Any], form: Any) -> None:
    """However the action is written; plain data where nothing is said."""
    assert result_boundary(action, "read").form == form


def test_the_result_type_of_a_local_step_is_found() -> None:
    """Steps are often written where they are used."""

    class Local(BaseModel):
        x: int

    def local() -> Local:
        return Local(x=1)

    assert result_boundary(local, "read").form is Local


def test_a_step_without_a_declared_type_returns_plain_data_or_is_refused() -> None:
    """A model would come back as a dict, unlike in the first run, so the author is told."""
    boundary = result_boundary(lambda: 1, "read")

    assert boundary.load(boundary.dump({"a": (1, {2})})) == {"a": (1, {2})}
    with pytest.raises(InvalidOutput, match="Top is no plain data: declare the type"):
        boundary.dump(Top(x=1))


def test_a_step_whose_annotation_cannot_be_read_is_refused() -> None:
    """The error says which step's function, and what to do."""
    with pytest.raises(RegistrationError, match="the result of unresolved is annotated 'Decimal'"):
        result_boundary(unresolved, "read")
