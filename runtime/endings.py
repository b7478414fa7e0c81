"""How the runtime writes what becomes of an invocation: accepted, ended, to be retried, parked, resumed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from ..journal import operations
from ..journal.batch import Operation
from ..journal.errors import (
    Fenced,
    Suspended,
)
from ..journal.mail import MAILED, Mail
from ..journal.operations import Delta, StateChange
from ..journal.outcomes import (
    Failure,
    IdempotencyEntry,
    Outcome,
    OutcomeMark,
    Rejected,
    Stopped,
    Succeeded,
    encode_outcome,
)
from ..journal.recall import DAY_MS
from ..journal.records import (
    Accepted,
    AttemptFailed,
    Cancelled,
    Completed,
    EndMark,
    Failed,
    Finished,
    Killed,
    PatchMarked,
    Paused,
    PauseReason,
    Record,
    Restarted,
    Resumed,
)
from ..journal.transitions import advance
from .checkpoints import taken_up, writes_kept_back
from .effect_shield import history_kept_ms
from .failures import failure_of
from .invocation import Hold, Invocation
from .lane import Lane
from .large_values import USUAL_BYTES, kept, kept_delta, kept_for, let_go, weigh
from .partition import OwnershipLost
from .replies import replies

if TYPE_CHECKING:
    from ..objects.virtual_object import VirtualObject
    from .partition import Partition

#: How many invocations of a lane one commit takes in: with six operations each it is no larger than a batch may be.
ACCEPTED_PER_COMMIT = 16


def record(invocation: Invocation, fact: Record) -> None:
    """Note a record in memory, which is also where an illegal one is found.

    Raises:
        IllegalTransition: It must not follow those before it.
    """
    invocation.standing = advance(invocation.standing, fact)
    if type(fact) in MAILED:
        if invocation.mail is None:
            invocation.mail = Mail()
        invocation.mail.note(fact, invocation.lane.partition.now_ms())


def acceptance(lane: Lane, invocation: Invocation) -> list[Operation]:
    """Return what goes ahead of a record: what takes the invocation in, unless that is done, and what was left out."""
    if invocation.accepted:
        return caught_up(lane, invocation)
    return [*_acceptance(lane, invocation), *back_in_order(lane, {invocation}), *caught_up(lane, invocation)]


def caught_up(lane: Lane, invocation: Invocation) -> list[Operation]:
    """Return what writes marks of patches, and results that were kept back."""
    if not invocation.unmarked and invocation.kept_back is None:
        return []
    return [*marks(lane, invocation), *taken_up(lane, invocation)]


def marks(lane: Lane, invocation: Invocation) -> list[Operation]:
    """Return what notes the changes of code that an invocation was told of since its last record."""
    names, invocation.unmarked = invocation.unmarked, ()
    invocation.patches = invocation.patches.union(names)
    facts = [PatchMarked(name) for name in names]
    for fact in facts:
        record(invocation, fact)
    return [operations.record(lane.partition.space, invocation.raw_id, fact) for fact in facts]


def back_in_order(lane: Lane, taken: Collection[Invocation]) -> list[Operation]:
    """Return what puts a lane's list into the order of the lane, where some were taken in ahead of one before them.

    One whose idempotency key was looked up meanwhile is taken in after those behind it, and so is whatever was not yet
    taken in when a scheduled one came to the lane's end. Another owner would let those go first.
    """
    seen = False
    behind: list[Invocation] = []
    for invocation in lane.queue:
        if invocation in taken:
            seen = True
        elif seen and is_listed(lane, invocation):
            behind.append(invocation)
    space = lane.partition.space
    if behind and lane.loaded:
        return [operations.restore_lane(space, lane.key_text, listed(lane), is_runnable=True)]
    # Of a lane that is not in memory yet the list may name others, ahead of all that is.
    return [write for each in behind for write in operations.go_last(space, lane.key_text, each.raw_id)]


def listed(lane: Lane) -> list[bytes]:
    """Return the list that a lane has once everything that is queued is written."""
    return [each.raw_id for each in lane.queue if is_listed(lane, each)]


def is_listed(lane: Lane, invocation: Invocation) -> bool:
    """Return whether a lane's list names an invocation of its queue once everything that is queued is written."""
    if not invocation.accepted or invocation.ended or has_left(invocation):
        return False
    return not (_is_paused(invocation) and skips(lane.partition.virtual_object))


def has_left(invocation: Invocation) -> bool:
    """Return whether it has left its lane, which it does in memory once that is durable."""
    return invocation.standing is not None and invocation.standing.is_aside


