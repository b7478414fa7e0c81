"""The branches of one run of a handler: who runs which, which of them run now, and how they are cancelled."""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..journal.futures import resolve
from .branches import Blocked, Branch, BranchTask, awaiting
from .ends import Ends
from .misuse import ForeignTask
from .own_context import watched

if TYPE_CHECKING:
    from ..journal.place import Path, Place

T = TypeVar("T")


class BranchTasks(ABC):
    """The branches of one run.

    Args:
        main: The handler itself.
    """

    __slots__ = ("_active", "_branches", "_cut", "_ended_paths", "_over", "coroutines", "main")

    def __init__(self, main: Branch) -> None:
        self.main = main
        self._branches: dict[asyncio.Task[Any], Branch] = {}
        #: Those that are not inside ctx.
        self._active: set[Branch] = {main}
        #: Those that were cut off and have not seen it yet.
        self._cut: deque[Branch] = deque()
        #: Paths of branches that have ended: what comes for them is nobody's.
        self._ended_paths: set[Path] = set()
        #: The coroutines that they run.
        self.coroutines: set[Any] = set()
        #: What the run has been ended with.
        self._over: BaseException | None = None

    @abstractmethod
    def poke(self) -> None:
        """See soon whether all is quiet and something can be handed over."""

    @abstractmethod
    async def blocked(
        self, branch: Branch, kind: Blocked, place: Place | None = None, *, works_on: bool = False
    ) -> Any:
        """Wait until a branch is handed something."""

    @abstractmethod
    async def result_of(self, branch: Branch) -> Any:
        """Wait for the end of a branch and return its result."""

    @property
    def is_over(self) -> bool:
        """Whether the run has been ended from within."""
        return self._over is not None

    def of_task(self, task: asyncio.Task[Any] | None) -> Branch | None:
        """Return the branch that a task runs."""
        return self.main if task is self.main.task else self._branches.get(task) if task is not None else None

    @property
    def current(self) -> Branch:
        """The branch that runs now; the handler itself for what is no branch."""
        return self.of_task(asyncio.current_task()) or self.main

    @property
    def is_alone(self) -> bool:
        """Whether the handler itself asks, and none of its branches goes on."""
        return not self._branches and self.current is self.main

    @property
    def is_main_here(self) -> bool:
        """Whether the handler itself runs now, and none of its branches."""
        return self.current is self.main

    def here(self, call: str) -> Branch:
        """Return the branch that makes a call.

        Raises:
            ForeignTask: No branch does.
        """
        branch = self.of_task(asyncio.current_task())
        if branch is None:
            raise ForeignTask(call)
        return branch

    def begin(self, path: Path, awaitable: Awaitable[T]) -> BranchTask[T]:
        """Start a branch, or take one that the user has started."""
        if isinstance(awaitable, BranchTask):
            return awaitable  # pyright: ignore[reportUnknownVariableType]
        self._check_over()
        branch = Branch(path, None)
        coroutine = awaitable if inspect.iscoroutine(awaitable) else awaiting(awaitable)
        branch.coroutine = coroutine
        self.coroutines.add(coroutine)
        task = asyncio.get_running_loop().create_task(self._run(branch, coroutine))
        branch.task = task
        self._branches[task] = branch
        self._active.add(branch)
        task.add_done_callback(partial(self._task_done, branch))
        return BranchTask(self, branch)

    async def _run(self, branch: Branch, coroutine: Any) -> None:
        try:
            branch.value = await watched(coroutine, self, branch)
        except BaseException as error:  # noqa: BLE001, it is raised where the branch is awaited
            branch.error = error

    def _task_done(self, branch: Branch, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            # It was cancelled before it began.
            branch.coroutine.close()
            branch.error = asyncio.CancelledError()
        branch.is_done = True
        self.coroutines.discard(branch.coroutine)
        branch.coroutine = None
        del self._branches[task]
        self._active.discard(branch)
        self._ended_paths.add(branch.path)
        listeners, branch.listeners = branch.listeners, []
        for listener in listeners:
            listener(branch)
        self.poke()

    def saw_awaiting(self, branch: Branch, awaits: Any) -> None:
        """Take note of what a branch awaits outside of ctx; None when it goes on."""
        branch.awaits = awaits
        if awaits is not None and branch.blocked is None:
            self.poke()

    def told(self, branch: Branch, error: BaseException) -> BaseException:
        """Return what a branch is told of an exception that reaches it outside of ctx: the end of the run as it is."""
        is_end = self._over is not None and branch.blocked is None and isinstance(error, asyncio.CancelledError)
        return self._over if is_end and self._over is not None else error

    def tell(self, branch: Branch) -> None:
        """Let a branch go on that waits for others."""
        if branch.blocked is Blocked.JOIN and branch.future is not None:
            self._release(branch, None)

    def leave(self, path: Path) -> None:
        """Take note that nothing can stand in a block any more."""
        self._ended_paths.add(path)

    def cancel(self, branch: Branch, *, is_certain: bool = True) -> None:
        """Cancel a branch.

        Args:
            branch: It; one that has ended or is being cancelled is left alone.
            is_certain: Whether each replay does so too. A failure of the handler may not be there the next time: what
                it has cancelled is withdrawn only once the handler goes on after it.
        """
        if branch.is_done or branch.is_cancelled:
            return
        branch.is_cancelled = True
        branch.cancel_is_certain = is_certain
        self.interrupt(branch)

    def interrupt(self, branch: Branch) -> None:
        """Have `CancelledError` raised in a branch where it is, once all is quiet and its turn has come.

        How long a step takes to be cut off, and whether it ran at all, must not decide which of several branches goes
        on first: in a replay it does not run.
        """
        is_at_work = branch.blocked is Blocked.WORK and branch.future is None
        if is_at_work or not (branch.is_new or branch.is_outside):
            self._cut.append(branch)
        if is_at_work or branch.is_new or branch.is_outside:
            self._raise_in(branch)
        self.poke()

    def _raise_in(self, branch: Branch) -> None:
        assert branch.task is not None
        branch.interruptions += 1
        self._go_on(branch)
        branch.task.cancel()

    async def turn_of_cut(self, branch: Branch) -> None:
        """Wait until it is a branch's turn to see that it was cut off; its step has ended of it already."""
        if branch in self._cut:
            branch.awaits_turn = True
            await self.blocked(branch, Blocked.WORK)

    def _cut_off_next(self) -> bool:
        """Let the branch go on that was cut off first; returns whether there was one."""
        while self._cut:
            branch = self._cut.popleft()
            if branch.is_done:
                continue
            if branch.awaits_turn:
                branch.awaits_turn = False
                self._release(branch, None)
            else:
                self._raise_in(branch)
            return True
        return False

    def take_back_interruption(self, branch: Branch) -> None:
        """Take an interruption back that has reached its branch, or is to."""
        assert branch.task is not None
        if branch in self._cut:
            self._cut.remove(branch)
            return
        branch.interruptions -= 1
        branch.task.uncancel()

    async def end_all(self, here: Branch, branches: Iterable[Branch], *, is_certain: bool) -> None:
        """Cancel branches, and wait until their cleanup has ended."""
        left = [branch for branch in branches if not branch.is_done]
        for branch in left:
            self.cancel(branch, is_certain=is_certain)
        await self.all_ended(here, left)

    async def all_ended(self, here: Branch, branches: Iterable[Branch]) -> None:
        """Wait until branches have ended, also while the one that waits is cancelled itself."""
        cancelled: asyncio.CancelledError | None = None
        left = [branch for branch in branches if not branch.is_done]
        ends = Ends(self, left)
        for _ in left:
            try:
                await ends.next(here)
            except asyncio.CancelledError as error:
                if self._over is not None or here.is_cut_off_by_others:
                    raise
                cancelled = error
        while any(not branch.is_done for branch in left):
            # The wait for one of them was cancelled.
            await ends.next(here)
        if cancelled is not None:
            raise cancelled

    def _check_over(self) -> None:
        if self._over is not None:
            raise self._over

    def _go_on(self, branch: Branch) -> None:
        branch.blocked = branch.future = None
        self._active.add(branch)

    def _release(self, branch: Branch, value: Any) -> None:
        future = branch.future
        assert future is not None
        resolve(future, value, None)
        self._go_on(branch)
