"""The branches of one run of a handler: where each stands, and what awaits its end."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Generator, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..journal.place import place_bytes, place_in
from ..objects.branching import DurableTask

if TYPE_CHECKING:
    from ..journal.place import Path, Place
    from .branch_tasks import BranchTasks

T = TypeVar("T")

#: Functions in which a branch waits for another one: by module, with their names where it has others too.
_PRIMITIVES: Final[Mapping[str, frozenset[str] | None]] = {
    "asyncio.locks": None,
    "asyncio.queues": None,
    "anyio._backends._asyncio": frozenset({"acquire", "acquire_on_behalf_of"}),
}


class Blocked(Enum):
    """What a branch waits for inside a call of ctx."""

    WORK = auto()  # its step runs, or what it has made is not durable yet
    WAIT = auto()  # another object, its time, somebody
    RETRY = auto()  # the next attempt of its step
    JOIN = auto()  # other branches


class Branch:
    """One branch: the handler itself, or what was given to `ctx.gather` and its like.

    Args:
        path: Where it was made: (fork, number) at each level; empty for the handler itself.
        task: The task that runs it; None until it has one.
        index: How many commands it has made already.
    """

    __slots__ = (
        "awaits",
        "awaits_turn",
        "blocked",
        "call",
        "cancel_is_certain",
        "coroutine",
        "error",
        "forks",
        "future",
        "index",
        "interruptions",
        "is_cancelled",
        "is_done",
        "listeners",
        "path",
        "random",
        "seed",
        "step",
        "task",
        "value",
    )

    def __init__(self, path: Path, task: asyncio.Task[Any] | None, index: int = 0) -> None:
        self.path = self.seed = path
        self.task = task
        self.coroutine: Any = None
        self.index = index
        self.forks = 0
        self.step: str | None = None
        #: The call of ctx that it is in, for messages.
        self.call = "call"
        self.random: random.Random | None = None
        #: Set inside a call of ctx, with the future that ends it, where it waits for one.
        self.blocked: Blocked | None = None
        self.future: asyncio.Future[Any] | None = None
        #: What it awaits outside of ctx.
        self.awaits: Any = None
        #: How many of its task's cancellations are the runtime's own, or older than the branch.
        self.interruptions = 0 if task is None else task.cancelling()
        self.is_cancelled = False
        self.cancel_is_certain = True
        self.is_done = False
        #: Whether its step was cut off, and it waits for its turn to see that.
        self.awaits_turn = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.listeners: list[Callable[[Branch], None]] = []

    @property
    def place(self) -> Place:
        """The place of its next command."""
        return place_in(self.path, self.index)

    def take_place(self) -> Place:
        """Return the place of the command that is made now."""
        place = place_in(self.path, self.index)
        self.index += 1
        return place

    def enter_scope(self, path: Path) -> tuple[Path, int, int]:
        """Give the commands of a block places of their own, among which one that is cut off may leave a gap.

        Returns:
            What `leave_scope` wants back.
        """
        before = self.path, self.index, self.forks
        self.path, self.index, self.forks = path, 0, 0
        return before

    def leave_scope(self, before: tuple[Path, int, int]) -> None:
        """Go on where the block began."""
        self.path, self.index, self.forks = before

    def own_random(self, raw_id: bytes) -> random.Random:
        """Return random numbers of its own, whatever runs beside it."""
        if self.random is None:
            self.random = random.Random(raw_id + place_bytes(self.seed))  # noqa: S311
        return self.random

    @property
    def is_new(self) -> bool:
        """Whether nothing of it has run yet."""
        return inspect.iscoroutine(self.coroutine) and inspect.getcoroutinestate(self.coroutine) == inspect.CORO_CREATED

    @property
    def is_outside(self) -> bool:
        """Whether it awaits something outside of ctx that is not another branch."""
        awaits = self.awaits if asyncio.isfuture(self.awaits) else None
        return self.blocked is None and awaits is not None and not awaits.done() and not self.waits_for_others

    @property
    def is_cut_off_by_others(self) -> bool:
        """Whether a cancellation that is not the runtime's own has reached it, such as that of a timeout."""
        return self.task is not None and self.task.cancelling() > self.interruptions

    def take_fork(self) -> int:
        """Return the number of the fork that is made now."""
        fork = self.forks
        self.forks += 1
        return fork

    @property
    def waits_for_others(self) -> bool:
        """Whether it waits outside of ctx for what only another branch gives: a lock, an event, a place in a queue.

        Not so for one that sleeps or reads something: it goes on by itself, and what comes next has to wait for it.
        """
        awaits = self.awaits
        if not isinstance(awaits, asyncio.Future) or awaits.done():
            return False
        module, function = _innermost(self.coroutine)
        names = _PRIMITIVES.get(module, frozenset())
        return names is None or function in names


def _innermost(coroutine: Any) -> tuple[str, str]:
    """Return the module and the name of the function that a suspended coroutine has come to."""
    module = function = ""
    while inspect.iscoroutine(coroutine) and coroutine.cr_frame is not None:
        module, function = str(coroutine.cr_frame.f_globals.get("__name__", "")), coroutine.cr_code.co_name
        coroutine = coroutine.cr_await
    return module, function


class BranchTask(DurableTask[T]):
    """What users hold of a branch.

    Args:
        conductor: Runs the branches of its handler.
        branch: The branch.
    """

    __slots__ = ("_conductor", "branch")

    def __init__(self, conductor: BranchTasks, branch: Branch) -> None:
        self._conductor = conductor
        self.branch = branch

    def __await__(self) -> Generator[Any, Any, T]:
        """Wait for the end of the branch."""
        return self._conductor.result_of(self.branch).__await__()

    def is_of(self, conductor: BranchTasks) -> bool:
        """Return whether its branch is one of a run."""
        return self._conductor is conductor

    @property
    def is_done(self) -> bool:
        """Whether the branch has ended."""
        return self.branch.is_done

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.branch.is_done and isinstance(self.branch.error, asyncio.CancelledError)

    def cancel(self) -> None:
        """Cancel the branch."""
        self._conductor.here("task.cancel")
        self._conductor.cancel(self.branch)


async def awaiting(awaitable: Awaitable[T]) -> T:
    """Await something that is no coroutine."""
    return await awaitable
