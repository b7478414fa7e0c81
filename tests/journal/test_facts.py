"""Facts that are made often are made as `dataclasses` makes them, only sooner."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any

import pytest

from keylane.journal.effects import EffectEntry
from keylane.journal.facts import copier, often_made
from keylane.journal.records import Accepted


@often_made
@dataclass(frozen=True, slots=True)
class Parcel:
    """A fact with one field of each sort."""

    kind: int
    label: str = "plain"
    contents: list[str] = field(default_factory=list[str])
    is_open: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class PlainParcel:
    """The same, as `dataclasses` makes it."""

    kind: int
    label: str = "plain"
    contents: list[str] = field(default_factory=list[str])
    is_open: bool = field(default=False, kw_only=True)


GIVEN: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((1,), {}),
    ((1, "red"), {}),
    ((1, "red", ["x"]), {"is_open": True}),
    ((), {"kind": 1, "contents": ["x"]}),
)
REFUSED: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((), {}),
    ((1, "red", [], True), {}),
    ((1,), {"colour": "red"}),
)


@pytest.mark.parametrize(("arguments", "named"), GIVEN)
def test_a_fact_has_what_it_was_given_and_its_defaults(arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Each way to name the fields gives the values that `dataclasses` gives."""
    made, plain = Parcel(*arguments, **named), PlainParcel(*arguments, **named)
    assert type(made) is Parcel
    assert [getattr(made, each.name) for each in fields(made)] == [getattr(plain, each.name) for each in fields(plain)]


@pytest.mark.parametrize(
    ("arguments", "named"),
    REFUSED,
    ids=["one is missing", "one goes by name only", "one is unknown"],
)
def test_a_fact_refuses_other_arguments_than_its_fields(arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """What `dataclasses` refuses is refused in the same words."""
    with pytest.raises(TypeError) as plain:
        PlainParcel(*arguments, **named)
    with pytest.raises(TypeError) as made:
        Parcel(*arguments, **named)
    assert str(made.value) == str(plain.value).replace("PlainParcel", "Parcel")


def test_facts_share_no_default_that_is_made() -> None:
    """A list that a field begins with is one fact's own."""
    assert Parcel(1).contents is not Parcel(1).contents


@pytest.mark.parametrize("kind", [Parcel, Accepted, EffectEntry])
def test_a_fact_is_frozen_from_its_making_on(kind: type[Any]) -> None:
    """Neither a field nor anything else of it can be written or taken away."""
    needed = [each for each in inspect.signature(kind).parameters.values() if each.default is inspect.Parameter.empty]
    made = kind(**{each.name: 1 for each in needed})
    name = needed[0].name
    with pytest.raises(FrozenInstanceError):
        setattr(made, name, 2)
    with pytest.raises(FrozenInstanceError):
        delattr(made, name)
    assert getattr(made, name) == 1


def test_a_fact_is_compared_copied_and_shown_as_any() -> None:
    """Equality, hash, text, `replace`, a copier's copies and pickles are those of the dataclass."""
    made, but = Parcel(1, "red", is_open=True), copier(Parcel)
    assert made == Parcel(1, "red", is_open=True) != Parcel(2, "red", is_open=True)
    assert repr(made) == repr(PlainParcel(1, "red", is_open=True)).replace("PlainParcel", "Parcel")
    assert replace(made, kind=2) == but(made, {"kind": 2}) == Parcel(2, "red", is_open=True)
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made  # noqa: S301
    assert hash(Accepted(b"", "add", 1, "acme/1")) == hash(Accepted(b"", "add", 1, "acme/1"))
