"""The report of a checkup: facts for people and programs. Its form is stable; fields are only ever added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from .facts import Backlog, LeaseHealth
from .findings import Finding, LaneRepair, Place
from .watching import WorkerSeen

#: Raised when a field changes its meaning.
FORM: Final = 1

#: Fields of the owner hash that a report shows.
OWNER_FIELDS: Final = ("history", "server", "losses", "lost", "doubt", "doubt_from", "doubt_until")


@dataclass(frozen=True, slots=True)
class ServerReport:
    """The server, in its own words and in ours.

    Args:
        name: Redis or Valkey.
        version: Its version.
        promise: What its settings keep safe, in one sentence; of several servers, what the weakest of them does.
        stream_cost: What a small stream costs there, in one sentence.
        advice: What its settings cost without being unsafe.
        used_memory_bytes: Memory in use.
        max_memory_bytes: The limit, 0 for none.
        eviction: Its eviction policy.
        appendfsync: When it syncs its file, None where it does not tell or has none.
        replicas: Replicas that are connected.
        libraries: Function libraries of ours that it has.
        address: Where it is, None for the only one.
        memory_ratio: The part of the limit that is in use, as owners count it; 0 without a limit.
        memory_limit_ratio: The part at which owners take nothing more in.
    """

    name: str
    version: str
    promise: str
    stream_cost: str
    advice: tuple[str, ...]
    used_memory_bytes: int
    max_memory_bytes: int
    eviction: str
    appendfsync: str | None
    replicas: int
    libraries: tuple[str, ...]
    address: str | None = None
    memory_ratio: float = 0.0
    memory_limit_ratio: float = 0.9

    @property
    def place(self) -> Place:
        """What a finding about it is about."""
        return Place(name=self.address)


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """A partition: its owner as it was watched, what lies in it, and what its owner hash says of its history."""

    object_name: str
    number: int
    health: LeaseHealth
    backlog: Backlog
    owner: Mapping[str, str] = field(default_factory=dict[str, str])


def owner_words(owner: Mapping[str, str]) -> dict[str, str]:
    """Return what an owner hash says of a partition's history: which one it is, on which server, what was lost."""
    return {name: owner[name] for name in OWNER_FIELDS if name in owner}


@dataclass(frozen=True, slots=True)
class HeldLane:
    """A lane whose holder waits for something.

    Args:
        object_name: The object type.
        partition: The partition's number.
        key: The object.
        holder: Id of the invocation that holds it.
        status: How that one stands.
        why: What it waits for, in the words of `describe` and `inspect`.
        since: When its newest record was written.
        behind: How many wait behind it.
        first_behind: Ids of the first of them.
        in_charge: Who is in charge of the type.
    """

    object_name: str
    partition: int
    key: str
    holder: str
    status: str
    why: str
    since: datetime
    behind: int
    first_behind: tuple[str, ...]
    in_charge: str | None


@dataclass(frozen=True, slots=True)
class BusyKey:
    """An object that takes much of its type's traffic.

    Args:
        object_name: The object type.
        key: The object.
        entries: Entries of its history that are kept.
        share: Their part of all that are kept of its type.
        per_second: Entries that were added while it was watched, per second; None where it was not.
        waiting: Requests for it in the inbox, and invocations in its lane.
    """

    object_name: str
    key: str
    entries: int
    share: float
    per_second: float | None
    waiting: int


@dataclass(frozen=True, slots=True)
class Doubtful:
    """An invocation of which only its owner knows whether it goes on.

    Args:
        invocation: Its id.
        why: What is seen, in a sentence.
        repair: What asks its owner.
    """

    invocation: str
    why: str
    repair: LaneRepair


@dataclass(frozen=True, slots=True)
class Looked:
    """How much was looked at, so that nothing is taken for healthy that nobody has seen.

    Args:
        keys: Keys of the namespace that the walk came by.
        open: Open invocations whose facts were read, by status.
        is_whole: Whether the walk came to its end.
        notes: What was left out, in sentences.
        seconds: How long it took.
        watched_seconds: For how long owners and workers were watched.
    """

    keys: int
    open: Mapping[str, int]
    is_whole: bool
    notes: tuple[str, ...]
    seconds: float
    watched_seconds: float


@dataclass(frozen=True, slots=True)
class Repaired:
    """What became of one repair.

    Args:
        where: What it was about.
        did: What was done, in sentences; empty where nothing was left to do.
        refused: Why nothing was done, None when something could be.
        waits: Whether it waits for an owner, who does it when it takes the partition over.
    """

    where: str
    did: tuple[str, ...] = ()
    refused: str | None = None
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a checkup has to say.

    Args:
        namespace: The namespace.
        read_at: When, by the store's clock.
        servers: The servers of the store that take writes.
        workers: Workers of the registry.
        types: Object types: how many partitions each has, and who is in charge of it.
        partitions: Partitions that have an owner, or work.
        held_lanes: Lanes whose holder waits, those with most behind them first.
        busy_keys: The busiest objects of each type.
        doubtful: Invocations that only their owners can tell about.
        findings: Violations.
        left_out: How many findings of a kind are counted and not listed.
        looked: How much was looked at.
        notices: What is worth knowing and no violation.
    """

    namespace: str
    read_at: datetime
    servers: tuple[ServerReport, ...]
    workers: tuple[WorkerSeen, ...]
    types: Mapping[str, tuple[int, str | None]]
    partitions: tuple[PartitionReport, ...]
    held_lanes: tuple[HeldLane, ...]
    busy_keys: tuple[BusyKey, ...]
    doubtful: tuple[Doubtful, ...]
    findings: tuple[Finding, ...]
    left_out: Mapping[str, int]
    looked: Looked
    notices: tuple[str, ...] = ()

    @property
    def server(self) -> ServerReport:
        """The only server, or the first of several."""
        return self.servers[0]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def kinds(self) -> Mapping[str, int]:
        """How many findings there are of each kind, those that are not listed included."""
        counts = Counter(finding.kind.value for finding in self.findings)
        counts.update(self.left_out)
        return dict(counts)
