"""Lane slots: long-lived tasks that take ready lanes, as many as the worker's concurrency.

Nothing is spawned per invocation. A slot whose handler waits for its next attempt lends its place to another one, so
that waiting costs no concurrency. Where slots are scarce, tenants take turns, and one that comes anew while others wait
gets a slot over the limit, of which there are a few.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .idle import unheard
from .turns import Turns

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

logger = logging.getLogger("keylane.worker")

Work = TypeVar("Work")

#: This part of the limit comes on top of it for tenants that find all slots taken and others waiting: else who asks for
#: one thing waits for as long as the handlers of somebody who asks for thousands.
NEWCOMERS_PART = 8
#: All slots together begin so many pieces of work in one turn of the loop: handlers that await nothing would keep it
#: from everybody else for as long as there is work.
BEGUN_AT_ONCE = 64


class Slots(Generic[Work]):
    """The slots of one worker.

    Args:
        limit: How many handlers run at once.
        turn: Does a piece of work, such as a few invocations of a lane; must not raise.
        tenant_of: Says whose a piece of work is: where slots are scarce, tenants take turns.
        tasks: Where the slots' tasks live.
    """

    def __init__(
        self, limit: int, turn: Callable[[Work], Awaitable[None]], tenant_of: Callable[[Work], str], tasks: TaskGroup
    ) -> None:
        self._limit = limit
        self._limit_for_newcomers = limit + max(limit // NEWCOMERS_PART, 1)
        self._turn = turn
        self._tasks = tasks
        self._ready: Turns[Work] = Turns(tenant_of)
        self._idle: list[asyncio.Future[Work]] = []
        self._slots = 0
        self._lent = 0
        self._lending = _Lending(self)
        #: What may still be begun in this turn of the loop; while it is nothing, slots rest though there is work.
        self._allowed = BEGUN_AT_ONCE
        #: Called whenever a slot has nothing more to do or lends its place; must not raise.
        self.on_rest: Callable[[], None] = unheard

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing runs or is ready: each slot is idle, or waits in a handler that has lent its place."""
        return not self._ready and self._slots == self._lent + len(self._idle)

    @property
    def waiting(self) -> int:
        """How many ready lanes wait for a slot."""
        return len(self._ready)

    @property
    def is_closing(self) -> bool:
        """Whether the slots' tasks are being cancelled by the worker, and not by what they run."""
        return self._tasks.cancel_scope.cancel_called

    async def absorb_cancel(self) -> None:
        """Take a cancellation away that work has left behind in the slot's task, so that the slot lives on."""
        task = asyncio.current_task()
        if task is None or not task.cancelling() or self.is_closing:
            return
        while task.uncancel():
            continue
        with suppress(asyncio.CancelledError):
            # One that was asked for and not delivered yet is delivered here.
            await asyncio.sleep(0)

    def give(self, work: Work) -> None:
        """Hand work to a slot; a lane is given again only after its turn has ended."""
        if self._allowed and (idle := self._pop_idle()) is not None:
            self._begin()
            idle.set_result(work)
            return
        is_crowded = self._ready and not self._idle
        if is_crowded and self._slots - self._lent < self._limit_for_newcomers and not self._ready.has(work):
            self._start(work)
            return
        self._ready.put(work)
        self._grow()

    def _pop_idle(self) -> asyncio.Future[Work] | None:
        while self._idle:
            idle = self._idle.pop()
            if not idle.done():
                return idle
        return None

    def _begin(self) -> None:
        """Count a piece of work that is begun; with the next turn of the loop the count begins anew."""
        if self._allowed == BEGUN_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._allowed -= 1

    def _go_on(self) -> None:
        self._allowed = BEGUN_AT_ONCE
        while self._allowed and self._ready and (idle := self._pop_idle()) is not None:
            self._begin()
            idle.set_result(self._ready.take())

    def _grow(self) -> None:
        if self._ready and not self._idle and self._slots - self._lent < self._limit:
            self._start()

    def _start(self, first: Work | None = None) -> None:
        """Start one more slot; what a late answer of the store makes ready once the worker is closed runs elsewhere."""
        if not self.is_closing:
            self._slots += 1
            self._tasks.start_soon(self._run, first)

    async def _run(self, first: Work | None = None) -> None:
        task = asyncio.current_task()
        try:
            work = first
            while True:
                await self._take(await self._next() if work is None else work)
                if task is not None and task.cancelling():
                    await self.absorb_cancel()
                # A slot too many ends after its turn, whichever it is: what runs in the others goes on.
                if self._slots - self._lent > self._limit:
                    return
                work = None
        finally:
            self._slots -= 1
            self.on_rest()

    async def _take(self, work: Work) -> None:
        """Do a piece of work; what it raises against its word must not cost the slot, nor the worker with it."""
        try:
            await self._turn(work)
        except asyncio.CancelledError:
            if self.is_closing:
                raise
        except Exception:
            logger.exception("a slot's work failed")

    async def _next(self) -> Work:
        if self._ready and self._allowed:
            self._begin()
            return self._ready.take()
        idle: asyncio.Future[Work] = asyncio.get_running_loop().create_future()
        self._idle.append(idle)
        self.on_rest()
        try:
            return await idle
        except BaseException:
            # Only a slot that ends is still in the list; looking for the others would cost more than their work.
            if idle in self._idle:
                self._idle.remove(idle)
            raise

    def lent(self) -> AbstractContextManager[None]:
        """Give this slot's place to another one while the handler waits."""
        return self._lending

    def lend(self) -> None:
        """Begin to."""
        self._lent += 1
        self._grow()
        self.on_rest()

    def take_back(self) -> None:
        """Take the place back at once; a slot too many ends after its turn."""
        self._lent -= 1


class _Lending(AbstractContextManager[None]):
    """The block of `Slots.lent`: one for all of a worker's waits, since a generator for each would cost more."""

    __slots__ = ("_slots",)

    def __init__(self, slots: Slots[Any]) -> None:
        self._slots = slots

    def __enter__(self) -> None:
        self._slots.lend()

    def __exit__(self, *raised: object) -> None:
        self._slots.take_back()
