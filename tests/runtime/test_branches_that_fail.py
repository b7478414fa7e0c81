"""Handlers with branches that fail and are tried again: what they do then is not taken for what was done before."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from keylane import ObjectContext, RetryPolicy, Runtime, SharedContext, TerminalError, VirtualObject
from keylane.runtime import endings, execution
from keylane.runtime.invocation import Invocation
from keylane.runtime.lane import Lane
from tests.faults.harness import eventually, eventually_answers

pytestmark = pytest.mark.anyio

HASTY = RetryPolicy(first=timedelta(milliseconds=1), attempts=5)

clumsy = VirtualObject("Clumsy", owner="tests", partitions=2, state={"x": str}, retry=HASTY)
failures: Counter[str] = Counter()


@clumsy.handler
async def together(ctx: ObjectContext, how: str) -> None:
    """Fail once in one of two branches that begin at the same time, and write something the next time."""

    async def fails_once() -> str:
        failures[str(ctx.key)] += 1
        if failures[str(ctx.key)] == 1:
            raise ValueError("for once")
        ctx.set("x", "written")
        return "written"

    async def asks() -> str:
        await ctx.send(quick, f"acme/asked-by-{ctx.key.key}")
        return "asked"

    await WAYS[how](ctx, fails_once(), asks())


@clumsy.handler
async def beside(ctx: ObjectContext) -> list[str]:
    """Fail, once, beside a branch that cleans up with a step when it is cut off."""
    did: list[str] = []

    async def at_once() -> None:
        return

    async def at_length() -> None:
        try:
            did.append(await ctx.run("work", working))
        except asyncio.CancelledError:
            did.append(await ctx.run("clean up", cleaning))
            raise

    async for _ in ctx.as_completed(at_once(), at_length()):
        break
    failures[str(ctx.key)] += 1
    if failures[str(ctx.key)] == 1:
        raise ValueError("for once")
    await ctx.sleep(0.05)
    return did


@clumsy.handler
async def beside_a_sleep(ctx: ObjectContext) -> None:
    """Fail once while the beginning of a sleep in another branch is on its way to the store."""

    async def fails_once() -> None:
        await ctx.send(quick, f"acme/asked-by-{ctx.key.key}")
        failures[str(ctx.key)] += 1
        if failures[str(ctx.key)] == 1:
            raise ValueError("for once")

    async def sleeps() -> None:
        await ctx.sleep(timedelta(days=30))

    await ctx.gather(fails_once(), sleeps())


@clumsy.handler
async def beside_a_retry(ctx: ObjectContext) -> None:
    """Fail once while a step of another branch waits for its next attempt."""

    async def fails_once() -> None:
        await ctx.run("first", working)
        await ctx.run("second", working)
        failures[str(ctx.key)] += 1
        if failures[str(ctx.key)] == 1:
            raise ValueError("for once")

    async def tries_again() -> None:
        await ctx.run("retried", failing, retry=RetryPolicy(first=timedelta(days=1), cap=timedelta(days=2)))

    async for done in ctx.as_completed(fails_once(), tries_again()):
        await done
        break


@clumsy.handler
async def unheeded(ctx: ObjectContext) -> None:
    """Fail once in a branch while the loop that is to await it makes a command of its own."""

    async def at_once() -> None:
        return

    async def fails_once() -> None:
        failures[str(ctx.key)] += 1
        if failures[str(ctx.key)] == 1:
            raise ValueError("for once")
        ctx.set("x", "written")

    async for done in ctx.as_completed(at_once(), fails_once()):
        await ctx.run("between", working)
        await done


@clumsy.handler
async def looked_at_later(ctx: ObjectContext) -> str:
    """Fail for good in a branch, and look at that behind another command."""

    async def fails_for_good() -> None:
        failures[str(ctx.key)] += 1
        raise TerminalError("for good")

    ended = [each async for each in ctx.as_completed(fails_for_good())]
    await ctx.run("between", working)
    try:
        await ended[0]
    except TerminalError as error:
        return error.message
    return "nothing"


@clumsy.handler
async def caught_too_late(ctx: ObjectContext) -> None:
    """Fail each time in a branch, and catch that where the branch is awaited, behind another command."""

    async def fails() -> None:
        raise ValueError("as ever")

    async for done in ctx.as_completed(fails()):
        await ctx.run("between", working)
        with contextlib.suppress(ValueError):
            await done


@clumsy.handler
async def left_alone(ctx: ObjectContext) -> str:
    """Leave the loop ahead of a branch that fails once."""

    async def at_once() -> str:
        return "first"

    async def fails_once() -> None:
        await ctx.sleep(0.01)
        failures[str(ctx.key)] += 1
        if failures[str(ctx.key)] == 1:
            raise ValueError("for once")
        ctx.set("x", "written")

    async for done in ctx.as_completed(at_once(), fails_once()):
        await done
        break
    await ctx.sleep(0.05)
    return "ended"


async def failing() -> None:
    raise ValueError("always")


async def working() -> str:
    await asyncio.sleep(0.01)
    return "worked"


async def cleaning() -> str:
    return "cleaned"


@clumsy.handler
async def quick(ctx: ObjectContext) -> None:
    return


@clumsy.shared
async def state(ctx: SharedContext) -> str | None:
    return await ctx.get("x", str)


async def _completed(ctx: ObjectContext, *branches: Any) -> None:
    async for done in ctx.as_completed(*branches):
        await done


async def _in_group(ctx: ObjectContext, one: Any, other: Any) -> None:
    async with ctx.task_group() as group:
        group.create_task(one)
        group.create_task(other)


async def _gathered(ctx: ObjectContext, one: Any, other: Any) -> None:
    await ctx.gather(one, other)


async def _gathered_behind(ctx: ObjectContext, one: Any, other: Any) -> None:
    await ctx.gather(other, one)


async def _selected(ctx: ObjectContext, one: Any, other: Any) -> None:
    await ctx.select(one=one, other=other)


WAYS: dict[str, Callable[..., Any]] = {
    "gather": _gathered,
    "gather, the other way round": _gathered_behind,
    "select": _selected,
    "as_completed": _completed,
    "group": _in_group,
}


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime([clumsy], store=store_url, namespace=namespace) as runtime:
        yield runtime


@pytest.mark.parametrize("how", WAYS)
async def test_what_a_branch_writes_after_it_has_failed_is_kept(runtime: Runtime, how: str) -> None:
    """What the others had come to when it failed must not be recorded: its write would count as recorded with that."""
    failures.clear()
    await runtime.client.call(together, "acme/c", how, timeout=20)
    assert await runtime.client.call(state, "acme/c") == "written"
    assert failures["acme/c"] > 1


async def test_a_branch_goes_on_in_the_next_attempt_and_does_not_clean_up_for_it(runtime: Runtime) -> None:
    """A cleanup that is recorded is a command that no later attempt comes to: the invocation would be parked."""
    failures.clear()
    assert await runtime.client.call(beside, "acme/b", timeout=20) == ["worked"]
    assert failures["acme/b"] > 1


async def test_the_next_attempt_does_not_wait_for_a_timer_of_another_branch(runtime: Runtime) -> None:
    """The due time in the store is that of the attempt, though the sleep becomes durable after the failure."""
    failures.clear()
    for number in range(10):
        await runtime.client.send(beside_a_sleep, f"acme/s-{number}")
    await eventually(lambda: len(failures) == 10 and min(failures.values()) > 1, "all are tried again")


async def test_a_time_that_comes_while_a_failure_is_on_its_way_to_the_store_does_not_end_the_next_attempt(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who fires the timers of branches must not take the due time of the attempt away, which nobody would ask for."""
    failures.clear()
    fired: list[Invocation] = []

    async def retry_later(lane: Lane, invocation: Invocation, error: BaseException, delay_seconds: float) -> None:
        recording = asyncio.ensure_future(endings.retry_later(lane, invocation, error, delay_seconds))
        while invocation.standing is None or invocation.standing.retry_after_ms is None:
            await asyncio.sleep(0)
        assert invocation.dues
        invocation.dues = dict.fromkeys(invocation.dues, 1)
        lane.partition.host.find(lane.partition, [invocation.raw_id])
        fired.append(invocation)
        await recording

    monkeypatch.setattr(execution, "retry_later", retry_later)
    await runtime.client.call(beside_a_retry, "acme/r", timeout=20)
    assert failures["acme/r"] == 2
    assert fired


