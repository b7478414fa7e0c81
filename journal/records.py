"""The records of an invocation: what happened to it, in the order in which it happened.

An invocation that outlives its first commit has a stream of records of its own, which begins with `Accepted`. A short
one leaves a single `Finished` in the stream of its object. Which record may follow which is the business of
`transitions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from .fields import (
    Layout,
    Reader,
    a_number,
    a_text,
    decode_tagged,
    map_to_bytes,
    nested,
    one_of,
    optional,
    pack,
    sequence_of_bytes,
    some_bytes,
    text_of,
)
from .messages import Caller, a_caller
from .outcomes import FAILURE_LAYOUT, Failure, fields_of_failure

#: State values that were read since the record before: name to packed value, None where there was none.
Reads: TypeAlias = Mapping[str, bytes | None]


class PauseReason(StrEnum):
    """Why an invocation is parked until somebody resumes it."""

    RETRIES_SPENT = "retries_spent"
    DIVERGED = "diverged"
    OPERATOR = "operator"
    UNDECODABLE = "undecodable"
    VALUE_LOST = "value_lost"
    TOO_MANY_RECORDS = "too_many_records"


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
    """

    invocation: bytes
    handler: str
    version: int
    key: str
    input: bytes | None = None
    idempotency: bytes | None = None
    client: bytes | None = None
    caller: Caller | None = None


@dataclass(frozen=True, slots=True)
class StepCompleted:
    """A step returned; its result is never computed again.

    Args:
        index: Place of the step in the invocation, counted from 0.
        name: Name of the step.
        result: Packed result.
        reads: State read since the record before.
        notes: Packed answers of the clock since the record before, in order.
    """

    index: int
    name: str
    result: bytes
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class StepAttemptFailed:
    """An attempt of a step failed and another follows after a delay; `attempt` counts from 1."""

    index: int
    name: str
    attempt: int
    error: Failure
    retry_after_ms: int
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step failed for good and its handler was told; that is its recorded result."""

    index: int
    name: str
    error: Failure
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Finished:
    """The whole of a short invocation, accepted and ended in one commit.

    Args:
        invocation: Raw id.
        handler: Name of the handler.
        version: Version of the handler that ran.
        input: Packed argument, None for a handler without one.
        outcome: `c` completed or `f` failed.
        idempotency: Digest of the idempotency key, if one was given.
    """

    invocation: bytes
    handler: str
    version: int
    input: bytes | None
    outcome: Literal["c", "f"]
    idempotency: bytes | None = None


@dataclass(frozen=True, slots=True)
class Scheduled:
    """It was taken in to begin later; it enters its lane when that time has come."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class Released:
    """The time of a scheduled invocation has come: it is in its lane."""


@dataclass(frozen=True, slots=True)
class MessageSent:
    """A message to an object that nobody waits for; it left in the same commit.

    Args:
        index: Place of the command in the invocation, counted from 0 with the steps.
        type_name: The object type that it goes to.
        partition: The number of the partition that it goes to.
        key: The object that it goes to.
        handler: The handler that it asks for.
        invocation: Raw id of the invocation that it asks for.
        delay_ms: How long that one is to wait before it begins.
        reads: State read since the record before.
        notes: Packed answers of the clock since the record before, in order.
    """

    index: int
    type_name: str
    partition: int
    key: str
    handler: str
    invocation: bytes
    delay_ms: int = 0
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call of another object, which left in the same commit; the invocation waits for the reply from here on.

    Args:
        index: Place of the command in the invocation, counted from 0 with the steps.
        type_name: The object type that is called.
        partition: The number of the partition that it goes to.
        key: The object that is called.
        handler: The handler that is called.
        invocation: Raw id of the called invocation.
        reads: State read since the record before.
        notes: Packed answers of the clock since the record before, in order.
    """

    index: int
    type_name: str
    partition: int
    key: str
    handler: str
    invocation: bytes
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class CallCompleted:
    """The reply to a call: the encoded outcome, which is what the call gives in every replay."""

    index: int
    outcome: bytes


@dataclass(frozen=True, slots=True)
class TimerSet:
    """The invocation sleeps from here on; when the timer is due stands with the due times of the partition."""

    index: int
    delay_ms: int
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The timer was due, by the partition's time."""

    index: int


#: The records that a replay walks through, in the order of the commands of the handler.
Command: TypeAlias = (
    StepCompleted | StepAttemptFailed | StepFailed | MessageSent | CallStarted | CallCompleted | TimerSet | TimerFired
)

Record: TypeAlias = (
    Accepted
    | StepCompleted
    | StepAttemptFailed
    | StepFailed
    | AttemptFailed
    | Paused
    | Resumed
    | Completed
    | Failed
    | Finished
    | Scheduled
    | Released
    | MessageSent
    | CallStarted
    | CallCompleted
    | TimerSet
    | TimerFired
)

# A tag is used once and for ever: a record that is given up leaves its number unused.
_ACCEPTED: Final = 1
_STEP_COMPLETED: Final = 2
_STEP_ATTEMPT_FAILED: Final = 3
_STEP_FAILED: Final = 4
_ATTEMPT_FAILED: Final = 5
_PAUSED: Final = 6
_RESUMED: Final = 7
_COMPLETED: Final = 8
_FAILED: Final = 9
_FINISHED: Final = 10
_SCHEDULED: Final = 11
_RELEASED: Final = 12
_MESSAGE_SENT: Final = 13
_CALL_STARTED: Final = 14
_CALL_COMPLETED: Final = 15
_TIMER_SET: Final = 16
_TIMER_FIRED: Final = 17


def encode(record: Record) -> bytes:
    """Return the bytes of a record."""
    return _ENCODERS[type(record)](record)


