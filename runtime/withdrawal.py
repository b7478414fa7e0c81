"""Takes invocations that have not begun out of their lane, and tells those who wait for them why."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..journal import operations
from ..journal.errors import Fenced, KeylaneError
from ..journal.outcomes import encode_outcome
from ..journal.records import Failed, Finished
from .endings import accept_in_order, record
from .failures import failure_of, refused
from .large_values import let_go
from .partition import OwnershipLost
from .replies import replies

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from .invocation import Invocation
    from .lane import Lane


def refuse_queued(lane: Lane, invocation: Invocation, error: KeylaneError) -> None:
    """Refuse an invocation that waits in its lane and of which nothing has run; those behind it keep their places.

    Args:
        lane: Its lane.
        invocation: One that neither holds the lane nor has an idempotency key.
        error: What those who wait for it are told.
    """
    if not invocation.accepted:
        # Then it has its place in the lane's list, where it is found again if the store refuses what follows.
        accept_in_order(lane, invocation)
    place = lane.queue.index(invocation)
    del lane.queue[place]
    invocation.ended = True
    done = partial(_refused, lane, invocation, error, place)
    lane.commit(_writes(lane, invocation, error), None, done, about=invocation.raw_id)


def _writes(lane: Lane, invocation: Invocation, error: KeylaneError) -> list[Operation]:
    partition, handler, raw_id = lane.partition, invocation.handler, invocation.raw_id
    if invocation.refers is not None:
        let_go(lane, invocation)
    last = Failed(failure_of(error))
    record(invocation, last)
    outcome = encode_outcome(refused(error))
    fact = Finished(raw_id, handler.name, handler.version, None, "f", None)
    state = lane.finished({})
    writes = [
        operations.finish_short(partition.space, lane.key_text, fact, state),
        *operations.finish_long(partition.space, lane.key_text, raw_id, last, partition.history_retention_ms),
        operations.result(partition.space, raw_id, outcome, partition.result_retention_ms),
        *lane.history_trim(state),
    ]
    if invocation.client is not None:
        writes.append(operations.announce(invocation.client, raw_id, outcome))
    return [*writes, *replies(lane, invocation, outcome)]


def _refused(
    lane: Lane, invocation: Invocation, error: KeylaneError, place: int, now_ms: int, problem: BaseException | None
) -> None:
    del now_ms
    if problem is None:
        lane.partition.ended(invocation, error)
    elif not isinstance(problem, Fenced | OwnershipLost):
        # The lane is read anew, and it waits in it as before.
        invocation.ended = False
        lane.queue.insert(min(place, len(lane.queue)), invocation)
