"""The state machine of an invocation: which record may follow which, and where an invocation stands after it.

    (nothing) ── Accepted ──> queued ──┬── StepCompleted, StepFailed, MessageSent, AwakeableMade, Proposed ──> running
                                       ├── ModelCallBegun ──> running (and its place is not settled yet)
                                       ├── StepAttemptFailed, AttemptFailed ──> waiting (for its next attempt)
                                       ├── CallStarted ──> waiting ── CallCompleted ──> running
                                       ├── TimerSet ──> waiting ── TimerFired ──> running
                                       ├── WaitStarted ──> waiting ── WaitCompleted, WaitExpired ──> running
                                       ├── EffectStarted, ApprovalAwaited ──> waiting ── WaitCompleted ──> running
                                       ├── Paused ──> paused ── Resumed, Restarted ──> queued
                                       ├── CompensationStarted ──> compensating ── Failed, Cancelled
                                       └── Completed, Failed, Cancelled, Killed ──> the status of that name: final
    (nothing) ── Accepted, Scheduled ──> scheduled ── Released ──> queued
    (nothing) ── Finished ──> completed, failed

What leaves `queued` leaves `running` and `waiting` as well. A handler with several branches has several waits open at a
time; each ends with the record of its kind, with `WaitWithdrawn` or with `CancelDelivered`. A wait stays open over
failed attempts and pauses: its end is taken in whenever it comes, and ends neither a pause nor the wait for an attempt.
The same goes for `SignalReceived`. Nothing here does I/O or knows of time: the owner asks before it writes, and a
reader who replays the records gets the same answer. `command_transitions` has what a handler's own commands change, and
`pause_transitions` how a pause begins and ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from .command_records import (
    ApprovalAwaited,
    AwakeableMade,
    CallCompleted,
    CallStarted,
    CancelDelivered,
    CompensationSkipped,
    CompensationStarted,
    EffectStarted,
    MessageSent,
    ModelCallBegun,
    Proposed,
    StepAttemptFailed,
    StepCompleted,
    StepFailed,
    TimerFired,
    TimerSet,
    WaitCompleted,
    WaitExpired,
    WaitStarted,
    WaitWithdrawn,
)
from .command_transitions import begin_wait, call_model, deliver_cancel, end_wait, retry_step, settle, withdraw
from .pause_transitions import pause, request_cancel, resume
from .records import (
    Accepted,
    AttemptFailed,
    Cancelled,
    CancelRequested,
    Completed,
    Failed,
    Finished,
    Killed,
    PatchMarked,
    Paused,
    Record,
    Released,
    Restarted,
    Resumed,
    Scheduled,
    SignalReceived,
)
from .standing import END_OF, NO_EXTRAS, TERMINAL, IllegalTransition, Standing, Status, ended, illegal

#: Those from which a step's result leads on; each use of a member by its name costs a call.
_AT_WORK: Final = frozenset({Status.QUEUED, Status.RUNNING, Status.WAITING})
_RUNNING: Final = Status.RUNNING


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
    if isinstance(record, StepCompleted) and _is_plain(standing) and record.index == standing.steps:
        # What most records are, and what the longest way below would come to.
        return Standing(_RUNNING, standing.records + 1, standing.steps + 1, standing.attempts, error=standing.error)
    if isinstance(record, Completed) and _is_plain(standing):
        return ended(standing, Status.COMPLETED, standing.error)
    if standing.status in TERMINAL:
        raise illegal(standing, record, "a terminal status is final")
    match record:
        case Killed():
            return ended(standing, Status.KILLED, standing.error)
        case CancelRequested():
            return request_cancel(standing, record)
        case SignalReceived():
            return _receive(standing, record)
        case _ if standing.status is Status.SCHEDULED:
            return _release(standing, record)
        case CallCompleted() | TimerFired() | WaitExpired():
            return end_wait(standing, record)
        case WaitCompleted() if standing.wait_at(record.index) is not None:
            return end_wait(standing, record)
        case _ if standing.status is Status.PAUSED:
            return resume(standing, record)
        case _:
            return _go_on(standing, record)


def _is_plain(standing: Standing) -> bool:
    """Return whether an invocation is at work, waits for nothing, and has nothing that few have."""
    return standing.status in _AT_WORK and not standing.waits and standing.extras is NO_EXTRAS


def _go_on(standing: Standing, record: Record) -> Standing:
    """Return where an invocation stands after a record that its handler, or its owner for it, has made."""
    match record:
        case StepCompleted() | StepFailed() | MessageSent() | AwakeableMade() | Proposed() | WaitCompleted():
            return settle(standing, record)
        case StepAttemptFailed():
            return retry_step(standing, record)
        case ModelCallBegun():
            return call_model(standing, record)
        case CallStarted() | TimerSet() | WaitStarted() | EffectStarted() | ApprovalAwaited():
            return begin_wait(standing, record)
        case WaitWithdrawn():
            return withdraw(standing, record)
        case CancelDelivered():
            return deliver_cancel(standing, record)
        case CompensationSkipped():
            raise illegal(standing, record, "no undo of it is parked")
        case _:
            return _turn(standing, record)


def _turn(standing: Standing, record: Record) -> Standing:
    """Return where an invocation stands after a record that is about all of it, and no command of its handler."""
    match record:
        case AttemptFailed():
            return _retry(standing, record)
        case Paused():
            return pause(standing, record)
        case Completed() if standing.extras.compensation is not None:
            raise illegal(standing, record, "what is being undone was not completed")
        case Completed():
            return ended(standing, Status.COMPLETED, standing.error)
        case Failed():
            return ended(standing, Status.FAILED, record.error)
        case Cancelled():
            return ended(standing, Status.CANCELLED, standing.error)
        case Scheduled():
            return _schedule(standing, record)
        case CompensationStarted():
            return _compensate(standing, record)
        case PatchMarked():
            return standing._replace(records=standing.records + 1)
        case Resumed() | Restarted():
            raise illegal(standing, record, "it is not paused")
        case Released():
            raise illegal(standing, record, "it is not scheduled")
        case _:
            raise illegal(standing, record, "it was accepted already")


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
        case Finished():
            return Standing(END_OF[record.outcome], records=1)
        case _:
            raise illegal(None, record, "the first record accepts the invocation")


def _schedule(standing: Standing, record: Scheduled) -> Standing:
    if standing != Standing(Status.QUEUED, records=1):
        raise illegal(standing, record, "only what was accepted just now can be scheduled")
    return Standing(Status.SCHEDULED, records=2, delay_ms=record.delay_ms)


def _release(standing: Standing, record: Record) -> Standing:
    match record:
        case Released():
            return Standing(Status.QUEUED, records=standing.records + 1, extras=standing.extras)
        case Cancelled():
            return ended(standing, Status.CANCELLED, None)
        case _:
            raise illegal(standing, record, "its time has not come")


def _retry(standing: Standing, record: AttemptFailed) -> Standing:
    if record.attempt != standing.attempts + 1:
        raise illegal(standing, record, f"attempt {standing.attempts + 1} is next, not {record.attempt}")
    return standing._replace(
        status=Status.WAITING,
        records=standing.records + 1,
        attempts=record.attempt,
        retry_after_ms=record.retry_after_ms,
        error=record.error,
    )


def _receive(standing: Standing, record: SignalReceived) -> Standing:
    if record.message in standing.extras.signals:
        raise illegal(standing, record, "this message was received before")
    extras = replace(standing.extras, signals=standing.extras.signals | {record.message})
    return standing._replace(records=standing.records + 1, extras=extras)


def _compensate(standing: Standing, record: CompensationStarted) -> Standing:
    if standing.extras.compensation is not None:
        raise illegal(standing, record, "it is being undone already")
    if record.index != standing.steps:
        raise illegal(standing, record, f"its handler has ended at {standing.steps}, not at {record.index}")
    return Standing(
        Status.COMPENSATING,
        records=standing.records + 1,
        steps=standing.steps,
        error=record.error or standing.error,
        extras=replace(standing.extras, compensation=record),
    )
