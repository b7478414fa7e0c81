"""What a reader is told of an invocation: facts for people and programs, read at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from .command_records import ModelUsage
from .model_calls import ModelSpending
from .outcomes import Failure
from .place import Place as CommandPlace
from .records import PauseReason
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
