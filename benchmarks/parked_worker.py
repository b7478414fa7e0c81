"""A worker for very many parked invocations: `python -m benchmarks.parked_worker STORE [--resident M]`.

It says on stdout, a line of JSON each, when it hosts, and what it reads on stdin asks for: `rss` says how large the
process is, `sample` how many short invocations a second it runs, and a number that so many invocations are asleep.
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
from .takeover_worker import say
from .workloads import WORKLOADS, Handler

NAMESPACE = "parked"
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


def objects_in_memory(runtime: Runtime) -> int:
    return sum(len(partition.lanes) for partition in runtime.worker.partitions)


async def until_parked(runtime: Runtime, count: int, resident: int) -> None:
    """Wait until so many invocations sleep, no handler is left in memory, and no more objects than may be."""
    while await asleep(runtime) < count or any(partition.sleepers for partition in runtime.worker.partitions):
        await anyio.sleep(POLL_SECONDS)
    while objects_in_memory(runtime) > resident:
        await anyio.sleep(POLL_SECONDS)


async def host(options: argparse.Namespace) -> None:
    """Host until stdin ends."""
    settings = Settings(waiting_residency_seconds=0.05, resident_lanes=options.resident)
    async with Runtime(App([counter]), store=options.store, namespace=NAMESPACE, settings=settings) as runtime:
        say(opened=True)
        subject = Subject(adding(runtime.client, Handler.ADD))
        await subject.sample(ADD)
        gc.collect()
        say(ready=True)
        while (line := await anyio.to_thread.run_sync(sys.stdin.readline)) != "":
            match line.strip():
                case "rss":
                    gc.collect()
                    say(rss=rss_bytes())
                case "sample":
                    say(rate=(await subject.sample(replace(ADD, invocations=options.calls))).rate)
                case count:
                    await until_parked(runtime, int(count), options.resident)
                    say(parked=objects_in_memory(runtime))


def main() -> None:
    """Host."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parked_worker")
    parser.add_argument("store")
    parser.add_argument("--resident", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=ADD.invocations)
    collector.relax()
    anyio.run(host, parser.parse_args())


if __name__ == "__main__":
    main()
