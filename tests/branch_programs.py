"""Generated handlers with branches, and what each run of one saw, in the order in which it saw it.

A later run of the same invocation has to see all that an earlier one saw, in the same order, before it sees more.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import defaultdict
from contextlib import suppress
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from keylane import App, BranchGroup, ObjectContext, RetryPolicy, TerminalError, VirtualObject

OWNER = "tests"
NAMES = ("a", "b")
PATIENT = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=5), attempts=100)

#: What each run of an object's handler saw: the newest run comes last.
seen: defaultdict[str, list[list[Any]]] = defaultdict(list)

#: How long steps take, and how things outside of any journal turn out.
chance = random.Random(0)

player = VirtualObject("Player", owner=OWNER, partitions=2, state=dict.fromkeys(NAMES, str))
listener = VirtualObject("Listener", owner=OWNER, partitions=2)


@listener.handler
async def listen(ctx: ObjectContext, word: str) -> str:
    """Answer after a while."""
    await asyncio.sleep(chance.random() / 500)
    return f"{word} {secrets.token_hex(2)}"


async def act(name: str) -> str:
    """Take a while, and come to something else each time."""
    await asyncio.sleep(chance.random() / 200)
    return f"{name} {secrets.token_hex(2)}"


async def refuse(name: str) -> str:
    """Take a while, and fail."""
    await asyncio.sleep(chance.random() / 200)
    raise TerminalError(name)


async def falter(name: str) -> str:
    """Fail now and then with something that is tried again."""
    if chance.random() < 0.5:
        raise ValueError(name)
    return await act(name)


class Play:
    """One run of a program.

    Args:
        ctx: The context of the handler.
    """

    def __init__(self, ctx: ObjectContext) -> None:
        self.ctx = ctx
        self.saw: list[Any] = []
        seen[ctx.key.key].append(self.saw)

    async def branch(self, where: str, program: list[Any]) -> str:
        """Do what a program says; one that is cut off cleans up."""
        try:
            for number, command in enumerate(program):
                await self.do(f"{where}.{number}", command)
        except asyncio.CancelledError:
            self.saw.append((where, "cut off"))
            self.saw.append((where, "cleaned up", await self.ctx.run("clean up", act, where)))
            raise
        self.saw.append((where, "ends"))
        return where

    async def do(self, where: str, command: Any) -> None:
        """Do one thing and note what came of it."""
        kind, rest = command
        got = await (self.call_of(where, kind, rest) if isinstance(rest, str) else self.fork(where, kind, rest))
        self.saw.append((where, kind, got))

    async def call_of(self, where: str, kind: str, word: str) -> Any:
        """Do what needs no branches."""
        ctx = self.ctx
        match kind:
            case "get":
                return await ctx.get(word, str)
            case "set":
                ctx.set(word, f"{where} {word}")
            case "clear":
                ctx.clear(word)
            case "keys":
                return await ctx.state_keys()
            case "time":
                return str(await ctx.time())
            case "uuid":
                return str(ctx.uuid())
            case "random":
                return ctx.random().random()
            case "refused":
                with suppress(TerminalError):
                    await ctx.run(word, refuse, word)
            case _:
                return await self.awaitable(kind, word)
        return None

    def awaitable(self, kind: str, word: str) -> Any:
        """Return what a branch may be without a function of its own."""
        match kind:
            case "step":
                return self.ctx.run(word, act, word)
            case "falter":
                return self.ctx.run(word, falter, word, retry=PATIENT)
            case "sleep":
                return self.ctx.sleep(0.001 * len(word))
            case "call":
                return self.ctx.call(listen, f"acme/{word}", word)
            case _:
                return self.sent(word)

    async def sent(self, word: str) -> str:
        """Send a message."""
        return (await self.ctx.send(listen, f"acme/{word}", word)).id

    def started(self, where: str, branches: list[Any]) -> list[Any]:
        """Return awaitables of branches."""
        return [
            self.awaitable(*each[0])
            if len(each) == 1 and each[0][0] in DIRECT
            else self.branch(f"{where}/{number}", each)
            for number, each in enumerate(branches)
        ]

    async def fork(self, where: str, kind: str, branches: list[Any]) -> Any:
        """Do several things at a time."""
        ctx = self.ctx
        match kind:
            case "gather":
                return list(await ctx.gather(*self.started(where, branches)))
            case "select":
                named = {f"n{number}": each for number, each in enumerate(self.started(where, branches))}
                return list(await ctx.select(**named))
            case "as_completed":
                return [await done async for done in ctx.as_completed(*self.started(where, branches))]
            case _:
                return await self.group(where, branches)

    async def group(self, where: str, branches: list[Any]) -> Any:
        """Do the first in the block of a group, the others beside it, and cancel the last."""
        async with self.ctx.task_group() as group:
            tasks = self.begin(group, where, branches)
            first = await self.branch(f"{where}/block", branches[0])
            tasks[-1].cancel()
            kept = {f"t{number}": task for number, task in enumerate(tasks[:-1])}
            race = list(await self.ctx.select(**kept)) if kept else []
        return [first, race, [task.is_cancelled for task in tasks]]

    def begin(self, group: BranchGroup, where: str, branches: list[Any]) -> list[Any]:
        """Start the branches of a group."""
        return [group.create_task(each) for each in self.started(where, branches)]


DIRECT = ("step", "falter", "sleep", "call")
RECORDED_WITH_A_RESULT = ("step", "falter", "refused", "cleaned up")

words = st.sampled_from(["x", "yy", "zzz"])
simple = st.one_of(
    st.tuples(st.sampled_from(["step", "falter", "sleep", "call", "send", "refused"]), words),
    st.tuples(st.sampled_from(["get", "set", "clear"]), st.sampled_from(NAMES)),
    st.tuples(st.sampled_from(["keys", "time", "uuid", "random"]), words),
)


def forks(commands: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return commands that do several things at a time."""
    branches = st.lists(st.lists(commands, min_size=1, max_size=3), min_size=1, max_size=4)
    return st.tuples(st.sampled_from(["gather", "select", "as_completed", "group"]), branches)


