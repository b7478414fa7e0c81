"""Cancels that meet a step, its end, and the end of its handler, at every moment that there is."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from keylane import App, Cancelled, CancelReport, InvocationCancelled, ObjectContext, Runtime, VirtualObject
from keylane.journal.cancel_order import CancelOrder
from keylane.journal.key import new_invocation_id, parse_id
from keylane.journal.requests import Request, RequestKind
from keylane.runtime.forcing import forced

pytestmark = pytest.mark.anyio

#: Steps last up to so long.
WINDOW_SECONDS = 0.01
ledger: list[str] = []
trail: dict[str, list[str]] = {}

racer = VirtualObject("Racer", owner="tests", partitions=4)


@pytest.fixture(autouse=True)
def _afresh() -> None:
    begun.clear()
    ledger.clear()
    trail.clear()
    at_tick.clear()


begun: dict[str, anyio.Event] = {}
lengths = random.Random(7)


async def commit(name: str) -> str:
    begun.setdefault(name, anyio.Event()).set()
    await asyncio.sleep(lengths.uniform(0, WINDOW_SECONDS))
    ledger.append(name)
    return name


@racer.handler
async def one_step(ctx: ObjectContext, name: str) -> str:
    return await ctx.run("commit", commit, name)


@racer.handler
async def two_steps(ctx: ObjectContext, name: str) -> str:
    first = await ctx.run("commit", commit, name)
    await ctx.run("commit again", commit, f"{name} again")
    return first


#: What is done so many turns of the loop after the first step of an invocation has begun.
at_tick: dict[str, tuple[int, Callable[[], None]]] = {}


async def microsteps(name: str) -> str:
    after(*at_tick[name])
    for _ in range(5):
        await asyncio.sleep(0)
    return name


def after(turns: int, act: Callable[[], None]) -> None:
    """Do something after so many turns of the loop."""
    if turns == 0:
        act()
    else:
        asyncio.get_running_loop().call_soon(after, turns - 1, act)


@racer.handler
async def told_once(ctx: ObjectContext, name: str) -> str:
    notes = trail.setdefault(name, [])
    try:
        await ctx.run("first", microsteps, name)
        await ctx.run("second", second, name)
    except Cancelled:
        notes.append("told")
        await ctx.run("clean up", str, "c")
        await ctx.run("clean up again", str, "c")
        raise
    return name


async def second(name: str) -> None:
    trail[name].append("second")


app = App([racer])


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        yield runtime


@pytest.mark.parametrize(("handler", "times"), [(one_step, 300), (two_steps, 300)], ids=["one step", "two steps"])
async def test_the_answer_to_a_cancel_around_the_end_is_what_has_happened(
    runtime: Runtime, handler: Any, times: int
) -> None:
    """In a small window around completion: report, result, records and the outside's own ledger agree (K1)."""
    seeds = random.Random(7)
    outcomes: list[str] = []

    async def race(number: int) -> None:
        name = f"r-{number}"
        handle = await runtime.client.send(handler, f"acme/{name}", name)
        await begun.setdefault(name, anyio.Event()).wait()
        await anyio.sleep(seeds.uniform(0, WINDOW_SECONDS * 2))
        if number % 2:
            # The owner decides now; on a busy machine most of the others come when all is over.
            cancel_now(runtime, handle.id)
        check(name, handle, await handle.cancel(timeout=20), await ended(handle))

    def check(name: str, handle: Any, report: CancelReport, result: str) -> None:
        outcomes.append(report.outcome)
        assert result == (name if report.outcome == "completed" else "cancelled"), handle.id
        assert ("commit" in report.committed) == (name in ledger)
        assert ("commit again" in report.committed) == (f"{name} again" in ledger)

    async with anyio.create_task_group() as tasks:
        for number in range(times):
            tasks.start_soon(race, number)
            if number % 20 == 19:
                await anyio.sleep(0.05)
    assert {"completed", "cancelled"} >= set(outcomes)
    # Whatever ends with the only step has ended before anybody could be told.
    assert "completed" in outcomes
    assert ("cancelled" in outcomes) == (handler is two_steps)


async def ended(handle: Any) -> str:
    try:
        return await handle.result(timeout=20)
    except InvocationCancelled:
        return "cancelled"


def cancel_now(runtime: Runtime, invocation_id: str) -> None:
    """Have the owner decide on a cancel at this very moment."""
    invocation = parse_id(invocation_id)
    (partition,) = [each for each in runtime.worker.partitions if each.number == invocation.partition]
    request = Request(RequestKind.CANCEL, new_invocation_id(), "", "", CancelOrder(invocation.raw).encode())
    runtime.worker._intake.take_entry(partition, b"0-1", request.encode())


TICKS = [*range(40), *range(40, 400, 15), *range(400, 3_000, 200)]


async def test_a_cancel_at_every_microstep_of_a_step_is_told_once_by_the_next_durable_await(runtime: Runtime) -> None:
    """Before, while and after the step runs and is recorded; clean-up awaits as usual (H1)."""
    late = 0
    for ticks, number in zip(TICKS, itertools.count(), strict=False):
        name = f"m-{number}"
        had_begun: list[bool] = []
        ids: list[str] = []

        def cancel(name: str = name, had_begun: list[bool] = had_begun, ids: list[str] = ids) -> None:
            had_begun.append("second" in trail[name])
            cancel_now(runtime, ids[0])

        at_tick[name] = (ticks, cancel)
        handle = await runtime.client.send(told_once, f"acme/{name}", name)
        ids.append(handle.id)
        result = await ended(handle)
        while not had_begun:
            await asyncio.sleep(0)
        steps = [step.name for step in (await handle.describe()).steps]
        # Where each record ends the run, the handler is run again up to where it was told, and told it there again.
        notes = trail[name] if forced() is None else list(dict.fromkeys(trail[name]))
        if result == "cancelled":
            assert notes == (["second", "told"] if had_begun[0] else ["told"]), ticks
            assert steps[-2:] == ["clean up", "clean up again"], ticks
        else:
            # It was taken in after the last durable point had been passed.
            assert had_begun == [True], ticks
            assert notes == ["second"], ticks
            late += 1
    assert late < len(TICKS) / 2
