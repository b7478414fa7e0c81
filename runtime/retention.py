"""Shrinks what is kept of objects that have been idle for the retention: one snapshot stays, or nothing.

The partition's index says which objects that may be. It is done in small pages with pauses between them, so that very
many that fall due at once take their time and disturb nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from ..journal import operations
from ..journal.batch import Commit
from ..journal.due import Due, read_all_due
from ..journal.errors import KeylaneError, StoreUnavailable, WrongKeyType
from ..journal.idle_reading import read_aside, read_last_writes, read_states
from ..journal.key import key_text as key_named
from ..journal.snapshots import FIRST_VERSION, ObjectState
from .endings import skips
from .partition import Phase

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from ..journal.store import Store
    from .lane import Lane
    from .partition import Partition

logger = logging.getLogger("keylane.retention")

#: How many objects of one partition are looked at in a turn.
PAGE: Final = 64
#: How many states are read at once: each may be large.
STATES_AT_ONCE: Final = 8
#: How many bytes of snapshots may be on their way at once.
BYTES_AT_ONCE: Final = 524_288
#: A pause is so many times as long as the turn before it took: what is in the way makes the next turn come later.
PAUSE_FACTOR: Final = 4.0
PAUSE_MIN_SECONDS: Final = 0.005
#: When an index that can't be read, or a page of which nothing could be done, is looked at again.
AGAIN_MS: Final = 1_000


class Retention:
    """The history of a worker's objects.

    Args:
        store: The open store.
        partitions: The partitions that the worker holds.
        sweep_seconds: How often it looks for what is due.
    """

    def __init__(self, store: Store, partitions: Callable[[], list[Partition]], *, sweep_seconds: float) -> None:
        self._store = store
        self._partitions = partitions
        self._sweep_seconds = sweep_seconds
        self._sweeping = asyncio.Lock()

    async def run(self) -> None:
        """Look for what is due, until cancelled."""
        while True:
            await anyio.sleep(self._sweep_seconds)
            try:
                await self.sweep()
            except StoreUnavailable as error:
                logger.info("histories are not readable now: %s", error)
            except Exception:
                logger.exception("histories can't be shrunk now")

    async def sweep(self) -> None:
        """Shrink what is due, page by page, until nothing is; of two who ask for it, the second one waits."""
        async with self._sweeping:
            while partitions := [each for each in self._partitions() if _is_due(each)]:
                await self._sweep(partitions)

    async def _sweep(self, partitions: list[Partition]) -> None:
        answers = await read_all_due(self._store, [each.space for each in partitions], PAGE, "histories")
        for partition, due in zip(partitions, answers, strict=True):
            await self._turn(partition, due)

    async def _turn(self, partition: Partition, due: Due | KeylaneError) -> None:
        if isinstance(due, KeylaneError):
            # A server that is away is no fault of the index, and told of elsewhere.
            level = logging.INFO if isinstance(due, StoreUnavailable) else logging.ERROR
            logger.log(level, "%s: the index of histories can't be read: %s", partition.space, due)
            partition.histories_due_ms = partition.now_ms() + AGAIN_MS
            return
        if not due.ids:
            # What is entered after this answer is due a whole retention after it, at the earliest.
            later = partition.history_retention_ms if due.next_in_ms is None else due.next_in_ms
            partition.histories_due_ms = due.now_ms + later
            return
        begun_at = time.monotonic()
        page = _Page(self._store, partition, due.now_ms)
        if not await page.shrink(page.named(due.ids)):
            partition.histories_due_ms = partition.now_ms() + AGAIN_MS
        await anyio.sleep(max((time.monotonic() - begun_at) * PAUSE_FACTOR, PAUSE_MIN_SECONDS))


def _is_due(partition: Partition) -> bool:
    return partition.phase is Phase.OPEN and partition.now_ms() >= partition.histories_due_ms


class _Page:
    """Some objects of a partition whose history may be due to be shrunk."""

    def __init__(self, store: Store, partition: Partition, now_ms: int) -> None:
        self._store = store
        self._partition = partition
        self._now_ms = now_ms
        self._unsettled: list[asyncio.Future[None]] = []
        self._aside: dict[str, list[bytes]] = {}
        self._bytes = 0
        self._writes = 0

    def named(self, entries: list[bytes]) -> list[str]:
        """Return the objects that entries of the index name; what names none stays in nobody's way."""
        named = {entry: key_named(entry) for entry in entries}
        strays = [entry for entry, key_text in named.items() if key_text is None]
        for entry in strays:
            logger.error("%s: the index of histories names no object by %r: taken out", self._partition.space, entry)
        if strays:
            index = self._partition.space.history
            self._commit([operations.forget_entry(index, entry) for entry in strays])
        return [key_text for key_text in named.values() if key_text is not None]

    async def shrink(self, key_texts: list[str]) -> bool:
        """Shrink those that are idle, and enter the others anew; return whether anything was written."""
        lanes = self._partition.lanes
        resident = {key_text: (lanes[key_text], lanes[key_text].commits) for key_text in key_texts if key_text in lanes}
        cold = {key_text for key_text in key_texts if key_text not in resident}
        # From here on each of them is either left alone by everybody else, or taken out by the lane that comes.
        self._partition.shrinking |= cold
        try:
            idle = await self._idle(key_texts)
            if skips(self._partition.virtual_object):
                await self._find_aside(idle)
            for key_text, (lane, commits) in resident.items():
                if key_text in idle:
                    self._shrink_lane(lane, commits)
            await self._shrink_cold([key_text for key_text in idle if key_text in cold])
            await self._settle()
        finally:
            self._partition.shrinking -= cold
        return self._writes > 0

    async def _idle(self, key_texts: list[str]) -> set[str]:
        """Return which objects have been idle for the retention, and have the others looked at again after theirs."""
        partition, retention_ms = self._partition, self._partition.history_retention_ms
        idle: set[str] = set()
        for key_text, last in zip(
            key_texts, await read_last_writes(self._store, partition.space, key_texts), strict=True
        ):
            if isinstance(last, KeylaneError):
                self._postpone(key_text, last)
            elif last + retention_ms > self._now_ms:
                self._enter(key_text, last + retention_ms - self._now_ms)
            else:
                idle.add(key_text)
        return idle

    async def _find_aside(self, idle: set[str]) -> None:
        """Find the parked invocations that nothing but the history of their objects leads to."""
        for key_text in list(idle):
            try:
                self._aside[key_text] = await read_aside(self._store, self._partition.space, key_text)
            except WrongKeyType as error:
                idle.discard(key_text)
                self._postpone(key_text, error)

    def _shrink_lane(self, lane: Lane, commits: int) -> None:
        """Shrink an object that is in memory, whose newest state may be written nowhere yet."""
        is_current = self._partition.lanes.get(lane.key_text) is lane and lane.loaded and not lane.refused
        if is_current and lane.is_settled and lane.commits == commits:
            self._note(lane.queued)
            lane.shrink(self._aside.get(lane.key_text, ()), self._settled())

    async def _shrink_cold(self, key_texts: list[str]) -> None:
        for start in range(0, len(key_texts), STATES_AT_ONCE):
            some = key_texts[start : start + STATES_AT_ONCE]
            for key_text, state in zip(some, await read_states(self._store, self._partition.space, some), strict=True):
                if key_text not in self._partition.shrinking:
                    # A call came for it meanwhile: what was read may be history.
                    continue
                if isinstance(state, ObjectState):
                    self._shrink_one(key_text, state)
                else:
                    self._postpone(key_text, state)
            if self._bytes > BYTES_AT_ONCE:
                await self._settle()

    def _shrink_one(self, key_text: str, state: ObjectState) -> None:
        self._note(state.values)
        aside = self._aside.get(key_text, ())
        version = None if state.version == FIRST_VERSION else state.version
        self._commit(operations.shrink(self._partition.space, key_text, state.values, aside, version))

    def _postpone(self, key_text: str, error: Exception) -> None:
        """Leave alone what can't be read, and look again after another retention."""
        logger.error("%s %s: its history is not shrunk: %s", self._partition.space, key_text, error)
        self._enter(key_text, self._partition.history_retention_ms)

    def _enter(self, key_text: str, delay_ms: int) -> None:
        self._commit([operations.index_history(self._partition.space, key_text, delay_ms)])

    def _commit(self, writes: list[Operation]) -> None:
        self._partition.writer.commit(Commit(writes, self._settled()))

    def _note(self, values: dict[str, bytes]) -> None:
        self._bytes += sum(map(len, values.values()))

    def _settled(self) -> Callable[[int, BaseException | None], None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsettled.append(future)
        self._writes += 1
        return partial(_settled, future)

    async def _settle(self) -> None:
        """Wait until all that was written is durable, or refused."""
        unsettled, self._unsettled, self._bytes = self._unsettled, [], 0
        for future in unsettled:
            await future


def _settled(future: asyncio.Future[None], now_ms: int, error: BaseException | None) -> None:
    del now_ms
    if error is not None:
        logger.info("a history was not shrunk: %s", error)
    if not future.done():
        future.set_result(None)
