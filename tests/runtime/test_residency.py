"""Which lanes stay in memory: a bounded number, of the idle ones those that were used lately, and nothing is lost."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from keylane import (
    CallError,
    InvocationPaused,
    ObjectContext,
    RetryPolicy,
    Runtime,
    Settings,
    SharedContext,
    VirtualObject,
)
from keylane.journal.codec import pack
from keylane.journal.inbox import submit
from keylane.journal.key import new_invocation_id, parse_id
from keylane.journal.record_bytes import encode
from keylane.journal.records import Paused, PauseReason
from keylane.journal.requests import Request, RequestKind
from keylane.runtime import finding
from keylane.runtime.acceptances import Acceptances
from keylane.runtime.lane import Lane
from keylane.runtime.partition import Partition
from keylane.runtime.residency import LOOKS_PER_ENTRY, Residency
from tests.faults.harness import eventually, eventually_answers

pytestmark = pytest.mark.anyio

FEW = 8
holder = VirtualObject("Holder", owner="tests", partitions=2, state={"count": int}, retry=RetryPolicy(attempts=1))
aside = VirtualObject("Aside", owner="tests", partitions=1, on_paused="skip", retry=RetryPolicy(attempts=1))
doors: dict[str, asyncio.Event] = {}
broken: set[str] = set()


@holder.handler
async def add(ctx: ObjectContext, number: int) -> int:
    value = await ctx.get("count", int, 0) + number
    ctx.set("count", value)
    return value


@holder.handler
async def add_behind_a_door(ctx: ObjectContext, number: int) -> int:
    await doors[str(ctx.key)].wait()
    return await add.function(ctx, number)


@holder.handler
async def stumble(ctx: ObjectContext) -> int:
    if str(ctx.key) in broken:
        raise ValueError("not yet")
    return await add.function(ctx, 1)


@holder.shared
async def read(ctx: SharedContext) -> int:
    return await ctx.get("count", int, 0)


@aside.handler
async def stumble_aside(ctx: ObjectContext) -> int:
    if str(ctx.key) in broken:
        raise ValueError("not yet")
    return 1


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    settings = Settings(resident_lanes=FEW, sweep_seconds=0.05)
    async with Runtime([holder, aside], store=store_url, namespace=namespace, settings=settings) as runtime:
        yield runtime


def lanes_of(runtime: Runtime) -> dict[str, Lane]:
    return {key: lane for partition in runtime.worker.partitions for key, lane in partition.lanes.items()}


def residency_of(runtime: Runtime) -> Residency:
    return runtime.worker._residency  # pyright: ignore[reportPrivateUsage]


async def test_no_more_lanes_stay_than_may(runtime: Runtime) -> None:
    """Whatever is called and read, in any order; and each object is what it was when it comes back."""
    chance = random.Random(1)
    sums = [0] * 100
    for _ in range(600):
        number = chance.randrange(100)
        if chance.random() < 0.3:
            assert await runtime.client.call(read, f"acme/o-{number}") == sums[number]
            continue
        sums[number] += 1
        assert await runtime.client.call(add, f"acme/o-{number}", 1) == sums[number]
        assert len(lanes_of(runtime)) <= FEW + 1

    assert len(residency_of(runtime)) <= FEW + 1


async def test_many_at_once_come_back_to_the_bound(runtime: Runtime) -> None:
    """Lanes with calls in hand stay above the limit, and go once those are answered."""

    async def some(number: int) -> None:
        for _ in range(5):
            await runtime.client.call(add, f"acme/o-{number}", 1)

    async with anyio.create_task_group() as tasks:
        for number in range(200):
            tasks.start_soon(some, number)

    await eventually(lambda: len(lanes_of(runtime)) <= FEW, "the sweep lets go of the others")
    for number in range(200):
        assert await runtime.client.call(read, f"acme/o-{number}") == 5


async def test_a_lane_that_left_takes_no_memory(runtime: Runtime) -> None:
    """Nothing refers to it, not even a cycle that the garbage collector would have to find."""
    gc.collect()
    before = count_lanes()
    gc.disable()
    try:
        for number in range(20 * FEW):
            await runtime.client.call(add, f"acme/o-{number}", 1)
            await runtime.client.call(read, f"acme/o-{number}")
        # What was called a moment ago is remembered for a moment.
        await eventually(lambda: count_lanes() - before <= FEW, "nothing refers to the others")
    finally:
        gc.enable()


def count_lanes() -> int:
    return sum(isinstance(each, Lane) for each in gc.get_objects())


async def test_a_lane_that_was_used_lately_stays(runtime: Runtime) -> None:
    """One object that is called again and again between others is read once."""
    await runtime.client.call(add, "acme/often", 1)
    lane = lanes_of(runtime)["acme/often"]
    for number in range(10 * FEW):
        await runtime.client.call(add, f"acme/o-{number}", 1)
        await runtime.client.call(add, "acme/often", 1)

    assert lanes_of(runtime)["acme/often"] is lane


async def test_a_lane_with_work_stays(runtime: Runtime) -> None:
    """However many others come: what runs in it, and what waits behind that, goes on and is told to its callers."""
    doors["acme/busy"] = asyncio.Event()
    running = asyncio.ensure_future(runtime.client.call(add_behind_a_door, "acme/busy", 1))
    waiting = asyncio.ensure_future(runtime.client.call(add, "acme/busy", 1))
    await eventually(lambda: "acme/busy" in lanes_of(runtime), "it has begun")
    lane = lanes_of(runtime)["acme/busy"]
    for number in range(10 * FEW):
        await runtime.client.call(add, f"acme/o-{number}", 1)

    assert lanes_of(runtime)["acme/busy"] is lane
    doors["acme/busy"].set()
    assert await running == 1
    assert await waiting == 2


async def test_a_paused_invocation_leaves_memory_and_goes_on_when_it_is_resumed(runtime: Runtime) -> None:
    """With what waits behind it, in order, and its idempotency key stands for it all the while."""
    broken.add("acme/paused")
    with pytest.raises(InvocationPaused) as paused:
        await runtime.client.call(stumble, "acme/paused", idempotency_key="k")
    behind = await runtime.client.send(add, "acme/paused", 1)
    await behind.accepted(timeout=10)
    for number in range(10 * FEW):
        await runtime.client.call(add, f"acme/o-{number}", 1)
    await eventually(lambda: "acme/paused" not in lanes_of(runtime), "its lane has left")
    assert all(not partition.open and not partition.claims for partition in runtime.worker.partitions)

    assert paused.value.invocation_id is not None
    with pytest.raises(InvocationPaused):
        await runtime.client.call(stumble, "acme/paused", idempotency_key="k")
    broken.clear()
    await runtime.client.resume(paused.value.invocation_id, by="tests", reason="repaired")
    assert await runtime.client.attach(paused.value.invocation_id, int).result(timeout=10) == 1
    assert await behind.result(timeout=10) == 2
    assert await runtime.client.call(stumble, "acme/paused", idempotency_key="k") == 1
    assert await runtime.client.call(read, "acme/paused") == 2


async def test_a_copy_of_a_request_is_known_after_its_lane_has_left(runtime: Runtime) -> None:
    """A submission whose answer was lost comes twice, and the second one may be read late."""
    broken.add("acme/copied")
    with pytest.raises(InvocationPaused):
        await runtime.client.call(stumble, "acme/copied")
    raw_id = new_invocation_id()
    request = Request(RequestKind.SEND, raw_id, "add", "acme/copied", pack(1))
    (partition,) = (each for each in runtime.worker.partitions if "acme/copied" in each.lanes)
    await submit(runtime.client.store, partition.space, request)
    await eventually(lambda: raw_id in partition.open and partition.open[raw_id].accepted, "it is taken in")
    for number in range(10 * FEW):
        await runtime.client.call(add, f"acme/o-{number}", 1)
    await eventually(lambda: "acme/copied" not in partition.lanes, "its lane has left")

    await runtime.client.store.call("XADD", partition.space.inbox, "*", "m", request.encode())
    runtime.worker._inboxes.look_everywhere()  # pyright: ignore[reportPrivateUsage]
    await eventually_answers(lambda: is_empty(runtime, partition), "the copy is taken out")
    assert "acme/copied" not in partition.lanes


async def is_empty(runtime: Runtime, partition: Partition) -> bool:
    return await runtime.client.store.call("XLEN", partition.space.inbox) == 0


async def test_invocations_that_were_set_aside_take_no_memory(runtime: Runtime) -> None:
    """They are found by their ids when they are resumed."""
    broken.update(f"acme/aside-{number}" for number in range(20))
    ids: list[str] = []
    for number in range(20):
        with pytest.raises(InvocationPaused) as paused:
            await runtime.client.call(stumble_aside, f"acme/aside-{number}", idempotency_key="k")
        assert paused.value.invocation_id is not None
        ids.append(paused.value.invocation_id)
    for partition in runtime.worker.partitions:
        assert (partition.open, partition.parked, partition.claims) == ({}, {}, {})

    broken.clear()
    for invocation_id in ids:
        await runtime.client.resume(invocation_id, by="tests", reason="repaired")
        assert await runtime.client.attach(invocation_id, int).result(timeout=10) == 1
    for partition in runtime.worker.partitions:
        assert (partition.open, partition.parked) == ({}, {})


async def test_an_invocation_that_could_not_be_resumed_takes_no_memory_either(runtime: Runtime) -> None:
    """It was read to see whether it can go on, and is let go of when it can't."""
    broken.add("acme/lost")
    with pytest.raises(InvocationPaused) as paused:
        await runtime.client.call(stumble_aside, "acme/lost")
    assert paused.value.invocation_id is not None
    (partition,) = (each for each in runtime.worker.partitions if each.space.type_name == "Aside")
    stream = partition.space.invocation(parse_id(paused.value.invocation_id).raw)
    (newest,) = await runtime.client.store.call("XREVRANGE", stream, "+", "-", "COUNT", 1)
    await runtime.client.store.call("XDEL", stream, newest[0])
    await runtime.client.store.call("XADD", stream, "*", "r", encode(Paused(PauseReason.UNDECODABLE, "bad bytes")))

    with pytest.raises(CallError, match="can't be read"):
        await runtime.client.resume(paused.value.invocation_id, by="tests", reason="why not")
    assert (partition.open, partition.parked) == ({}, {})


