"""A tenant that asks for much does not make another one wait: slots go to tenants in turn, whatever lies in between."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from keylane import Client, ObjectContext, Overloaded, Runtime, VirtualObject
from keylane.journal.key import partition_of
from keylane.objects.settings import Settings
from keylane.runtime.intake import CALLS_PER_SLOT

pytestmark = pytest.mark.anyio

#: Few slots make them what is scarce.
SLOTS = 8
SETTINGS = Settings(lane_slots=SLOTS, lease_seconds=1, renewal_seconds=0.2)
FEW = 10
#: Calls of the large tenant for each worker.
CROWD = 100
#: The first slot that becomes free is the one over the limit; the next goes to the large tenant if it has its turn.
TURNS = 3
WAIT_SECONDS = 30


class Gate:
    """Where the calls of one worker stand that hold its slots, until they are let through one by one."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.passed: Counter[str] = Counter()
        self._permits = {tenant: anyio.Semaphore(0) for tenant in ("large", "other")}

    async def enter(self, tenant: str) -> None:
        """Count a call, and keep it unless it is one of the small tenant."""
        self.begun[tenant] += 1
        if tenant in self._permits:
            await self._permits[tenant].acquire()
        self.passed[tenant] += 1

    @property
    def inside(self) -> int:
        """How many calls hold a slot here."""
        return self.begun.total() - self.passed.total()

    def let_through(self, tenant: str) -> None:
        """Let the slot of one call become free."""
        self._permits[tenant].release()


def desk(partitions: int, gate: Gate | None = None) -> Any:
    made = VirtualObject("Desk", owner="tests", partitions=partitions)

    @made.handler
    async def work(ctx: ObjectContext) -> None:  # pyright: ignore[reportUnusedFunction]
        if gate is not None:
            await gate.enter(ctx.key.tenant)

    @made.handler
    async def hold(ctx: ObjectContext) -> None:  # pyright: ignore[reportUnusedFunction]
        await anyio.sleep_forever()

    return made


async def until(check: Callable[[], bool]) -> None:
    with anyio.fail_after(WAIT_SECONDS):
        while not check():
            await anyio.sleep(0.01)


def key_at(runtime: Runtime, partitions: int) -> str:
    """Return a key of the tenant `other` that a worker holds."""
    held = {each.space.number for each in runtime.worker.partitions}
    return next(key for key in (f"other/{n}" for n in range(1000)) if partition_of(key, partitions) in held)


@pytest.mark.parametrize(("partitions", "workers"), [(1, 1), (16, 1), (16, 2)])
async def test_a_tenant_with_few_calls_waits_for_its_turn_only_beside_one_with_many(
    store_url: str, namespace: str, partitions: int, workers: int
) -> None:
    """Also with the keys of both in one partition, with several partitions, and on several workers.

    It is counted how many slots have to become free, and not how long that takes.
    """
    settings = SETTINGS.model_copy(update={"lease_seconds": 10, "renewal_seconds": 1, "drain_limit_seconds": 0.1})
    gates = [Gate() for _ in range(workers)]
    async with contextlib.AsyncExitStack() as stack:
        runtimes = [
            await stack.enter_async_context(
                Runtime([desk(partitions, gate)], store=store_url, namespace=namespace, settings=settings)
            )
            for gate in gates
        ]
        await until(lambda: has_its_share(runtimes, partitions))
        client = await stack.enter_async_context(Client(store_url, namespace=namespace))
        crowd = CROWD * workers
        for number in range(crowd):
            await client.send("Desk", f"large/{number}", "work")
        await until(lambda: waiting(runtimes) == crowd - SLOTS * workers)
        freed: list[int] = []
        for number in range(FEW):
            # The slot for those who come anew has to be taken, or none of them waits for a turn.
            for runtime in runtimes:
                await client.send("Desk", key_at(runtime, partitions), "work")
            await until(lambda: all(gate.begun["other"] == len(freed) + 1 for gate in gates))
            freed.append(await slots_freed_for(client, f"small/{number}", runtimes, gates))

    assert max(freed) > 1, freed


def has_its_share(runtimes: list[Runtime], partitions: int) -> bool:
    """Return whether every partition is held, and none is about to be handed over."""
    wanted = [len(each.worker._ownership._wanted()) for each in runtimes]
    return sum(wanted) == partitions and [len(each.worker.partitions) for each in runtimes] == wanted


def waiting(runtimes: list[Runtime]) -> int:
    return sum(each.worker._slots.waiting for each in runtimes)


def is_still(runtimes: list[Runtime], gates: list[Gate]) -> bool:
    """Return whether there is a call at the gate in every slot."""
    return all(gate.inside == each.worker._slots._slots for each, gate in zip(runtimes, gates, strict=True))


async def slots_freed_for(client: Client, key: str, runtimes: list[Runtime], gates: list[Gate]) -> int:
    """Have the small tenant make a call, and return how many slots each worker had to free until it began."""
    before, waited = small_begun(gates), waiting(runtimes)
    handle = await client.send("Desk", key, "work")
    await until(lambda: waiting(runtimes) == waited + 1)
    freed = 0
    while small_begun(gates) == before:
        assert freed < TURNS, f"{key} got none of the {freed} slots of each worker that became free"
        await let_through("large", runtimes, gates)
        freed += 1
    await handle.result(timeout=WAIT_SECONDS)
    await let_through("other", runtimes, gates)
    return freed


def small_begun(gates: list[Gate]) -> int:
    return sum(gate.begun["small"] for gate in gates)


async def let_through(tenant: str, runtimes: list[Runtime], gates: list[Gate]) -> None:
    """Let a slot of each worker become free, and wait until others have what was free."""
    goals = [gate.passed[tenant] + 1 for gate in gates]
    for gate in gates:
        gate.let_through(tenant)
    await until(lambda: [gate.passed[tenant] for gate in gates] == goals and is_still(runtimes, gates))


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
