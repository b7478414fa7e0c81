"""What a worker keeps in memory is bounded, whatever it has done; only lanes stay, as many as may."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import (
    InvocationFailed,
    InvocationPaused,
    ObjectContext,
    RetryableError,
    RetryPolicy,
    Runtime,
    TerminalError,
    VirtualObject,
    WrongKeyType,
)
from keylane.journal import writer as writer_module
from keylane.journal.batch import Batch, Commit, build_batch
from keylane.journal.writer import OPERATIONS_PER_BATCH, PartitionWriter
from keylane.objects.settings import Settings
from keylane.runtime.acceptances import Acceptances
from keylane.runtime.invocation import Hold
from keylane.runtime.timers import Timers
from keylane.testing import shift_clock
from tests.faults.harness import eventually

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=3)
mill = VirtualObject("Mill", owner="tests", partitions=2, state={"count": int}, retry=QUICK)
sleepers = VirtualObject("Sleepers", owner="tests", partitions=1)
runs: dict[str, int] = {}


@mill.handler
async def add(ctx: ObjectContext, number: int) -> int:
    count = await ctx.get("count", int, 0) + number
    ctx.set("count", count)
    return count


@sleepers.handler
async def nap(ctx: ObjectContext) -> int:
    if ctx.attempt == 1:
        raise RetryableError("not yet", retry_after=3600)
    return ctx.attempt


@mill.handler
async def fail(ctx: ObjectContext) -> None:
    raise TerminalError("no")


@mill.handler
async def fail_once(ctx: ObjectContext) -> int:
    if ctx.attempt == 1:
        raise ValueError("once")
    return ctx.attempt


@mill.handler
async def steps(ctx: ObjectContext) -> int:
    async def step() -> int:
        return 1

    return await ctx.run("a", step) + await ctx.run("b", step)


@mill.handler
async def later(ctx: ObjectContext) -> None:
    if ctx.attempt == 1:
        raise RetryableError("tomorrow", retry_after=86_400)


@mill.handler
async def stubborn(ctx: ObjectContext) -> int:
    key = str(ctx.key)
    runs[key] = runs.get(key, 0) + 1
    if ctx.attempt == 1:
        raise ValueError("again")
    return ctx.attempt


async def test_nothing_of_an_ended_call_stays(store_url: str, namespace: str) -> None:
    """Thousands of calls of every kind leave no invocation, claim, wait or timer behind."""
    async with Runtime([mill], store=store_url, namespace=namespace) as runtime:
        client = runtime.client

        async def caller(own: int) -> None:
            for number in range(60):
                key = f"acme/{(own * 7 + number) % 20}"
                await client.call(add, key, 1)
                await client.call(add, key, 1, idempotency_key=f"{own}-{number}")
                await client.call(fail_once, key)
                await client.call(steps, key)
                with pytest.raises(InvocationFailed):
                    await client.call(fail, key)

        await asyncio.gather(*(caller(own) for own in range(16)))
        acceptances: Acceptances = runtime.worker._acceptances  # pyright: ignore[reportPrivateUsage]
        timers: Timers = runtime.worker._timers  # pyright: ignore[reportPrivateUsage]
        with anyio.fail_after(5):
            while acceptances.unaccepted:
                await anyio.sleep(0.005)
        assert len(timers._ask_times) <= 2  # pyright: ignore[reportPrivateUsage]
        for partition in runtime.worker.partitions:
            kept = (partition.open, partition.claims, partition.waiting, partition.sleepers, partition.serving)
            assert [len(each) for each in kept] == [0] * len(kept)
            assert not partition._ended  # pyright: ignore[reportPrivateUsage]
            assert all(lane.queue == [] and lane.is_settled for lane in partition.lanes.values())


async def test_a_far_due_time_costs_one_timer_however_often_it_is_looked_at(store_url: str, namespace: str) -> None:
    """The sweep looks each second; what it finds to be due tomorrow is not noted down again each time."""
    async with Runtime([mill], store=store_url, namespace=namespace, settings=Settings(sweep_seconds=0.005)) as runtime:
        timers: Timers = runtime.worker._timers  # pyright: ignore[reportPrivateUsage]
        handle = await runtime.client.send(later, "acme/a")
        with anyio.fail_after(10):
            while (await handle.describe()).status != "waiting":
                await anyio.sleep(0.01)
        for _ in range(50):
            await runtime.worker.look_for_due()
        assert len(timers._ask_times) <= 2  # pyright: ignore[reportPrivateUsage]


async def test_calls_to_an_object_that_can_not_be_read_are_forgotten(store_url: str, namespace: str) -> None:
    """A foreign key stands where the object belongs: each call is told so, and leaves nothing to be accepted later."""
    async with Runtime([mill], store=store_url, namespace=namespace) as runtime:
        store = runtime.client.store
        for number in (0, 1):
            await store.call("SET", store.space("Mill", number).object("acme/foreign"), "x")
        for number in range(10):
            key = None if number % 2 else f"k{number}"
            with pytest.raises(WrongKeyType):
                await runtime.client.call(add, "acme/foreign", 1, idempotency_key=key)
        acceptances: Acceptances = runtime.worker._acceptances  # pyright: ignore[reportPrivateUsage]
        with anyio.fail_after(5):
            while acceptances.unaccepted:
                await anyio.sleep(0.005)
        assert await runtime.client.call(add, "acme/mine", 1) == 1


async def test_a_long_backlog_is_taken_in_by_commits_of_bounded_size(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commit is one function call, however much it writes; all of them are taken in, in order."""
    sizes: list[int] = []
    commit = PartitionWriter.commit

    def noted(writer: PartitionWriter, what: Commit) -> None:
        sizes.append(len(what.operations))
        commit(writer, what)

    def never(_: Acceptances) -> None:
        """Leave it to the one who asks for the last of them."""

    monkeypatch.setattr(PartitionWriter, "commit", noted)
    async with Runtime([mill], store=store_url, namespace=namespace) as runtime:
        client = runtime.client
        await client.send(later, "acme/a")
        await eventually(lambda: any("acme/a" in each.lanes for each in runtime.worker.partitions), "it is read")
        partition = next(each for each in runtime.worker.partitions if "acme/a" in each.lanes)
        queue = partition.lanes["acme/a"].queue
        await eventually(lambda: queue and queue[0].hold is Hold.RETRYING, "it waits")
        monkeypatch.setattr(Acceptances, "accept_late_ones", never)
        waiting = [asyncio.ensure_future(client.call(add, "acme/a", 1)) for _ in range(500)]
        await eventually(lambda: len(queue) == 501, "they wait behind it")
        await runtime.worker._acceptances.accept_now(partition, queue[-1].raw_id)  # pyright: ignore[reportPrivateUsage]
        assert await client.store.call("LLEN", partition.space.lane("acme/a")) == 501
        await shift_clock(runtime, timedelta(days=1))
        assert [await each for each in waiting] == list(range(1, 501))
    assert max(sizes) <= OPERATIONS_PER_BATCH


