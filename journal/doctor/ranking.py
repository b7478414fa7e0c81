"""What deserves a look without being damage: lanes that are held, and objects that take much of the traffic."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import redis.exceptions

from ..descriptions import PartitionOwner
from ..key import format_id
from ..keyspace import PartitionSpace
from ..noted import moment
from ..open_reading import why
from ..standing import Status
from ..store import Store
from ..surroundings import Surroundings
from .facts import InvocationFacts, LeaseHealth, Sign
from .report import BusyKey, HeldLane

#: So many held lanes are told of.
HELD_MAX: Final = 50
#: So many of those that wait behind a holder are named.
BEHIND_NAMED: Final = 5
#: So many objects of each type are told of.
BUSY_EACH: Final = 3
#: An object with less history than this is never called busy.
BUSY_ENTRIES: Final = 100
#: A type with less history than this says nothing of how its traffic is spread.
LOPSIDED_ENTRIES: Final = 1_000
LOPSIDED_SHARE: Final = 0.5

_HOLDS: Final = frozenset({Status.WAITING, Status.PAUSED})


@dataclass(slots=True)
class HeldLanes:
    """Keeps the holders with most behind them, and of those the ones that wait longest."""

    _heap: list[tuple[int, int, bytes, InvocationFacts]] = field(
        default_factory=list[tuple[int, int, bytes, InvocationFacts]]
    )
    count: int = 0

    def note(self, facts: InvocationFacts) -> None:
        """Take an open invocation into account."""
        standing = facts.standing
        if facts.position != 0 or standing is None or standing.status not in _HOLDS:
            return
        self.count += 1
        entry = (facts.lane_length, -facts.recorded_ms, facts.raw_id, facts)
        if len(self._heap) < HELD_MAX:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def __len__(self) -> int:
        """Return how many are told of."""
        return len(self._heap)

    async def told(self, store: Store, health: dict[PartitionSpace, LeaseHealth]) -> tuple[HeldLane, ...]:
        """Return the lanes, those with most behind them first.

        Raises:
            StoreUnavailable: The store is away.
        """
        holders = [entry[3] for entry in sorted(self._heap, reverse=True)]
        words = [("LRANGE", facts.space.lane(facts.key), 1, BEHIND_NAMED) for facts in holders]
        replies = await store.together(words)
        return tuple(
            _told(facts, [] if isinstance(behind, Exception) else behind, health.get(facts.space))
            for facts, behind in zip(holders, replies, strict=True)
        )


def _told(facts: InvocationFacts, behind: list[bytes], health: LeaseHealth | None) -> HeldLane:
    space, standing = facts.space, facts.standing
    return HeldLane(
        space.type_name,
        space.number,
        facts.key,
        format_id(space.type_name, space.number, facts.raw_id),
        "" if standing is None else standing.status.value,
        in_words(facts, health),
        moment(facts.recorded_ms),
        facts.lane_length - 1,
        tuple(format_id(space.type_name, space.number, raw_id) for raw_id in behind),
        facts.in_charge,
    )


def in_words(facts: InvocationFacts, health: LeaseHealth | None) -> str:
    """Say what the holder of a lane waits for, as `describe` and `inspect` say it."""
    owner = PartitionOwner() if health is None else owner_of(health)
    around = Surroundings(owner, facts.now_ms, facts.in_charge, is_type_known=True)
    due_at = None if facts.due_ms is None else moment(facts.due_ms)
    name = format_id(facts.space.type_name, facts.space.number, facts.raw_id)
    return why(facts.standing, facts.problem, None, due_at, around, name, moment(facts.recorded_ms))


def owner_of(health: LeaseHealth) -> PartitionOwner:
    """Return the owner of a partition as readers are told of it."""
    return PartitionOwner(health.worker, epoch=health.epoch, is_released=health.sign is Sign.RELEASED)


@dataclass(slots=True)
class _Busy:
    """An object's stream as the walk saw it."""

    space: PartitionSpace
    key: str
    entries: int


@dataclass(slots=True)
class BusyKeys:
    """Keeps the objects with most history of each type.

    History is trimmed by age, so its length is the traffic of the last retention. What an object gets just now is
    measured for these few: how many entries the server says were ever added, asked twice.
    """

    _by_type: dict[str, list[tuple[int, bytes, _Busy]]] = field(
        default_factory=dict[str, "list[tuple[int, bytes, _Busy]]"]
    )
    entries: Counter[str] = field(default_factory=Counter[str])
    waiting: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])

    def note(self, space: PartitionSpace, key: str, entries: int) -> None:
        """Take an object's stream into account."""
        self.entries[space.type_name] += entries
        heap = self._by_type.setdefault(space.type_name, [])
        entry = (entries, space.object(key), _Busy(space, key, entries))
        if len(heap) < BUSY_EACH:
            heapq.heappush(heap, entry)
        elif entry[:2] > heap[0][:2]:
            heapq.heapreplace(heap, entry)

    def _busy(self) -> list[_Busy]:
        ranked = [sorted(heap, key=_by_entries, reverse=True) for _, heap in sorted(self._by_type.items())]
        return [busy for heap in ranked for entries, _, busy in heap if entries >= BUSY_ENTRIES]

    async def added(self, store: Store) -> dict[bytes, int]:
        """Return how many entries were ever added to the streams of the busiest.

        Raises:
            StoreUnavailable: The store is away.
        """
        names = [busy.space.object(busy.key) for busy in self._busy()]
        replies = await store.together([("XINFO", "STREAM", name) for name in names])
        return {
            name: _entries_added(reply)
            for name, reply in zip(names, replies, strict=True)
            if not isinstance(reply, redis.exceptions.RedisError)
        }

    def told(self, before: dict[bytes, int], after: dict[bytes, int], seconds: float) -> tuple[BusyKey, ...]:
        """Return the busiest objects, type by type.

        Args:
            before: What `added` returned at first.
            after: What it returned then.
            seconds: How much later that was.
        """
        return tuple(self._told(busy, before, after, seconds) for busy in self._busy())

    def _told(self, busy: _Busy, before: dict[bytes, int], after: dict[bytes, int], seconds: float) -> BusyKey:
        name, type_name = busy.space.object(busy.key), busy.space.type_name
        is_measured = name in before and name in after and seconds > 0
        return BusyKey(
            type_name,
            busy.key,
            busy.entries,
            busy.entries / max(self.entries[type_name], 1),
            (after[name] - before[name]) / seconds if is_measured else None,
            self.waiting[type_name, busy.key],
        )


def _by_entries(entry: tuple[int, bytes, _Busy]) -> tuple[int, bytes]:
    return entry[:2]


def _entries_added(reply: list[Any]) -> int:
    said = dict(zip(reply[::2], reply[1::2], strict=True))
    return int(said.get(b"entries-added", 0))


def takes_most(busy: BusyKey, entries: Counter[str]) -> str | None:
    """Say that an object takes most of its type's traffic, None for one that does not.

    Args:
        busy: The object.
        entries: How much history the types have.
    """
    if entries[busy.object_name] < LOPSIDED_ENTRIES or busy.share <= LOPSIDED_SHARE:
        return None
    return (
        f"{busy.object_name} {busy.key} takes {busy.share:.0%} of its type's traffic: one lane does most of the work; "
        "a key that all callers share is often one by accident"
    )
