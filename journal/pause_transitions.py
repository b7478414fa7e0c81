"""Where an invocation stands when it is paused, when it leaves its pause, and when somebody wants it cancelled."""

from __future__ import annotations

from dataclasses import replace

from .command_records import CompensationSkipped
from .command_transitions import settle, with_attempt_begun
from .records import Cancelled, CancelRequested, Paused, PauseReason, Record, Restarted, Resumed
from .standing import Extras, Standing, Status, ended, illegal


def pause(standing: Standing, record: Paused) -> Standing:
    """Return where an invocation stands that is parked."""
    return standing._replace(
        status=Status.PAUSED,
        records=standing.records + 1,
        retry_after_ms=None,
        paused=record,
        error=record.error or standing.error,
    )


def resume(standing: Standing, record: Record) -> Standing:
    """Return where an invocation stands after a record that leaves its pause."""
    match record:
        case Resumed():
            return _resumed(standing)
        case Restarted() if 0 <= record.kept <= standing.steps and standing.extras.compensation is None:
            return _unparked(standing)._replace(steps=record.kept, waits=(), extras=_kept(standing.extras, record.kept))
        case Restarted():
            raise illegal(standing, record, f"it has {standing.steps} commands, and nothing of it may be undone yet")
        case CompensationSkipped() if standing.extras.compensation is not None:
            going = _unparked(standing)
            given_up = replace(going.extras, has_failed_undo=True)
            return settle(going._replace(records=standing.records, extras=given_up), record)
        case Cancelled():
            return ended(standing, Status.CANCELLED, standing.error)
        case _:
            raise illegal(standing, record, "only a resumption leaves a pause")


def _kept(extras: Extras, count: int) -> Extras:
    """Return what stays when an invocation begins again: a cancel does, and that its handler was told of it then."""
    if not extras.is_cancel_delivered or count < extras.told_within:
        return Extras(cancel=extras.cancel, signals=extras.signals)
    told_within = extras.told_within
    return Extras(cancel=extras.cancel, is_cancel_delivered=True, told_within=told_within, signals=extras.signals)


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


def request_cancel(standing: Standing, record: CancelRequested) -> Standing:
    """Return where an invocation stands once somebody wants it cancelled."""
    if standing.extras.cancel is not None:
        raise illegal(standing, record, "it was asked for before")
    # There is no next attempt: its handler runs up to where it stands, and cleans up.
    standing = with_attempt_begun(standing)
    # The handler of one that is parked has to run once more, to clean up.
    is_paused = standing.status is Status.PAUSED
    going = _unparked(standing) if is_paused else standing._replace(records=standing.records + 1)
    return going._replace(extras=replace(going.extras, cancel=record))
