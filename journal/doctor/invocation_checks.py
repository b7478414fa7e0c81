"""The progress invariant, one rule at a time: what keeps an open invocation from ever going on.

Each rule looks at facts that were read at one moment, so that work under way breaks none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..key import format_id
from ..records import PauseReason
from ..standing import Status
from .facts import InvocationFacts
from .findings import Finding, Kind, LaneRepair, NamedRepair, Place

#: A due time is written in the millisecond of its record; what is closer to now than this may just be firing.
FIRING_MS: Final = 250
#: An attempt without a due time that is as old as this is asked about: its owner knows whether it runs.
DOUBTFUL_MS: Final = 10_000

#: The statuses in which an invocation goes on in its lane, also where something else wakes it.
_IN_ITS_LANE: Final = frozenset({Status.QUEUED, Status.RUNNING, Status.WAITING, Status.COMPENSATING})

#: The statuses that only the holder of a lane comes to.
_BEGUN: Final = frozenset({Status.RUNNING, Status.WAITING, Status.COMPENSATING})

#: The place of one that has left its lane to others while it waits: its object names it.
ASIDE: Final = -2

Check = Callable[[InvocationFacts], Finding | None]


def place_of(facts: InvocationFacts) -> Place:
    """Return what a finding about an invocation is about."""
    space = facts.space
    invocation = format_id(space.type_name, space.number, facts.raw_id)
    return Place(space.type_name, space.number, facts.key, invocation)


def lane_repair(facts: InvocationFacts) -> LaneRepair | None:
    """Return the repair of its lane, None where nobody knows which that is."""
    if not facts.key:
        return None
    return LaneRepair(facts.space.type_name, facts.space.number, facts.key, (facts.raw_id,))


def needs_its_lane(facts: InvocationFacts) -> bool:
    """Return whether it goes on in its lane: it runs, is about to, or waits for what lets it go on there."""
    standing = facts.standing
    return standing is not None and standing.status in _IN_ITS_LANE


def records_can_be_read(facts: InvocationFacts) -> Finding | None:
    """What can't be read can't go on; once its owner has parked it, that is recorded and somebody has to act."""
    if facts.standing is not None and facts.problem is None:
        return None
    cause = f"its newest record can't be read: {facts.problem or 'there is none'}"
    remedy = "its owner parks it when it reads the lane; a release that knows the record can read it"
    return Finding(Kind.INVOCATION_UNREADABLE, place_of(facts), cause, remedy, lane_repair(facts))


def has_its_lane_place(facts: InvocationFacts) -> Finding | None:
    """Nobody looks at an open invocation that its lane does not name."""
    if facts.position >= 0 or facts.position == ASIDE or not needs_its_lane(facts):
        return None
    if facts.standing is not None and facts.standing.is_aside:
        cause = "it has left its lane while it waits, and its object does not name it: the next owner won't see it"
        remedy = "its owner names it beside its lane again"
    else:
        cause = f"it is open ({_status(facts)}) and its lane does not name it, so nobody will ever run it"
        remedy = "its owner enters it into its lane in the order of intake"
    return Finding(Kind.INVOCATION_WITHOUT_LANE, place_of(facts), cause, remedy, lane_repair(facts))


def its_lane_is_runnable(facts: InvocationFacts) -> Finding | None:
    """An owner that takes the partition over reads the runnable lanes, and no others.

    One that waits for a reply or for its time is brought into memory by that, and so is all behind it.
    """
    if facts.position != 0 or facts.is_lane_runnable or facts.due_ms is not None or not needs_its_lane(facts):
        return None
    if facts.standing is not None and facts.standing.waiting is not None:
        return None
    cause = f"it holds its lane ({_status(facts)}), which is not among the runnable ones: the next owner won't see it"
    remedy = "its owner enters the lane among the runnable ones"
    return Finding(Kind.LANE_NOT_RUNNABLE, place_of(facts), cause, remedy, lane_repair(facts))


def it_has_begun_as_the_first_of_its_lane(facts: InvocationFacts) -> Finding | None:
    """Only the holder of a lane goes on; another owner would let the one before it run in the middle of its work."""
    standing = facts.standing
    if facts.position <= 0 or standing is None or standing.status not in _BEGUN:
        return None
    cause = f"it has begun ({standing.status.value}), and {facts.position} stand before it in its lane's list"
    remedy = "its owner writes the lane's list in the order in which it has the lane"
    return Finding(Kind.LANE_OUT_OF_ORDER, place_of(facts), cause, remedy, lane_repair(facts))


def its_retry_is_due_some_day(facts: InvocationFacts) -> Finding | None:
    """Until its next attempt is due, an invocation that waits for it has a due time."""
    wanted_ms = facts.retry_due_ms
    if wanted_ms is None or facts.due_ms is not None or facts.now_ms > wanted_ms - FIRING_MS:
        return None
    left_seconds = (wanted_ms - facts.now_ms) / 1000
    cause = f"its next attempt is due in {left_seconds:.1f} s, and its due time is gone: nothing will wake it"
    remedy = "its owner enters the due time that its records name"
    return Finding(Kind.DUE_TIME_MISSING, place_of(facts), cause, remedy, lane_repair(facts))


def its_timer_is_due_some_day(facts: InvocationFacts) -> Finding | None:
    """What sleeps, or is to begin later, has a due time up to the commit that says that its time has come."""
    wanted_ms = facts.timer_due_ms
    if wanted_ms is None or facts.due_ms is not None:
        return None
    when = f"in {(wanted_ms - facts.now_ms) / 1000:.1f} s" if wanted_ms > facts.now_ms else "by now"
    is_scheduled = facts.standing is not None and facts.standing.status is Status.SCHEDULED
    what = "is to begin" if is_scheduled else "is to wake"
    cause = f"it {what} {when}, and its due time is gone: nothing will do it"
    remedy = "its owner enters the due time that its records name"
    # One that is scheduled has no place in its lane yet, and must not get one before its time.
    space = facts.space
    named = NamedRepair(space.type_name, space.number, "due", facts.raw_id)
    repair = named if is_scheduled else lane_repair(facts)
    return Finding(Kind.DUE_TIME_MISSING, place_of(facts), cause, remedy, repair)


def its_pause_has_an_owner(facts: InvocationFacts) -> Finding | None:
    """A parked invocation waits for a person, who has to have a name."""
    standing = facts.standing
    if standing is None or standing.paused is None or facts.in_charge:
        return None
    cause = f"it is paused ({standing.paused.reason.value}), and nobody is named as the owner of its type"
    remedy = "a worker that hosts the type writes its owner down when it starts"
    return Finding(Kind.PAUSED_WITHOUT_OWNER, place_of(facts), cause, remedy)


def has_no_result_yet(facts: InvocationFacts) -> Finding | None:
    """Result and end are written in one commit; a result of an open invocation tells its callers what is not so."""
    if not facts.has_result or _is_undecodable(facts):
        return None
    cause = f"it is open ({_status(facts)}), and callers find a result of it that its records do not know"
    remedy = "a person compares the two; deleting the result lets callers wait for the invocation's own end"
    return Finding(Kind.RESULT_OF_OPEN_INVOCATION, place_of(facts), cause, remedy)


def _is_undecodable(facts: InvocationFacts) -> bool:
    """Return whether the records are past reading, so that nothing can be said about an end that they may hold."""
    standing = facts.standing
    return standing is None or (standing.paused is not None and standing.paused.reason is PauseReason.UNDECODABLE)


def _status(facts: InvocationFacts) -> str:
    return "unreadable" if facts.standing is None else facts.standing.status.value


#: Every rule for an open invocation; another one is added by adding it here.
INVOCATION_CHECKS: Final[tuple[Check, ...]] = (
    records_can_be_read,
    has_its_lane_place,
    its_lane_is_runnable,
    it_has_begun_as_the_first_of_its_lane,
    its_retry_is_due_some_day,
    its_timer_is_due_some_day,
    its_pause_has_an_owner,
    has_no_result_yet,
)


def is_doubtful(facts: InvocationFacts) -> bool:
    """Return whether only its owner can say if it goes on: an attempt runs, or its due time was lost after it."""
    wanted_ms = facts.retry_due_ms
    return wanted_ms is not None and facts.due_ms is None and facts.now_ms > wanted_ms + DOUBTFUL_MS
