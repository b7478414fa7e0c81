"""Looks at who owns the partitions of a type, again and again, and finds out for how long nobody did."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import redis

from keylane.journal.keyspace import PartitionSpace

LOOK_SECONDS = 0.01
#: A look that comes so much later tells of the watcher and not of owners.
LATE_SECONDS = 0.2


@dataclass(slots=True)
class Sight:
    """What was seen of one partition.

    Args:
        alive: When its owner was last seen to live: it began its tenure, or renewed its lease.
        lease: Epoch and counter at that time.
        longest: The longest time, in seconds, for which no owner was seen to live.
    """

    alive: float
    lease: tuple[bytes, bytes] | None = None
    longest: float = 0.0

    def look(self, now: float, epoch: bytes, counter: bytes, released: bytes | None) -> None:
        """Take what is seen at a moment; a partition that was handed over has no owner, whatever its counter says."""
        lease = (epoch, counter)
        if released != b"1" and lease != self.lease:
            self.longest = max(self.longest, now - self.alive)
            self.alive, self.lease = now, lease


class OwnerWatch:
    """Watches from a thread of its own, over a connection of its own; use it as a context manager.

    Args:
        socket: The store's socket.
        spaces: The partitions, all of which have an owner at the start.
    """

    def __init__(self, socket: str, spaces: list[PartitionSpace]) -> None:
        self._client: Any = redis.Redis(unix_socket_path=socket, protocol=2)
        self._spaces = spaces
        self._sights = [Sight(time.monotonic()) for _ in spaces]
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="owner watch", daemon=True)

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look no more."""
        self._is_over.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._is_over.wait(LOOK_SECONDS):
            with self._client.pipeline(transaction=False) as pipeline:
                for space in self._spaces:
                    pipeline.hmget(space.owner, "epoch", "lease", "released")
                found = pipeline.execute()
            now = time.monotonic()
            if now - looked > LATE_SECONDS:
                # The watcher itself had no processor: what it has not seen was not missing.
                for sight in self._sights:
                    sight.alive += now - looked - LOOK_SECONDS
            looked = now
            for sight, seen in zip(self._sights, found, strict=True):
                sight.look(now, *seen)

    @property
    def longest(self) -> float:
        """The longest time that any of them went without a sign of an owner, also the one that lasts still."""
        now = time.monotonic()
        return max(max(sight.longest, now - sight.alive) for sight in self._sights)

    @property
    def tenures(self) -> int:
        """How many tenures there have been of all partitions together."""
        return sum(int(sight.lease[0]) for sight in self._sights if sight.lease is not None)
