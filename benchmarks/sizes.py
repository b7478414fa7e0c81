"""What things take in the store: `python -m benchmarks.sizes`.

All figures are differences of the server's `used_memory`, so they hold everything: keys, indexes, tables, and what the
allocator adds. The server is the embedded one with its own settings.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import anyio
from redis.asyncio import Redis
from rich.console import Console
from rich.table import Table

from keylane import App, ObjectContext, Runtime, VirtualObject
from keylane.journal.codec import pack
from keylane.journal.embedded import EmbeddedStore
from keylane.testing import shift_clock

from .workloads import Add, Count, charge

CALLERS: Final = 64
SETTLE_SECONDS: Final = 0.25
#: Memory whose figure moves by no more between two looks is taken to be at rest.
UNSTEADY: Final = 0.001
#: Results and histories are kept for a day, idempotency keys for thirty and one more.
AFTER_RETENTION: Final = timedelta(hours=25)
AFTER_TOMBSTONES: Final = timedelta(days=32)

IDLE_TARGET_BYTES: Final = 1_000
FINISHED_TARGET_BYTES: Final = 400
STEP_TARGET_BYTES: Final = 80
LEFT_OVER_TARGET: Final = 0.05

measured = VirtualObject("Counter", owner="benchmarks")


@measured.handler
async def add(ctx: ObjectContext, request: Add) -> Count:
    """Add to the key's count."""
    count = await ctx.get("count", int, 0) + request.n
    ctx.set("count", count)
    return Count(count=count)


@measured.handler
async def set_three(ctx: ObjectContext) -> None:
    """Set three values, each of which takes 16 bytes."""
    for name in ("status", "holder", "amount"):
        ctx.set(name, "fifteen letters")


@measured.handler
async def take_steps(ctx: ObjectContext, count: int) -> None:
    """Record steps."""
    for _ in range(count):
        await ctx.run("charge", charge)


@dataclass(frozen=True, slots=True)
class Bench:
    """A worker on a server of its own.

    Args:
        runtime: The worker.
        redis: A plain client of the server.
    """

    runtime: Runtime
    redis: Any

    async def used(self) -> int:
        """Return the bytes that the server has allocated."""
        return int((await self.redis.info("memory"))["used_memory"])

    async def settled(self) -> None:
        """Wait until expired keys are gone, histories are shrunk, and the server has freed what was dropped."""
        before, now = 0, await self.used()
        while await self._is_any_left() or abs(now - before) > now * UNSTEADY:
            await anyio.sleep(SETTLE_SECONDS)
            before, now = now, await self.used()

    async def _is_any_left(self) -> bool:
        left = [key async for key in self.redis.scan_iter(match="*:hist", count=10_000)]
        left += [key async for key in self.redis.scan_iter(match="*:[ri]:*", count=10_000)]
        return bool(left or (await self.redis.info("memory"))["lazyfree_pending_objects"])

    async def passed(self, by: timedelta) -> None:
        """Let time pass, and what ends with it go."""
        await shift_clock(self.runtime, by)
        await self.settled()


@asynccontextmanager
async def open_bench() -> AsyncGenerator[Bench]:
    """Start a server in a folder of its own and a worker on it."""
    with tempfile.TemporaryDirectory(prefix="keylane-sizes-") as folder:
        async with EmbeddedStore(folder) as store, Runtime(App([measured]), store=store.url) as runtime:
            client: Any = Redis
            async with client.from_url(store.url) as redis:
                yield Bench(runtime, redis)


async def each(do: Callable[[int], Awaitable[Any]], numbers: Iterable[int]) -> None:
    """Do something for each number, some at a time."""
    rest = iter(numbers)

    async def work() -> None:
        for number in rest:
            await do(number)

    async with anyio.create_task_group() as tasks:
        for _ in range(CALLERS):
            tasks.start_soon(work)


async def idle_object(bench: Bench, objects: int) -> float:
    """Return the bytes that an idle object takes after its retention: a key of 24 bytes, three values of 16.

    Args:
        bench: The worker.
        objects: How many are made.
    """
    client = bench.runtime.client

    async def make(number: int) -> None:
        await client.call(set_three, f"acme/order-{number:013d}")

    await each(make, range(CALLERS))
    await bench.passed(AFTER_RETENTION)
    before = await bench.used()
    await each(make, range(1_000, 1_000 + objects))
    await bench.passed(AFTER_RETENTION)
    return (await bench.used() - before) / objects


