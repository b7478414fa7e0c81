"""Invocations that have left their lane, where owners change, and where they are paused, resumed or fail."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from keylane import (
    CallTimeout,
    Client,
    InvocationCancelled,
    Runtime,
)
from keylane.journal.doctor.checkup import Plan, check_up
from keylane.journal.key import parse_id
from tests.runtime.releasing_orders import (
    KEY,
    app_of,
    ask,
    begin_afresh,
    gates,
    holding_nap,
    nap,
    note,
    pass_time,
    trail,
    waits,
    words,
)
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

WHO: dict[str, str] = {"reason": "a look", "by": "ops"}


@pytest.fixture(autouse=True)
def _afresh() -> None:
    begin_afresh()


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        yield runtime


async def test_an_owner_that_takes_over_lets_a_released_invocation_return(store_url: str, namespace: str) -> None:
    """It is in no lane and not in memory: its due time, its reply, and its object lead to it."""
    async with Runtime(app_of(drain_limit_seconds=0.1), store=store_url, namespace=namespace) as runtime:
        napping = await runtime.client.send(nap, KEY, "n")
        asking = await runtime.client.send(ask, KEY, "a")
        await waits(runtime, napping.id)
        await waits(runtime, asking.id)
    async with Runtime(app_of(drain_limit_seconds=0.1), store=store_url, namespace=namespace) as runtime:
        assert await runtime.client.call(note, KEY, "between", timeout=10) == "between"
        gates["a"].set()
        await pass_time(runtime)
        assert await runtime.client.attach(napping.id).result(timeout=10) == ["n", "between"]
        assert await runtime.client.attach(asking.id).result(timeout=10) == "answer a"


async def test_a_released_invocation_leaves_memory_with_its_lane(store_url: str, namespace: str) -> None:
    """A lane that nobody uses is let go of, whatever waits beside it."""
    async with Runtime(app_of(resident_lanes=1), store=store_url, namespace=namespace) as runtime:
        client = runtime.client
        napping = [await client.send(nap, f"acme/o-{n}", f"n{n}") for n in range(5)]
        for each in napping:
            await waits(runtime, each.id)

        async def have_left() -> bool:
            return sum(len(partition.lanes) for partition in runtime.worker.partitions) <= 1

        await eventually(have_left)
        assert sum(len(partition.open) for partition in runtime.worker.partitions) <= 1
        await pass_time(runtime)
        assert [await each.result(timeout=10) for each in napping] == [[f"n{n}"] for n in range(5)]


async def test_a_lane_that_was_released_is_free_for_whoever_takes_over(runtime: Runtime) -> None:
    """Nothing stands in it, so it is not among the runnable ones, and the doctor has nothing to say."""
    client = runtime.client
    napping = await client.send(nap, KEY, "n")
    await waits(runtime, napping.id)

    async def has_left() -> bool:
        return (await client.inspect("Order", KEY)).lane.length == 0

    await eventually(has_left)
    lane = (await client.inspect("Order", KEY)).lane
    assert (lane.open, lane.is_runnable) == ((), False)
    assert [each.id for each in lane.parked] == [napping.id]
    assert "has released its lane" in lane.parked[0].why
    assert "has released its lane" in ((await napping.describe()).waits_for or "")
    report = await check_up(client.store, Plan(3.0, "server"))
    assert report.findings == ()


async def test_a_released_invocation_can_be_paused_and_returns_when_it_is_resumed(runtime: Runtime) -> None:
    """Its wait ends meanwhile; others go on all the time."""
    client = runtime.client
    napping = await client.send(nap, KEY, "n")
    await waits(runtime, napping.id)
    await client.pause(napping.id, **WHO, timeout=10)
    assert await client.call(note, KEY, "one", timeout=10) == "one"
    await pass_time(runtime)
    assert await client.call(note, KEY, "two", timeout=10) == "two"
    assert (await napping.describe()).status == "paused"
    await client.resume(napping.id, **WHO, timeout=10)
    assert await napping.result(timeout=10) == ["n", "one", "two"]


async def test_a_released_invocation_that_is_resumed_before_its_time_waits_on(runtime: Runtime) -> None:
    client = runtime.client
    napping = await client.send(nap, KEY, "n")
    await waits(runtime, napping.id)
    await client.pause(napping.id, **WHO, timeout=10)
    await client.resume(napping.id, **WHO, timeout=10)
    assert (await napping.describe()).status == "waiting"
    assert await client.call(note, KEY, "one", timeout=10) == "one"
    assert (await check_up(client.store, Plan(3.0, "server"))).findings == ()
    await pass_time(runtime)
    assert await napping.result(timeout=10) == ["n", "one"]


async def test_a_released_call_whose_reply_comes_while_it_is_paused_returns_when_it_is_resumed(
    store_url: str, namespace: str
) -> None:
    """Also by way of another owner."""
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        client = runtime.client
        asking = await client.send(ask, KEY, "a")
        await waits(runtime, asking.id)
        await client.pause(asking.id, **WHO, timeout=10)
        gates["a"].set()

        async def has_reply() -> bool:
            stream = client.store.space("Order", 0).invocation(parse_id(asking.id).raw)
            return await client.store.call("XLEN", stream) == 4

        await eventually(has_reply)
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        assert await runtime.client.call(note, KEY, "one", timeout=10) == "one"
        await runtime.client.resume(asking.id, **WHO, timeout=10)
        assert await runtime.client.attach(asking.id).result(timeout=10) == "answer a"


async def test_a_key_that_is_paused_keeps_what_returns_from_running(runtime: Runtime) -> None:
    client = runtime.client
    napping = await client.send(nap, KEY, "n")
    await waits(runtime, napping.id)
    await client.pause("Order", KEY, **WHO, timeout=10)
    await pass_time(runtime)

    async def is_back() -> bool:
        return (await client.inspect("Order", KEY)).lane.length == 1

    await eventually(is_back)
    assert "n returns" not in trail
    await client.resume("Order", KEY, **WHO, timeout=10)
    assert await napping.result(timeout=10) == ["n"]


@pytest.mark.parametrize("how", ["cancel", "kill"])
async def test_a_released_invocation_can_be_cancelled_and_killed(runtime: Runtime, how: str) -> None:
    """It returns to its lane for its cleanup, or is gone at once; its lane stays free for others."""
    client = runtime.client
    sent = await client.send(nap, KEY, "n")
    await waits(runtime, sent.id)
    await getattr(client, how)(sent.id, **WHO)
    with pytest.raises(InvocationCancelled):
        await sent.result(timeout=10)
    assert await client.call(note, KEY, "after", timeout=10) == "after"
    assert "n returns" not in trail
    space = client.store.space("Order", 0)
    assert await client.store.call("SMEMBERS", space.set_aside(KEY)) == []
    assert (await check_up(client.store, Plan(3.0, "server"))).findings == ()


async def test_callers_behind_a_lane_that_is_held_are_told_by_whom_since_when_and_for_what(runtime: Runtime) -> None:
    """A wait inside an exclusive handler freezes nothing without a word: `status` answers, others see why (A1)."""
    client = runtime.client
    napping = await client.send(holding_nap, KEY, "n")
    await waits(runtime, napping.id)
    with anyio.fail_after(1):
        assert await client.call(words, KEY) == []
    with pytest.raises(CallTimeout) as local:
        await client.call(note, KEY, "behind", timeout=0.1)
    async with Client(runtime.store_url, namespace=client.store.namespace) as elsewhere:
        with pytest.raises(CallTimeout) as remote:
            await elsewhere.call(note, KEY, "behind", timeout=0.1)
        with pytest.raises(CallTimeout) as attached:
            await elsewhere.attach(local.value.invocation_id or "").result(timeout=0.1)
    for caught in (local, remote, attached):
        assert "held since 2" in caught.value.message
        assert napping.id in caught.value.message
        assert "waits in its sleep of 600 s" in caught.value.why
    told = await client.describe(local.value.invocation_id or "")
    assert told.behind is not None
    assert (told.behind.id, told.behind.handler) == (napping.id, "holding_nap")
    assert told.behind.since is not None
    lane = (await client.inspect("Order", KEY)).lane
    assert (lane.holder and lane.holder.id, lane.held_since) == (napping.id, told.behind.since)
    await pass_time(runtime)
    await napping.result(timeout=10)
