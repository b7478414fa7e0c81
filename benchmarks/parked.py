"""What parked invocations cost: `python -m benchmarks.parked`.

They sleep, or wait for the reply of another object. Bytes in the store are differences of the server's `used_memory`,
bytes in the worker differences of the process's resident size. Rates with and without parked ones are taken in turn, of
two workers that each have a server of their own.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
from redis.asyncio import Redis
from rich.console import Console
from rich.table import Table

from keylane import App, Client, ObjectContext, Runtime, Settings, VirtualObject
from keylane.journal.embedded import EmbeddedStore
from keylane.runtime import collector

from .engine import counter
from .growth import Result
from .harness import spread
from .parked_worker import NAMESPACE, asleep, nap
from .sizes import each
from .takeover import Child, take_over_parked

RATE_TARGET: Final = 0.9
RESUME_TARGET_MS: Final = 50.0
LATE_TARGET_SECONDS: Final = 2.0
#: Take-overs with and without parked ones are the same where they differ by no more.
TAKEOVER_TARGET_SECONDS: Final = 0.25
ROUNDS: Final = 7
DAY_SECONDS: Final = 86_400.0
TAKEOVERS: Final = 5
#: How far apart waits are ended: fast enough to be under way together now and then, and below what saturates.
RESOLVE_EVERY_SECONDS: Final = 0.004
#: No sweep finds a reply before it is heard of.
UNSWEPT_SECONDS: Final = 60.0

waiter = VirtualObject("Waiter", owner="benchmarks")
slow = VirtualObject("Slow", owner="benchmarks")
gates: dict[str, anyio.Event] = {}
resumed: dict[str, float] = {}


@slow.handler
async def answer_later(ctx: ObjectContext) -> None:
    """Answer when its gate is opened."""
    gate = gates.setdefault(ctx.key.key, anyio.Event())
    await gate.wait()


@waiter.handler
async def call_slow(ctx: ObjectContext) -> None:
    """Wait for a reply, and note when it was there."""
    await ctx.call(answer_later, ctx.key)
    resumed.setdefault(ctx.key.key, time.perf_counter())


@dataclass(frozen=True, slots=True)
class Hosted:
    """A worker process on a server of its own.

    Args:
        child: The process.
        redis: A plain client of the server.
        url: The server.
    """

    child: Child
    redis: Any
    url: str

    async def used(self) -> int:
        """Return the bytes that the server has allocated."""
        return int((await self.redis.info("memory"))["used_memory"])

    async def rate(self) -> float:
        """Have it run short invocations, and return how many in a second."""
        self.child.tell("sample")
        return await self.child.said("rate")

    async def rss(self) -> int:
        """Return how large the process is, in bytes."""
        self.child.tell("rss")
        return await self.child.said("rss")

    async def park(self, numbers: range) -> int:
        """Have it park more, and return how many objects it then has in memory."""
        async with Client(self.url, namespace=NAMESPACE) as client:

            async def send(number: int) -> None:
                await client.send(nap, f"acme/parked-{number:08d}", DAY_SECONDS)

            await each(send, numbers)
        self.child.tell(str(numbers.stop))
        return await self.child.said("parked")


@asynccontextmanager
async def hosted(*options: str) -> AsyncGenerator[Hosted]:
    """Start a server and a worker process."""
    with tempfile.TemporaryDirectory(prefix="keylane-parked-") as folder:
        async with EmbeddedStore(folder) as store:
            client: Any = Redis
            async with client.from_url(store.url) as redis:
                child = Child(store.url, *options, module="benchmarks.parked_worker")
                try:
                    await child.said("ready")
                    yield Hosted(child, redis, store.url)
                finally:
                    child.kill()


async def sizes(count: int) -> list[Result]:
    """Count the bytes of each parked one, in the store and in the worker.

    What a process needs while invocations come in, it keeps: so a part of them is parked before it is looked at first.
    """
    results: list[Result] = []
    first = count // 5
    for resident in (100_000, 1_000):
        async with hosted("--resident", str(resident)) as host:
            await host.park(range(first))
            used, size = await host.used(), await host.rss()
            objects = await host.park(range(first, count))
            store_bytes = (await host.used() - used) / (count - first)
            worker_bytes = (await host.rss() - size) / (count - first)
        shown = f"{store_bytes:,.0f} bytes in the store, {worker_bytes:,.0f} in the worker"
        results.append(Result(f"one of {count:,} asleep, {objects:,} objects in memory", shown, "", is_met=True))
    return results


async def throughput(count: int) -> list[Result]:
    """Compare the rate of short invocations with and without parked ones, pair by pair."""
    async with AsyncExitStack() as stack:
        none = await stack.enter_async_context(hosted())
        many = await stack.enter_async_context(hosted())
        await many.park(range(count))
        for host in (none, many):
            await host.rate()
        pairs: list[tuple[float, float]] = []
        for number in range(ROUNDS):
            # Who goes first changes, so that a drift of the machine favours neither.
            first, second = (none, many) if number % 2 else (many, none)
            rates = {id(host): await host.rate() for host in (first, second)}
            pairs.append((rates[id(none)], rates[id(many)]))
    ratio = spread([with_them / without for without, with_them in pairs])
    rates = [spread([pair[side] for pair in pairs]).median for side in (0, 1)]
    shown = f"× {ratio.median:.3f} ({ratio.low:.3f}–{ratio.high:.3f}), {rates[0]:,.0f} → {rates[1]:,.0f} /s"
    what = f"short invocations, 0 → {count:,} parked"
    return [Result(what, shown, f"≥ × {RATE_TARGET:g}", ratio.median >= RATE_TARGET)]


async def take_over(count: int) -> list[Result]:
    """Kill worker after worker that has invocations asleep, and see how soon the next one answers everywhere."""
    medians: list[float] = []
    results: list[Result] = []
    for parked in (0, count):
        seconds = await take_over_parked(parked, TAKEOVERS, "--sleep")
        found = spread(seconds)
        medians.append(found.median)
        shown = f"{found.median:.3f} s ({found.low:.3f}–{found.high:.3f})"
        results.append(Result(f"taken over with {parked:,} asleep: every partition answers", shown, "", is_met=True))
    more = medians[1] - medians[0]
    bound = f"≤ + {TAKEOVER_TARGET_SECONDS:g} s"
    what = f"difference of {count:,} parked"
    results.append(Result(what, f"{more:+.3f} s", bound, more <= TAKEOVER_TARGET_SECONDS))
    return results


@asynccontextmanager
async def runtime_of(objects: Sequence[VirtualObject], **settings: Any) -> AsyncGenerator[Runtime]:
    """Start a server and a worker on it in this process."""
    with tempfile.TemporaryDirectory(prefix="keylane-parked-") as folder:
        async with (
            EmbeddedStore(folder) as store,
            Runtime(App(objects), store=store.url, namespace=NAMESPACE, settings=Settings(**settings)) as runtime,
        ):
            yield runtime


async def resume(waiting: int) -> list[Result]:
    """Have objects wait for replies, let these come one after the other, and see how soon each handler goes on."""
    results: list[Result] = []
    for residency, where in ((600.0, "in memory"), (0.01, "replayed")):
        gates.clear()
        resumed.clear()
        async with runtime_of(
            [waiter, slow],
            waiting_residency_seconds=residency,
            lane_slots=2 * waiting,
            sweep_seconds=UNSWEPT_SECONDS,
        ) as runtime:
            times = await _resume_all(runtime, waiting)
        p50, p99 = (times[int(len(times) * share)] * 1e3 for share in (0.5, 0.99))
        what = f"reply to resumption, {waiting:,} waiting objects, handlers {where}"
        shown = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"
        results.append(Result(what, shown, f"p99 ≤ {RESUME_TARGET_MS:g} ms", p99 <= RESUME_TARGET_MS))
    return results


async def _resume_all(runtime: Runtime, waiting: int) -> list[float]:
    async def send(number: int) -> None:
        await runtime.client.send(call_slow, f"acme/{number}")

    await each(send, range(waiting))
    while len(gates) < waiting or not _all_stand_still(runtime, waiting):
        await anyio.sleep(0.05)
    keys = list(gates)
    random.Random(1).shuffle(keys)
    ended: dict[str, float] = {}
    for key in keys:
        ended[key] = time.perf_counter()
        gates[key].set()
        await anyio.sleep(RESOLVE_EVERY_SECONDS)
    while len(resumed) < waiting:
        await anyio.sleep(0.05)
    return sorted(resumed[key] - ended[key] for key in keys)


def _all_stand_still(runtime: Runtime, waiting: int) -> bool:
    """Return whether every caller's wait is durable, and those that are to leave memory have left it."""
    open_ones = [
        invocation
        for partition in runtime.worker.partitions
        if partition.space.type_name == waiter.name
        for invocation in partition.open.values()
    ]
    return len(open_ones) == waiting and all(each.standing and each.standing.waits for each in open_ones)


