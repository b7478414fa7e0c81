"""The worker that is killed and the one that takes over: `python -m benchmarks.takeover_worker STORE [--park N]`.

It says on stdout, a line of JSON each, when the library was imported and when it hosts; with `--standby` it imports and
then waits for a line on stdin. With `--park` it has so many invocations paused, each on a key of its own, and with
`--sleep` so many asleep.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio

from keylane import App, InvocationPaused, ObjectContext, RetryPolicy, Runtime, VirtualObject

IMPORTED = time.monotonic()
NAMESPACE = "takeover"
POLL_SECONDS = 0.02
CALLERS = 256

job = VirtualObject("Job", owner="benchmarks", retry=RetryPolicy(attempts=1))


@job.handler
async def work(_: ObjectContext, gate: str) -> None:
    """Wait until a file exists; whoever runs it afterwards is through at once."""
    while not Path(gate).exists():  # noqa: ASYNC240, a thread for each look would be what is measured
        await anyio.sleep(POLL_SECONDS)


@job.handler
async def park(_: ObjectContext) -> None:
    """Fail, which uses up the only attempt."""
    raise ValueError("to be looked at by somebody")


@job.handler
async def nap(ctx: ObjectContext) -> None:
    """Sleep for longer than anything here takes."""
    await ctx.sleep(86_400)


@job.handler
async def ping(_: ObjectContext) -> str:
    """Answer."""
    return "pong"


app = App([job])


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


async def park_all(runtime: Runtime, numbers: Iterator[int]) -> None:
    for number in numbers:
        try:
            await runtime.client.call(park, f"acme/parked-{number}")
        except InvocationPaused:
            continue


async def have_sleep(runtime: Runtime, numbers: Iterator[int]) -> None:
    for number in numbers:
        await runtime.client.send(nap, f"acme/asleep-{number}")


async def until_asleep(runtime: Runtime, count: int) -> None:
    """Wait until so many are asleep."""
    spaces = [partition.space for partition in runtime.worker.partitions]
    while sum([await runtime.client.store.call("ZCARD", space.due) for space in spaces]) < count:
        await anyio.sleep(POLL_SECONDS)


async def host(store: str, parked: int, sleeping: int) -> None:
    """Host until killed."""
    async with Runtime(app, store=store, namespace=NAMESPACE) as runtime:
        say(opened=time.monotonic())
        numbers, sleepers = iter(range(parked)), iter(range(sleeping))
        async with anyio.create_task_group() as callers:
            for _ in range(CALLERS):
                callers.start_soon(park_all, runtime, numbers)
                callers.start_soon(have_sleep, runtime, sleepers)
        await until_asleep(runtime, sleeping)
        say(parked=parked)
        await anyio.sleep_forever()


def main() -> None:
    """Import, wait where that is asked for, host."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.takeover_worker")
    parser.add_argument("store")
    parser.add_argument("--park", type=int, default=0)
    parser.add_argument("--sleep", type=int, default=0)
    parser.add_argument("--standby", action="store_true")
    given = parser.parse_args()
    # It warns of each paused invocation, and here they are made by the hundred thousand.
    logging.getLogger("keylane.invocation").setLevel(logging.ERROR)
    say(imported=IMPORTED)
    if given.standby:
        sys.stdin.readline()
    anyio.run(host, given.store, given.park, given.sleep)


if __name__ == "__main__":
    main()
