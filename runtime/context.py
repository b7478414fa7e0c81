"""The contexts that handlers are called with: what `objects.context` promises, fulfilled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections import deque
from collections.abc import Generator, Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ..journal import codec
from ..journal.blobs import is_reference
from ..journal.codec import REFERENCE_BYTES
from ..journal.command_records import Bare, CancelDelivered, Command
from ..journal.errors import Fenced, InvalidOutput, PayloadTooLarge, Suspended, TerminalError
from ..journal.key import parse_id
from ..journal.place import place_in
from ..journal.records import Record
from ..journal.restarting import what_counts
from ..objects.receivers import Effect
from ..objects.types import boundary_of
from .bounds import SHORT_NAME, STATE_NAMES_MAX, check_name, check_packed, check_state, check_unpacked, check_written
from .checkpoints import count_kept_back
from .combinators import Completions, Group, check_awaitables, drop, gather, select
from .compensation import compensation
from .conductor import Conductor
from .effect_undos import effect_undo
from .effecting_context import EffectingContext
from .large_reads import whole
from .large_values import USUAL_BYTES, compact, note
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
from .orders import milliseconds
from .patches import has_patch
from .releasing import LaneRelease

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime, timedelta

    from ..journal.key import Key
    from ..journal.place import Place
    from ..objects.branching import BranchGroup, DurableTask
    from ..objects.messaging import Sent
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


class ExclusiveContext(EffectingContext):
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
        "_kept_back",
        "_lane",
        "_log",
        "_messages",
        "_notes",
        "_patches",
        "_random",
        "_reads",
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
        "writes",
    )

    def __init__(
        self, lane: Lane, invocation: Invocation, steps: Steps, messages: Effects, task: asyncio.Task[Any] | None
    ) -> None:
        self._lane = lane
        self._invocation = invocation
        self._steps = steps
        self._messages = messages
        self._task = task
        self._generation = lane.generation
        self._reads: dict[str, bytes | None] = {}
        self._notes: list[bytes] = []
        self._recorded: deque[Record] | None = deque(invocation.records) if invocation.records else None
        self._found = len(invocation.records)
        self._random: random.Random | None = None
        self._patches: dict[str, bool] | None = None
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
        #: Names of the state that was written before a result that was kept back; a replay reads it from the record.
        self._kept_back: set[str] = set()
        self.writes: dict[str, bytes | None] = {}

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

    async def get(self, name: str, type: Any, default: Any = None) -> Any:
        """Return a state value as this invocation sees it."""
        if self._is_closed:
            raise ContextClosed("get")
        if name.__class__ is not str:
            check_name("state value", name)
        packed = self.read(name)
        if packed is None:
            return default
        # The length is looked at first: it is all that most values take.
        if len(packed) == REFERENCE_BYTES and is_reference(packed):
            if self.conductor is not None:
                await self.conductor.turn()
            packed = await whole(self, self._lane, self._invocation, packed, f"state {name}")
        declared = self._lane.partition.virtual_object.state.get(name)
        if declared is not None and declared.form is type:
            return declared.load(packed)
        return boundary_of(type, where=f"state {name}", refusal=InvalidOutput).load(packed)

    def read(self, name: str) -> bytes | None:
        """Return a packed state value: own writes first, then what was read the first time, then the lane's."""
        if name in self.writes:
            packed = self.writes[name]
            if name in self._kept_back:
                self._reads[name] = packed
            return packed
        recorded = self._next_made()
        if recorded is not None:
            reads = _context_of(recorded)
            if name in reads:
                return reads[name]
        packed = self._lane.queued.get(name)
        self._reads[name] = packed
        return packed

    def set(self, name: str, value: Any, type: Any = None) -> None:
        """Write a state value; it becomes durable with the next durable point."""
        self._check_writable("set", name)
        boundary = self._lane.partition.virtual_object.state.get(name)
        if boundary is None:
            form = _form_of(value) if type is None else type
            boundary = boundary_of(form, where=f"state {name}", refusal=InvalidOutput)
        limit_bytes = self._lane.partition.payload_limit_bytes
        check_unpacked("state", name, value, limit_bytes)
        packed = boundary.dump(value)
        check_packed("state", name, packed, limit_bytes)
        written = len(self._lane.queued) + len(self.writes)
        if (len(packed) > USUAL_BYTES or written >= STATE_NAMES_MAX) and not self.is_replaying:
            check_state(self._lane, self.writes, name, packed)
        self._write(name, packed)

    def clear(self, name: str) -> None:
        """Take a state value away."""
        self._check_writable("clear", name)
        self._write(name, None)

    def _write(self, name: str, packed: bytes | None) -> None:
        self.writes[name] = packed
        self._kept_back.discard(name)
        if self.release is not None and name in self.release.expected:
            self.release.expected[name] = packed

    def _check_writable(self, call: str, name: str) -> None:
        if self._is_closed:
            raise ContextClosed(call)
        if type(name) is not str:
            raise TypeError(f"ctx.{call}: the name of a state value is text, not {type(name).__name__}")
        if len(name) > SHORT_NAME or len(self.writes) >= STATE_NAMES_MAX:
            check_name("state", name)
            check_written(self.writes, name)

    def clear_all(self) -> None:
        """Take all state values away."""
        if self._is_closed:
            raise ContextClosed("clear_all")
        for name in self._names():
            self._write(name, None)

    async def state_keys(self) -> list[str]:
        """Return the names of the state values as this invocation sees them."""
        return self._names()

    def _names(self) -> list[str]:
        recorded = self._noted()
        if recorded is not None:
            return recorded
        present = dict.fromkeys(self._lane.queued, True)
        present.update({name: value is not None for name, value in self.writes.items()})
        names = sorted(name for name, is_present in present.items() if is_present)
        self._notes.append(codec.pack(names))
        return names

    async def time(self) -> datetime:
        """Return the time, the same at each replay."""
        recorded = self._noted()
        if recorded is not None:
            return recorded
        now = self._steps.now(self._lane.partition)
        self._notes.append(codec.pack(now))
        return now

    def _noted(self) -> Any:
        """Return what was noted at this place in the recorded run, or None past its end."""
        recorded = self._next_made()
        if recorded is None:
            return None
        notes = _notes_of(recorded)
        place = len(self._notes)
        if place >= len(notes):
            return None
        self._notes.append(notes[place])
        return codec.unpack(notes[place])

    def _next_made(self) -> Record | None:
        """Return the next record that the handler's own run has made: it carries what was read up to it."""
        if self.conductor is not None:
            return self.conductor.replay.head()
        return self._recorded[0] if self._recorded else None

    def random(self) -> random.Random:
        """Return the random numbers of this invocation, or of this branch of it, the same at each replay."""
        if self.conductor is not None and self.conductor.current is not self.conductor.main:
            return self.conductor.current.own_random(self._invocation.raw_id)
        if self._random is None:
            self._random = random.Random(self._invocation.raw_id)  # noqa: S311
        return self._random

    def uuid(self) -> uuid.UUID:
        """Return a random UUID, the same at each replay."""
        return uuid.UUID(int=self.random().getrandbits(128), version=4)

    def patched(self, name: str) -> bool:
        """Return whether this invocation runs with a change of the code."""
        if self._is_closed:
            raise ContextClosed("patched")
        if self._patches is None:
            self._patches = {}
        answer = self._patches.get(name)
        if answer is None:
            answer = self._patches[name] = has_patch(self._invocation, name, is_replaying=self.is_replaying)
        return answer

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

    async def call(
        self, target: Any, key: Key | str, /, *rest: Any, release_lane: bool = False, expects: Iterable[str] = ()
    ) -> Any:
        """Call another object, or return what it answered in the recorded run."""
        self._check_command("call")
        if self.releases(expects, release_lane=release_lane):
            async with self.release_lane(expects=expects):
                return await self.call(target, key, *rest)
        order = self._messages.order(target, key, rest)
        return await self.unbroken("call", self._messages.call(self, self._lane, self._invocation, order))

    async def send(self, target: Any, key: Key | str, /, *rest: Any, delay: timedelta | float | None = None) -> Sent:
        """Send a message to an object, unless the recorded run has sent it."""
        self._check_command("send")
        order = self._messages.order(target, key, rest)
        delay_ms = milliseconds(delay, "delay")
        sending = self._messages.send(self, self._lane, self._invocation, order, delay_ms)
        return await self.unbroken("send", sending)

    async def attach(self, invocation_id: str, /, type: Any = None) -> Any:
        """Wait for the end of an invocation, or return what the recorded run was told of it."""
        self._check_command("attach")
        target, output = parse_id(invocation_id), None if type is None else boundary_of(type)
        attaching = self._messages.attach(self, self._lane, self._invocation, target, output)
        return await self.unbroken("attach", attaching)

    async def sleep(
        self, duration: timedelta | float, /, *, release_lane: bool = False, expects: Iterable[str] = ()
    ) -> None:
        """Wait for a while, counted from when the recorded run began to."""
        self._check_command("sleep")
        if self.releases(expects, release_lane=release_lane):
            async with self.release_lane(expects=expects):
                await self.sleep(duration)
            return
        delay_ms = milliseconds(duration, "the duration")
        await self.unbroken("sleep", self._messages.sleep(self, self._lane, self._invocation, delay_ms))

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
        return Completions(self, conductor, branch, awaitables)

    def task_group(self) -> AbstractAsyncContextManager[BranchGroup]:
        """Open a group of branches."""
        return Group(self)

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

    def pass_durable_point(self) -> None:
        """Forget the reads, notes and writes that the last record carries."""
        self._reads = {}
        self._notes = []
        self.writes = {}
        if self._kept_back:
            self._kept_back = set()

    def pass_kept_back(self) -> None:
        """Forget the reads and notes that a result carries which is kept back; the writes are kept back with it."""
        self._reads = {}
        self._notes = []
        self._kept_back = set(self.writes)

    def replay_if_forced(self) -> None:
        """End a run that has just got something new, where tests want each to be replayed up to there.

        Raises:
            Suspended: They do.
        """
        if self._messages.waits.is_always_replayed:
            raise self.end(Suspended())

    def carried(self) -> tuple[dict[str, bytes | None], tuple[bytes, ...]]:
        """Return the reads and notes that the next record has to carry."""
        reads = compact(self._lane, self._reads)
        if reads is not self._reads:
            for stored in reads.values():
                note(self._invocation, stored or b"")
        return reads, tuple(self._notes)


async def _in_turn(conductor: Conductor, doing: Coroutine[Any, Any, Result]) -> Result:
    """Make a command once each of the other branches waits: how long it takes to look something up decides nothing."""
    try:
        await conductor.turn()
    except BaseException:
        doing.close()
        raise
    return await doing


def _form_of(value: object) -> Any:
    """Return the type by which an undeclared value is written: its own, or plain data for what holds others."""
    return Any if isinstance(value, dict | list | tuple | set | frozenset) else type(value)


def commands_of(records: Sequence[Record]) -> list[Record]:
    """Return the records that a replay walks through."""
    return [record for record in what_counts(records) if isinstance(record, Command)]


def _context_of(record: Record) -> Mapping[str, bytes | None]:
    if isinstance(record, Command) and not isinstance(record, Bare):
        return record.reads
    return {}


def _notes_of(record: Record) -> tuple[bytes, ...]:
    if isinstance(record, Command) and not isinstance(record, Bare):
        return record.notes
    return ()
