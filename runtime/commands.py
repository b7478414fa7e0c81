"""The commands of a handler as its journal names them, and what happens when code and journal disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ..journal import noted
from ..journal.command_records import (
    ApprovalAwaited,
    CallCompleted,
    CallStarted,
    CancelDelivered,
    Command,
    CompensationStarted,
    EffectStarted,
    MessageSent,
    ModelCallBegun,
    Proposed,
    StepAttemptFailed,
    StepCompleted,
    StepFailed,
    TimerFired,
    TimerSet,
)
from ..journal.errors import InvalidInput, InvalidOutput, Suspended
from ..journal.place import format_place
from ..journal.records import PauseReason, Record
from .cancel_delivery import told
from .endings import pause
from .frames import caller_line

if TYPE_CHECKING:
    from ..journal.outcomes import Failure
    from ..objects.types import Boundary
    from .context import ExclusiveContext
    from .invocation import Invocation
    from .lane import Lane


def in_words(record: Record) -> str:
    """Return a recorded command in words, with its index."""
    match record:
        case StepCompleted() | StepFailed() | StepAttemptFailed() | ModelCallBegun():
            return f"step {format_place(record.index)} {record.name!r}"
        case MessageSent() | CallStarted() | TimerSet() | EffectStarted() | Proposed() | ApprovalAwaited():
            return f"command {format_place(record.index)}, {noted.in_words(record)}"
        case CallCompleted() | TimerFired():
            return f"the end of command {format_place(record.index)}"
        case _:
            place = format_place(record.index) if isinstance(record, Command) else "none"
            return f"{type(record).__name__} of command {place}"


async def diverge(ctx: ExclusiveContext, lane: Lane, invocation: Invocation, found: Record, attempted: str) -> NoReturn:
    """Park an invocation whose code asks for something else than its journal has.

    What stands in place of a command is no such thing: there the handler was told that it is cancelled, or had ended.

    Raises:
        Suspended: It is parked, or the recorded run had ended here.
        Cancelled: The recorded run was told so here.
    """
    if isinstance(found, CompensationStarted):
        raise ctx.end(Suspended())
    if isinstance(found, CancelDelivered) and await ctx.comes_to(found):
        raise told(invocation)
    detail = f"recorded {in_words(found)}, the code now asks for {attempted} at {caller_line(ctx.coroutine)}"
    await park(ctx, lane, invocation, PauseReason.DIVERGED, detail, None)


async def loaded(
    ctx: ExclusiveContext, lane: Lane, invocation: Invocation, boundary: Boundary[Any], packed: bytes, what: str
) -> Any:
    """Return a value that code of this type, or of an earlier one, has made: only other code can't read it.

    Raises:
        Suspended: It can't be read, and the invocation is parked: what was done is not to end as a failure for that.
    """
    try:
        return boundary.load(packed)
    except (InvalidInput, InvalidOutput) as error:
        detail = f"recorded {what}, which this code can't read: {error.message}"
        await park(ctx, lane, invocation, PauseReason.DIVERGED, detail, None)


async def park(
    ctx: ExclusiveContext, lane: Lane, invocation: Invocation, reason: PauseReason, detail: str, error: Failure | None
) -> NoReturn:
    """Park an invocation in the middle of its run; none of its branches may record anything from here on.

    Raises:
        Suspended: In any case.
    """
    if ctx.conductor is not None:
        ctx.conductor.park()
    await pause(lane, invocation, reason, detail, error)
    raise ctx.end(Suspended())
