"""Pauses: exclusive work of an object or of a whole type stops, and so does an invocation, until somebody resumes it.

A pause of objects is kept with the partition and looked at whenever a lane is about to run. What runs goes on up to its
next durable point or its end; there it is dropped from memory, and replayed from its journal when the pause is over.
Calls, messages, replies and due times are taken in meanwhile, and shared handlers read.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from ..journal import operations
from ..journal.batch import Commit
from ..journal.codec import Undecodable, pack
from ..journal.errors import CallError, Fenced, InternalError, InvocationPaused, StoreUnavailable, Suspended
from ..journal.lane_reading import read_runnable
from ..journal.outcomes import Succeeded, encode_outcome
from ..journal.pauses import ALL, PauseOrder, Pausing, read_pauses
from ..journal.records import PauseReason
from .endings import accept_in_order, pause
from .invocation import Hold, PauseWish
from .parking import park
from .partition import OwnershipLost, Phase
from .replies import answer, answered, refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..journal.batch import Operation
    from ..journal.outcomes import Outcome
    from ..journal.requests import Request, ResumeOrder
    from ..journal.store import Store
    from .errands import Errands
    from .invocation import Invocation
    from .lane import Lane
    from .partition import Partition

logger = logging.getLogger("keylane.intake")

_DONE: Final = encode_outcome(Succeeded(pack(True)))  # noqa: FBT003, the answer's value
_WAS_NOT: Final = encode_outcome(Succeeded(pack(False)))  # noqa: FBT003, likewise
#: How soon the lanes of a type that goes on are looked for again, while the store is away.
LOOK_AGAIN_SECONDS: Final = 0.2
#: What holds the head of a lane that does not run: it can be paused where it stands.
_STANDING_STILL: Final = (None, Hold.RETRYING, Hold.WAITING)


class Pauses:
    """Carries out orders to pause for one worker, and those to end a pause of objects.

    Args:
        store: The open store.
        errands: Does what takes more than one look.
    """

    def __init__(self, store: Store, errands: Errands) -> None:
        self._store = store
        self._errands = errands

    async def recall(self, partition: Partition) -> None:
        """Read the pauses of a partition that is being opened.

        Raises:
            StoreUnavailable: The store is away.
            WrongKeyType: A foreign key stands where they belong.
        """
        partition.paused = await read_pauses(self._store, partition.space)

    def take(self, partition: Partition, entry: bytes, request: Request) -> None:
        """Take an order to pause in.

        Raises:
            CallError: It can't be read.
            InvalidKey: It names no key.
        """
        try:
            order = PauseOrder.decode(request.payload or b"")
        except Undecodable as error:
            raise CallError(f"the order to pause can't be read: {error}") from error
        if order.invocation:
            partition.lane(request.key)
            # Its entry stays in the inbox until the pause is recorded, for another owner if need be.
            partition.serving.add(request.invocation)
            self._seek(partition, entry, request, order)
            return
        field = partition.lane(request.key).key_text if request.key else ALL
        if field in partition.paused:
            answer(partition, request.invocation, entry, request.client, _DONE)
            return
        pausing = partition.paused[field] = Pausing(order.by, order.reason, partition.now_ms())
        logger.warning("%s %s: paused by %s: %s", partition.space, field, order.by, order.reason)
        writes = [operations.pause(partition.space, field, pausing.encode())]
        undo = partial(partition.paused.pop, field, None)
        self._write(partition, entry, request, writes, undo)

    def end(self, partition: Partition, entry: bytes, request: Request, order: ResumeOrder) -> None:
        """Let the work of an object, or of all objects of the partition, go on.

        Raises:
            InvalidKey: The order names no key.
        """
        field = partition.lane(request.key).key_text if request.key else ALL
        pausing = partition.paused.pop(field, None)
        if pausing is None:
            answer(partition, request.invocation, entry, request.client, _WAS_NOT)
            return
        logger.warning("%s %s: resumed by %s: %s", partition.space, field, order.by, order.reason)
        undo = partial(partition.paused.__setitem__, field, pausing)
        self._write(partition, entry, request, [operations.end_pause(partition.space, field)], undo)
        for lane in [partition.lane(field)] if field else list(partition.lanes.values()):
            partition.host.ready(lane)
        if not field:
            self._errands.add(partial(self._bring_back, partition))

    async def _bring_back(self, partition: Partition) -> None:
        """Bring the lanes of a partition into memory that have left it, or never came, while its type was paused."""
        try:
            lanes = await read_runnable(self._store, partition.space)
        except StoreUnavailable:
            self._errands.add_later(LOOK_AGAIN_SECONDS, partial(self._bring_back, partition))
            return
        if partition.phase in (Phase.OPENING, Phase.OPEN):
            for key_text in lanes:
                if not partition.is_paused(key_text):
                    partition.lane(key_text)

    @staticmethod
    def _write(
        partition: Partition, entry: bytes, request: Request, writes: list[Operation], undo: Callable[[], object]
    ) -> None:
        writes += answered(partition, request.invocation, entry, request.client, _DONE)
        partition.remember(request.invocation)
        done = partial(_written, partition, entry, request, undo)
        partition.writer.commit(Commit(writes, done))

    def _seek(self, partition: Partition, entry: bytes, request: Request, order: PauseOrder) -> None:
        """Find the invocation that an order is about, in memory or in the store."""
        if partition.phase is Phase.LOST:
            return
        lane = partition.lane(request.key)
        again = partial(self._seek, partition, entry, request, order)
        if lane.error is not None or lane.refused:
            # What is known of the lane is about to change; the sweep asks again.
            partition.recall_again.append(again)
        elif not lane.loaded and lane.load_error is None:
            lane.when_loaded = (*lane.when_loaded, again)
        elif order.invocation in partition.open or not lane.loaded:
            self._found(partition, entry, request, order)
        else:
            partition.host.find_parked(lane, order.invocation, partial(self._found, partition, entry, request, order))

    def _found(self, partition: Partition, entry: bytes, request: Request, order: PauseOrder) -> None:
        if partition.phase is Phase.LOST:
            return
        invocation = partition.open.get(order.invocation)
        if invocation is None or invocation.ended:
            why = "it has ended, or it is to begin later, or its object can't be read"
            self._refuse(partition, entry, request, order, why)
        elif invocation.hold is Hold.PAUSED:
            self._answer(partition, entry, request)
        elif invocation.hold is Hold.RECALLING:
            invocation.on_recalled.append(partial(self._found, partition, entry, request, order))
        else:
            invocation.listeners.append(partial(self._told, partition, entry, request, order))
            self._pause(invocation, PauseWish(order.by, order.reason))

    def _pause(self, invocation: Invocation, wish: PauseWish) -> None:
        """Pause an invocation where it stands, or have it paused where it stands next."""
        lane = invocation.lane
        invocation.pause_wish = wish
        sleeper = lane.partition.sleepers.get(invocation.raw_id)
        if sleeper is not None and not sleeper.done():
            # Its run ends, and with that it is paused.
            sleeper.set_exception(Suspended())
        elif invocation is not lane.running and invocation.hold in _STANDING_STILL:
            invocation.hold = Hold.PAUSED
            self._errands.begin(partial(fulfil, lane, invocation))

    def _told(
        self, partition: Partition, entry: bytes, request: Request, order: PauseOrder,
        outcome: Outcome | BaseException,
    ) -> None:  # fmt: skip
        """Answer an order once the invocation is paused, or has ended first."""
        match outcome:
            case InvocationPaused():
                self._answer(partition, entry, request)
            case OwnershipLost():
                return
            case _:
                self._refuse(partition, entry, request, order, "it has ended before it came to a durable point")

    @staticmethod
    def _answer(partition: Partition, entry: bytes, request: Request) -> None:
        partition.serving.discard(request.invocation)
        answer(partition, request.invocation, entry, request.client, _DONE)

    @staticmethod
    def _refuse(partition: Partition, entry: bytes, request: Request, order: PauseOrder, why: str) -> None:
        partition.serving.discard(request.invocation)
        error = CallError(f"it can't be paused: {why}", invocation_id=partition.invocation_id(order.invocation))
        refuse(partition, request.invocation, entry, request.client, error)


async def fulfil(lane: Lane, invocation: Invocation) -> None:
    """Pause an invocation that does not run, as somebody wished.

    Where the store refuses it, the wish stays, for when the invocation is about to run.
    """
    wish, partition = invocation.pause_wish, lane.partition
    if wish is None or invocation.ended or lane.refused or not lane.loaded:
        return
    if invocation.standing is not None and invocation.standing.paused is not None:
        invocation.pause_wish = None
        return
    partition.waiting.pop(invocation.raw_id, None)
    if not invocation.accepted:
        accept_in_order(lane, invocation)
    try:
        await pause(lane, invocation, PauseReason.OPERATOR, wish.reason, None, by=wish.by)
    except (Fenced, OwnershipLost):
        return
    except Exception as error:  # noqa: BLE001, whatever the store has refused, the lane is read again
        logger.info("%s was not paused: %s", partition.invocation_id(invocation.raw_id), error)
        if not invocation.accepted:
            invocation.hold = None
        return
    invocation.pause_wish = None
    park(lane, invocation)


def _written(
    partition: Partition, entry: bytes, request: Request, undo: Callable[[], object], now_ms: int,
    error: BaseException | None,
) -> None:  # fmt: skip
    """Take back in memory what the store has refused, and say so."""
    if error is None:
        partition.saw_time(now_ms)
    elif not isinstance(error, Fenced | OwnershipLost):
        undo()
        failed = InternalError(f"the store refused to note it: {error}")
        refuse(partition, request.invocation, entry, request.client, failed)