async def finished_add(bench: Bench, keys: int, low: int, high: int) -> float:
    """Return the bytes that one more finished add with an idempotency key takes during its retention.

    Args:
        bench: The worker.
        keys: How many objects are called.
        low: Adds of each before the first look.
        high: Adds of each before the second one.
    """
    client = bench.runtime.client

    async def once(number: int) -> None:
        await client.call(add, f"acme/count-{number % keys:06d}", Add(n=1), idempotency_key=f"ticket-{number}")

    await each(once, range(keys * low))
    before = await bench.used()
    await each(once, range(keys * low, keys * high))
    return (await bench.used() - before) / (keys * (high - low))


async def recorded_step(bench: Bench, invocations: int, low: int, high: int) -> float:
    """Return the bytes that one more recorded step takes over its payload.

    Args:
        bench: The worker.
        invocations: How many there are of each length.
        low: Steps of the shorter ones.
        high: Steps of the longer ones.
    """
    client = bench.runtime.client
    used = [await bench.used()]
    for steps in (low, high):

        async def once(number: int, steps: int = steps) -> None:
            await client.call(take_steps, f"acme/steps-{number:06d}", steps)

        await each(once, range(invocations))
        used.append(await bench.used())
    shorter, longer = used[1] - used[0], used[2] - used[1]
    return (longer - shorter) / (invocations * (high - low)) - len(pack(await charge()))


async def left_over(bench: Bench, invocations: int, keys: int) -> float:
    """Return by which share `used_memory` is above its start once the retention of very many invocations has passed.

    Args:
        bench: The worker.
        invocations: How many are made.
        keys: How many objects they go to.
    """
    client = bench.runtime.client

    async def once(number: int) -> None:
        await client.call(add, f"acme/left-{number % keys:06d}", Add(n=1), idempotency_key=f"left-{number}")

    await each(once, range(keys))
    await bench.passed(AFTER_TOMBSTONES)
    before = await bench.used()
    await each(once, range(keys, invocations))
    await bench.passed(AFTER_TOMBSTONES)
    return await bench.used() / before - 1


async def measure(objects: int, invocations: int) -> list[tuple[str, str, str, bool]]:
    """Return rows of what was measured, its value, its target, and whether that is met."""
    progress = Console(stderr=True)
    rows: list[tuple[str, str, str, bool]] = []

    async def row(name: str, target: float, unit: str, figure: Callable[[Bench], Awaitable[float]]) -> None:
        progress.print(f"measuring {name} …")
        async with open_bench() as bench:
            value = await figure(bench)
        shown = f"{value:.2%}" if unit == "%" else f"{value:,.0f} {unit}"
        bound = f"≤ {target:.0%}" if unit == "%" else f"≤ {target:,.0f} {unit}"
        rows.append((name, shown, bound, value <= target))

    await row(
        f"idle object after retention ({objects:,} of them)", IDLE_TARGET_BYTES, "bytes",
        lambda bench: idle_object(bench, objects),
    )  # fmt: skip
    await row(
        "finished add with an idempotency key (20 → 120 per key, 1,000 keys)", FINISHED_TARGET_BYTES, "bytes",
        lambda bench: finished_add(bench, 1_000, 20, 120),
    )  # fmt: skip
    await row(
        "recorded step over its payload (25 → 125 steps)", STEP_TARGET_BYTES, "bytes",
        lambda bench: recorded_step(bench, 1_000, 25, 125),
    )  # fmt: skip
    await row(
        f"above the start after retention ({invocations:,} invocations)", LEFT_OVER_TARGET, "%",
        lambda bench: left_over(bench, invocations, 1_000),
    )  # fmt: skip
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description="What things take in the store.")
    parser.add_argument("--objects", type=int, default=100_000, help="idle objects")
    parser.add_argument("--invocations", type=int, default=100_000, help="invocations whose retention passes")
    options = parser.parse_args()
    table = Table("what", "takes", "target", "")
    for name, value, target, is_met in anyio.run(measure, options.objects, options.invocations):
        table.add_row(name, value, target, "met" if is_met else "MISSED")
    Console().print(table)


if __name__ == "__main__":
    main()
