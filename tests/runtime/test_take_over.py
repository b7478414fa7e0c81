"""Taking partitions over: in one turn for all of them, and for as much work as there is that can go on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import InvocationPaused, ObjectContext, RetryPolicy, Runtime, VirtualObject
from keylane.journal.errors import InternalError, StoreUnavailable
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.leases import acquire, observe
from keylane.journal.observer import NoObserver
from keylane.journal.store import Store
from keylane.journal.tenure import Acquired, Observation
from keylane.objects.settings import Settings
from keylane.runtime import ownership, worker
from keylane.runtime.invocation import Invocation
from tests.faults.harness import eventually

pytestmark = pytest.mark.anyio

PARTITIONS = 24
BRISK = Settings(lease_seconds=1, renewal_seconds=0.2)

#: A call that fails is paused at once, and holds its lane.
shelf = VirtualObject(
    "Shelf", owner="tests", partitions=4, retry=RetryPolicy(first=timedelta(milliseconds=1), attempts=1)
)
gates: list[anyio.Event] = []
doors: dict[str, anyio.Event] = {}
runs: list[str] = []
watched: list[Invocation] = []


@shelf.handler
async def park(ctx: ObjectContext) -> None:
    raise ValueError("for somebody to look at")


@shelf.handler
async def hold(ctx: ObjectContext) -> str:
    await gates[-1].wait()
    return "held"


@shelf.handler
async def fine(ctx: ObjectContext) -> str:
    return "fine"


@shelf.handler(retry=RetryPolicy(first=timedelta(milliseconds=1), attempts=3))
async def asks(ctx: ObjectContext) -> str:
    """Wait for another object; the second attempt comes to that when the end of the wait is just on its way."""
    runs.append(str(ctx.key))
    if len(runs) == 1:
        with anyio.move_on_after(0.05):
            await ctx.call(open_up, "acme/asked")
        raise ValueError("not in time")
    while not watched or watched[-1].standing is None or watched[-1].standing.waits:
        await asyncio.sleep(0)
    return await ctx.call(open_up, "acme/asked")


@shelf.handler
async def open_up(ctx: ObjectContext) -> str:
    await doors[str(ctx.key)].wait()
    return "open"


class Acquisitions(NoObserver):
    """Notes how many acquisitions were sent before the first was answered."""

    def __init__(self) -> None:
        self.sent = 0
        self.sent_before_an_answer = 0

    def before_send(self, what: str, partition: str, number: int) -> None:
        """Note one."""
        del partition, number
        self.sent += what == "acquire"

    def after_answer(self, what: str, partition: str, number: int) -> None:
        """Note what was sent until the first answer."""
        del partition, number
        if what == "acquire" and not self.sent_before_an_answer:
            self.sent_before_an_answer = self.sent


async def test_all_free_partitions_are_acquired_in_one_turn(store_url: str, namespace: str) -> None:
    """A worker that takes over a hundred of them does not wait for the store a hundred times."""
    wide = VirtualObject("Wide", owner="tests", partitions=PARTITIONS)
    wide.handler(name="fine")(fine.function)
    seen = Acquisitions()

    async with Runtime([wide], store=store_url, namespace=namespace, observer=seen) as runtime:
        assert len(runtime.worker.partitions) == PARTITIONS

    assert seen.sent_before_an_answer == PARTITIONS


async def test_a_new_owner_reads_what_can_go_on_and_nothing_that_is_parked(store_url: str, namespace: str) -> None:
    """However many invocations wait for somebody, a take-over is about those that wait for a worker."""
    gates.append(anyio.Event())
    async with Runtime([shelf], store=store_url, namespace=namespace, settings=BRISK) as runtime:
        for number in range(200):
            with pytest.raises(InvocationPaused):
                await runtime.client.call(park, f"acme/parked-{number}")
        handles = [await runtime.client.send(hold, f"acme/held-{number}") for number in range(5)]
        for partition in runtime.worker.partitions:
            partition.lose()

    async with Runtime([shelf], store=store_url, namespace=namespace, settings=BRISK) as successor:
        with anyio.fail_after(10):
            while sum(len(each.lanes) for each in successor.worker.partitions) < len(handles):
                await anyio.sleep(0.01)
        lanes = [key for partition in successor.worker.partitions for key in partition.lanes]
        gates[-1].set()
        assert [await successor.client.attach(each.id, str).result(timeout=10) for each in handles] == ["held"] * 5

        parked = (await successor.client.inspect("Shelf", "acme/parked-7")).lane.open

    assert sorted(lanes) == [f"acme/held-{number}" for number in range(5)]
    assert [each.status for each in parked] == ["paused"]


async def test_a_worker_that_leaves_hands_over_what_it_was_just_acquiring(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers to its acquisitions come while it drains: were they left unread, a lease would have to run out."""
    answers = anyio.Event()

    async def acquire_slowly(*arguments: Any, **options: Any) -> Acquired | None:
        acquired = await acquire(*arguments, **options)
        await answers.wait()
        return acquired

    monkeypatch.setattr(ownership, "acquire", acquire_slowly)
    monkeypatch.setattr(worker, "FIRST_LOOK_SECONDS", 0.1)
    async with Store(store_url, namespace=namespace) as store:
        spaces = [store.space("Shelf", number) for number in range(4)]
        async with Runtime([shelf], store=store_url, namespace=namespace, settings=BRISK):
            asyncio.get_running_loop().call_later(0.3, answers.set)
        seen = (await observe(store, spaces)).seen

    assert [isinstance(each, Observation) and each.released for each in seen] == [True] * 4


