"""The checker of counters is held against histories that are right and wrong, and against a second checker."""

from __future__ import annotations

import math
import random
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .linearizability import Call, calls_of, is_linearizable
from .soak_checker import check_counter
from .soak_history import Kind, Operation
from .test_soak_checker import RIGHT, WRONG


@pytest.mark.parametrize("name", RIGHT)
def test_a_legal_history_is_linearizable(name: str) -> None:
    """Whatever may be is accepted."""
    operations, final = RIGHT[name]

    assert is_linearizable(calls_of(operations), final=final)


@pytest.mark.parametrize("name", WRONG)
def test_an_illegal_history_is_not_linearizable(name: str) -> None:
    """Each way of being wrong is seen."""
    operations, final = WRONG[name]

    assert not is_linearizable(calls_of(operations), final=final)


BAD = {
    "two adds that did not see each other": [Call(1, 2, 5, 5), Call(3, 4, 7, 7)],
    "a read that goes back": [Call(1, 2, 3, 3), Call(3, 4, 0, 3), Call(5, 6, 0, 0)],
    "a value that no order of the adds gives": [Call(1, 9, 2, 2), Call(1, 9, 3, 5), Call(2, 8, 0, 3)],
    "a lost add seen and then not": [Call(1, math.inf, 4, None), Call(2, 3, 0, 4), Call(4, 5, 0, 0)],
    "a lost add seen before it was sent": [Call(2, math.inf, 4, None), Call(0, 1, 0, 4)],
    "one lost add counted twice": [Call(1, math.inf, 4, None), Call(2, 3, 0, 8)],
}
GOOD = {
    "different amounts at the same time": [Call(1, 9, 2, 5), Call(1, 9, 3, 3), Call(2, 8, 0, 3)],
    "a lost add that ran": [Call(1, math.inf, 4, None), Call(2, 3, 0, 0), Call(4, 5, 0, 4)],
    "lost adds of two amounts": [Call(1, math.inf, 4, None), Call(1, math.inf, 1, None), Call(2, 3, 0, 1)],
    "nothing": [],
}


@pytest.mark.parametrize("name", BAD)
def test_planted_histories_that_no_counter_can_have_are_found(name: str) -> None:
    """Amounts other than one, where a value does not name its place."""
    assert not is_linearizable(BAD[name])


@pytest.mark.parametrize("name", GOOD)
def test_histories_that_a_counter_can_have_pass(name: str) -> None:
    """The same for what may be."""
    assert is_linearizable(GOOD[name])


def drawn_call(sent: int, takes: int, amount: int, value: int | None) -> Call:
    return Call(sent, math.inf if value is None else sent + takes, amount, value)


moments, values = st.integers(0, 6), st.one_of(st.none(), st.integers(0, 4))
calls = st.builds(drawn_call, moments, moments, st.integers(0, 2), values)


@given(st.lists(calls, max_size=6))
def test_the_search_finds_what_trying_every_order_finds(drawn: list[Call]) -> None:
    """Its memory and its short cuts leave nothing out and let nothing in."""
    assert is_linearizable(drawn) == any_order(drawn)


def any_order(drawn: list[Call]) -> bool:
    """Try every order of every choice of lost calls."""
    known = [each for each in drawn if each.is_known]
    lost = [each for each in drawn if not each.is_known]
    chosen = [
        [each for number, each in enumerate(lost) if bits >> number & 1] for bits in range(1 << len(lost))
    ]  # fmt: skip
    return any(is_legal(order) for some in chosen for order in permutations([*known, *some]))


def is_legal(order: tuple[Call, ...]) -> bool:
    value, latest = 0, -math.inf
    for call in order:
        latest = max(latest, call.sent)
        value += call.amount
        if call.ended < latest or call.value not in (None, value):
            return False
    return True


@given(st.integers(0, 2**32), st.booleans())
def test_both_checkers_of_a_counter_agree(seed: int, is_damaged: bool) -> None:  # noqa: FBT001, drawn
    """The quick one of the long run and the searching one say the same of what was and of what can't have been."""
    operations, final = lived(random.Random(seed), is_damaged=is_damaged)

    assert (check_counter(operations, final) == []) == is_linearizable(calls_of(operations), final=final)


def lived(choose: random.Random, *, is_damaged: bool) -> tuple[list[Operation], int]:
    """Return what callers saw of a counter that was right, or one answer of which was changed."""
    value = 0
    operations: list[Operation] = []
    for number in range(choose.randrange(1, 12)):
        kind = choose.choice([Kind.ADD, Kind.ADD, Kind.READ])
        ran = 2 * number + choose.random()
        is_lost = choose.random() < 0.25
        runs = not is_lost or choose.random() < 0.5
        value += kind is Kind.ADD and runs
        operation = Operation(f"{number}", kind, "acme/one", kind.value, ran - choose.uniform(0, 4))
        if is_lost:
            operation.given_up = "StoreUnavailable"
        else:
            operation.answered, operation.value = ran + choose.uniform(0, 4), value
        operations.append(operation)
    answered = [each for each in operations if each.is_answered]
    if is_damaged and answered:
        choose.choice(answered).value += choose.choice([-1, 1])
    return operations, value


def test_a_history_of_thousands_is_judged_in_a_moment() -> None:
    """Answers of many callers at once, with lost ones among them: the search does not try every order of them."""
    choose = random.Random(7)
    seen: list[Call] = []
    value = 0
    for number in range(4_000):
        amount = choose.choice([0, 1, 1])
        value += amount
        is_lost = choose.random() < 0.02
        sent = number - choose.uniform(0, 8)
        ended = math.inf if is_lost else number + choose.uniform(0, 8)
        seen.append(Call(sent, ended, amount, None if is_lost else value))

    assert is_linearizable(seen, final=value)
    assert not is_linearizable(seen, final=value + 1)
