"""Invocations that leave their lane to others while they wait, and return to its head when their wait has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..journal import operations
from .due_times import entry_of
from .endings import accept_in_order, has_left, is_listed, record
from .invocation import Hold

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from ..journal.records import Restarted, Resumed
    from .invocation import Invocation
    from .lane import Lane


def leaving(lane: Lane, invocation: Invocation) -> list[Operation]:
    """Return what takes an invocation out of its lane; its object goes on naming it."""
    space = lane.partition.space
    return [
        operations.leave_lane(space, lane.key_text, invocation.raw_id),
        operations.set_aside(space, lane.key_text, invocation.raw_id),
    ]


def step_aside(lane: Lane, invocation: Invocation) -> None:
    """Let the others of a lane go on past an invocation that has left it durably, and whose run has ended."""
    if invocation in lane.queue:
        lane.queue.remove(invocation)
    if invocation not in lane.aside:
        lane.aside = (*lane.aside, invocation)
    if invocation.hold is None:
        invocation.hold = Hold.WAITING
    lane.partition.host.ready(lane)


def returning(lane: Lane, invocation: Invocation) -> list[Operation]:
    """Give an invocation its place at the head of its lane again: behind what has begun, and what returned before.

    Returns:
        What writes that down.
    """
    space, key_text, raw_id = lane.partition.space, lane.key_text, invocation.raw_id
    lane.aside = tuple(each for each in lane.aside if each is not invocation)
    lane.partition.parked.pop(raw_id, None)
    ahead: list[Invocation] = []
    if invocation not in lane.queue:
        for each in lane.queue:
            if not (each is lane.running or has_begun(each)):
                break
            ahead.append(each)
        if ahead:
            # What runs is in the list for an owner that comes after us, too.
            accept_in_order(lane, ahead[-1])
        lane.queue.insert(len(ahead), invocation)
    writes = [operations.take_up(space, key_text, raw_id)]
    ahead = [each for each in ahead if is_listed(lane, each)]
    writes.extend(operations.leave_lane(space, key_text, each.raw_id) for each in ahead)
    writes.append(operations.rejoin_lane(space, key_text, raw_id))
    writes.extend(operations.rejoin_lane(space, key_text, each.raw_id) for each in reversed(ahead))
    return writes


def has_begun(invocation: Invocation) -> bool:
    """Return whether anything of an invocation is recorded beside its acceptance, so that it may not be overtaken."""
    standing = invocation.standing
    return standing is not None and (standing.steps > 0 or bool(standing.waits) or standing.attempts > 0)


def resume_beside(lane: Lane, invocation: Invocation, fact: Resumed | Restarted) -> list[Operation]:
    """Let a paused invocation go on that has left its lane: it waits on, or returns if its wait is over.

    Returns:
        What writes that down.
    """
    partition = lane.partition
    record(invocation, fact)
    invocation.attempts = 0
    writes = [operations.record(partition.space, invocation.raw_id, fact)]
    if has_left(invocation):
        invocation.hold = Hold.WAITING
        partition.host.due_in(partition, max(invocation.due_ms - partition.now_ms(), 0))
        return [*writes, entry_of(partition, invocation)]
    writes.append(operations.unschedule(invocation.raw_id))
    writes.extend(returning(lane, invocation))
    partition.release_hold(lane, invocation)
    return writes
