"""When two calls with one idempotency key are the same call."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from keylane.journal.codec import pack
from keylane.objects.fingerprint import canonical, differing_fields, fingerprint, raw_digest
from keylane.objects.types import boundary_of


class Refund(BaseModel):
    amount: Decimal
    note: str | None = None
    tags: set[str] = set()


class RefundAfterDeploy(Refund):
    reason: str = "unspecified"
    notify: bool = True


class Counted(BaseModel):
    count: int
    share: float = 0.0


@dataclass
class Ask:
    amount: int


@dataclass
class AskAfterDeploy(Ask):
    urgent: bool = False


def of(form: Any, value: object, handler: str = "refund") -> bytes:
    """The fingerprint of an argument as an owner with this type makes it of what was sent."""
    boundary = boundary_of(form)
    return fingerprint(handler, boundary.dump_unset(boundary.load(pack(value))))


SAME = [
    ("order of the fields", Refund, {"amount": "10", "note": "x"}, {"note": "x", "amount": "10"}),
    ("text or Decimal", Refund, {"amount": "10"}, {"amount": Decimal(10)}),
    ("trailing zeros of a Decimal", Refund, {"amount": "10"}, {"amount": "10.0"}),
    ("exponent of a Decimal", Refund, {"amount": "1E+3"}, {"amount": "1000.00"}),
    ("zeros of a Decimal", Refund, {"amount": "0.00"}, {"amount": "-0"}),
    ("1 and 1.0 of an int", Counted, {"count": 1}, {"count": 1.0}),
    ("1 and 1.0 of a float", Counted, {"count": 1, "share": 1}, {"count": 1, "share": 1.0}),
    ("order of a set", Refund, {"amount": 1, "tags": ["a", "b"]}, {"amount": 1, "tags": ["b", "a", "a"]}),
    ("order of keys of a dict", dict[str, Any], {"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}),
    ("a dataclass's default, given or not", AskAfterDeploy, {"amount": 1}, {"amount": 1, "urgent": False}),
]
OTHER = [
    ("amount", Refund, {"amount": "10"}, {"amount": "11"}),
    ("a digit beyond the context", Refund, {"amount": "1." + "0" * 40}, {"amount": "1." + "0" * 40 + "1"}),
    ("missing and null", Refund, {"amount": 1}, {"amount": 1, "note": None}),
    ("missing and its default", RefundAfterDeploy, {"amount": 1}, {"amount": 1, "notify": True}),
    ("order of a list", list[int], [1, 2], [2, 1]),
    ("text and number", int | str, "1", 1),
    ("1 and 1.0 of a union", int | float, 1, 1.0),
    ("1 and true", int | bool, 1, True),
    ("moved from one field to the next", dict[str, str], {"a": "b", "c": ""}, {"a": "", "c": "b"}),
]


@pytest.mark.parametrize(("what", "form", "first", "second"), SAME, ids=[row[0] for row in SAME])
def test_these_calls_are_the_same(what: str, form: Any, first: object, second: object) -> None:
    """A retry that says the same in other words gets the first result."""
    assert of(form, first) == of(form, second)


@pytest.mark.parametrize(("what", "form", "first", "second"), OTHER, ids=[row[0] for row in OTHER])
def test_these_calls_are_not_the_same(what: str, form: Any, first: object, second: object) -> None:
    """Another request under a used key is refused."""
    assert of(form, first) != of(form, second)


@pytest.mark.parametrize(("before", "after"), [(Refund, RefundAfterDeploy), (Ask, AskAfterDeploy)])
def test_a_default_that_a_deploy_adds_changes_nothing(before: type, after: type) -> None:
    """A call from before the deploy and its retry after it are the same."""
    assert of(before, {"amount": 40}) == of(after, {"amount": 40})


class Stamped(BaseModel):
    amount: int
    request_id: UUID = Field(default_factory=uuid4)


def test_a_default_that_is_made_anew_each_time_changes_nothing() -> None:
    """A retry makes its model again, and with it another id that nobody has set."""
    boundary = boundary_of(Stamped)
    first, second = (boundary.dump_unset(Stamped(amount=1)) for _ in range(2))

    assert first == second
    assert boundary.dump_unset(boundary.load(first)) == second


def test_a_model_and_its_raw_form_are_the_same_call() -> None:
    """One client has the types and sends a basis, the other sends plain data by name."""
    boundary = boundary_of(Refund)
    basis = boundary.dump_unset(Refund(amount=Decimal("40.00"), tags={"b", "a"}))

    typed = fingerprint("refund", boundary.dump_unset(boundary.load(basis)))

    assert typed == of(Refund, {"tags": ["a", "b"], "amount": "40"})


def test_the_handler_is_part_of_the_fingerprint() -> None:
    """One key can't be used for two handlers."""
    assert of(int, 1, "refund") != of(int, 1, "cancel")
    assert fingerprint("refund", None) != fingerprint("cancel", None)


def test_a_handler_without_argument_differs_from_one_that_takes_null() -> None:
    """Nothing sent is not the same as null sent."""
    assert fingerprint("refund", None) != fingerprint("refund", pack(None))


def test_fingerprints_are_part_of_the_format() -> None:
    """They are kept for as long as tombstones are, across releases."""
    value = {"amount": Decimal("40.00"), "tags": {"a", "b"}, "at": (1, [None, 2.5, b"x"])}

    assert fingerprint("refund", pack(value)).hex() == "3c31e4a5f7fb48a6"
    assert raw_digest(pack(value)).hex() == "5a6f2693807f8b03"


@given(st.decimals(allow_nan=False, allow_infinity=False), st.decimals(allow_nan=False, allow_infinity=False))
def test_decimals_are_the_same_when_they_are_equal(one: Decimal, other: Decimal) -> None:
    """Exactly then, at any precision."""
    assert (canonical(one) == canonical(other)) is (one == other)


@pytest.mark.parametrize(
    ("first", "second", "paths"),
    [
        ({"amount": 1}, {"amount": 2}, ("request.amount",)),
        ({"a": 1, "b": 2, "c": 3}, {"a": 9, "b": 2, "c": 8}, ("request.a", "request.c")),
        ({"items": [{"n": 1}, {"n": 2}]}, {"items": [{"n": 1}, {"n": 3}]}, ("request.items[1].n",)),
        ({"items": [1]}, {"items": [1, 2]}, ("request.items",)),
        ({"a": 1}, {"a": 1, "b": None}, ("request.b",)),
        ({"tags": {1, 2}}, {"tags": {2, 3}}, ("request.tags",)),
        ({"a": Decimal("1.0")}, {"a": Decimal(1)}, ()),
        ({"x y": {1: "a"}}, {"x y": {1: "b"}}, ("request['x y'][1]",)),
        (1, 2, ("request",)),
        ({"a": {"b": 1}}, {"a": 5}, ("request.a",)),
    ],
)
def test_the_fields_that_differ_are_named(first: object, second: object, paths: tuple[str, ...]) -> None:
    """The deepest paths that tell the two apart."""
    assert differing_fields(first, second, "request") == paths
