"""The contexts that handlers are called with: what `objects.context` promises, fulfilled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ..journal.command_records import CancelDelivered, Command
from ..journal.errors import Fenced, InvalidOutput, PayloadTooLarge, Suspended, TerminalError
from ..journal.place import place_in
from ..journal.records import Record
from ..journal.restarting import what_counts
from ..objects.receivers import Effect
from .calling_context import CallingContext
from .checkpoints import count_kept_back
from .compensation import compensation
from .conductor import Conductor
from .effect_undos import effect_undo
from .log import InvocationLog
from .misuse import (
    BranchesInRelease,
    ContextClosed,
    ForeignTask,
    InterruptedStep,
    InterruptedWait,
    NestedStep,
    ReleasedInBranch,
)
from .releasing import LaneRelease

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from ..journal.key import Key
    from ..journal.place import Place
    from .branches import Branch
    from .compensation import Compensation
    from .declared_undos import DeclaredUndo
    from .effect_undos import EffectUndo
    from .effects import Effects
    from .invocation import Invocation
    from .lane import Lane
    from .steps import Steps

Result = TypeVar("Result")

#: Calls that wait for branches and make nothing themselves.
JOINS: Final = frozenset({"gather", "select", "as_completed", "task_group"})


class ExclusiveContext(CallingContext):
    """What an exclusive handler gets: its lane's queued state under its own writes, steps, and recorded facts.

    Args:
        lane: The lane that the invocation holds.
        invocation: The invocation.
        steps: Runs what `ctx.run` is given.
        messages: Does what asks other objects and the clock.
        task: The handler's task; None for one that runs in a thread.
    """

    __slots__ = (
        "_ended_by",
        "_found",
        "_generation",
        "_invocation",
        "_is_closed",
        "_lane",
        "_messages",
        "_recorded",
        "_steps",
        "_task",
        "compensations",
        "conductor",
        "coroutine",
        "in_flight",
        "index",
        "interrupted_by",
        "recorded_errors",
        "release",
        "step",
    )

    def __init__(
        self, lane: Lane, invocation: Invocation, steps: Steps, messages: Effects, task: asyncio.Task[Any] | None
    ) -> None:
        super().__init__()
        self._lane = lane
        self._invocation = invocation
        self._steps = steps
        self._messages = messages
        self._task = task
        self._generation = lane.generation
        self._recorded: deque[Record] | None = deque(invocation.records) if invocation.records else None
        self._found = len(invocation.records)
        self._ended_by: BaseException | None = None
        self._is_closed = False
        self.step: str | None = None
        #: What ends this attempt in place of what the handler comes to.
        self.interrupted_by: BaseException | None = None
        #: What recorded outcomes of calls have raised: no further attempt can end otherwise.
        self.recorded_errors: tuple[BaseException, ...] = ()
        #: Lets the branches of the handler go on, once it has made any.
        self.conductor: Conductor | None = None
        #: The handler's own coroutine, where it has one.
        self.coroutine: Any = None
        #: The block that leaves the lane to others during its waits, while the handler is in one.
        self.release: LaneRelease | None = None
        self.index = 0
        #: What is undone when the handler fails or is cancelled, in the order of registration.
        self.compensations: list[Compensation | EffectUndo | DeclaredUndo] = []
        #: How many results of steps are on their way to the store while the code goes on.
        self.in_flight = 0

    @property
    def key(self) -> Key:
        """The object."""
        return self._lane.key

    @property
    def invocation_id(self) -> str:
        """The invocation's id."""
        return self._lane.partition.invocation_id(self._invocation.raw_id)

    @property
    def attempt(self) -> int:
        """Which attempt of the handler this is, from 1."""
        return self._invocation.attempts + 1

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that is silent while recorded steps are replayed."""
        type_name = self._lane.partition.space.type_name
        return InvocationLog(type_name, self.key, self.invocation_id, self.attempt, lambda: not self.is_replaying)

    @property
    def is_replaying(self) -> bool:
        """Whether a recorded step is still ahead."""
        conductor = self.conductor
        return bool(self._recorded) if conductor is None else conductor.replay.is_ahead

    @property
    def ended_by(self) -> BaseException | None:
        """What ended this run from within, also when the handler swallowed it."""
        return self._ended_by

    @property
    def is_stale(self) -> bool:
        """Whether what this run was built on has been thrown away, or its invocation was ended from outside."""
        return self._generation != self._lane.generation or self._invocation.ended

    async def run(self, name: str, action: Any, /, *arguments: Any, **options: Any) -> Any:
        """Run a step, or return its recorded result."""
        self._check_task("run")
        if self.conductor is not None:
            return await self._run_in_branch(self.conductor, name, action, arguments, options)
        if self.step is not None:
            raise NestedStep(name, self.step)
        self.step = name
        try:
            result = await self._steps.run(self, self._lane, self._invocation, name, action, arguments, options)
        except asyncio.CancelledError:
            self.interrupted_by = InterruptedStep(name)
            raise
        finally:
            self.step = None
        return result

    async def _run_in_branch(
        self, conductor: Conductor, name: str, action: Any, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        branch = conductor.here("run")
        if branch.step is not None:
            raise NestedStep(name, branch.step)
        branch.step = name
        try:
            return await self._steps.run(self, self._lane, self._invocation, name, action, arguments, options)
        finally:
            branch.step = None

    async def model(self, name: str, function: Any, /, *arguments: Any, **options: Any) -> Any:
        """Ask a model, or return its recorded answer."""
        self._check_command("model")
        stepping = self if self.conductor is None else self.conductor.here("model")
        stepping.step = name
        asking = self._steps.run(
            self, self._lane, self._invocation, name, function, arguments, options, is_of_a_model=True
        )
        try:
            return await asking
        except asyncio.CancelledError:
            if self.conductor is None:
                self.interrupted_by = InterruptedStep(name)
            raise
        finally:
            stepping.step = None

    def release_lane(self, *, expects: Iterable[str] = ()) -> LaneRelease:
        """Leave the lane to others during the waits of a block."""
        return LaneRelease(self, expects)

    @staticmethod
    def releases(expects: Iterable[str], *, release_lane: bool) -> bool:
        """Return whether a wait is to leave the lane to others."""
        if expects and not release_lane:
            raise TypeError(
                "expects= goes with release_lane=True: while the lane is held, nobody else changes the state"
            )
        return release_lane

    def check_may_release(self) -> None:
        """Refuse to leave the lane to others where other branches of the handler go on in it.

        Raises:
            ReleasedInBranch: That is so.
            RuntimeError: It is left already.
        """
        self._check_command("release_lane")
        if self.release is not None:
            raise RuntimeError("the lane is left to others already: ctx.release_lane() does not stand in itself")
        if self.conductor is not None and not self.conductor.is_alone:
            raise ReleasedInBranch

    async def unbroken(self, what: str, doing: Coroutine[Any, Any, Result]) -> Result:
        """Await what a call of ctx does; a timeout of somebody else's that breaks it off dooms the run."""
        if self.conductor is not None:
            self.conductor.current.call = what
            if what not in JOINS:
                doing = _in_turn(self.conductor, doing)
        try:
            return await doing
        except asyncio.CancelledError:
            if self.conductor is None:
                self.interrupted_by = InterruptedWait(what)
            raise

    def branch_here(self, call: str) -> Branch:
        """Return the branch that makes a call about branches.

        Raises:
            ForeignTask: None of this handler does.
            BranchesInRelease: Others have the lane meanwhile.
        """
        self._check_command(call)
        if self.release is not None:
            raise BranchesInRelease(call)
        if self.conductor is None:
            # What is replayed so far was a prefix of the journal; in a live run all of it is behind.
            left = len(self._recorded) if self._recorded else 0
            position = (self._found if left else len(self._invocation.records)) - left
            # What is kept back or on its way becomes part of the journal ahead of all that branches make.
            position += self.in_flight + count_kept_back(self._invocation)
            waits = self._messages.waits
            self.conductor = Conductor(self, self._lane, self._invocation, waits, self._task, position)
            self._recorded = None
        return self.conductor.here(call)

    def _check_command(self, call: str) -> None:
        self._check_task(call)
        step = self.step if self.conductor is None else self.conductor.current.step
        if step is not None:
            raise NestedStep(f"ctx.{call}", step)

    def compensate(self, name: str, action: Any, /, *arguments: Any, **options: Any) -> None:
        """Register what is to be undone when the handler fails or is cancelled."""
        self._check_task("compensate")
        if isinstance(action, Effect):
            effect = cast("Effect[Any, Any]", action)
            undo = effect_undo(self._messages, self._lane, name, effect, arguments, options)
        else:
            undo = compensation(name, action, arguments, options)
        self.compensations.append(undo)

    def _check_task(self, call: str) -> None:
        if self._is_closed:
            raise ContextClosed(call)
        if self._ended_by is not None:
            raise self._ended_by
        if self.interrupted_by is not None:
            raise self.interrupted_by
        if self._task is not None and asyncio.current_task() is not self._task:
            if self.conductor is None:
                raise ForeignTask(call)
            self.conductor.here(call)

    def is_retried(self, error: BaseException) -> bool:
        """Return whether another attempt follows where the handler fails with an error, if its policy has any left."""
        if isinstance(error, TerminalError | InvalidOutput | PayloadTooLarge):
            return False
        return not any(error is each for each in self.recorded_errors)

    def end(self, error: BaseException) -> BaseException:
        """End this run from within; the error is raised at each further durable point too."""
        self._ended_by = error
        if self.conductor is not None:
            self.conductor.stop(error)
        return error

    @contextlib.contextmanager
    def in_step(self, name: str) -> Generator[None]:
        """Refuse each call of ctx while an undo runs: it would have no place in the journal."""
        self.step = name
        try:
            yield
        finally:
            self.step = None

    def close(self) -> None:
        """Take note that the handler has ended; a reference that it left behind does nothing any more."""
        self._is_closed = True

    def check_current(self) -> None:
        """Raise when another owner, or another history of this lane, has taken over, or the invocation was killed."""
        # What `is_stale` says, without a call: each step looks three times.
        if self._generation != self._lane.generation or self._invocation.ended:
            raise self.end_stale()

    def end_stale(self) -> BaseException:
        """End this run because what it was built on has been thrown away."""
        return self.end(Fenced() if self._lane.partition.writer.lost is not None else Suspended())

    async def through(self, durable: asyncio.Future[None]) -> None:
        """Wait until a commit that a run goes on from is durable.

        Raises:
            Suspended: The store refused it, or this run is not the current one any more.
            Fenced: Another owner has taken over.
        """
        try:
            await durable
        except Exception as error:
            # Whatever the store refused, this run was built on it and must not go on.
            raise self.end(Suspended()) from error
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                self.end(error)
            raise
        self.check_current()

    def next_recorded(self) -> Record | None:
        """Return the next record that a former run left, or None past the end; in a branch, that of its next place."""
        if self.conductor is not None:
            return self.conductor.replay.at(self.conductor.current.place)
        recorded = self._recorded
        return recorded[0] if recorded else None

    def left(self) -> Record | None:
        """Return the next command that a former run has made and this one has not come to, None past the last."""
        return self.next_recorded() if self.conductor is None else self.conductor.replay.head()

    async def comes_to(self, found: CancelDelivered) -> bool:
        """Return whether a command that is made now is the one in whose place the handler was told of a cancel."""
        if found.index not in (self.place, self._place_before()):
            return False
        if found.index == self.place:
            self.take_index()
        if self.conductor is None:
            self.pass_recorded()
        else:
            await self.conductor.durable(found.index)
        return True

    def _place_before(self) -> Place | None:
        """Return the place that was taken last; a step has taken its own before it looks at the journal."""
        if self.conductor is not None:
            branch = self.conductor.current
            return place_in(branch.path, branch.index - 1)
        return self.index - 1

    def leave_branches(self, records: Sequence[Record]) -> None:
        """Go on from these records, as a handler without branches: the handler has ended."""
        self.conductor = None
        self._recorded = deque(records) if records else None

    @property
    def place(self) -> Place:
        """The place of the next command."""
        return self.index if self.conductor is None else self.conductor.current.place

    def take_index(self) -> Place:
        """Return the place of the command that is made now."""
        if self.conductor is not None:
            return self.conductor.current.take_place()
        index = self.index
        self.index = index + 1
        return index

    def pass_recorded(self) -> None:
        """Go past the next record: what was read and written up to it is durable."""
        if self.conductor is not None:
            self.conductor.pass_made()
            return
        assert self._recorded is not None
        self._recorded.popleft()
        self.pass_durable_point()

    async def pass_taken(self, place: Place) -> None:
        """Go past the record of the command that was made now, and go on when the recorded run did."""
        if self.conductor is None:
            self.pass_recorded()
        else:
            self.conductor.pass_at(place)
            await self.conductor.durable(place)

    def replay_if_forced(self) -> None:
        """End a run that has just got something new, where tests want each to be replayed up to there.

        Raises:
            Suspended: They do.
        """
        if self._messages.waits.is_always_replayed:
            raise self.end(Suspended())


async def _in_turn(conductor: Conductor, doing: Coroutine[Any, Any, Result]) -> Result:
    """Make a command once each of the other branches waits: how long it takes to look something up decides nothing."""
    try:
        await conductor.turn()
    except BaseException:
        doing.close()
        raise
    return await doing


def commands_of(records: Sequence[Record]) -> list[Record]:
    """Return the records that a replay walks through."""
    return [record for record in what_counts(records) if isinstance(record, Command)]
