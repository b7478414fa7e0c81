"""Branches that fail while nobody awaits them yet, and others go on: whatever the next attempt writes is kept."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from keylane import ObjectContext, RetryPolicy, Runtime, SharedContext, VirtualObject

pytestmark = pytest.mark.anyio

HASTY = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=200)

tally = VirtualObject("Tally", owner="tests", partitions=2, retry=HASTY)
#: How often each point of a script has still to fail.
left: Counter[str] = Counter()

Script = list[Any]


async def worked() -> str:
    await asyncio.sleep(0)
    return "worked"


class Player:
    """Plays a script: each `add` counts up once, however often the handler runs."""

    def __init__(self, ctx: ObjectContext) -> None:
        self.ctx = ctx

    async def play(self, script: Script) -> None:
        for what, *rest in script:
            await getattr(self, what)(*rest)

    async def add(self, name: str) -> None:
        count = await self.ctx.get(name, int, 0)
        self.ctx.set(name, count + 1)

    async def put(self, name: str) -> None:
        self.ctx.set(name, 1)

    async def fail(self, name: str) -> None:
        if left[f"{self.ctx.key}/{name}"] > 0:
            left[f"{self.ctx.key}/{name}"] -= 1
            raise ValueError(name)

    async def step(self, name: str) -> None:
        await self.ctx.run(name, worked)

    async def nap(self) -> None:
        await self.ctx.sleep(0.001)

    async def message(self, name: str) -> None:
        await self.ctx.send(count, f"{self.ctx.key.tenant}/{self.ctx.key.key}-sent", name)

    async def gather(self, *scripts: Script) -> None:
        await self.ctx.gather(*(self.play(each) for each in scripts))

    async def loop(self, name: str, *scripts: Script) -> None:
        done = self.ctx.as_completed(*(self.play(each) for each in scripts))
        number = 0
        async for each in done:
            await self.add(f"{name}-{number}")
            await self.ctx.run(f"{name}-{number}", worked)
            number += 1
            await each

    async def look(self, name: str, *scripts: Script) -> None:
        """Let all come to an end before any is looked at."""
        ended: list[Any] = []
        async for each in self.ctx.as_completed(*(self.play(each) for each in scripts)):
            ended.append(each)
            await self.ctx.run(f"{name}-{len(ended)}", worked)
            await self.add(name)
        for each in ended:
            await each

    async def group(self, *scripts: Script) -> None:
        async with self.ctx.task_group() as group:
            for each in scripts:
                group.create_task(self.play(each))


@tally.handler
async def run(ctx: ObjectContext, script: Script) -> None:
    await Player(ctx).play(script)


@tally.handler
async def count(ctx: ObjectContext, name: str) -> None:
    ctx.set(name, await ctx.get(name, int, 0) + 1)


@tally.shared
async def totals(ctx: SharedContext, names: list[str]) -> dict[str, int]:
    return {name: await ctx.get(name, int, 0) for name in names}


class Drawing:
    """Draws a script, with what it adds up to."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.number = 0
        self.adds: Counter[str] = Counter()
        self.fails: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    def name(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number}"

    def script(self, depth: int) -> Script:
        return [self.one(depth) for _ in range(self.source.randint(1, 4))]

    def scripts(self, depth: int) -> list[Script]:
        return [self.script(depth + 1) for _ in range(self.source.randint(2, 3))]

    def one(self, depth: int) -> Any:
        forks = ["loop", "loop", "look", "gather", "group"] if depth < 3 else []
        match self.source.choice(["add", "add", "fail", "fail", "step", "nap", "message", "put", *forks]):
            case "add":
                name = self.name("a")
                self.adds[name] = 1
                return ["add", name]
            case "put":
                name = self.name("p")
                self.adds[name] = 1
                return ["put", name]
            case "fail":
                name = self.name("f")
                self.fails[name] = self.source.randint(1, 2)
                return ["fail", name]
            case "step":
                return ["step", self.name("s")]
            case "nap":
                return ["nap"]
            case "message":
                name = self.name("m")
                self.sent[name] = 1
                return ["message", name]
            case "loop":
                scripts, name = self.scripts(depth), self.name("l")
                self.adds.update({f"{name}-{number}": 1 for number in range(len(scripts))})
                return ["loop", name, *scripts]
            case "look":
                scripts, name = self.scripts(depth), self.name("k")
                self.adds[name] = len(scripts)
                return ["look", name, *scripts]
            case fork:
                return [fork, *self.scripts(depth)]


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime([tally], store=store_url, namespace=namespace) as runtime:
        yield runtime


async def all_once(runtime: Runtime, key: str, script: Script, drawing: Drawing) -> None:
    """Run a script whose points fail now and then, and compare what it has counted."""
    left.update({f"{key}/{name}": times for name, times in drawing.fails.items()})
    await runtime.client.call(run, key, script, timeout=60)
    assert await runtime.client.call(totals, key, list(drawing.adds)) == dict(drawing.adds), script


@pytest.mark.parametrize("first", range(0, 20, 10))
async def test_each_write_of_branches_that_fail_is_made_once(runtime: Runtime, first: int) -> None:
    """Whatever was recorded between a failure and its being raised: nothing is lost, and nothing is done twice."""
    for seed in range(first, first + 10):
        drawing = Drawing(seed)
        await all_once(runtime, f"acme/n-{seed}", [["loop", "main", *drawing.scripts(0)]], drawing)


@pytest.mark.nightly
async def test_each_write_of_many_such_branches_is_made_once(runtime: Runtime) -> None:
    """The same for as many as a night has time for."""
    for seed in range(1_000, 1_300):
        drawing = Drawing(seed)
        await all_once(runtime, f"acme/n-{seed}", [["loop", "main", *drawing.scripts(0)]], drawing)