def _is_paused(invocation: Invocation) -> bool:
    # It leaves the queue once its pause is durable, and its list with the pause itself.
    return invocation.standing is not None and invocation.standing.paused is not None


def _acceptance(lane: Lane, invocation: Invocation) -> list[Operation]:
    invocation.accepted = True
    claim = invocation.idempotency
    payload = invocation.payload
    fact = Accepted(
        invocation.raw_id,
        invocation.handler.name,
        invocation.handler.version,
        lane.key_text,
        None if payload is None else kept_for(lane, invocation, payload),
        None if claim is None else claim.digest,
        invocation.client,
        invocation.caller,
        invocation.trace,
    )
    record(invocation, fact)
    writes = operations.accept(lane.partition.space, fact)
    writes.extend(claim_writes(lane.partition, invocation, "?"))
    if invocation.entry is not None:
        writes.append(operations.settle_entry(invocation.entry))
    if invocation.client is not None:
        writes.append(operations.announce(invocation.client, invocation.raw_id, None))
    return writes


def accept_in_order(lane: Lane, last: Invocation) -> None:
    """Take in everything of a lane up to an invocation, in the order of the lane, which is the order of intake."""
    writes: list[Operation] = []
    taken: list[Invocation] = []
    for invocation in lane.queue:
        if not invocation.ended and not invocation.accepted and invocation.hold is not Hold.RECALLING:
            writes.extend(_acceptance(lane, invocation))
            taken.append(invocation)
        if invocation is last:
            break
        if len(taken) >= ACCEPTED_PER_COMMIT:
            # One commit is applied in one call, however large it is.
            lane.accept(writes, taken, partial(_accepted, taken))
            writes, taken = [], []
    if writes:
        writes.extend(back_in_order(lane, set(taken)))
        if stands_still(lane.queue[0]):
            # What came in behind a head that waits can't run either: whoever takes over need not read the lane.
            writes.append(operations.stand_still(lane.key_text))
        lane.accept(writes, taken, partial(_accepted, taken))


def stands_still(head: Invocation) -> bool:
    """Return whether the first of a lane waits for something that brings the lane into memory by itself."""
    standing = head.standing
    if standing is None:
        return False
    if standing.paused is not None:
        is_for_the_next_owner = standing.paused.reason is PauseReason.NEEDS_VERSION
        return not is_for_the_next_owner and not skips(head.lane.partition.virtual_object)
    return head.stands_still


def _accepted(taken: list[Invocation], now_ms: int, error: BaseException | None) -> None:
    del now_ms
    if error is None:
        return
    for invocation in taken:
        take_out(invocation)


def take_out(invocation: Invocation) -> None:
    """Take back that an invocation was taken in: the store has refused it."""
    invocation.accepted = False
    invocation.standing = None
    invocation.patches, invocation.unmarked = frozenset(), ()
    invocation.mail = None
    invocation.attempts = 0
    invocation.records.clear()


async def _write(
    lane: Lane, invocation: Invocation, writes: list[Operation], delta: Delta, *, was_accepted: bool
) -> None:
    """Write what may take an invocation in as well, and wait until it is durable."""
    writes.extend(state_change(lane, invocation, delta))
    try:
        await lane.write(writes, delta or None, takes_in=not was_accepted)
    except Exception:
        if not was_accepted:
            take_out(invocation)
        raise


def claim_writes(partition: Partition, invocation: Invocation, mark: OutcomeMark) -> list[Operation]:
    claim = invocation.idempotency
    if claim is None:
        return []
    entry = IdempotencyEntry(invocation.raw_id, claim.fingerprint, claim.raw_digest, mark, claim.accepted_at_ms)
    writes = [operations.remember(partition.space, claim.day, claim.digest, entry)]
    # One that ends on a later day than it came may find the hash of its day gone, and would make it for ever.
    if claim.day not in partition.expiring_days or claim.day != partition.now_ms() // DAY_MS:
        partition.expiring_days.add(claim.day)
        kept_ms = partition.tombstone_retention_ms + DAY_MS
        writes.append(operations.forget_day(partition.space, claim.day, kept_ms))
    return writes


