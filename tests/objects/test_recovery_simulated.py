"""Effects without an answer, at receivers that keep their contracts as badly as these allow: nothing is done twice.

A receiver of the simulation does what is worst for us within what it promises: calls take effect at the last moment or
never, calls of stopped processes arrive when nobody expects them, look-ups find things as late and for as short as they
may. What the plan does about that is asked of the code that the runtime asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from keylane.objects import recovery
from keylane.objects.recovery import (
    AskPeople,
    AttemptAnew,
    Contract,
    LookUp,
    Question,
    Resend,
    allowed_acts,
    next_action,
)

SECOND: Final = 1_000
FIRST: Final = 1_700_000_000_000
#: Further attempts after absence that are looked at, and what people do by hand.
ANEW_MAX: Final = 4
BY_HAND_MAX: Final = 4

contracts = st.builds(
    Contract,
    dedup_ms=st.none() | st.integers(10 * SECOND, 1_200 * SECOND),
    can_look_up=st.booleans(),
    lag_ms=st.sampled_from([0, 5 * SECOND, 120 * SECOND]),
    found_ms=st.none() | st.integers(10 * SECOND, 600 * SECOND),
    absent_means_not_done=st.booleans(),
    in_flight_ms=st.integers(1 * SECOND, 60 * SECOND),
    may_be_late=st.booleans(),
    lease_ms=st.sampled_from([300, 3 * SECOND]),
    send_within_ms=st.sampled_from([0, 10 * SECOND]),
)


@dataclass
class SimulatedReceiver:
    """A receiver that keeps a contract, and no more than that.

    Args:
        contract: What it promises.
        chance: Decides where the contract leaves it open.
    """

    contract: Contract
    chance: Random
    calls: list[int] = field(default_factory=list[int])

    def take(self, arrives_ms: int) -> None:
        """Note that a call takes effect at a time, unless the receiver knows its id by then."""
        self.calls.append(arrives_ms)

    def done(self, until_ms: int | None = None) -> list[int]:
        """Return when it did what was asked for, up to a time."""
        done: list[int] = []
        for at_ms in sorted(self.calls):
            knows = self.contract.dedup_ms is not None and done and at_ms < done[-1] + self.contract.dedup_ms
            if not knows and (until_ms is None or at_ms <= until_ms):
                done.append(at_ms)
        return done

    def finds(self, at_ms: int) -> bool:
        """Return whether a look-up that is answered at a time finds what was done."""
        return any(self._finds(done_ms, at_ms) for done_ms in self.done(at_ms))

    def _finds(self, done_ms: int, at_ms: int) -> bool:
        contract = self.contract
        must = done_ms + contract.lag_ms <= at_ms
        if contract.found_ms is not None and at_ms >= done_ms + contract.found_ms:
            must = False
        if not contract.absent_means_not_done and self.chance.random() < 0.5:
            must = False
        return must


@dataclass
class Timeline:
    """One effect from its intent until it is settled or people have done what they may."""

    contract: Contract
    chance: Random
    now_ms: int = FIRST
    late_ms: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self.receiver = SimulatedReceiver(self.contract, self.chance)
        self.attempt = 0
        self.question = self._attempt()
        self.by_hand = 0

    def run(self) -> None:
        """Go through it; whatever is still under way arrives in the end."""
        while self._goes_on():
            pass

    def _goes_on(self) -> bool:
        action = next_action(self.contract, self.question, self.now_ms)
        match action:
            case LookUp(at_ms):
                self.now_ms = at_ms
                return not self._look_up()
            case Resend(at_ms):
                self.now_ms = at_ms
                self.question = self._attempt()
                return True
            case AttemptAnew(at_ms):
                self.now_ms = at_ms
                self._check_nothing_was_done()
                self.question = self._attempt()
                return self.attempt <= ANEW_MAX
            case AskPeople():
                return self._by_hand()

    def _attempt(self) -> Question:
        """Have the receiver called, and learn nothing of it."""
        self.attempt += 1
        send_before = self.now_ms + self.chance.choice([1, self.contract.leaves_within_ms])
        sent = self.chance.choice([self.now_ms, send_before - 1])
        if self.contract.may_be_late and self.chance.random() < 0.3:
            sent = self._late(send_before)
        if self.chance.random() < 0.7:
            self.receiver.take(sent + self.chance.choice([0, self.contract.in_flight_ms - 1]))
        since = self.now_ms + self.chance.choice([1, self.contract.in_flight_ms])
        self.question = Question(FIRST, send_before, 0, None, was_absent=False, attempt=self.attempt, since_ms=since)
        self.now_ms = since
        return self.question

    def _late(self, send_before: int) -> int:
        """Return when a stopped process sends: ever, or within the window where the receiver has one."""
        contract = self.contract
        latest = send_before + 4_000 * SECOND
        if contract.dedup_ms is not None:
            latest = min(latest, FIRST + contract.dedup_ms - contract.in_flight_ms)
        return self.chance.randint(send_before, max(latest, send_before))

    def _look_up(self) -> bool:
        """Ask the receiver, and return whether that has settled it."""
        asked_ms = self.now_ms
        takes = self.chance.choice([0, self.contract.in_flight_ms + self.contract.lease_ms - 1])
        answered_ms = asked_ms + takes
        fails = self.chance.random() < 0.2
        if not fails and self.receiver.finds(answered_ms):
            return True
        last = self.question
        self.question = Question(
            FIRST, last.send_before_ms, last.lookups + 1, asked_ms, not fails, last.attempt, last.since_ms
        )
        self.now_ms = answered_ms
        return False

    def _check_nothing_was_done(self) -> None:
        assert self.receiver.done(self.now_ms) == [], "an outcome was guessed"

    def _by_hand(self) -> bool:
        """Do one of the things that people may do, at some later time."""
        self.by_hand += 1
        self.now_ms += self.chance.choice([0, self.contract.in_flight_ms, 1_000 * SECOND])
        acts = allowed_acts(self.contract, self.question, self.now_ms)
        act = self.chance.choice(sorted(acts & {"resend", "lookup"}) or ["hand-over"])
        if act == "resend":
            self.question = self._attempt()
        elif act == "lookup" and self._look_up():
            return False
        return self.by_hand < BY_HAND_MAX


def check(contract: Contract, seed: int) -> None:
    """Let one effect happen, and look into the books of the receiver."""
    timeline = Timeline(contract, Random(seed))
    timeline.run()

    assert len(timeline.receiver.done()) <= 1, "it was done twice"


seeds = st.integers(0, 2**32)


@settings(max_examples=600, deadline=None)
@given(contracts, seeds)
def test_nothing_is_done_twice_and_no_outcome_is_guessed(contract: Contract, seed: int) -> None:
    """By whatever a receiver does within its contract, by the plan and by people who do what it allows."""
    check(contract, seed)


def _absence_at_once(contract: Contract, question: Question) -> int:
    del contract, question
    return 0


def _at_any_time(contract: Contract, question: Question, now_ms: int) -> bool:
    del question, now_ms
    return contract.dedup_ms is not None


def _as_if_sent_at_once(contract: Contract, question: Question, now_ms: int) -> bool:
    window = question.first_ms + (contract.dedup_ms or 0)
    return contract.dedup_ms is not None and now_ms + contract.in_flight_ms + contract.lease_ms < window


def _whoever_is_late(contract: Contract, question: Question, now_ms: int) -> bool:
    del now_ms
    return contract.absent_means_not_done and recovery.absence_counts(contract, question)


def _for_ever(contract: Contract, question: Question) -> bool:
    asked_ms = question.last_lookup_ms
    counts_from = question.send_before_ms + contract.in_flight_ms + contract.lag_ms
    return contract.can_look_up and asked_ms is not None and question.was_absent and asked_ms >= counts_from


@pytest.mark.parametrize(
    ("safeguard", "without"),
    [
        ("_counts_from", _absence_at_once),
        ("may_resend", _at_any_time),
        ("may_resend", _as_if_sent_at_once),
        ("_is_certainly_not_done", _whoever_is_late),
        ("absence_counts", _for_ever),
    ],
)
def test_the_simulation_notices_when_a_safeguard_is_taken_out(
    safeguard: str, without: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting time before absence counts, the window of a resend, late calls, and what was forgotten meanwhile."""

    # It ends with the first that shows it, within about a thousand; which ones come depends on the modules imported.
    @settings(max_examples=30_000, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(contracts, seeds)
    def simulate(contract: Contract, seed: int) -> None:
        check(contract, seed)

    monkeypatch.setattr(recovery, safeguard, without)
    with pytest.raises(AssertionError, match=r"twice|guessed"):
        simulate()
