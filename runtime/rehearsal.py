"""Rehearsals: a handler is run against a journal without running a step, and it shows whether the two still agree.

The handler's own code does run, up to where the journal ends: what it does outside `ctx` happens.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import anyio

from ..journal.codec import REFERENCE_BYTES
from ..journal.command_records import CompensationStarted, EffectStarted
from ..journal.errors import InvalidInput
from ..journal.records import Paused, PauseReason, Record, Resumed
from ..journal.restarting import version_of
from ..journal.standing import TERMINAL, IllegalTransition, Standing, Status
from ..journal.transitions import replay
from .commands import in_words
from .compensation import is_begun, undo
from .execution import Execution, arguments_of
from .invocation import Invocation
from .large_reads import whole
from .migrations import bring_up_to_date
from .rehearsal_stage import Altered, Stage, StageContext, StageLane
from .restarting import recall
from .versions import why_no_version

if TYPE_CHECKING:
    from ..journal.exported import Journal
    from ..journal.store import Store
    from ..objects.app import App
    from ..objects.handler import Handler
    from ..objects.virtual_object import VirtualObject
    from .lane import Lane

#: How long a run may go without a word to `ctx` before it is given up.
LIMIT_SECONDS: Final = 10.0
_DIVERGED: Final = re.compile(
    r"recorded (?P<recorded>.*), the code now asks for (?P<attempted>.*) at (?P<line>.*)", re.DOTALL
)


class Fit(StrEnum):
    """How a journal and the code go together."""

    FITS = "fits"
    DIVERGES = "diverges"
    ENDS_EARLY = "ends early"
    GOES_ON = "goes on"
    RAISES = "raises"
    NEEDS_VERSION = "needs version"
    NO_SUCH_TYPE = "no such type"
    INVALID_INPUT = "invalid input"
    MIGRATION_FAILED = "migration failed"
    VALUE_LOST = "value lost"
    UNREADABLE = "unreadable"
    APPROVAL_CHANGES = "approval changes"
    STUCK = "stuck"


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What a rehearsal has shown.

    Args:
        journal: What was rehearsed.
        fit: How the code goes together with it.
        handler: The handler's name, empty where the journal's beginning can't be read.
        version: The version of the handler that it needs.
        recorded: The recorded command that the code did not ask for.
        attempted: What it asked for instead.
        line: File and line of the code that did.
        detail: What else there is to say.
        ways: The changes of code that it was asked for, and whether it runs with each.
    """

    journal: Journal
    fit: Fit
    handler: str = ""
    version: int = 1
    recorded: str = ""
    attempted: str = ""
    line: str = ""
    detail: str = ""
    ways: dict[str, bool] = field(default_factory=dict[str, bool])

    @property
    def is_breaking(self) -> bool:
        """Whether this code can't go on from the journal."""
        return self.fit is not Fit.FITS


