"""Who waits for whom, as far as an owner sees it in its memory: the edges along which probes travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..journal.command_records import CallStarted
from ..journal.probes import Edge
from ..journal.standing import Status
from .invocation import Hold

if TYPE_CHECKING:
    from ..journal.messages import Caller
    from .invocation import Invocation
    from .lane import Lane
    from .partition import Partition


@dataclass(frozen=True, slots=True)
class Seen:
    """Where an edge leads.

    Args:
        invocation: The one that is waited for.
        following: What it waits for itself: with a call of its own, or behind the holder of its lane.
        may_be_refused: Whether nothing of it has run, so that the call can be refused still.
    """

    invocation: Invocation
    following: Edge
    may_be_refused: bool


def edge_of(invocation: Invocation) -> Edge | None:
    """Return the wait of an invocation that can go on by nothing else than the reply to one call.

    One with several open waits is none: whether one of them alone lets it go on is known to its code only. Nor is one
    that is paused, cancelled or waits for an attempt, which goes on by somebody or by itself; nor one whose call is not
    durable.
    """
    call = _only_wait(invocation)
    if not isinstance(call, CallStarted) or not any(each is call for each in reversed(invocation.records)):
        return None
    lane = invocation.lane
    return Edge(
        lane.partition.space.type_name, lane.key_text, invocation.handler.name, invocation.raw_id, call.index,
        call.type_name, call.partition, call.key, call.invocation,
    )  # fmt: skip


def _only_wait(invocation: Invocation) -> object:
    standing = invocation.standing
    if standing is None or invocation.ended or standing.status not in _WAITING or len(standing.waits) != 1:
        return None
    extras = standing.extras
    goes_on = standing.retry_after_ms is not None or (extras.cancel is not None and not extras.is_cancel_delivered)
    return standing.waits[0] if _stands_still(invocation) and not goes_on else None


def _stands_still(invocation: Invocation) -> bool:
    """Return whether nothing of a handler runs: it has left memory, or each of its branches waits."""
    conductor = invocation.conductor
    is_asleep = invocation.raw_id in invocation.lane.partition.sleepers
    return invocation.hold is Hold.WAITING or (is_asleep and (conductor is None or conductor.is_standing_still))


_WAITING: Final = frozenset({Status.WAITING, Status.COMPENSATING})


def holder_of(lane: Lane) -> Invocation | None:
    """Return the invocation that holds a lane of which all is known."""
    if not lane.loaded or lane.error is not None or lane.refused or not lane.queue or lane.queue[0].ended:
        return None
    standing = lane.queue[0].standing
    releases = standing is not None and any(wait.releases for wait in standing.waits)
    return None if releases else lane.queue[0]


def has_waiting_call(lane: Lane) -> bool:
    """Return whether another object waits for what waits in a lane, or for a holder that waits itself."""
    if lane.queue and lane.queue[0].attached and not lane.queue[0].ended:
        return True
    return any((each.caller is not None or each.attached) and not each.ended for each in lane.queue[1:])


def seen_at(partition: Partition, edge: Edge) -> Seen | None:
    """Return where an edge leads, None where that is no wait for another invocation, or the edge is none any more."""
    invocation = partition.open.get(edge.target)
    if invocation is None or invocation.ended or not _is_waited_for(invocation, edge):
        return None
    # Of one that others have attached to, only the waiting for it can be refused.
    own = edge_of(invocation)
    if own is not None:
        return Seen(invocation, own, may_be_refused=edge.is_attached)
    holder = holder_of(invocation.lane)
    following = None if holder is None or holder is invocation else edge_of(holder)
    if following is None or invocation not in invocation.lane.queue:
        return None
    return Seen(invocation, following, may_be_refused=edge.is_attached or not has_begun(invocation))


def _is_waited_for(invocation: Invocation, edge: Edge) -> bool:
    if edge.is_attached:
        return any(_is_of(each.caller, edge) for each in invocation.attached)
    return invocation.caller is not None and _is_of(invocation.caller, edge)


def _is_of(caller: Caller, edge: Edge) -> bool:
    return (caller.invocation, caller.index) == (edge.invocation, edge.place)


def has_begun(invocation: Invocation) -> bool:
    """Return whether anything of an invocation has run, or it is not decided yet whether anything is to."""
    is_busy = invocation.hold is not None or invocation.lane.running is invocation
    return is_busy or bool(invocation.records or invocation.attempts)
