"""Runs a scenario with the worker killed at each point at which it touches the store, one point a run.

A kill happens in this process: from that instant nothing of the worker reaches the store, not even what was submitted
in the same turn of the loop, and no durable point of a handler is passed any more. Another worker takes over at once.
What a real kill has no time for runs here still: the `finally` of a handler that was cut off, and a thread to its end.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Literal, Self, TypeAlias, TypeVar

import anyio

from ..journal.background import Background
from ..objects.app import App
from ..objects.settings import Settings
from ..objects.virtual_object import VirtualObject
from .client import Client
from .harness import Force, Harness, opened_store
from .virtual_time import Subject

if TYPE_CHECKING:
    from .runtime import Runtime

Returned = TypeVar("Returned")
Moment: TypeAlias = Literal["before", "after"]
#: What a test does with a harness; what it returns is looked at after each crash.
Scenario: TypeAlias = Callable[[Harness], Awaitable[Returned]]

#: The calls that follow from what handlers do; those of leases come when they like.
COUNTED: Final = frozenset({"commit", "deliver"})
MOMENTS: Final[tuple[Moment, ...]] = ("before", "after")
POINTS_MAX: Final = 200
RUN_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Where a worker was killed.

    Args:
        number: At which of its calls of the store, counted from 1.
        moment: Before the call was sent, or once its answer had come and nobody had seen it.
        call: What that call was, such as `commit of Order:3`.
    """

    number: int
    moment: Moment
    call: str = ""

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.moment} call {self.number} ({self.call})"


@dataclass(frozen=True, slots=True)
class Crash(Generic[Returned]):
    """One run of a scenario.

    Args:
        point: Where the worker was killed; None for the run in which none was.
        returned: What the scenario returned; None where it raised.
        error: What it raised; None where it returned.
    """

    point: CrashPoint | None
    returned: Returned | None
    error: Exception | None

    def result(self) -> Returned:
        """Return what the scenario returned.

        Raises:
            Exception: What it raised, with the place of the crash in a note.
        """
        if self.error is not None:
            if self.point is not None:
                self.error.add_note(f"the worker was killed {self.point}")
            raise self.error
        return self.returned  # pyright: ignore[reportReturnType], it has returned


async def crashes(
    app: App | VirtualObject | Sequence[VirtualObject],
    scenario: Scenario[Returned],
    *,
    moments: Sequence[Moment] = MOMENTS,
    points_max: int = POINTS_MAX,
    run_seconds: float = RUN_SECONDS,
    store: str | None = None,
    force: Force | None = None,
    settings: Settings | None = None,
) -> AsyncGenerator[Crash[Returned]]:
    """Run a scenario without a crash, then once for each point with the worker killed there and another one after it.

    Args:
        app: What to host: an `App`, an object type, or a list of them.
        scenario: Called with an open harness for each run. It has to make its own ledger, or empty it.
        moments: Before a call of the store, after it, or both.
        points_max: So many calls at most are tried; more than that is an error.
        run_seconds: How long one run may take, of the time that really passes.
        store: The URL of a store to share; by default an embedded one.
        force: As for a harness.
        settings: As for a harness.

    Yields:
        Each run, for assertions on what was done outside.

    Raises:
        TimeoutError: A run did not end in time.
        AssertionError: The scenario makes more calls than `points_max`.
        ValueError: What is asked for would crash nowhere, or end no run.
    """
    _check_plan(moments, points_max, run_seconds)
    async with contextlib.AsyncExitStack() as stack:
        store_url = await stack.enter_async_context(opened_store(store))

        async def run(point: CrashPoint | None) -> Crash[Returned]:
            harness = CrashingHarness(app, store=store_url, force=force, settings=settings, point=point)
            with anyio.fail_after(run_seconds):
                return await _run(harness, scenario)

        yield await run(None)
        for moment in moments:
            for number in range(1, points_max + 1):
                crash = await run(CrashPoint(number, moment))
                if crash.point is None:
                    break
                yield crash
            else:
                raise AssertionError(f"the scenario makes more than {points_max} calls: raise `points_max`")


