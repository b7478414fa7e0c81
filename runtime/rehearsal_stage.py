"""Where a rehearsal happens: the engine's own context and commands, with nothing behind them that could be changed.

Whatever would go past the journal ends the run: a step that would run, a message that would leave, a record that would
be written. What is read comes from the journal, and from a store that is only read.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import anyio

from ..journal.blob_cache import BlobCache
from ..journal.codec import unpack
from ..journal.command_records import CancelDelivered
from ..journal.errors import StoreUnavailable, Suspended
from ..journal.key import Key
from ..journal.keyspace import PartitionSpace
from ..journal.operations import Delta
from ..journal.tenure import Tenure
from ..objects.fingerprint import differing_fields
from ..objects.proposing import digest_of
from .approvals import recorded_proposal
from .context import ExclusiveContext
from .effects import Effects
from .frames import caller_line
from .lane import Lane, apply
from .log import InvocationLog
from .partition import Partition, Phase
from .signal_box import SignalBox
from .steps import Steps
from .waits import EndOfWait, Waits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..journal.command_records import ApprovalAwaited, Proposed, WaitStarted
    from ..journal.exported import Journal
    from ..journal.place import Place
    from ..journal.store import Store
    from ..objects.app import App
    from ..objects.proposing import Draft
    from ..objects.virtual_object import VirtualObject
    from .invocation import Invocation
    from .step_plan import StepPlan

NAMESPACE = "rehearsal"


class Backdrop:
    """What stands in for the host, the writer, timers and slots: nobody listens."""

    lost = None
    server = None
    is_full = False

    def __getattr__(self, name: str) -> Any:
        return _nothing


def _nothing(*arguments: object, **named: object) -> None:
    del arguments, named


class PropStore:
    """What stands in for the store: large values, from a journal or from a store that is only read.

    Args:
        behind: The store that has more of them, None where there is none.
    """

    def __init__(self, behind: Store | None) -> None:
        self._behind = behind
        self.blob_cache = BlobCache() if behind is None else behind.blob_cache
        self.url = "a journal by itself" if behind is None else behind.url

    def writer(self, *_: object) -> Any:
        """Return what writes nothing."""
        return Backdrop()

    def memory_of(self, *_: object) -> Any:
        """Return what is never full."""
        return Backdrop()

    def space(self, type_name: str, number: int) -> PartitionSpace:
        """Return a partition of the store behind, or of none."""
        namespace = NAMESPACE if self._behind is None else self._behind.namespace
        return PartitionSpace(namespace, type_name, number)

    async def together(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Read, where there is something to read; a value that no journal has is missing."""
        if any(command[0] != "HGET" for command in commands):
            raise StoreUnavailable(self.url, "a rehearsal reads large values and nothing else")
        if self._behind is None:
            return [None] * len(commands)
        return await self._behind.together(commands)


@dataclass(frozen=True, slots=True)
class Altered:
    """A proposal that the code would make otherwise than it was made.

    Args:
        fact: The record of it.
        proposal_id: Its id.
        fields: What would be otherwise.
        line: File and line of the code.
    """

    fact: Proposed
    proposal_id: str
    fields: tuple[str, ...]
    line: str


