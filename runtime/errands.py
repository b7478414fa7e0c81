"""A few long-lived tasks for work that is rare and takes more than one look at the store."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from .idle import unheard

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

logger = logging.getLogger("keylane.worker")

#: How many errands run at once.
RUNNERS = 8

Errand = Callable[[], Awaitable[None]]


class Errands:
    """Runs what is added, in order, a few at a time."""

    def __init__(self) -> None:
        self._waiting: deque[Errand] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._under_way = 0
        self._tasks: TaskGroup
        #: Called whenever an errand has ended; must not raise.
        self.on_rest: Callable[[], None] = unheard

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is under way or waits for a runner."""
        return not self._waiting and not self._under_way

    @property
    def is_over(self) -> bool:
        """Whether nothing is begun any more, because the worker's tasks have been cancelled."""
        return self._tasks.cancel_scope.cancel_called

    def add(self, errand: Errand) -> None:
        """Have an errand run soon; what it raises is logged."""
        self._waiting.append(errand)
        if self._idle:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)

    def add_later(self, delay_seconds: float, errand: Errand) -> None:
        """Have an errand run after a while, which leaves its runner to others until then."""
        asyncio.get_running_loop().call_later(delay_seconds, self.add, errand)

    def begin(self, errand: Errand) -> None:
        """Run an errand that may have to wait for long in a task of its own: others must not wait behind it.

        Whoever begins one may outlive the worker, as the connections do; then nothing is begun any more.
        """
        if self.is_over:
            return
        self._under_way += 1
        self._tasks.start_soon(self._do_begun, errand)

    def start(self, tasks: TaskGroup) -> None:
        """Start the runners."""
        self._tasks = tasks
        for _ in range(RUNNERS):
            tasks.start_soon(self._run)

    async def _run(self) -> None:
        while True:
            while self._waiting:
                self._under_way += 1
                await self._do_begun(self._waiting.popleft())
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            await idle

    async def _do_begun(self, errand: Errand) -> None:
        try:
            await self._do(errand)
        finally:
            self._under_way -= 1
            self.on_rest()

    @staticmethod
    async def _do(errand: Errand) -> None:
        try:
            await errand()
        except Exception:
            logger.exception("an errand failed")
