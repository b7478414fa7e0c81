"""Who is alive, judged by one rule: a counter that stood still for a lease, in answered polls spread over that time.

The lease is the longer one of ours and theirs: they may have been started with other settings than this process.
Only this process's own clock is used, and only while it looked often enough: after a pause of its own, or of the
store, the others may have had no chance to be seen, so watching begins anew. Nothing here does I/O; the caller brings
the time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from ..journal.codec import Undecodable
from ..journal.tenure import Announcement, Observation, decode_announcement
from .assignment import LiveWorker

Value = TypeVar("Value")

FORGET_SECONDS = 60.0


class Stillness(Generic[Value]):
    """For how long a value has provably not changed.

    Args:
        gap_seconds: A longer time between two answers makes the watch begin anew.
    """

    __slots__ = ("_answered_at", "_gap_seconds", "_since", "value")

    def __init__(self, gap_seconds: float) -> None:
        self._gap_seconds = gap_seconds
        self.value: Value | None = None
        self._since: float | None = None
        self._answered_at = 0.0

    def poll(self, value: Value, *, sent_at: float, answered_at: float) -> float:
        """Take an answered poll, and return the seconds for which the value has stood still.

        The value was read somewhere between the two times, so what counts is from the answer of the first poll that saw
        it to the sending of this one.
        """
        paused = answered_at - self._answered_at > self._gap_seconds
        self._answered_at = answered_at
        if self._since is None or paused or value != self.value:
            self.value = value
            self._since = answered_at
        return max(0.0, sent_at - self._since)


class Verdict(StrEnum):
    """What a would-be owner may conclude about a partition."""

    VACANT = "vacant"
    RELEASED = "released"
    HELD = "held"
    EXPIRED = "expired"


class LeaseWatch:
    """Judges the lease of one partition that this worker wants and another holds.

    Args:
        lease_seconds: For how long the counter must stand still at least; longer where its holder's lease is longer.
    """

    __slots__ = ("_lease_seconds", "_still")

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._still: Stillness[tuple[int, int]] = Stillness(lease_seconds / 2)

    def poll(self, seen: Observation, *, sent_at: float, answered_at: float) -> Verdict:
        """Take what an answered poll saw; a poll that got no answer is not told of, and breaks the watch by its gap."""
        if seen.epoch is None:
            return Verdict.VACANT
        if seen.released:
            return Verdict.RELEASED
        still_seconds = self._still.poll((seen.epoch, seen.lease), sent_at=sent_at, answered_at=answered_at)
        return Verdict.EXPIRED if still_seconds >= max(self._lease_seconds, seen.lease_seconds) else Verdict.HELD


class _Neighbour:
    """One announcement of the registry, watched."""

    __slots__ = ("dead_since", "lease_seconds", "raw", "still")

    def __init__(self, gap_seconds: float) -> None:
        self.still: Stillness[bytes] = Stillness(gap_seconds)
        self.raw = b""
        self.lease_seconds = 0.0
        self.dead_since: float | None = None

    def poll(self, raw: bytes, lease_seconds: float, *, sent_at: float, answered_at: float) -> None:
        changed = raw != self.raw
        self.raw = raw
        still_seconds = self.still.poll(raw, sent_at=sent_at, answered_at=answered_at)
        if changed:
            self.dead_since = None
            announced = _decoded(raw)
            self.lease_seconds = announced.lease_seconds if announced else 0.0
        elif still_seconds >= max(lease_seconds, self.lease_seconds):
            self.die(answered_at)

    def die(self, now: float) -> None:
        # The verdict stays until the announcement changes: a pause of ours brings nobody back to life.
        if self.dead_since is None:
            self.dead_since = now


class Neighbours:
    """The live workers, as this worker sees them in the registry.

    A worker that was never seen before counts as alive until its announcement has stood still for a lease.

    Args:
        worker: This worker, which never counts as dead.
        lease_seconds: For how long an announcement must stand still at least; where it names a longer lease, that long.
        forget_seconds: For how long a dead worker's announcement is kept.
    """

    def __init__(self, worker: str, *, lease_seconds: float, forget_seconds: float = FORGET_SECONDS) -> None:
        self._worker = worker
        self._lease_seconds = lease_seconds
        self._forget_seconds = forget_seconds
        self._known: dict[str, _Neighbour] = {}
        self._now = 0.0
        self.live: tuple[LiveWorker, ...] = ()
        self.libraries: frozenset[str] = frozenset()

    def poll(self, announcements: Mapping[str, bytes], *, sent_at: float, answered_at: float) -> bool:
        """Take an answered look at the registry.

        Returns:
            Whether the set of live workers has changed, so that partitions must be divided anew.
        """
        self._now = answered_at
        for gone in self._known.keys() - announcements.keys():
            del self._known[gone]
        for worker, raw in announcements.items():
            known = self._known.get(worker)
            if known is None:
                known = self._known[worker] = _Neighbour(self._lease_seconds / 2)
            known.poll(raw, self._lease_seconds, sent_at=sent_at, answered_at=answered_at)
        return self._divide()

    def bury(self, workers: Collection[str]) -> bool:
        """Count workers as dead that are known to be, without waiting for their announcements to stand still.

        Returns:
            Whether the set of live workers has changed.
        """
        for worker in workers:
            if worker in self._known:
                self._known[worker].die(self._now)
        return self._divide()

    def suspects(self) -> list[tuple[str, str]]:
        """Return (worker, machine) of the others that count as alive, for who can ask their machine."""
        found: list[tuple[str, str]] = []
        for worker, known in self._known.items():
            if worker != self._worker and known.dead_since is None:
                announced = _decoded(known.raw)
                found.append((worker, announced.machine if announced else ""))
        return found

    def forgettable(self) -> list[tuple[str, bytes]]:
        """Return (worker, announcement) of those that are dead for long enough to be taken out of the registry."""
        return [
            (worker, known.raw)
            for worker, known in self._known.items()
            if known.dead_since is not None
            and worker != self._worker
            and self._now - known.dead_since >= self._forget_seconds
        ]

    def _divide(self) -> bool:
        live: list[LiveWorker] = []
        libraries: set[str] = set()
        for worker, known in self._known.items():
            announced = _decoded(known.raw)
            if announced is None or (known.dead_since is not None and worker != self._worker):
                continue
            libraries.add(announced.library)
            if not announced.draining:
                live.append(LiveWorker(worker, frozenset(announced.hosts)))
        self.libraries = frozenset(libraries)
        before, self.live = self.live, tuple(sorted(live, key=_by_worker))
        return self.live != before


def _by_worker(live: LiveWorker) -> str:
    return live.worker


def _decoded(raw: bytes) -> Announcement | None:
    # What another release wrote is nobody that work can be given to.
    try:
        return decode_announcement(raw)
    except Undecodable:
        return None