async def test_a_lane_stays_while_an_errand_is_about_to_go_on_with_it(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what it does would be done to a lane that nobody knows, beside one that somebody made anew."""
    broken.add("acme/errand")
    with pytest.raises(InvocationPaused) as paused:
        await runtime.client.call(stumble_aside, "acme/errand")
    broken.clear()
    read_invocations = finding.read_invocations
    lanes: list[Lane] = []

    async def slowly(*arguments: Any) -> Any:
        lanes.append(lanes_of(runtime)["acme/errand"])
        for number in range(10 * FEW):
            await runtime.client.call(add, f"acme/o-{number}", 1)
        lanes.append(lanes_of(runtime)["acme/errand"])
        return await read_invocations(*arguments)

    monkeypatch.setattr(finding, "read_invocations", slowly)
    assert paused.value.invocation_id is not None
    await runtime.client.resume(paused.value.invocation_id, by="tests", reason="repaired")
    assert await runtime.client.attach(paused.value.invocation_id, int).result(timeout=10) == 1
    assert lanes[0] is lanes[1]


async def test_a_lane_stays_while_somebody_here_waits_behind_a_paused_invocation(runtime: Runtime) -> None:
    """The one who called is told when it goes on."""
    broken.add("acme/awaited")
    with pytest.raises(InvocationPaused) as paused:
        await runtime.client.call(stumble, "acme/awaited")
    waiting = asyncio.ensure_future(runtime.client.call(add, "acme/awaited", 1))
    await eventually(lambda: _is_accepted(runtime, "acme/awaited"), "it is durable")
    for number in range(10 * FEW):
        await runtime.client.call(add, f"acme/o-{number}", 1)

    broken.clear()
    assert paused.value.invocation_id is not None
    await runtime.client.resume(paused.value.invocation_id, by="tests", reason="repaired")
    with anyio.fail_after(10):
        assert await waiting == 2


def _is_accepted(runtime: Runtime, key: str) -> bool:
    queue = lanes_of(runtime)[key].queue
    return len(queue) == 2 and queue[1].accepted


async def test_a_lane_stays_while_something_in_it_is_not_durable(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was read from the inbox and not taken in yet lies nowhere else, for this owner."""
    broken.add("acme/undurable")
    with pytest.raises(InvocationPaused):
        await runtime.client.call(stumble, "acme/undurable")

    def never(_: Acceptances) -> None:
        """Take nothing in."""

    monkeypatch.setattr(Acceptances, "accept_late_ones", never)
    await runtime.client.send(add, "acme/undurable", 1)
    lane = lanes_of(runtime)["acme/undurable"]
    await eventually(lambda: len(lane.queue) == 2, "it is read")
    for number in range(10 * FEW):
        await runtime.client.call(add, f"acme/o-{number}", 1)

    assert lanes_of(runtime)["acme/undurable"] is lane


async def test_the_lanes_of_a_lost_partition_are_forgotten(runtime: Runtime) -> None:
    """They belong to somebody else now."""
    for number in range(FEW):
        await runtime.client.call(add, f"acme/o-{number}", 1)
    for partition in list(runtime.worker.partitions):
        partition.lose()

    assert len(residency_of(runtime)) == 0


async def test_the_hand_looks_at_few_lanes_for_each_that_comes(runtime: Runtime) -> None:
    """Where all are busy, a call does not pay for looking at each of them."""

    class Busy:
        looks = 0
        key_text = "acme/busy"
        was_used = True

        def __init__(self) -> None:
            self.partition = self
            self.lanes = {self.key_text: self}

        @property
        def is_at_rest(self) -> bool:
            Busy.looks += 1
            return False

    ring = Residency(10)
    for _ in range(1_000):
        lane = Busy()
        lane.was_used = False
        ring.enter(lane)  # pyright: ignore[reportArgumentType], all that is looked at of a lane
    assert Busy.looks <= 1_000 * LOOKS_PER_ENTRY
    assert len(ring) == 1_000
