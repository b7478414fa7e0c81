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
reader who replays the records gets the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

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
from .errors import InternalError
from .outcomes import Failure
from .place import MAIN, Place, index_in_branch, path_of
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
    PauseReason,
    Record,
    Released,
    Restarted,
    Resumed,
    Scheduled,
    SignalReceived,
)
from .standing import END_OF, NO_EXTRAS, TERMINAL, Extras, OpenWait, Standing, Status

_Ended: TypeAlias = CallCompleted | TimerFired | WaitCompleted | WaitExpired
_Settled: TypeAlias = (
    StepCompleted
    | StepFailed
    | MessageSent
    | AwakeableMade
    | Proposed
    | WaitCompleted
    | CancelDelivered
    | CompensationSkipped
)
_Next: TypeAlias = _Settled | StepAttemptFailed | ModelCallBegun | OpenWait | WaitWithdrawn


#: Those from which a step's result leads on; each use of a member by its name costs a call.
_AT_WORK: Final = frozenset({Status.QUEUED, Status.RUNNING, Status.WAITING})
_RUNNING: Final = Status.RUNNING


class IllegalTransition(InternalError):
    """A record was about to be written, or was found, where it must not be."""

    code = "illegal-transition"


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
    if standing.status in TERMINAL:
        raise _illegal(standing, record, "a terminal status is final")
    match record:
        case Killed():
            return _end(standing, Status.KILLED, standing.error)
        case CancelRequested():
            return _request_cancel(standing, record)
        case SignalReceived():
            return _receive(standing, record)
        case _ if standing.status is Status.SCHEDULED:
            return _release(standing, record)
        case CallCompleted() | TimerFired() | WaitExpired():
            return _end_wait(standing, record)
        case WaitCompleted() if standing.wait_at(record.index) is not None:
            return _end_wait(standing, record)
        case _ if standing.status is Status.PAUSED:
            return _resume(standing, record)
        case _:
            return _go_on(standing, record)


def _is_plain(standing: Standing) -> bool:
    """Return whether an invocation is at work, waits for nothing, and has nothing that few have."""
    return standing.status in _AT_WORK and not standing.waits and standing.extras is NO_EXTRAS


def _go_on(standing: Standing, record: Record) -> Standing:
    """Return where an invocation stands after a record that its handler, or its owner for it, has made."""
    match record:
        case StepCompleted() | StepFailed() | MessageSent() | AwakeableMade() | Proposed() | WaitCompleted():
            return _settle(standing, record)
        case StepAttemptFailed():
            return _retry_step(standing, record)
        case ModelCallBegun():
            return _call_model(standing, record)
        case CallStarted() | TimerSet() | WaitStarted() | EffectStarted() | ApprovalAwaited():
            return _wait(standing, record)
        case WaitWithdrawn():
            return _withdraw(standing, record)
        case CancelDelivered():
            return _deliver_cancel(standing, record)
        case CompensationSkipped():
            raise _illegal(standing, record, "no undo of it is parked")
        case _:
            return _turn(standing, record)


def _turn(standing: Standing, record: Record) -> Standing:
    """Return where an invocation stands after a record that is about all of it, and no command of its handler."""
    match record:
        case AttemptFailed():
            return _retry(standing, record)
        case Paused():
            return _pause(standing, record)
        case Completed() if standing.extras.compensation is not None:
            raise _illegal(standing, record, "what is being undone was not completed")
        case Completed():
            return _end(standing, Status.COMPLETED, standing.error)
        case Failed():
            return _end(standing, Status.FAILED, record.error)
        case Cancelled():
            return _end(standing, Status.CANCELLED, standing.error)
        case Scheduled():
            return _schedule(standing, record)
        case CompensationStarted():
            return _compensate(standing, record)
        case PatchMarked():
            return standing._replace(records=standing.records + 1)
        case Resumed() | Restarted():
            raise _illegal(standing, record, "it is not paused")
        case Released():
            raise _illegal(standing, record, "it is not scheduled")
        case _:
            raise _illegal(standing, record, "it was accepted already")


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
            raise _illegal(None, record, "the first record accepts the invocation")


