"""What a pause means in memory, once it is durable: the lane, and those who wait for the invocation."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..journal.errors import InvocationPaused
from .endings import has_left, skips
from .invocation import Hold

if TYPE_CHECKING:
    from .invocation import Invocation
    from .lane import Lane

logger = logging.getLogger("keylane.invocation")


def has_to_stop(lane: Lane, invocation: Invocation) -> bool:
    """Return whether a run has to end at its next durable point: a pause of its object or of itself is ordered."""
    return lane.is_paused or invocation.pause_wish is not None


def park(lane: Lane, invocation: Invocation) -> None:
    """Take note that an invocation is paused, and tell its callers."""
    partition = lane.partition
    standing = invocation.standing
    assert standing is not None
    assert standing.paused is not None
    invocation.hold = Hold.PAUSED
    logger.warning(
        "%s paused (%s): %s; %s has to look into it", partition.invocation_id(invocation.raw_id),
        standing.paused.reason, standing.paused.detail, partition.virtual_object.owner,
    )  # fmt: skip
    if skips(partition.virtual_object) and not has_left(invocation):
        if invocation in lane.queue:
            lane.queue.remove(invocation)
        partition.let_go(invocation)
    invocation.tell(paused_error(lane, invocation))
    # Those behind it may go on, where it does not hold them.
    partition.host.ready(lane)


def paused_error(lane: Lane, invocation: Invocation) -> InvocationPaused:
    """Return what the callers of a parked invocation get."""
    partition = lane.partition
    standing = invocation.standing
    assert standing is not None
    assert standing.paused is not None
    return InvocationPaused(
        standing.paused.reason.value,
        partition.virtual_object.owner,
        standing.paused.detail,
        invocation_id=partition.invocation_id(invocation.raw_id),
    )