async def timers(count: int) -> list[Result]:
    """Have very many sleeps end in the same second, and see how late each is, by the partition's time."""
    async with runtime_of([counter]) as runtime:
        handles: list[Any] = []
        ends_at = time.monotonic() + 5.0 + count / 500

        async def send(number: int) -> None:
            left = ends_at + number / count - time.monotonic()
            handles.append(await runtime.client.send(nap, f"acme/timer-{number}", left))

        await each(send, range(count))
        while await asleep(runtime) < count:
            await anyio.sleep(0.1)
        left = ends_at - time.monotonic()
        cpu = time.process_time()
        late = sorted([await handle.result(timeout=120) for handle in handles])
        cpu_us = (time.process_time() - cpu) / count * 1e6
    times = f"earliest {late[0] * 1e3:+.1f} ms, p50 {late[count // 2]:.3f} s, last {late[-1]:.3f} s late"
    shown = f"{times}, {cpu_us:.0f} µs of CPU each"
    is_met = left > 0 and late[0] >= 0 and late[-1] <= LATE_TARGET_SECONDS
    what = f"{count:,} timers due in one second"
    return [Result(what, shown, f"none early, all within {LATE_TARGET_SECONDS:g} s", is_met)]


MEASURES: Final[dict[str, Callable[[int], Awaitable[list[Result]]]]] = {
    "sizes": sizes, "throughput": throughput, "takeover": take_over,
}  # fmt: skip
SMALLER: Final[dict[str, tuple[int, Callable[[int], Awaitable[list[Result]]]]]] = {
    "resume": (1_000, resume), "timers": (10_000, timers),
}  # fmt: skip


async def measure(names: Sequence[str], parked: int) -> list[Result]:
    """Measure what is asked for, one after the other."""
    progress, results = Console(stderr=True), list[Result]()
    for name in names:
        progress.print(f"measuring {name} …")
        if name in MEASURES:
            found = await MEASURES[name](parked)
        else:
            count, figure = SMALLER[name]
            found = await figure(count)
        for result in found:
            # All of it takes long, and what is measured should not be lost with what comes after it.
            progress.print(f"    {result.what}: {result.value}")
        results.extend(found)
    return results


def main() -> None:
    """Measure and print."""
    every = (*MEASURES, *SMALLER)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parked", description="What parked invocations cost.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(every)}; default all")
    parser.add_argument("--parked", type=int, default=100_000, help="how many are parked")
    options = parser.parse_args()
    if unknown := set(options.names) - set(every):
        parser.error(f"no such measure: {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    collector.relax()
    names = [name for name in every if not options.names or name in options.names]
    table = Table("what", "value (median, lowest–highest)", "target", "")
    for result in anyio.run(measure, names, options.parked):
        verdict = "" if not result.target else "met" if result.is_met else "MISSED"
        table.add_row(result.what, result.value, result.target, verdict)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