def _check_plan(moments: Sequence[Moment], points_max: int, run_seconds: float) -> None:
    """Refuse what would try no crash at all, and let each assertion hold."""
    if isinstance(moments, str) or not moments or not set(moments) <= set(MOMENTS):
        raise ValueError(f"moments is {moments!r}: write a list of 'before', 'after' or both")
    if type(points_max) is not int or points_max < 1:
        raise ValueError(f"points_max is {points_max!r}: it has to be a whole number, 1 or more")
    if not 0 < run_seconds < math.inf:
        raise ValueError(f"run_seconds is {run_seconds!r}: it has to be a time that lies ahead")


async def _run(harness: CrashingHarness, scenario: Scenario[Returned]) -> Crash[Returned]:
    async with harness as h:
        returned: Returned | None = None
        failure: Exception | None = None
        try:
            returned = await scenario(h)
        except Exception as error:  # noqa: BLE001, the test says what may be raised
            failure = error
        # What goes on behind the scenario's back has points, too.
        await h.settled()
    return Crash(harness.killed_at, returned, failure)


class CrashingHarness(Harness):
    """A harness whose first worker is killed at a point, and whose client outlives it.

    Args:
        app: What to host.
        point: Where; None for nowhere.
        store: The URL of the store.
        force: What is forced.
        settings: The effective settings.

    Attributes:
        killed_at: Where the worker was killed, once it was.
    """

    def __init__(
        self,
        app: App | VirtualObject | Sequence[VirtualObject],
        *,
        point: CrashPoint | None,
        store: str,
        force: Force | None,
        settings: Settings | None,
    ) -> None:
        super().__init__(app, store=store, force=force, settings=settings)
        self.killed_at: CrashPoint | None = None
        self._killer = None if point is None else _Killer(point, self._kill)
        self._is_killed = anyio.Event()

    async def _start(self, store_url: str, stack: AsyncExitStack) -> Subject:
        victim = self._new_runtime(store_url, self._killer)
        lives = await stack.enter_async_context(_Lives(victim))
        victim.worker.force(self.force)
        client = Client(victim.store_url, namespace=self.namespace, settings=self.settings)
        subject = Subject(victim.worker, await stack.enter_async_context(client))
        self._runtime = victim
        tasks = await stack.enter_async_context(Background())
        tasks.start_soon(self._succeed, store_url, subject, lives)
        return subject

    def _kill(self, point: CrashPoint) -> None:
        self.killed_at = point
        self._runtime.worker.die()
        self._is_killed.set()

    async def _succeed(self, store_url: str, subject: Subject, lives: _Lives) -> None:
        """Have another worker take over once the first one is dead."""
        await self._is_killed.wait()
        heir = self._new_runtime(store_url)
        await lives.follow(heir)
        heir.worker.force(self.force)
        self._runtime = heir
        subject.replace(heir.worker)


class _Lives:
    """The runtime that lives now, closed with whatever it has become; use it as an async context manager."""

    def __init__(self, first: Runtime) -> None:
        self._living = first

    async def __aenter__(self) -> Self:
        await self._living.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._living.__aexit__(None, None, None)

    async def follow(self, heir: Runtime) -> None:
        """Close the dead runtime and start another one."""
        with anyio.CancelScope(shield=True):
            await self._living.__aexit__(None, None, None)
            await heir.__aenter__()
            self._living = heir


class _Killer:
    """An observer that kills the worker at its point."""

    def __init__(self, point: CrashPoint, kill: Callable[[CrashPoint], None]) -> None:
        self._point = point
        self._kill = kill
        self._counts: dict[Moment, int] = {"before": 0, "after": 0}
        self._is_done = False

    def before_send(self, what: str, partition: str, number: int) -> None:
        """Count what is about to be sent."""
        del number
        self._reach("before", what, partition)

    def after_answer(self, what: str, partition: str, number: int) -> None:
        """Count what has been answered."""
        del number
        self._reach("after", what, partition)

    def deliver(self, channel: bytes) -> bool:
        """Let every message pass."""
        del channel
        return True

    def _reach(self, moment: Moment, what: str, partition: str) -> None:
        if self._is_done or what not in COUNTED:
            return
        self._counts[moment] += 1
        if (moment, self._counts[moment]) == (self._point.moment, self._point.number):
            self._is_done = True
            self._kill(CrashPoint(self._point.number, moment, f"{what} of {partition}"))
