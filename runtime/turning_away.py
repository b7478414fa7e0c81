"""What becomes of invocations that the store has no memory for: nothing of them was written, and nothing is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..journal.errors import StoreFull
    from .invocation import Invocation
    from .lane import Lane
    from .partition import Partition


def turn_away_lane(partition: Partition, lane: Lane, refused: tuple[Invocation, ...], error: StoreFull) -> None:
    """Keep in a lane what was taken in durably before its store was full, and turn everything else away.

    Args:
        partition: The lane's partition.
        lane: The lane, whose commits are all answered.
        refused: Invocations whose end was refused, in order.
        error: The refusal.
    """
    # What lets a day's keys expire may be among what was refused.
    partition.expiring_days.clear()
    everything = [*refused, *(each for each in lane.queue if not each.ended)]
    lane.queue[:] = [each for each in everything if each.accepted]
    for invocation in lane.queue:
        invocation.ended = False
    for invocation in everything:
        if not invocation.accepted:
            turn_away(partition, invocation, error)


def turn_away_waiting(partition: Partition, lane: Lane, error: StoreFull) -> None:
    """Turn away what waits in a lane and could not be taken in; what runs in it goes on."""
    partition.expiring_days.clear()
    waiting = [each for each in lane.queue if not each.accepted and not each.ended and each is not lane.running]
    for invocation in waiting:
        lane.queue.remove(invocation)
        turn_away(partition, invocation, error)


def turn_away(partition: Partition, invocation: Invocation, error: StoreFull) -> None:
    """Forget one invocation.

    A caller of this process is told so. A request is left where it lies, to be taken in later with what is behind it.
    """
    invocation.ended = True
    entry, invocation.entry = invocation.entry, None
    partition.ended(invocation, error)
    if entry is not None:
        partition.forget(invocation.raw_id)
        partition.inbox.put_back(entry)
    callbacks, invocation.on_recalled = invocation.on_recalled, []
    for callback in callbacks:
        callback()
