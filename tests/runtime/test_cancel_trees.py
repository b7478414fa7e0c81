"""A cancel goes down a tree of calls and messages: what is called ends, what is sent as was asked, and all is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import App, BlockingClient, Cancelled, ObjectContext, Runtime, Settings, SharedContext, VirtualObject

pytestmark = pytest.mark.anyio

trail: list[str] = []
node = VirtualObject("Node", owner="tests", partitions=4)
gates: dict[str, anyio.Event] = {}


@pytest.fixture(autouse=True)
def _afresh() -> None:
    trail.clear()
    gates.clear()


@node.handler
async def branch(ctx: ObjectContext, depth: int) -> str:
    """Send for later, send for now, and call the next level; the last one sleeps."""
    try:
        await ctx.send(leaf, f"later/{depth}", "late", delay=timedelta(days=1))
        await ctx.send(leaf, f"now/{depth}", "now")
        if depth:
            return await ctx.call(branch, f"level/{depth - 1}", depth - 1)
        trail.append("bottom")
        await ctx.sleep(timedelta(days=30))
    except Cancelled:
        trail.append(f"told {depth}")
        raise
    return "through"


@node.handler
async def leaf(ctx: ObjectContext, word: str) -> str:
    await ctx.sleep(timedelta(days=2))
    return word


@node.handler
async def call_quickly(ctx: ObjectContext, key: str) -> str:
    return await ctx.call(leaf, key, "called")


@node.handler
async def asks(ctx: ObjectContext) -> str:
    return await ctx.call(look, "acme/look")


@node.shared
async def look(ctx: SharedContext) -> str:
    gates["look begun"].set()
    await gates["look"].wait()
    return "seen"


@node.handler
async def block(ctx: ObjectContext) -> None:
    gates["block begun"].set()
    await gates["block"].wait()


app = App([node])


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        yield runtime


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    """Wait until something holds."""
    with anyio.fail_after(10):
        while not await holds():
            await anyio.sleep(0.005)


async def holder_of(runtime: Runtime, key: str) -> str | None:
    holder = (await runtime.client.inspect("Node", key)).lane.holder
    return None if holder is None else holder.id


async def tree_of(runtime: Runtime) -> tuple[Any, dict[str, str]]:
    """Grow a tree of four levels; returns its root and the ids of what was called and what was sent for now."""
    root = await runtime.client.send(branch, "level/3", 3)

    async def is_grown() -> bool:
        keys = [f"now/{depth}" for depth in range(4)]
        return "bottom" in trail and all([await holder_of(runtime, key) for key in keys])

    await until(is_grown)
    keys = [*(f"level/{depth}" for depth in range(3)), *(f"now/{depth}" for depth in range(4))]
    return root, {key: await holder_of(runtime, key) or "" for key in keys}


async def test_a_cancel_goes_down_all_calls_and_names_the_messages_that_go_on(runtime: Runtime) -> None:
    """Four levels: what is called is told, what was sent runs on, now or later, and the report names it all (K4)."""
    root, ids = await tree_of(runtime)
    report = await root.cancel(timeout=20)

    assert report.outcome == "cancelled"
    assert sorted(set(trail)) == ["bottom", "told 0", "told 1", "told 2", "told 3"]
    assert set(report.stopped[1:]) == {ids[f"level/{depth}"] for depth in range(3)}
    assert {ids[f"now/{depth}"] for depth in range(4)} < set(report.left_running)
    assert len(report.left_running) == 8
    statuses = sorted([(await runtime.client.describe(each)).status or "" for each in report.left_running])
    assert statuses == ["scheduled"] * 4 + ["waiting"] * 4


async def test_a_cancel_goes_down_the_messages_too_where_that_is_asked_for(runtime: Runtime) -> None:
    """Those that are to begin later never do; nothing of the tree goes on (K4)."""
    root, ids = await tree_of(runtime)
    report = await root.cancel(cascade_to_sends=True, timeout=20)

    assert report.left_running == ()
    assert len(report.stopped) == 1 + 3 + 8
    assert set(ids.values()) < set(report.stopped)
    for each in report.stopped[1:]:
        told = await runtime.client.describe(each)
        assert (told.status, told.retry_due_at) == ("cancelled", None)
    for partition in runtime.worker.partitions:
        assert await runtime.client.store.call("ZCARD", partition.space.due) == 0


async def test_a_call_that_is_on_its_way_is_cancelled_behind_it(runtime: Runtime) -> None:
    """A cancel in the same moment as the call arrives after it, and what was called never begins."""
    gates.update({name: anyio.Event() for name in ("block", "block begun")})
    blocked = await runtime.client.send(block, "acme/busy")
    await gates["block begun"].wait()
    handle = await runtime.client.send(call_quickly, "acme/caller", "acme/busy")
    await handle.accepted(timeout=10)
    report = await handle.cancel(timeout=10)
    gates["block"].set()
    await blocked.result(timeout=10)
    assert report.outcome == "cancelled"
    assert report.left_running == ()
    assert (await runtime.client.inspect("Node", "acme/busy")).lane.length == 0


async def test_a_caller_of_a_shared_handler_does_not_wait_for_it(runtime: Runtime) -> None:
    """A read changes nothing: it ends by itself, and its reply comes to nobody."""
    gates.update({name: anyio.Event() for name in ("look", "look begun")})
    handle = await runtime.client.send(asks, "acme/a")
    await gates["look begun"].wait()
    reports: list[Any] = []
    async with anyio.create_task_group() as tasks:

        async def cancel() -> None:
            reports.append(await handle.cancel(timeout=20))

        tasks.start_soon(cancel)

        async def is_over() -> bool:
            return (await handle.describe()).status == "cancelled"

        await until(is_over)
        gates["look"].set()
    assert reports[0].outcome == "cancelled"
    assert reports[0].left_running == ()


async def test_what_waits_is_cancelled_by_an_owner_that_has_it_not_in_memory(store_url: str, namespace: str) -> None:
    """Its lane is read, and its handler replayed up to where it waits."""
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(branch, "level/0", 0)

        async def waits() -> bool:
            return (await handle.describe()).status == "waiting"

        await until(waits)
        invocation_id = handle.id
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        report = await runtime.client.cancel(invocation_id, timeout=10)
        assert report.outcome == "cancelled"
    assert trail[:2] == ["bottom", "bottom"]
    assert trail[-1] == "told 0"


async def test_a_cancel_waits_in_the_inbox_for_an_owner(store_url: str, namespace: str) -> None:
    """It is durable before anybody has taken it in, behind the call that it is about."""
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        url = runtime.store_url
    del store_url

    def ask() -> str:
        with BlockingClient(url, namespace=namespace) as client:
            handle = client.send(branch, "level/0", 0)
            ids.append(handle.id)
            return handle.cancel(timeout=20, by="ann").outcome

    ids: list[str] = []
    outcomes: list[str] = []

    async def cancel() -> None:
        outcomes.append(await anyio.to_thread.run_sync(ask))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)

        async def is_sent() -> bool:
            return bool(ids)

        await until(is_sent)
        async with Runtime(app, store=url, namespace=namespace, settings=Settings()) as runtime:

            async def is_told() -> bool:
                return bool(outcomes)

            await until(is_told)
            assert (await runtime.client.describe(ids[0])).status == "cancelled"
    assert outcomes == ["cancelled"]


@node.handler
async def fork(ctx: ObjectContext, how: str) -> str:
    """Wait in several branches at a time; each says how it ended."""
    try:
        if how == "gather":
            await ctx.gather(part(ctx, "a"), part(ctx, "b"), ctx.call(leaf, "acme/forked", "x"))
        elif how == "select":
            await ctx.select(first=part(ctx, "a"), second=ctx.sleep(3600))
        else:
            async with ctx.task_group() as group:
                group.create_task(part(ctx, "a"))
                await ctx.sleep(timedelta(days=1))
    except Cancelled:
        trail.append("told")
        await ctx.run("clean up", str, "c")
        raise
    return "through"


async def part(ctx: ObjectContext, name: str) -> str:
    trail.append(f"begun {name}")
    try:
        await ctx.run(f"step of {name}", str, name)
        await ctx.sleep(timedelta(days=3))
    finally:
        trail.append(f"left {name}")
    return name


@node.handler
async def fork_a_step(ctx: ObjectContext) -> None:
    await ctx.gather(ctx.run("held", held), then_another(ctx))


async def held() -> str:
    gates["held begun"].set()
    await gates["held"].wait()
    return "held"


async def then_another(ctx: ObjectContext) -> None:
    await ctx.signal("go", str)
    await ctx.run("another", trail.append, "another")


HOWS = ["gather", "select", "group"]


@pytest.mark.parametrize("how", HOWS)
async def test_a_handler_with_branches_is_told_where_it_waits_itself(runtime: Runtime, how: str) -> None:
    """Its branches end first, what they have called is cancelled, and nothing that they waited for is left."""
    handle = await runtime.client.send(fork, "acme/fork", how)
    await until(lambda: holds_waits(runtime, handle, {"gather": 3, "select": 2, "group": 2}[how]))

    report = await handle.cancel(timeout=10)

    assert report.outcome == "cancelled"
    assert trail[-1] == "told"
    assert {f"left {each[6:]}" for each in trail if each.startswith("begun")} < set(trail)
    assert "clean up" in report.committed
    assert len([each for each in report.stopped if each.startswith("Node.")]) == (how == "gather")
    for partition in runtime.worker.partitions:
        assert await runtime.client.store.call("ZCARD", partition.space.due) == 0


async def holds_waits(runtime: Runtime, handle: Any, count: int) -> bool:
    found = [each for partition in runtime.worker.partitions for each in partition.open.values()]
    waits = [each.standing.waits for each in found if each.standing and handle.id.endswith(each.raw_id.hex())]
    return bool(waits) and len(waits[0]) == count


@pytest.mark.parametrize("how", HOWS)
async def test_a_handler_with_branches_is_told_by_an_owner_that_replays_it(
    store_url: str, namespace: str, how: str
) -> None:
    """Wherever it stood, it is told there, and a replay of that tells it there again."""
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(fork, "acme/fork", how)
        await until(lambda: holds_waits(runtime, handle, {"gather": 3, "select": 2, "group": 2}[how]))
        invocation_id = handle.id
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        report = await runtime.client.cancel(invocation_id, timeout=10)
        assert report.outcome == "cancelled"
        assert report.committed.count("clean up") == 1
    assert "told" in trail


@pytest.mark.counts_runs
async def test_a_step_of_a_branch_is_let_finish_and_no_other_begins(runtime: Runtime) -> None:
    """What runs is recorded before the handler is told; a branch that would begin a step is held back."""
    gates.update({name: anyio.Event() for name in ("held", "held begun")})
    handle = await runtime.client.send(fork_a_step, "acme/fork")
    await gates["held begun"].wait()
    reports: list[Any] = []

    async def cancel() -> None:
        reports.append(await handle.cancel(timeout=20))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)

        async def is_pending() -> bool:
            told = await handle.describe()
            return told.cancel is not None

        await until(is_pending)
        told = await handle.describe()
        assert told.cancel is not None
        assert not told.cancel.is_delivered
        await runtime.client.signal(handle.id, "go", "now", timeout=10)

        async def has_come() -> bool:
            return any(step.is_settled for step in (await handle.describe()).steps)

        await until(has_come)
        for _ in range(100):
            # So many turns of the loop are more than a branch takes to come to its step.
            await asyncio.sleep(0)
        gates["held"].set()
    assert reports[0].outcome == "cancelled"
    assert reports[0].committed == ("held",)
    assert "another" not in trail
