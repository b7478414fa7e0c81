"""What a reader is told of an object: its state, its lane, and what happened to it last."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from .blobs import size_of
from .descriptions import ObjectPause, PartitionOwner, Pause, WaitingSignal
from .requests import RequestKind
from .standing import Status


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
        is_docket_cut: Whether it has more effects or proposals than were looked at for those two.
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
    is_docket_cut: bool = False

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
