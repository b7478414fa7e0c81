"""What a generated handler does: one interpreter, which runs on the engine's context and on the model's alike.

A script is `{"uid", "body", "on_cancel"}`; a body is a list of commands `[kind, number, ...]`, whose numbers are unique
in a program; a branch is `{"body", "clean"}`. What differs from run to run stands behind a `#` and is not compared with
the model: which execution of a step it was that counts, ids, random numbers, the time.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from keylane import (
    BlockingObjectContext,
    Cancelled,
    Deadlock,
    InvocationCancelled,
    InvocationFailed,
    ObjectContext,
    RetryPolicy,
    SharedContext,
    StepFailed,
    TerminalError,
    VirtualObject,
    WaitTimeout,
)

OWNER: Final = "tests"
TYPES: Final = ("Alpha", "Beta", "Gamma")
KEYS: Final = ("k0", "k1", "k2", "k3", "k4")
NAMES: Final = ("x", "y")
HASTY: Final = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=5), attempts=50)
SPENT: Final = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=2)


@dataclass
class Ledger:
    """What a program has done outside of any journal, for as long as the process lives.

    Attributes:
        executions: How often each step was executed, by its number.
        attempts: How often each thing that fails has failed.
        undone: By script, what was undone, each time that it was.
        awakeables: The ids that steps have given away, by the number of the command that made them.
        invocations: The ids of invocations that have begun, by script.
        runs: By script, what each run of it saw: the newest run comes last.
    """

    executions: Counter[int] = field(default_factory=Counter[int])
    attempts: Counter[int] = field(default_factory=Counter[int])
    undone: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    awakeables: dict[int, str] = field(default_factory=dict[int, str])
    invocations: dict[int, str] = field(default_factory=dict[int, str])
    runs: defaultdict[int, list[list[Any]]] = field(default_factory=lambda: defaultdict(list))


#: By the tenant of a program.
ledgers: defaultdict[str, Ledger] = defaultdict(Ledger)

_tokens = itertools.count(1)


def token(ledger: Ledger, number: int, value: str) -> str:
    """Return the result of one execution of a step: another one each time."""
    ledger.executions[number] += 1
    return f"{value}#{next(_tokens)}"


async def act(tag: str, number: int, value: str) -> str:
    """Work at once."""
    return token(ledgers[tag], number, value)


async def dawdle(tag: str, number: int, value: str) -> str:
    """Take a few turns of the loop."""
    for _ in range(number % 4):
        await asyncio.sleep(0)
    return token(ledgers[tag], number, value)


def act_in_a_thread(tag: str, number: int, value: str) -> str:
    """Work in a thread."""
    return token(ledgers[tag], number, value)


async def falter(tag: str, number: int, value: str, times: int) -> str:
    """Fail a few times, and then work."""
    stumble(tag, number, times)
    return token(ledgers[tag], number, value)


def stumble(tag: str, number: int, times: int) -> None:
    """Fail a few times, with something that is tried again."""
    ledger = ledgers[tag]
    if ledger.attempts[number] < times:
        ledger.attempts[number] += 1
        raise ValueError(f"stumbles at {number}")


async def refuse(tag: str, number: int, value: str) -> str:
    """Fail for good."""
    del value
    ledgers[tag].executions[number] += 1
    raise TerminalError("refused", code="refused")


async def never(tag: str, number: int, value: str) -> str:
    """Fail at each attempt."""
    del value
    ledgers[tag].executions[number] += 1
    raise ValueError("never")


async def give(tag: str, number: int, awakeable_id: str) -> str:
    """Give an awakeable's id away."""
    ledgers[tag].awakeables[number] = awakeable_id
    return token(ledgers[tag], number, "given")


async def undo(tag: str, uid: int, number: int) -> None:
    """Undo something."""
    ledgers[tag].undone[uid].append(number)


STEPS: Final = {"step": act, "slow": dawdle, "thread": act_in_a_thread, "refused": refuse, "spent": never}


