"""What a handler with branches writes: each record with all that any of its branches has read and written up to it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Final

from ..journal import operations
from ..journal.command_records import StepAttemptFailed, WaitWithdrawn
from ..journal.errors import Fenced, Suspended
from ..journal.place import path_of
from .due_times import awaits_attempt, entry_of, note_due
from .endings import acceptance, record, state_change, take_out
from .large_values import kept_delta
from .partition import OwnershipLost
from .replay import RESUMING, place_of

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from ..journal.place import Path, Place
    from ..journal.records import Record
    from .context import ExclusiveContext
    from .invocation import Invocation
    from .lane import Lane
    from .replay import Replay
    from .waits import Waits

#: Operations that say that a lane stands still, and when it is due.
_OF_ALL_BRANCHES: Final = frozenset({b"l", b"d"})


class BranchJournal:
    """Writes the records of one run with branches.

    Args:
        ctx: The run's context.
        lane: Its lane.
        invocation: Its invocation.
        waits: Knows what a wait leaves behind.
        replay: What former runs have written.
        settled: Told of each record that is durable.
        ended_paths: Where the branches were that have ended.
    """

    __slots__ = (
        "_ctx",
        "_ended_paths",
        "_invocation",
        "_lane",
        "_replay",
        "_tell_settled",
        "_unsaid",
        "_waits",
        "in_flight",
        "unsettled",
    )

    def __init__(
        self,
        ctx: ExclusiveContext,
        lane: Lane,
        invocation: Invocation,
        waits: Waits,
        replay: Replay,
        settled: Callable[[Record], None],
        ended_paths: AbstractSet[Path],
    ) -> None:
        self._ctx = ctx
        self._lane = lane
        self._invocation = invocation
        self._waits = waits
        self._replay = replay
        self._tell_settled = settled
        self._ended_paths = ended_paths
        #: Waits of branches that a failure has ended: withdrawn with the next record, not if the handler fails of it.
        self._unsaid: list[Place] = []
        #: Records on their way to the store: those that let a branch go on, and all.
        self.in_flight = 0
        self.unsettled = 0

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
        self._ctx.check_current()
        path = path_of(place_of(fact))
        # Who withdraws a wait is the branch that has forked.
        self.say_withdrawn(path[:-2] if isinstance(fact, WaitWithdrawn) else path)
        was_accepted = invocation.accepted
        writes = acceptance(lane, invocation)
        record(invocation, fact)
        delta = kept_delta(lane, self._ctx.writes)
        writes.append(operations.record(lane.partition.space, invocation.raw_id, fact))
        writes.extend(state_change(lane, invocation, delta))
        writes.extend(each for each in more if each[0] not in _OF_ALL_BRANCHES)
        writes.extend(own or ())
        done = partial(self._settled, fact, was_accepted=was_accepted)
        self.unsettled += 1
        self.in_flight += isinstance(fact, RESUMING)
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
        self.unsettled -= 1
        self.in_flight -= isinstance(fact, RESUMING)
        if error is not None:
            if not was_accepted and not isinstance(error, Fenced | OwnershipLost):
                take_out(self._invocation)
            # Whatever the store refused, this run was built on it and must not go on.
            self._ctx.end(Suspended() if isinstance(error, Exception) else error)
            return
        self._invocation.records.append(fact)
        self._note_due(fact, now_ms)
        self._tell_settled(fact)

    def _note_due(self, fact: Record, now_ms: int) -> None:
        lane, invocation = self._lane, self._invocation
        standing, place = invocation.standing, place_of(fact)
        is_open = isinstance(fact, StepAttemptFailed) or (standing is not None and standing.wait_at(place) is not None)
        if not is_open or invocation.ended:
            # It was withdrawn, or all of it was killed, meanwhile.
            return
        before = invocation.due_ms
        if not note_due(invocation, fact, now_ms) or (before and before <= invocation.due_ms):
            return
        if awaits_attempt(invocation):
            return
        lane.commit([entry_of(lane.partition, invocation)])
        self._waits.ask_in(lane.partition, max(invocation.due_ms - lane.partition.now_ms(), 0))

    def give_up(self, place: Place, *, is_certain: bool) -> None:
        """Take note that nobody waits at a place any more.

        Args:
            place: The place.
            is_certain: Whether each replay gives it up too; else the handler has to go on after it first.
        """
        is_recorded = isinstance(self._replay.at(place), WaitWithdrawn)
        if is_recorded:
            self._replay.go_past(place)
            if is_certain:
                self._ctx.pass_durable_point()
        elif is_certain and not self._replay.is_ahead:
            self._withdraw(place, is_certain=True)
        else:
            self._unsaid.append(place)

    def say_withdrawn(self, maker: Path | None = None) -> None:
        """Withdraw what a failure has ended, now that the handler goes on after it.

        Args:
            maker: The branch that goes on; by default all of the handler does.
        """
        if not self._unsaid:
            return
        unsaid = self._unsaid
        said = [place for place in unsaid if maker is None or self._has_outlived(maker, path_of(place))]
        self._unsaid = [place for place in unsaid if place not in said]
        for place in said:
            self._withdraw(place, is_certain=False)

    def _has_outlived(self, maker: Path, ended: Path) -> bool:
        """Return whether a branch goes on after the failure of a fork: it has made that, or what made it has ended.

        So does one that cleans up after its own wait. Any other branch goes on beside the failure, which may be about
        to end this attempt of the handler.
        """
        if ended == maker:
            return True
        above = ended[:-2]
        while len(above) > len(maker) and above in self._ended_paths:
            above = above[:-2]
        return above == maker

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
        self.unsettled += 1
        writes = [operations.record(lane.partition.space, invocation.raw_id, fact), *more]
        lane.commit(writes, None, partial(self._settled, fact, was_accepted=True))