async def test_a_partition_that_can_not_be_acquired_costs_no_other_one(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong with one of a turn, the others are owned, and it is tried again."""
    failures = [0]

    async def acquire_or_fail(store: Store, space: PartitionSpace, *arguments: Any, **options: Any) -> Acquired | None:
        if space.number == 2 and failures[0] < 2:
            failures[0] += 1
            raise [InternalError("a surprise"), StoreUnavailable("the store", "away")][failures[0] % 2]
        return await acquire(store, space, *arguments, **options)

    monkeypatch.setattr(ownership, "acquire", acquire_or_fail)
    async with Runtime([shelf], store=store_url, namespace=namespace, settings=BRISK) as runtime:
        first = {each.number for each in runtime.worker.partitions}
        with anyio.fail_after(10):
            while len(runtime.worker.partitions) < 4:
                await anyio.sleep(0.01)

    assert first >= {0, 1, 3}
    assert failures == [2]
    assert "a surprise" in caplog.text


@pytest.mark.counts_runs
async def test_a_lane_that_goes_on_is_among_the_runnable_ones_though_its_holder_was_just_run_again(
    store_url: str, namespace: str
) -> None:
    """The word that it stands still must not come behind the end of the wait: a crash would leave it standing."""
    runs.clear()
    watched.clear()
    doors.update({"acme/asked": anyio.Event(), "acme/asking": anyio.Event()})
    async with Runtime([shelf], store=store_url, namespace=namespace, settings=BRISK) as runtime:
        client = runtime.client
        first = await client.send(asks, "acme/asking")
        behind = await client.send(open_up, "acme/asking")
        assert await behind.accepted(timeout=10) is not None
        await eventually(lambda: len(runs) > 1, "it is run again")
        partition = next(each for each in runtime.worker.partitions if "acme/asking" in each.lanes)
        watched.append(partition.lanes["acme/asking"].queue[0])
        doors["acme/asked"].set()
        assert await first.result(timeout=10) == "open"
        runnable = await client.store.call("SISMEMBER", partition.space.runnable, "acme/asking")
        doors["acme/asking"].set()
        assert await behind.result(timeout=10) == "open"

    assert runnable == 1
