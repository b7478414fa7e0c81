"""What a reader is told of an invocation and of an object: facts for people and programs, read at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from .blobs import size_of
from .command_records import ModelUsage
from .model_calls import ModelSpending
from .outcomes import Failure
from .place import Place as CommandPlace
from .records import PauseReason
from .requests import RequestKind
from .standing import Status


class Place(StrEnum):
    """Where an invocation was found."""

    INBOX = "inbox"
    JOURNAL = "journal"
    RESULT = "result"
    NOWHERE = "nowhere"


class ResultKind(StrEnum):
    """What a kept result says."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUSED = "refused"
    REPLAYED = "replayed"
    CANCELLED = "cancelled"
    KILLED = "killed"
    UNDECODABLE = "undecodable"


@dataclass(frozen=True, slots=True)
class KeptResult:
    """The outcome that is kept for those who ask.

    Args:
        kind: What it says.
        size_bytes: How large it is.
        expires_at: When it goes, by the store's clock.
        code: Code of the error of a failure or a refusal.
        message: Its text.
        first: Id of the invocation whose result counts, where an idempotency key was known already.
    """

    kind: ResultKind
    size_bytes: int
    expires_at: datetime | None = None
    code: str | None = None
    message: str | None = None
    first: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A step as far as it is recorded.

    Args:
        index: Its place in the invocation, from 0.
        name: Its name.
        at: When its last record was written.
        is_settled: Whether it has a result, or failed for good.
        failed_attempts: Recorded attempts that failed, since acceptance.
        size_bytes: Size of its packed result, None where it has none.
        error: Its last error.
        usage: What the answer of a model took, where the step asked one and has it.
    """

    index: CommandPlace
    name: str
    at: datetime
    is_settled: bool
    failed_attempts: int = 0
    size_bytes: int | None = None
    error: Failure | None = None
    usage: ModelUsage | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Why an invocation is parked, since when, and who has to decide.

    Args:
        reason: Why.
        detail: What a person needs to know.
        since: When it was parked.
        by: Who parked it, None for the runtime itself.
        in_charge: Who is in charge of the object type, None where nobody has said so.
    """

    reason: PauseReason
    detail: str
    since: datetime
    by: str | None
    in_charge: str | None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Who has asked for the end of an invocation.

    Args:
        by: Who; empty where that was not said.
        reason: Why, likewise.
        at: When its owner took it in.
        is_delivered: Whether its handler was told; else it is at its next durable point.
    """

    by: str
    reason: str
    at: datetime
    is_delivered: bool


@dataclass(frozen=True, slots=True)
class ObjectPause:
    """Who has stopped the exclusive work of an object, or of its whole type, and why.

    Args:
        scope: `object` or `type`.
        by: Who.
        reason: Why.
        since: Since when.
        in_charge: Who is in charge of the object type, None where nobody has said so.
    """

    scope: str
    by: str
    reason: str
    since: datetime
    in_charge: str | None

    def __str__(self) -> str:
        """Return the pause in words."""
        return f"{self.scope} paused by {self.by} since {self.since:%Y-%m-%d %H:%M:%S} UTC: {self.reason}"


@dataclass(frozen=True, slots=True)
class LaneHolder:
    """Who holds the lane that an invocation waits for, since when, and for what.

    Args:
        id: Id of the invocation that holds it.
        handler: Its handler, None where its acceptance can't be read.
        since: Since when it holds the lane.
        why: What it does or waits for, in words.
    """

    id: str
    handler: str | None
    since: datetime | None
    why: str

    def __str__(self) -> str:
        """Return it in words."""
        since = "" if self.since is None else f" since {self.since:%Y-%m-%d %H:%M:%S} UTC"
        return f"the lane is held{since} by {self.id}, which {self.why}"


@dataclass(frozen=True, slots=True)
class PartitionOwner:
    """Who owns a partition, as its owner key says.

    Args:
        worker: The worker that holds it, or held it last; None where nobody ever did.
        machine: Where that worker runs, as it describes it itself.
        epoch: Raised with each owner.
        lease: The counter that the holder raises while it lives.
        is_released: Whether the holder has handed it over.
        doubt_from: Where the span begins in which records may be missing; None where none is known to be.
        doubt_until: Where it ends.
        doubt_why: Why: `lost`, `doubt` or `restored`.
        losses: How often the store had less than its owner knew of.
    """

    worker: str | None = None
    machine: str | None = None
    epoch: int | None = None
    lease: int = 0
    is_released: bool = False
    doubt_from: datetime | None = None
    doubt_until: datetime | None = None
    doubt_why: str | None = None
    losses: int = 0

    @property
    def holder(self) -> str | None:
        """The worker that holds the partition as far as the store knows; a dead one is found by its lease."""
        return None if self.is_released else self.worker


@dataclass(frozen=True, slots=True)
class WaitingSignal:
    """A signal that came before anybody waited for it.

    Args:
        name: Its name.
        at: When it came.
        by: Who sent it, as far as they said.
        size_bytes: How large its value is.
    """

    name: str
    at: datetime
    by: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class InvocationDescription:
    """What is known of one invocation.

    Args:
        id: Its id.
        object_name: The object type.
        partition: The partition's number.
        place: Where it was found.
        read_at: The partition's time when this was read.
        owner: Who owns its partition.
        status: In the words that users see; None for one that never ran, and for one that nothing is known of.
        note: What there is to say of it beside the facts; always something when nothing is known.
        key: The object, None where only the result is kept.
        handler: The handler, likewise.
        version: Version of the handler at acceptance.
        asked_at: When the request was put into the inbox, while it lies there.
        accepted_at: When the owner took it in.
        ended_at: When it reached its end.
        failed_attempts: Failed attempts of the handler since acceptance or the last resumption.
        records: How many records were read.
        steps: Its steps, in order.
        error: The last error of the handler or of a step.
        pause: Why it is parked, while it is.
        cancel: Who has asked for its end, and whether its handler was told; None where nobody has.
        compensation_failed: Whether something that was to be undone was not.
        retry_due_at: When the next attempt, the end of its sleep, or its own begin is due, while one is waited for.
        waits_for: What it waits for, in words: the reply of another object, or the end of its sleep.
        result: The outcome, while it is kept.
        undecodable: Which record can't be read, and why.
        is_cut: Whether there are more records than were read.
        signals: Signals to it that it has not waited for yet, in order.
        has_released_lane: Whether it has left its lane to others while it waits.
        behind: Who holds the lane that it waits for, where it is another one.
        pauses: What stops the exclusive work of its object.
        models: What its model calls took, None where it has made none.
    """

    id: str
    object_name: str
    partition: int
    place: Place
    read_at: datetime
    owner: PartitionOwner
    status: Status | None = None
    note: str = ""
    key: str | None = None
    handler: str | None = None
    version: int | None = None
    asked_at: datetime | None = None
    accepted_at: datetime | None = None
    ended_at: datetime | None = None
    failed_attempts: int = 0
    records: int = 0
    steps: tuple[Step, ...] = ()
    error: Failure | None = None
    pause: Pause | None = None
    cancel: Cancel | None = None
    compensation_failed: bool = False
    retry_due_at: datetime | None = None
    waits_for: str | None = None
    result: KeptResult | None = None
    undecodable: str | None = None
    is_cut: bool = False
    signals: tuple[WaitingSignal, ...] = ()
    has_released_lane: bool = False
    behind: LaneHolder | None = None
    pauses: tuple[ObjectPause, ...] = ()
    models: ModelSpending | None = None

    @property
    def is_known(self) -> bool:
        """Whether anything is known of it."""
        return self.place is not Place.NOWHERE


@dataclass(frozen=True, slots=True)
class StateValue:
    """A state value as it is written down.

    Args:
        name: Its name.
        packed: Its bytes; those of a reference where the value's own are not shown.
        left_out: Why the value's own bytes are not shown, None where they are.
    """

    name: str
    packed: bytes
    left_out: str | None = None

    @property
    def size_bytes(self) -> int:
        """How large it is."""
        return size_of(self.packed)


@dataclass(frozen=True, slots=True)
class OpenInvocation:
    """An invocation of an object that has not ended.

    Args:
        id: Its id.
        status: As its newest record says; None where no record of it can be read.
        why: What it does, or waits for, in words.
        handler: The handler, None where its acceptance can't be read.
        accepted_at: When the owner took it in.
        failed_attempts: Failed attempts of what is tried now.
        retry_due_at: When the next attempt is due, while one is waited for.
        pause: Why it is parked, while it is.
        has_released_lane: Whether it has left its lane to others while it waits.
    """

    id: str
    status: Status | None
    why: str
    handler: str | None = None
    accepted_at: datetime | None = None
    failed_attempts: int = 0
    retry_due_at: datetime | None = None
    pause: Pause | None = None
    has_released_lane: bool = False


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request for an object that lies in the inbox: no owner has dealt with it yet."""

    id: str
    kind: RequestKind
    handler: str
    asked_at: datetime
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LaneDescription:
    """Who holds a lane, who waits in it, and who waits in front of it.

    Args:
        open: The open invocations in order of intake, the holder first; those that end within a moment never show.
        length: How many there are; more than were read where it is larger than `open`.
        is_runnable: Whether the owner has something to run in it.
        held_since: Since when the first one holds it.
        parked: Invocations that have let others go on: parked ones, and those that have released the lane while they
            wait, as far as the newest history names them.
        waiting: Requests in the inbox.
        inbox_length: How many entries the inbox of the partition has, for all of its objects.
        inbox_read: How many of them were looked at.
        pauses: What stops the exclusive work of the object: a pause of its type, one of its own, or both.
    """

    open: tuple[OpenInvocation, ...] = ()
    length: int = 0
    is_runnable: bool = False
    held_since: datetime | None = None
    parked: tuple[OpenInvocation, ...] = ()
    waiting: tuple[WaitingRequest, ...] = ()
    inbox_length: int = 0
    inbox_read: int = 0
    pauses: tuple[ObjectPause, ...] = ()

    @property
    def holder(self) -> OpenInvocation | None:
        """The invocation that holds the lane."""
        return self.open[0] if self.open else None


