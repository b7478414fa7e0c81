"""The part of an exclusive handler's context that does several things at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from .combinators import Completions, Group, check_awaitables, drop, gather, select
from .stateful_context import StatefulContext

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from contextlib import AbstractAsyncContextManager

    from ..objects.branching import BranchGroup, DurableTask
    from .branches import Branch
    from .conductor import Conductor


class BranchingContext(StatefulContext):
    """What `ExclusiveContext` does for branches."""

    __slots__ = ()

    @abstractmethod
    def branch_here(self, call: str) -> Branch:
        """Return the branch that makes a call about branches."""

    async def gather(self, *awaitables: Awaitable[Any]) -> tuple[Any, ...]:
        """Do several things at a time and wait for all of them."""
        conductor, branch = self._fork("gather", awaitables)
        return await self.unbroken("gather", gather(conductor, branch, awaitables))

    async def select(self, **awaitables: Awaitable[Any]) -> tuple[str, Any]:
        """Do several things at a time and wait for the first."""
        conductor, branch = self._fork("select", awaitables.values())
        return await self.unbroken("select", select(conductor, branch, awaitables))

    def as_completed(self, *awaitables: Awaitable[Any]) -> AsyncIterator[DurableTask[Any]]:
        """Do several things at a time and give them in the order in which they end."""
        conductor, branch = self._fork("as_completed", awaitables)
        return Completions(self.own, conductor, branch, awaitables)

    def task_group(self) -> AbstractAsyncContextManager[BranchGroup]:
        """Open a group of branches."""
        return Group(self.own)

    def _fork(self, call: str, awaitables: Iterable[Awaitable[Any]]) -> tuple[Conductor, Branch]:
        """Return what runs the branches of this handler, and the branch that makes some; this is where the first is."""
        given: AbstractSet[Any] = frozenset() if self.conductor is None else self.conductor.coroutines
        try:
            branch = self.branch_here(call)
            check_awaitables(call, awaitables, given, self.conductor)
        except BaseException:
            drop(awaitables, given)
            raise
        assert self.conductor is not None
        return self.conductor, branch
