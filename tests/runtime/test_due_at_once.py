"""Very many timers that fall due at once keep neither the loop nor other calls waiting for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import anyio
import pytest

from keylane import ObjectContext, RetryableError, Runtime, VirtualObject
from keylane.objects.settings import Settings
from keylane.runtime.slots import BEGUN_AT_ONCE
from keylane.runtime.timers import DUE_AT_ONCE
from keylane.testing import shift_clock
from tests.faults.harness import eventually

pytestmark = pytest.mark.anyio

TIMERS = 10_000
alarm = VirtualObject("Alarm", owner="tests", partitions=8)
rung: list[str] = []


@alarm.handler
async def ring(ctx: ObjectContext) -> None:
    """Ask for another attempt in an hour, once."""
    if ctx.attempt == 1:
        raise RetryableError("not yet", retry_after=3600)
    rung.append(str(ctx.key))


@alarm.handler
async def count(ctx: ObjectContext) -> int:
    """Stand for somebody else's work."""
    value = await ctx.get("count", int, 0) + 1
    ctx.set("count", value)
    return value


@pytest.fixture
async def waiting(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    """Give a runtime in which very many invocations wait for the same hour."""
    rung.clear()
    settings = Settings(backlog_per_key=TIMERS)
    async with Runtime([alarm], store=store_url, namespace=namespace, settings=settings) as runtime:

        async def hold(first: int) -> None:
            for number in range(first, TIMERS, 64):
                await runtime.client.send(ring, f"acme/{number}")

        async with anyio.create_task_group() as tasks:
            for first in range(64):
                tasks.start_soon(hold, first)
        await eventually(lambda: _waiting(runtime) == TIMERS, "all of them wait for their next attempt", seconds=60)
        yield runtime


def _waiting(runtime: Runtime) -> int:
    return sum(len(partition.waiting) for partition in runtime.worker.partitions)


@pytest.mark.slow
async def test_timers_that_fall_due_at_once_leave_the_loop_to_others(waiting: Runtime) -> None:
    """Another task has its turn after a bounded number of handlers, and another call after a bounded number of them."""
    longest, before = 0, 0
    waited: list[int] = []

    async def probe() -> None:
        nonlocal longest, before
        # Some have rung while the clock was shifted.
        before = len(rung)
        while len(rung) < TIMERS:
            await asyncio.sleep(0)
            longest, before = max(longest, len(rung) - before), len(rung)

    async def call() -> None:
        while len(rung) < TIMERS:
            begun = len(rung)
            await waiting.client.call(count, "acme/foreground")
            waited.append(len(rung) - begun)
            await anyio.sleep(0.001)

    await shift_clock(waiting, timedelta(hours=2))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(probe)
        tasks.start_soon(call)

    # What was handed over in one turn of the loop runs in the next one, which begins as much again.
    assert longest <= 2 * BEGUN_AT_ONCE
    assert len(waited) >= 5
    assert max(waited) <= 4 * DUE_AT_ONCE
    assert sorted(rung) == sorted(f"acme/{number}" for number in range(TIMERS))
