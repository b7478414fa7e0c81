"""Retry policies."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.journal.errors import RegistrationError
from keylane.objects.policies import RetryPolicy


def never() -> float:
    """Chance that takes nothing away."""
    return 0.0


def milliseconds(pause: timedelta) -> float:
    """A pause as a number."""
    return pause / timedelta(milliseconds=1)


def test_pauses_grow_up_to_the_cap() -> None:
    """Fifty milliseconds, doubled each time, at most ten seconds."""
    pauses = [milliseconds(RetryPolicy().delay(attempt, never)) for attempt in range(1, 11)]

    assert pauses == [50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]


@given(st.integers(1, 100_000), st.floats(0, 1, exclude_max=True), st.floats(0, 1), st.floats(1, 1e6))
def test_a_pause_is_never_longer_than_the_cap_nor_negative(
    attempt: int, chance: float, jitter: float, factor: float
) -> None:
    """However many attempts, and whatever chance says."""
    policy = RetryPolicy(jitter=jitter, factor=factor)

    assert timedelta(0) <= policy.delay(attempt, lambda: chance) <= policy.cap


def test_jitter_takes_away_up_to_its_share() -> None:
    """With a fifth, a pause of 50 ms lies between 40 and 50 ms."""
    assert milliseconds(RetryPolicy(jitter=0.2).delay(1, lambda: 0.5)) == pytest.approx(45)


def test_the_pause_that_an_error_asks_for_is_taken_as_it_is() -> None:
    """Also above the cap: the other side knows best when it is back."""
    assert RetryPolicy().delay(1, never, retry_after=60) == timedelta(seconds=60)
    assert RetryPolicy().delay(1, never, retry_after=-1) == timedelta(0)


@pytest.mark.parametrize("seconds", [float("inf"), 1e300, timedelta.max.total_seconds()])
def test_no_error_asks_for_more_than_can_be_waited_for(seconds: float) -> None:
    """What it asks for may be somebody else's header."""
    assert RetryPolicy().delay(1, never, retry_after=seconds) == timedelta(days=400)
    assert RetryPolicy().delay(1, never, retry_after=float("nan")) == timedelta(0)


def test_the_last_attempt_is_the_one_of_its_number() -> None:
    """Ten attempts in all, the first one included."""
    policy = RetryPolicy(attempts=10)

    assert [policy.is_spent(attempt) for attempt in (1, 9, 10, 11)] == [False, False, True, True]


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": timedelta(seconds=-1)},
        {"first": 0.5},
        {"cap": timedelta(milliseconds=1)},
        {"cap": 10},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"factor": "2"},
        {"attempts": 0},
        {"attempts": "3"},
        {"attempts": 1.5},
        {"jitter": None},
        {"attempts": 10_001},
        {"jitter": 1.5},
        {"then": "explode"},
    ],
)
def test_a_policy_out_of_bounds_is_refused_by_name(wrong: dict[str, Any]) -> None:
    """The error names the parameter and says what it must be."""
    with pytest.raises(RegistrationError, match="it must be") as caught:
        RetryPolicy(**wrong)

    assert caught.value.parameter == next(iter(wrong))
