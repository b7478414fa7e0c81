"""Deletes the large values that nothing needs any more, an owner those of its partitions, a page at a time.

The index of a partition names each large value with the time at which it was last referred to. One that lies back by
more than the retention is needed only if the object's state holds it, or an open invocation does: then it is noted
anew. Whether that is so is decided here in one turn of the loop, against what the lane has queued; the deletion then
takes its place behind it, and is not done where the store knows of a later reference.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from ..journal import operations
from ..journal.batch import Commit, Operation
from ..journal.blobs import digests_in, digests_in_records, is_member, parts_of, unused_words
from ..journal.errors import KeylaneError, WrongKeyType
from ..journal.lane_reading import ask, ask_each, read_invocations
from .large_values import TOUCH_WEIGHT
from .partition import Partition, Phase

if TYPE_CHECKING:
    from ..journal.store import Store
    from .lane import Lane

logger = logging.getLogger("keylane.worker")

SWEEP_SECONDS: Final = 15.0
VALUES_PER_PAGE: Final = 16
#: Who has just read a reference gets so much time to read what it stands for.
GRACE_MS: Final = 60_000
#: What a deletion costs the store, in bytes of a value that would cost it as much.
DELETION_WEIGHT: Final = 65_536

Digests = dict[str, set[bytes]]


class BlobSweep:
    """The sweep of one worker.

    Args:
        store: The open store.
        partitions: Returns the partitions that the worker holds.
    """

    def __init__(self, store: Store, partitions: Callable[[], list[Partition]]) -> None:
        self._store = store
        self._partitions = partitions

    async def run(self) -> None:
        """Sweep from time to time, until cancelled."""
        while True:
            await anyio.sleep(SWEEP_SECONDS)
            try:
                await self.sweep()
            except KeylaneError as error:
                logger.info("large values can't be swept now: %s", error)
            except Exception:
                logger.exception("the sweep of large values failed")

    async def sweep(self) -> None:
        """Delete all that has become unused.

        Raises:
            StoreError: The store is away, or a foreign key stands where one of ours belongs.
        """
        partitions = [partition for partition in self._partitions() if partition.phase is Phase.OPEN]
        limits = [_unused_before_ms(partition) for partition in partitions]
        while partitions:
            words = [
                unused_words(partition.space, before_ms, VALUES_PER_PAGE)
                for partition, before_ms in zip(partitions, limits, strict=True)
            ]
            pages = await ask(self._store, words, [partition.space.blob_index for partition in partitions])
            again: list[tuple[Partition, int]] = []
            for partition, before_ms, members in zip(partitions, limits, pages, strict=True):
                is_done = await self._sweep_page(partition, before_ms, members)
                if is_done and len(members) == VALUES_PER_PAGE:
                    again.append((partition, before_ms))
            partitions, limits = [each for each, _ in again], [limit for _, limit in again]

    async def _sweep_page(self, partition: Partition, before_ms: int, members: Sequence[bytes]) -> bool:
        """Decide on a page of values; tell whether all of it was decided and is durable."""
        unused: Digests = {}
        strays = [member for member in members if not is_member(member)]
        for member in members:
            if member not in strays:
                key_text, digest = parts_of(member)
                unused.setdefault(key_text, set()).add(digest)
        lanes = [partition.lane(key_text) for key_text in unused]
        for lane in lanes:
            await _loaded(lane)
        aside = await self._set_aside(partition, unused)
        if partition.phase is not Phase.OPEN or not members:
            return False
        writes, weight = _decide(partition, lanes, unused, aside, before_ms)
        for member in strays:
            logger.error("%s: the index of large values names none by %r: taken out", partition.space, member)
            writes.append(operations.forget_entry(partition.space.blob_index, member))
        return await _written(partition, writes, weight)

    async def _set_aside(self, partition: Partition, unused: Digests) -> Digests:
        """Return what invocations refer to that are open outside of their lane, where no owner has them in memory.

        Where that can't be read, all of an object's values count: only those of this object have to wait then.
        """
        space, found = partition.space, Digests()
        sets = [space.set_aside(key_text) for key_text in unused]
        replies = await ask_each(self._store, [("SMEMBERS", each) for each in sets], sets)
        for (key_text, digests), ids in zip(unused.items(), replies, strict=True):
            try:
                if isinstance(ids, Exception):
                    raise ids
                refers = await read_invocations(self._store, space, list(ids))
            except WrongKeyType as error:
                logger.warning("%s: the large values of %s are not swept: %s", space, key_text, error)
                found[key_text] = digests
            else:
                found[key_text] = {digest for each in refers for digest in digests_in_records(each.records)}
        return found


def _unused_before_ms(partition: Partition) -> int:
    kept_ms = max(partition.history_retention_ms, partition.result_retention_ms)
    return partition.now_ms() - kept_ms - GRACE_MS


def _decide(
    partition: Partition, lanes: Sequence[Lane], unused: Digests, aside: Digests, before_ms: int
) -> tuple[list[Operation], int]:
    """Return what becomes of values, and its weight; what is being deleted counts as not stored from now on."""
    writes: list[Operation] = []
    weight = 0
    open_ones = _referred_to(partition)
    for lane in lanes:
        key_text, digests = lane.key_text, unused[lane.key_text]
        used = {*open_ones.get(key_text, ()), *aside.get(key_text, ())}
        used.update(digests_in(lane.queued.values()), digests_in(lane.durable.values()))
        for digest in digests:
            # What a lane needs that can't be read is not known, so nothing of it is deleted.
            if digest in used or not lane.loaded:
                writes.append(operations.touch_blob(partition.space, key_text, digest))
                weight += TOUCH_WEIGHT
                continue
            writes.extend(operations.collect_blob(partition.space, key_text, digest, before_ms))
            weight += DELETION_WEIGHT
            if lane.large is not None:
                lane.large.forget(digest)
    return writes, weight


def _referred_to(partition: Partition) -> Digests:
    """Return what open invocations refer to, by object."""
    found: Digests = {}
    for invocation in partition.open.values():
        if invocation.refers:
            found.setdefault(invocation.lane.key_text, set()).update(invocation.refers)
    return found


async def _written(partition: Partition, writes: list[Operation], weight: int) -> bool:
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    partition.writer.commit(Commit(writes, partial(_tell, future), weight=weight))
    return await future


async def _loaded(lane: Lane) -> None:
    if lane.loaded or lane.load_error is not None:
        return
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    lane.when_loaded = (*lane.when_loaded, partial(_tell, future, 0, None))
    await future


def _tell(future: asyncio.Future[bool], now_ms: int, error: BaseException | None) -> None:
    del now_ms
    if not future.done():
        future.set_result(error is None)
