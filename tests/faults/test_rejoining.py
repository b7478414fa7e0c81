"""Where invocations come back into the list of their lane, while others of it run, pause or are taken in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import anyio
import pytest

from keylane import Handle, ObjectContext, RetryPolicy, Runtime, VirtualObject
from keylane.journal.key import parse_id
from keylane.journal.keyspace import PartitionSpace
from keylane.runtime import claims, loading

from .harness import StoreServer, eventually, eventually_answers
from .proxy import Proxy

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
ONCE = RetryPolicy(attempts=1)

skipped = VirtualObject("Skipped", owner="tests", partitions=1, on_paused="skip")
blocked = VirtualObject("Blocked", owner="tests", partitions=1)
#: Whose attempts fail.
failing: set[str] = set()
gates: dict[str, anyio.Event] = {}
began: list[str] = []


async def work(ctx: ObjectContext, name: str) -> str:
    began.append(name)
    if name in gates:
        await gates[name].wait()
    if name in failing:
        raise ValueError(name)
    return name


for each in (skipped, blocked):
    each.handler(retry=ONCE)(work)


@skipped.handler
async def leave(ctx: ObjectContext) -> str:
    return await ctx.signal("go", str, release_lane=True)


@pytest.fixture(autouse=True)
def fresh() -> None:
    for each in (failing, gates, began):
        each.clear()


@pytest.fixture
async def runtime(proxy: Proxy, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime([skipped, blocked], store=proxy.url, namespace=namespace) as runtime:
        yield runtime


def listed(server: StoreServer, namespace: str, type_name: str) -> list[bytes]:
    """Return whom the store's list of the lane names."""
    return server.ask("LRANGE", PartitionSpace(namespace, type_name, 0).lane(KEY), 0, -1)


def ids(*handles: Handle[Any]) -> list[bytes]:
    return [parse_id(each.id).raw for each in handles]


async def reach(handle: Handle[Any], status: str) -> None:
    async def has() -> bool:
        return (await handle.describe()).status == status

    await eventually_answers(has, f"it is {status}")


async def pause(runtime: Runtime, type_name: str, name: str) -> Handle[Any]:
    """Have an invocation pause, which goes through once it is resumed."""
    failing.add(name)
    handle = await runtime.client.send(type_name, KEY, "work", name)
    await reach(handle, "paused")
    failing.discard(name)
    return handle


async def resume(runtime: Runtime, paused: Handle[Any]) -> None:
    await runtime.client.resume(paused.id, reason="a look", by="ops")


async def run(runtime: Runtime, name: str) -> Handle[Any]:
    """Have an invocation run up to its gate, durably accepted."""
    gates[name] = anyio.Event()
    handle = await runtime.client.send("Skipped", KEY, "work", name)
    await handle.accepted(timeout=10)
    await eventually(lambda: name in began, "it runs")
    return handle


async def let_return(runtime: Runtime) -> tuple[Handle[Any], Callable[[], Any]]:
    """Return an invocation that has left its lane while it waits, and what ends its wait."""
    left = await runtime.client.send("Skipped", KEY, "leave")
    await reach(left, "waiting")

    async def end_wait() -> None:
        await left.signal("go", "now")

    return left, end_wait


async def let_resume(runtime: Runtime) -> tuple[Handle[Any], Callable[[], Any]]:
    """Return an invocation that has left its lane with its pause, and what resumes it."""
    paused = await pause(runtime, "Skipped", "first")
    return paused, partial(resume, runtime, paused)


@pytest.mark.parametrize("how", [let_return, let_resume])
async def test_what_runs_keeps_its_place_before_what_comes_back(
    runtime: Runtime, shared_server: StoreServer, namespace: str, how: Callable[..., Any]
) -> None:
    """An owner that comes goes on with it first."""
    back, come_back = await how(runtime)
    running = await run(runtime, "second")

    await come_back()

    await eventually(
        lambda: listed(shared_server, namespace, "Skipped") == ids(running, back), "both are in the list, in order"
    )
    gates["second"].set()
    await running.result(timeout=10)
    await back.result(timeout=10)
    await eventually(lambda: not listed(shared_server, namespace, "Skipped"), "the list is empty")


@pytest.mark.parametrize("how", [let_return, let_resume])
async def test_what_has_left_the_list_with_its_pause_is_not_put_back(
    runtime: Runtime, proxy: Proxy, shared_server: StoreServer, namespace: str, how: Callable[..., Any]
) -> None:
    """Its run has not ended in memory while its pause is on its way; once resumed, the list would name it twice."""
    back, come_back = await how(runtime)
    running = await run(runtime, "second")
    failing.add("second")
    proxy.hold_replies(only="commit")
    try:
        gates["second"].set()
        await eventually(lambda: not listed(shared_server, namespace, "Skipped"), "its pause is in the store")
        async with asyncio.TaskGroup() as tasks:
            coming = tasks.create_task(come_back())
            await eventually(
                lambda: listed(shared_server, namespace, "Skipped") != [], "the other one is back in the list"
            )
            assert listed(shared_server, namespace, "Skipped") == ids(back)
            proxy.heal()
            await coming
    finally:
        proxy.heal()
    await back.result(timeout=10)
    failing.clear()
    await resume(runtime, running)
    await running.result(timeout=10)
    await eventually(lambda: not listed(shared_server, namespace, "Skipped"), "the list names nobody")


async def test_a_lane_that_is_not_in_memory_keeps_those_that_only_its_list_names(
    proxy: Proxy, shared_server: StoreServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that are taken in out of order are put in order by moving them, not by a list that lacks the others."""
    async with Runtime([blocked], store=proxy.url, namespace=namespace) as runtime:
        paused = await pause(runtime, "Blocked", "first")
        behind = await runtime.client.send("Blocked", KEY, "work", "behind it")
        await behind.accepted(timeout=10)
    recall, read_lane, may_read = claims.recall, loading.read_lane, anyio.Event()
    asked: list[Callable[[], None]] = []

    async def read_late(*given: Any) -> Any:
        await may_read.wait()
        return await read_lane(*given)

    def recall_late(*given: Any) -> None:
        asked.append(partial(recall, *given))

    monkeypatch.setattr(claims, "recall", recall_late)
    monkeypatch.setattr(loading, "read_lane", read_late)
    async with Runtime([blocked], store=shared_server.url, namespace=namespace) as runtime:
        sending = asyncio.ensure_future(runtime.client.send("Blocked", KEY, "work", "keyed", idempotency_key="k"))
        await eventually(lambda: asked, "its key is looked up")
        plain = await runtime.client.send("Blocked", KEY, "work", "plain")
        await plain.accepted(timeout=10)
        asked.pop()()
        keyed = await sending
        await keyed.accepted(timeout=10)
        handles = [runtime.client.attach(each.id) for each in (paused, behind, keyed, plain)]

        assert listed(shared_server, namespace, "Blocked") == ids(*handles)

        may_read.set()
        await resume(runtime, paused)
        for each in handles:
            await each.result(timeout=10)
    assert began == ["first", "first", "behind it", "keyed", "plain"]
    assert listed(shared_server, namespace, "Blocked") == []
