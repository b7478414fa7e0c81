"""The ends of some branches, awaited in the order in which they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .branches import Blocked, Branch

if TYPE_CHECKING:
    from .branch_tasks import BranchTasks


class Ends:
    """The ends of some branches, in order.

    Args:
        conductor: Runs the branches.
        branches: The branches; those that have ended already come first.
    """

    def __init__(self, conductor: BranchTasks, branches: Iterable[Branch]) -> None:
        self._conductor = conductor
        self._ended: deque[Branch] = deque()
        self._waiting: Branch | None = None
        for branch in branches:
            if branch.is_done:
                self._ended.append(branch)
            else:
                branch.listeners.append(self._took)

    def _took(self, branch: Branch) -> None:
        self._ended.append(branch)
        if self._waiting is not None:
            self._conductor.tell(self._waiting)

    def leave(self, branches: Iterable[Branch]) -> None:
        """Look at the ends no longer."""
        for branch in branches:
            if self._took in branch.listeners:
                branch.listeners.remove(self._took)

    async def next(self, here: Branch) -> Branch:
        """Return the branch that ends next."""
        while not self._ended:
            self._waiting = here
            try:
                await self._conductor.blocked(here, Blocked.JOIN)
            finally:
                self._waiting = None
        return self._ended.popleft()
