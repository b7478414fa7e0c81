"""Time in tests: it jumps to whatever is due next while everything waits, and passes when a test says so.

The clock of the namespace is put forward (`journal/clock.py`), so that timers, retries, deadlines and retention follow,
whichever process looks at them. Leases and what callers wait for are measured by real clocks.
"""

from __future__ import annotations

import contextlib
import logging
import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import anyio

from ..journal.clock import shift_clock, shift_ms
from ..journal.errors import StoreUnavailable
from .idle import StillRunning

if TYPE_CHECKING:
    from .client import Client
    from .worker import Worker

logger = logging.getLogger("keylane.testing")

#: On its way to a moment the clock stops wherever something is due, but not without end.
STOPS_MAX: Final = 10_000
#: How long handlers that run may take before time passes all the same, by the real clock.
PATIENCE_SECONDS: Final = 1.0
#: After so long, who waits for an answer is told that no passing of time will bring it.
HINT_SECONDS: Final = 2.0
#: How soon the clock tries again to jump where the store was away.
AGAIN_SECONDS: Final = 0.05


class NotSettled(AssertionError):
    """Something is still running or due after as long as a test wanted to wait."""


class Subject:
    """Whose time it is.

    Args:
        worker: The only worker of the namespace; another one may take its place.
        client: The client through which tests ask.
    """

    def __init__(self, worker: Worker, client: Client) -> None:
        self.worker = worker
        self.client = client
        self._is_replaced = anyio.Event()
        self._listen()

    def _listen(self) -> None:
        self.worker.idle.listen()
        self.client.answers.on_wait = self.worker.idle.rested

    def replace(self, worker: Worker) -> None:
        """Go on with another worker; whoever waits for the one before looks at this one."""
        former, self.worker = self.worker, worker
        self._listen()
        former.idle.rested()
        is_replaced, self._is_replaced = self._is_replaced, anyio.Event()
        is_replaced.set()

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for an answer."""
        if self.client.answers.is_awaited:
            return True
        return any(
            invocation.listeners for partition in self.worker.partitions for invocation in partition.open.values()
        )

    async def idle(self, patience_seconds: float = math.inf) -> int | None:
        """Wait until nothing happens before time passes; return how long until something is due, in milliseconds.

        Raises:
            StoreUnavailable: The store is away.
            StillRunning: Code of users runs for longer than patience lasts.
        """
        while True:
            worker = self.worker
            if worker.is_dead:
                await self._is_replaced.wait()
                continue
            try:
                return await worker.idle.reached(self.client.answers.look_at_all, patience_seconds)
            except StoreUnavailable:
                if not worker.is_dead:
                    raise

    async def changed(self, worker: Worker, rests: int) -> None:
        """Wait until a worker has come to rest once more, or another one has taken its place."""
        with anyio.move_on_after(HINT_SECONDS):
            await worker.idle.changed_since(rests)
        if worker.idle.rests == rests:
            if self.is_awaited and worker.idle.is_at_rest:
                logger.warning("a test waits for an answer, and nothing is due: somebody has to do something")
            await worker.idle.changed_since(rests)
        if worker.is_dead and worker is self.worker:
            await self._is_replaced.wait()


class VirtualTime:
    """The clock of a namespace that one worker has to itself.

    Args:
        subject: Whose time it is.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._moving = anyio.Lock()

    @property
    def now(self) -> datetime:
        """The time that handlers see."""
        partitions = self._subject.worker.partitions
        now_ms = max((each.now_ms() for each in partitions), default=None)
        return datetime.now(UTC) if now_ms is None else datetime.fromtimestamp(now_ms / 1000, tz=UTC)

    async def run(self) -> None:
        """Jump to what is due next whenever everything waits and somebody waits for an answer, until cancelled."""
        while True:
            worker = self._subject.worker
            rests = worker.idle.rests
            try:
                has_jumped = self._subject.is_awaited and await self._jumped()
            except StoreUnavailable as error:
                # That it is there again is nothing that a worker at rest would tell.
                logger.info("the clock stands still while the store is away: %s", error)
                await anyio.sleep(AGAIN_SECONDS)
                continue
            if not has_jumped:
                await self._subject.changed(worker, rests)

    async def _jumped(self) -> bool:
        """Jump if there is anything to jump to and somebody still waits for it; return whether it was done.

        Raises:
            StoreUnavailable: The store is away.
        """
        left_ms = await self._subject.idle()
        if left_ms is None or not self._subject.is_awaited or self._moving.locked():
            return False
        async with self._moving:
            await self._jump(left_ms)
        return True

    async def _jump(self, by_ms: int) -> None:
        await shift_clock(self._subject.client.store, timedelta(milliseconds=by_ms))
        if not self._subject.worker.is_dead:
            await self._subject.worker.look_for_due()

    async def advance(self, by: timedelta) -> None:
        """Let time pass; what falls due on the way runs at its own time.

        Raises:
            TypeError: `by` is no timedelta.
            ValueError: `by` is negative, or more than 40,000 days.
            NotSettled: Something falls due again and again.
        """
        left_ms = shift_ms(by)
        async with self._moving:
            for _ in range(STOPS_MAX):
                next_ms = await self._next_stop()
                if next_ms is None or next_ms > left_ms:
                    break
                await self._jump(next_ms)
                left_ms -= next_ms
            else:
                raise NotSettled(f"within {by}, something falls due more than {STOPS_MAX:,} times")
            await self._jump(left_ms)
            await self._next_stop()
            await self._subject.worker.shrink_histories()

    async def _next_stop(self) -> int | None:
        """Return how long until something is due, once what runs has ended or has had time enough."""
        with contextlib.suppress(StillRunning):
            return await self._subject.idle(PATIENCE_SECONDS)
        return None

    async def settled(self, timeout_seconds: float) -> None:
        """Wait until nothing runs and nothing is due; the clock stays where it is.

        Raises:
            NotSettled: That was not so within the time.
        """
        with anyio.move_on_after(timeout_seconds):
            await self._subject.idle()
            return
        raise NotSettled(f"not settled after {timeout_seconds:g} s: {self._subject.worker.why_busy()}")
