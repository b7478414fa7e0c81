"""Lets parked invocations go on, and paused objects: from where they stand, or again from an earlier command."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..journal.codec import pack
from ..journal.errors import CallError
from ..journal.outcomes import Succeeded, encode_outcome
from ..journal.records import PauseReason
from ..journal.requests import RequestKind, RestartOrder, ResumeOrder
from ..journal.standing import Status
from .aside import resume_beside
from .endings import accept_in_order, has_left, resumption
from .invocation import Hold
from .replies import answer, refuse
from .restarting import go_on, why_it_can_not

if TYPE_CHECKING:
    from ..journal.requests import Request
    from .invocation import Invocation
    from .lane import Lane
    from .partition import Partition
    from .pausing import Pauses
    from .restarting import Order

_RESUMED = encode_outcome(Succeeded(pack(None)))
_BEGUN = frozenset({Status.RUNNING, Status.WAITING, Status.COMPENSATING})


class Resuming:
    """Takes orders in to let something go on.

    Args:
        pauses: Lets paused objects go on.
    """

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses

    def take(self, partition: Partition, entry: bytes, request: Request) -> None:
        """Let what an order names go on, once its object is in memory."""
        form = RestartOrder if request.kind is RequestKind.RESTART else ResumeOrder
        order = form.decode(request.payload or b"")
        if isinstance(order, ResumeOrder) and not order.invocation:
            self._pauses.end(partition, entry, request, order)
            return
        lane = partition.lane(request.key)
        if not lane.loaded:
            resume = partial(self._resume_loaded, partition, lane, entry, request, order)
            lane.when_loaded = (*lane.when_loaded, resume)
            return
        self._resume_loaded(partition, lane, entry, request, order)

    @staticmethod
    def _why_not(lane: Lane, invocation: Invocation | None, order: Order) -> str | None:
        """Return why an invocation can't be resumed, None when it can."""
        if lane.load_error is not None and not lane.loaded:
            return f"its object can't be read: {lane.load_error}"
        if invocation is None or invocation.hold is not Hold.PAUSED:
            return "it is not paused"
        paused = invocation.standing.paused if invocation.standing is not None else None
        if paused is None or paused.reason is PauseReason.UNDECODABLE:
            return "its records can't be read by this code, so there is nothing to go on from"
        return why_it_can_not(invocation, order)

    def _resume_loaded(self, partition: Partition, lane: Lane, entry: bytes, request: Request, order: Order) -> None:
        invocation = partition.open.get(order.invocation)
        if invocation is None and lane.loaded:
            done = partial(self._resume_found, partition, lane, entry, request, order)
            partition.host.find_parked(lane, order.invocation, done)
            return
        self._resume_found(partition, lane, entry, request, order)

    def _resume_found(self, partition: Partition, lane: Lane, entry: bytes, request: Request, order: Order) -> None:
        invocation = partition.open.get(order.invocation)
        why_not = self._why_not(lane, invocation, order)
        if invocation is None or why_not is not None:
            error = CallError(why_not or "", invocation_id=partition.invocation_id(order.invocation))
            refuse(partition, request.invocation, entry, request.client, error)
            return
        if has_left(invocation):
            lane.commit(resume_beside(lane, invocation, go_on(invocation, order)))
            invocation.entry = None
            answer(partition, request.invocation, entry, request.client, _RESUMED)
            return
        is_aside = partition.parked.pop(invocation.raw_id, None) is not None
        running = holder(lane)
        if is_aside and running is not None:
            # It goes on behind what has begun, also for an owner that comes after us.
            accept_in_order(lane, running)
        fact = go_on(invocation, order)
        lane.commit(resumption(lane, invocation, fact, is_aside=is_aside, running=running))
        invocation.attempts = 0
        invocation.entry = None
        if is_aside:
            lane.queue.insert(0 if running is None else 1, invocation)
        partition.release_hold(lane, invocation)
        answer(partition, request.invocation, entry, request.client, _RESUMED)


def holder(lane: Lane) -> Invocation | None:
    """Return the first of a lane if it has begun: it runs, or waits for an attempt, its time or another object."""
    first = lane.queue[0] if lane.queue else None
    if first is None or first is lane.running:
        return first
    has_begun = first.standing is not None and first.standing.status in _BEGUN
    return first if has_begun else None
