"""Clerks that count, fail and linger, and what the store keeps of them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from keylane import (
    ObjectContext,
    RetryPolicy,
    Runtime,
    SharedContext,
    TerminalError,
    VirtualObject,
)
from keylane.journal.keyspace import PartitionSpace
from keylane.runtime.partition import Partition
from keylane.runtime.retention import Retention
from keylane.testing import shift_clock
from tests.plain import plain

KEY = "acme/o-1"
AFTER_RETENTION = timedelta(hours=25)
ONCE = RetryPolicy(first=timedelta(milliseconds=1), attempts=1)
#: So few partitions that every key shares one.
clerk = VirtualObject("Clerk", owner="tests", partitions=1, state={"count": int, "text": str}, retry=ONCE)
aside = VirtualObject("Aside", owner="tests", partitions=1, state={"count": int}, retry=ONCE, on_paused="skip")
gates: dict[str, asyncio.Event] = {}


@clerk.handler
async def count(ctx: ObjectContext) -> int:
    value = await ctx.get("count", int, 0) + 1
    ctx.set("count", value)
    return value


@clerk.handler
async def forget(ctx: ObjectContext) -> None:
    ctx.clear_all()


@clerk.handler
async def refuse(ctx: ObjectContext) -> None:
    raise TerminalError("no")


@clerk.handler
async def take(ctx: ObjectContext, number: int) -> int:
    return number


@clerk.handler
async def count_in_steps(ctx: ObjectContext) -> int:
    async def step() -> int:
        return 1

    value = await ctx.get("count", int, 0) + await ctx.run("one", step)
    ctx.set("count", value)
    return value


@clerk.handler
async def refuse_after_a_step(ctx: ObjectContext) -> None:
    async def step() -> int:
        return 1

    await ctx.run("one", step)
    raise TerminalError("no")


@clerk.handler
async def stumble(ctx: ObjectContext) -> int:
    if str(ctx.key) not in gates:
        raise ValueError("not yet")
    return await count.function(ctx)


@clerk.handler
async def linger(ctx: ObjectContext) -> str:
    return await ctx.signal("go on", str)


@clerk.shared
async def read(ctx: SharedContext) -> int:
    return await ctx.get("count", int, 0)


@aside.handler
async def stumble_aside(ctx: ObjectContext) -> int:
    if str(ctx.key) not in gates:
        raise ValueError("not yet")
    return 1


@aside.handler
async def count_on(ctx: ObjectContext) -> int:
    return await count.function(ctx)


def space_of(runtime: Runtime) -> PartitionSpace:
    return runtime.client.store.space("Clerk", 0)


def clerks(runtime: Runtime) -> Partition:
    """Return the one partition of the clerks."""
    return next(each for each in runtime.worker.partitions if each.space.type_name == "Clerk")


def histories(runtime: Runtime) -> Retention:
    return runtime.worker._retention  # pyright: ignore[reportPrivateUsage]


async def pass_by(runtime: Runtime, by: timedelta) -> None:
    """Let time pass, and everything that it makes due be done."""
    await shift_clock(runtime, by)
    await histories(runtime).sweep()


def entries(url: str, runtime: Runtime, key: str = KEY) -> list[list[bytes]]:
    """Return the names of the fields of each entry of an object's stream."""
    return [list(fields) for _, fields in plain(url, "XRANGE", space_of(runtime).object(key), "-", "+")]