async def test_what_a_branch_writes_after_a_failure_that_nobody_awaited_is_kept(runtime: Runtime) -> None:
    """What was recorded between the failure and its being raised says nothing of what the next attempt writes there."""
    failures.clear()
    await runtime.client.call(unheeded, "acme/u", timeout=20)
    assert failures["acme/u"] > 1
    assert await runtime.client.call(state, "acme/u") == "written"


@pytest.mark.counts_runs
async def test_a_failure_for_good_waits_for_whoever_looks_at_it(runtime: Runtime) -> None:
    """Each run has it, so that others may record what they do meanwhile."""
    failures.clear()
    assert await runtime.client.call(looked_at_later, "acme/l", timeout=20) == "for good"
    assert failures["acme/l"] == 1


@pytest.mark.counts_runs
async def test_a_branch_that_a_loop_has_left_ends_the_attempt_that_it_fails_in(runtime: Runtime) -> None:
    """Nobody looks at its failure any more, and what follows must not be recorded behind it."""
    failures.clear()
    assert await runtime.client.call(left_alone, "acme/a", timeout=20) == "ended"
    assert failures["acme/a"] == 2
    assert await runtime.client.call(state, "acme/a") == "written"


async def test_a_handler_that_looks_too_late_is_told_what_to_write(runtime: Runtime) -> None:
    """Where it would catch the failure by itself, it never comes to that."""
    handle = await runtime.client.send(caught_too_late, "acme/c")

    async def has_failed() -> bool:
        return (await handle.describe()).error is not None

    await eventually_answers(has_failed, "the attempt has failed")
    error = (await handle.describe()).error
    assert error is not None
    assert error.message.startswith("as ever\n")
    assert "caught in the branch, or raised as a TerminalError" in error.message
    await handle.cancel(by="tests", reason="seen")
