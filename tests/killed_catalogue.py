"""Objects whose handlers are killed in the middle of branches, and while others have their lane."""

from __future__ import annotations

from datetime import timedelta

from keylane import App, ObjectContext, VirtualObject
from tests.objects_catalogue import mark

OWNER = "tests"

trio = VirtualObject("Trio", owner=OWNER, partitions=1, state={"done": list[str]})
helper = VirtualObject("Helper", owner=OWNER, partitions=1, state={"helped": int})
account = VirtualObject("Account", owner=OWNER, partitions=1, state={"amount": int, "note": str})


@trio.handler
async def three_at_a_time(ctx: ObjectContext, trail: str) -> list[str]:
    """Do a step, a call and a sleep at a time, keep what came of them as state, and do a step behind them."""
    began = await ctx.time()
    step, called, _ = await ctx.gather(
        ctx.run("step", mark, trail, "step"),
        ctx.call(help_out, "acme/h", trail),
        ctx.sleep(timedelta(milliseconds=50)),
    )
    ctx.set("done", [*await ctx.get("done", list[str], []), step, called, began.isoformat()])
    return [step, called, began.isoformat(), await ctx.run("after", mark, trail, "after")]


@trio.handler
async def done(ctx: ObjectContext) -> list[str]:
    """Return what is kept."""
    return await ctx.get("done", list[str], [])


@helper.handler
async def help_out(ctx: ObjectContext, trail: str) -> str:
    """Leave a mark, and count how often that was asked for."""
    ctx.set("helped", await ctx.get("helped", int, 0) + 1)
    return await ctx.run("help", mark, trail, "help")


@helper.handler
async def helped(ctx: ObjectContext) -> int:
    """Return how often it has helped."""
    return await ctx.get("helped", int, 0)


@account.handler
async def set_amount(ctx: ObjectContext, amount: int) -> None:
    """Change what others may expect to stay."""
    ctx.set("amount", amount)


@account.handler
async def annotate(ctx: ObjectContext, text: str) -> None:
    """Change what nobody expects to stay."""
    ctx.set("note", text)


@account.handler
async def wait_aside(ctx: ObjectContext) -> list[str]:
    """Leave the lane to others until there is word, and tell what was there before and what is there then."""
    before = await ctx.get("note", str, "")
    word = await ctx.signal("go", str, release_lane=True, expects=["amount"])
    after = await ctx.get("note", str, "")
    ctx.set("note", f"{after}, {word}")
    return [before, word, after]


@account.handler
async def note(ctx: ObjectContext) -> str:
    """Return the note."""
    return await ctx.get("note", str, "")


app = App([trio, helper, account])
