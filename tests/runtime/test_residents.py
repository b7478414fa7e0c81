"""How many handlers wait in memory: so many at a time, and the longest waiting go first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from keylane import App, Handle, ObjectContext, Settings, VirtualObject
from keylane.journal.key import parse_id
from keylane.testing import Harness, harness

pytestmark = [pytest.mark.anyio, pytest.mark.counts_runs]

FEW = 3
runs: list[str] = []
sleeper = VirtualObject("Sleeper", owner="tests")


@sleeper.handler
async def nap(ctx: ObjectContext, days: int) -> str:
    runs.append(ctx.key.key)
    await ctx.sleep(timedelta(days=days))
    return ctx.key.key


@pytest.fixture
async def h(store_url: str) -> AsyncIterator[Harness]:
    runs.clear()
    app = App(sleeper, settings=Settings(waiting_resident_max=FEW, partitions=1))
    async with harness(app, store=store_url) as h:
        yield h


def residents(h: Harness) -> set[bytes]:
    return {raw_id for partition in h.runtime.worker.partitions for raw_id in partition.sleepers}


async def test_the_handlers_that_have_waited_longest_leave_memory_first(h: Harness) -> None:
    """Of ten, the last three stay, and all of them end; only those that left are replayed."""
    handles: list[Handle[str]] = []
    for number in range(10):
        handles.append(await h.send(nap, f"acme/{number}", 30))
        await h.settled()

    assert residents(h) == {parse_id(handle.id).raw for handle in handles[-FEW:]}
    assert [await handle.result(timeout=5) for handle in handles] == [str(number) for number in range(10)]
    assert sorted(runs) == sorted([*map(str, range(10)), *map(str, range(10 - FEW))])


async def test_a_handler_whose_wait_has_ended_makes_room(h: Harness) -> None:
    """It is not counted for longer than it waits."""
    for number in range(FEW):
        assert await h.call(nap, f"acme/short-{number}", 1) == f"short-{number}"

    late = [await h.send(nap, f"acme/{number}", 30) for number in range(FEW)]
    await h.settled()

    assert residents(h) == {parse_id(handle.id).raw for handle in late}
