"""The records of what a handler asks for: each has the place of a command, and a replay walks through them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeAlias

from .facts import often_made
from .outcomes import Failure
from .place import Place

#: State values that were read since the record before: name to packed value, None where there was none.
Reads: TypeAlias = Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What the answer of a model took.

    Args:
        model: The model that answered.
        input_tokens: How many tokens it was given.
        output_tokens: How many it gave.
        cost: What that cost; None where nobody said.
        currency: Of the cost.
        lost: Calls before this one for the same answer whose end nobody knows: each may have been billed as well.
    """

    model: str
    input_tokens: int
    output_tokens: int
    cost: Decimal | None
    currency: str
    lost: int = 0


@often_made
@dataclass(frozen=True, slots=True)
class StepCompleted:
    """A step returned; its result is never computed again.

    Args:
        index: Place of the step in the invocation, counted from 0.
        name: Name of the step.
        result: Packed result.
        reads: State read since the record before.
        notes: Packed answers of the clock since the record before, in order.
        usage: What the answer of a model took, where the step asked one.
    """

    index: Place
    name: str
    result: bytes
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()
    usage: ModelUsage | None = None


@dataclass(frozen=True, slots=True)
class ModelCallBegun:
    """A model is about to be asked: written before each call, since each may be billed whatever becomes of its answer.

    Args:
        index: Place of the step in the invocation.
        name: Name of the step.
        call: Which call of this step it is, counted from 1.
        model: The model that is asked.
        digest: Digest of what it is asked.
        lost: How many of the calls before have no known end.
        reads: State read since the record before.
        notes: Packed answers of the clock since the record before, in order.
    """

    index: Place
    name: str
    call: int
    model: str
    digest: bytes
    lost: int = 0
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class StepAttemptFailed:
    """An attempt of a step failed and another follows after a delay; `attempt` counts from 1."""

    index: Place
    name: str
    attempt: int
    error: Failure
    retry_after_ms: int
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step failed for good and its handler was told; that is its recorded result."""

    index: Place
    name: str
    error: Failure
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()


@often_made
@dataclass(frozen=True, slots=True)
class MessageSent:
    """A message to an object that nobody waits for; it left in the same commit.

    Args:
        index: Place of the command in the invocation, counted from 0 with the steps; in a branch, with the way there.
        type_name: The object type that it goes to.
        partition: The number of the partition that it goes to.
        key: The object that it goes to.
        handler: The handler that it asks for.
        invocation: Raw id of the invocation that it asks for.
        delay_ms: How long that one is to wait before it begins.
        reads: State read since the record before.
        notes: Packed answers of the clock since the record before, in order.
    """

    index: Place
    type_name: str
    partition: int
    key: str
    handler: str
    invocation: bytes
    delay_ms: int = 0
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()


@often_made
@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call of another object, which left in the same commit; the invocation waits for the reply from here on.

    The wait for an invocation that somebody else asked for is written down as a call too, without key and handler.

    Args:
        index: Place of the command in the invocation, counted from 0 with the steps; in a branch, with the way there.
        type_name: The object type that is called.
        partition: The number of the partition that it goes to.
        key: The object that is called; empty for the wait for an invocation.
        handler: The handler that is called; likewise.
        invocation: Raw id of the called invocation.
        reads: State read since the record before.
        notes: Packed answers of the clock since the record before, in order.
        releases: Whether the invocation leaves its lane to others meanwhile.
    """

    index: Place
    type_name: str
    partition: int
    key: str
    handler: str
    invocation: bytes
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()
    releases: bool = False

    @property
    def is_of_a_handler(self) -> bool:
        """Whether it asked for an invocation of its own: neither a signal nor the end of one asked for elsewhere."""
        return self.handler[:1] not in ("", "(")

    @property
    def is_attached(self) -> bool:
        """Whether it waits for an invocation that it did not ask for."""
        return not self.handler


@often_made
@dataclass(frozen=True, slots=True)
class CallCompleted:
    """The reply to a call: the encoded outcome, which is what the call gives in every replay."""

    index: Place
    outcome: bytes


@often_made
@dataclass(frozen=True, slots=True)
class TimerSet:
    """The invocation sleeps from here on; when the timer is due stands with the due times of the partition."""

    index: Place
    delay_ms: int
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()
    releases: bool = False


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The timer was due, by the partition's time."""

    index: Place


@dataclass(frozen=True, slots=True)
class AwakeableMade:
    """An id was given out under which outside code completes something; the id follows from the place."""

    index: Place
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()


@often_made
@dataclass(frozen=True, slots=True)
class WaitStarted:
    """The invocation waits from here on for a signal, or for the completion of an awakeable.

    Args:
        index: Place of the command in the invocation.
        name: Name of the signal; empty for an awakeable.
        awakeable: Place at which the awakeable was made; None for a signal.
        timeout_ms: How long it waits at most; None for as long as it takes.
        reads: State read since the record before.
        notes: Packed answers of the clock since the record before, in order.
        releases: Whether the invocation leaves its lane to others meanwhile.
    """

    index: Place
    name: str
    awakeable: Place | None = None
    timeout_ms: int | None = None
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()
    releases: bool = False


