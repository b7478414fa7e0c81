"""Handlers with branches whose owner goes away: what a branch does goes on, whatever the others wait for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import ObjectContext, RetryPolicy, Runtime, Settings, VirtualObject
from keylane.objects.handler import Handler

pytestmark = [pytest.mark.anyio, pytest.mark.counts_runs]

#: A worker that ends at once cuts off what runs.
HASTY = Settings(drain_limit_seconds=0.01, lease_seconds=1, renewal_seconds=0.2)
MONTH = timedelta(days=30)

team = VirtualObject("Team", owner="tests", partitions=1)
#: What the steps of a test do, one after the other: they say that they were begun, and wait for a worker's end.
begun: list[anyio.Event] = []
attempts: dict[str, int] = {}


async def never_end() -> str:
    """Be under way until the worker goes."""
    attempts["work"] = attempts.get("work", 0) + 1
    begun[-1].set()
    await anyio.sleep_forever()
    return "never"


async def fail_first() -> str:
    """Fail at the first attempt, and be under way at the second until the worker goes."""
    if attempts.setdefault("work", 0) == 0:
        attempts["work"] = 1
        raise ValueError("not yet")
    return await never_end()


async def _first_of(ctx: ObjectContext, work: Callable[[], Coroutine[Any, Any, str]]) -> None:
    """Go on, and wait for long, when the first of two branches has ended."""

    async def at_once() -> str:
        return "at once"

    async def at_length() -> str:
        return await ctx.run("work", work, retry=RetryPolicy(first=timedelta(milliseconds=1)))

    async for _ in ctx.as_completed(at_once(), at_length()):
        break
    await ctx.sleep(MONTH)


@team.handler
async def begin(ctx: ObjectContext) -> None:
    await _first_of(ctx, never_end)


@team.handler
async def retry(ctx: ObjectContext) -> None:
    await _first_of(ctx, fail_first)


async def _beside_a_wait(ctx: ObjectContext) -> None:
    """Leave a branch behind that waits for long."""

    async def at_once() -> str:
        return "at once"

    async def at_length() -> str:
        return await ctx.signal("go", str, timeout=MONTH)

    async for _ in ctx.as_completed(at_once(), at_length()):
        break


@team.handler
async def retry_beside(ctx: ObjectContext) -> None:
    await _beside_a_wait(ctx)
    await ctx.run("settle", str, "settled")
    await ctx.run("work", fail_first, retry=RetryPolicy(first=timedelta(milliseconds=1)))


@team.handler(retry=RetryPolicy(first=timedelta(milliseconds=1)))
async def fail_beside(ctx: ObjectContext) -> None:
    await _beside_a_wait(ctx)
    await ctx.run("settle", str, "settled")
    if ctx.attempt == 1:
        raise ValueError("not yet")
    await ctx.run("work", never_end)


@contextlib.asynccontextmanager
async def owner(url: str, namespace: str) -> AsyncGenerator[Runtime]:
    """Run a worker until its step is under way."""
    begun.append(anyio.Event())
    async with Runtime([team], store=url, namespace=namespace, settings=HASTY) as runtime:
        yield runtime
        with anyio.fail_after(20):
            await begun[-1].wait()


@pytest.mark.parametrize("handler", [begin, retry])
async def test_a_step_in_a_branch_is_begun_again_while_the_handler_itself_waits(
    store_url: str, namespace: str, handler: Handler[Any, Any]
) -> None:
    """Of the branch nothing may be recorded yet: that the handler waits for a month must not keep its step waiting."""
    attempts.clear()
    async with owner(store_url, namespace) as runtime:
        handle = await runtime.client.send(handler, "acme/crew")
        with anyio.fail_after(20):
            while (await runtime.client.describe(handle.id)).status != "waiting":
                await anyio.sleep(0.01)
    before = attempts["work"]

    async with owner(store_url, namespace):
        pass

    assert attempts["work"] == before + 1


@pytest.mark.parametrize("handler", [retry_beside, fail_beside])
async def test_an_attempt_that_had_begun_is_begun_again_whatever_else_is_due_later(
    store_url: str, namespace: str, handler: Handler[Any, Any]
) -> None:
    """The due time that is left in the store is that of the wait in a branch: it says nothing of the attempt."""
    attempts.clear()
    async with owner(store_url, namespace) as runtime:
        await runtime.client.send(handler, "acme/crew")
    before = attempts["work"]

    async with owner(store_url, namespace):
        pass

    assert attempts["work"] == before + 1
