"""Due times of a worker's partitions: what waits in memory, and when to ask the store what has fallen due.

The store decides what is due, by the partition's time; the clock here only says when asking is worth it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING

import anyio

from ..journal import operations
from ..journal.batch import Commit
from ..journal.due import Due, read_all_due
from ..journal.errors import KeylaneError, StoreUnavailable, Suspended
from .partition import Partition, Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..journal.store import Store

logger = logging.getLogger("keylane.timers")

#: How many due invocations one question hands out, to all partitions together that are asked at once.
DUE_AT_ONCE = 256
#: How many of a single one it hands out at least, however many are asked.
DUE_AT_LEAST = 16
#: Asked again this much later when the store says that it is not yet time.
ASK_AGAIN_SECONDS = 0.005
#: Where as much is due as one answer holds, the rest is asked for so soon, one partition after the other, and not
#: before what was handed out is mostly dealt with: very many that fall due at once must not keep anybody else waiting.
MORE_AGAIN_SECONDS = 0.02
#: No sleep is longer, so that the sweep's partitions are asked in time.
LONGEST_SLEEP_SECONDS = 60.0


class Timers:
    """The due times of one worker.

    Args:
        store: The open store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        # One moment for each partition, however many of its invocations wait; the store knows theirs.
        self._ask_times: dict[Partition, float] = {}
        self._changed = asyncio.Event()
        #: Partitions of which more is due than the last answer held.
        self._crowded: set[Partition] = set()
        #: How much the worker has to deal with before anything more should be handed out.
        self.backlog: Callable[[], int] = _nothing

    async def due(self, partition: Partition, raw_id: bytes, delay_ms: int) -> None:
        """Wait until an invocation is due.

        Raises:
            Suspended: The partition is being handed over; the due time stays in the store.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if partition.phase is not Phase.OPEN:
            raise Suspended
        self.call_when_due(partition, raw_id, delay_ms, partial(_wake, future))
        partition.sleepers[raw_id] = future
        try:
            await future
        finally:
            partition.sleepers.pop(raw_id, None)
            partition.waiting.pop(raw_id, None)

    def call_when_due(self, partition: Partition, raw_id: bytes, delay_ms: int, wake: Callable[[], None]) -> None:
        """Have something called once an invocation is due.

        Args:
            partition: Its partition.
            raw_id: Its id.
            delay_ms: A guess of how long that takes.
            wake: Called from the timers' task; must not raise.
        """
        partition.waiting[raw_id] = wake
        self._ask_at(partition, time.monotonic() + delay_ms / 1000)

    def ask_in(self, partition: Partition, delay_ms: int) -> None:
        """Ask the store about a partition in a while: something in it will be due then."""
        self._ask_at(partition, time.monotonic() + delay_ms / 1000)

    def sweep(self, partition: Partition) -> None:
        """Ask the store about a partition now: a due time may have been left by an owner before."""
        self._ask_at(partition, time.monotonic())

    def _ask_at(self, partition: Partition, at: float) -> None:
        if at < self._ask_times.get(partition, math.inf):
            self._ask_times[partition] = at
            self._changed.set()

    async def run(self) -> None:
        """Ask when it is time, until cancelled."""
        while True:
            self._changed.clear()
            now = time.monotonic()
            ready = self._pop(now)
            if ready:
                await self.ask(ready)
                continue
            pause = min(self._ask_times.values(), default=math.inf) - now
            with anyio.move_on_after(min(max(pause, 0.001), LONGEST_SLEEP_SECONDS)):
                await self._changed.wait()

    def _pop(self, now: float) -> list[Partition]:
        due = [partition for partition, at in self._ask_times.items() if at <= now]
        crowded = [partition for partition in due if partition in self._crowded]
        if crowded:
            due = [
                *(partition for partition in due if partition not in self._crowded),
                *self._next_crowded(crowded, now),
            ]
        for partition in due:
            del self._ask_times[partition]
        return [partition for partition in due if partition.phase in (Phase.OPEN, Phase.OPENING)]

    def _next_crowded(self, crowded: list[Partition], now: float) -> list[Partition]:
        """Return the one that has waited longest, or none while there is enough to deal with; the others wait on."""
        if self.backlog() < DUE_AT_ONCE:
            return [min(crowded, key=self._ask_times.__getitem__)]
        for partition in crowded:
            self._ask_times[partition] = now + ASK_AGAIN_SECONDS
        return []

    async def ask(self, partitions: list[Partition]) -> None:
        """Ask the store what is due, and wake it; never raises for what the store says."""
        # A wait that begins while the question is under way is not what the answer is about.
        asked_for = [dict(partition.waiting) for partition in partitions]
        limit = max(DUE_AT_ONCE // max(len(partitions), 1), DUE_AT_LEAST)
        try:
            answers = await read_all_due(self._store, [partition.space for partition in partitions], limit)
        except StoreUnavailable as error:
            logger.info("due times are not readable now: %s", error)
            for partition in partitions:
                self._ask_at(partition, time.monotonic() + 1.0)
            return
        for partition, waits, due in zip(partitions, asked_for, answers, strict=True):
            if isinstance(due, StoreUnavailable):
                logger.info("%s: due times are not readable now: %s", partition.space, due.why)
                self._ask_at(partition, time.monotonic() + 1.0)
            elif isinstance(due, KeylaneError):
                # The sweep asks again.
                logger.error("%s: what is due can't be read: %s", partition.space, due)
            else:
                self._take(partition, waits, due)
                self._ask_on(partition, due, limit)

    def _take(self, partition: Partition, asked_for: dict[bytes, Callable[[], None]], due: Due) -> None:
        partition.saw_time(due.now_ms)
        found: list[bytes] = []
        for raw_id in due.ids:
            if partition.waiting.get(raw_id) is not asked_for.get(raw_id):
                continue
            if raw_id in partition.waiting:
                self._fire(partition, raw_id)
            else:
                found.append(raw_id)
        if found:
            partition.host.find(partition, found)

    def _ask_on(self, partition: Partition, due: Due, limit: int) -> None:
        """Ask again when the next is due, and soon where there is more than the answer held."""
        self._crowded.discard(partition)
        if len(due.ids) == limit:
            self._crowded.add(partition)
            self._ask_at(partition, time.monotonic() + MORE_AGAIN_SECONDS)
        elif due.next_in_ms is not None:
            self._ask_at(partition, time.monotonic() + due.next_in_ms / 1000 + ASK_AGAIN_SECONDS)

    def _fire(self, partition: Partition, raw_id: bytes) -> None:
        wake = partition.waiting.pop(raw_id)
        partition.writer.commit(Commit([operations.unschedule(raw_id)]))
        wake()

    def suspend(self, partition: Partition) -> None:
        """End the waits of a partition that is about to be handed over."""
        self._ask_times.pop(partition, None)
        self._crowded.discard(partition)
        for future in list(partition.sleepers.values()):
            if not future.done():
                future.set_exception(Suspended())
        partition.waiting.clear()


def _nothing() -> int:
    return 0


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
