"""What a checkup finds: the kind of damage, what it is about, its cause, and what puts it right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

#: So many findings of one kind are kept, the others are only counted: a damaged store must not fill our memory.
KEPT_MAX: Final = 500


class Kind(StrEnum):
    """The kinds of damage; their values are stable."""

    DUE_TIME_MISSING = "due-time-missing"
    DUE_TIME_OVERDUE = "due-time-overdue"
    DUE_TIME_ORPHANED = "due-time-orphaned"
    INVOCATION_WITHOUT_LANE = "invocation-without-lane"
    INVOCATION_UNREADABLE = "invocation-unreadable"
    INVOCATION_NEVER_EXPIRES = "invocation-never-expires"
    LANE_NOT_RUNNABLE = "lane-not-runnable"
    LANE_ENTRY_ORPHANED = "lane-entry-orphaned"
    LANE_ENTRY_REPEATED = "lane-entry-repeated"
    LANE_OUT_OF_ORDER = "lane-out-of-order"
    RUNNABLE_WITHOUT_WORK = "runnable-without-work"
    PAUSED_WITHOUT_OWNER = "paused-without-owner"
    RESULT_OF_OPEN_INVOCATION = "result-of-open-invocation"
    RESULT_NEVER_EXPIRES = "result-never-expires"
    INBOX_ENTRY_REPEATED = "inbox-entry-repeated"
    INBOX_ENTRY_STUCK = "inbox-entry-stuck"
    CALL_LOST = "call-lost"
    MESSAGES_STUCK = "messages-stuck"
    MESSAGES_MISSING = "messages-missing"
    NUMBERS_DISAGREE = "message-numbers-disagree"
    NUMBERS_UNREADABLE = "message-numbers-unreadable"
    VALUE_MISSING = "large-value-missing"
    VALUE_NOT_INDEXED = "large-value-never-expires"
    STATE_UNREADABLE = "state-unreadable"
    HISTORY_OVERDUE = "history-overdue"
    AGENDA_MISSING = "agenda-missing"
    AGENDA_ORPHANED = "agenda-orphaned"
    QUEUE_ENTRY_ORPHANED = "queue-entry-orphaned"
    EFFECT_OVERDUE = "effect-overdue"
    EFFECT_WITHOUT_CODE = "effect-without-code"
    PROPOSAL_UNGUARDED = "proposal-unguarded"
    DOCKET_UNREADABLE = "docket-unreadable"
    UNDECODABLE_KEPT = "undecodable-kept"
    CLAIM_UNSETTLED = "idempotency-unsettled"
    CLAIM_UNREADABLE = "idempotency-unreadable"
    CLAIMS_NEVER_EXPIRE = "idempotency-never-expires"
    WRONG_TYPE = "wrong-type"
    FOREIGN_KEY = "foreign-key"
    OWNER_BROKEN = "owner-broken"
    SCHEMA_MISMATCH = "schema-mismatch"
    PARTITION_UNKNOWN = "partition-unknown"
    PARTITION_UNREADABLE = "partition-unreadable"
    PARTITION_WITHOUT_OWNER = "partition-without-owner"
    TYPE_WITHOUT_WORKER = "type-without-worker"
    STORE_UNSAFE = "store-unsafe"
    STORE_NEARLY_FULL = "store-nearly-full"
    WORK_IN_DOUBT = "work-in-doubt"


@dataclass(frozen=True, slots=True)
class Place:
    """What a finding is about, as far as it is about one thing.

    Args:
        object_name: The object type.
        partition: The partition's number.
        key: The object.
        invocation: Id of the invocation, as users write it.
        name: The store's key, in printable form.
    """

    object_name: str | None = None
    partition: int | None = None
    key: str | None = None
    invocation: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        """Return it in the words of the shell."""
        if self.invocation is not None:
            return f"{self.invocation} ({self.object_name} {self.key})" if self.key else self.invocation
        if self.key is not None:
            return f"{self.object_name} {self.key}"
        if self.name is not None:
            return self.name
        if self.partition is not None:
            return f"{self.object_name}:{self.partition}"
        return self.object_name or "the store"


@dataclass(frozen=True, slots=True)
class LaneRepair:
    """Its owner writes a lane's list, its place among the runnable ones and its due times as they should be.

    Args:
        object_name: The object type.
        partition: The partition's number.
        key: The lane's key.
        ids: Raw ids of invocations that belong into it.
    """

    object_name: str
    partition: int
    key: str
    ids: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedRepair:
    """Its owner looks at one thing of a partition: `what` is the field of the repair order that names it."""

    object_name: str
    partition: int
    what: str
    name: bytes


@dataclass(frozen=True, slots=True)
class InboxRepair:
    """Its owner reads the inbox again from the start."""

    object_name: str
    partition: int


@dataclass(frozen=True, slots=True)
class OwnerRepair:
    """The owner hash gets back what it lacks, by a function that checks it."""

    object_name: str
    partition: int


Repair: TypeAlias = LaneRepair | NamedRepair | InboxRepair | OwnerRepair


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation.

    Args:
        kind: Which.
        place: What it is about.
        cause: What was found, in a sentence.
        remedy: What puts it right, in a sentence.
        repair: What `--repair` does about it, None where a person has to decide.
    """

    kind: Kind
    place: Place
    cause: str
    remedy: str
    repair: Repair | None = None


@dataclass(slots=True)
class FindingBook:
    """Collects findings: each once, and of each kind so many."""

    kept: dict[Kind, dict[Place, Finding]] = field(default_factory=dict[Kind, dict[Place, Finding]])
    counts: Counter[Kind] = field(default_factory=Counter[Kind])

    def add(self, findings: Iterable[Finding | None]) -> None:
        """Take what checks have found."""
        for finding in findings:
            if finding is not None:
                self._add(finding)

    def _add(self, finding: Finding) -> None:
        kept = self.kept.setdefault(finding.kind, {})
        if finding.place in kept:
            return
        self.counts[finding.kind] += 1
        if len(kept) < KEPT_MAX:
            kept[finding.place] = finding

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Those that were kept, in the order of the kinds."""
        return tuple(finding for kind in Kind for finding in self.kept.get(kind, {}).values())

    @property
    def left_out(self) -> dict[str, int]:
        """How many of a kind were counted only."""
        return {
            kind.value: count - len(self.kept[kind])
            for kind, count in self.counts.items()
            if count > len(self.kept[kind])
        }
