"""What grows with use, and what must not: `python -m benchmarks.growth`.

Costs are processor time of this process and of the server together, per call, taken in pairs that alternate in one
process: a noisy machine moves both of a pair.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final

import anyio
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from rich.console import Console
from rich.table import Table

from keylane import App, ObjectContext, RetryableError, Runtime, Settings, VirtualObject
from keylane.journal.embedded import EmbeddedStore
from keylane.runtime import collector
from keylane.testing import shift_clock

from .harness import spread
from .machine import OtherLoad, server_name
from .sizes import each

PAIRS: Final = 5
FLAT: Final = 0.15
SLOWEST_TARGET_MS: Final = 5.0
RSS_TARGET: Final = 0.10
#: Objects that are called while others fall due.
FOREGROUND_KEYS: Final = 100
#: Function calls that take longer are kept by the server, in microseconds.
KEPT_US: Final = 500

growing = VirtualObject("Counter", owner="benchmarks")


@growing.handler
async def add(ctx: ObjectContext, number: int) -> int:
    """Add to the key's count."""
    value = await ctx.get("count", int, 0) + number
    ctx.set("count", value)
    return value


@growing.handler
async def wait(ctx: ObjectContext) -> None:
    """Ask for another attempt in an hour, once."""
    if ctx.attempt == 1:
        raise RetryableError("not yet", retry_after=3600)


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table: what was measured, its value, its target, and whether that is met."""

    what: str
    value: str
    target: str
    is_met: bool


@dataclass(frozen=True, slots=True)
class Terms:
    """How the measures are taken.

    Args:
        scale: What the large numbers are divided by.
        server: Another server program than the embedded one.
    """

    scale: int = 1
    server: str | None = None


@asynccontextmanager
async def open_store(terms: Terms) -> AsyncGenerator[tuple[str, Any]]:
    """Start a server in a folder of its own, and give its URL and a plain client of it."""
    with tempfile.TemporaryDirectory(prefix="keylane-growth-") as folder:
        async with EmbeddedStore(folder, binary=terms.server) as store:
            client: Any = Redis
            async with client.from_url(store.url) as redis:
                yield store.url, redis


def open_runtime(url: str, namespace: str, **settings: Any) -> Runtime:
    """Make a worker with a namespace of its own."""
    return Runtime(App([growing]), store=url, namespace=namespace, settings=Settings(**settings))


async def cpu_us(redis: Any) -> float:
    """Return the processor time that this process and the server have used, in microseconds."""
    server: dict[str, float] = await redis.info("cpu")
    return (time.process_time() + server["used_cpu_user"] + server["used_cpu_sys"]) * 1e6


async def cost(redis: Any, calls: int, work: Callable[[], Awaitable[None]]) -> float:
    """Return the processor time of some work per call, in microseconds."""
    before = await cpu_us(redis)
    await work()
    return (await cpu_us(redis) - before) / calls


async def paired(few: Callable[[], Awaitable[float]], many: Callable[[], Awaitable[float]], what: str) -> Result:
    """Measure two costs in turn, and compare them pair by pair."""
    pairs = [(await few(), await many()) for _ in range(PAIRS)]
    ratio = spread([after / before for before, after in pairs])
    costs = [spread([pair[side] for pair in pairs]).median for side in (0, 1)]
    shown = f"× {ratio.median:.3f} ({ratio.low:.3f}–{ratio.high:.3f}), {costs[0]:.0f} → {costs[1]:.0f} µs"
    return Result(what, shown, f"≤ × {1 + FLAT:g}", ratio.median <= 1 + FLAT)


async def resident(terms: Terms) -> list[Result]:
    """Compare calls where a thousand objects are in memory with calls where a hundred thousand are."""
    low, high, calls = 1_000, 100_000 // terms.scale, 20_000 // terms.scale
    async with (
        open_store(terms) as (url, redis),
        open_runtime(url, "few") as few,
        open_runtime(url, "many") as many,
    ):
        chance = random.Random(1)
        for runtime, keys in ((few, low), (many, high)):
            await each(_adding(runtime), range(keys))

        async def sample(runtime: Runtime, keys: int) -> float:
            numbers = [chance.randrange(keys) for _ in range(calls)]
            return await cost(redis, calls, lambda: each(_adding(runtime), numbers))

        await sample(few, low)
        await sample(many, high)
        return [
            await paired(
                lambda: sample(few, low), lambda: sample(many, high),
                f"one call, {low:,} → {high:,} objects in memory",
            )
        ]  # fmt: skip


def _adding(runtime: Runtime, prefix: str = "acme/object") -> Callable[[int], Awaitable[None]]:
    async def once(number: int) -> None:
        await runtime.client.call(add, f"{prefix}-{number:08d}", 1)

    return once


async def past(terms: Terms) -> list[Result]:
    """Compare calls to objects that were called once with calls to objects that were called very often."""
    keys, before, calls = 4, 100_000 // terms.scale, 4_000
    fresh = count()
    async with open_store(terms) as (url, redis), open_runtime(url, "past") as runtime:
        old = _adding(runtime, "acme/old")
        await each(lambda number: old(number % keys), range(keys * before))

        async def few() -> float:
            young = _adding(runtime, f"acme/young-{next(fresh)}")
            await each(young, range(keys))
            return await cost(redis, calls, lambda: each(lambda number: young(number % keys), range(calls)))

        async def many() -> float:
            return await cost(redis, calls, lambda: each(lambda number: old(number % keys), range(calls)))

        return [await paired(few, many, f"one call, 1 → {before:,} past invocations of its object")]


async def cold(terms: Terms) -> list[Result]:
    """Count what a call to an object costs that is not in memory."""
    keys = 20_000 // terms.scale
    async with open_store(terms) as (url, redis):
        async with open_runtime(url, "cold") as runtime:
            await each(_adding(runtime), range(keys))
        async with open_runtime(url, "cold") as runtime:
            once, turns = _adding(runtime), _count_turns(runtime)
            before = await _commands(redis)
            turns_before = turns()
            first = await cost(redis, keys, lambda: each(once, range(keys)))
            after = await _commands(redis)
            read_turns = turns() - turns_before
            batches = after["fcall"] - before["fcall"]
            again = await cost(redis, keys, lambda: each(once, range(keys)))
    reads = sum(after.get(name, 0) - before.get(name, 0) for name in ("xrevrange", "lrange")) / keys
    # A worker at rest asks now and then, for leases and due times: these turns are none of the keys'.
    return [
        Result(
            "reads in one turn, per cold call", f"{reads:.2f} commands; {read_turns / batches:.2f} turns per batch",
            "≤ 1 turn per batch", read_turns <= batches * 1.05,
        ),
        Result("one call, in memory → cold", f"× {first / again:.2f}, {again:.0f} → {first:.0f} µs", "", is_met=True),
    ]  # fmt: skip


def _count_turns(runtime: Runtime) -> Callable[[], int]:
    """Count the writes to the connection that carries reads; commits have another one."""
    connection: Any = runtime.client.store.nodes[0].calls._connection  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    written = connection.write_now
    turns = 0

    def write_now(data: bytes) -> None:
        nonlocal turns
        turns += 1
        written(data)

    connection.write_now = write_now
    return lambda: turns


async def _commands(redis: Any) -> dict[str, int]:
    stats: dict[str, dict[str, int]] = await redis.info("commandstats")
    return {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}


async def due(terms: Terms) -> list[Result]:
    """Let very many timers, and then very many histories, fall due at once while somebody else calls."""
    timers = 100_000 // terms.scale
    async with open_store(terms) as (url, redis), open_runtime(url, "due") as runtime:
        is_own, server = await _has_its_turn_at_once(redis), await server_name(redis)

        async def hold(number: int) -> None:
            await runtime.client.send(wait, f"acme/timer-{number:08d}")

        await each(hold, range(timers))
        while await _entries(runtime, redis, "due") < timers:
            await anyio.sleep(0.1)
        quiet = await _times_while(runtime, lambda: anyio.sleep(3))
        async with _slowest(redis) as slowest_timer:
            await shift_clock(runtime, timedelta(hours=1))
            busy_timers = await _times_while(runtime, lambda: _until_few(runtime, redis, "due"))
        async with _slowest(redis) as slowest_history:
            await shift_clock(runtime, timedelta(hours=25))
            busy_histories = await _times_while(runtime, lambda: _until_few(runtime, redis, "history"))
    results = [
        Result("server", server, "", is_met=True),
        Result("foreground call, nothing due: p50, p99", _shown(quiet), "", is_met=True),
    ]
    for what, times, slowest in (
        (f"{timers:,} due timers", busy_timers, slowest_timer),
        (f"{timers:,} due histories", busy_histories, slowest_history),
    ):
        longest = max(slowest, default=0.0)
        results.append(Result(f"foreground call, {what}: p50, p99", _shown(times), "", is_met=True))
        results.append(
            Result(
                f"slowest function call, {what}{'' if is_own else ', with what it waited for a processor'}",
                f"{longest:.1f} ms", f"≤ {SLOWEST_TARGET_MS:g} ms", longest <= SLOWEST_TARGET_MS,
            )
        )  # fmt: skip
    return results


async def _has_its_turn_at_once(redis: Any) -> bool:
    """Have the server's thread run whenever it wants to: what a call took has no wait for another process in it.

    Returns:
        Whether it does; Linux lets only privileged processes say so.
    """
    server: dict[str, Any] = await redis.info("server")
    try:
        # What the server forks to rewrite its log waits its turn like everybody.
        os.sched_setscheduler(server["process_id"], os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except (AttributeError, PermissionError):
        return False
    return True


def _shown(times: Sequence[float]) -> str:
    ordered = sorted(times)
    p50, p99 = (ordered[int(len(ordered) * share)] * 1e3 for share in (0.5, 0.99))
    return f"{p50:.1f}, {p99:.1f} ms of {len(ordered):,}"


async def _entries(runtime: Runtime, redis: Any, name: str) -> int:
    """Return how many due times there are, by asking for the few keys that have them: a scan would be in the way."""
    spaces = [partition.space for partition in runtime.worker.partitions]
    return sum([await redis.zcard(getattr(space, name)) for space in spaces])


async def _until_few(runtime: Runtime, redis: Any, name: str) -> None:
    """Wait until nothing is left of what was due; the objects that are called meanwhile have entries of their own."""
    while await _entries(runtime, redis, name) > FOREGROUND_KEYS:
        await anyio.sleep(0.25)


async def _times_while(runtime: Runtime, work: Callable[[], Awaitable[Any]]) -> list[float]:
    """Call an object from time to time for as long as something goes on, and return what each call took."""
    times: list[float] = []

    async def caller() -> None:
        for number in count():
            begun = time.perf_counter()
            await runtime.client.call(add, f"acme/foreground-{number % FOREGROUND_KEYS}", 1)
            times.append(time.perf_counter() - begun)
            await anyio.sleep(0.002)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(caller)
        await work()
        tasks.cancel_scope.cancel()
    return times


@asynccontextmanager
async def _slowest(redis: Any) -> AsyncGenerator[list[float]]:
    """Collect how long the slowest function calls took in the server, in milliseconds, while it rewrites its file.

    A call takes longest right after the server has forked to do that: each page that it writes to is copied first, and
    how many these are depends on the server's allocator. Chance must not decide whether that happens meanwhile, so it
    does every other second.
    """
    await redis.config_set("slowlog-log-slower-than", KEPT_US)
    await redis.config_set("slowlog-max-len", 100_000)
    await redis.slowlog_reset()
    found: list[float] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_rewrite, redis)
        yield found
        tasks.cancel_scope.cancel()
    entries = await redis.slowlog_get(100_000)
    found.extend(entry["duration"] / 1e3 for entry in entries if entry["command"].startswith(b"FCALL"))


async def _rewrite(redis: Any) -> None:
    while True:
        with suppress(ResponseError):
            await redis.bgrewriteaof()
        await anyio.sleep(2)


async def memory(terms: Terms) -> list[Result]:
    """Touch a hundred thousand objects, and then as many others, and look at what the process has grown to."""
    objects = 100_000 // terms.scale
    async with open_store(terms) as (url, _), open_runtime(url, "rss", resident_lanes=objects) as runtime:
        await each(_adding(runtime), range(objects))
        once = rss_bytes()
        await each(_adding(runtime), range(objects, 2 * objects))
        twice = rss_bytes()
    shown = f"+ {twice / once - 1:.1%}, {once / 1e6:.0f} → {twice / 1e6:.0f} MB"
    what = f"process after {objects:,} → {objects:,} other objects"
    return [Result(what, shown, f"≤ + {RSS_TARGET:.0%}", twice <= once * (1 + RSS_TARGET))]


def rss_bytes() -> int:
    """Return how large this process is in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


