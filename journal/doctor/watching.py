"""Watching owners and workers for a while: who raises a counter lives, and no clock of another machine is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import redis.exceptions

from ..codec import Undecodable
from ..errors import StoreError
from ..keyspace import PartitionSpace, registry_key
from ..leases import observe
from ..refusals import key_error
from ..store import Store
from ..tenure import Announcement, Observation, Poll, decode_announcement, lease_clock
from .facts import LeaseHealth, Sign

#: Partitions that one question is about.
AT_ONCE: Final = 256
#: A lease is looked at so often within its length.
LOOKS_PER_LEASE: Final = 12


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker of the registry, as it was watched.

    Args:
        worker: Its name.
        is_live: Whether its announcement changed.
        hosts: The object types that it has the handlers of.
        library: The function library that it calls.
        is_draining: Whether it is about to leave.
        problem: Why its announcement can't be read, None when it can.
    """

    worker: str
    is_live: bool
    hosts: tuple[str, ...] = ()
    library: str = ""
    is_draining: bool = False
    problem: str | None = None


@dataclass(slots=True)
class _Watched:
    """One counter: what it was at first and is now."""

    first_at: float
    value: Any
    last_at: float
    changes: int = 0

    def take(self, value: Any, at: float) -> None:
        self.last_at = at
        if value != self.value:
            self.value = value
            self.changes += 1


@dataclass(slots=True)
class Watch:
    """Observes the owners of partitions and the registry of workers until each is judged, within a bound.

    Args:
        store: The open store.
        spaces: The partitions.
        lease_seconds: For how long a counter must stand still to be one of nobody; where owners have a longer lease,
            that long.
    """

    store: Store
    spaces: Sequence[PartitionSpace]
    lease_seconds: float
    _partitions: dict[PartitionSpace, _Watched] = field(default_factory=dict[PartitionSpace, _Watched])
    _seen: dict[PartitionSpace, Observation | StoreError] = field(
        default_factory=dict[PartitionSpace, "Observation | StoreError"]
    )
    _workers: dict[str, _Watched] = field(default_factory=dict[str, _Watched])

    async def run(self) -> None:
        """Look again and again, until everybody was seen alive or had the time of two leases to be.

        Two, since a partition may have lost its owner at the first look, and is taken over within one.

        Raises:
            StoreUnavailable: The store is away.
            WrongKeyType: A foreign key stands where the registry belongs.
        """
        began = lease_clock()
        while True:
            await self.look()
            waited_seconds = lease_clock() - began
            longest = self._longest_lease()
            if not self._is_silent() or waited_seconds > 2 * longest:
                return
            if waited_seconds > longest and not any(each.is_live for each in self.workers()):
                return
            await anyio.sleep(self.lease_seconds / LOOKS_PER_LEASE)

    def _longest_lease(self) -> float:
        theirs = (each.lease_seconds for each in self._seen.values() if isinstance(each, Observation))
        return max((self.lease_seconds, *theirs))

    async def look(self) -> None:
        """Take one look at everything.

        Raises:
            StoreUnavailable: The store is away.
            WrongKeyType: A foreign key stands where the registry belongs.
        """
        for start in range(0, len(self.spaces), AT_ONCE):
            spaces = self.spaces[start : start + AT_ONCE]
            poll = await observe(self.store, spaces)
            for space, seen in zip(spaces, poll.seen, strict=True):
                self._take(space, seen, poll)
        sent_at = lease_clock()
        registry = await self._registry()
        for worker in self._workers.keys() - registry.keys():
            # It has left in good order.
            del self._workers[worker]
        for worker, raw in registry.items():
            _note(self._workers, worker, raw, sent_at, lease_clock())

    async def _registry(self) -> dict[str, bytes]:
        key = registry_key(self.store.namespace)
        try:
            flat = await self.store.call("HGETALL", key)
        except redis.exceptions.ResponseError as error:
            raise key_error(error, key, self.store.url) from error
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return {name.decode(errors="replace"): raw for name, raw in pairs}

    def _take(self, space: PartitionSpace, seen: Observation | StoreError, poll: Poll) -> None:
        self._seen[space] = seen
        if isinstance(seen, Observation):
            value = (seen.epoch, seen.lease, seen.released)
            _note(self._partitions, space, value, poll.sent_at, poll.answered_at)

    def _is_silent(self) -> bool:
        """Return whether somebody has not moved yet who should: an owner, a worker, or who takes over what is free."""
        workers = self.workers()
        hosted = {name for worker in workers if worker.is_live for name in worker.hosts}
        return any(not worker.is_live for worker in workers) or any(
            _is_awaited(seen, self._partitions[space], is_hosted=space.type_name in hosted)
            for space, seen in self._seen.items()
            if isinstance(seen, Observation)
        )

    def health(self, space: PartitionSpace) -> LeaseHealth:
        """Return what was seen of a partition's owner."""
        seen = self._seen.get(space)
        watched = self._partitions.get(space)
        if not isinstance(seen, Observation) or watched is None:
            return LeaseHealth(Sign.UNREADABLE)
        seconds = max(watched.last_at - watched.first_at, 0.0)
        return LeaseHealth(_sign(seen, watched), seen.worker or None, seen.epoch, watched.changes, seconds)

    def workers(self) -> tuple[WorkerSeen, ...]:
        """Return the workers of the registry, in the order of their names."""
        return tuple(_worker(name, watched) for name, watched in sorted(self._workers.items()))


def _note(into: dict[Any, _Watched], name: Any, value: Any, sent_at: float, answered_at: float) -> None:
    known = into.get(name)
    if known is None:
        into[name] = _Watched(answered_at, value, answered_at)
    else:
        # What was read was read somewhere between the two: only the time before counts for its having stood still.
        known.take(value, sent_at)


def _is_awaited(seen: Observation, watched: _Watched, *, is_hosted: bool) -> bool:
    """Return whether a partition has no sign of life, and may get one: from its owner, or from its next one."""
    match _sign(seen, watched):
        case Sign.LIVE:
            return False
        case Sign.SILENT:
            return True
        case _:
            return is_hosted


def _sign(seen: Observation, watched: _Watched) -> Sign:
    if seen.epoch is None:
        return Sign.VACANT
    if seen.released:
        return Sign.RELEASED
    return Sign.LIVE if watched.changes else Sign.SILENT


def _worker(name: str, watched: _Watched) -> WorkerSeen:
    is_live = watched.changes > 0
    try:
        said: Announcement = decode_announcement(watched.value)
    except Undecodable as error:
        return WorkerSeen(name, is_live, problem=error.message)
    return WorkerSeen(name, is_live, said.hosts, said.library, said.draining)