def _schedule(standing: Standing, record: Scheduled) -> Standing:
    if standing != Standing(Status.QUEUED, records=1):
        raise _illegal(standing, record, "only what was accepted just now can be scheduled")
    return Standing(Status.SCHEDULED, records=2, delay_ms=record.delay_ms)


def _release(standing: Standing, record: Record) -> Standing:
    match record:
        case Released():
            return Standing(Status.QUEUED, records=standing.records + 1, extras=standing.extras)
        case Cancelled():
            return _end(standing, Status.CANCELLED, None)
        case _:
            raise _illegal(standing, record, "its time has not come")


def _going(waits: tuple[OpenWait, ...], extras: Extras) -> Status:
    """Return the status of an invocation whose handler runs, or waits for something."""
    if extras.compensation is not None:
        return Status.COMPENSATING
    return Status.WAITING if waits else Status.RUNNING


def _check_next(standing: Standing, record: _Next) -> None:
    place = record.index
    if isinstance(place, int):
        if place != standing.steps:
            raise _illegal(standing, record, f"step {standing.steps} is next, not {place}")
    elif place[-1] < standing.extras.branches.get(place[:-1], 0):
        raise _illegal(standing, record, f"command {place} is settled")
    if standing.waits:
        _check_branch_waits_not(standing, record)


def _check_branch_waits_not(standing: Standing, record: _Next) -> None:
    path = path_of(record.index)
    for wait in standing.waits:
        if path_of(wait.index) == path:
            raise _illegal(standing, record, f"the end of {type(wait).__name__} is next")


def _past(extras: Extras, place: Place) -> Extras:
    """Return the extras once the command of a place in a branch is settled."""
    path = path_of(place)
    if path == MAIN:
        return extras
    attempts = {each: count for each, count in extras.step_attempts.items() if each != place}
    return replace(extras, branches={**extras.branches, path: index_in_branch(place) + 1}, step_attempts=attempts)


def _wait(standing: Standing, record: OpenWait) -> Standing:
    _check_next(standing, record)
    waits = (*standing.waits, record)
    extras = standing.extras
    if record.releases:
        if standing.waits or not isinstance(record.index, int):
            raise _illegal(standing, record, "the lane is left only for what all of it waits for")
        extras = replace(extras, is_aside=True)
    if extras.tries_undo_again:
        extras = replace(extras, tries_undo_again=False)
    return Standing(
        _going(waits, extras),
        records=standing.records + 1,
        steps=standing.steps,
        attempts=standing.attempts,
        step_attempts=0 if isinstance(record.index, int) else standing.step_attempts,
        error=standing.error,
        waits=waits,
        extras=extras,
    )


_GOING: Final = frozenset({Status.RUNNING, Status.WAITING, Status.COMPENSATING})

_ENDS: Final[Mapping[type, type | tuple[type, ...]]] = {
    CallCompleted: CallStarted,
    TimerFired: TimerSet,
    WaitCompleted: (WaitStarted, EffectStarted, ApprovalAwaited),
    WaitExpired: WaitStarted,
}


def _end_wait(standing: Standing, record: _Ended) -> Standing:
    if not isinstance(standing.wait_at(record.index), _ENDS[type(record)]):
        raise _illegal(standing, record, "nothing of this kind and index is waited for")
    return _without_wait(standing, record.index, standing.extras)


def _withdraw(standing: Standing, record: WaitWithdrawn) -> Standing:
    place = record.index
    if standing.wait_at(place) is not None:
        return _without_wait(standing, place, standing.extras)
    settled = standing.steps if isinstance(place, int) else standing.extras.branches.get(path_of(place), 0)
    if index_in_branch(place) >= settled:
        raise _illegal(standing, record, "nothing of this index is waited for")
    # What had come is given back.
    return standing._replace(records=standing.records + 1)