def finish(
    lane: Lane,
    invocation: Invocation,
    outcome: Succeeded | Rejected | Stopped,
    delta: Delta,
    more: Sequence[Operation] = (),
) -> None:
    """Queue the commit that ends an invocation; its answer follows when that is durable.

    Args:
        lane: The lane of its object.
        invocation: The invocation, as a rule the head of the lane.
        outcome: How it ends; one that was not taken in yet can't be stopped.
        delta: The state that is written with it.
        more: What else is written with it.
    """
    partition = lane.partition
    raw_id = invocation.raw_id
    mark = "c" if isinstance(outcome, Succeeded) else _mark(outcome)
    if delta:
        delta = kept_delta(lane, delta)
    is_short = not invocation.accepted
    # Of a short one nothing is left but its end.
    results = [] if is_short else caught_up(lane, invocation)
    if invocation.refers is not None and not is_short:
        let_go(lane, invocation)
    state = lane.finished(delta)
    claim = invocation.idempotency
    fact = _in_one_entry(lane, invocation, mark)
    writes = [operations.finish_short(partition.space, lane.key_text, fact, state)]
    if not is_short:
        if invocation.dues:
            # A wait was left open.
            invocation.dues = None
            writes.append(operations.unschedule(raw_id))
        last, kept_ms = _last_record(outcome), history_kept_ms(invocation)
        record(invocation, last)
        writes.extend(results)
        writes.extend(operations.finish_long(partition.space, lane.key_text, raw_id, last, kept_ms))
    is_usual = isinstance(outcome, Succeeded) and len(outcome.result) <= USUAL_BYTES
    encoded = encode_outcome(outcome if is_usual else _kept_outcome(lane, outcome))
    writes.append(operations.result(partition.space, raw_id, encoded, partition.result_retention_ms))
    if claim is not None:
        writes.extend(claim_writes(partition, invocation, "x" if mark == "k" else mark))
    if is_short and invocation.entry is not None:
        writes.append(operations.settle_entry(invocation.entry))
    if invocation.client is not None:
        writes.append(operations.announce(invocation.client, raw_id, encoded))
    if invocation.caller is not None or invocation.attached:
        # Another partition has no way to what this object keeps, so a reply carries the whole output.
        writes.extend(replies(lane, invocation, encoded if is_usual else encode_outcome(outcome)))
    writes.extend((*lane.history_trim(state), *more))
    lane.leave(invocation)
    if not is_short and lane.queue and stands_still(lane.queue[0]):
        writes.append(operations.stand_still(lane.key_text))
    invocation.ended = True
    done = partial(_finished, lane, invocation, outcome)
    lane.commit(writes, delta or None, done, takes_in=is_short, about=raw_id)


def _in_one_entry(lane: Lane, invocation: Invocation, mark: EndMark) -> Finished:
    """Return what the history of the object says of an invocation that has ended."""
    handler, claim = invocation.handler, invocation.idempotency
    name, version = (handler.name, handler.version) if cast("object", handler) is not None else invocation.asked_for
    payload = None if invocation.accepted else invocation.payload
    if payload is not None and len(payload) > USUAL_BYTES:
        payload = kept(lane, payload)
    return Finished(invocation.raw_id, name, version, payload, mark, None if claim is None else claim.digest)


def _mark(outcome: Rejected | Stopped) -> EndMark:
    if isinstance(outcome, Rejected):
        return "f"
    return "x" if outcome.how == "cancelled" else "k"


def _last_record(outcome: Succeeded | Rejected | Stopped) -> Record:
    match outcome:
        case Succeeded():
            return Completed()
        case Rejected():
            return Failed(outcome.failure)
        case Stopped(how="cancelled"):
            return Cancelled(outcome.by, outcome.reason)
        case Stopped():
            return Killed(outcome.by, outcome.reason)


def _kept_outcome(lane: Lane, outcome: Succeeded | Rejected | Stopped) -> Succeeded | Rejected | Stopped:
    """Return an outcome as it is written: with a reference in place of a large output."""
    match outcome:
        case Succeeded(result=packed):
            stored = kept(lane, packed)
            return outcome if stored is packed else Succeeded(stored, lane.key_text)
        case Rejected(failure=failure):
            weigh_failure(lane, failure)
            return outcome
        case Stopped():
            return outcome


def weigh_failure(lane: Lane, failure: Failure | None) -> None:
    """Note that the next commit carries the details of a failure."""
    if failure is not None and failure.details is not None:
        weigh(lane, failure.details)


def _finished(lane: Lane, invocation: Invocation, outcome: Outcome, now_ms: int, error: BaseException | None) -> None:
    del now_ms
    if error is None:
        lane.partition.meters.ended(invocation, outcome)
        if lane.partition.spans.is_on:
            lane.partition.spans.ended(invocation, outcome)
        lane.partition.ended(invocation, outcome)
    elif not isinstance(error, Fenced | OwnershipLost):
        lane.refused = (*lane.refused, invocation)