class Play:
    """One run of a script.

    Args:
        ctx: The context: the engine's, or the model's.
        script: The script.
        tag: The tenant of the program.
        saw: Takes what is seen, in the order in which it is.
    """

    def __init__(self, ctx: Any, script: dict[str, Any], tag: str, saw: list[Any]) -> None:
        self.ctx = ctx
        self.script = script
        self.tag = tag
        self.saw = saw

    async def run(self) -> Any:
        """Run it to its end."""
        try:
            return await self.all(self.script["body"])
        except Cancelled:
            self.saw.append([0, "told", "cancelled"])
            match self.script["on_cancel"]:
                case "clean":
                    self.saw.append([0, "step", await self.ctx.run("clean up", act, self.tag, -1, "clean")])
                    raise
                case "write":
                    self.ctx.set("x", "cancelled")
                    raise
                case "swallow":
                    return ["swallowed"]
                case _:
                    raise

    async def all(self, body: list[Any]) -> list[Any]:
        """Do one thing after the other."""
        return [await self.do(command) for command in body]

    async def do(self, command: list[Any]) -> Any:
        """Do one thing, and note what came of it."""
        kind, number, *rest = command
        try:
            got = await getattr(self, f"do_{kind}")(number, *rest)
        except StepFailed:
            got = "spent"
        except Deadlock:
            got = "deadlock"
        except InvocationFailed as error:
            got = f"failed {error.code}"
        except InvocationCancelled as error:
            got = error.how
        except WaitTimeout:
            got = "timeout"
        except TerminalError as error:
            if error.code in UNCAUGHT and kind != "fork":
                raise
            got = f"error {error.code}"
        if kind != "stumble":
            # Of a failed attempt the next one sees nothing.
            self.saw.append([number, kind, got])
        return got

    async def do_run(self, number: int, how: str, value: str) -> Any:
        """Run a step."""
        more: dict[str, Any] = {"retry": SPENT, "on_exhausted": "raise"} if how == "spent" else {}
        return await self.ctx.run(f"{how} {number}", STEPS[how], self.tag, number, value, **more)

    async def do_falter(self, number: int, value: str, times: int) -> Any:
        """Run a step that fails a few times."""
        return await self.ctx.run(f"falter {number}", falter, self.tag, number, value, times, retry=HASTY)

    async def do_stumble(self, number: int, times: int) -> None:
        """Fail as a whole, and go on from the journal."""
        try:
            self.ctx.stumble(self.tag, number, times)
        except ValueError:
            # What its other branches see from here on is no part of the journal.
            self.saw.append(STUMBLED)
            raise

    async def do_get(self, number: int, name: str) -> Any:
        """Read a state value."""
        del number
        return await self.ctx.get(name, str)

    async def do_add(self, number: int, name: str) -> Any:
        """Add to a state value."""
        before = await self.ctx.get(name, str, "")
        self.ctx.set(name, f"{before}.{number}"[-24:])
        return before

    async def do_clear(self, number: int, name: str) -> None:
        """Clear a state value, or all."""
        del number
        if name:
            self.ctx.clear(name)
        else:
            self.ctx.clear_all()

    async def do_keys(self, number: int) -> Any:
        """Read the names of the state."""
        del number
        return await self.ctx.state_keys()

    async def do_note(self, number: int, what: str) -> Any:
        """Ask for the time, an id or a random number."""
        del number
        match what:
            case "time":
                return f"time#{await self.ctx.time()}"
            case "uuid":
                return f"uuid#{self.ctx.uuid()}"
            case _:
                return f"random#{self.ctx.random().random()}"

    async def do_fail(self, number: int, code: str) -> None:
        """Fail for good."""
        raise TerminalError(f"fails at {number}", code=code)

    async def do_compensate(self, number: int) -> None:
        """Register an undo."""
        self.ctx.compensate(f"undo {number}", undo, self.tag, self.script["uid"], number)

    async def do_sleep(self, number: int, minutes: int) -> str:
        """Wait for a while."""
        del number
        await self.ctx.sleep(timedelta(minutes=minutes))
        return "slept"

    async def do_signal(self, number: int, name: str, minutes: int) -> Any:
        """Wait for a signal."""
        del number
        return await self.ctx.signal(name, str, timeout=timedelta(minutes=minutes))

    async def do_awakeable(self, number: int, minutes: int, sends: list[Any] | None) -> Any:
        """Make an awakeable, give it away, have another object complete it or not, and wait for it."""
        made = await self.ctx.awakeable(str)
        await self.ctx.run(f"give {number}", give, self.tag, number, made.id)
        if sends is not None:
            await self.do(sends)
        return await made.wait(timeout=timedelta(minutes=minutes))

    async def do_resolve(self, number: int, awakeable: int, value: str) -> str:
        """Complete the awakeable of another invocation."""
        del number
        found = self.ctx.awakeable_id(self.tag, awakeable)
        return word_of(await self.ctx.resolve_awakeable(found, value))

    async def do_signal_object(self, number: int, type_name: str, key: str, name: str, value: str) -> str:
        """Send a signal to an object."""
        del number
        return word_of(await self.ctx.send_signal((type_name, f"{self.tag}/{key}"), name, value))

    async def do_call(self, number: int, type_name: str, key: str, script: dict[str, Any]) -> Any:
        """Call another object."""
        del number
        return await self.ctx.call(type_name, f"{self.tag}/{key}", handler_of(script), script)

    async def do_send(self, number: int, type_name: str, key: str, script: dict[str, Any], minutes: int) -> str:
        """Send a message to an object."""
        del number
        delay = timedelta(minutes=minutes) if minutes else None
        await self.ctx.send(type_name, f"{self.tag}/{key}", handler_of(script), script, delay=delay)
        return "sent"

    async def branch(self, branch: dict[str, Any]) -> Any:
        """Run a branch; one that is cut off may clean up."""
        try:
            return await self.all(branch["body"])
        except asyncio.CancelledError:
            if branch["clean"]:
                self.saw.append([0, "step", await self.ctx.run("clean up", act, self.tag, -1, "clean")])
            raise

    def started(self, branches: list[dict[str, Any]]) -> list[Any]:
        """Return the awaitables of branches."""
        return [self.branch(each) for each in branches]

    async def do_fork(self, number: int, how: str, branches: list[dict[str, Any]]) -> Any:
        """Do several things at a time."""
        del number
        ctx = self.ctx
        match how:
            case "gather":
                return list(await ctx.gather(*self.started(branches)))
            case "select":
                named = {f"n{at}": each for at, each in enumerate(self.started(branches))}
                return list(await ctx.select(**named))
            case "as_completed":
                return [await done async for done in ctx.as_completed(*self.started(branches))]
            case "first_completed":
                return await (await anext(aiter(ctx.as_completed(*self.started(branches)))))
            case _:
                return await self.group(branches)

    async def group(self, branches: list[dict[str, Any]]) -> Any:
        """Run the first in the block of a group and the others beside it, and cancel the last."""
        first, *others = branches
        async with self.ctx.task_group() as group:
            tasks = [group.create_task(each) for each in self.started(others)]
            got = await self.branch(first)
            tasks[-1].cancel()
            beside = [await task for task in tasks[:-1]]
        return [got, beside, tasks[-1].is_cancelled]


