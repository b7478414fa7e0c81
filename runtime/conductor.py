"""Lets the branches of a handler go on one at a time, in the order that its journal has or is to have.

Between two hand-overs the branches run until each waits inside ctx: then all is *quiet*, and one record is handed over
to the branch that stands at its place. A step's result is recorded only when all is quiet and everything recorded
before it was handed over. So the order of the records is the order in which the code saw them, and a replay that hands
over in the same order runs the same code in between: it makes the same commands, reads the same values, asks the same
clock.

    live    quiet ── next durable record ──> its branch ── runs ──> quiet
              └──── none: a step that has ended ── recorded, durable ──> handed over as above
              └──── none, and no step runs: the handler stands still, and may leave memory
    replay  quiet ── next record of the journal ──> the branch that stands there, else: diverged
              └──── none: live from here on; steps without a record begin to run
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from ..journal import operations
from ..journal.batch import Operation
from ..journal.command_records import CancelDelivered, CompensationStarted, StepAttemptFailed, WaitWithdrawn
from ..journal.errors import Fenced, Suspended
from ..journal.futures import resolve
from ..journal.place import format_place, path_of, place_in
from .branches import Blocked, Branch, BranchTask, awaiting
from .cancel_delivery import cascade, is_due, told
from .commands import diverge
from .due_times import entry_of, forget_due, note_due
from .endings import acceptance, record, state_change, take_out
from .ends import Ends
from .large_values import kept_delta
from .misuse import ForeignTask, InterruptedStep, InterruptedWait, StuckBranches
from .own_context import watched
from .partition import OwnershipLost, Phase
from .replay import MADE_IN_QUIET, RESUMING, Replay, place_of
from .waits import let_go

if TYPE_CHECKING:
    from ..journal.place import Path, Place
    from ..journal.records import Record
    from .context import ExclusiveContext
    from .invocation import Invocation
    from .lane import Lane
    from .waits import Waits

T = TypeVar("T")


#: Operations that say that a lane stands still, and when it is due.
_OF_ALL_BRANCHES = frozenset({b"l", b"d"})


class _Astray(Exception):
    """The journal has a record that no branch waits for."""

    def __init__(self, found: Record) -> None:
        super().__init__()
        self.found = found


class Conductor:
    """The branches of one run of a handler.

    Args:
        ctx: The run's context.
        lane: Its lane.
        invocation: Its invocation.
        waits: Where the run waits while nothing of it can go on.
        task: The task that runs the handler itself.
        position: How many of the invocation's records are behind the run.
    """

    __slots__ = (
        "_abandoned",
        "_active",
        "_branches",
        "_ctx",
        "_ended_paths",
        "_in_flight",
        "_invocation",
        "_is_poked",
        "_lane",
        "_over",
        "_parking",
        "_resident",
        "_sleeper",
        "_stands",
        "_unsaid",
        "_unsettled",
        "_waits",
        "_wanting",
        "_yet_to_start",
        "is_live",
        "is_standing_still",
        "main",
        "replay",
    )

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
        self.main = Branch((), task, ctx.index)
        self.main.coroutine = ctx.coroutine
        self.replay = Replay(invocation.records, position)
        self.is_live = False
        self.is_standing_still = False
        self._branches: dict[asyncio.Task[Any], Branch] = {}
        self._active: set[Branch] = {self.main}
        self._stands: dict[Place, Branch] = {}
        #: Paths of branches that have ended, and places whose waits were given up: what comes for them is nobody's.
        self._ended_paths: set[Path] = set()
        self._abandoned: set[Place] = set()
        self._wanting: deque[tuple[Branch, Callable[[], None]]] = deque()
        self._yet_to_start: list[Branch] = []
        #: Waits of branches that a failure has ended: withdrawn with the next record, not if the handler fails of it.
        self._unsaid: list[Place] = []
        #: Records on their way to the store: those that let a branch go on, and all.
        self._in_flight = 0
        self._unsettled = 0
        self._is_poked = False
        self._over: BaseException | None = None
        self._parking: asyncio.Task[Any] | None = None
        self._sleeper: asyncio.Future[None] | None = None
        self._resident = contextlib.ExitStack()
        invocation.conductor = self

    @property
    def is_over(self) -> bool:
        """Whether the run has been ended from within."""
        return self._over is not None

    # Branches: made, found, ended.

    def of_task(self, task: asyncio.Task[Any] | None) -> Branch | None:
        """Return the branch that a task runs."""
        return self.main if task is self.main.task else self._branches.get(task) if task is not None else None

    @property
    def current(self) -> Branch:
        """The branch that runs now; the handler itself for what is no branch."""
        return self.of_task(asyncio.current_task()) or self.main

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

    async def result_of(self, branch: Branch) -> Any:
        """Wait for the end of a branch and return its result."""
        here = self._ctx.branch_here("task")
        if not branch.is_done:
            ends = Ends(self, [branch])
            try:
                await self._ctx.unbroken("task", ends.next(here))
            finally:
                ends.leave([branch])
        if branch.error is not None:
            raise branch.error
        return branch.value

    def tell(self, branch: Branch) -> None:
        """Let a branch go on that waits for others."""
        if branch.blocked is Blocked.JOIN and branch.future is not None:
            self._release(branch, None)

    def leave(self, path: Path) -> None:
        """Take note that nothing can stand in a block any more."""
        self._ended_paths.add(path)

    # Cancellation.

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
        """Raise `CancelledError` in a branch where it is."""
        assert branch.task is not None
        branch.interruptions += 1
        self._go_on(branch)
        branch.task.cancel()

    @staticmethod
    def take_back_interruption(branch: Branch) -> None:
        """Take an interruption back that has reached its branch."""
        assert branch.task is not None
        branch.interruptions -= 1
        branch.task.uncancel()

    def _check_cut_off(self, branch: Branch) -> None:
        """Doom the run when a timeout of somebody else's has ended a call of ctx: no replay could tell it again."""
        self._check_over()
        if branch.is_cut_off_by_others:
            error = InterruptedWait(branch.call) if branch.step is None else InterruptedStep(branch.step)
            self._ctx.interrupted_by = error
            self.stop(error)
            raise asyncio.CancelledError

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

    # Waiting inside ctx.

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
        except _Astray as astray:
            await diverge(self._ctx, self._lane, self._invocation, astray.found, _standing(place))
        finally:
            if place is not None and self._stands.get(place) is branch:
                del self._stands[place]
            self._go_on(branch)
        if works_on:
            self._work(branch)
        return found

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
            self._wake()
            self._release(branch, None)

    # Being cancelled.

    async def held_back(self) -> None:
        """Keep a branch from beginning anything more: its handler is about to be told that it is cancelled."""
        await self.blocked(self.current, Blocked.WAIT)

    def _tell_of_cancel(self) -> bool:
        """Record that the handler is told that it is cancelled where it waits; returns whether that is on its way.

        Steps that run in its branches are let finish first. What the branches wait for ends with them.
        """
        main, branches = self.main, self._branches.values()
        if not is_due(self._invocation) or main.future is None or main.blocked is Blocked.WORK:
            return False
        if any(branch.blocked is Blocked.WORK for branch in branches):
            return False
        stands_at = next((place for place, branch in self._stands.items() if branch is main), main.place)
        if forget_due(self._invocation, stands_at):
            self._lane.commit([entry_of(self._lane.partition, self._invocation)])
        self.write(CancelDelivered(stands_at, *self._ctx.carried()), cascade(self._lane, self._invocation))
        return True

    def _tell(self, found: CancelDelivered) -> bool:
        """Raise `Cancelled` in the handler where it waits; where that is for its branches, a place is taken for it."""
        main = self.main
        stands_there = self._stands.get(found.index) is main
        if main.future is None or not (stands_there or main.place == found.index):
            self._go_astray(found)
            return True
        if not stands_there:
            main.take_place()
        self._wake()
        main.future.set_exception(told(self._invocation))
        self._go_on(main)
        return True

    # What is made and what comes.

    def pass_made(self) -> None:
        """Take note that the current branch has come to what is recorded of the command that it took a place for."""
        branch = self.current
        self.pass_at(place_in(branch.path, branch.index - 1))

    def pass_at(self, place: Place) -> None:
        """Take note that the code has come to what is recorded at a place."""
        self.replay.go_past(place)
        self._ctx.pass_durable_point()

    def write(self, fact: Record, more: list[Operation], own: list[Operation] | None = None) -> None:
        """Write a record with all that was read and written up to here.

        Args:
            fact: The record.
            more: What leaves with it. That the lane stands still, and when it is due, is left out: that is about all
                branches.
            own: What is written as it is.

        Raises:
            Suspended: This run is not the current one any more.
            Fenced: Another owner has taken over.
        """
        lane, invocation = self._lane, self._invocation
        self._check_over()
        self._ctx.check_current()
        self.say_withdrawn()
        was_accepted = invocation.accepted
        writes = acceptance(lane, invocation)
        record(invocation, fact)
        delta = kept_delta(lane, self._ctx.writes)
        writes.append(operations.record(lane.partition.space, invocation.raw_id, fact))
        writes.extend(state_change(lane, invocation, delta))
        writes.extend(each for each in more if each[0] not in _OF_ALL_BRANCHES)
        writes.extend(own or ())
        done = partial(self._settled, fact, was_accepted=was_accepted)
        self._unsettled += 1
        self._in_flight += isinstance(fact, RESUMING)
        lane.commit(writes, delta or None, done, takes_in=not was_accepted, about=invocation.raw_id)
        self._ctx.pass_durable_point()

    def _settled(
        self,
        fact: Record,
        now_ms: int,
        error: BaseException | None,
        *,
        was_accepted: bool,
    ) -> None:
        self._unsettled -= 1
        self._in_flight -= isinstance(fact, RESUMING)
        if error is not None:
            if not was_accepted and not isinstance(error, Fenced | OwnershipLost):
                take_out(self._invocation)
            # Whatever the store refused, this run was built on it and must not go on.
            self._ctx.end(Suspended() if isinstance(error, Exception) else error)
            return
        self._invocation.records.append(fact)
        self._note_due(fact, now_ms)
        if isinstance(fact, StepAttemptFailed):
            branch = self._stands.get(fact.index)
            if branch is not None and branch.future is not None:
                self._release(branch, fact)
        self.poke()

    def _note_due(self, fact: Record, now_ms: int) -> None:
        lane, invocation = self._lane, self._invocation
        standing, place = invocation.standing, place_of(fact)
        is_open = isinstance(fact, StepAttemptFailed) or (standing is not None and standing.wait_at(place) is not None)
        if not is_open:
            # It was withdrawn meanwhile.
            return
        before = invocation.due_ms
        if not note_due(invocation, fact, now_ms) or (before and before <= invocation.due_ms):
            return
        lane.commit([entry_of(lane.partition, invocation)])
        self._waits.ask_in(lane.partition, max(invocation.due_ms - lane.partition.now_ms(), 0))

    def refused(self) -> None:
        """Take note that the store has refused the end of a wait: the lane is read anew."""
        self._ctx.end(Suspended())

    def poke(self) -> None:
        """See soon whether all is quiet and something can be handed over."""
        if not self._is_poked and self._over is None:
            self._is_poked = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_poked = False
        if self._over is not None or not self._is_quiet():
            return
        if self._ctx.is_stale:
            self._ctx.end_stale()
            return
        if self._has_handed_over() or self._in_flight or self._invocation.ending:
            return
        if not self.is_live and not self._go_live():
            return
        if self._tell_of_cancel():
            return
        if self._yet_to_start:
            waiting, self._yet_to_start = self._yet_to_start, []
            for branch in waiting:
                self._release(branch, None)
            return
        while self._wanting and not self._in_flight:
            self._make(*self._wanting.popleft())
        if not self._unsettled:
            self._rest()

    def _has_handed_over(self) -> bool:
        """Hand over what is recorded up to the next record that lets a branch go on; returns whether there was one."""
        while (record := self.replay.upcoming()) is not None:
            if isinstance(record, CompensationStarted):
                # The recorded run had ended here, and is being undone.
                self._ctx.end(Suspended())
                return True
            if self.is_live and self._waits.is_always_replayed and isinstance(record, RESUMING):
                if not self._unsettled and not self._invocation.ending:
                    self._ctx.end(Suspended())
                return True
            self.replay.hand_over()
            if self._hand_over(record):
                return True
        return False

    def _is_quiet(self) -> bool:
        return not self._active or all(branch.waits_for_others for branch in self._active)

    def _hand_over(self, found: Record) -> bool:
        """Hand a record to the branch that stands at its place; returns whether one goes on."""
        place = place_of(found)
        if self.replay.at(place) is found and not isinstance(found, WaitWithdrawn):
            if not isinstance(found, MADE_IN_QUIET):
                self._go_astray(found)
                return True
            self.pass_at(place)
        if isinstance(found, CancelDelivered):
            return self._tell(found)
        if not isinstance(found, RESUMING):
            return False
        branch = self._stands.get(place)
        if branch is not None and branch.future is not None:
            self._wake()
            self._release(branch, found)
            return True
        if place in self._abandoned or path_of(place) in self._ended_paths:
            return False
        self._go_astray(found)
        return True

    def _go_live(self) -> bool:
        """Begin to record; returns whether the code agrees with all that is recorded."""
        left = self.replay.head()
        if left is None:
            withdrawn = [place for place in self._stands if place in self.replay.withdrawn]
            left = WaitWithdrawn(withdrawn[0]) if withdrawn else None
        if left is not None:
            self._go_astray(left)
            return False
        self.is_live = True
        invocation = self._invocation
        if invocation.dues:
            # An attempt of the handler that failed meanwhile has had the due time.
            self._lane.commit([entry_of(self._lane.partition, invocation)])
            self._waits.ask_in(self._lane.partition, max(invocation.due_ms - self._lane.partition.now_ms(), 0))
        return True

    def _go_astray(self, found: Record) -> None:
        """Have the branch that comes nearest to a record say that the code has gone another way."""
        path = path_of(place_of(found))
        blocked = [each for each in (self.main, *self._branches.values()) if each.future is not None]
        near = [each for each in blocked if path[: len(each.path)] == each.path]
        # Where none inside ctx is near, any can say it; one there is, else nothing would be handed over.
        branch = max(near or blocked, key=lambda each: len(each.path))
        assert branch.future is not None
        branch.future.set_exception(_Astray(found))
        self._go_on(branch)

    def _make(self, branch: Branch, make: Callable[[], None]) -> None:
        try:
            make()
        except Exception as error:  # noqa: BLE001, it is raised where the step was asked for
            if branch.future is not None:
                branch.future.set_exception(error)
                self._go_on(branch)

    # Giving up waits.

    def _give_up(self, branch: Branch, place: Place) -> None:
        if self._over is not None:
            # The run ends, and its branches with it: each goes on from its journal, and gives nothing up.
            return
        self._abandoned.add(place)
        is_recorded = isinstance(self.replay.at(place), WaitWithdrawn)
        if is_recorded and branch.cancel_is_certain:
            self.pass_at(place)
        elif is_recorded:
            self.replay.go_past(place)
        elif branch.cancel_is_certain and not self.replay.is_ahead:
            self._withdraw(place, is_certain=True)
        else:
            self._unsaid.append(place)

    def say_withdrawn(self) -> None:
        """Withdraw what a failure has ended, now that the handler goes on after it."""
        unsaid, self._unsaid = self._unsaid, []
        for place in unsaid:
            self._withdraw(place, is_certain=False)

    def _withdraw(self, place: Place, *, is_certain: bool) -> None:
        """Write that a wait is waited for no longer, if it is open.

        What was read before may have decided that, so it is written with it; but not where a failure has ended it: a
        replay without the failure reads on.
        """
        more = self._waits.withdrawal(self._lane, self._invocation, place)
        if more is None:
            return
        if is_certain:
            self.write(WaitWithdrawn(place, *self._ctx.carried()), [], more)
            return
        lane, invocation, fact = self._lane, self._invocation, WaitWithdrawn(place)
        record(invocation, fact)
        self._unsettled += 1
        writes = [operations.record(lane.partition.space, invocation.raw_id, fact), *more]
        lane.commit(writes, None, partial(self._settled, fact, was_accepted=True))

    # Standing still.

    def _rest(self) -> None:
        """Stand still when each branch waits for what comes from outside: the slot serves others meanwhile."""
        if self._sleeper is not None:
            return
        # One that waits for another in its own way, such as for a lock, has no kind.
        kinds = {branch.blocked for branch in (self.main, *self._branches.values())} - {None}
        if Blocked.WORK in kinds:
            return
        if kinds == {Blocked.JOIN}:
            self._fail(StuckBranches())
            return
        lane, partition = self._lane, self._lane.partition
        if partition.phase is not Phase.OPEN:
            self._ctx.end(Suspended())
            return
        self.say_withdrawn()
        is_waiting = Blocked.RETRY not in kinds
        if is_waiting and not self.is_standing_still:
            self.is_standing_still = True
            lane.commit([operations.stand_still(lane.key_text)])
        self._sleep(is_waiting=is_waiting)

    def _sleep(self, *, is_waiting: bool) -> None:
        partition, invocation = self._lane.partition, self._invocation
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeper = partition.sleepers[invocation.raw_id] = future
        self._resident.enter_context(self._waits.slots.lent())
        self._resident.callback(self._leave_sleep, future)
        future.add_done_callback(self._woken)
        if is_waiting:
            place = self._waits.enter(invocation)
            self._resident.callback(self._waits.leave, invocation, place)
            if self._waits.is_never_resident:
                let_go(invocation)

    def _leave_sleep(self, future: asyncio.Future[None]) -> None:
        sleepers = self._lane.partition.sleepers
        if sleepers.get(self._invocation.raw_id) is future:
            del sleepers[self._invocation.raw_id]

    def _woken(self, future: asyncio.Future[None]) -> None:
        if future is not self._sleeper:
            return
        self._wake()
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._ctx.end(error)
        self.poke()

    def _wake(self) -> None:
        self._sleeper = None
        self._resident.close()

    # The end of the run.

    def _fail(self, error: BaseException) -> None:
        for branch in (self.main, *self._branches.values()):
            if branch.future is not None and not branch.future.done():
                branch.future.set_exception(error)
                branch.future.exception()
                self._go_on(branch)

    def stop(self, error: BaseException) -> None:
        """End the run from within: each branch is told where it stands, and at each further call of ctx."""
        if self._over is None:
            self._over = error
            self._wake()
            self._fail(error)
            for branch in list(self._active):
                if branch.waits_for_others and branch.task is not None:
                    # Who would let it go on does not do so any more.
                    branch.interruptions += 1
                    branch.task.cancel()

    def park(self) -> None:
        """Let only the branch go on that parks the invocation."""
        self._parking = asyncio.current_task()
        self._ctx.end(Suspended())

    async def close(self, *, is_failed: bool) -> None:
        """Cancel the branches that are left and wait until they have ended; the handler itself has."""
        try:
            if self._over is None and self._branches:
                await self.end_all(self.main, list(self._branches.values()), is_certain=not is_failed)
        finally:
            self._wake()
            if self._over is None:
                self._over = Suspended()
            for task in self._branches:
                if task is not self._parking:
                    task.cancel()
            if self._branches:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait(list(self._branches))
            self._invocation.conductor = None


def _standing(place: Place | None) -> str:
    return "the end of its branches" if place is None else f"command {format_place(place)}"
