"""The doctor beside work of every kind: whatever it reads while things happen, it never takes for damage."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from keylane import (
    App,
    Client,
    InvocationPaused,
    ObjectContext,
    Overloaded,
    RetryableError,
    RetryPolicy,
    Runtime,
    StoreUnavailable,
    TerminalError,
    VirtualObject,
)
from keylane.journal.doctor.report import Report
from tests.faults.harness import StoreServer
from tests.runtime.ward import LEASE_SECONDS, OWNER, Ward, opened, settings

SWEEPS = 6
CALLERS = 12
LARGE_BYTES = 1200
#: Everything is short-lived and little is kept in memory.
RESTLESS: dict[str, Any] = {
    "retry_first_seconds": 0.002,
    "backlog_per_key": 60,
    "blob_threshold_bytes": 1024,
    "resident_lanes": 4,
    "waiting_residency_seconds": 0.03,
    "result_retention_seconds": 0.6,
}

QUICK = RetryPolicy(first=timedelta(milliseconds=2), cap=timedelta(milliseconds=20), attempts=3)


leaf = VirtualObject("Leaf", owner=OWNER, partitions=2, state={"seen": int, "large": bytes})


@leaf.handler
async def take(ctx: ObjectContext, seed: int) -> bytes:
    """Keep something that is often large, now and then after a while, and answer it."""
    if seed % 7 == 0:
        await ctx.sleep(timedelta(milliseconds=40))
    ctx.set("seen", seed)
    ctx.set("large", bytes([seed % 5]) * (seed % 4 * LARGE_BYTES))
    return await ctx.run("copy", copied, seed)


async def copied(seed: int) -> bytes:
    """Return something that is often large."""
    return bytes([seed % 5]) * (seed % 3 * LARGE_BYTES)


def busy(name: str, on_paused: Any) -> VirtualObject:
    """Return a type whose handlers end in every way, after steps, messages, sleeps, retries and pauses."""
    made = VirtualObject(name, owner=OWNER, partitions=2, state={"n": int}, retry=QUICK, on_paused=on_paused)

    @made.handler
    async def work(ctx: ObjectContext, seed: int) -> int:  # pyright: ignore[reportUnusedFunction]
        drawn = random.Random(seed)
        where = f"acme/{drawn.randrange(12)}"
        match drawn.randrange(8):
            case 0:
                await ctx.sleep(timedelta(milliseconds=drawn.randrange(1, 200)))
            case 1 | 2:
                await ctx.call(take, where, seed)
            case 3:
                await ctx.send(take, where, seed)
            case 4:
                await ctx.send(take, where, seed, delay=timedelta(milliseconds=drawn.randrange(1, 200)))
            case _:
                pass
        for number in range(drawn.randrange(4)):
            ctx.set("n", await ctx.run(f"step {number}", flaky_step, seed, retry=QUICK))
            await anyio.sleep(drawn.random() * 0.01)
        if drawn.random() < 0.3:
            await anyio.sleep(drawn.random() * 0.12)
        match drawn.randrange(12):
            case 0:
                raise TerminalError("no")
            case 1:
                raise ValueError("until it is paused")
            case 2 if random.random() < 0.6:
                raise RetryableError("again", retry_after=0.02)
            case _:
                return seed

    return made


async def flaky_step(seed: int) -> int:
    """Fail now and then."""
    if random.random() < 0.2:
        raise RetryableError("again", retry_after=0.01)
    return seed


APP = App([busy("Held", "hold"), busy("Skipped", "skip"), leaf])


@dataclass
class Load:
    """Callers that never rest, of which some don't wait and some come with idempotency keys.

    Args:
        clients: Who calls: of the owner's process, and of others.
        drawn: What they do.
    """

    clients: list[Client]
    drawn: random.Random
    ends: bool = False
    calls: int = 0
    paused: list[str] = field(default_factory=list[str])

    async def caller(self) -> None:
        """Call until told to end."""
        while not self.ends:
            self.calls += 1
            with anyio.move_on_after(0.5):
                await self._one(self.drawn.choice(self.clients))

    async def _one(self, client: Client) -> None:
        drawn = self.drawn
        name, key = drawn.choice(("Held", "Skipped")), f"acme/{drawn.randrange(8)}"
        idempotency_key = f"k{drawn.randrange(40)}" if drawn.random() < 0.3 else None
        seed = int(idempotency_key[1:]) if idempotency_key else drawn.randrange(1 << 30)
        try:
            match drawn.randrange(6):
                case 0:
                    await client.send(name, key, "work", seed, idempotency_key=idempotency_key)
                case 5:
                    await client.send(name, key, "work", seed, delay=timedelta(milliseconds=drawn.randrange(300)))
                case 1 if self.paused:
                    await client.resume(self.paused.pop(), reason="test", by="test")
                case _:
                    await client.call(name, key, "work", seed, idempotency_key=idempotency_key)
        except InvocationPaused as error:
            if error.invocation_id is not None:
                self.paused.append(error.invocation_id)
        except Overloaded:
            await anyio.sleep(0.02)
        except Exception as error:
            if type(error).__name__ not in EXPECTED:
                raise


#: How calls of this load end beside their outputs.
EXPECTED = frozenset(
    {"InvocationFailed", "CallError", "IdempotencyConflict", "ResultExpired", "CallTimeout", "StoreUnavailable"}
)


async def looked_at(url: str, namespace: str, seed: int) -> list[Report]:
    """Return what the doctor says of a loaded namespace, again and again."""
    fast = settings(**RESTLESS)
    options: dict[str, Any] = {"store": url, "namespace": namespace, "durability": "server", "settings": fast}
    reports: list[Report] = []
    async with (
        opened(url, namespace) as ward,
        Runtime(APP, **options) as one,
        Runtime(APP, **options) as two,
        Client(url, namespace=namespace, settings=fast) as outside,
    ):
        load = Load([one.client, two.client, outside], random.Random(seed))
        async with anyio.create_task_group() as tasks:
            for _ in range(CALLERS):
                tasks.start_soon(load.caller)
            await anyio.sleep(LEASE_SECONDS / 2)
            reports += [await ward.sweep() for _ in range(SWEEPS)]
            load.ends = True
        assert load.calls > 50
        there = [ward.store.space("Held", 0).sent, ward.store.space("Leaf", 0).marks]
        there += [ward.store.space("Leaf", number).blob_index for number in range(2)]
        assert [await ward.redis("EXISTS", key) for key in there] == [1] * len(there)
    return reports


@pytest.mark.anyio
async def test_a_busy_and_healthy_system_gives_no_finding(store_url: str, namespace: str) -> None:
    """With retries, pauses, resumptions, idempotency keys, full lanes, messages and sleeps, on two workers.

    Large values come and go, results and histories expire, and lanes leave memory as soon as they can.
    """
    reports = await looked_at(store_url, namespace, seed=1)

    assert [finding for report in reports for finding in report.findings] == []
    seen = {status for report in reports for status in report.looked.open}
    assert {"queued", "waiting", "paused", "scheduled"} <= seen


@pytest.mark.slow
@examples(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 30))
def test_no_order_of_events_looks_like_damage(store_url: str, seed: int) -> None:
    """Whatever the seed, nothing is found."""
    reports = anyio.run(looked_at, store_url, f"busy-{seed}-{random.randrange(1 << 30)}", seed)

    assert [finding for report in reports for finding in report.findings] == []


@pytest.mark.anyio
async def test_a_worker_that_hands_over_gives_no_finding(store_url: str, namespace: str) -> None:
    """Partitions change hands while they are looked at."""
    fast = settings(drain_limit_seconds=5)
    options: dict[str, Any] = {"store": store_url, "namespace": namespace, "durability": "server", "settings": fast}
    async with opened(store_url, namespace) as ward, Runtime(APP, **options) as one:
        load = Load([one.client], random.Random(2))
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(load.caller)
            for _ in range(3):
                async with Runtime(APP, **options):
                    await assert_clean(ward)
                await assert_clean(ward)
            load.ends = True


async def assert_clean(ward: Ward) -> None:
    report = await ward.sweep()
    assert report.findings == ()


@pytest.mark.anyio
async def test_a_restart_of_the_server_gives_no_finding(namespace: str) -> None:
    """What is read before it, in the middle of it and after it."""
    with StoreServer() as server:
        options: dict[str, Any] = {"store": server.url, "namespace": namespace, "settings": settings(**RESTLESS)}
        async with opened(server.url, namespace) as ward, Runtime(APP, **options) as one:
            load = Load([one.client], random.Random(3))
            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(load.caller)
                for _ in range(3):
                    server.kill()
                    server.start()
                    await assert_clean_or_away(ward)
                    await assert_clean(ward)
                load.ends = True


async def assert_clean_or_away(ward: Ward) -> None:
    with contextlib.suppress(StoreUnavailable):
        await assert_clean(ward)
