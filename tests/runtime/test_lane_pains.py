"""One lane for each key, and what must not follow from it: reads, looks and operators get through, nothing is stuck."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from keylane import App, Client, InvocationCancelled, ObjectContext, RetryPolicy, Runtime, SharedContext, VirtualObject
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
WHO: dict[str, str] = {"reason": "a look", "by": "ops"}
job = VirtualObject("Job", owner="jobs-oncall", partitions=1, state={"count": int})
skipping = VirtualObject("Skipping", owner="jobs-oncall", partitions=1, on_paused="skip")
clients: list[Client] = []
is_broken = [True]
stops: list[anyio.Event] = []
QUICK = RetryPolicy(first=timedelta(milliseconds=1), attempts=2)


@job.handler
async def look_at_itself(ctx: ObjectContext) -> tuple[int, str, int]:
    """Ask about the own object, from within, by way of another client."""
    ctx.set("count", 1)
    await ctx.run("something", str, "x")
    (client,) = clients
    read = await client.call(count, KEY, timeout=5)
    told = await client.describe(ctx.invocation_id)
    lane = (await client.inspect("Job", KEY)).lane
    return read, str(told.status), lane.length


@job.handler
async def add(ctx: ObjectContext) -> int:
    """Count, in a step."""
    before = await ctx.get("count", int, 0)
    after = await ctx.run("add", lambda: before + 1, type=int)
    ctx.set("count", after)
    await ctx.run("nothing", str, "x")
    return after


@job.handler
async def busy(ctx: ObjectContext) -> None:
    """Never come to a durable point, and never give up the loop for longer than a moment."""
    while not stops[0].is_set():
        time.sleep(0.002)  # noqa: ASYNC251, it is what the test is about
        await anyio.lowlevel.checkpoint()


@job.shared
async def count(ctx: SharedContext) -> int:
    return await ctx.get("count", int, 0)


@job.handler(retry=QUICK)
async def stuck(ctx: ObjectContext) -> str:
    """Fail for as long as it is broken."""
    if is_broken[0]:
        raise ValueError("broken")
    return "mended"


@skipping.handler(retry=QUICK, name="stuck")
async def stuck_beside(ctx: ObjectContext) -> str:
    if is_broken[0]:
        raise ValueError("broken")
    return "mended"


@skipping.handler
async def go(ctx: ObjectContext) -> str:
    return "went"


@pytest.fixture(autouse=True)
def _afresh() -> None:
    clients.clear()
    is_broken[0] = True
    stops[:] = [anyio.Event()]


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(App([job, skipping]), store=store_url, namespace=namespace) as runtime:
        yield runtime


@pytest.fixture
async def client(runtime: Runtime) -> AsyncIterator[Client]:
    """A client that is in no way part of the worker."""
    async with Client(runtime.store_url, namespace=runtime.client.store.namespace) as client:
        clients.append(client)
        yield client


async def paused(client: Client, invocation_id: str) -> None:
    async def is_so() -> bool:
        return (await client.describe(invocation_id)).status == "paused"

    await eventually(is_so)


async def test_reads_and_looks_at_an_object_need_not_the_lane_that_its_handler_holds(
    runtime: Runtime, client: Client
) -> None:
    """Shared reads, describe and inspect answer inside an exclusive handler, for the same key (A5)."""
    del client
    assert await runtime.client.call(look_at_itself, KEY, timeout=10) == (1, "running", 1)


async def test_a_stuck_head_of_a_lane_is_seen_named_and_can_be_moved_out_of_the_way(client: Client) -> None:
    """It says who has to act; once it is killed those behind it go on, without a restart (A9)."""
    first = await client.send(stuck, KEY)
    await paused(client, first.id)
    behind = await client.send(add, KEY)
    await behind.accepted(timeout=10)
    told = await behind.describe()
    assert told.behind is not None
    assert (told.behind.id, told.behind.handler) == (first.id, "stuck")
    assert "jobs-oncall has to resume it" in told.behind.why
    await client.kill(first.id, **WHO, timeout=10)
    assert await behind.result(timeout=10) == 1
    with pytest.raises(InvocationCancelled):
        await first.result(timeout=10)


async def test_a_stuck_head_stands_in_nobodys_way_where_its_type_says_so(client: Client) -> None:
    """And it goes on itself when somebody has mended what it failed of (A9)."""
    first = await client.send("Skipping", KEY, "stuck")
    await paused(client, first.id)
    assert await client.call(go, KEY, timeout=10) == "went"
    is_broken[0] = False
    await client.resume(first.id, **WHO, timeout=10)
    assert await first.result(timeout=10) == "mended"


@pytest.mark.parametrize("look", ["describe", "inspect", "pause", "shared"])
async def test_what_operators_ask_of_a_busy_object_is_answered_within_a_second(client: Client, look: str) -> None:
    """Its handler is in a busy loop and comes to no durable point (A15)."""
    handle = await client.send(busy, KEY)

    async def runs() -> bool:
        return bool((await client.inspect("Job", KEY)).lane.open)

    await eventually(runs)
    asked: dict[str, Callable[[], Awaitable[Any]]] = {
        "describe": lambda: client.describe(handle.id),
        "inspect": lambda: client.inspect("Job", KEY),
        "pause": lambda: client.pause("Job", KEY, **WHO, timeout=10),
        "shared": lambda: client.call(count, KEY),
    }
    try:
        with anyio.fail_after(1):
            await asked[look]()
    finally:
        stops[0].set()
        if look == "pause":
            await client.resume("Job", KEY, **WHO, timeout=10)
    await handle.result(timeout=10)
