"""The recovery plan of an effect, as people read it."""

from datetime import timedelta
from typing import Any

import pytest

from keylane.objects.receivers import Deduplicates, Effect, Receiver
from keylane.objects.recovery_plan import in_words, plan_of
from keylane.objects.settings import Settings

DAY = timedelta(days=1)
SETTINGS = Settings(lease_seconds=3, send_within_seconds=2)


async def find(operation_id: str, params: int) -> str | None: ...


def effect(**promises: Any) -> Effect[Any, Any]:
    """An effect at a receiver with some promises."""

    async def send(operation_id: str, params: int) -> str:
        return operation_id * params

    return Receiver("payments", owner="payments-oncall", **promises).effect("refund")(send)


DEDUP = {"deduplicates": Deduplicates(retention=DAY)}
LOOKUP = {"lookup": find}
CERTAIN = {"lookup": find, "absent_means": "not_done", "late_calls": "impossible"}


@pytest.mark.parametrize(
    ("promises", "kinds"),
    [
        (DEDUP, ["unknown", "resend", "ask people"]),
        (LOOKUP, ["unknown", "look up", "ask people"]),
        ({**LOOKUP, "absent_means": "not_done"}, ["unknown", "look up", "ask people"]),
        (CERTAIN, ["unknown", "look up", "attempt anew"]),
        ({**DEDUP, **LOOKUP}, ["unknown", "look up", "resend", "ask people"]),
        ({}, ["unknown", "ask people"]),
    ],
)
def test_a_plan_is_what_the_contract_leads_to(promises: dict[str, Any], kinds: list[str]) -> None:
    """In the order in which things happen first."""
    plan = plan_of(effect(**promises), SETTINGS)

    assert [line.kind for line in plan.lines] == kinds
    assert [line.from_ms for line in plan.lines] == sorted(line.from_ms for line in plan.lines)


def test_a_plan_names_the_times_of_the_contract() -> None:
    """When the call has ended, when absence counts, until when the same id is sent."""
    lines = {line.kind: line for line in plan_of(effect(**CERTAIN, lookup_lag=timedelta(seconds=10)), SETTINGS).lines}
    counts_from = 3_000 + 90_000 + 10_000
    resend = plan_of(effect(**DEDUP), SETTINGS).lines[1]

    assert lines["unknown"].from_ms == lines["look up"].from_ms == 30_000
    assert lines["attempt anew"].from_ms == lines["look up"].until_ms == counts_from
    assert "counts from 1 min 43 s" in lines["look up"].sentence
    assert resend.until_ms < 24 * 3_600_000 - 90_000 - 3_000
    assert "at the latest 23 h 58 min after the first intent" in resend.sentence


@pytest.mark.parametrize(
    ("promises", "words"),
    [
        (DEDUP, "may send late. The receiver knows an operation id for 1 d, and takes it once for so long."),
        (LOOKUP, "may send late. Therefore nothing is sent a second time by itself"),
        ({}, "who marks it as not done must know that no late call can come"),
        (CERTAIN, "By its contract no call can arrive after its time."),
    ],
)
def test_a_plan_says_what_a_late_call_would_do(promises: dict[str, Any], words: str) -> None:
    """The fence guards the records, not the receiver."""
    assert words in plan_of(effect(**promises), SETTINGS).late_calls


def test_a_plan_says_who_settles_and_what_they_may_do() -> None:
    """By the same rules as the runtime: nothing is sent again where that could do it twice."""
    bare = plan_of(effect(), SETTINGS)
    both = plan_of(effect(**LOOKUP, absent_means="not_done"), SETTINGS)

    assert "payments-oncall has to settle it within 1 d" in bare.lines[-1].sentence
    assert (bare.acts, bare.not_done_from_ms) == (("succeeded", "hand-over"), 93_000)
    assert both.acts == ("lookup", "succeeded", "not-done", "hand-over")


def test_the_longest_waits_have_plans_that_end() -> None:
    """A lag and a flight of a month each."""
    month = timedelta(days=30)
    plan = plan_of(effect(**CERTAIN, lookup_lag=month, in_flight=month), SETTINGS)

    assert plan.lines[-1].kind == "attempt anew"


@pytest.mark.parametrize(
    ("span", "words"),
    [(0, "0 s"), (500, "0.5 s"), (59_000, "59 s"), (93_000, "1 min 33 s"), (86_306_999, "23 h 58 min"), (DAY, "1 d")],
)
def test_spans_are_written_for_people(span: timedelta | int, words: str) -> None:
    """In their two largest units."""
    assert in_words(span) == words
