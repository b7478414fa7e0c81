"""The code that the golden journals were written by. Its handlers are never changed; new ones may be added."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from keylane import (
    App,
    BlockingObjectContext,
    Deduplicates,
    ModelAnswer,
    ObjectContext,
    Receiver,
    RetryPolicy,
    StepFailed,
    TerminalError,
    VirtualObject,
    WaitTimeout,
)

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=3)


class Item(BaseModel):
    name: str
    price: Decimal


shop = VirtualObject("Shop", owner="tests", partitions=1, retry=QUICK, state={"items": list[Item]})
stock = VirtualObject("Stock", owner="tests", partitions=1)

#: What `make` changes between two runs of one handler.
trouble: dict[str, int] = {}


def _ask(what: str) -> str:
    if trouble.get(what, 0) > 0:
        trouble[what] -= 1
        raise ValueError(f"{what} is out of order")
    return f"{what} says yes"


@stock.handler
async def reserve(ctx: ObjectContext, name: str) -> Decimal:
    if name == "nothing":
        raise TerminalError("there is none", code="no-stock", details={"name": name})
    return Decimal("2.50")


@shop.handler
async def order(ctx: ObjectContext, item: Item) -> Decimal:
    """Steps with state, the clock and random numbers in between."""
    items = await ctx.get("items", list[Item], [])
    number = str(ctx.uuid())
    at = await ctx.time()
    await ctx.run("check", _ask, "check")
    ctx.set("items", [*items, item])
    names = await ctx.state_keys()
    what = f"book {number} {at.isoformat()} {names} {ctx.random().random()}"
    await ctx.run("book", _ask, what)
    await ctx.sleep(timedelta(days=30))
    return item.price


@shop.handler
async def deliver(ctx: ObjectContext, name: str) -> list[Any]:
    """A call, a message and a short sleep."""
    price = await ctx.call(reserve, f"acme/{name}", name)
    sent = await ctx.send(reserve, "acme/later", name, delay=timedelta(days=1))
    await ctx.sleep(0.001)
    return [price, sent.id]


@shop.handler
async def insist(ctx: ObjectContext) -> str:
    """Steps that fail: some of them are tried again, one for good."""
    first = await ctx.run("first", _ask, "first")
    try:
        await ctx.run("second", _ask, "second", retry=QUICK, on_exhausted="raise")
    except StepFailed:
        first += ", second failed"
    last = await ctx.run("last", _ask, "last", retry=QUICK)
    if trouble.get("handler", 0) > 0:
        trouble["handler"] -= 1
        raise ValueError("the handler is out of order")
    return f"{first}, {last}"


@shop.handler
async def change(ctx: ObjectContext) -> bool:
    """Code that has a patch."""
    await ctx.run("before", _ask, "before")
    is_new = ctx.patched("ask once more")
    if is_new:
        await ctx.run("once more", _ask, "once more")
    await ctx.run("behind", _ask, "behind")
    return is_new


@shop.handler(name="close")
async def close_v1(ctx: ObjectContext) -> str:
    """An old version."""
    await ctx.run("close", _ask, "close")
    await ctx.sleep(timedelta(days=30))
    return "closed"


@shop.handler(version=2)
async def close(ctx: ObjectContext) -> str:
    """A newer version."""
    await ctx.run("close for good", _ask, "close for good")
    return "closed for good"


@shop.handler
def plain(ctx: BlockingObjectContext, text: str) -> str:
    """A plain function, with a large value."""
    got = ctx.run("echo", str, text)
    ctx.set("text", got)
    ctx.sleep(0.001)
    return ctx.get("text", str, "")


@shop.handler
async def compare(ctx: ObjectContext, names: list[str]) -> list[Any]:
    """Branches: calls and steps beside each other, a race whose loser is withdrawn, and one that reads state."""

    async def one(name: str) -> Decimal:
        price = await ctx.call(reserve, f"acme/{name}", name)
        ctx.set(f"price of {name}", price)
        await ctx.run("note", _ask, f"note {name}")
        return price

    first = await ctx.gather(*(one(name) for name in names), ctx.run("alone", _ask, "alone"))
    raced = await ctx.select(short=ctx.sleep(0.001), long=ctx.sleep(timedelta(days=30)))
    what = f"last {raced[0]} {await ctx.state_keys()}"
    await ctx.run("last", _ask, what)
    return list(first)


@shop.handler
async def approve(ctx: ObjectContext) -> list[Any]:
    """Waits that somebody outside ends: an awakeable, signals early and late, and one that nobody sends."""
    awakeable = await ctx.awakeable(str)
    ctx.set("awakeable", awakeable.id)
    await ctx.run("ask", _ask, "ask")
    decided = await awakeable.wait()
    first = await ctx.signal("note", str)
    try:
        await ctx.signal("never", str, timeout=0.001)
    except WaitTimeout:
        first += ", and no more"
    await ctx.run("last", _ask, f"last {decided}")
    return [decided, first]


bank = Receiver("bank", owner="tests", deduplicates=Deduplicates(retention=timedelta(days=1)))


@bank.effect("pay")
async def send_payment(operation_id: str, item: Item) -> str:
    return f"receipt of {item.name}"


till = VirtualObject("Till", owner="tests", partitions=1, retry=QUICK, effects=[send_payment])


@till.handler
async def pay(ctx: ObjectContext, item: Item) -> list[str]:
    """A proposal, the wait for what people say to it, and an effect that is asked for twice."""
    proposal = await ctx.propose(action="pay", name=item.name, price=item.price, notes={"why": "golden"})
    approval = await ctx.approval(proposal)
    receipt = await ctx.effect(send_payment, operation_id="pay-1", params=item, approval=approval)
    again = await ctx.effect(send_payment, operation_id="pay-1", params=item)
    await ctx.run("tell", _ask, f"tell {proposal.version}")
    return [receipt, again]


@till.handler
async def lend(ctx: ObjectContext) -> None:
    """What is undone when it is cancelled: one undo that works, and one that may not."""
    ctx.compensate("take back", _ask, "take back")
    await ctx.run("lend", _ask, "lend")
    ctx.compensate("write off", _ask, "write off", retry=QUICK)
    await ctx.sleep(timedelta(days=30))


app = App([shop, stock, till])


async def _answer(what: str) -> ModelAnswer[Item]:
    _ask(what)
    return ModelAnswer(
        Item(name=what, price=Decimal(1)), model="m-1-0925", input_tokens=120, output_tokens=8, cost=Decimal("0.0210")
    )


@shop.handler
async def consult(ctx: ObjectContext, names: list[str]) -> list[Item]:
    """Models: asked one after the other, once in vain, and beside each other."""
    first = await ctx.model("first", _answer, "first", model="m-1", retry=QUICK)
    ctx.set("items", [first])
    asked = [ctx.model(f"ask {name}", _answer, name, model="m-2", retry=QUICK) for name in names]
    return [first, *await ctx.gather(*asked)]


@bank.effect("take-back")
async def take_back(operation_id: str, item: Item) -> str:
    return f"{item.name} is back"


@bank.effect("hand-out", compensate_with=take_back)
async def hand_out(operation_id: str, item: Item) -> str:
    return f"{item.name} is out"


stall = VirtualObject("Stall", owner="tests", partitions=1, retry=QUICK, effects=[hand_out])
app = App([shop, stock, till, stall])


@stall.handler
async def sell(ctx: ObjectContext, item: Item) -> None:
    """An effect that is undone by what it declares, since what comes behind it fails."""
    await ctx.effect(hand_out, operation_id="hand-out-1", params=item, compensate=True)
    await ctx.run("take the money", _ask, "take the money")
    raise TerminalError("it rains", code="rain")