class Rehearsal(Execution):
    """Runs the handlers of an app against journals.

    Args:
        app: The code.
        store: Where large values lie that a journal does not hold itself; it is only read.
        limit_seconds: How long one run may take.
    """

    def __init__(self, app: App, store: Store | None = None, *, limit_seconds: float = LIMIT_SECONDS) -> None:
        self._stage = Stage(app, store)
        nobody: Any = None
        super().__init__(app.settings, nobody, self._stage.limiter)
        self.steps, self.messages = self._stage.steps, self._stage.messages
        self._app = app
        self._limit_seconds = limit_seconds

    async def of(self, journal: Journal) -> Rehearsed:
        """Rehearse one journal."""
        accepted = journal.accepted
        if accepted is None or journal.undecodable is not None:
            detail = journal.undecodable or "the record of its acceptance is missing"
            return Rehearsed(journal, Fit.UNREADABLE, detail=detail)
        version = version_of(accepted, journal.records)
        told = _Told(journal, accepted.handler, version)
        hosted = self._app.objects.get(journal.type_name)
        if hosted is None:
            return told.as_(Fit.NO_SUCH_TYPE, detail=f"this code has no object type {journal.type_name!r}")
        handler = hosted.version_of(accepted.handler, version)
        if handler is None:
            return told.as_(Fit.NEEDS_VERSION, detail=why_no_version(hosted, accepted.handler, version))
        try:
            standing = _going_on(journal.records)
        except IllegalTransition as error:
            return told.as_(Fit.UNREADABLE, detail=error.message)
        return await self._run_journal(told, hosted, handler, accepted.input, standing)

    async def _run_journal(
        self, told: _Told, hosted: VirtualObject, handler: Handler[Any, Any], payload: bytes | None, standing: Standing
    ) -> Rehearsed:
        journal = told.journal
        lane = self._stage.lane(journal, hosted)
        invocation = Invocation(journal.invocation, handler, payload)
        invocation.lane = lane
        invocation.accepted = True
        invocation.standing = standing
        recall(invocation, journal.records)
        lane.queue = [invocation]
        lane.running = invocation
        task = None if handler.is_blocking else asyncio.current_task()
        ctx = self._stage.context(lane, invocation, task)
        error: BaseException | None = None
        with anyio.move_on_after(self._limit_seconds) as scope:
            error = await _raised_by(self._play(ctx, lane, invocation))
            if _is_being_undone(ctx, invocation):
                # What the handler ends with counts no more: its undos are what goes on.
                error = await _raised_by(undo(ctx, lane, invocation, self.steps, self.messages, None))
        ctx.close()
        if scope.cancelled_caught:
            detail = f"it did not come to the end of its journal within {self._limit_seconds:g} s"
            return told.as_(Fit.STUCK, detail=detail)
        return self._verdict(told, ctx, invocation, error)

    async def _play(self, ctx: StageContext, lane: StageLane, invocation: Invocation) -> None:
        """Run a handler up to the end of its journal."""
        if lane.is_outdated:
            await bring_up_to_date(ctx, lane, invocation)
        payload = invocation.payload
        if payload is not None and len(payload) == REFERENCE_BYTES:
            payload = await whole(ctx, lane, invocation, payload, "argument")
        try:
            arguments = arguments_of(invocation.handler, payload)
        except InvalidInput as error:
            raise _DoesNotFit(error.message) from error
        if invocation.records:
            # Before its first command a handler can't disagree with a journal, and need not be run.
            await self._result(invocation, ctx, arguments)

    def _verdict(
        self, told: _Told, ctx: StageContext, invocation: Invocation, error: BaseException | None
    ) -> Rehearsed:
        ways = ctx.ways
        standing = invocation.standing
        paused = None if standing is None else standing.paused
        if paused is not None:
            return told.parked(paused, ways)
        if isinstance(error, _DoesNotFit):
            return told.as_(Fit.INVALID_INPUT, detail=str(error))
        is_suspended = ctx.ended_by is not None
        left = ctx.left()
        if left is not None and not is_suspended:
            return told.left(left, error, ways)
        if is_suspended and told.is_completed:
            return told.as_(
                Fit.GOES_ON, detail="the recorded run had ended here, and the code asks for more", ways=ways
            )
        altered = _in_play(told.journal, invocation.lane)
        if altered is not None and not told.is_completed:
            return told.alters(altered, ways)
        detail = "" if error is None or is_suspended else f"past its journal it raises {type(error).__name__}: {error}"
        return told.as_(Fit.FITS, detail=detail, ways=ways)


class _DoesNotFit(Exception):
    """The recorded argument is none for the handler."""


