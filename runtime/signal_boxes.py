"""Brings the early signals of objects into memory, when somebody waits for one or sends one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from ..journal.errors import KeylaneError, StoreUnavailable
from .partition import Phase
from .signal_box import read_box

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..journal.store import Store
    from .errands import Errands
    from .lane import Lane

READ_AGAIN_SECONDS: Final = 0.2


class SignalBoxes:
    """Reads signal boxes for one worker; most objects never need theirs.

    Args:
        store: The open store.
        errands: Runs what takes more than one look.
    """

    def __init__(self, store: Store, errands: Errands) -> None:
        self._store = store
        self._errands = errands
        self._waiting: dict[Lane, list[Callable[[KeylaneError | None], None]]] = {}

    def read(self, lane: Lane, done: Callable[[KeylaneError | None], None]) -> None:
        """Read an object's early signals, and say when they are in memory."""
        waiting = self._waiting.get(lane)
        if waiting is not None:
            waiting.append(done)
            return
        self._waiting[lane] = [done]
        lane.pins += 1
        self._errands.add(partial(self._read, lane))

    async def _read(self, lane: Lane) -> None:
        partition = lane.partition
        error: KeylaneError | None = None
        try:
            if partition.phase is not Phase.LOST:
                retention_ms = partition.history_retention_ms
                lane.box = await read_box(self._store, partition.space, lane.key_text, retention_ms)
        except StoreUnavailable:
            self._errands.add_later(READ_AGAIN_SECONDS, partial(self._read, lane))
            return
        except KeylaneError as refused:
            error = refused
        lane.pins -= 1
        for done in self._waiting.pop(lane, ()):
            done(error)

    async def wait(self, lane: Lane) -> None:
        """Read an object's early signals and wait until they are in memory, or the partition is lost.

        Raises:
            WrongKeyType: A foreign key stands where they belong.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.read(lane, partial(_tell, future))
        await future


def _tell(future: asyncio.Future[None], error: KeylaneError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
