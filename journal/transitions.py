"""The state machine of an invocation: which record may follow which, and where an invocation stands after it.

    (nothing) ── Accepted ──> queued ──┬── StepCompleted, StepFailed, MessageSent ──> running
                                       ├── StepAttemptFailed, AttemptFailed ──> waiting (for its next attempt)
                                       ├── CallStarted ──> waiting ── CallCompleted ──> running
                                       ├── TimerSet ──> waiting ── TimerFired ──> running
                                       ├── Paused ──> paused ── Resumed ──> queued
                                       └── Completed, Failed ──> completed, failed: final
    (nothing) ── Accepted, Scheduled ──> scheduled ── Released ──> queued
    (nothing) ── Finished ──> completed, failed

What leaves `queued` leaves `running` and `waiting` as well. A call or timer stays open over failed attempts and pauses:
its end is taken in whenever it comes, and ends neither a pause nor the wait for an attempt. Nothing here does I/O or
knows of time: the owner asks before it writes, and a reader who replays the records gets the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias, assert_never

from .errors import InternalError
from .outcomes import Failure
from .records import (
    Accepted,
    AttemptFailed,
    CallCompleted,
    CallStarted,
    Completed,
    Failed,
    Finished,
    MessageSent,
    Paused,
    Record,
    Released,
    Resumed,
    Scheduled,
    StepAttemptFailed,
    StepCompleted,
    StepFailed,
    TimerFired,
    TimerSet,
)

_Turn: TypeAlias = AttemptFailed | Paused | Completed | Failed | Scheduled | Resumed | Released | Accepted | Finished


class Status(StrEnum):
    """Where an invocation stands, in the words that users see."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPENSATING = "compensating"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    KILLED = "killed"


#: The statuses that nothing leaves.
TERMINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.KILLED})


class IllegalTransition(InternalError):
    """A record was about to be written, or was found, where it must not be."""

    code = "illegal-transition"


