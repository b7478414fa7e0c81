"""The records of an invocation: what happened to it, in the order in which it happened.

An invocation that outlives its first commit has a stream of records of its own, which begins with `Accepted`. A short
one leaves a single `Finished` in the stream of its object. Which record may follow which is the business of
`transitions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from .command_records import Command
from .facts import often_made
from .messages import Caller
from .outcomes import Failure
from .place import Place

#: How an invocation ended, in the entry of its object: completed, failed, cancelled or killed.
EndMark: TypeAlias = Literal["c", "f", "x", "k"]


class PauseReason(StrEnum):
    """Why an invocation is parked until somebody resumes it."""

    RETRIES_SPENT = "retries_spent"
    DIVERGED = "diverged"
    OPERATOR = "operator"
    UNDECODABLE = "undecodable"
    VALUE_LOST = "value_lost"
    TOO_MANY_RECORDS = "too_many_records"
    NEEDS_VERSION = "needs_version"
    MIGRATION_FAILED = "migration_failed"
    COMPENSATION_FAILED = "compensation_failed"


@often_made
@dataclass(frozen=True, slots=True)
class Accepted:
    """The owner took the invocation in; nothing of it has run.

    Args:
        invocation: Raw id.
        handler: Name of the handler.
        version: Version of the handler at acceptance.
        key: The object, as `tenant/key`.
        input: Packed argument, None for a handler without one.
        idempotency: Digest of the idempotency key, if one was given.
        client: Id of the client that waits for the answer, if one does.
        caller: The invocation that waits for the reply, if another object made the call.
        trace: The context of the trace that it belongs to, None for none.
    """

    invocation: bytes
    handler: str
    version: int
    key: str
    input: bytes | None = None
    idempotency: bytes | None = None
    client: bytes | None = None
    caller: Caller | None = None
    trace: bytes | None = None


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The handler raised something that is tried again after a delay; `attempt` counts from 1."""

    attempt: int
    error: Failure
    retry_after_ms: int


@dataclass(frozen=True, slots=True)
class Paused:
    """The invocation is parked until somebody resumes it.

    Args:
        reason: Why.
        detail: What a person needs to know, such as the recorded and the attempted command.
        error: The last error, where there is one.
        by: Who paused it, None for the runtime itself.
    """

    reason: PauseReason
    detail: str
    error: Failure | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """Somebody let a parked invocation go on, with its retries counted anew."""

    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned; its output is in the result key."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The invocation failed for good."""

    error: Failure


@often_made
@dataclass(frozen=True, slots=True)
class Finished:
    """The whole of a short invocation, accepted and ended in one commit.

    Args:
        invocation: Raw id.
        handler: Name of the handler.
        version: Version of the handler that ran.
        input: Packed argument, None for a handler without one.
        outcome: `c` completed, `f` failed, `x` cancelled or `k` killed.
        idempotency: Digest of the idempotency key, if one was given.
    """

    invocation: bytes
    handler: str
    version: int
    input: bytes | None
    outcome: EndMark
    idempotency: bytes | None = None


@dataclass(frozen=True, slots=True)
class Scheduled:
    """It was taken in to begin later; it enters its lane when that time has come."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class Released:
    """The time of a scheduled invocation has come: it is in its lane."""


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """A signal, or the completion of an awakeable, came; whether somebody waits for it stands elsewhere.

    Args:
        name: Name of the signal; empty for an awakeable.
        awakeable: Place at which the awakeable was made; None for a signal.
        message: Id of the message, by which a second copy is known.
        value: The encoded outcome: a value, or a failure.
        by: Who sent it, as far as they said.
    """

    name: str
    awakeable: Place | None
    message: bytes
    value: bytes
    by: str = ""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody asked for the end of the invocation; its handler is told at its next durable point.

    Args:
        request: Raw id of the request, under which the report is given.
        by: Who asked.
        reason: Why.
        cascades: Whether what it has sent is to be cancelled as well.
    """

    request: bytes
    by: str
    reason: str
    cascades: bool = False


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The invocation was cancelled: it never began, or its handler has cleaned up."""

    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Killed:
    """The invocation was ended from outside; its handler was not told."""

    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class PatchMarked:
    """The code that ran from here on has a patch that code before did not have."""

    name: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """Somebody let a parked invocation go on from an earlier command; what was recorded from there on does not count.

    Args:
        kept: How many commands of the main branch stay as they are recorded.
        by: Who did it.
        reason: Why.
        version: The version of the handler that it goes on with, None for the one that it had.
    """

    kept: int
    by: str
    reason: str
    version: int | None = None


Record: TypeAlias = (
    Accepted
    | Command
    | AttemptFailed
    | Paused
    | Resumed
    | Completed
    | Failed
    | Finished
    | Scheduled
    | Released
    | SignalReceived
    | CancelRequested
    | Cancelled
    | Killed
    | PatchMarked
    | Restarted
)
