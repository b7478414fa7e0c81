"""Objects that are cancelled: they wait, clean up and undo, and leave marks in a file that survives every process."""

from __future__ import annotations

from datetime import timedelta

from keylane import App, Cancelled, ObjectContext, RetryPolicy, VirtualObject
from tests.objects_catalogue import mark

OFTEN = RetryPolicy(first=timedelta(milliseconds=20), cap=timedelta(milliseconds=50), attempts=10_000)

sleeper = VirtualObject("Sleeper", owner="catalogue", partitions=4)


@sleeper.handler
async def nap(ctx: ObjectContext, trail: str) -> str:
    ctx.compensate("booking", mark, trail, "undo")
    await ctx.run("book", mark, trail, "book")
    try:
        await ctx.sleep(3600)
    except Cancelled:
        await ctx.run("clean up", mark, trail, "clean")
        raise
    return "slept"


@sleeper.handler
async def fails_for_ever(ctx: ObjectContext, trail: str) -> None:
    await ctx.run("fails", fail, trail, retry=OFTEN)


@sleeper.handler
async def touch(ctx: ObjectContext) -> str:
    return "touched"


async def fail(trail: str) -> None:
    mark(trail, "attempt")
    raise OSError("not yet")


app = App([sleeper])
