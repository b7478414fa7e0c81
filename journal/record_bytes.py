"""How records lie in the store: the tag of each, and its fields in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from .command_records import (
    ApprovalAwaited,
    AwakeableMade,
    CallCompleted,
    CallStarted,
    CancelDelivered,
    CompensationSkipped,
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
    WaitCompleted,
    WaitExpired,
    WaitStarted,
    WaitWithdrawn,
)
from .fields import (
    Layout,
    Reader,
    a_flag,
    a_number,
    a_text,
    decode_tagged,
    map_to_bytes,
    nested,
    one_of,
    optional,
    pack,
    sequence_of,
    sequence_of_bytes,
    some_bytes,
    text_of,
)
from .messages import a_caller
from .model_calls import USAGE_LAYOUT, fields_of_usage
from .outcomes import FAILURE_LAYOUT, fields_of_failure
from .place import a_place
from .records import (
    Accepted,
    AttemptFailed,
    Cancelled,
    CancelRequested,
    Completed,
    Failed,
    Finished,
    Killed,
    PatchMarked,
    Paused,
    PauseReason,
    Record,
    Released,
    Restarted,
    Resumed,
    Scheduled,
    SignalReceived,
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
_AWAKEABLE_MADE: Final = 18
_WAIT_STARTED: Final = 19
_WAIT_COMPLETED: Final = 20
_WAIT_EXPIRED: Final = 21
_SIGNAL_RECEIVED: Final = 22
_WAIT_WITHDRAWN: Final = 23
_CANCEL_REQUESTED: Final = 24
_CANCEL_DELIVERED: Final = 25
_CANCELLED: Final = 26
_KILLED: Final = 27
_COMPENSATION_STARTED: Final = 28
_COMPENSATION_SKIPPED: Final = 29
_PATCH_MARKED: Final = 30
_RESTARTED: Final = 31
_EFFECT_STARTED: Final = 32
_PROPOSED: Final = 33
_APPROVAL_AWAITED: Final = 34
_MODEL_CALL_BEGUN: Final = 35


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
    caller = None if r.caller is None else r.caller.encode()
    if r.trace is not None:
        return pack((*fields, caller, r.trace))
    return pack(fields if caller is None else (*fields, caller))


def _step_completed(r: StepCompleted) -> bytes:
    fields = (_STEP_COMPLETED, r.index, r.name, r.result, dict(r.reads), r.notes)
    return pack(fields if r.usage is None else (*fields, fields_of_usage(r.usage)))


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
    fields = (_CALL_STARTED, r.index, *target, dict(r.reads), r.notes)
    return pack((*fields, True) if r.releases else fields)


def _call_completed(r: CallCompleted) -> bytes:
    return pack((_CALL_COMPLETED, r.index, r.outcome))


def _timer_set(r: TimerSet) -> bytes:
    fields = (_TIMER_SET, r.index, r.delay_ms, dict(r.reads), r.notes)
    return pack((*fields, True) if r.releases else fields)


def _timer_fired(r: TimerFired) -> bytes:
    return pack((_TIMER_FIRED, r.index))


def _awakeable_made(r: AwakeableMade) -> bytes:
    return pack((_AWAKEABLE_MADE, r.index, dict(r.reads), r.notes))


def _wait_started(r: WaitStarted) -> bytes:
    fields = (_WAIT_STARTED, r.index, r.name, r.awakeable, r.timeout_ms, dict(r.reads), r.notes)
    return pack((*fields, True) if r.releases else fields)


def _wait_completed(r: WaitCompleted) -> bytes:
    fields = (_WAIT_COMPLETED, r.index, r.message, r.value, r.by, dict(r.reads), r.notes)
    return pack((*fields, True) if r.of_object else fields)


def _wait_expired(r: WaitExpired) -> bytes:
    return pack((_WAIT_EXPIRED, r.index))


def _signal_received(r: SignalReceived) -> bytes:
    return pack((_SIGNAL_RECEIVED, r.name, r.awakeable, r.message, r.value, r.by))


def _wait_withdrawn(r: WaitWithdrawn) -> bytes:
    return pack((_WAIT_WITHDRAWN, r.index, dict(r.reads), r.notes))


def _cancel_requested(r: CancelRequested) -> bytes:
    return pack((_CANCEL_REQUESTED, r.request, r.by, r.reason, r.cascades))


def _cancel_delivered(r: CancelDelivered) -> bytes:
    return pack((_CANCEL_DELIVERED, r.index, dict(r.reads), r.notes))


def _cancelled(r: Cancelled) -> bytes:
    return pack((_CANCELLED, r.by, r.reason))


def _killed(r: Killed) -> bytes:
    return pack((_KILLED, r.by, r.reason))


def _compensation_started(r: CompensationStarted) -> bytes:
    error = None if r.error is None else fields_of_failure(r.error)
    return pack((_COMPENSATION_STARTED, r.index, r.undos, error))


def _compensation_skipped(r: CompensationSkipped) -> bytes:
    return pack((_COMPENSATION_SKIPPED, r.index, r.name, r.by, r.reason))


def _patch_marked(r: PatchMarked) -> bytes:
    return pack((_PATCH_MARKED, r.name))


def _restarted(r: Restarted) -> bytes:
    return pack((_RESTARTED, r.kept, r.by, r.reason, r.version))


def _effect_started(r: EffectStarted) -> bytes:
    fields = (_EFFECT_STARTED, r.index, r.operation, r.effect, r.receiver, r.digest, dict(r.reads), r.notes)
    if r.settles:
        return pack((*fields, r.releases, True))
    return pack((*fields, True) if r.releases else fields)


def _proposed(r: Proposed) -> bytes:
    return pack((_PROPOSED, r.index, r.action, r.version, r.value, dict(r.reads), r.notes))


def _approval_awaited(r: ApprovalAwaited) -> bytes:
    fields = (_APPROVAL_AWAITED, r.index, r.action, r.version, dict(r.reads), r.notes)
    return pack((*fields, True) if r.releases else fields)


def _model_call_begun(r: ModelCallBegun) -> bytes:
    return pack((_MODEL_CALL_BEGUN, r.index, r.name, r.call, r.model, r.digest, r.lost, dict(r.reads), r.notes))


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
    AwakeableMade: _awakeable_made,
    WaitStarted: _wait_started,
    WaitCompleted: _wait_completed,
    WaitExpired: _wait_expired,
    SignalReceived: _signal_received,
    WaitWithdrawn: _wait_withdrawn,
    CancelRequested: _cancel_requested,
    CancelDelivered: _cancel_delivered,
    Cancelled: _cancelled,
    Killed: _killed,
    CompensationStarted: _compensation_started,
    CompensationSkipped: _compensation_skipped,
    PatchMarked: _patch_marked,
    Restarted: _restarted,
    EffectStarted: _effect_started,
    Proposed: _proposed,
    ApprovalAwaited: _approval_awaited,
    ModelCallBegun: _model_call_begun,
}


_a_failure: Final = nested(FAILURE_LAYOUT)
_maybe_bytes: Final = optional(some_bytes)
_maybe_place: Final = optional(a_place)
_context: Final[tuple[Reader, ...]] = (map_to_bytes, sequence_of_bytes)
_target: Final[tuple[Reader, ...]] = (a_text, a_number, a_text, a_text, some_bytes)

_LAYOUTS: Final[Mapping[int, Layout[Record]]] = {
    _ACCEPTED: Layout(
        Accepted,
        (some_bytes, a_text, a_number, a_text, _maybe_bytes, _maybe_bytes, _maybe_bytes),
        (a_caller, _maybe_bytes),
    ),
    _STEP_COMPLETED: Layout(StepCompleted, (a_place, a_text, some_bytes, *_context), (optional(nested(USAGE_LAYOUT)),)),
    _STEP_ATTEMPT_FAILED: Layout(StepAttemptFailed, (a_place, a_text, a_number, _a_failure, a_number, *_context)),
    _STEP_FAILED: Layout(StepFailed, (a_place, a_text, _a_failure, *_context)),
    _ATTEMPT_FAILED: Layout(AttemptFailed, (a_number, _a_failure, a_number)),
    _PAUSED: Layout(Paused, (one_of(PauseReason), a_text, optional(_a_failure), optional(a_text))),
    _RESUMED: Layout(Resumed, (a_text, a_text)),
    _COMPLETED: Layout(Completed, ()),
    _FAILED: Layout(Failed, (_a_failure,)),
    _FINISHED: Layout(
        Finished, (some_bytes, a_text, a_number, _maybe_bytes, text_of("c", "f", "x", "k"), _maybe_bytes)
    ),
    _SCHEDULED: Layout(Scheduled, (a_number,)),
    _RELEASED: Layout(Released, ()),
    _MESSAGE_SENT: Layout(MessageSent, (a_place, *_target, a_number, *_context)),
    _CALL_STARTED: Layout(CallStarted, (a_place, *_target, *_context), (a_flag,)),
    _CALL_COMPLETED: Layout(CallCompleted, (a_place, some_bytes)),
    _TIMER_SET: Layout(TimerSet, (a_place, a_number, *_context), (a_flag,)),
    _TIMER_FIRED: Layout(TimerFired, (a_place,)),
    _AWAKEABLE_MADE: Layout(AwakeableMade, (a_place, *_context)),
    _WAIT_STARTED: Layout(WaitStarted, (a_place, a_text, _maybe_place, optional(a_number), *_context), (a_flag,)),
    _WAIT_COMPLETED: Layout(WaitCompleted, (a_place, some_bytes, some_bytes, a_text, *_context), (a_flag,)),
    _WAIT_EXPIRED: Layout(WaitExpired, (a_place,)),
    _SIGNAL_RECEIVED: Layout(SignalReceived, (a_text, _maybe_place, some_bytes, some_bytes, a_text)),
    _WAIT_WITHDRAWN: Layout(WaitWithdrawn, (a_place, *_context)),
    _CANCEL_REQUESTED: Layout(CancelRequested, (some_bytes, a_text, a_text, a_flag)),
    _CANCEL_DELIVERED: Layout(CancelDelivered, (a_place, *_context)),
    _CANCELLED: Layout(Cancelled, (a_text, a_text)),
    _KILLED: Layout(Killed, (a_text, a_text)),
    _COMPENSATION_STARTED: Layout(CompensationStarted, (a_place, sequence_of(a_text), optional(_a_failure))),
    _COMPENSATION_SKIPPED: Layout(CompensationSkipped, (a_place, a_text, a_text, a_text)),
    _PATCH_MARKED: Layout(PatchMarked, (a_text,)),
    _RESTARTED: Layout(Restarted, (a_number, a_text, a_text, optional(a_number))),
    _EFFECT_STARTED: Layout(EffectStarted, (a_place, a_text, a_text, a_text, some_bytes, *_context), (a_flag, a_flag)),
    _PROPOSED: Layout(Proposed, (a_place, a_text, a_number, some_bytes, *_context)),
    _APPROVAL_AWAITED: Layout(ApprovalAwaited, (a_place, a_text, a_number, *_context), (a_flag,)),
    _MODEL_CALL_BEGUN: Layout(ModelCallBegun, (a_place, a_text, a_number, a_text, some_bytes, a_number, *_context)),
}