async def test_very_many_that_fall_due_at_once_are_ended_by_calls_of_bounded_size(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each end writes to keys of its own, so that a call with many of them would hold up everybody else."""
    sizes: list[int] = []

    def noted(*facts: Any) -> Batch:
        batch = build_batch(*facts)
        sizes.append(sum(len(commit.operations) for commit in batch.commits))
        return batch

    async with Runtime([sleepers], store=store_url, namespace=namespace) as runtime:
        handles = [await runtime.client.send(nap, f"acme/{number}") for number in range(300)]
        (partition,) = runtime.worker.partitions
        await eventually(lambda: len(partition.waiting) == len(handles), "all of them wait")
        monkeypatch.setattr(writer_module, "build_batch", noted)
        await shift_clock(runtime, timedelta(hours=1))
        assert [await handle.result(timeout=20) for handle in handles] == [2] * len(handles)
    assert sum(sizes) >= 5 * len(handles)
    assert max(sizes) <= 100


async def test_what_the_store_refuses_again_and_again_does_not_run_without_end(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane rests longer after each refusal, others go on, and what is open goes on once the store is repaired."""
    monkeypatch.setattr("keylane.runtime.partition.UNREAD_AGAIN_SECONDS", 0.1)
    runs.clear()
    settings = Settings(sweep_seconds=0.05)
    async with Runtime([mill], store=store_url, namespace=namespace, settings=settings) as runtime:
        store = runtime.client.store
        spaces = [store.space("Mill", number) for number in (0, 1)]
        for space in spaces:
            await store.call("SET", space.due, "foreign")
        handle = await runtime.client.send(stubborn, "acme/refused")
        for number in range(300):
            assert await runtime.client.call(add, f"acme/{number % 7}", 1, timeout=10) == number // 7 + 1
        with anyio.fail_after(10):
            while "acme/refused" not in runs:
                await anyio.sleep(0.005)
        assert runs["acme/refused"] <= 8
        for space in spaces:
            await store.call("DEL", space.due)
        # Nobody calls the object: the owner comes back to it by itself.
        assert await handle.result(timeout=20) == 2
        assert (await runtime.client.inspect("Mill", "acme/refused")).lane.open == ()


async def test_workers_that_come_and_go_lose_and_repeat_no_call(store_url: str, namespace: str) -> None:
    """Sixty-four callers of one worker while a second one joins and leaves: each is answered once, the sum is exact."""
    answers: list[int] = []
    stop = anyio.Event()
    settings = Settings(lease_seconds=1, renewal_seconds=0.2)

    async def caller(own: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            answers.append(await runtime.client.call(add, f"acme/{(own + number) % 5}", 1))

    async with Runtime([mill], store=store_url, namespace=namespace, settings=settings) as runtime:
        callers = [asyncio.ensure_future(caller(own)) for own in range(64)]
        for _ in range(4):
            async with Runtime([mill], store=store_url, namespace=namespace, settings=settings) as second:
                with anyio.move_on_after(3):
                    while not second.worker.partitions:
                        await anyio.sleep(0.01)
        stop.set()
        with anyio.fail_after(20):
            await asyncio.gather(*callers)
        counts = [await runtime.client.call(add, f"acme/{number}", 0) for number in range(5)]
    assert sum(counts) == len(answers)
    assert len(answers) > 64


async def test_retries_go_on_where_they_were_with_a_later_owner(store_url: str, namespace: str) -> None:
    """Attempts are counted on and the pause is waited out, not begun anew."""
    tries: list[float] = []
    late = VirtualObject("Late", owner="tests", partitions=1)
    policy = RetryPolicy(first=timedelta(seconds=1), factor=1, cap=timedelta(seconds=1), attempts=3, jitter=0)

    @late.handler(retry=policy)
    async def work(ctx: ObjectContext) -> None:
        tries.append(asyncio.get_running_loop().time())
        raise ValueError(f"attempt {ctx.attempt}")

    async with Runtime([late], store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(work, "acme/a")
        with anyio.fail_after(10):
            while (await handle.describe()).status != "waiting":
                await anyio.sleep(0.01)
    async with Runtime([late], store=store_url, namespace=namespace) as runtime:
        with pytest.raises(InvocationPaused, match="attempt 3"):
            await runtime.client.attach(handle.id).result(timeout=20)
    assert len(tries) == 3
    assert all(1.0 <= after - before < 10.0 for before, after in itertools.pairwise(tries))