class StageLane(Lane):
    """The lane of the one invocation that is rehearsed: to write to it is to have come to the end of the journal."""

    ctx: ExclusiveContext
    #: What the code would propose otherwise than it was.
    altered: tuple[Altered, ...] = ()

    def commit(self, *_: object, **__: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """End the run; where there are branches, each of them is told."""
        ended = self.ctx.end(Suspended())
        if self.ctx.conductor is None:
            raise ended

    def accept(self, *_: object, **__: object) -> NoReturn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """End the run."""
        raise self.ctx.end(Suspended())

    async def write(self, *_: object, **__: object) -> NoReturn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """End the run."""
        raise self.ctx.end(Suspended())

    def migrate(self, delta: Delta) -> None:
        """Have the state of another version without writing it."""
        self.is_outdated = False
        apply(self.queued, delta)


class StageContext(ExclusiveContext):
    """The context of a rehearsal: the engine's own, which keeps silent."""

    __slots__ = ()

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that nobody hears."""
        return InvocationLog("", self.key, self.invocation_id, self.attempt, _never)

    @property
    def ways(self) -> dict[str, bool]:
        """Which changes of code the run was asked for, and whether it runs with them."""
        return dict(self._patches or {})


def _never() -> bool:
    return False


class StageSteps(Steps):
    """Steps that are found in the journal, and never run."""

    async def may_begin(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation) -> None:
        """End the run once all branches have come to the end of the journal."""
        del lane, invocation
        if ctx.conductor is not None:
            await ctx.conductor.until_live()
        raise ctx.end(Suspended())

    async def _try(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, plan: StepPlan) -> NoReturn:
        del lane, invocation, plan
        raise ctx.end(Suspended())


class StageWaits(Waits):
    """Waits whose end is found in the journal, or ends the run."""

    async def ended(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, index: Place) -> EndOfWait:
        """Return what a branch is handed, or tell of a cancel; else end the run: what is waited for has not come."""
        if ctx.conductor is not None or isinstance(ctx.next_recorded(), CancelDelivered):
            return await super().ended(ctx, lane, invocation, index)
        raise ctx.end(Suspended())


class StageSignals(Effects):
    """Commands that are found in the journal; a wait that has not ended is its end."""

    async def _go_on_waiting(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, wait: WaitStarted
    ) -> None:
        del lane, invocation, wait
        if ctx.conductor is None:
            raise ctx.end(Suspended())

    def _check_recorded(self, ctx: ExclusiveContext, lane: Lane, found: Proposed, draft: Draft) -> None:
        """Note where the code would propose something else than what people decide on."""
        recorded, plain = recorded_proposal(found), unpack(draft.bound)
        if isinstance(lane, StageLane) and digest_of(found.action, found.version, plain).hex() != recorded.digest:
            fields = differing_fields(recorded.fields, plain)
            lane.altered = (*lane.altered, Altered(found, recorded.id, fields, caller_line(ctx.coroutine)))

    async def _go_on_awaiting(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, wait: ApprovalAwaited
    ) -> None:
        del lane, invocation, wait
        if ctx.conductor is None:
            raise ctx.end(Suspended())

    async def _go_on_with_effect(self, ctx: ExclusiveContext, lane: Lane) -> None:
        del lane
        if ctx.conductor is None:
            raise ctx.end(Suspended())


class Stage:
    """Makes the lanes and contexts of rehearsals of one app.

    Args:
        app: What is rehearsed.
        store: Where large values lie that a journal does not hold; None for journals by themselves.
    """

    def __init__(self, app: App, store: Store | None) -> None:
        self._app = app
        self._behind = store
        nobody: Any = Backdrop()
        self.limiter = anyio.CapacityLimiter(app.settings.blocking_threads)
        self.steps = StageSteps(app.settings, nobody, nobody, self.limiter)
        waits = StageWaits(nobody, app.settings.waiting_residency_seconds, 1)
        limit = app.settings.payload_limit_bytes
        self.messages = StageSignals(app, nobody, self.steps, waits, nobody, limit)

    def lane(self, journal: Journal, virtual_object: VirtualObject) -> StageLane:
        """Return the lane of a journal's object, with the state that it has."""
        store: Any = PropStore(self._behind)
        for digest, packed in journal.large.items():
            store.blob_cache.put(digest, packed)
        space = store.space(journal.type_name, journal.partition)
        host: Any = Backdrop()
        partition = Partition(host, store, virtual_object, space, Tenure(0, b""), self._app.settings, journal.begun_ms)
        # Branches that have nothing left to do leave memory at once, as when a worker hands its partitions over.
        partition.phase = Phase.DRAINING
        lane = StageLane(partition, Key.parse(journal.key), journal.key)
        lane.queued, lane.durable = dict(journal.state), dict(journal.state)
        lane.state_version = journal.state_version
        lane.is_outdated = bool(journal.state) and journal.state_version != virtual_object.state_version
        lane.box = SignalBox(space, journal.key, 0, {}, 0)
        lane.loaded = True
        return lane

    def context(self, lane: StageLane, invocation: Invocation, task: Any) -> StageContext:
        """Return a context for a run."""
        ctx = StageContext(lane, invocation, self.steps, self.messages, task)
        lane.ctx = ctx
        return ctx
