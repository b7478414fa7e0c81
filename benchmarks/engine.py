"""The same work on Keylane, by its public interface alone."""

from __future__ import annotations

import statistics
from datetime import timedelta

from keylane import App, Client, Deduplicates, ObjectContext, Receiver, Runtime, SharedContext, VirtualObject

from .harness import Call
from .workloads import STEPS, Add, Count, Handler, charge, pay

NAMESPACE = "benchmarks"

receiver = Receiver("payments", owner="benchmarks", deduplicates=Deduplicates(timedelta(hours=1)))


@receiver.effect("refund")
async def send_refund(operation_id: str, request: Add) -> dict[str, int]:
    """Ask a receiver that answers at once."""
    return await pay(operation_id, request)


counter = VirtualObject("Counter", owner="benchmarks", effects=[send_refund])


@counter.handler
async def add(ctx: ObjectContext, request: Add) -> Count:
    """Add to the key's count."""
    count = await ctx.get("count", int, 0) + request.n
    ctx.set("count", count)
    return Count(count=count)


@counter.handler
async def add_in_steps(ctx: ObjectContext, request: Add) -> Count:
    """Add to the key's count after three recorded steps."""
    for _ in range(STEPS):
        await ctx.run("charge", charge)
    count = await ctx.get("count", int, 0) + request.n
    ctx.set("count", count)
    return Count(count=count)


@counter.handler
async def refund(ctx: ObjectContext, request: Add) -> Count:
    """Add to the key's count once a receiver was asked."""
    await ctx.effect(send_refund, operation_id="refund-1", params=request)
    count = await ctx.get("count", int, 0) + request.n
    ctx.set("count", count)
    return Count(count=count)


HANDLERS = {Handler.ADD: add, Handler.ADD_IN_STEPS: add_in_steps, Handler.REFUND: refund}


@counter.shared
async def get(ctx: SharedContext) -> int:
    """Return the key's count."""
    return await ctx.get("count", int, 0)


app = App([counter])


def open_runtime(store_url: str) -> Runtime:
    """Make a worker on a store.

    Args:
        store_url: Of a running server.
    """
    return Runtime(app, store=store_url, namespace=NAMESPACE)


def adding(client: Client, handler: Handler) -> Call:
    """Return the call that adds one to a key.

    Args:
        client: Of the worker's process or of any other.
        handler: Which handler does it.
    """
    called = HANDLERS[handler]

    async def call(key: str) -> int:
        return (await client.call(called, key, Add(n=1))).count

    return call


def commits_each(runtime: Runtime, workload: str) -> float:
    """Return how many commits the invocations of a workload took in the median, one invocation to a key.

    Args:
        runtime: The worker that ran them.
        workload: Its name.
    """
    lanes = [lane for partition in runtime.worker.partitions for lane in partition.lanes.values()]
    return statistics.median(lane.commits for lane in lanes if lane.key.key.startswith(f"{workload}-"))


def reading(client: Client) -> Call:
    """Return the call that reads a key's count."""

    async def call(key: str) -> int:
        return await client.call(get, key)

    return call
