"""Objects that do what a plan says: hold their lanes, sleep, and call each other, in circles too."""

from __future__ import annotations

from typing import Any

from keylane import App, Deadlock, ObjectContext, SharedContext, VirtualObject

from .objects_catalogue import OWNER, mark, opened

node = VirtualObject("Node", owner=OWNER, partitions=4, state={"visits": int})
other = VirtualObject("Other", owner=OWNER, partitions=4, state={"visits": int})


@node.handler
async def follow(ctx: ObjectContext, plan: list[Any]) -> list[str]:
    """Do what a plan says, one thing after the other, and return the circles that were met on the way."""
    ctx.set("visits", await ctx.get("visits", int, 0) + 1)
    circles: list[str] = []
    for what in plan:
        circles.extend(await do(ctx, what))
    return circles


@other.handler
async def follow_too(ctx: ObjectContext, plan: list[Any]) -> list[str]:
    """The same of another type, which other workers may host."""
    return await follow.function(ctx, plan)


async def do(ctx: ObjectContext, what: list[Any]) -> list[str]:
    match what:
        case ["mark", trail]:
            await ctx.run("mark", mark, trail, ctx.key.key)
        case ["gate", gate]:
            await ctx.run("gate", opened, gate)
        case ["sleep", seconds]:
            await ctx.sleep(seconds)
        case [("Node" | "Other") as name, number, plan]:
            try:
                return await ctx.call(name, f"acme/{number}", HANDLERS[name], plan)
            except Deadlock as error:
                return [" → ".join(error.path)]
        case _:
            raise ValueError(what)
    return []


HANDLERS = {"Node": "follow", "Other": "follow_too"}


@node.shared
async def visits(ctx: SharedContext) -> int:
    """Return how often its handler has run, replays left out."""
    return await ctx.get("visits", int, 0)


nodes = App([node])
others = App([other])
