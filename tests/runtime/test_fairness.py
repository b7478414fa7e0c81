"""A tenant that asks for much does not make another one wait: slots go to tenants in turn, whatever lies in between."""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any

import anyio
import pytest

from keylane import Client, ObjectContext, Overloaded, Runtime, VirtualObject
from keylane.objects.settings import Settings
from keylane.runtime.intake import CALLS_PER_SLOT

pytestmark = pytest.mark.anyio

#: What each call takes of a slot, in seconds; few slots make them what is scarce.
WORK_SECONDS = 0.05
SLOTS = 8
SETTINGS = Settings(lane_slots=SLOTS, lease_seconds=1, renewal_seconds=0.2)
FEW = 10
#: So many calls of the large tenant that the small one's are over before they are.
CROWD = 400


def desk(partitions: int) -> Any:
    made = VirtualObject("Desk", owner="tests", partitions=partitions)

    @made.handler
    async def work(ctx: ObjectContext) -> None:  # pyright: ignore[reportUnusedFunction]
        await anyio.sleep(WORK_SECONDS)

    @made.handler
    async def hold(ctx: ObjectContext) -> None:  # pyright: ignore[reportUnusedFunction]
        await anyio.sleep_forever()

    return made


async def waits(client: Client) -> list[float]:
    """Have the small tenant make its calls one after the other, and return how long each took."""
    took: list[float] = []
    for number in range(FEW):
        begun = time.monotonic()
        await client.call("Desk", f"small/{number}", "work", timeout=30)
        took.append(time.monotonic() - begun)
    return took


@pytest.mark.nightly  # it measures time, and a machine that is busy with other tests has none to be measured
@pytest.mark.parametrize(("partitions", "workers"), [(1, 1), (16, 1), (16, 2)])
async def test_a_tenant_with_few_calls_waits_no_twice_as_long_beside_one_with_many(
    store_url: str, namespace: str, partitions: int, workers: int
) -> None:
    """Also with the keys of both in one partition, with several partitions, and on several workers."""
    app = [desk(partitions)]
    async with contextlib.AsyncExitStack() as stack:
        runtimes = [
            await stack.enter_async_context(Runtime(app, store=store_url, namespace=namespace, settings=SETTINGS))
            for _ in range(workers)
        ]
        with anyio.fail_after(10):
            while not all(each.worker.partitions for each in runtimes):
                await anyio.sleep(0.01)
        client = await stack.enter_async_context(Client(store_url, namespace=namespace))
        alone = await waits(client)
        for number in range(CROWD * workers):
            await client.send("Desk", f"large/{number}", "work")
        beside = await waits(client)
        assert sum(each.worker._slots.waiting for each in runtimes) > SLOTS

    assert statistics.median(beside) < 2 * statistics.median(alone), (alone, beside)


async def test_a_tenant_that_fills_a_worker_keeps_no_other_one_out(store_url: str, namespace: str) -> None:
    """At the bound of what a worker has in hand, whoever has less than its share is still taken in."""
    full = SLOTS * CALLS_PER_SLOT
    settings = SETTINGS.model_copy(update={"drain_limit_seconds": 0.1})
    async with Runtime([desk(1)], store=store_url, namespace=namespace, settings=settings) as runtime:
        handles = [await runtime.client.send("Desk", f"large/{number}", "hold") for number in range(full + 1)]
        for handle in handles[:-1]:
            await handle.accepted(timeout=10)
        with pytest.raises(Overloaded):
            await handles[-1].accepted(timeout=10)

        small = await runtime.client.send("Desk", "small/one", "hold")

        assert await small.accepted(timeout=10)


async def test_handlers_that_never_end_in_every_slot_keep_no_other_tenant_waiting(
    store_url: str, namespace: str
) -> None:
    """A few slots are there for tenants that find all the others taken, and more than enough waiting."""
    settings = SETTINGS.model_copy(update={"drain_limit_seconds": 0.1})
    async with Runtime([desk(16)], store=store_url, namespace=namespace, settings=settings) as runtime:
        for number in range(3 * SLOTS):
            await runtime.client.send("Desk", f"large/{number}", "hold")
        slots = runtime.worker._slots
        with anyio.fail_after(10):
            while slots.waiting < SLOTS:
                await anyio.sleep(0.01)

        for tenant in ("small", "other"):
            for number in range(3):
                await runtime.client.call("Desk", f"{tenant}/{number}", "work", timeout=10)

        assert slots._slots == SLOTS
