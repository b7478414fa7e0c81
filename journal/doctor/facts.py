"""What checks are given: facts of an invocation, of a partition and of a type, each read at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ..keyspace import PartitionSpace
from ..standing import Standing, Status, lasts_ms


@dataclass(frozen=True, slots=True)
class InvocationFacts:
    """Where an open invocation stands in every structure that knows of it.

    Args:
        space: Its partition.
        raw_id: Its id.
        key: Its object.
        standing: Where its newest record says that it stands, None where that can't be read.
        problem: Why it can't.
        recorded_ms: The partition's time at its newest record.
        now_ms: The partition's time when this was read.
        position: Its place in its lane's list from 0, -1 where it is not in it, -2 where it is set aside.
        lane_length: How many are in the list.
        is_lane_runnable: Whether the lane is among the runnable ones.
        due_ms: When it is due, None where it has no due time.
        has_result: Whether there is a result of it.
        in_charge: Who is in charge of its type, None where nobody has said so.
        waiting_since_ms: The partition's time at the record of the call or timer that it waits for, where it does.
    """

    space: PartitionSpace
    raw_id: bytes
    key: str
    standing: Standing | None
    problem: str | None
    recorded_ms: int
    now_ms: int
    position: int
    lane_length: int
    is_lane_runnable: bool
    due_ms: int | None
    has_result: bool
    in_charge: str | None
    waiting_since_ms: int = 0

    @property
    def retry_due_ms(self) -> int | None:
        """When its records say that its next attempt is due, None where it waits for none."""
        standing = self.standing
        if standing is None or standing.status is not Status.WAITING or standing.retry_after_ms is None:
            return None
        return self.recorded_ms + standing.retry_after_ms

    @property
    def timer_due_ms(self) -> int | None:
        """When the timer is due that alone wakes it, None where none does: it sleeps, or is to begin later."""
        standing = self.standing
        if standing is None or standing.retry_after_ms is not None or standing.paused is not None:
            return None
        if standing.delay_ms is not None:
            return self.recorded_ms + standing.delay_ms
        delay_ms = lasts_ms(standing.waiting)
        return None if delay_ms is None else self.waiting_since_ms + delay_ms


class Sign(StrEnum):
    """What was seen of a partition's owner while it was watched."""

    VACANT = "vacant"
    RELEASED = "released"
    LIVE = "live"
    SILENT = "silent"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class LeaseHealth:
    """A partition's owner, as it was watched for a while by our own clock.

    Args:
        sign: What was seen.
        worker: Who holds the partition, or held it last.
        epoch: The epoch of the last tenure.
        renewals: How often the counter was raised while it was watched.
        watched_seconds: For how long it was.
    """

    sign: Sign
    worker: str | None = None
    epoch: int | None = None
    renewals: int = 0
    watched_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """What lies in a partition.

    Args:
        inbox: Entries of the inbox.
        runnable: Lanes with something to run.
        due: Due times.
        undecodable: Entries that could not be read and were kept.
        open: Open invocations that have records of their own.
        unsent: Messages in outboxes that have not arrived.
        unsettled: Effects that are not settled, and open proposals.
    """

    inbox: int = 0
    runnable: int = 0
    due: int = 0
    undecodable: int = 0
    open: int = 0
    unsent: int = 0
    unsettled: int = 0

    @property
    def has_work(self) -> bool:
        """Whether an owner would have something to do."""
        return bool(self.inbox or self.runnable or self.due or self.open or self.unsent or self.unsettled)


@dataclass(frozen=True, slots=True)
class First:
    """The first of a queue, which must not stay the first for long.

    Args:
        name: What it is: an entry id, a raw id.
        age_ms: For how long it has been waiting.
        is_unmoved: Whether it was the first already when the watch began.
    """

    name: bytes
    age_ms: int
    is_unmoved: bool


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """A partition at the end of a watch.

    Args:
        space: The partition.
        partitions: How many partitions its type has by the registry, None for a type that the namespace does not have.
        owner: The fields of its owner hash, without the ring of answers.
        now_ms: The partition's time.
        health: What was seen of its owner.
        backlog: What lies in it.
        oldest_request: The first entry of its inbox that is no call of a shared handler.
        earliest_due: The due time that should fire first, when it is past.
        in_charge: Who is in charge of the type.
        is_hosted: Whether a live worker has the type's handlers.
        earliest_history: The object whose history should have been looked at first, when its time is past.
    """

    space: PartitionSpace
    partitions: int | None
    owner: Mapping[str, str]
    now_ms: int
    health: LeaseHealth
    backlog: Backlog
    oldest_request: First | None = None
    earliest_due: First | None = None
    in_charge: str | None = None
    is_hosted: bool = False
    earliest_history: First | None = None

    @property
    def is_live(self) -> bool:
        """Whether an owner was seen alive."""
        return self.health.sign is Sign.LIVE

    @property
    def doubt_until_ms(self) -> int | None:
        """Until when accepted work is in doubt after a lost tail, None where it is not."""
        until = self.owner.get("doubt_until", "")
        return int(until) if until.isdigit() and int(until) > self.now_ms else None


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """An object type of the namespace.

    Args:
        name: Its name.
        partitions: How many partitions it has.
        in_charge: Who is in charge of it.
        workers: Live workers that host it.
        partitions_with_work: How many of its partitions have something to do.
    """

    name: str
    partitions: int
    in_charge: str | None
    workers: tuple[str, ...] = field(default=())
    partitions_with_work: int = 0