#: In this order: what a process has grown to is looked at before anything else has grown.
MEASURES: Final[dict[str, Callable[[Terms], Awaitable[list[Result]]]]] = {
    "memory": memory, "resident": resident, "past": past, "cold": cold, "due": due,
}  # fmt: skip


async def measure(names: Sequence[str], terms: Terms) -> list[Result]:
    """Measure what is asked for, one after the other."""
    progress, results = Console(stderr=True), list[Result]()
    for name in names:
        progress.print(f"measuring {name} …")
        results.extend(await MEASURES[name](terms))
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description="What grows with use.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(MEASURES)}; default all")
    parser.add_argument("--scale", type=int, default=1, help="divide the large numbers by this")
    parser.add_argument("--server", metavar="PROGRAM", help="another server program than the embedded one")
    options = parser.parse_args()
    if unknown := set(options.names) - MEASURES.keys():
        parser.error(f"no such measure: {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    collector.relax()
    names = [name for name in MEASURES if not options.names or name in options.names]
    others, table = OtherLoad(), Table("what", "value (median, lowest–highest)", "target", "")
    for each_one in anyio.run(measure, names, Terms(options.scale, options.server)):
        verdict = "" if not each_one.target else "met" if each_one.is_met else "MISSED"
        table.add_row(each_one.what, each_one.value, each_one.target, verdict)
    Console().print(table)
    Console().print(str(others))


if __name__ == "__main__":
    main()