def _without_wait(standing: Standing, place: Place, extras: Extras) -> Standing:
    waits = tuple(wait for wait in standing.waits if wait.index != place)
    extras = _past(extras, place)
    goes_on = standing.status in _GOING and standing.retry_after_ms is None
    status = _going(waits, extras) if goes_on else standing.status
    if extras.is_aside and standing.status is Status.PAUSED:
        extras = replace(extras, returns=True)
    elif extras.is_aside:
        # It has a place in its lane again, and what runs there may not have ended.
        extras = replace(extras, is_aside=False)
        status = Status.QUEUED if extras.compensation is None else status
    return standing._replace(
        status=status,
        records=standing.records + 1,
        steps=standing.steps + 1 if isinstance(place, int) else standing.steps,
        step_attempts=0 if isinstance(place, int) else standing.step_attempts,
        waits=waits,
        extras=extras,
    )


def _settle(standing: Standing, record: _Settled) -> Standing:
    _check_next(standing, record)
    place = record.index
    is_main = isinstance(place, int)
    extras = standing.extras if is_main else _past(standing.extras, place)
    waits = standing.waits
    return Standing(
        _going(waits, extras),
        records=standing.records + 1,
        steps=standing.steps + 1 if is_main else standing.steps,
        attempts=standing.attempts,
        step_attempts=0 if is_main else standing.step_attempts,
        error=record.error if isinstance(record, StepFailed) else standing.error,
        waits=waits,
        extras=extras,
    )


def _retry_step(standing: Standing, record: StepAttemptFailed) -> Standing:
    _check_next(standing, record)
    place = record.index
    failed = standing.attempts_of(place)
    if record.attempt != failed + 1:
        raise _illegal(standing, record, f"attempt {failed + 1} is next, not {record.attempt}")
    if isinstance(place, int):
        return standing._replace(
            status=Status.WAITING if standing.extras.compensation is None else Status.COMPENSATING,
            records=standing.records + 1,
            step_attempts=record.attempt,
            retry_after_ms=record.retry_after_ms,
            error=record.error,
        )
    # Other branches may go on: how long each waits for its next attempt stands in its record alone.
    attempts = {**standing.extras.step_attempts, place: record.attempt}
    return standing._replace(
        status=_going(standing.waits, standing.extras),
        records=standing.records + 1,
        retry_after_ms=None,
        error=record.error,
        extras=replace(standing.extras, step_attempts=attempts),
    )


def _call_model(standing: Standing, record: ModelCallBegun) -> Standing:
    _check_next(standing, record)
    status = _going(standing.waits, standing.extras)
    return standing._replace(status=status, records=standing.records + 1, retry_after_ms=None)


def _retry(standing: Standing, record: AttemptFailed) -> Standing:
    if record.attempt != standing.attempts + 1:
        raise _illegal(standing, record, f"attempt {standing.attempts + 1} is next, not {record.attempt}")
    return standing._replace(
        status=Status.WAITING,
        records=standing.records + 1,
        attempts=record.attempt,
        retry_after_ms=record.retry_after_ms,
        error=record.error,
    )


def with_attempt_begun(standing: Standing) -> Standing:
    """Return where an invocation stands whose next attempt has begun, of which no record tells."""
    if standing.retry_after_ms is None:
        return standing
    return standing._replace(status=_going(standing.waits, standing.extras), retry_after_ms=None)


def _pause(standing: Standing, record: Paused) -> Standing:
    return standing._replace(
        status=Status.PAUSED,
        records=standing.records + 1,
        retry_after_ms=None,
        paused=record,
        error=record.error or standing.error,
    )


