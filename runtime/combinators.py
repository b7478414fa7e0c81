"""`ctx.gather`, `ctx.select`, `ctx.as_completed` and `ctx.task_group`, over the branches of a handler.

None of them has a record: what their branches record, in the order in which they do, tells each of them again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ..journal.errors import Cancelled
from ..objects.branching import BranchGroup, DurableTask
from .branches import Branch, BranchTask
from .ends import Ends
from .misuse import ForeignAwaitable, ForeignBranch, GroupEnded, UsedCoroutine

if TYPE_CHECKING:
    from types import TracebackType

    from .conductor import Conductor
    from .context import ExclusiveContext

T = TypeVar("T")


async def gather(conductor: Conductor, here: Branch, awaitables: Sequence[Awaitable[Any]]) -> tuple[Any, ...]:
    """Wait for all; the first failure cancels the others."""
    branches, own = _begin(conductor, here, awaitables)
    ends = Ends(conductor, branches)
    try:
        for _ in branches:
            _result(await ends.next(here))
    except BaseException as error:
        ends.leave(branches)
        await conductor.end_all(here, own, is_certain=isinstance(error, Cancelled))
        raise
    return tuple(branch.value for branch in branches)


async def select(conductor: Conductor, here: Branch, named: Mapping[str, Awaitable[Any]]) -> tuple[str, Any]:
    """Wait for the first; the others are cancelled."""
    if not named:
        raise TypeError("ctx.select waits for the first of several: give it at least one, by name")
    branches, own = _begin(conductor, here, list(named.values()))
    ends = Ends(conductor, branches)
    try:
        first = await ends.next(here)
    except BaseException as error:
        await conductor.end_all(here, own, is_certain=isinstance(error, Cancelled))
        raise
    finally:
        ends.leave(branches)
    await conductor.end_all(here, own, is_certain=first.error is None)
    name = list(named)[branches.index(first)]
    return name, _result(first)


class Completions:
    """What `ctx.as_completed` gives.

    Args:
        ctx: The handler's context.
        conductor: Runs the branches.
        here: The branch that asks.
        awaitables: What it asks for.
    """

    def __init__(
        self, ctx: ExclusiveContext, conductor: Conductor, here: Branch, awaitables: Sequence[Awaitable[Any]]
    ) -> None:
        self._ctx = ctx
        self._conductor = conductor
        branches, own = _begin(conductor, here, awaitables)
        for branch in own:
            branch.listeners.append(conductor.note_unseen)
        self._left = len(branches)
        self._tasks = {id(each.branch): each for each in awaitables if isinstance(each, BranchTask)}
        self._ends = Ends(conductor, branches)

    def __aiter__(self) -> Completions:
        """Return itself."""
        return self

    async def __anext__(self) -> DurableTask[Any]:
        """Return what ends next."""
        if not self._left:
            raise StopAsyncIteration
        self._left -= 1
        here = self._ctx.branch_here("as_completed")
        ended = await self._ctx.unbroken("as_completed", self._ends.next(here))
        return self._tasks.get(id(ended)) or BranchTask(self._conductor, ended)


class Group(BranchGroup, AbstractAsyncContextManager["Group", None]):
    """What `ctx.task_group` gives: the commands of its block have places of their own beside those of its branches.

    Args:
        ctx: The handler's context.
    """

    def __init__(self, ctx: ExclusiveContext) -> None:
        self._ctx = ctx
        self._conductor: Conductor
        self._here: Branch
        self._path: tuple[int, ...] = ()
        self._before: tuple[tuple[int, ...], int, int]
        self._branches: list[Branch] = []
        self._made = 0
        self._failure: BaseException | None = None
        self._is_open = False
        self._is_in_block = False
        self._has_interrupted = False

    async def __aenter__(self) -> Self:
        """Begin the block."""
        self._here = self._ctx.branch_here("task_group")
        assert self._ctx.conductor is not None
        self._conductor = self._ctx.conductor
        self._path = (*self._here.path, self._here.take_fork())
        self._before = self._here.enter_scope((*self._path, 0))
        self._is_open = self._is_in_block = True
        return self

    def create_task(self, awaitable: Awaitable[T], /) -> DurableTask[T]:
        """Start a branch."""
        try:
            self._check(awaitable)
        except BaseException:
            drop([awaitable], self._given)
            raise
        if isinstance(awaitable, DurableTask):
            return awaitable
        self._made += 1
        task = self._conductor.begin((*self._path, self._made), awaitable)
        self._branches.append(task.branch)
        task.branch.listeners.append(self._ended)
        if self._failure is not None:
            self._conductor.cancel(task.branch, is_certain=False)
        return task

    @property
    def _given(self) -> AbstractSet[Any]:
        """The coroutines that branches of the handler run."""
        conductor = self._ctx.conductor
        return frozenset() if conductor is None else conductor.coroutines

    def _check(self, awaitable: Awaitable[Any]) -> None:
        check_awaitables("task_group", [awaitable], self._given, self._ctx.conductor)
        self._ctx.branch_here("task_group")
        if not self._is_open:
            raise GroupEnded

    def _ended(self, branch: Branch) -> None:
        is_failure = branch.error is not None and not isinstance(branch.error, asyncio.CancelledError)
        if not is_failure or self._failure is not None or self._conductor.is_over:
            return
        self._failure = branch.error
        for each in self._branches:
            self._conductor.cancel(each, is_certain=False)
        if self._is_in_block:
            self._has_interrupted = True
            # As for the others, the next attempt may go on with what the block waits for.
            self._here.cancel_is_certain = False
            self._conductor.interrupt(self._here)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the branches, or cancel them where the block has failed."""
        self._is_in_block = False
        is_own = self._has_interrupted and isinstance(error, asyncio.CancelledError)
        if self._has_interrupted:
            self._here.cancel_is_certain = True
            self._conductor.take_back_interruption(self._here)
        if error is not None and self._failure is None:
            self._failure = error
            for each in self._branches:
                self._conductor.cancel(each, is_certain=isinstance(error, Cancelled))
        try:
            await self._ctx.unbroken("task_group", self._all_ended())
        finally:
            self._is_open = False
            self._here.leave_scope(self._before)
            self._conductor.leave((*self._path, 0))
        if self._failure is not None and (error is None or is_own):
            raise self._failure from None

    async def _all_ended(self) -> None:
        """Wait for the branches, also for those that they make meanwhile; a failure of the block cancels them."""
        try:
            while any(not branch.is_done for branch in self._branches):
                await Ends(self._conductor, [each for each in self._branches if not each.is_done]).next(self._here)
        except BaseException as error:
            is_certain = isinstance(error, Cancelled)
            await self._conductor.end_all(self._here, self._branches, is_certain=is_certain)
            raise