def decode(data: bytes) -> Record:
    """Return the record that bytes hold.

    Raises:
        Undecodable: They hold none.
    """
    return decode_tagged(data, _LAYOUTS, "record")


def _accepted(r: Accepted) -> bytes:
    fields = (_ACCEPTED, r.invocation, r.handler, r.version, r.key, r.input, r.idempotency, r.client)
    return pack(fields if r.caller is None else (*fields, r.caller.encode()))


def _step_completed(r: StepCompleted) -> bytes:
    return pack((_STEP_COMPLETED, r.index, r.name, r.result, dict(r.reads), r.notes))


def _step_attempt_failed(r: StepAttemptFailed) -> bytes:
    error = fields_of_failure(r.error)
    return pack((_STEP_ATTEMPT_FAILED, r.index, r.name, r.attempt, error, r.retry_after_ms, dict(r.reads), r.notes))


def _step_failed(r: StepFailed) -> bytes:
    return pack((_STEP_FAILED, r.index, r.name, fields_of_failure(r.error), dict(r.reads), r.notes))


def _attempt_failed(r: AttemptFailed) -> bytes:
    return pack((_ATTEMPT_FAILED, r.attempt, fields_of_failure(r.error), r.retry_after_ms))


def _paused(r: Paused) -> bytes:
    error = None if r.error is None else fields_of_failure(r.error)
    return pack((_PAUSED, r.reason.value, r.detail, error, r.by))


def _resumed(r: Resumed) -> bytes:
    return pack((_RESUMED, r.by, r.reason))


def _completed(r: Completed) -> bytes:
    del r
    return pack((_COMPLETED,))


def _failed(r: Failed) -> bytes:
    return pack((_FAILED, fields_of_failure(r.error)))


def _finished(r: Finished) -> bytes:
    return pack((_FINISHED, r.invocation, r.handler, r.version, r.input, r.outcome, r.idempotency))


def _scheduled(r: Scheduled) -> bytes:
    return pack((_SCHEDULED, r.delay_ms))


def _released(r: Released) -> bytes:
    del r
    return pack((_RELEASED,))


def _message_sent(r: MessageSent) -> bytes:
    target = (r.type_name, r.partition, r.key, r.handler, r.invocation)
    return pack((_MESSAGE_SENT, r.index, *target, r.delay_ms, dict(r.reads), r.notes))


def _call_started(r: CallStarted) -> bytes:
    target = (r.type_name, r.partition, r.key, r.handler, r.invocation)
    return pack((_CALL_STARTED, r.index, *target, dict(r.reads), r.notes))


def _call_completed(r: CallCompleted) -> bytes:
    return pack((_CALL_COMPLETED, r.index, r.outcome))


def _timer_set(r: TimerSet) -> bytes:
    return pack((_TIMER_SET, r.index, r.delay_ms, dict(r.reads), r.notes))


def _timer_fired(r: TimerFired) -> bytes:
    return pack((_TIMER_FIRED, r.index))


_ENCODERS: Final[Mapping[type, Callable[[Any], bytes]]] = {
    Accepted: _accepted,
    StepCompleted: _step_completed,
    StepAttemptFailed: _step_attempt_failed,
    StepFailed: _step_failed,
    AttemptFailed: _attempt_failed,
    Paused: _paused,
    Resumed: _resumed,
    Completed: _completed,
    Failed: _failed,
    Finished: _finished,
    Scheduled: _scheduled,
    Released: _released,
    MessageSent: _message_sent,
    CallStarted: _call_started,
    CallCompleted: _call_completed,
    TimerSet: _timer_set,
    TimerFired: _timer_fired,
}


_a_failure: Final = nested(FAILURE_LAYOUT)
_maybe_bytes: Final = optional(some_bytes)
_context: Final[tuple[Reader, ...]] = (map_to_bytes, sequence_of_bytes)
_target: Final[tuple[Reader, ...]] = (a_text, a_number, a_text, a_text, some_bytes)

_LAYOUTS: Final[Mapping[int, Layout[Record]]] = {
    _ACCEPTED: Layout(
        Accepted, (some_bytes, a_text, a_number, a_text, _maybe_bytes, _maybe_bytes, _maybe_bytes), (a_caller,)
    ),
    _STEP_COMPLETED: Layout(StepCompleted, (a_number, a_text, some_bytes, *_context)),
    _STEP_ATTEMPT_FAILED: Layout(StepAttemptFailed, (a_number, a_text, a_number, _a_failure, a_number, *_context)),
    _STEP_FAILED: Layout(StepFailed, (a_number, a_text, _a_failure, *_context)),
    _ATTEMPT_FAILED: Layout(AttemptFailed, (a_number, _a_failure, a_number)),
    _PAUSED: Layout(Paused, (one_of(PauseReason), a_text, optional(_a_failure), optional(a_text))),
    _RESUMED: Layout(Resumed, (a_text, a_text)),
    _COMPLETED: Layout(Completed, ()),
    _FAILED: Layout(Failed, (_a_failure,)),
    _FINISHED: Layout(Finished, (some_bytes, a_text, a_number, _maybe_bytes, text_of("c", "f"), _maybe_bytes)),
    _SCHEDULED: Layout(Scheduled, (a_number,)),
    _RELEASED: Layout(Released, ()),
    _MESSAGE_SENT: Layout(MessageSent, (a_number, *_target, a_number, *_context)),
    _CALL_STARTED: Layout(CallStarted, (a_number, *_target, *_context)),
    _CALL_COMPLETED: Layout(CallCompleted, (a_number, some_bytes)),
    _TIMER_SET: Layout(TimerSet, (a_number, a_number, *_context)),
    _TIMER_FIRED: Layout(TimerFired, (a_number,)),
}
