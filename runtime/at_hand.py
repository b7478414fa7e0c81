"""Has an object and its docket in memory, for work that begins with neither: what falls due, or comes back late."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from ..journal.batch import Commit
from ..journal.errors import KeylaneError
from .partition import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from .docket import Docket, Dockets
    from .lane import Lane
    from .partition import Partition

logger = logging.getLogger("keylane.effects")

#: How soon an object is looked at again that the store has refused something for, or that can't be read.
LOOK_AGAIN_SECONDS: Final = 0.05
UNREADABLE_SECONDS: Final = 1.0


class AtHand:
    """Brings objects into memory for one worker.

    Args:
        dockets: Reads the effects and proposals of objects.
    """

    def __init__(self, dockets: Dockets) -> None:
        self._dockets = dockets

    async def bring(self, partition: Partition, key_text: str) -> tuple[Lane, Docket] | None:
        """Return an object's lane, loaded, and its docket; None once the partition is lost.

        What is done with them has to be queued before the next await: then they may be others.
        """
        while partition.phase is not Phase.LOST:
            lane = partition.lane(key_text)
            if lane.loaded and lane.error is None and not lane.refused:
                docket = lane.docket
                if docket is not None:
                    return lane, docket
                await self._read(lane)
            elif lane.load_error is None and lane.error is None and not lane.refused:
                await _loaded(lane)
            else:
                # What is known of it is about to change.
                await anyio.sleep(LOOK_AGAIN_SECONDS if lane.load_error is None else UNREADABLE_SECONDS)
        return None

    async def _read(self, lane: Lane) -> None:
        try:
            await self._dockets.wait(lane)
        except KeylaneError as error:
            logger.error("%s %s: its effects can't be read: %s", lane.partition.space, lane.key_text, error)  # noqa: TRY400, the error says it all
            await anyio.sleep(UNREADABLE_SECONDS)


def is_ready(lane: Lane, again: Callable[[], None]) -> bool:
    """Return whether a lane is in memory as the store has it; else something is called when that may be so."""
    if lane.load_error is not None or lane.error is not None or lane.refused:
        # What is known of the lane is about to change, or can't be read yet; the sweep asks again.
        lane.partition.recall_again.append(again)
        return False
    if not lane.loaded:
        lane.when_loaded = (*lane.when_loaded, partial(_ask_again, lane, again))
        return False
    return True


def _ask_again(lane: Lane, again: Callable[[], None]) -> None:
    if lane.loaded:
        again()
    else:
        lane.partition.recall_again.append(again)


async def _loaded(lane: Lane) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    lane.when_loaded = (*lane.when_loaded, lambda: None if future.done() else future.set_result(None))
    await future


def behind_all(partition: Partition, again: Callable[[], None]) -> None:
    """Call something once all that a partition has queued by now is durable, or the partition is lost.

    Whoever read that there is no such thing looks once more then: what they read may be older than a commit that was on
    its way, or come from a server that was replaced and can't confirm a commit any more.
    """
    partition.writer.commit(Commit([], partial(_behind, partition, again)))


def _behind(partition: Partition, again: Callable[[], None], now_ms: int, error: BaseException | None) -> None:
    del now_ms
    if error is None or partition.phase is Phase.LOST:
        again()
    else:
        partition.recall_again.append(again)


async def written(lane: Lane) -> bool:
    """Wait until all that is queued of a lane is durable; return whether it is, or was refused."""
    gate = lane.gate()
    if gate is None:
        return True
    try:
        await gate
    except asyncio.CancelledError:
        raise
    except BaseException:  # noqa: BLE001, whatever the store or another owner said
        return False
    return True
