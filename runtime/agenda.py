"""What falls due for the objects of a worker's partitions: effects to be looked into, proposals that expire.

The store decides what is due, by the partition's time. It is asked when a partition is acquired, which finds what an
owner before has left, and from then on when the earliest is due.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio

from ..journal import operations
from ..journal.agenda import FORGOTTEN, AgendaItem, AgendaKind
from ..journal.batch import Commit
from ..journal.codec import Undecodable
from ..journal.due import Due, read_all_due
from ..journal.errors import KeylaneError, StoreUnavailable
from ..journal.lane_reading import ask as ask_store
from .partition import Partition, Phase

if TYPE_CHECKING:
    from ..journal.store import Store
    from .at_hand import AtHand
    from .errands import Errands
    from .lane import Lane

logger = logging.getLogger("keylane.effects")

#: Does what is due about one item; the object's lane is loaded and its docket in memory until the first await.
DueHandler: TypeAlias = Callable[["Lane", AgendaItem], Awaitable[None]]

#: How many items of one partition are handed out at a time.
PAGE: Final = 64
#: How many are looked at to find the next one that is no record to be forgotten.
STOPS_LOOKED_AT: Final = 256
ASK_AGAIN_SECONDS: Final = 0.005
MORE_AGAIN_SECONDS: Final = 0.02
UNREADABLE_SECONDS: Final = 1.0
LONGEST_SLEEP_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Stop:
    """What virtual time has to know of an agenda.

    Args:
        due: Items that are due now.
        next_in_ms: How long until the next one is due, None where none will be.
    """

    due: tuple[bytes, ...]
    next_in_ms: int | None


class Agenda:
    """The agendas of one worker's partitions.

    Args:
        store: The open store.
        errands: Runs what is to be done.
        at_hand: Brings objects into memory.
    """

    def __init__(self, store: Store, errands: Errands, at_hand: AtHand) -> None:
        self._store = store
        self._errands = errands
        self._at_hand = at_hand
        #: What is done about the items of each kind.
        self.on_due: dict[AgendaKind, DueHandler] = {}
        #: How many items of a partition are due and dealt with elsewhere, such as calls under way, and whether one is.
        self.busy: Callable[[Partition], int] = _nobody
        self.is_busy: Callable[[Partition, AgendaItem], bool] = _nothing
        self._ask_times: dict[Partition, float] = {}
        #: Partitions that may have something on their agenda, with how often somebody has said so.
        self._in_use: dict[Partition, int] = {}
        self._in_hand: set[tuple[Partition, bytes]] = set()
        self._changed = asyncio.Event()

    def attend(self, partition: Partition) -> None:
        """Look at what an owner before has left in a partition that was acquired."""
        self.ask_in(partition, 0)

    def leave(self, partition: Partition) -> None:
        """Forget a partition whose tenure has ended."""
        self._ask_times.pop(partition, None)
        self._in_use.pop(partition, None)

    def ask_after(self, lane: Lane, delay_ms: int) -> None:
        """Ask in a while, counted from when what is being queued of a lane in this turn is durable.

        Args:
            lane: The lane.
            delay_ms: When something of it is due then.
        """
        self._note(lane.partition)
        asyncio.get_running_loop().call_soon(self._ask_once_written, lane, delay_ms)

    def _ask_once_written(self, lane: Lane, delay_ms: int) -> None:
        gate = lane.gate()
        if gate is None:
            self.ask_in(lane.partition, delay_ms)
        else:
            gate.add_done_callback(partial(self._is_written, lane.partition, delay_ms))

    def _is_written(self, partition: Partition, delay_ms: int, gate: asyncio.Future[None]) -> None:
        if not gate.cancelled():
            gate.exception()
        if partition.phase is not Phase.LOST:
            self.ask_in(partition, delay_ms)

    def _note(self, partition: Partition) -> None:
        self._in_use[partition] = self._in_use.get(partition, 0) + 1

    def ask_in(self, partition: Partition, delay_ms: int) -> None:
        """Ask the store about a partition in a while: something on its agenda is due then."""
        at = time.monotonic() + delay_ms / 1000
        self._note(partition)
        if at < self._ask_times.get(partition, math.inf):
            self._ask_times[partition] = at
            self._changed.set()

    def sweep(self) -> None:
        """Ask about all partitions that have anything on their agenda: clocks are not what they seem."""
        for partition in list(self._in_use):
            self.ask_in(partition, 0)

    async def run(self) -> None:
        """Ask when it is time, until cancelled."""
        while True:
            self._changed.clear()
            now = time.monotonic()
            ready = [partition for partition, at in self._ask_times.items() if at <= now]
            if ready:
                await self.ask(ready)
                continue
            pause = min(self._ask_times.values(), default=math.inf) - now
            with anyio.move_on_after(min(max(pause, 0.001), LONGEST_SLEEP_SECONDS)):
                await self._changed.wait()

    async def ask(self, partitions: list[Partition]) -> None:
        """Ask the store what is due, and have it done; never raises for what the store says."""
        for partition in partitions:
            self._ask_times.pop(partition, None)
        ours = [each for each in partitions if each.phase in (Phase.OPEN, Phase.OPENING)]
        if not ours:
            return
        limit, said = PAGE + max(map(self.busy, ours)), dict(self._in_use)
        try:
            answers = await read_all_due(self._store, [each.space for each in ours], limit, "agenda")
        except StoreUnavailable as error:
            logger.info("agendas are not readable now: %s", error)
            for partition in ours:
                self.ask_in(partition, int(UNREADABLE_SECONDS * 1000))
            return
        for partition, due in zip(ours, answers, strict=True):
            if isinstance(due, StoreUnavailable):
                logger.info("%s: its agenda is not readable now: %s", partition.space, due.why)
                self.ask_in(partition, int(UNREADABLE_SECONDS * 1000))
            elif isinstance(due, KeylaneError):
                logger.error("%s: its agenda can't be read: %s", partition.space, due)
                self.ask_in(partition, int(UNREADABLE_SECONDS * 1000))
            else:
                self._take(partition, due, limit, is_current=self._in_use.get(partition) == said.get(partition))

    def _take(self, partition: Partition, due: Due, limit: int, *, is_current: bool) -> None:
        partition.saw_time(due.now_ms)
        if partition.phase is Phase.LOST:
            return
        for data in due.ids:
            self._begin(partition, data)
        if not due.ids and due.next_in_ms is None:
            if is_current and partition not in self._ask_times:
                self._in_use.pop(partition, None)
        elif len(due.ids) == limit:
            self.ask_in(partition, int(MORE_AGAIN_SECONDS * 1000))
        elif due.next_in_ms is not None:
            self.ask_in(partition, due.next_in_ms + int(ASK_AGAIN_SECONDS * 1000))

    def _begin(self, partition: Partition, data: bytes) -> None:
        if (partition, data) in self._in_hand:
            return
        try:
            item = AgendaItem.decode(data)
        except Undecodable as error:
            logger.error("%s: an item of its agenda can't be read: %s", partition.space, error)  # noqa: TRY400, the error says it all
            writes = [operations.keep_undecodable(data), (b"o", partition.space.agenda, data)]
            partition.writer.commit(Commit(writes))
            return
        if self.is_busy(partition, item):
            return
        self._in_hand.add((partition, data))
        self._errands.begin(partial(self._do, partition, item, data))

    async def _do(self, partition: Partition, item: AgendaItem, data: bytes) -> None:
        try:
            handler = self.on_due.get(item.kind)
            found = None if handler is None else await self._at_hand.bring(partition, item.key)
            if found is not None and handler is not None:
                await handler(found[0], item)
        finally:
            self._in_hand.discard((partition, data))

    async def stops(self, partitions: list[Partition]) -> list[Stop]:
        """Return what is due of agendas and when the next item is, but for what is only to be forgotten.

        Args:
            partitions: The partitions.

        Raises:
            StoreUnavailable: The store is away.
        """
        partitions = [each for each in partitions if each in self._in_use]
        if not partitions:
            return []
        spaces = [each.space for each in partitions]
        answers = await read_all_due(self._store, spaces, STOPS_LOOKED_AT, "agenda")
        words = [("ZRANGE", space.agenda, 0, STOPS_LOOKED_AT, "WITHSCORES") for space in spaces]
        ranges = await ask_store(self._store, words, [space.agenda for space in spaces])
        stops: list[Stop] = []
        for answer, listed in zip(answers, ranges, strict=True):
            if not isinstance(answer, Due):
                continue
            counted = [(data, float(score)) for data, score in zip(listed[::2], listed[1::2], strict=True)]
            counted = [(data, score) for data, score in counted if _counts(data)]
            due = tuple(data for data, score in counted if score <= answer.now_ms)
            later = [score for _, score in counted if score > answer.now_ms]
            next_in_ms = int(min(later) - answer.now_ms) if later else None
            stops.append(Stop(due, next_in_ms))
        return stops


def _counts(data: bytes) -> bool:
    try:
        return AgendaItem.decode(data).kind not in FORGOTTEN
    except Undecodable:
        return False


def _nobody(partition: Partition) -> int:
    del partition
    return 0


def _nothing(partition: Partition, item: AgendaItem) -> bool:
    del partition, item
    return False
