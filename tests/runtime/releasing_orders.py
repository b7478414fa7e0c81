"""Orders whose waits leave the lane to others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio

from keylane import (
    App,
    BlockingObjectContext,
    ObjectContext,
    Runtime,
    Settings,
    SharedContext,
    Superseded,
    VirtualObject,
)
from keylane.runtime.forcing import forced
from keylane.testing import shift_clock
from tests.waiting import eventually

KEY = "acme/o-1"
gates: dict[str, anyio.Event] = {}
trail: list[str] = []
order = VirtualObject("Order", owner="tests", partitions=1, state={"words": list[str], "amount": int})
other = VirtualObject("Other", owner="tests", partitions=1)


@order.handler
async def note(ctx: ObjectContext, word: str) -> str:
    trail.append(word)
    ctx.set("words", [*await ctx.get("words", list[str], []), word])
    return word


@order.handler
async def set_amount(ctx: ObjectContext, amount: int) -> None:
    ctx.set("amount", amount)


@order.handler
async def nap(ctx: ObjectContext, name: str) -> list[str]:
    """Sleep with the lane released, after a write and before a read."""
    trail.append(f"{name} runs")
    await ctx.get("words", list[str], [])
    ctx.set("words", [*await ctx.get("words", list[str], []), name])
    await ctx.sleep(600, release_lane=True)
    trail.append(f"{name} returns")
    await ctx.run("after", trail.append, f"{name} after")
    return await ctx.get("words", list[str], [])


@order.handler
async def holding_nap(ctx: ObjectContext, name: str) -> list[str]:
    trail.append(f"{name} runs")
    await ctx.sleep(600)
    return await ctx.get("words", list[str], [])


@order.handler
def nap_blocking(ctx: BlockingObjectContext, name: str) -> list[str]:
    ctx.set("words", [*ctx.get("words", list[str], []), name])
    with ctx.release_lane(expects=["amount"]):
        ctx.sleep(600)
    return ctx.get("words", list[str], [])


@order.handler
async def nap_with_steps(ctx: ObjectContext, name: str) -> list[str]:
    """Do several things in one block."""
    async with ctx.release_lane():
        await ctx.run("first", trail.append, f"{name} first")
        await ctx.sleep(600)
        await ctx.run("second", trail.append, f"{name} second")
        await ctx.sleep(600)
    return await ctx.get("words", list[str], [])


@order.handler
async def careful(ctx: ObjectContext, own: int | None) -> str:
    """Expect that nobody changes the amount."""
    ctx.set("amount", 1)
    async with ctx.release_lane(expects=["amount"]):
        if own is not None:
            ctx.set("amount", own)
        await ctx.sleep(600)
    return f"amount {await ctx.get('amount', int)}"


@order.handler
async def catching(ctx: ObjectContext) -> str:
    """Go on after having been superseded, with what is there then."""
    try:
        await ctx.sleep(600, release_lane=True, expects=["amount"])
    except Superseded as superseded:
        trail.append(f"superseded {superseded.names}")
        await ctx.run("step", trail.append, "step")
    return f"amount {await ctx.get('amount', int)}"


@order.handler
async def ask(ctx: ObjectContext, name: str) -> str:
    return await ctx.call(answer, "acme/x", name, release_lane=True)


@order.handler
async def ask_round(ctx: ObjectContext, name: str) -> str:
    """Call an object that calls this one."""
    return await ctx.call(come_back, "acme/x", name, release_lane=True)


@order.handler
async def approval(ctx: ObjectContext) -> list[str]:
    """Wait for somebody's word, and tell what has come meanwhile."""
    word = await ctx.signal("approved", str, timeout=600, release_lane=True)
    return [word, *await ctx.get("words", list[str], [])]


@order.handler
async def completion(ctx: ObjectContext) -> list[str]:
    awakeable = await ctx.awakeable(str)
    await ctx.run("tell", trail.append, awakeable.id)
    word = await awakeable.wait(release_lane=True)
    return [word, *await ctx.get("words", list[str], [])]


@order.handler
async def hold(ctx: ObjectContext, name: str) -> str:
    trail.append(f"{name} holds")
    await gates[name].wait()
    ctx.set("amount", 7)
    return name


@order.handler
async def in_a_branch(ctx: ObjectContext) -> None:
    await ctx.gather(ctx.sleep(1, release_lane=True), ctx.sleep(1))


@order.handler
async def branches_in_a_block(ctx: ObjectContext) -> None:
    async with ctx.release_lane():
        await ctx.gather(ctx.sleep(1), ctx.sleep(2))


@order.handler
async def after_branches(ctx: ObjectContext) -> list[str]:
    """Release the lane once all branches have ended."""
    await ctx.gather(ctx.run("a", str, "a"), ctx.run("b", str, "b"))
    await ctx.sleep(600, release_lane=True)
    return await ctx.get("words", list[str], [])


@order.shared
async def words(ctx: SharedContext) -> list[str]:
    return await ctx.get("words", list[str], [])


@other.handler
async def answer(ctx: ObjectContext, name: str) -> str:
    await gates[name].wait()
    return f"answer {name}"


@other.handler
async def come_back(ctx: ObjectContext, name: str) -> str:
    return await ctx.call(note, KEY, name)


def app_of(**numbers: Any) -> App:
    return App([order, other], settings=Settings(**numbers))


def told(words: list[str]) -> list[str]:
    """Return what handlers have told of themselves; what code outside of steps tells again is left out where forced."""
    return words if forced() is None else list(dict.fromkeys(words))


async def waits(runtime: Runtime, invocation_id: str) -> None:
    """Wait until an invocation waits durably."""

    async def is_so() -> bool:
        return (await runtime.client.describe(invocation_id)).status == "waiting"

    await eventually(is_so)


async def pass_time(runtime: Runtime) -> None:
    await shift_clock(runtime, timedelta(seconds=700))


def begin_afresh() -> None:
    """Forget what the test before has left."""
    gates.clear()
    gates.update((name, anyio.Event()) for name in ("a", "b", "c"))
    trail.clear()