commands = st.recursive(simple, forks, max_leaves=12)
programs = st.lists(st.one_of(forks(commands), commands), min_size=1, max_size=4)


@player.handler
async def play(ctx: ObjectContext, program: list[Any]) -> list[Any]:
    """Run a program and return what it saw."""
    run = Play(ctx)
    for number, command in enumerate(program):
        await run.do(str(number), command)
    return run.saw


app = App([player, listener])


def check_runs(key: str) -> int:
    """Check that each run of an object's handler saw what the one before it saw; returns how many there were."""
    runs = seen.pop(key)
    longest: list[Any] = []
    for number, whole in enumerate(runs):
        run = without_its_end(whole)
        # One that is cut off early has seen less than one before it, and nothing else.
        pairs = zip(told(run, longest), told(longest, longest), strict=False)
        at = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
        near = slice(max((at or 0) - 3, 0), (at or 0) + 4)
        assert at is None, f"{key}, run {number}: saw {run[near]} where one before it saw {longest[near]}"
        longest = max(longest, run, key=len)
    assert len(runs[-1]) == len(longest), f"{key}: saw {len(longest)} things, and at last {len(runs[-1])}"
    return len(runs)


def without_its_end(run: list[Any]) -> list[Any]:
    """Return what a run saw before its worker cut it off, which a branch sees as any other cancellation."""
    last = next((at for at in range(len(run), 0, -1) if run[at - 1][1] != "cut off"), 0)
    return run[:last]


def told(run: list[Any], longest: list[Any]) -> list[Any]:
    """Return what a run saw, without what the clock said behind the last thing that was recorded with a result.

    The clock's answers are recorded together with what comes of them: where nothing does, they are lost with the run.
    """
    results = [number for number, saw in enumerate(longest) if saw[1] in RECORDED_WITH_A_RESULT]
    last = max(results, default=-1)
    return [saw if number < last or saw[1] != "time" else saw[:2] for number, saw in enumerate(run)]
