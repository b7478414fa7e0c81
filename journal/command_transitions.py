"""Where an invocation stands after a record of one of its handler's commands: settled, tried again, or waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from .command_records import (
    ApprovalAwaited,
    AwakeableMade,
    CallCompleted,
    CallStarted,
    CancelDelivered,
    CompensationSkipped,
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
from .place import MAIN, Place, index_in_branch, path_of
from .standing import Extras, OpenWait, Standing, Status, illegal

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


def _check_next(standing: Standing, record: _Next) -> None:
    place = record.index
    if isinstance(place, int):
        if place != standing.steps:
            raise illegal(standing, record, f"step {standing.steps} is next, not {place}")
    elif place[-1] < standing.extras.branches.get(place[:-1], 0):
        raise illegal(standing, record, f"command {place} is settled")
    if standing.waits:
        _check_branch_waits_not(standing, record)


def _check_branch_waits_not(standing: Standing, record: _Next) -> None:
    path = path_of(record.index)
    for wait in standing.waits:
        if path_of(wait.index) == path:
            raise illegal(standing, record, f"the end of {type(wait).__name__} is next")


def going_status(waits: tuple[OpenWait, ...], extras: Extras) -> Status:
    """Return the status of an invocation whose handler runs, or waits for something."""
    if extras.compensation is not None:
        return Status.COMPENSATING
    return Status.WAITING if waits else Status.RUNNING


def with_attempt_begun(standing: Standing) -> Standing:
    """Return where an invocation stands whose next attempt has begun, of which no record tells."""
    if standing.retry_after_ms is None:
        return standing
    return standing._replace(status=going_status(standing.waits, standing.extras), retry_after_ms=None)


def _past(extras: Extras, place: Place) -> Extras:
    """Return the extras once the command of a place in a branch is settled."""
    path = path_of(place)
    if path == MAIN:
        return extras
    attempts = {each: count for each, count in extras.step_attempts.items() if each != place}
    return replace(extras, branches={**extras.branches, path: index_in_branch(place) + 1}, step_attempts=attempts)


def settle(standing: Standing, record: _Settled) -> Standing:
    """Return where an invocation stands once the command that is next, or that was waited for, is settled."""
    _check_next(standing, record)
    place = record.index
    is_main = isinstance(place, int)
    extras = standing.extras if is_main else _past(standing.extras, place)
    waits = standing.waits
    return Standing(
        going_status(waits, extras),
        records=standing.records + 1,
        steps=standing.steps + 1 if is_main else standing.steps,
        attempts=standing.attempts,
        step_attempts=0 if is_main else standing.step_attempts,
        error=record.error if isinstance(record, StepFailed) else standing.error,
        waits=waits,
        extras=extras,
    )


def retry_step(standing: Standing, record: StepAttemptFailed) -> Standing:
    """Return where an invocation stands after a failed attempt of the step that is next."""
    _check_next(standing, record)
    place = record.index
    failed = standing.attempts_of(place)
    if record.attempt != failed + 1:
        raise illegal(standing, record, f"attempt {failed + 1} is next, not {record.attempt}")
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
        status=going_status(standing.waits, standing.extras),
        records=standing.records + 1,
        retry_after_ms=None,
        error=record.error,
        extras=replace(standing.extras, step_attempts=attempts),
    )


def call_model(standing: Standing, record: ModelCallBegun) -> Standing:
    """Return where an invocation stands as it calls a model; the place of the call is not settled by that."""
    _check_next(standing, record)
    status = going_status(standing.waits, standing.extras)
    return standing._replace(status=status, records=standing.records + 1, retry_after_ms=None)


def begin_wait(standing: Standing, record: OpenWait) -> Standing:
    """Return where an invocation stands as it begins to wait."""
    _check_next(standing, record)
    waits = (*standing.waits, record)
    extras = standing.extras
    if record.releases:
        if standing.waits or not isinstance(record.index, int):
            raise illegal(standing, record, "the lane is left only for what all of it waits for")
        extras = replace(extras, is_aside=True)
    if extras.tries_undo_again:
        extras = replace(extras, tries_undo_again=False)
    return Standing(
        going_status(waits, extras),
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


def end_wait(standing: Standing, record: _Ended) -> Standing:
    """Return where an invocation stands once what it waited for has come."""
    if not isinstance(standing.wait_at(record.index), _ENDS[type(record)]):
        raise illegal(standing, record, "nothing of this kind and index is waited for")
    return _without_wait(standing, record.index, standing.extras)


def withdraw(standing: Standing, record: WaitWithdrawn) -> Standing:
    """Return where an invocation stands once a branch that has lost waits no more."""
    place = record.index
    if standing.wait_at(place) is not None:
        return _without_wait(standing, place, standing.extras)
    settled = standing.steps if isinstance(place, int) else standing.extras.branches.get(path_of(place), 0)
    if index_in_branch(place) >= settled:
        raise illegal(standing, record, "nothing of this index is waited for")
    # What had come is given back.
    return standing._replace(records=standing.records + 1)


def _without_wait(standing: Standing, place: Place, extras: Extras) -> Standing:
    waits = tuple(wait for wait in standing.waits if wait.index != place)
    extras = _past(extras, place)
    goes_on = standing.status in _GOING and standing.retry_after_ms is None
    status = going_status(waits, extras) if goes_on else standing.status
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


def deliver_cancel(standing: Standing, record: CancelDelivered) -> Standing:
    """Return where an invocation stands once its handler was told, in place of a command or the end of a wait."""
    extras = standing.extras
    if extras.cancel is None or extras.is_cancel_delivered:
        raise illegal(standing, record, "nobody has asked for it, or it was told before")
    done = record.index if isinstance(record.index, int) else standing.steps
    told = replace(extras, is_cancel_delivered=True, told_within=done + 1)
    going = standing._replace(extras=told, retry_after_ms=None)
    if standing.wait_at(record.index) is not None:
        return _without_wait(going, record.index, told)
    return settle(going, record)
