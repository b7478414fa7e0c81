"""Objects that wait for signals and completions, for processes that are killed meanwhile."""

from __future__ import annotations

from keylane import App, ObjectContext, VirtualObject

from .objects_catalogue import OWNER

waiter = VirtualObject("Waiter", owner=OWNER, partitions=16)


@waiter.handler
async def collect(ctx: ObjectContext, count: int) -> list[int]:
    """Wait for so many signals, and return what they carried."""
    return [await ctx.signal("go", int) for _ in range(count)]


@waiter.handler
async def decide(ctx: ObjectContext, count: int) -> list[int]:
    """Wait for so many awakeables, one after the other: they stand at the even places."""
    return [await (await ctx.awakeable(int)) for _ in range(count)]


@waiter.handler
async def race(ctx: ObjectContext, count: int) -> list[int]:
    """Wait for so many signals, each in a race with a short sleep that may win."""
    taken: list[int] = []
    while len(taken) < count:
        name, value = await ctx.select(signal=ctx.signal("go", int), time=ctx.sleep(0.02))
        if name == "signal" and value is not None:
            taken.append(value)
    return taken


@waiter.handler
async def together(ctx: ObjectContext, count: int) -> list[int]:
    """Wait for so many signals, each beside a short sleep and a race of two."""
    taken: list[int] = []
    for _ in range(count):
        first = ctx.select(short=ctx.sleep(0.005), long=ctx.sleep(60))
        value, _, winner = await ctx.gather(ctx.signal("go", int), ctx.sleep(0.01), first)
        assert winner[0] == "short"
        taken.append(value)
    return taken


app = App([waiter])
