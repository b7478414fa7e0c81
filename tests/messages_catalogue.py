"""Objects that send each other messages and keep books about it, for processes that are killed meanwhile."""

from __future__ import annotations

import random

from pydantic import BaseModel

from keylane import App, ObjectContext, SharedContext, VirtualObject

from .objects_catalogue import OWNER, mark, opened

#: So many messages an object sends in one run of its handler.
BURST = 10
PARTITIONS = 16


class Round(BaseModel):
    """What an object is asked to send: one burst, to objects drawn from the seed."""

    seed: str
    number: int
    objects: int


class Message(BaseModel):
    """A message; `sequence` counts those of one sender to one receiver, from 0."""

    sender: str
    sequence: int


peer = VirtualObject(
    "Peer", owner=OWNER, partitions=PARTITIONS, state={"sent": dict[str, int], "taken": dict[str, list[int]]}
)


@peer.handler
async def emit(ctx: ObjectContext, asked: Round) -> int:
    """Send a burst of messages; what was sent is counted together with each of them."""
    choose = random.Random(f"{asked.seed} {ctx.key} {asked.number}")
    for _ in range(BURST):
        receiver = f"acme/{choose.randrange(asked.objects)}"
        sent = await ctx.get("sent", dict[str, int], {})
        sequence = sent.get(receiver, 0)
        ctx.set("sent", {**sent, receiver: sequence + 1})
        await ctx.send(take, receiver, Message(sender=str(ctx.key), sequence=sequence))
    return asked.number


@peer.handler
async def take(ctx: ObjectContext, message: Message) -> None:
    """Note a message behind those of the same sender."""
    taken = await ctx.get("taken", dict[str, list[int]], {})
    ctx.set("taken", {**taken, message.sender: [*taken.get(message.sender, []), message.sequence]})


@peer.shared
async def books(ctx: SharedContext) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Return what was sent to whom, and what was taken from whom, in order."""
    return await ctx.get("sent", dict[str, int], {}), await ctx.get("taken", dict[str, list[int]], {})


class Errand(BaseModel):
    """Where marks are left, and what is waited for."""

    trail: str
    seconds: float = 0.0
    gate: str = ""


clerk = VirtualObject("Clerk", owner=OWNER, partitions=4)
teller = VirtualObject("Teller", owner=OWNER, partitions=4, state={"count": int})


@clerk.handler
async def errand(ctx: ObjectContext, asked: Errand) -> list[str]:
    """Take a step, call, take another step, and return the marks of all three."""
    first = await ctx.run("first", mark, asked.trail, "first")
    middle = await ctx.call(serve, f"acme/{ctx.key.key}", asked)
    return [first, middle, await ctx.run("last", mark, asked.trail, "last")]


@clerk.handler
async def sleep(ctx: ObjectContext, asked: Errand) -> float:
    """Sleep, and return for how long by the partition's time."""
    began = await ctx.time()
    await ctx.run("begun", mark, asked.trail, "begun")
    await ctx.sleep(asked.seconds)
    await ctx.run("ended", mark, asked.trail, "ended")
    return ((await ctx.time()) - began).total_seconds()


@clerk.handler
async def leave(ctx: ObjectContext, word: str) -> str:
    """Return a word: something to be asked for later."""
    return word


@teller.handler
async def serve(ctx: ObjectContext, asked: Errand) -> str:
    """Take a step, perhaps wait for a file, count, and return the mark."""
    token = await ctx.run("serve", mark, asked.trail, "serve")
    if asked.gate:
        await ctx.run("wait", opened, asked.gate)
    ctx.set("count", await ctx.get("count", int, 0) + 1)
    return token


@teller.shared
async def count(ctx: SharedContext) -> int:
    """Return how often it has served."""
    return await ctx.get("count", int, 0)


app = App([peer, clerk, teller])
callers = App([clerk])
callees = App([teller])