async def retry_later(lane: Lane, invocation: Invocation, error: BaseException, delay_seconds: float) -> None:
    """Record a failed attempt of the handler; the lane waits for the next one."""
    delay_ms = max(int(delay_seconds * 1000), 1)
    was_accepted = invocation.accepted
    delta = writes_kept_back(lane, invocation)
    writes = acceptance(lane, invocation)
    invocation.attempts += 1
    fact = AttemptFailed(invocation.attempts, failure_of(error), delay_ms)
    record(invocation, fact)
    raw_id = invocation.raw_id
    writes.append(operations.record(lane.partition.space, raw_id, fact))
    writes.append(operations.schedule(raw_id, delay_ms))
    await _write(lane, invocation, writes, delta, was_accepted=was_accepted)
    lane.partition.meters.retried(lane.partition, "handler")


async def pause(
    lane: Lane,
    invocation: Invocation,
    reason: PauseReason,
    detail: str,
    error: Failure | None,
    *,
    by: str | None = None,
) -> None:
    """Park an invocation until somebody resumes it, and tell its callers at once."""
    partition = lane.partition
    if invocation.ended:
        # Somebody has killed it meanwhile.
        raise Suspended
    raw_id = invocation.raw_id
    was_accepted = invocation.accepted
    delta = writes_kept_back(lane, invocation)
    writes = acceptance(lane, invocation)
    fact = Paused(reason, detail, error, by)
    record(invocation, fact)
    writes.append(operations.record(partition.space, raw_id, fact))
    weigh_failure(lane, error)
    if skips(partition.virtual_object):
        if invocation.refers:
            writes.append(operations.set_aside(partition.space, lane.key_text, raw_id))
        writes.append(operations.leave_lane(partition.space, lane.key_text, raw_id))
        writes.append(operations.unschedule(raw_id))
    elif has_left(invocation) or (lane.queue and lane.queue[0] is not invocation):
        # Its lane goes on, up to it.
        writes.append(operations.unschedule(raw_id))
    else:
        writes.extend(parking(lane, invocation, reason))
    if invocation.client is not None:
        writes.append(operations.announce(invocation.client, raw_id, None))
    await _write(lane, invocation, writes, delta, was_accepted=was_accepted)
    partition.meters.paused(partition, reason.value)


def parking(lane: Lane, invocation: Invocation, reason: PauseReason) -> list[Operation]:
    """Return what takes a parked invocation out of the way of those who look for work."""
    if reason is PauseReason.NEEDS_VERSION:
        # Whoever takes over next may have the code for it, and lets it go on.
        return [operations.unschedule(invocation.raw_id), operations.unpark(lane.key_text)]
    return operations.park(lane.key_text, invocation.raw_id)


def resumption(
    lane: Lane, invocation: Invocation, fact: Resumed | Restarted, *, is_aside: bool, running: Invocation | None
) -> list[Operation]:
    """Return what lets a parked invocation go on: at the head of its lane where it had left it, behind what runs."""
    record(invocation, fact)
    writes = [operations.record(lane.partition.space, invocation.raw_id, fact)]
    if isinstance(fact, Restarted):
        writes.append(operations.unschedule(invocation.raw_id))
    return [*writes, *rejoining(lane, invocation, is_aside=is_aside, running=running)]


def rejoining(lane: Lane, invocation: Invocation, *, is_aside: bool, running: Invocation | None) -> list[Operation]:
    """Return what makes a lane runnable again; one that had left it is put at its head, or behind what runs."""
    space = lane.partition.space
    if not is_aside:
        is_first = bool(lane.queue) and lane.queue[0] is invocation
        return [operations.unpark(lane.key_text)] if is_first else []
    writes = [operations.take_up(space, lane.key_text, invocation.raw_id)]
    if running is not None and not is_listed(lane, running):
        # It has left the list with its pause, which is on its way: put back, it would stay there for ever.
        running = None
    if running is not None:
        writes.append(operations.leave_lane(space, lane.key_text, running.raw_id))
    writes.append(operations.rejoin_lane(space, lane.key_text, invocation.raw_id))
    if running is not None:
        writes.append(operations.rejoin_lane(space, lane.key_text, running.raw_id))
    return writes


def skips(virtual_object: VirtualObject) -> bool:
    """Return whether a paused invocation of this type lets the others of its lane go on."""
    return virtual_object.on_paused == "skip"


def state_change(lane: Lane, invocation: Invocation, delta: Delta) -> list[Operation]:
    """Return what writes state at a durable point of an invocation that goes on."""
    if not delta:
        return []
    state: StateChange = lane.change(delta)
    space = lane.partition.space
    return [operations.change(space, lane.key_text, invocation.raw_id, state), *lane.history_trim(state)]
