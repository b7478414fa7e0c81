"""What a handler is told that uses its context in a way that no replay could repeat."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class ForeignTask(RuntimeError):
    """A durable call was made from a task that the runtime did not make."""

    def __init__(self, call: str) -> None:
        super().__init__(
            f"ctx.{call} was awaited in a task that the runtime did not make, so its place in the journal is not "
            "defined: use ctx.gather, ctx.select, ctx.as_completed or ctx.task_group() in place of asyncio.gather, "
            "asyncio.create_task and task groups of other libraries; those may run inside a step"
        )


class ForeignThread(RuntimeError):
    """A plain function's context was used in a thread that is not the function's own."""

    def __init__(self, call: str) -> None:
        super().__init__(
            f"ctx.{call} was called in a thread that does not run the handler, so its place in the journal is not "
            "defined: call it in the handler itself; threads of yours may run inside a step"
        )


class ForeignBranch(RuntimeError):
    """A task of another run was given to `ctx.gather` and its like, or was awaited in this one."""

    def __init__(self, call: str) -> None:
        super().__init__(
            f"ctx.{call} was given a task of ctx.task_group() or ctx.as_completed() that is not of this run of the "
            "handler: a task ends with the run that made it, and no other one can tell its end again; await it there, "
            "and hand over its result with ctx.call, ctx.send or the object's state"
        )


class ContextClosed(RuntimeError):
    """A context was used after its handler had ended."""

    def __init__(self, call: str) -> None:
        super().__init__(f"ctx.{call} was called after the handler had ended; it belongs to no invocation any more")


class NestedStep(RuntimeError):
    """A step was begun while another one of the same invocation had not ended."""

    def __init__(self, name: str, outer: str) -> None:
        super().__init__(
            f"step {name!r} was begun inside step {outer!r}, so its place in the journal is not defined: a step calls "
            "plain functions; await ctx.run in the handler itself, several at a time with ctx.gather"
        )


class ReleasedInBranch(RuntimeError):
    """A branch, or a handler beside branches of its own, wanted to leave its lane to others."""

    def __init__(self) -> None:
        super().__init__(
            "ctx.release_lane() and release_lane=True are for the handler itself, while none of its branches goes on: "
            "a branch that runs beside a wait would lose the lane under its hands; let the branches end first"
        )


class BranchesInRelease(RuntimeError):
    """A handler wanted branches in a block in which others have its lane."""

    def __init__(self, call: str) -> None:
        super().__init__(
            f"ctx.{call} was awaited in a block of ctx.release_lane(): branches that go on one after the other would "
            "need the lane again in between, while others have it; await one thing after the other there, give a wait "
            "its own timeout=, or let a handler of another object have the branches and await that in the block"
        )


class InterruptedStep(RuntimeError):
    """The handler went on after a step had been cancelled under it."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"step {name!r} was cancelled by a timeout or cancel scope around ctx.run, which a replay could not tell "
            "again: use ctx.run(…, timeout=) instead, whose end is recorded"
        )


class InterruptedWait(RuntimeError):
    """The handler went on after a wait had been cancelled under it."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"ctx.{what} was cancelled by a timeout or cancel scope around it, which a replay could not tell again: "
            "race it with ctx.select(…, timeout=ctx.sleep(…)), or bound the work where it is done"
        )


class ForeignAwaitable(TypeError):
    """Something was given to `ctx.gather` and its like whose end no replay could tell again."""

    def __init__(self, call: str, given: object) -> None:
        super().__init__(
            f"ctx.{call} takes calls of ctx that are not awaited yet, coroutines, and tasks of ctx.task_group(), not "
            f"{type(given).__name__}: {_remedy(given)}"
        )


def _remedy(given: object) -> str:
    if isinstance(given, asyncio.Future):
        return "give it the coroutine itself, without asyncio.create_task"
    if callable(given):
        return "call it, and give what it returns"
    if isinstance(given, Iterable):
        return "put an asterisk in front of it, to give each of its items"
    return "a value that is there needs no waiting"


class UsedCoroutine(RuntimeError):
    """A coroutine was given to `ctx.gather` and its like that runs or has run already."""

    def __init__(self, call: str, given: object) -> None:
        name = getattr(given, "__qualname__", type(given).__name__)
        super().__init__(
            f"ctx.{call} was given the coroutine {name} twice, or after it had been awaited, and it can run only once: "
            "make one for each branch, or make a task of it with ctx.task_group() and give that"
        )


class NotTheHandlersOwn(RuntimeError):
    """User code raised what only Python itself has reason to raise, and what would end the worker that runs it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"your code raised {type(error).__name__}, which is Python's own: raise an exception of yours")


class GroupEnded(RuntimeError):
    """A branch was to be started in a group whose block is not entered."""

    def __init__(self) -> None:
        super().__init__(
            "this task group is not open: it is from the beginning of its `async with` to the end, where its branches "
            "end too; start them inside of it"
        )


class StuckBranches(RuntimeError):
    """All branches of a handler wait for each other."""

    def __init__(self) -> None:
        super().__init__(
            "each branch of this handler waits for another one of them, so none can go on: a task must not wait for "
            "itself, nor for one that waits for it"
        )


class NoBranches(AttributeError):
    """A plain function asked for several things at a time."""

    def __init__(self, call: str) -> None:
        super().__init__(
            f"ctx.{call} is for `async def` handlers: a plain one does one thing after the other; make it an "
            "`async def` with `ctx: ObjectContext`, whose steps may be plain functions"
        )