class What(StrEnum):
    """What happened, in the timeline of an object."""

    ACCEPTED = "accepted"
    STEP = "step"
    STEP_RETRY = "step attempt failed"
    STEP_FAILED = "step failed"
    MODEL_CALL = "model call"
    RETRY = "attempt failed"
    PAUSED = "paused"
    RESUMED = "resumed"
    STATE = "state"
    SCHEDULED = "scheduled"
    RELEASED = "released"
    SENT = "sent"
    CALLED = "called"
    REPLIED = "replied"
    SLEEPS = "sleeps"
    WOKE = "woke"
    AWAKEABLE = "awakeable made"
    WAITS = "waits"
    RECEIVED = "received"
    GOT = "got"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    CANCEL_REQUESTED = "cancel requested"
    CANCEL_DELIVERED = "cancel delivered"
    COMPENSATING = "compensating"
    UNDO_SKIPPED = "undo skipped"
    PATCHED = "patched"
    RESTARTED = "restarted"
    EFFECT = "effect"
    PROPOSED = "proposed"
    AWAITS_DECISION = "awaits decision"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    KILLED = "killed"
    SHRUNK = "shrunk"
    MIGRATED = "migrated"
    UNDECODABLE = "undecodable"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to an object.

    Args:
        at: When, by the partition's clock.
        what: What happened.
        size_bytes: How many bytes it takes in the store, without what the store adds.
        invocation: Id of the invocation that it happened to, None where that can't be read or there is none.
        name: Name of the handler or of the step.
        detail: What else there is to know.
        wrote: Names of the state values that were written with it.
        cleared: Names of the state values that were cleared with it.
        is_snapshot: Whether the whole state was written with it.
    """

    at: datetime
    what: What
    size_bytes: int
    invocation: str | None = None
    name: str = ""
    detail: str = ""
    wrote: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()
    is_snapshot: bool = False


@dataclass(frozen=True, slots=True)
class OpenEffect:
    """An effect of an object that is not settled.

    Args:
        operation: The operation id, as its handler wrote it.
        effect: Name of the effect.
        receiver: Name of the receiver.
        state: Where it stands.
        since: Since when.
        why: What is known, in words.
        due: When something is to be done about it; of one that lies with people, until when they have to settle it.
        assigned: Who has to settle it, where it was handed over.
    """

    operation: str
    effect: str
    receiver: str
    state: str
    since: datetime
    why: str
    due: datetime | None = None
    assigned: str = ""

    def __str__(self) -> str:
        """Return it in words."""
        due = "" if self.due is None else f", due {self.due:%Y-%m-%d %H:%M:%S} UTC"
        whose = f", with {self.assigned}" if self.assigned else ""
        why = f": {self.why}" if self.why else ""
        since = f"{self.since:%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.receiver}.{self.effect} {self.operation!r} is {self.state} since {since}{why}{whose}{due}"


@dataclass(frozen=True, slots=True)
class OpenProposal:
    """A proposal of an object that waits for a decision, or for its approval to be used.

    Args:
        name: Its action and version, as `refund.3`.
        state: `open` or `approved`.
        since: Since when.
        approvals: How many have approved.
        quorum: How many have to.
        expires: Until when it can be approved, and its approval used.
    """

    name: str
    state: str
    since: datetime
    approvals: int
    quorum: int
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class ObjectDescription:
    """What is known of one object.

    Args:
        object_name: The object type.
        key: The object.
        partition: The partition's number.
        read_at: The partition's time when this was read.
        owner: Who owns the partition.
        in_charge: Who is in charge of the object type, None where nobody has said so.
        state: The durable state, by name.
        state_problem: Why the state is not known, None where it is.
        lane: Who holds the lane and who waits.
        timeline: What happened last, the newest at the end.
        is_timeline_cut: Whether there is older history than was read.
        state_version: The version of the object type's state that the state was written by.
        signals: Signals to it that none of its invocations has waited for yet, in order.
        effects: Its effects that are not settled.
        proposals: Its proposals that are open, or approved and not used.
    """

    object_name: str
    key: str
    partition: int
    read_at: datetime
    owner: PartitionOwner
    in_charge: str | None = None
    state: tuple[StateValue, ...] = ()
    state_problem: str | None = None
    lane: LaneDescription = field(default_factory=LaneDescription)
    timeline: tuple[Event, ...] = ()
    is_timeline_cut: bool = False
    state_version: int = 1
    signals: tuple[WaitingSignal, ...] = ()
    effects: tuple[OpenEffect, ...] = ()
    proposals: tuple[OpenProposal, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether anything was ever asked of it that is still kept."""
        lane = self.lane
        return bool(
            self.timeline
            or lane.open
            or lane.waiting
            or self.state
            or self.state_problem
            or self.signals
            or self.effects
        )
