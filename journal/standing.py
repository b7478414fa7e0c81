"""Where an invocation stands after the records so far, as far as that decides which record may follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from .command_records import ApprovalAwaited, CallStarted, CompensationStarted, EffectStarted, TimerSet, WaitStarted
from .errors import InternalError
from .outcomes import Failure
from .place import Path, Place
from .records import CancelRequested, Paused, Record

#: What begins a wait that a record ends, whoever owns the partition by then.
OpenWait: TypeAlias = CallStarted | TimerSet | WaitStarted | EffectStarted | ApprovalAwaited


def lasts_ms(wait: OpenWait | None) -> int | None:
    """Return after how long a wait ends by itself, None for one that does not."""
    match wait:
        case TimerSet():
            return wait.delay_ms
        case WaitStarted():
            return wait.timeout_ms
        case _:
            return None


class Status(StrEnum):
    """Where an invocation stands, in the words that users see."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPENSATING = "compensating"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    KILLED = "killed"


#: The statuses that nothing leaves.
TERMINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.KILLED})


#: How a short invocation ended, by the mark in its one entry.
END_OF: Final[Mapping[str, Status]] = {
    "c": Status.COMPLETED,
    "f": Status.FAILED,
    "x": Status.CANCELLED,
    "k": Status.KILLED,
}


@dataclass(frozen=True, slots=True)
class Extras:
    """What few invocations have.

    Args:
        branches: How many commands of each branch beside the main one are settled, at least.
        step_attempts: Failed attempts of the steps in branches, by place.
        cancel: The request for its end, if there was one.
        is_cancel_delivered: Whether its handler was told.
        told_within: How many commands of its main branch a restart has to keep so that it stays told.
        compensation: What began to undo it, while that lasts.
        has_failed_undo: Whether an undo was given up.
        tries_undo_again: Whether somebody has it try an undo again that has failed, and it has not begun to.
        signals: The ids of the messages that it received.
        is_aside: Whether it has left its lane to others while it waits.
        returns: Whether what it waits for has come while it was paused: it returns when it is resumed.
    """

    branches: Mapping[Path, int] = field(default_factory=dict[Path, int])
    step_attempts: Mapping[Place, int] = field(default_factory=dict[Place, int])
    cancel: CancelRequested | None = None
    is_cancel_delivered: bool = False
    told_within: int = 0
    compensation: CompensationStarted | None = None
    has_failed_undo: bool = False
    tries_undo_again: bool = False
    signals: frozenset[bytes] = frozenset()
    is_aside: bool = False
    returns: bool = False


#: What most have.
NO_EXTRAS: Final = Extras()


class Standing(NamedTuple):
    """Where an invocation stands after the records so far: a tuple, since one is made for each record that is written.

    Args:
        status: In the words that users see.
        records: How many records there are.
        steps: How many commands of its main branch are settled, steps and the others: the index of the next one.
        attempts: Failed attempts of the handler since acceptance or the last resumption.
        step_attempts: Failed attempts of the step with index `steps`, likewise.
        retry_after_ms: The pause before the next attempt, while one is waited for.
        paused: The record that parked it, while it is parked.
        error: The last error of the handler or of a step.
        waits: The waits whose end is not recorded yet, in the order in which they began.
        delay_ms: How long it was to wait before it enters its lane, while it does.
        extras: What few invocations have.
    """

    status: Status
    records: int
    steps: int = 0
    attempts: int = 0
    step_attempts: int = 0
    retry_after_ms: int | None = None
    paused: Paused | None = None
    error: Failure | None = None
    waits: tuple[OpenWait, ...] = ()
    delay_ms: int | None = None
    extras: Extras = NO_EXTRAS

    @property
    def is_terminal(self) -> bool:
        """Whether nothing may follow."""
        return self.status in TERMINAL

    @property
    def is_aside(self) -> bool:
        """Whether it is in no lane: it has left its own to others while it waits."""
        return self.extras.is_aside

    @property
    def waiting(self) -> OpenWait | None:
        """The wait that began first of those that are open."""
        return self.waits[0] if self.waits else None

    def wait_at(self, place: Place) -> OpenWait | None:
        """Return the open wait of a place."""
        return next((wait for wait in self.waits if wait.index == place), None)

    def attempts_of(self, place: Place) -> int:
        """Return how many attempts of the step that is next at a place have failed."""
        return self.step_attempts if isinstance(place, int) else self.extras.step_attempts.get(place, 0)


class IllegalTransition(InternalError):
    """A record was about to be written, or was found, where it must not be."""

    code = "illegal-transition"


def ended(standing: Standing, status: Status, error: Failure | None) -> Standing:
    """Return where an invocation stands that has ended."""
    return Standing(
        status,
        records=standing.records + 1,
        steps=standing.steps,
        attempts=standing.attempts,
        step_attempts=standing.step_attempts,
        error=error,
        extras=standing.extras,
    )


def illegal(standing: Standing | None, record: Record, why: str) -> IllegalTransition:
    """Return what says that a record must not be where it is, and why."""
    place = "at the beginning" if standing is None else f"after {standing.records} records, {standing.status}"
    return IllegalTransition(f"{type(record).__name__} {place}: {why}")