class Standing(NamedTuple):
    """Where an invocation stands after the records so far: a tuple, since one is made for each record that is written.

    Args:
        status: In the words that users see.
        records: How many records there are.
        steps: How many commands are settled, steps and the others, which is the index of the next one.
        attempts: Failed attempts of the handler since acceptance or the last resumption.
        step_attempts: Failed attempts of the step with index `steps`, likewise.
        retry_after_ms: The pause before the next attempt, while one is waited for.
        paused: The record that parked it, while it is parked.
        error: The last error of the handler or of a step.
        waiting: The call or the timer whose end is not recorded yet.
        delay_ms: How long it was to wait before it enters its lane, while it does.
    """

    status: Status
    records: int
    steps: int = 0
    attempts: int = 0
    step_attempts: int = 0
    retry_after_ms: int | None = None
    paused: Paused | None = None
    error: Failure | None = None
    waiting: CallStarted | TimerSet | None = None
    delay_ms: int | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether nothing may follow."""
        return self.status in TERMINAL


def advance(standing: Standing | None, record: Record) -> Standing:
    """Return where the invocation stands after one more record.

    Args:
        standing: Where it stands before it, None before its first.
        record: The record that follows.

    Raises:
        IllegalTransition: It must not follow.
    """
    if standing is None:
        return _begin(record)
    if standing.status in TERMINAL:
        raise _illegal(standing, record, "a terminal status is final")
    if standing.status is Status.SCHEDULED:
        return _release(standing, record)
    if isinstance(record, CallCompleted | TimerFired):
        return _end_wait(standing, record)
    if standing.status is Status.PAUSED:
        return _resume(standing, record)
    match record:
        case StepCompleted() | StepFailed() | MessageSent():
            return _settle(standing, record)
        case StepAttemptFailed():
            return _retry_step(standing, record)
        case CallStarted() | TimerSet():
            return _wait(standing, record)
        case _:
            return _turn(standing, record)


def _turn(standing: Standing, record: _Turn) -> Standing:
    """Return where an invocation stands after a record that is about all of it, and no command of its handler."""
    match record:
        case AttemptFailed():
            return _retry(standing, record)
        case Paused():
            return _pause(standing, record)
        case Completed():
            return _end(standing, Status.COMPLETED, standing.error)
        case Failed():
            return _end(standing, Status.FAILED, record.error)
        case Scheduled():
            return _schedule(standing, record)
        case Resumed():
            raise _illegal(standing, record, "it is not paused")
        case Released():
            raise _illegal(standing, record, "it is not scheduled")
        case Accepted() | Finished():
            raise _illegal(standing, record, "it was accepted already")
        case _:
            assert_never(record)


def replay(records: Iterable[Record], standing: Standing | None = None) -> Standing:
    """Return where an invocation stands after its records.

    Args:
        records: The records, or those after `standing`.
        standing: Where it stands before them, None when they are all.

    Raises:
        IllegalTransition: One of them must not be where it is, or there is none.
    """
    for record in records:
        standing = advance(standing, record)
    if standing is None:
        raise IllegalTransition("an invocation without records")
    return standing


def _begin(record: Record) -> Standing:
    match record:
        case Accepted():
            return Standing(Status.QUEUED, records=1)
        case Finished(outcome="c"):
            return Standing(Status.COMPLETED, records=1)
        case Finished():
            return Standing(Status.FAILED, records=1)
        case _:
            raise _illegal(None, record, "the first record accepts the invocation")


def _schedule(standing: Standing, record: Scheduled) -> Standing:
    if standing != Standing(Status.QUEUED, records=1):
        raise _illegal(standing, record, "only what was accepted just now can be scheduled")
    return Standing(Status.SCHEDULED, records=2, delay_ms=record.delay_ms)


def _release(standing: Standing, record: Record) -> Standing:
    if not isinstance(record, Released):
        raise _illegal(standing, record, "its time has not come")
    return Standing(Status.QUEUED, records=standing.records + 1)


def _check_next(
    standing: Standing, record: StepCompleted | StepFailed | StepAttemptFailed | MessageSent | CallStarted | TimerSet
) -> None:
    if record.index != standing.steps:
        raise _illegal(standing, record, f"step {standing.steps} is next, not {record.index}")
    if standing.waiting is not None:
        raise _illegal(standing, record, f"the end of {type(standing.waiting).__name__} is next")


def _wait(standing: Standing, record: CallStarted | TimerSet) -> Standing:
    _check_next(standing, record)
    return Standing(
        Status.WAITING,
        records=standing.records + 1,
        steps=standing.steps,
        attempts=standing.attempts,
        error=standing.error,
        waiting=record,
    )


def _end_wait(standing: Standing, record: CallCompleted | TimerFired) -> Standing:
    waited = CallStarted if isinstance(record, CallCompleted) else TimerSet
    if not isinstance(standing.waiting, waited) or record.index != standing.steps:
        raise _illegal(standing, record, "nothing of this kind and index is waited for")
    goes_on = standing.status is Status.WAITING and standing.retry_after_ms is None
    return standing._replace(
        status=Status.RUNNING if goes_on else standing.status,
        records=standing.records + 1,
        steps=standing.steps + 1,
        step_attempts=0,
        waiting=None,
    )


def _settle(standing: Standing, record: StepCompleted | StepFailed | MessageSent) -> Standing:
    _check_next(standing, record)
    return Standing(
        Status.RUNNING,
        records=standing.records + 1,
        steps=standing.steps + 1,
        attempts=standing.attempts,
        error=record.error if isinstance(record, StepFailed) else standing.error,
    )


def _retry_step(standing: Standing, record: StepAttemptFailed) -> Standing:
    _check_next(standing, record)
    if record.attempt != standing.step_attempts + 1:
        raise _illegal(standing, record, f"attempt {standing.step_attempts + 1} is next, not {record.attempt}")
    return Standing(
        Status.WAITING,
        records=standing.records + 1,
        steps=standing.steps,
        attempts=standing.attempts,
        step_attempts=record.attempt,
        retry_after_ms=record.retry_after_ms,
        error=record.error,
    )


def _retry(standing: Standing, record: AttemptFailed) -> Standing:
    if record.attempt != standing.attempts + 1:
        raise _illegal(standing, record, f"attempt {standing.attempts + 1} is next, not {record.attempt}")
    return Standing(
        Status.WAITING,
        records=standing.records + 1,
        steps=standing.steps,
        attempts=record.attempt,
        step_attempts=standing.step_attempts,
        retry_after_ms=record.retry_after_ms,
        error=record.error,
        waiting=standing.waiting,
    )


def _pause(standing: Standing, record: Paused) -> Standing:
    return Standing(
        Status.PAUSED,
        records=standing.records + 1,
        steps=standing.steps,
        attempts=standing.attempts,
        step_attempts=standing.step_attempts,
        paused=record,
        error=record.error or standing.error,
        waiting=standing.waiting,
    )


def _resume(standing: Standing, record: Record) -> Standing:
    if not isinstance(record, Resumed):
        raise _illegal(standing, record, "only a resumption leaves a pause")
    # The retries are counted anew: whoever resumes says that another try is worth it.
    return Standing(
        Status.QUEUED,
        records=standing.records + 1,
        steps=standing.steps,
        error=standing.error,
        waiting=standing.waiting,
    )


def _end(standing: Standing, status: Status, error: Failure | None) -> Standing:
    return Standing(
        status,
        records=standing.records + 1,
        steps=standing.steps,
        attempts=standing.attempts,
        step_attempts=standing.step_attempts,
        error=error,
    )


def _illegal(standing: Standing | None, record: Record, why: str) -> IllegalTransition:
    place = "at the beginning" if standing is None else f"after {standing.records} records, {standing.status}"
    return IllegalTransition(f"{type(record).__name__} {place}: {why}")
