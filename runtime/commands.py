"""The commands of a handler as its journal names them, and what happens when code and journal disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ..journal import noted
from ..journal.command_records import (
    CallCompleted,
    CallStarted,
    MessageSent,
    StepAttemptFailed,
    StepCompleted,
    StepFailed,
    TimerFired,
    TimerSet,
)
from ..journal.errors import Suspended
from ..journal.records import PauseReason, Record
from .endings import pause
from .frames import caller_line

if TYPE_CHECKING:
    from .context import ExclusiveContext
    from .invocation import Invocation
    from .lane import Lane


def in_words(record: Record) -> str:
    """Return a recorded command in words, with its index."""
    match record:
        case StepCompleted() | StepFailed() | StepAttemptFailed():
            return f"step {record.index} {record.name!r}"
        case MessageSent() | CallStarted() | TimerSet():
            return f"command {record.index}, {noted.in_words(record)}"
        case CallCompleted() | TimerFired():
            return f"the end of command {record.index}"
        case _:
            return type(record).__name__


async def diverge(ctx: ExclusiveContext, lane: Lane, invocation: Invocation, found: Record, attempted: str) -> NoReturn:
    """Park an invocation whose code asks for something else than its journal has.

    Raises:
        Suspended: In any case.
    """
    detail = f"recorded {in_words(found)}, the code now asks for {attempted} at {caller_line()}"
    await pause(lane, invocation, PauseReason.DIVERGED, detail, None)
    raise ctx.end(Suspended())
