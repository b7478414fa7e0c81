"""A catalogue of tiny objects, each of which does one thing that tests want to see done.

Steps that are counted add a line to a file, whose path is their argument: so the count survives every process.
"""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path

import anyio
from pydantic import BaseModel

from keylane import (
    App,
    BlockingObjectContext,
    ObjectContext,
    RetryableError,
    RetryPolicy,
    SharedContext,
    TerminalError,
    VirtualObject,
)

OWNER = "catalogue"
POLL_SECONDS = 0.01


def mark(trail: str, word: str) -> str:
    """Add a line of two words to a file, in one write that other processes can't tear, and return the second.

    Args:
        trail: Path of the file.
        word: What ran; the second word is different each time, and names the process.
    """
    token = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
    descriptor = os.open(trail, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{word} {token}\n".encode())
    finally:
        os.close(descriptor)
    return token


def marks(trail: Path) -> list[tuple[str, str]]:
    """Return the lines of a file that `mark` wrote."""
    if not trail.exists():
        return []
    lines = [line.split() for line in trail.read_text().splitlines()]
    return [(word, token) for word, token in lines]


async def mark_slowly(trail: str, word: str) -> str:
    """Leave a mark, then take a while, in which the mark is there and no record of it."""
    token = mark(trail, word)
    await anyio.sleep(0.02)
    return token


async def mark_at_once(trail: str, word: str) -> str:
    """Leave a mark without giving way to anybody."""
    return mark(trail, word)


async def opened(gate: str) -> None:
    """Wait until a file exists."""
    while not Path(gate).exists():
        await anyio.sleep(POLL_SECONDS)


counter = VirtualObject("Counter", owner=OWNER, state={"value": int})


@counter.handler
async def add(ctx: ObjectContext, amount: int) -> int:
    """Add to the value and return it: a handler without steps is a transaction."""
    value = await ctx.get("value", int, 0) + amount
    ctx.set("value", value)
    return value


@counter.handler
async def add_and_hold(ctx: ObjectContext, gate: str) -> int:
    """Add one in a durable step, and hold the lane until a file exists."""
    value = await ctx.get("value", int, 0) + 1
    ctx.set("value", value)
    await ctx.run("wait for the gate", opened, gate)
    return value


@counter.handler
def add_blocking(ctx: BlockingObjectContext, amount: int) -> int:
    """Do what `add` does, in a thread."""
    value = ctx.get("value", int, 0) + amount
    ctx.set("value", value)
    return value


@counter.shared
async def get(ctx: SharedContext) -> int:
    """Return the value as it is durable."""
    return await ctx.get("value", int, 0)


@dataclass(frozen=True)
class Gates:
    """Where to leave marks, and the file to wait for."""

    trail: str
    gate: str


pair = VirtualObject("Pair", owner=OWNER, state={"left": int, "right": int})


@pair.handler
async def set_both(ctx: ObjectContext, value: int) -> None:
    """Write the same value under two names."""
    ctx.set("left", value)
    ctx.set("right", value)


@pair.shared
async def both(ctx: SharedContext, gate: str) -> list[int]:
    """Read one value, wait until a file exists, read the other."""
    left = await ctx.get("left", int, 0)
    await opened(gate)
    return [left, await ctx.get("right", int, 0)]


steps = VirtualObject("Steps", owner=OWNER, state={"done": list[str]})


@steps.handler
async def three_steps(ctx: ObjectContext, trail: str) -> list[str]:
    """Run three steps that leave a mark each, keep their marks as state after each, and return them."""
    done: list[str] = await ctx.get("done", list[str], [])
    for word in ("first", "second", "third"):
        done = [*done, await ctx.run(word, mark, trail, word)]
        ctx.set("done", done)
    return done


@steps.handler
async def one_step(ctx: ObjectContext, trail: str) -> str:
    """Run one step, which begins without giving way to anybody."""
    return await ctx.run("only", mark_at_once, trail, "only")


@steps.handler
async def three_slow_steps(ctx: ObjectContext, trail: str) -> list[str]:
    """Do what `three_steps` does with steps that take a while, without keeping anything as state."""
    return [await ctx.run(word, mark_slowly, trail, word) for word in ("first", "second", "third")]


@steps.handler
def three_blocking_steps(ctx: BlockingObjectContext, trail: str) -> list[str]:
    """Do what `three_steps` does, in a thread."""
    done: list[str] = ctx.get("done", list[str], [])
    for word in ("first", "second", "third"):
        done = [*done, ctx.run(word, mark, trail, word)]
        ctx.set("done", done)
    return done


@steps.handler
async def step_between_gates(ctx: ObjectContext, request: Gates) -> str:
    """Run a step, wait outside of any step until a file exists, run another, and return both marks."""
    first = await ctx.run("first", mark, request.trail, "first")
    await opened(request.gate)
    return first + " " + await ctx.run("second", mark, request.trail, "second")


@steps.handler
async def non_deterministic(ctx: ObjectContext, trail: str) -> str:
    """Run a first step with a name of its own in each process, which no replay elsewhere can agree with."""
    first = await ctx.run(f"step of {os.getpid()}", mark, trail, "first")
    return first + " " + await ctx.run("second", mark, trail, "second")


@steps.shared
async def done(ctx: SharedContext) -> list[str]:
    """Return the marks that are kept as state."""
    return await ctx.get("done", list[str], [])


trouble = VirtualObject("Trouble", owner=OWNER, state={"value": int, "second": int})


@trouble.handler
async def store(ctx: ObjectContext, value: int) -> None:
    """Write a value."""
    ctx.set("value", value)


@trouble.handler
async def fail(ctx: ObjectContext, message: str) -> None:
    """Fail for good."""
    raise TerminalError(message, code="asked-to", details={"key": str(ctx.key)})


@trouble.handler
async def fail_after_write(ctx: ObjectContext, value: int) -> None:
    """Write, then fail for good: nothing of it is kept."""
    ctx.set("value", value)
    raise TerminalError("after the write", code="after-write")


@trouble.handler
async def fail_after_step(ctx: ObjectContext, value: int) -> None:
    """Write, take a step, write again, fail: what the step made durable is kept, what came after it is not."""
    ctx.set("value", value)
    await ctx.run("durable point", int)
    ctx.set("second", value)
    raise TerminalError("after the step", code="after-step")


@trouble.handler
async def flaky(ctx: ObjectContext, trail: str) -> int:
    """Fail twice in a way that is retried, then return how often it ran; the writes of failed attempts are lost."""
    ctx.set("value", await ctx.get("value", int, 0) + 1)
    mark(trail, "attempt")
    ran = len(marks(Path(trail)))
    if ran < 3:
        raise RetryableError("not yet", retry_after=0.01)
    return ran


@trouble.handler(retry=RetryPolicy(first=timedelta(milliseconds=10), attempts=2))
async def never_works(ctx: ObjectContext, trail: str) -> None:
    """Fail each time, until the retries are spent and the invocation is paused."""
    mark(trail, "attempt")
    raise ValueError("it never works")


@trouble.shared
async def values(ctx: SharedContext) -> list[int | None]:
    """Return both values."""
    return [await ctx.get("value", int), await ctx.get("second", int)]


@dataclass(frozen=True)
class Blocking:
    """Where to leave marks, and the file until which the event loop is blocked."""

    trail: str
    gate: str


slow = VirtualObject("Slow", owner=OWNER, state={"ran": list[int]})


@slow.handler
async def hold(ctx: ObjectContext, gate: str) -> str:
    """Hold the lane until a file exists."""
    await opened(gate)
    return str(ctx.key)


@slow.handler
async def block_once(ctx: ObjectContext, request: Blocking) -> list[int]:
    """Leave a mark and, the first time, keep the event loop from running until a file exists; return who ran it."""
    mark(request.trail, "ran")
    while len(marks(Path(request.trail))) == 1 and not Path(request.gate).exists():
        time.sleep(POLL_SECONDS)  # noqa: ASYNC251, the point of this handler
    ran = [*await ctx.get("ran", list[int], []), os.getpid()]
    ctx.set("ran", ran)
    return ran


@slow.shared
async def runs(ctx: SharedContext) -> list[int]:
    """Return the processes whose runs of `block_once` are kept."""
    return await ctx.get("ran", list[int], [])


@slow.handler
async def nap(ctx: ObjectContext, seconds: float) -> None:
    """Take some time, without doing anything."""
    await anyio.sleep(seconds)


big = VirtualObject("Big", owner=OWNER, state={"data": bytes})


@big.handler
async def echo_bytes(ctx: ObjectContext, data: bytes) -> bytes:
    """Return what was given."""
    return data


@big.handler
async def keep(ctx: ObjectContext, size: int) -> int:
    """Keep so many bytes as state, and return what a step made of them."""
    ctx.set("data", bytes(size))
    return len(await ctx.run("make", bytes, size))


class Colour(Enum):
    """An enumeration."""

    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    """A part of a typed value."""

    amount: Decimal
    note: str | None = None


class Typed(BaseModel):
    """A value with many types in it."""

    items: list[Item]
    by_name: dict[str, Item]
    colour: Colour
    at: datetime
    raw: bytes
    large: int
    pair: tuple[int, str]
    kinds: set[int]


typed = VirtualObject("Typed", owner=OWNER, state={"last": Typed})


@typed.handler
async def echo(ctx: ObjectContext, value: Typed) -> Typed:
    """Pass a value through state and a step, and return it."""
    ctx.set("last", value)
    return await ctx.run("pass on", same, value)


def same(value: Typed) -> Typed:
    """Return what was given."""
    return value


@typed.shared
async def last(ctx: SharedContext) -> Typed | None:
    """Return the value that was given last."""
    return await ctx.get("last", Typed)


app = App([counter, pair, steps, trouble, slow, big, typed])