def check_awaitables(
    call: str, awaitables: Iterable[Awaitable[Any]], given: AbstractSet[Any], conductor: Conductor | None
) -> None:
    """Refuse what ends when no replay could know.

    Args:
        call: The call of ctx.
        awaitables: What it was given.
        given: Coroutines that branches of the handler run already.
        conductor: Runs these branches; None where the handler has none.

    Raises:
        ForeignAwaitable: It is a task or a future of asyncio, or can't be awaited.
        ForeignBranch: It is a task of another run.
        UsedCoroutine: It is a coroutine that runs already, or is there twice.
    """
    seen = set(given)
    for awaitable in awaitables:
        if isinstance(awaitable, DurableTask) and not _is_of(awaitable, conductor):
            raise ForeignBranch(call)
        if asyncio.isfuture(awaitable) or not inspect.isawaitable(awaitable):
            raise ForeignAwaitable(call, awaitable)
        if inspect.iscoroutine(awaitable):
            if awaitable in seen or inspect.getcoroutinestate(awaitable) != inspect.CORO_CREATED:
                raise UsedCoroutine(call, awaitable)
            seen.add(awaitable)


def _is_of(task: DurableTask[Any], conductor: Conductor | None) -> bool:
    return isinstance(task, BranchTask) and conductor is not None and task.is_of(conductor)


def drop(awaitables: Iterable[Awaitable[Any]], given: AbstractSet[Any] = frozenset()) -> None:
    """Close coroutines that nobody will await, but for those that branches run."""
    for awaitable in awaitables:
        if inspect.iscoroutine(awaitable) and awaitable not in given:
            awaitable.close()


def _begin(
    conductor: Conductor, here: Branch, awaitables: Sequence[Awaitable[Any]]
) -> tuple[list[Branch], list[Branch]]:
    """Start branches; returns all, and those that are not the user's own."""
    path = (*here.path, here.take_fork())
    branches = [conductor.begin((*path, number), each).branch for number, each in enumerate(awaitables)]
    return branches, [
        branch for branch, each in zip(branches, awaitables, strict=True) if not isinstance(each, BranchTask)
    ]


def _result(branch: Branch) -> Any:
    if branch.error is not None:
        raise branch.error
    return branch.value