@dataclass(frozen=True, slots=True)
class _Told:
    """Makes the results of one rehearsal."""

    journal: Journal
    handler: str
    version: int

    @property
    def is_completed(self) -> bool:
        """Whether the recorded run had returned."""
        return replay(self.journal.records).status is Status.COMPLETED

    def as_(self, fit: Fit, *, detail: str = "", ways: dict[str, bool] | None = None) -> Rehearsed:
        """Return a result."""
        return Rehearsed(self.journal, fit, self.handler, self.version, detail=detail, ways=ways or {})

    def parked(self, paused: Paused, ways: dict[str, bool]) -> Rehearsed:
        """Return the result of a run that a worker would park."""
        match paused.reason:
            case PauseReason.DIVERGED:
                return self._diverged(paused.detail, ways)
            case PauseReason.MIGRATION_FAILED | PauseReason.NEEDS_VERSION:
                return self.as_(Fit.MIGRATION_FAILED, detail=paused.detail, ways=ways)
            case PauseReason.COMPENSATION_FAILED:
                # That is what the journal has, and no matter of the code.
                return self.as_(Fit.FITS, detail=paused.detail, ways=ways)
            case PauseReason.VALUE_LOST:
                return self.as_(Fit.VALUE_LOST, detail=paused.detail, ways=ways)
            case _:
                return self.as_(Fit.RAISES, detail=f"{paused.reason.value}: {paused.detail}", ways=ways)

    def _diverged(self, detail: str, ways: dict[str, bool]) -> Rehearsed:
        found = _DIVERGED.fullmatch(detail)
        if found is None:
            return self.as_(Fit.DIVERGES, detail=detail, ways=ways)
        return Rehearsed(self.journal, Fit.DIVERGES, self.handler, self.version, **found.groupdict(), ways=ways)

    def alters(self, altered: Altered, ways: dict[str, bool]) -> Rehearsed:
        """Return the result of a run that would have people decide on something else than what they decide on."""
        fields = ", ".join(altered.fields)
        detail = f"an approval of {altered.proposal_id} would not allow what this code goes on to do"
        recorded, attempted = in_words(altered.fact), f"another {fields}"
        return Rehearsed(
            self.journal,
            Fit.APPROVAL_CHANGES,
            self.handler,
            self.version,
            recorded,
            attempted,
            altered.line,
            detail,
            ways,
        )

    def left(self, record: Record, error: BaseException | None, ways: dict[str, bool]) -> Rehearsed:
        """Return the result of a run that ended while something recorded lay ahead."""
        fit, attempted = Fit.ENDS_EARLY, "the end of the handler"
        if error is not None:
            fit, attempted = Fit.RAISES, f"{type(error).__name__}: {error}"
        return Rehearsed(self.journal, fit, self.handler, self.version, in_words(record), attempted, ways=ways)


def _in_play(journal: Journal, lane: Lane) -> Altered | None:
    """Return what the code would propose otherwise, and what people decide on or have allowed, but is not done yet."""
    for altered in lane.altered if isinstance(lane, StageLane) else ():
        behind = journal.records[journal.records.index(altered.fact) :]
        if not any(isinstance(each, EffectStarted) and each.effect == altered.fact.action for each in behind):
            return altered
    return None


async def _raised_by(run: Coroutine[Any, Any, object]) -> BaseException | None:
    """Return what a run raises, None where it comes to its end."""
    try:
        await run
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return error
    except BaseException as error:  # noqa: BLE001, whatever a handler raises is a finding
        return error
    return None


def _is_being_undone(ctx: StageContext, invocation: Invocation) -> bool:
    """Return whether a run has come to where undoing began."""
    is_parked = invocation.standing is not None and invocation.standing.paused is not None
    return is_begun(invocation) and not is_parked and isinstance(ctx.left(), CompensationStarted)


def _going_on(records: tuple[Record, ...]) -> Standing:
    """Return where an invocation stands as if it were about to go on.

    Raises:
        IllegalTransition: Its records are in no order that there can be.
    """
    standing = replay(records)
    if standing.status is Status.PAUSED:
        return replay([Resumed("rehearsal", "")], standing)
    if standing.status in TERMINAL:
        return standing._replace(status=Status.RUNNING)
    return standing
