"""A worker with very many parked invocations: `python -m benchmarks.parked_worker STORE [--park N] [--resident M]`.

It says on stdout, a line of JSON each, when it hosts and when all are parked, each asleep on a key of its own. Then it
does what it reads on stdin: `rss` says how large the process is, `sample` how many short invocations a second it runs.
"""

from __future__ import annotations

import argparse
import gc
import sys
from dataclasses import replace

import anyio
import anyio.to_thread

from keylane import App, ObjectContext, Runtime, Settings
from keylane.runtime import collector

from .engine import adding, counter
from .growth import rss_bytes
from .harness import Subject
from .sizes import each
from .takeover_worker import say
from .workloads import WORKLOADS, Handler

NAMESPACE = "parked"
DAY_SECONDS = 86_400.0
ADD = next(workload for workload in WORKLOADS if workload.name == "add")
POLL_SECONDS = 0.1


@counter.handler
async def nap(ctx: ObjectContext, seconds: float) -> float:
    """Sleep, and return by how much longer it was, by the partition's time."""
    began = await ctx.time()
    await ctx.sleep(seconds)
    return ((await ctx.time()) - began).total_seconds() - seconds


async def asleep(runtime: Runtime) -> int:
    """Return how many invocations wait for their time."""
    spaces = [partition.space for partition in runtime.worker.partitions]
    return sum([await runtime.client.store.call("ZCARD", space.due) for space in spaces])


async def park(runtime: Runtime, count: int) -> None:
    """Have so many invocations sleep, out of memory as far as that is how the worker is set."""

    async def send(number: int) -> None:
        await runtime.client.send(nap, f"acme/parked-{number:08d}", DAY_SECONDS)

    await each(send, range(count))
    while await asleep(runtime) < count or any(partition.sleepers for partition in runtime.worker.partitions):
        await anyio.sleep(POLL_SECONDS)


async def host(options: argparse.Namespace) -> None:
    """Host until stdin ends."""
    settings = Settings(waiting_residency_seconds=0.05, resident_lanes=options.resident)
    async with Runtime(App([counter]), store=options.store, namespace=NAMESPACE, settings=settings) as runtime:
        say(opened=True)
        subject = Subject(adding(runtime.client, Handler.ADD))
        await subject.sample(ADD)
        gc.collect()
        say(before=rss_bytes())
        await park(runtime, options.park)
        gc.collect()
        say(parked=options.park)
        while (line := await anyio.to_thread.run_sync(sys.stdin.readline)) != "":
            match line.strip():
                case "rss":
                    say(rss=rss_bytes())
                case _:
                    sample = await subject.sample(replace(ADD, invocations=options.calls))
                    say(rate=sample.rate)


def main() -> None:
    """Host."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parked_worker")
    parser.add_argument("store")
    parser.add_argument("--park", type=int, default=0)
    parser.add_argument("--resident", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=ADD.invocations)
    collector.relax()
    anyio.run(host, parser.parse_args())


if __name__ == "__main__":
    main()
