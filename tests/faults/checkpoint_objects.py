"""Handlers that differ in nothing but when the results of their steps are written."""

from __future__ import annotations

from keylane import App, ObjectContext, VirtualObject
from tests.objects_catalogue import Gates, add, counter, mark, mark_slowly, opened

WORDS = ("first", "second", "third", "fourth", "fifth", "sixth")
modes = VirtualObject("Modes", owner="tests", partitions=1, state={"done": list[str]})


async def with_a_gate(ctx: ObjectContext, request: Gates) -> list[str]:
    """Run six steps, and wait for a file after the second, outside of any step."""
    tokens: list[str] = []
    for number, word in enumerate(WORDS):
        if number == 2:
            await opened(request.gate)
        tokens.append(await ctx.run(word, mark_slowly, request.trail, word))
    return tokens


async def with_a_message(ctx: ObjectContext, trail: str) -> list[str]:
    """Run three steps, send a message, run three more, and keep what they returned as state after each."""
    tokens: list[str] = []
    for number, word in enumerate(WORDS):
        if number == 3:
            await ctx.send(add, "acme/told", 1)
        tokens.append(await ctx.run(word, mark, trail, word))
        ctx.set("done", tokens)
    return tokens


for mode in ("sync", "async", "exit"):
    modes.handler(name=f"gate_{mode}", checkpoint=mode)(with_a_gate)
    modes.handler(name=f"message_{mode}", checkpoint=mode)(with_a_message)


@modes.handler
async def done(ctx: ObjectContext) -> list[str]:
    """Return what is kept as state."""
    return await ctx.get("done", list[str], [])


app = App([modes, counter])
