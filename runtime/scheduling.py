"""Invocations that begin later: taken in, kept in the journal alone, and put into their lanes when they are due."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..journal import operations
from ..journal.batch import Commit
from ..journal.errors import Fenced, InternalError, StoreFull
from ..journal.records import Accepted
from .endings import claim_writes, stands_still
from .invocation import Hold
from .large_values import USUAL_BYTES
from .partition import OwnershipLost
from .replies import refuse
from .turning_away import turn_away

if TYPE_CHECKING:
    from .invocation import Invocation
    from .lane import Lane
    from .partition import Partition


def schedule(partition: Partition, key_text: str, invocation: Invocation, delay_ms: int) -> None:
    """Take an invocation in that is to begin later; nothing of it stays in memory."""
    raw_id, handler, claim = invocation.raw_id, invocation.handler, invocation.idempotency
    fact = Accepted(
        raw_id,
        handler.name,
        handler.version,
        key_text,
        invocation.payload,
        None if claim is None else claim.digest,
        invocation.client,
        trace=invocation.trace,
    )
    writes = operations.accept_later(partition.space, fact, delay_ms)
    writes.extend(claim_writes(partition, invocation, "?"))
    if invocation.entry is not None:
        writes.append(operations.settle_entry(invocation.entry))
    if invocation.client is not None:
        writes.append(operations.announce(invocation.client, raw_id, None))
    partition.open[raw_id] = invocation
    # Until it is durable nobody can do anything with it.
    invocation.hold = Hold.RECALLING
    weight = 0 if invocation.payload is None else len(invocation.payload)
    done = partial(_scheduled, partition, invocation, delay_ms)
    partition.writer.commit(Commit(writes, done, takes_in=True, weight=weight if weight > USUAL_BYTES else 0))


def _scheduled(
    partition: Partition, invocation: Invocation, delay_ms: int, now_ms: int, error: BaseException | None
) -> None:
    if isinstance(error, Fenced | OwnershipLost):
        return
    partition.open.pop(invocation.raw_id, None)
    claim = invocation.idempotency
    if claim is not None and partition.claims.get(claim.digest) is invocation:
        del partition.claims[claim.digest]
    if isinstance(error, StoreFull):
        turn_away(partition, invocation, error)
        return
    if error is not None:
        failed = InternalError(f"the store refused to schedule this invocation: {error}")
        refuse(partition, invocation.raw_id, invocation.entry, invocation.client, failed)
    else:
        partition.saw_time(now_ms)
        partition.remember(invocation.raw_id)
        partition.host.due_in(partition, delay_ms)
    callbacks, invocation.on_recalled = invocation.on_recalled, []
    for callback in callbacks:
        callback()


def release(lane: Lane, accepted: Accepted, invocation: Invocation) -> None:
    """Put a scheduled invocation into its lane, behind all that is there."""
    partition = lane.partition
    partition.note_released(accepted.invocation)
    writes = operations.release(partition.space, accepted)
    if lane.queue and stands_still(lane.queue[0]):
        writes.append(operations.stand_still(lane.key_text))
    lane.commit(writes, None, partial(_released, lane, invocation))
    partition.enter(lane, invocation)


def _released(lane: Lane, invocation: Invocation, now_ms: int, error: BaseException | None) -> None:
    del now_ms
    partition = lane.partition
    if error is None or isinstance(error, Fenced | OwnershipLost):
        return
    # It is due still, and the sweep finds it.
    partition.take_back_release(invocation.raw_id)
    partition.open.pop(invocation.raw_id, None)
    if invocation in lane.queue:
        lane.queue.remove(invocation)