@often_made
@dataclass(frozen=True, slots=True)
class WaitCompleted:
    """What was waited for came, or was there already, in which case no record that begins the wait goes before.

    Args:
        index: Place of the command in the invocation.
        message: Id of the message that brought the value.
        value: The encoded outcome: a value, or the failure with which somebody has rejected the awakeable.
        by: Who sent it, as far as they said.
        reads: State read since the record before, where the handler took it up itself.
        notes: Packed answers of the clock, likewise.
        of_object: Whether it was a signal to the object.
    """

    index: Place
    message: bytes
    value: bytes
    by: str = ""
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()
    of_object: bool = False


@dataclass(frozen=True, slots=True)
class WaitExpired:
    """What was waited for did not come in time."""

    index: Place


@dataclass(frozen=True, slots=True)
class WaitWithdrawn:
    """What was waited for is waited for no longer, since something else came first; it leaves nothing behind.

    Where it had come already, and no handler had seen it, it is given back: the next wait of its name gets it.
    """

    index: Place
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()


@often_made
@dataclass(frozen=True, slots=True)
class EffectStarted:
    """The invocation waits from here on for the outcome of an effect; the effect itself lies with its object.

    Its intent is written in the same commit, unless the object has this effect already. `WaitCompleted` ends it. One
    that only settles asks for nothing: it waits for what becomes of an effect that is to be undone.

    Args:
        index: Place of the command in the invocation.
        operation: The operation id, as the handler wrote it.
        effect: Name of the effect.
        receiver: Name of the receiver.
        digest: Digest of the parameters.
        reads: State read since the record before.
        notes: Packed answers of the clock since the record before, in order.
        releases: Whether the invocation leaves its lane to others meanwhile.
        settles: Whether nothing is asked for: the effect is to be undone if it was done.
    """

    index: Place
    operation: str
    effect: str
    receiver: str
    digest: bytes
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()
    releases: bool = False
    settles: bool = False


@dataclass(frozen=True, slots=True)
class Proposed:
    """Something was proposed that people decide on; the proposal itself lies with its object.

    Args:
        index: Place of the command in the invocation.
        action: What is to be done.
        version: How many proposals of this action the object has had, this one included.
        value: The packed proposal, as the handler gets it.
        reads: State read since the record before.
        notes: Packed answers of the clock since the record before, in order.
    """

    index: Place
    action: str
    version: int
    value: bytes
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class ApprovalAwaited:
    """The invocation waits from here on for the decision on a proposal of its object. `WaitCompleted` ends it.

    Args:
        index: Place of the command in the invocation.
        action: What was proposed.
        version: Which proposal of this action.
        reads: State read since the record before.
        notes: Packed answers of the clock since the record before, in order.
        releases: Whether the invocation leaves its lane to others meanwhile.
    """

    index: Place
    action: str
    version: int
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()
    releases: bool = False


@dataclass(frozen=True, slots=True)
class CancelDelivered:
    """The handler was told that it is cancelled, in place of a command or of the end of a wait."""

    index: Place
    reads: Reads = field(default_factory=dict[str, bytes | None])
    notes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class CompensationStarted:
    """The handler is through, and what it did is being undone, last thing first; nothing else of it counts any more.

    Args:
        index: Place at which the handler ended, which is that of the first undo.
        undos: Names of what is undone, in the order in which they were registered.
        error: With what the handler failed; None where it was cancelled.
    """

    index: Place
    undos: tuple[str, ...] = ()
    error: Failure | None = None


@dataclass(frozen=True, slots=True)
class CompensationSkipped:
    """Somebody gave up an undo that failed; the invocation ends with the flag that says so.

    Args:
        index: Place of the undo in the invocation; behind that of its last attempt where that was a rejected effect.
        name: Name of the undo.
        by: Who gave it up.
        reason: Why.
    """

    index: Place
    name: str
    by: str
    reason: str


#: The records that a replay walks through, in the order of the commands of the handler.
Command: TypeAlias = (
    StepCompleted
    | StepAttemptFailed
    | StepFailed
    | ModelCallBegun
    | MessageSent
    | CallStarted
    | CallCompleted
    | TimerSet
    | TimerFired
    | AwakeableMade
    | WaitStarted
    | WaitCompleted
    | WaitExpired
    | WaitWithdrawn
    | EffectStarted
    | Proposed
    | ApprovalAwaited
    | CancelDelivered
    | CompensationStarted
    | CompensationSkipped
)

#: The commands' records that carry no reads: they are made outside of the handler's run, or about something it does not
#: know of.
Bare: TypeAlias = CallCompleted | TimerFired | WaitExpired | CompensationStarted | CompensationSkipped
