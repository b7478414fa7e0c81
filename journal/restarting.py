"""What still counts of the records of an invocation that was begun again from an earlier command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from .command_records import (
    ApprovalAwaited,
    AwakeableMade,
    CallCompleted,
    CallStarted,
    Command,
    EffectStarted,
    TimerFired,
    TimerSet,
    WaitCompleted,
    WaitExpired,
    WaitStarted,
    WaitWithdrawn,
)
from .place import Place
from .records import Accepted, Record, Restarted, SignalReceived

_BEGINS: TypeAlias = CallStarted | TimerSet | WaitStarted | EffectStarted | ApprovalAwaited
_ENDS: TypeAlias = CallCompleted | TimerFired | WaitCompleted | WaitExpired | WaitWithdrawn


def what_counts(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records that a replay goes by: all of them, unless the invocation was begun again.

    Args:
        records: All that there are, oldest first.
    """
    if not any(isinstance(record, Restarted) for record in records):
        return records
    counting: list[Record] = []
    for record in records:
        if isinstance(record, Restarted):
            counting = kept(counting, record.kept)
        counting.append(record)
    return counting


def kept(records: Sequence[Record], count: int) -> list[Record]:
    """Return what stays of records when an invocation begins again behind so many commands of its main branch.

    Everything up to the last of those commands is one history, in whatever branch it happened. What had been waited for
    then and had not come is asked for again. What came from outside stays.
    """
    end = _end_of(records, count)
    ahead = [record for record in records[:end] if isinstance(record, Command)]
    open_waits = _open_waits(ahead)
    made = {record.index for record in ahead if isinstance(record, AwakeableMade)}
    return [
        record
        for position, record in enumerate(records)
        if (position < end and not _is_open(record, open_waits)) or _is_from_outside(record, made)
    ]


def dropped(records: Sequence[Record], count: int) -> list[Record]:
    """Return what does not stay."""
    staying = set(map(id, kept(records, count)))
    return [record for record in records if id(record) not in staying]


def _end_of(records: Sequence[Record], count: int) -> int:
    """Return the position behind the last record of the commands that stay."""
    for position in range(len(records) - 1, -1, -1):
        record = records[position]
        if isinstance(record, Command) and isinstance(record.index, int) and record.index < count:
            return position + 1
    return 0


def _open_waits(commands: Sequence[Command]) -> set[Place]:
    begun: set[Place] = set()
    for command in commands:
        if isinstance(command, _BEGINS):
            begun.add(command.index)
        elif isinstance(command, _ENDS):
            begun.discard(command.index)
    return begun


def _is_open(record: Record, open_waits: set[Place]) -> bool:
    return isinstance(record, _BEGINS) and record.index in open_waits


def _is_from_outside(record: Record, made: set[Place]) -> bool:
    """Return whether a record is no command's, and so stays wherever it stands."""
    if isinstance(record, SignalReceived) and record.awakeable is not None:
        return record.awakeable in made
    return not isinstance(record, Command)


def version_of(accepted: Accepted, records: Sequence[Record]) -> int:
    """Return the version of the handler that an invocation runs."""
    chosen = [each.version for each in records if isinstance(each, Restarted) and each.version is not None]
    return chosen[-1] if chosen else accepted.version
