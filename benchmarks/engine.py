"""The same work on Keylane, by its public interface alone."""

from __future__ import annotations

from keylane import App, Client, ObjectContext, Runtime, SharedContext, VirtualObject

from .harness import Call
from .workloads import STEPS, Add, Count, Handler, charge

NAMESPACE = "benchmarks"

counter = VirtualObject("Counter", owner="benchmarks")


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
    called = add if handler is Handler.ADD else add_in_steps

    async def call(key: str) -> int:
        return (await client.call(called, key, Add(n=1))).count

    return call


def reading(client: Client) -> Call:
    """Return the call that reads a key's count."""

    async def call(key: str) -> int:
        return await client.call(get, key)

    return call