def _resume(standing: Standing, record: Record) -> Standing:
    match record:
        case Resumed():
            return _resumed(standing)
        case Restarted() if 0 <= record.kept <= standing.steps and standing.extras.compensation is None:
            kept = Extras(cancel=standing.extras.cancel, signals=standing.extras.signals)
            return _unparked(standing)._replace(steps=record.kept, waits=(), extras=kept)
        case Restarted():
            raise _illegal(standing, record, f"it has {standing.steps} commands, and nothing of it may be undone yet")
        case CompensationSkipped() if standing.extras.compensation is not None:
            going = _unparked(standing)
            given_up = replace(going.extras, has_failed_undo=True)
            return _settle(going._replace(records=standing.records, extras=given_up), record)
        case Cancelled():
            return _end(standing, Status.CANCELLED, standing.error)
        case _:
            raise _illegal(standing, record, "only a resumption leaves a pause")


def _resumed(standing: Standing) -> Standing:
    going, paused = _unparked(standing), standing.paused
    is_of_undo = paused is not None and paused.reason is PauseReason.COMPENSATION_FAILED
    if not is_of_undo or going.extras.compensation is None:
        return going
    # An undo that asks for an effect has more than one place in the journal when it is tried more than once.
    return going._replace(extras=replace(going.extras, tries_undo_again=True))


def _unparked(standing: Standing) -> Standing:
    # The retries are counted anew: whoever resumes says that another try is worth it.
    extras = standing.extras
    status = Status.QUEUED if extras.compensation is None else Status.COMPENSATING
    if extras.is_aside and extras.returns:
        extras = replace(extras, is_aside=False, returns=False)
    elif extras.is_aside:
        status = Status.WAITING
    return Standing(
        status,
        records=standing.records + 1,
        steps=standing.steps,
        error=standing.error,
        waits=standing.waits,
        extras=replace(extras, step_attempts={}) if extras.step_attempts else extras,
    )


def _request_cancel(standing: Standing, record: CancelRequested) -> Standing:
    if standing.extras.cancel is not None:
        raise _illegal(standing, record, "it was asked for before")
    # There is no next attempt: its handler runs up to where it stands, and cleans up.
    standing = with_attempt_begun(standing)
    # The handler of one that is parked has to run once more, to clean up.
    is_paused = standing.status is Status.PAUSED
    going = _unparked(standing) if is_paused else standing._replace(records=standing.records + 1)
    return going._replace(extras=replace(going.extras, cancel=record))


def _deliver_cancel(standing: Standing, record: CancelDelivered) -> Standing:
    extras = standing.extras
    if extras.cancel is None or extras.is_cancel_delivered:
        raise _illegal(standing, record, "nobody has asked for it, or it was told before")
    told = replace(extras, is_cancel_delivered=True)
    going = standing._replace(extras=told, retry_after_ms=None)
    if standing.wait_at(record.index) is not None:
        return _without_wait(going, record.index, told)
    return _settle(going, record)


def _receive(standing: Standing, record: SignalReceived) -> Standing:
    if record.message in standing.extras.signals:
        raise _illegal(standing, record, "this message was received before")
    extras = replace(standing.extras, signals=standing.extras.signals | {record.message})
    return standing._replace(records=standing.records + 1, extras=extras)


def _compensate(standing: Standing, record: CompensationStarted) -> Standing:
    if standing.extras.compensation is not None:
        raise _illegal(standing, record, "it is being undone already")
    if record.index != standing.steps:
        raise _illegal(standing, record, f"its handler has ended at {standing.steps}, not at {record.index}")
    return Standing(
        Status.COMPENSATING,
        records=standing.records + 1,
        steps=standing.steps,
        error=record.error or standing.error,
        extras=replace(standing.extras, compensation=record),
    )


def _end(standing: Standing, status: Status, error: Failure | None) -> Standing:
    return Standing(
        status,
        records=standing.records + 1,
        steps=standing.steps,
        attempts=standing.attempts,
        step_attempts=standing.step_attempts,
        error=error,
        extras=standing.extras,
    )


def _illegal(standing: Standing | None, record: Record, why: str) -> IllegalTransition:
    place = "at the beginning" if standing is None else f"after {standing.records} records, {standing.status}"
    return IllegalTransition(f"{type(record).__name__} {place}: {why}")
