"""Lets the branches of a handler go on one at a time, in the order that its journal has or is to have.

Between two hand-overs the branches run until each waits inside ctx: then all is *quiet*. Those that have come to a
command make it, one after the other; then one record is handed over to the branch that stands at its place. A step's
result is recorded only when all is quiet and everything recorded before it was handed over. So the order of the records
is the order in which the code saw them, and a replay that hands over in the same order runs the same code in between:
it makes the same commands, reads the same values, asks the same clock.

    live    quiet ── next durable record ──> its branch ── runs ──> quiet
              └──── none: a step that has ended ── recorded, durable ──> handed over as above
              └──── none, and no step runs: the handler stands still, and may leave memory
    replay  quiet ── next record of the journal ──> the branch that stands there, else: diverged
              └──── none: live from here on; steps without a record begin to run
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import anyio

from ..journal.batch import Operation
from ..journal.command_records import CancelDelivered, CompensationStarted, WaitWithdrawn
from ..journal.errors import Suspended
from ..journal.place import path_of, place_in
from .branch_journal import BranchJournal
from .branch_waits import Astray, BranchWaits
from .branches import Blocked, Branch
from .cancel_delivery import cascade, is_due, told
from .due_times import entry_of, forget_due
from .effect_shield import is_shielded
from .misuse import StuckBranches
from .partition import Phase
from .replay import MADE_IN_QUIET, OF_GOING_STEPS, RESUMING, place_of
from .standstill import Standstill

if TYPE_CHECKING:
    from ..journal.place import Place
    from ..journal.records import Record
    from .context import ExclusiveContext
    from .invocation import Invocation
    from .lane import Lane
    from .waits import Waits

#: What is said with a failure that ends an attempt before anybody has looked at it.
UNSEEN: Final = (
    "This branch of ctx.as_completed was not awaited yet when the handler waited for something else, and nothing is "
    "recorded behind a failure that the next attempt may not have. What the loop is to handle is caught in the branch, "
    "or raised as a TerminalError."
)


class Conductor(BranchWaits):
    """The branches of one run of a handler.

    Args:
        ctx: The run's context.
        lane: Its lane.
        invocation: Its invocation.
        waits: Where the run waits while nothing of it can go on.
        task: The task that runs the handler itself.
        position: How many of the invocation's records are behind the run.
    """

    __slots__ = ("_is_poked", "_journal", "_parking", "_standstill")

    def __init__(
        self,
        ctx: ExclusiveContext,
        lane: Lane,
        invocation: Invocation,
        waits: Waits,
        task: asyncio.Task[Any] | None,
        position: int,
    ) -> None:
        super().__init__(ctx, lane, invocation, waits, task, position)
        self._journal = BranchJournal(
            ctx, lane, invocation, waits, self.replay, self._settled, self._ended_paths
        )  # fmt: skip
        self._standstill = Standstill(lane, invocation, waits, self._woken)
        self._is_poked = False
        self._parking: asyncio.Task[Any] | None = None
        invocation.conductor = self

    # Being cancelled.

    def _tell_of_cancel(self) -> bool:
        """Record that the handler is told that it is cancelled where it waits; returns whether that is on its way.

        Steps and calls of effects that run in its branches are let finish first. What the branches wait for ends with
        them.
        """
        main, branches = self.main, self._branches.values()
        if not is_due(self._invocation) or main.future is None or main.blocked is Blocked.WORK:
            return False
        if any(branch.blocked is Blocked.WORK for branch in branches) or is_shielded(self._invocation) is not False:
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
        self._standstill.end()
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

    def write(self, fact: Record, more: list[Operation]) -> None:
        """Write a record with all that was read and written up to here.

        Args:
            fact: The record.
            more: What leaves with it.

        Raises:
            Suspended: This run is not the current one any more.
            Fenced: Another owner has taken over.
        """
        self._check_over()
        self._journal.write(fact, more)

    def say_withdrawn(self) -> None:
        """Withdraw what a failure has ended: the branch that runs now goes on after it, and makes a command."""
        self._check_over()
        self._ctx.check_current()
        self._journal.say_withdrawn(self.current.path)

    def _settled(self, fact: Record) -> None:
        """Go on once a record is durable."""
        if isinstance(fact, OF_GOING_STEPS):
            branch = self._stands.get(fact.index)
            if branch is not None and branch.future is not None:
                self._release(branch, fact)
        self.poke()

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
        if self._has_failed_unseen() or (self._is_failing and self._cut_off_next()):
            return
        if self._turns:
            self._release(self._turns.popleft(), None)
            return
        if self._cut_off_next() or self._has_handed_over() or self._journal.in_flight or self._invocation.ending:
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
        while self._wanting and not self._journal.in_flight:
            self._make(*self._wanting.popleft())
        if not self._journal.unsettled:
            self._rest()

    def _has_failed_unseen(self) -> bool:
        """End the attempt where a branch has failed so that another one follows, and all wait for something else.

        The next attempt may not fail there, and would have to come to what is recorded meanwhile before the branch goes
        on: what that wrote then would be taken for what those records have carried, and would be lost.
        """
        failure = next(iter(self._unseen.values()), None)
        if failure is None:
            return False
        failure.add_note(UNSEEN)
        self._ctx.interrupted_by = failure
        self.stop(failure)
        return True

    @property
    def _is_failing(self) -> bool:
        """Whether a failure is about to end branches, and perhaps this attempt of the handler.

        They see it before any of them makes the command that it has come to: the next attempt may not fail there, and
        would have to come to that command before the branch that has failed goes on. What that one wrote then would be
        taken for what the record of the command has carried, and would be lost.
        """
        return any(not branch.cancel_is_certain and not branch.is_done for branch in self._cut)

    def _has_handed_over(self) -> bool:
        """Hand over what is recorded up to the next record that lets a branch go on; returns whether there was one."""
        while (record := self.replay.upcoming()) is not None:
            if isinstance(record, CompensationStarted):
                # The recorded run had ended here, and is being undone.
                self._ctx.end(Suspended())
                return True
            if self.is_live and self._waits.is_always_replayed and isinstance(record, RESUMING):
                if not self._journal.unsettled and not self._invocation.ending:
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
            self._standstill.end()
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
        branch.future.set_exception(Astray(found))
        self._go_on(branch)

    def _make(self, branch: Branch, make: Callable[[], None]) -> None:
        try:
            make()
        except Exception as error:  # noqa: BLE001, it is raised where the step was asked for
            if branch.future is not None:
                branch.future.set_exception(error)
                self._go_on(branch)

    # Standing still.

    @property
    def is_standing_still(self) -> bool:
        """Whether all of the handler waits for what sets it going by itself, and the store knows that."""
        return self._standstill.is_known

    def goes_on(self) -> None:
        """Take note that the lane is among the runnable ones again."""
        self._standstill.is_known = False

    def _rest(self) -> None:
        """Stand still when each branch waits for what comes from outside."""
        if self._standstill.has_begun:
            return
        kinds = {branch.blocked for branch in (self.main, *self._branches.values())}
        if kinds == {Blocked.JOIN}:
            self._fail(StuckBranches())
        elif Blocked.WORK in kinds or not kinds & {Blocked.WAIT, Blocked.RETRY}:
            return
        elif self._lane.partition.phase is not Phase.OPEN or self._invocation.pause_wish is not None:
            self._ctx.end(Suspended())
        else:
            self._journal.say_withdrawn()
            # One that waits for another in its own way, such as for a lock, has no kind; what lets it go on may be
            # nothing that the store knows of.
            self._standstill.begin(is_known=not kinds & {None, Blocked.RETRY})

    def _woken(self, error: BaseException | None) -> None:
        if error is not None:
            self._ctx.end(error)
        self.poke()

    # The end of the run.

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
            self._standstill.end()
            if self._over is None:
                self._over = Suspended()
            for task in self._branches:
                if task is not self._parking:
                    task.cancel()
            if self._branches:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait(list(self._branches))
            self._invocation.conductor = None
