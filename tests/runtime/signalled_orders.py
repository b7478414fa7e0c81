"""Orders that wait for awakeables and signals, and a desk that sends them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import anyio
from pydantic import BaseModel

from keylane import (
    App,
    BlockingObjectContext,
    ObjectContext,
    RetryPolicy,
    SharedContext,
    TerminalError,
    VirtualObject,
    WaitTimeout,
)
from tests.waiting import eventually

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=2)
given: dict[str, str] = {}
trail: list[str] = []


class Answer(Enum):
    """An answer."""

    YES = "yes"
    NO = "no"


class Decision(BaseModel):
    """What somebody decides."""

    answer: Answer
    amount: Decimal
    at: datetime


order = VirtualObject("Order", owner="tests", partitions=2, state={"log": list[str]}, retry=QUICK)
desk = VirtualObject("Desk", owner="tests", partitions=2, retry=QUICK)
vault = VirtualObject("Vault", owner="tests", partitions=1)
skipping = VirtualObject(
    "Skipping", owner="tests", partitions=1, on_paused="skip",
    retry=RetryPolicy(first=timedelta(milliseconds=1), attempts=1),
)  # fmt: skip


def give(name: str, awakeable_id: str) -> None:
    given[name] = awakeable_id


@order.handler
async def decide(ctx: ObjectContext, name: str) -> Decision:
    trail.append("run")
    awakeable = await ctx.awakeable(Decision)
    await ctx.run("give", give, name, awakeable.id, type=None)
    return await awakeable.wait()


@order.handler
def decide_blocking(ctx: BlockingObjectContext, name: str) -> Decision:
    trail.append("run")
    awakeable = ctx.awakeable(Decision)
    ctx.run("give", give, name, awakeable.id, type=None)
    return awakeable.wait()


@order.handler
async def decide_soon(ctx: ObjectContext, name: str) -> list[str]:
    awakeable = await ctx.awakeable(str)
    await ctx.run("give", give, name, awakeable.id, type=None)
    told: list[str] = []
    for _ in range(2):
        try:
            told.append(await awakeable.wait(timeout=60))
        except WaitTimeout as error:
            told.append(error.code)
    return [*told, await ctx.signal("end", str)]


@order.handler
async def decide_twice(ctx: ObjectContext, name: str) -> list[str]:
    awakeable = await ctx.awakeable(str)
    await ctx.run("give", give, name, awakeable.id, type=None)
    first = await ctx.signal("first", str)
    return [first, await awakeable, await awakeable.wait(timeout=1)]


@order.handler
async def gather(ctx: ObjectContext, count: int) -> list[Any]:
    trail.append("run")
    return [await ctx.signal("go", Any) for _ in range(count)]


@order.handler(retry=RetryPolicy(first=timedelta(milliseconds=1), attempts=1))
async def gather_or_fail(ctx: ObjectContext) -> list[int]:
    taken = [await ctx.signal("go", int) for _ in range(3)]
    if "mended" not in given:
        raise ValueError("not yet")
    return taken


@order.handler
def gather_blocking(ctx: BlockingObjectContext, count: int) -> list[int]:
    return [ctx.signal("go", int) for _ in range(count)]


@order.handler
async def hear(ctx: ObjectContext, seconds: float) -> str:
    try:
        heard = await ctx.signal("go", str, timeout=seconds)
    except WaitTimeout as error:
        heard = f"{error.code}: {error}"
    ctx.set("log", [*await ctx.get("log", list[str], []), heard])
    return heard


@order.handler
async def hear_number(ctx: ObjectContext) -> int:
    trail.append("run")
    return await ctx.signal("go", int)


@order.handler
async def hear_large(ctx: ObjectContext) -> int:
    return len(await ctx.signal("go", str)) + len(await ctx.signal("go", str))


@order.handler(private=True)
async def hidden(ctx: ObjectContext) -> str:
    return await ctx.signal("go", str)


@order.handler
async def forward(ctx: ObjectContext, key: str) -> str:
    return await ctx.call(hidden, key)


@order.handler
async def bypass(ctx: ObjectContext) -> str:
    return "at once"


@order.shared
async def log(ctx: SharedContext) -> list[str]:
    return await ctx.get("log", list[str], [])


@desk.handler
async def resolve(ctx: ObjectContext, words: list[Any]) -> str:
    return type(await ctx.resolve_awakeable(*words)).__name__


@desk.handler
async def reject(ctx: ObjectContext, awakeable_id: str) -> str:
    return type(await ctx.reject_awakeable(awakeable_id, "no", code="said-no")).__name__


@desk.handler
async def tell(ctx: ObjectContext, words: list[Any]) -> str:
    match words:
        case [str() as target, str() as name, value]:
            return type(await ctx.send_signal(target, name, value)).__name__
        case [str() as type_name, str() as key, str() as name, value]:
            return type(await ctx.send_signal((type_name, key), name, value)).__name__
        case _:
            raise TerminalError("neither form")


@desk.handler
def tell_blocking(ctx: BlockingObjectContext, words: list[Any]) -> str:
    target, name, value = words
    return type(ctx.send_signal(target, name, value)).__name__


@vault.handler(private=True)
async def locked(ctx: ObjectContext) -> str:
    return await ctx.signal("go", str)


@skipping.handler
async def hear_once(ctx: ObjectContext) -> str:
    if "mended" not in given:
        with anyio.move_on_after(0.05):
            await ctx.signal("go", str)
        raise ValueError("not in time")
    return await ctx.signal("go", str)


app = App([order, desk, vault, skipping])
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
YES = Decision(answer=Answer.YES, amount=Decimal("40.00"), at=NOON)


async def id_of(name: str) -> str:
    """Return the id of an awakeable once it is given out."""

    async def is_given() -> bool:
        return name in given

    await eventually(is_given)
    return given[name]


async def waits(handle: Any) -> None:
    """Wait until an invocation waits, as the store has it."""

    async def waiting() -> bool:
        return (await handle.describe()).status == "waiting"

    await eventually(waiting)


def begin_afresh() -> None:
    """Forget what the test before has left."""
    given.clear()
    trail.clear()
