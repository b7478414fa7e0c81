"""Signals and awakeables raced and gathered: the loser leaves nothing behind, and nothing that came is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import App, ObjectContext, Runtime, VirtualObject, WaitTimeout
from keylane.journal.key import parse_id
from keylane.runtime.forcing import VARIABLE
from keylane.testing import shift_clock
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

given: dict[str, str] = {}
order = VirtualObject("Order", owner="tests", partitions=1)


def give(name: str, awakeable_id: str) -> None:
    given[name] = awakeable_id


@order.handler
async def answer_or_time(ctx: ObjectContext, seconds: float) -> list[Any]:
    first = await ctx.select(answer=ctx.signal("go", str), time=ctx.sleep(seconds))
    return [*first, await ctx.signal("end", str)]


@order.handler
async def decided_or_told(ctx: ObjectContext, name: str) -> list[Any]:
    awakeable = await ctx.awakeable(str)
    await ctx.run("give", give, name, awakeable.id, type=None)
    first = await ctx.select(decided=awakeable.wait(timeout=60), told=ctx.signal("go", str))
    return [*first, await awakeable]


@order.handler
async def all_of(ctx: ObjectContext, names: list[str]) -> list[str]:
    return list(await ctx.gather(*(ctx.signal(name, str) for name in names)))


@order.handler
async def twice_the_same(ctx: ObjectContext) -> list[Any]:
    raced = await ctx.select(first=ctx.signal("go", str), time=ctx.sleep(60))
    return [*raced, await ctx.signal("go", str)]


@order.handler
async def one_gets_it(ctx: ObjectContext) -> list[str]:
    async def listen(name: str, seconds: float) -> str:
        try:
            return f"{name} {await ctx.signal('go', str, timeout=seconds)}"
        except WaitTimeout:
            return f"{name} nothing"

    return [await task async for task in ctx.as_completed(listen("a", 600), listen("b", 300))]


@order.handler
async def hear(ctx: ObjectContext) -> str:
    return await ctx.signal("go", str)


@order.handler
async def lost_and_wanted(ctx: ObjectContext) -> list[Any]:
    """Lose a race with a signal that came early, deep in the branch that loses, and wait for it at once."""

    async def at_once() -> str:
        return "at once"

    async def deep() -> list[str]:
        return list(await ctx.gather(ctx.signal("go", str, timeout=600)))

    first = await ctx.select(deep=deep(), at_once=at_once())
    return [*first, await ctx.signal("go", str, timeout=300)]


app = App([order])


@pytest.fixture(autouse=True)
def _afresh() -> None:
    given.clear()


@pytest.fixture(params=["", "suspend", "replay"], ids=["as it is", "suspended", "replayed"])
async def runtime(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store_url: str, namespace: str
) -> AsyncIterator[Runtime]:
    """A worker: as it is, with each wait suspending its handler at once, and with a replay at each await."""
    monkeypatch.setenv(VARIABLE, request.param)
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        yield runtime


async def waits_for(handle: Any, *names: str) -> None:
    """Wait until an invocation waits for things, as the store has it."""

    async def waiting() -> bool:
        steps = (await handle.describe()).steps
        return {step.name for step in steps if not step.is_settled} >= set(names)

    await eventually(waiting)


async def due_times(runtime: Runtime, handle: Any) -> int:
    space = runtime.client.space_of(parse_id(handle.id))
    return await runtime.client.store.call("ZCARD", space.due)


async def test_a_signal_beats_a_timer_and_leaves_no_due_time(runtime: Runtime) -> None:
    """The other way round, a signal that comes later waits for the next one who asks."""
    handle = await runtime.client.send(answer_or_time, "acme/1", 600.0)
    await waits_for(handle, "signal 'go'", "sleep of 600 s")
    await handle.signal("go", "yes")
    await waits_for(handle, "signal 'end'")
    assert await due_times(runtime, handle) == 0
    await handle.signal("end", "done")
    assert await handle.result(timeout=10) == ["answer", "yes", "done"]

    late = await runtime.client.send(answer_or_time, "acme/1", 600.0)
    await waits_for(late, "signal 'go'", "sleep of 600 s")
    await shift_clock(runtime, timedelta(seconds=601))
    await waits_for(late, "signal 'end'")
    await runtime.client.signal_object(order, "acme/1", "go", "late")
    await late.signal("end", "done")
    assert await late.result(timeout=10) == ["time", None, "done"]
    assert await runtime.client.call(hear, "acme/1", timeout=10) == "late"


async def test_an_awakeable_that_lost_a_race_can_still_be_completed(runtime: Runtime) -> None:
    """Its withdrawn wait has no timeout any more."""
    handle = await runtime.client.send(decided_or_told, "acme/1", "a")
    await waits_for(handle, "signal 'go'")
    await handle.signal("go", "told")

    async def has_no_due_time() -> bool:
        return await due_times(runtime, handle) == 0

    await eventually(has_no_due_time)
    await shift_clock(runtime, timedelta(seconds=61))
    await runtime.client.resolve_awakeable(given["a"], "decided")

    assert await handle.result(timeout=10) == ["told", "told", "decided"]


async def test_signals_are_gathered_in_whichever_order_they_come(runtime: Runtime) -> None:
    """Also early ones, of this invocation and of its object."""
    await runtime.client.signal_object(order, "acme/1", "b", "early")
    handle = await runtime.client.send(all_of, "acme/1", ["a", "b", "c"])
    await waits_for(handle, "signal 'a'", "signal 'c'")
    await handle.signal("c", "third")
    await handle.signal("a", "first")

    assert await handle.result(timeout=10) == ["first", "early", "third"]


async def test_of_two_branches_that_wait_for_one_name_the_first_gets_the_first_signal(runtime: Runtime) -> None:
    """And the other one its own timeout."""
    handle = await runtime.client.send(one_gets_it, "acme/1")
    await waits_for(handle, "signal 'go'")

    async def both_wait() -> bool:
        return sum(not step.is_settled for step in (await handle.describe()).steps) == 2

    await eventually(both_wait)
    await handle.signal("go", "it")
    await eventually(lambda: one_waits(handle))
    await shift_clock(runtime, timedelta(seconds=301))

    assert await handle.result(timeout=10) == ["a it", "b nothing"]


async def one_waits(handle: Any) -> bool:
    return sum(not step.is_settled for step in (await handle.describe()).steps) == 1


@pytest.mark.parametrize("to", ["invocation", "object"])
async def test_a_signal_that_comes_as_its_wait_loses_is_given_back(runtime: Runtime, to: str) -> None:
    """Accepted is accepted: whichever of the two came first, the handler or the next one gets it, once."""
    for number in range(12):
        key = f"acme/{to}-{number}"
        handle = await runtime.client.send(twice_the_same, key)
        await waits_for(handle, "signal 'go'", "sleep of 60 s")

        async def tell(word: str, handle: Any = handle, key: str = key) -> None:
            if to == "object":
                await runtime.client.signal_object(order, key, "go", word)
            else:
                await handle.signal("go", word)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shift_clock, runtime, timedelta(seconds=61))
            tasks.start_soon(tell, "one")
        await tell("two")
        result = await handle.result(timeout=10)
        told = await runtime.client.inspect("Order", key)
        if result[0] == "first":
            assert result == ["first", "one", "two"]
            assert told.signals == ()
        else:
            assert result == ["time", None, "one"]
            assert [signal.name for signal in told.signals] == (["go"] if to == "object" else [])


@pytest.mark.parametrize("to", ["invocation", "object"])
async def test_a_signal_that_was_taken_by_a_wait_that_had_lost_is_given_to_the_next_wait(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """Timer and signal are recorded in one turn, the timer first: the loser's signal is not lost with it."""
    handle = await runtime.client.send(twice_the_same, "acme/1")
    await waits_for(handle, "signal 'go'", "sleep of 60 s")
    (partition,) = runtime.worker.partitions
    intake, waits = runtime.worker._intake.signals, runtime.worker._waits
    take = intake.take

    def timer_first(*words: Any) -> None:
        invocation = partition.open[parse_id(handle.id).raw]
        for place in list(invocation.dues or ()):
            waits._fall_due(partition, invocation, place)
        take(*words)

    monkeypatch.setattr(intake, "take", timer_first)
    if to == "object":
        await runtime.client.signal_object(order, "acme/1", "go", "raced")
    else:
        await handle.signal("go", "raced")
    monkeypatch.setattr(intake, "take", take)

    assert await handle.result(timeout=10) == ["time", None, "raced"]
    told = await runtime.client.inspect("Order", "acme/1")
    assert told.signals == ()
    assert "withdrawn" in [event.what for event in told.timeline]


async def test_what_a_loser_gives_back_is_there_for_the_wait_that_comes_next(runtime: Runtime) -> None:
    """It is given back when the handler goes on, which is before that looks at what has come."""
    await runtime.client.signal_object(order, "acme/o-early", "go", "early", timeout=10)
    handle = await runtime.client.send(lost_and_wanted, "acme/o-early")
    assert await handle.result(timeout=20) == ["at_once", "at once", "early"]