#: Stands in what a run saw where it has failed.
STUMBLED: Final = [0, "stumbled", None]
#: Codes of failures that no command catches but the fork around it.
UNCAUGHT: Final = ("fatal",)


def word_of(verdict: Any) -> str:
    """Return a verdict in a word."""
    return type(verdict).__name__


def handler_of(script: dict[str, Any]) -> str:
    """Return the handler that runs a script."""
    return script.get("handler", "play")


class _Real:
    """The engine's context, with what only the model spells in another way."""

    def __init__(self, ctx: ObjectContext) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    @staticmethod
    def stumble(tag: str, number: int, times: int) -> None:
        stumble(tag, number, times)

    @staticmethod
    def awakeable_id(tag: str, number: int) -> str:
        return ledgers[tag].awakeables[number]


def _object(name: str) -> VirtualObject:
    made = VirtualObject(name, owner=OWNER, partitions=2, state=dict.fromkeys(NAMES, str))

    @made.handler(retry=HASTY)
    async def play(ctx: ObjectContext, script: dict[str, Any]) -> Any:
        tag, uid = ctx.key.tenant, script["uid"]
        ledger = ledgers[tag]
        ledger.invocations[uid] = ctx.invocation_id
        saw: list[Any] = []
        ledger.runs[uid].append(saw)
        return await Play(_Real(ctx), script, tag, saw).run()

    @made.handler(retry=HASTY)
    def plod(ctx: BlockingObjectContext, script: dict[str, Any]) -> Any:
        tag, uid = ctx.key.tenant, script["uid"]
        ledger = ledgers[tag]
        ledger.invocations[uid] = ctx.invocation_id
        saw: list[Any] = []
        ledger.runs[uid].append(saw)
        return _driven(Play(_Blocking(ctx), script, tag, saw).run())

    @made.shared
    async def state(ctx: SharedContext) -> dict[str, str | None]:
        return {name: await ctx.get(name, str) for name in NAMES}

    del play, plod, state
    return made


class _Blocking:
    """The engine's blocking context, as one whose calls can be awaited and never wait."""

    _PLAIN: Final = frozenset({"set", "clear", "clear_all", "uuid", "random", "key", "invocation_id"})
    stumble = staticmethod(_Real.stumble)
    awakeable_id = staticmethod(_Real.awakeable_id)

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def compensate(self, name: str, action: Callable[..., Any], *arguments: Any) -> None:
        self._inner.compensate(name, _plain(action), *arguments)

    async def run(self, name: str, action: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return self._inner.run(name, _plain(action), *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in self._PLAIN or not callable(found):
            return found

        async def at_once(*arguments: Any, **named: Any) -> Any:
            got = found(*arguments, **named)
            return _Blocking(got) if name == "awakeable" else got

        return at_once


@functools.cache
def _plain(action: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step as a plain function; it awaits nothing that waits."""
    if not inspect.iscoroutinefunction(action):
        return action

    @functools.wraps(action)
    def plain(*arguments: Any) -> Any:
        return _driven(action(*arguments))

    return plain


def _driven(coroutine: Any) -> Any:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a blocking handler has awaited something")


objects: Final = [_object(name) for name in TYPES]
