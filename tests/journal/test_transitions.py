"""The state machine of an invocation against a plain model of it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.journal.command_records import (
    CallCompleted,
    CallStarted,
    MessageSent,
    ModelCallBegun,
    StepAttemptFailed,
    StepCompleted,
    StepFailed,
    TimerFired,
    TimerSet,
)
from keylane.journal.outcomes import Failure
from keylane.journal.record_bytes import decode, encode
from keylane.journal.records import (
    Accepted,
    AttemptFailed,
    CancelRequested,
    Completed,
    Failed,
    Finished,
    Paused,
    PauseReason,
    Record,
    Released,
    Resumed,
    Scheduled,
)
from keylane.journal.standing import IllegalTransition, Standing, Status
from keylane.journal.transitions import advance, replay

GOLDEN = Path(__file__).parent / "golden" / "journals"
ERROR = Failure("builtins.ValueError", "no", "terminal", None, "")
OTHER_ERROR = Failure("builtins.OSError", "gone", "terminal", None, "")
ACCEPTED = Accepted(b"i" * 16, "refund", 1, "acme/o-1")
FINISHED = Finished(b"i" * 16, "refund", 1, None, "c")
FINISHED_FAILED = Finished(b"i" * 16, "refund", 1, None, "f")
PAUSED = Paused(PauseReason.RETRIES_SPENT, "10 attempts", ERROR)


TARGET = ("Stock", 3, "acme/s-1", "reserve", b"c" * 16)


@dataclass
class Model:
    """What an invocation is, in the plainest words: a few counters that the rules change."""

    status: str = "new"
    steps: int = 0
    attempts: int = 0
    step_attempts: int = 0
    waits_for: str | None = None
    is_retrying: bool = False
    is_fresh: bool = False

    def legal(self) -> list[Record]:
        """Return one record of each kind that may follow."""
        if self.status == "new":
            return [ACCEPTED, FINISHED, FINISHED_FAILED]
        if self.status == "scheduled":
            return [Released()]
        if self.status in {"completed", "failed"}:
            return []
        if self.status == "paused":
            return [Resumed("ada", "repaired"), *self.ends()]
        return [*self.ends(), *self.commands(), *([Scheduled(1_000)] if self.is_fresh else []), *self.turns()]

    def ends(self) -> list[Record]:
        """Return the end of what is waited for."""
        match self.waits_for:
            case "reply":
                return [CallCompleted(self.steps, b"\x01")]
            case "time":
                return [TimerFired(self.steps)]
            case _:
                return []

    def commands(self) -> list[Record]:
        """Return what the handler may do next."""
        if self.waits_for:
            return []
        return [
            StepCompleted(self.steps, "s", b"\x01", {"balance": b"\x02"}),
            StepFailed(self.steps, "s", ERROR),
            StepAttemptFailed(self.steps, "s", self.step_attempts + 1, ERROR, 50),
            ModelCallBegun(self.steps, "s", 1, "m-1", b"d"),
            MessageSent(self.steps, *TARGET),
            CallStarted(self.steps, *TARGET),
            TimerSet(self.steps, 1_000),
        ]

    def turns(self) -> list[Record]:
        """Return what may become of the whole of it."""
        return [
            AttemptFailed(self.attempts + 1, OTHER_ERROR, 100),
            PAUSED,
            Paused(PauseReason.OPERATOR, "", None, "ada"),
            Completed(),
            Failed(ERROR),
        ]

    def illegal(self) -> list[Record]:
        """Return records that must not follow: every kind that is not legal, and every wrong number."""
        allowed = {type(record) for record in self.legal()}
        wrong_numbers = [
            record
            for difference in (-1, 1)
            for record in (
                StepCompleted(self.steps + difference, "s", b"\x01"),
                StepFailed(self.steps + difference, "s", ERROR),
                ModelCallBegun(self.steps + difference, "s", 1, "m-1", b"d"),
                StepAttemptFailed(self.steps + difference, "s", self.step_attempts + 1, ERROR, 50),
                StepAttemptFailed(self.steps, "s", self.step_attempts + 1 + difference, ERROR, 50),
                AttemptFailed(self.attempts + 1 + difference, ERROR, 50),
                MessageSent(self.steps + difference, *TARGET),
                CallStarted(self.steps + difference, *TARGET),
                CallCompleted(self.steps + difference, b"\x01"),
                TimerSet(self.steps + difference, 1_000),
                TimerFired(self.steps + difference),
            )
        ]
        return wrong_numbers + [record for record in ONE_OF_EACH if type(record) not in allowed]

    def take(self, record: Record) -> None:
        """Change the counters as the record says."""
        self.is_fresh = isinstance(record, Accepted)
        match record:
            case Accepted() | Released():
                self.status = "queued"
            case Scheduled():
                self.status = "scheduled"
            case Resumed():
                self.status, self.attempts, self.step_attempts, self.is_retrying = "queued", 0, 0, False
            case Finished():
                self.status = {"c": "completed", "f": "failed"}[record.outcome]
            case AttemptFailed():
                self.status, self.attempts, self.is_retrying = "waiting", self.attempts + 1, True
            case Paused():
                self.status = "paused"
            case Completed():
                self.status = "completed"
            case Failed():
                self.status = "failed"
            case _:
                self.take_command(record)

    def take_command(self, record: Record) -> None:
        """Change the counters as the record of a command says."""
        match record:
            case StepCompleted() | StepFailed() | MessageSent():
                self.status, self.steps, self.step_attempts, self.is_retrying = "running", self.steps + 1, 0, False
            case StepAttemptFailed():
                self.status, self.step_attempts, self.is_retrying = "waiting", self.step_attempts + 1, True
            case ModelCallBegun():
                self.status, self.is_retrying = "running", False
            case CallStarted() | TimerSet():
                self.waits_for = "reply" if isinstance(record, CallStarted) else "time"
                self.status, self.step_attempts, self.is_retrying = "waiting", 0, False
            case CallCompleted() | TimerFired():
                self.waits_for, self.steps, self.step_attempts = None, self.steps + 1, 0
                if self.status == "waiting" and not self.is_retrying:
                    self.status = "running"
            case _:
                raise AssertionError(record)


ONE_OF_EACH: list[Record] = [
    ACCEPTED,
    StepCompleted(0, "s", b"\x01"),
    StepAttemptFailed(0, "s", 1, ERROR, 50),
    StepFailed(0, "s", ERROR),
    ModelCallBegun(0, "s", 1, "m-1", b"d"),
    AttemptFailed(1, ERROR, 50),
    PAUSED,
    Resumed("ada", "repaired"),
    Completed(),
    Failed(ERROR),
    FINISHED,
    Scheduled(1_000),
    Released(),
    MessageSent(0, *TARGET),
    CallStarted(0, *TARGET),
    CallCompleted(0, b"\x01"),
    TimerSet(0, 1_000),
    TimerFired(0),
]


@st.composite
def programs(draw: st.DrawFn) -> list[Record]:
    """Draw the records of an invocation, ended or not."""
    model = Model()
    records: list[Record] = []
    for _ in range(draw(st.integers(1, 30))):
        choices = model.legal()
        if not choices:
            break
        record = draw(st.sampled_from(choices))
        model.take(record)
        records.append(record)
    return records


@given(programs())
def test_a_legal_program_is_taken_and_agrees_with_the_model(records: list[Record]) -> None:
    """After each record the invocation stands where the plain model says."""
    model = Model()
    standing: Standing | None = None

    for count, record in enumerate(records, start=1):
        standing = advance(standing, record)
        model.take(record)

        assert (standing.status, standing.steps, standing.attempts, standing.step_attempts, standing.records) == (
            model.status,
            model.steps,
            model.attempts,
            model.step_attempts,
            count,
        )


@given(programs())
def test_every_illegal_record_is_refused_at_every_place(records: list[Record]) -> None:
    """Whatever may not follow raises, before the first record, between any two and after the last."""
    model = Model()
    standing: Standing | None = None

    for record in [*records, None]:
        for wrong in model.illegal():
            with pytest.raises(IllegalTransition):
                advance(standing, wrong)
        if record is not None:
            standing = advance(standing, record)
            model.take(record)


@given(programs(), st.data())
def test_a_prefix_and_then_the_rest_equals_the_whole(records: list[Record], data: st.DataObject) -> None:
    """A reader that goes on from where it stood gets what a reader of everything gets."""
    cut = data.draw(st.integers(1, len(records)))

    assert replay(records[cut:], replay(records[:cut])) == replay(records)


@given(programs())
def test_records_lead_to_the_same_standing_after_the_round_trip(records: list[Record]) -> None:
    """What is read back from the store means what was written."""
    assert replay(decode(encode(record)) for record in records) == replay(records)


@given(programs())
def test_a_terminal_status_is_final(records: list[Record]) -> None:
    """Nothing at all follows a terminal status: it is written once."""
    standing = replay(records)

    if standing.is_terminal:
        for record in ONE_OF_EACH:
            with pytest.raises(IllegalTransition, match="final"):
                advance(standing, record)


@given(programs())
def test_what_it_waits_for_is_said_exactly_while_it_waits(records: list[Record]) -> None:
    """The pause and the delay of the next attempt are there when they apply and at no other time."""
    standing = replay(records)

    assert (standing.paused is not None) == (standing.status is Status.PAUSED)
    assert (standing.delay_ms is not None) == (standing.status is Status.SCHEDULED)
    if standing.status is Status.WAITING:
        assert standing.retry_after_ms is not None or standing.waiting is not None
    else:
        assert standing.retry_after_ms is None


@given(programs())
def test_a_call_or_timer_stays_open_until_its_end_is_recorded(records: list[Record]) -> None:
    """Whatever happens meanwhile: a failed attempt, a pause, a resumption."""
    model = Model()
    for count, record in enumerate(records, start=1):
        model.take(record)
        standing = replay(records[:count])

        expected = {"reply": CallStarted, "time": TimerSet, None: type(None)}[model.waits_for]
        assert standing.is_terminal or isinstance(standing.waiting, expected)


JOURNALS: dict[str, tuple[list[Record], Standing]] = {
    "three_steps": (
        [ACCEPTED, *(StepCompleted(index, "s", b"\x01") for index in range(3)), Completed()],
        Standing(Status.COMPLETED, records=5, steps=3),
    ),
    "retried_paused_resumed": (
        [
            ACCEPTED,
            StepAttemptFailed(0, "s", 1, ERROR, 50),
            StepCompleted(0, "s", b"\x01", {"balance": b"\x02"}, (b"\x03",)),
            AttemptFailed(1, OTHER_ERROR, 100),
            AttemptFailed(2, OTHER_ERROR, 200),
            PAUSED,
            Resumed("ada", "repaired"),
            AttemptFailed(1, OTHER_ERROR, 100),
        ],
        Standing(Status.WAITING, records=8, steps=1, attempts=1, retry_after_ms=100, error=OTHER_ERROR),
    ),
    "failed_at_a_step": (
        [ACCEPTED, StepFailed(0, "s", ERROR), Failed(ERROR)],
        Standing(Status.FAILED, records=3, steps=1, error=ERROR),
    ),
    "paused": (
        [ACCEPTED, StepCompleted(0, "s", b"\x01"), PAUSED],
        Standing(Status.PAUSED, records=3, steps=1, paused=PAUSED, error=ERROR),
    ),
    "called_and_slept": (
        [
            ACCEPTED,
            MessageSent(0, *TARGET, 5_000, {"balance": b"\x02"}),
            CallStarted(1, *TARGET, {}, (b"\x03",)),
            AttemptFailed(1, OTHER_ERROR, 100),
            CallCompleted(1, b"\x92\x40\xc4\x01\x2a"),
            TimerSet(2, 60_000),
            PAUSED,
            TimerFired(2),
            Resumed("ada", "repaired"),
            CallStarted(3, *TARGET),
        ],
        Standing(Status.WAITING, records=10, steps=3, error=ERROR, waits=(CallStarted(3, *TARGET),)),
    ),
    "scheduled": (
        [ACCEPTED, Scheduled(60_000)],
        Standing(Status.SCHEDULED, records=2, delay_ms=60_000),
    ),
    "released": (
        [ACCEPTED, Scheduled(60_000), Released(), StepCompleted(0, "s", b"\x01")],
        Standing(Status.RUNNING, records=4, steps=1),
    ),
    "short": ([FINISHED], Standing(Status.COMPLETED, records=1)),
    "short_failed": ([FINISHED_FAILED], Standing(Status.FAILED, records=1)),
}


@pytest.mark.parametrize("name", JOURNALS)
def test_a_golden_journal_replays_for_ever(name: str) -> None:
    """What an earlier release wrote leads to the same standing in every later one."""
    whole: list[bytes] = msgpack.unpackb((GOLDEN / f"{name}.msgpack").read_bytes())
    records, standing = JOURNALS[name]

    assert [decode(data) for data in whole] == records
    assert replay(decode(data) for data in whole) == standing


def test_every_golden_journal_is_read_by_a_test() -> None:
    """No golden file lies there without a test that replays it."""
    assert {path.stem for path in GOLDEN.iterdir()} == set(JOURNALS)


def test_no_records_make_no_standing() -> None:
    """A stream without records is our bug, not a new invocation."""
    with pytest.raises(IllegalTransition, match="without records"):
        replay([])


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([ACCEPTED], id="queued"),
        pytest.param([ACCEPTED, StepCompleted(0, "s", b"")], id="running"),
        pytest.param([ACCEPTED, StepAttemptFailed(0, "s", 1, ERROR, 50)], id="between attempts of the step"),
        pytest.param([ACCEPTED, AttemptFailed(1, OTHER_ERROR, 50)], id="between attempts of the handler"),
        pytest.param([ACCEPTED, AttemptFailed(1, ERROR, 50), StepFailed(0, "s", ERROR)], id="behind a failed step"),
        pytest.param([ACCEPTED, PAUSED, Resumed("a", "b")], id="resumed"),
        pytest.param([ACCEPTED, CancelRequested(b"c" * 16, "a", "b")], id="with a request for its end"),
    ],
)
def test_the_short_way_of_a_result_leads_where_the_long_one_does(before: list[Record]) -> None:
    """A sent message settles a command just as a step's result does, and takes the long way."""
    standing = replay(before)
    index = standing.steps

    short = advance(standing, StepCompleted(index, "s", b""))

    assert short == advance(standing, MessageSent(index, "Order", 0, "acme/o", "h", b"i" * 16))


def test_the_last_error_is_kept_until_the_end() -> None:
    """A person who looks sees the last thing that went wrong."""
    failed_attempt = replay([ACCEPTED, AttemptFailed(1, OTHER_ERROR, 50)])

    assert failed_attempt.error == OTHER_ERROR
    assert replay([Paused(PauseReason.OPERATOR, "")], failed_attempt).error == OTHER_ERROR
    assert replay([PAUSED], failed_attempt).error == ERROR
    assert replay([Failed(ERROR)], failed_attempt).error == ERROR


def test_the_message_says_what_must_not_follow_and_why() -> None:
    """A bug report carries the record, the place and the rule."""
    with pytest.raises(IllegalTransition, match=r"StepCompleted after 1 records, queued: step 0 is next, not 4"):
        replay([ACCEPTED, StepCompleted(4, "s", b"")])


def test_the_error_survives_pickling() -> None:
    """It crosses processes like every other error."""
    with pytest.raises(IllegalTransition) as caught:
        replay([Completed()])

    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes

    assert str(copy) == str(caught.value)
    assert copy.code == "illegal-transition"
