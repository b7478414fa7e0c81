"""What an awaiting exclusive handler may do several of at a time: `gather`, `select`, `as_completed`, `task_group`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Generator
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")


class DurableTask(ABC, Generic[T_co]):
    """A branch of a handler: awaited later, raced in `ctx.select`, or cancelled.

    Awaiting it gives what the branch returned, or raises what it raised; as often as you like.
    """

    __slots__ = ()

    @abstractmethod
    def __await__(self) -> Generator[Any, Any, T_co]:
        """Wait for the end of the branch.

        Raises:
            asyncio.CancelledError: The branch was cancelled.
        """

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether the branch has ended, in whatever way."""

    @property
    @abstractmethod
    def is_cancelled(self) -> bool:
        """Whether the branch has ended because it was cancelled."""

    @abstractmethod
    def cancel(self) -> None:
        """Cancel the branch: its wait ends with `asyncio.CancelledError`, and its cleanup may await ctx.

        The wait leaves no timer and no registration behind, a running step is cut off, and an object that was called
        goes on.
        """


class BranchGroup(ABC):
    """What `async with ctx.task_group() as group:` gives."""

    __slots__ = ()

    @abstractmethod
    def create_task(self, awaitable: Awaitable[T], /) -> DurableTask[T]:
        """Start a branch.

        Args:
            awaitable: A call of ctx that is not awaited yet, or a coroutine of your own that awaits ctx.

        Raises:
            TypeError: It is a task or future of asyncio.
            RuntimeError: The group has ended.
        """


class Branching(ABC):
    """Several steps, calls, waits, timers and coroutines of your own at a time, told again alike by each replay.

    Each thing given becomes a branch of the handler. Branches go on one at a time, in an order that is recorded, so
    they may share variables without locks. What decides their order has to come through ctx: a replay can't tell
    again how long something outside of it took.
    """

    __slots__ = ()

    @overload
    @abstractmethod
    async def gather(self, first: Awaitable[T1], /) -> tuple[T1]: ...
    @overload
    @abstractmethod
    async def gather(self, first: Awaitable[T1], second: Awaitable[T2], /) -> tuple[T1, T2]: ...
    @overload
    @abstractmethod
    async def gather(
        self, first: Awaitable[T1], second: Awaitable[T2], third: Awaitable[T3], /
    ) -> tuple[T1, T2, T3]: ...
    @overload
    @abstractmethod
    async def gather(
        self, first: Awaitable[T1], second: Awaitable[T2], third: Awaitable[T3], fourth: Awaitable[T4], /
    ) -> tuple[T1, T2, T3, T4]: ...
    @overload
    @abstractmethod
    async def gather(
        self,
        first: Awaitable[T1],
        second: Awaitable[T2],
        third: Awaitable[T3],
        fourth: Awaitable[T4],
        fifth: Awaitable[T5],
        /,
    ) -> tuple[T1, T2, T3, T4, T5]: ...
    @overload
    @abstractmethod
    async def gather(self, *awaitables: Awaitable[T]) -> tuple[T, ...]: ...
    @abstractmethod
    async def gather(self, *awaitables: Awaitable[Any]) -> tuple[Any, ...]:
        """Do several things at a time and wait for all of them.

        The first failure cancels the others, waits for their cleanup, and is raised as it is, in no group. A
        `DurableTask` among them is yours and is not cancelled.

        Args:
            *awaitables: Calls of ctx that are not awaited yet, coroutines of your own, or tasks of `ctx.task_group()`.

        Returns:
            The results, in the order of the arguments.

        Raises:
            TypeError: A task or future of asyncio was given.
        """

    @abstractmethod
    async def select(self, **awaitables: Awaitable[T]) -> tuple[str, T]:
        """Do several things at a time, wait for the first that ends, and cancel the others.

        ```python
        match await ctx.select(reply=ctx.call(ask, "acme/o-1"), timeout=ctx.sleep(timedelta(days=2))):
            case "reply", answer: ...
            case "timeout", _: ...
        ```

        A loser leaves no timer and no registration behind, and its cleanup may await ctx. An object that it called
        goes on. A `DurableTask` among them is yours and is not cancelled.

        Args:
            **awaitables: As for `gather`, each under a name.

        Returns:
            The name of what ended first, and its result.

        Raises:
            TypeError: A task or future of asyncio was given, or nothing.
        """

    @abstractmethod
    def as_completed(self, *awaitables: Awaitable[T]) -> AsyncIterator[DurableTask[T]]:
        """Do several things at a time and look at each when it has ended, in the order in which they end.

        `async for done in ctx.as_completed(…): value = await done` raises what the branch raised. Branches that are
        left over go on, and are cancelled when the handler ends.

        A branch that fails with what is retried, as all but a `TerminalError` is, ends the attempt as soon as the
        handler waits for something else before it has awaited that branch: nothing may be recorded that the next
        attempt, in which the branch may not fail, would not come to. What the loop is to handle is caught in the
        branch, or raised as a `TerminalError`.

        Args:
            *awaitables: As for `gather`; a `DurableTask` comes back as the object that it is.

        Raises:
            TypeError: A task or future of asyncio was given.
        """

    @abstractmethod
    def task_group(self) -> AbstractAsyncContextManager[BranchGroup]:
        """Open a group of branches that all end before its block is left.

        The first failure, of a branch or of the block itself, cancels the others, waits for their cleanup, and is
        raised as it is: `except` and `except*` both catch it.
        """
