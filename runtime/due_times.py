"""When an invocation is due that waits for several moments: the store has the first of them, its owner all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..journal import operations
from ..journal.command_records import StepAttemptFailed, TimerSet, WaitStarted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..journal.batch import Operation
    from ..journal.place import Place
    from ..journal.records import Record
    from ..journal.standing import Standing
    from .invocation import Invocation
    from .partition import Partition


def delay_of(record: Record) -> int | None:
    """Return how long after its record something is due, in ms; None for what is never due."""
    match record:
        case TimerSet():
            return record.delay_ms
        case WaitStarted():
            return record.timeout_ms
        case StepAttemptFailed():
            return record.retry_after_ms
        case _:
            return None


def note_due(invocation: Invocation, record: Record, written_ms: int) -> bool:
    """Take note of when something is due whose record is durable; returns whether it is at all.

    Args:
        invocation: Its invocation.
        record: The record.
        written_ms: When it was written, in the partition's time.
    """
    delay_ms = delay_of(record)
    if delay_ms is None:
        return False
    if invocation.dues is None:
        invocation.dues = {}
    invocation.dues[record.index] = written_ms + delay_ms  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    return True


def forget_due(invocation: Invocation, place: Place) -> bool:
    """Take a moment out; returns whether there was one."""
    if invocation.dues is None or place not in invocation.dues:
        return False
    del invocation.dues[place]
    if not invocation.dues:
        invocation.dues = None
    return True


def awaits_attempt(invocation: Invocation) -> bool:
    """Return whether the store's due time is that of the next attempt: the run is over, and something of it has failed.

    What else is due by then is written down again by the run that the attempt begins.
    """
    standing = invocation.standing
    return invocation.conductor is None and standing is not None and standing.retry_after_ms is not None


def entry_of(partition: Partition, invocation: Invocation) -> Operation:
    """Return what makes the store's due time of an invocation that of the first of its moments."""
    if not invocation.dues:
        return operations.unschedule(invocation.raw_id)
    return operations.schedule(invocation.raw_id, max(invocation.due_ms - partition.now_ms(), 0))


def dues_of(standing: Standing, records: Iterable[Record], written_ms: Mapping[Place, int]) -> dict[Place, int] | None:
    """Return the moments of an invocation that is read from the store.

    Args:
        standing: Where it stands.
        records: Its records.
        written_ms: When the newest record of each place was written that something is due after.
    """
    dues: dict[Place, int] = {}
    for wait in standing.waits:
        delay_ms = delay_of(wait)
        if delay_ms is not None:
            dues[wait.index] = written_ms[wait.index] + delay_ms
    tried_again = standing.extras.step_attempts
    for record in records:
        if isinstance(record, StepAttemptFailed) and record.index in tried_again:
            dues[record.index] = written_ms[record.index] + record.retry_after_ms
    return dues or None
