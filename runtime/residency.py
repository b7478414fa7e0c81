"""Which lanes stay in memory: as many as a worker may keep, and of the idle ones those that were used lately."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from .invocation import Hold

if TYPE_CHECKING:
    from .lane import Lane
    from .partition import Partition

#: How many lanes are looked at for each one that comes in: the work that one call may cost is bounded.
LOOKS_PER_ENTRY: Final = 8
#: And at each sweep, for those that were busy when others came in.
LOOKS_PER_SWEEP: Final = 5_000


class Residency:
    """The lanes that a worker has in memory, in a ring that a hand goes round: the clock algorithm.

    A lane that was used since the hand passed it gets another round, so a use costs no more than a flag. What is not at
    rest stays, above the limit too; there are never more of those than calls in hand.

    Args:
        limit: How many lanes may stay.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ring: deque[Lane] = deque()

    def __len__(self) -> int:
        """How many lanes are in memory."""
        return len(self._ring)

    def enter(self, lane: Lane) -> None:
        """Take a lane in, and let go of others where there are too many."""
        self._ring.append(lane)
        if len(self._ring) > self._limit:
            self._make_room(LOOKS_PER_ENTRY)

    def sweep(self) -> None:
        """Let go of what could not go when others came in."""
        if len(self._ring) > self._limit:
            self._make_room(LOOKS_PER_SWEEP)

    def lost(self, partition: Partition) -> None:
        """Forget the lanes of a partition whose tenure has ended."""
        self._ring = deque(lane for lane in self._ring if lane.partition is not partition)

    def _make_room(self, looks: int) -> None:
        ring, limit = self._ring, self._limit
        for _ in range(min(looks, len(ring))):
            if len(ring) <= limit:
                return
            lane = ring.popleft()
            partition = lane.partition
            if partition.lanes.get(lane.key_text) is not lane:
                continue
            if lane.was_used or not may_leave(lane):
                lane.was_used = False
                ring.append(lane)
            else:
                partition.evict(lane)


def may_leave(lane: Lane) -> bool:
    """Return whether everything that a lane is lies in the store, and nobody in this process waits for any of it."""
    if not lane.is_at_rest:
        return False
    if lane.head() is not None:
        return False
    return all(
        invocation.accepted and not invocation.listeners and invocation.hold in (None, Hold.PAUSED, Hold.WAITING)
        for invocation in (*lane.queue, *lane.aside)
    )
