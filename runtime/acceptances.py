"""The acceptances of calls that were taken in: committed with what they come to, else by themselves after a moment."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..journal.futures import resolve
from .door import DoorClosed
from .endings import accept_in_order
from .invocation import Hold
from .partition import Phase

if TYPE_CHECKING:
    from ..journal.outcomes import Outcome
    from .invocation import Invocation
    from .partition import Partition

#: An acceptance is committed by itself when the invocation has not ended after this long.
ACCEPT_AFTER_SECONDS: Final = 0.05


class Acceptances:
    """The acceptances of one worker's calls."""

    def __init__(self) -> None:
        #: What was taken in, in the order in which it came; what has ended or was accepted since leaves it later.
        self.unaccepted: deque[Invocation] = deque()

    def accept_late_ones(self, after_seconds: float = ACCEPT_AFTER_SECONDS) -> None:
        """Commit the acceptance of invocations that take longer than a moment."""
        limit = time.monotonic() - after_seconds
        unaccepted = self.unaccepted
        undecided: list[Invocation] = []
        while unaccepted:
            invocation = unaccepted[0]
            is_open = not (invocation.ended or invocation.accepted)
            if is_open and invocation.arrived_at > limit:
                break
            unaccepted.popleft()
            partition = invocation.lane.partition
            if not is_open or partition.phase is Phase.LOST:
                continue
            accept_in_order(invocation.lane, invocation)
            if not invocation.accepted:
                undecided.append(invocation)
        unaccepted.extendleft(reversed(undecided))

    def accept_now(self, partition: Partition, raw_id: bytes) -> asyncio.Future[None]:
        """Return a future that is done once the acceptance of an invocation, or its end, is durable.

        Its exception is `DoorClosed` where that is not known: only the store can tell what became of the call.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if partition.phase is Phase.LOST or partition.writer.lost is not None:
            # What was open is forgotten, whether or not it was durable, and nothing is written any more.
            future.set_exception(DoorClosed())
            return future
        invocation = partition.open.get(raw_id)
        if invocation is None:
            # It has left as its caller gave up. Of one that was refused there is nothing in the store.
            space = partition.space
            words = ("EXISTS", space.result(raw_id), space.invocation(raw_id))
            partition.store.submit(words, partial(_found, future))
            return future
        if invocation.hold is Hold.RECALLING:
            # What is known of its key decides whether it is taken in at all; its answer says so.
            invocation.on_recalled.append(partial(self._chain, partition, raw_id, future))
            return future
        if invocation.ended:
            # Its end is on the way; not every end is a commit of its lane, whose gate would tell of it.
            invocation.listeners.append(partial(_left, future))
            return future
        lane = invocation.lane
        accept_in_order(lane, invocation)
        gate = lane.gate()
        if gate is None:
            future.set_result(None)
        else:
            gate.add_done_callback(partial(_copy, future))
        return future

    def _chain(self, partition: Partition, raw_id: bytes, future: asyncio.Future[None]) -> None:
        self.accept_now(partition, raw_id).add_done_callback(partial(_copy, future))


def _found(future: asyncio.Future[None], reply: Any) -> None:
    """Tell whether the store has something of an invocation; without an answer that is not known."""
    resolve(future, None, None if isinstance(reply, int) and reply else DoorClosed())


def _left(future: asyncio.Future[None], outcome: Outcome | BaseException) -> None:
    """Tell whether the end of an invocation is durable: an error stands for one of which nothing is written."""
    resolve(future, None, DoorClosed() if isinstance(outcome, BaseException) else None)


def _copy(future: asyncio.Future[None], source: asyncio.Future[None]) -> None:
    if source.cancelled():
        return
    # Looked at in any case: an error that nobody has looked at would be logged as if it were a defect.
    error = source.exception()
    resolve(future, None, None if error is None else DoorClosed())
