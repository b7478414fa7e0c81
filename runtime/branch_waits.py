"""How the branches of a handler wait inside ctx: each where it stands, until it is handed something or cut off."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from ..journal.place import format_place
from .branch_tasks import BranchTasks
from .branches import Blocked, Branch
from .commands import diverge
from .ends import Ends
from .misuse import InterruptedStep, InterruptedWait
from .replay import Replay

if TYPE_CHECKING:
    from ..journal.place import Place
    from ..journal.records import Record
    from .branch_journal import BranchJournal
    from .context import ExclusiveContext
    from .invocation import Invocation
    from .lane import Lane
    from .standstill import Standstill
    from .waits import Waits


class Astray(Exception):
    """The journal has a record that no branch waits for."""

    def __init__(self, found: Record) -> None:
        super().__init__()
        self.found = found


class BranchWaits(BranchTasks):
    """The branches of one run, and where those stand that are inside ctx.

    Args:
        ctx: The run's context.
        lane: Its lane.
        invocation: Its invocation.
        waits: Asks when the next attempt of a step is due.
        task: The task that runs the handler itself.
        position: How many of the invocation's records are behind the run.
    """

    __slots__ = (
        "_abandoned",
        "_ctx",
        "_invocation",
        "_lane",
        "_stands",
        "_turns",
        "_unseen",
        "_waits",
        "_wanting",
        "_yet_to_start",
        "is_live",
        "replay",
    )

    _journal: BranchJournal
    _standstill: Standstill

    def __init__(
        self,
        ctx: ExclusiveContext,
        lane: Lane,
        invocation: Invocation,
        waits: Waits,
        task: asyncio.Task[Any] | None,
        position: int,
    ) -> None:
        self._ctx = ctx
        self._lane = lane
        self._invocation = invocation
        self._waits = waits
        super().__init__(Branch((), task, ctx.index))
        self.main.coroutine = ctx.coroutine
        self.replay = Replay(invocation.records, position)
        self.is_live = False
        self._stands: dict[Place, Branch] = {}
        #: Places whose waits were given up: what comes for them is nobody's.
        self._abandoned: set[Place] = set()
        #: Steps of which a record is to be made, in the order in which they came to it.
        self._wanting: deque[tuple[Branch, Callable[[], None]]] = deque()
        self._yet_to_start: list[Branch] = []
        #: What branches of `as_completed` have failed with that nobody has awaited yet, where another attempt follows.
        self._unseen: dict[Branch, Exception] = {}
        #: Branches that have come to a command, in the order in which they did.
        self._turns: deque[Branch] = deque()

    async def result_of(self, branch: Branch) -> Any:
        """Wait for the end of a branch and return its result."""
        here = self._ctx.branch_here("task")
        if not branch.is_done:
            ends = Ends(self, [branch])
            try:
                await self._ctx.unbroken("task", ends.next(here))
            finally:
                ends.leave([branch])
        self._unseen.pop(branch, None)
        if branch.error is not None:
            raise branch.error
        return branch.value

    def note_unseen(self, branch: Branch) -> None:
        """Take note that a branch has ended whose result is looked at later, if at all."""
        error = branch.error
        if isinstance(error, Exception) and not branch.is_cancelled and self._ctx.is_retried(error):
            self._unseen[branch] = error

    @contextlib.contextmanager
    def working(self, branch: Branch, place: Place) -> Generator[None]:
        """Have others go on while a branch does what has no order: it runs its step, or waits for the store."""
        self._check_over()
        self._work(branch)
        try:
            yield
        except asyncio.CancelledError:
            self._check_cut_off(branch)
            self._give_up(branch, place)
            raise
        finally:
            self._go_on(branch)

    @contextlib.contextmanager
    def holding(self, branch: Branch) -> Generator[None]:
        """Have nothing handed over while a branch waits for the store: it does not stand yet where it is to wait."""
        self._check_over()
        try:
            yield
        except asyncio.CancelledError:
            self._check_cut_off(branch)
            raise

    def _work(self, branch: Branch) -> None:
        branch.blocked = Blocked.WORK
        self._active.discard(branch)
        self.poke()

    async def blocked(
        self, branch: Branch, kind: Blocked, place: Place | None = None, *, works_on: bool = False
    ) -> Any:
        """Wait until a branch is handed something.

        Args:
            branch: The branch.
            kind: What it waits for.
            place: Where it stands, if a record of that place lets it go on.
            works_on: Whether it goes on with its step, which others need not wait for.
        """
        self._check_over()
        future = branch.future = asyncio.get_running_loop().create_future()
        branch.blocked = kind
        self._active.discard(branch)
        if place is not None:
            self._stands[place] = branch
        self.poke()
        try:
            found = await future
        except asyncio.CancelledError:
            self._check_cut_off(branch)
            if place is not None:
                self._give_up(branch, place)
            raise
        except Astray as astray:
            await diverge(self._ctx, self._lane, self._invocation, astray.found, _standing(place))
        finally:
            if place is not None and self._stands.get(place) is branch:
                del self._stands[place]
            self._go_on(branch)
        if works_on:
            self._work(branch)
        return found

    async def handed(self, place: Place) -> Record:
        """Wait until the record of a place is handed over that ends a wait."""
        return await self.blocked(self.current, Blocked.WAIT, place)

    async def durable(self, place: Place) -> Record:
        """Wait until a record that was made just now, in this run or the recorded one, is handed over."""
        return await self.blocked(self.current, Blocked.WORK, place)

    async def turn_of_step(self, branch: Branch, place: Place) -> Record | None:
        """Return what the journal has of a step, or None once the step has to run."""
        if self.is_live and self.replay.at(place) is None:
            return None
        return await self._start_of(branch, place)

    async def turn(self) -> None:
        """Wait until each of the other branches waits, too, and what came here before has had its turn.

        So each command has behind it all that the branches have read and written before they came to rest, in each run:
        also in one that has to look something up in the store for it, or that has to replay more before it makes it.
        """
        branch = self.current
        self._turns.append(branch)
        try:
            await self.blocked(branch, Blocked.WORK)
        finally:
            if branch in self._turns:
                self._turns.remove(branch)

    async def until_live(self) -> None:
        """Wait until the code has come to all that is recorded: what the journal has not must not be made before."""
        while self.replay.is_ahead:
            await self._start_of(self.current, None)

    async def _start_of(self, branch: Branch, place: Place | None) -> Any:
        self._yet_to_start.append(branch)
        try:
            return await self.blocked(branch, Blocked.WORK, place)
        finally:
            if branch in self._yet_to_start:
                self._yet_to_start.remove(branch)

    async def at_turn(self, branch: Branch, place: Place, make: Callable[[], None], *, works_on: bool) -> Any:
        """Have a record of a step made once it is its turn, and wait until it is handed over."""
        entry = (branch, make)
        self._wanting.append(entry)
        try:
            return await self.blocked(branch, Blocked.WORK, place, works_on=works_on)
        finally:
            if entry in self._wanting:
                self._wanting.remove(entry)

    async def next_attempt(self, place: Place) -> None:
        """Wait until the next attempt of a step is due."""
        partition = self._lane.partition
        due_ms = (self._invocation.dues or {}).get(place)
        if due_ms is None:
            # It fell due while its branch was on the way here.
            return
        self._waits.ask_in(partition, max(due_ms - partition.now_ms(), 0))
        await self.blocked(self.current, Blocked.RETRY, place, works_on=True)

    def is_due(self, place: Place) -> None:
        """Take note that the next attempt of a step is due."""
        branch = self._stands.get(place)
        if branch is not None and branch.blocked is Blocked.RETRY:
            self._standstill.end()
            self._release(branch, None)

    async def held_back(self) -> None:
        """Keep a branch from beginning anything more: its handler is about to be told that it is cancelled."""
        await self.blocked(self.current, Blocked.WAIT)

    def _check_cut_off(self, branch: Branch) -> None:
        """Doom the run when a timeout of somebody else's has ended a call of ctx: no replay could tell it again."""
        self._check_over()
        if branch.is_cut_off_by_others:
            error = InterruptedWait(branch.call) if branch.step is None else InterruptedStep(branch.step)
            self._ctx.interrupted_by = error
            self.stop(error)
            raise asyncio.CancelledError

    def stop(self, error: BaseException) -> None:
        """End the run from within: each branch is told where it stands, and at each further call of ctx."""
        if self._over is None:
            self._over = error
            self._standstill.end()
            self._fail(error)
            for branch in list(self._active):
                if branch.waits_for_others and branch.task is not None:
                    # Who would let it go on does not do so any more.
                    branch.interruptions += 1
                    branch.task.cancel()

    def _fail(self, error: BaseException) -> None:
        for branch in (self.main, *self._branches.values()):
            if branch.future is not None and not branch.future.done():
                branch.future.set_exception(error)
                branch.future.exception()
                self._go_on(branch)

    def _give_up(self, branch: Branch, place: Place) -> None:
        if self._over is not None:
            # The run ends, and its branches with it: each goes on from its journal, and gives nothing up.
            return
        self._abandoned.add(place)
        self._journal.give_up(place, is_certain=branch.cancel_is_certain)


def _standing(place: Place | None) -> str:
    return "the end of its branches" if place is None else f"command {format_place(place)}"
