"""The thread that keeps this worker's leases, so that a busy event loop does not cost them.

It has a connection of its own. A lease counts from before its renewal was sent, less a margin for clocks that run at
different speeds; a renewal whose answer is lost counts for nothing. The thread stops renewing when the event loop is
stuck: a worker that can't work must not keep others from it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final, Self, assert_never

import anyio.to_thread

from ..journal.keyspace import PartitionSpace
from ..journal.leases import Leases, NotRenewed, Renewal, Renewed, TenureLost
from ..journal.tenure import Tenure, lease_clock
from .loop_watch import LoopWatch

logger = logging.getLogger("keylane.lease")

#: The part of a lease that is not used: two machines' clocks may differ by this much in speed.
MARGIN: Final = 0.1
TICK_SECONDS: Final = 0.25
RETRY_FIRST_SECONDS: Final = 0.1
STOP_SECONDS: Final = 2.0


class HeldLease:
    """One tenure that is kept alive; `is_valid` may be asked from any thread, without a lock.

    Attributes:
        space: The partition.
        tenure: The period of ownership.
        valid_until: By `lease_clock`; past it the owner sends no effect and serves no read from memory.
    """

    __slots__ = ("space", "tenure", "valid_until")

    def __init__(self, space: PartitionSpace, tenure: Tenure, valid_until: float) -> None:
        self.space = space
        self.tenure = tenure
        self.valid_until = valid_until

    def is_valid(self) -> bool:
        """Return whether nobody else can have taken the partition over."""
        return lease_clock() < self.valid_until


class LeaseThread:
    """Renews the leases of all tenures that it is given; use it as an async context manager.

    Args:
        leases: Renewals over connections of the thread's own; closed with it.
        lease_seconds: How long a lease lasts.
        renewal_seconds: How often it is renewed.
        stuck_after_seconds: How long the event loop may not run before renewal stops.
        on_fenced: Called in the event loop with each lease whose partition has another owner; final for that tenure.
    """

    def __init__(
        self,
        leases: Leases,
        *,
        lease_seconds: float,
        renewal_seconds: float,
        stuck_after_seconds: float,
        on_fenced: Callable[[HeldLease], None],
    ) -> None:
        self._leases = leases
        self._lease_seconds = lease_seconds
        self._renewal_seconds = renewal_seconds
        self._stuck_after_seconds = stuck_after_seconds
        self._tick_seconds = min(TICK_SECONDS, renewal_seconds / 4)
        self._on_fenced = on_fenced
        self._lock = threading.Lock()
        self._held: set[HeldLease] = set()
        self._wake = threading.Event()
        self._stopping = False
        self._renew_at = -math.inf
        self._hurry = False
        self._failures = 0
        self._failing_since: float | None = None
        self._thread: threading.Thread | None = None

    async def __aenter__(self) -> Self:
        """Start the thread; the running loop is the one that it watches."""
        loop = asyncio.get_running_loop()
        watch = LoopWatch(loop, check_seconds=self._tick_seconds, stuck_after_seconds=self._stuck_after_seconds)
        run = partial(self._run, loop, watch)
        self._thread = threading.Thread(target=run, name="keylane-leases", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop renewing and wait for the thread, at most `STOP_SECONDS`."""
        self._stopping = True
        self._wake.set()
        # Closing the connection ends a renewal that waits for a store that does not answer.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._end)

    def _end(self) -> None:
        thread = self._thread
        if thread is None:
            return
        thread.join(self._tick_seconds)
        self._leases.close()
        thread.join(STOP_SECONDS)
        if thread.is_alive():
            logger.warning("the lease thread did not end within %g s and is left behind", STOP_SECONDS)

    def hold(self, space: PartitionSpace, tenure: Tenure, *, sent_at: float) -> HeldLease:
        """Keep a tenure alive from now on.

        Args:
            space: The partition.
            tenure: The tenure.
            sent_at: When its acquisition was sent, by `lease_clock`.
        """
        lease = HeldLease(space, tenure, self._valid_until(sent_at))
        with self._lock:
            self._held.add(lease)
        if lease.valid_until - lease_clock() < self._lease_seconds / 2:
            self._hurry = True
            self._wake.set()
        return lease

    def drop(self, lease: HeldLease) -> None:
        """Renew a lease no more; it is invalid from here on. Dropping it twice is no error."""
        self._drop(lease)

    def _drop(self, lease: HeldLease) -> bool:
        with self._lock:
            was_held = lease in self._held
            self._held.discard(lease)
            lease.valid_until = -math.inf
        return was_held

    def _valid_until(self, sent_at: float) -> float:
        return sent_at + self._lease_seconds * (1 - MARGIN)

    def _run(self, loop: asyncio.AbstractEventLoop, watch: LoopWatch) -> None:
        try:
            while not self._is_over(loop):
                self._turn(loop, watch)
                self._wake.wait(self._tick_seconds)
                self._wake.clear()
        finally:
            self._leases.close()

    def _is_over(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._stopping or loop.is_closed()

    def _turn(self, loop: asyncio.AbstractEventLoop, watch: LoopWatch) -> None:
        try:
            watch.check(lease_clock())
            if not watch.is_stuck and (self._hurry or lease_clock() >= self._renew_at):
                self._renew_all(loop)
        except Exception:
            # A thread that dies of one surprise would cost every lease; closing the connection or the loop under its
            # feet is the ordinary end.
            if not self._is_over(loop):
                logger.exception("a turn of the lease thread failed, trying on")

    def _renew_all(self, loop: asyncio.AbstractEventLoop) -> None:
        self._hurry = False
        with self._lock:
            held = list(self._held)
        sent_at = lease_clock()
        renewals = self._leases.renew([(lease.space, lease.tenure) for lease in held])
        problems = [why for lease, renewal in zip(held, renewals, strict=True)
                    if (why := self._take(loop, lease, renewal, sent_at))]  # fmt: skip
        self._renew_at = sent_at + self._next_delay(problems)

    def _take(self, loop: asyncio.AbstractEventLoop, lease: HeldLease, renewal: Renewal, sent_at: float) -> str | None:
        """Note what became of a lease, and return why nothing is known of it."""
        match renewal:
            case Renewed():
                with self._lock:
                    # A lease that was dropped while its renewal was on the way stays invalid.
                    if lease in self._held:
                        lease.valid_until = self._valid_until(sent_at)
                return None
            case TenureLost():
                # A lease that was dropped meanwhile was handed over by us; the loop knows.
                if self._drop(lease):
                    logger.warning("%s has another owner: %s", lease.space, renewal.why)
                    loop.call_soon_threadsafe(self._on_fenced, lease)
                return None
            case NotRenewed():
                return renewal.why
            case _:
                assert_never(renewal)

    def _next_delay(self, problems: list[str]) -> float:
        """Return when to renew again: soon after a failure, then less and less often up to the usual pace."""
        if not problems:
            if self._failing_since is not None:
                logger.info("leases are renewed again after %.1f s", lease_clock() - self._failing_since)
            self._failing_since, self._failures = None, 0
            return self._renewal_seconds
        if self._failing_since is None:
            self._failing_since = lease_clock()
            logger.warning("%d leases can't be renewed, trying on: %s", len(problems), problems[0])
        self._failures += 1
        return min(RETRY_FIRST_SECONDS * 2 ** min(self._failures - 1, 16), self._renewal_seconds)
