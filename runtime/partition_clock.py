"""The time of a partition as its owner knows it between two answers of the store."""

from __future__ import annotations

import time


class PartitionClock:
    """A close estimate of a partition's time that never goes back; the store compares deadlines itself.

    Args:
        now_ms: The partition's time in the last answer.
    """

    __slots__ = ("_seen_at", "_time_ms", "_told_ms")

    def __init__(self, now_ms: int) -> None:
        self._time_ms = self._told_ms = now_ms
        self._seen_at = time.monotonic()

    def saw(self, now_ms: int) -> None:
        """Take note of the partition's time in an answer."""
        self._time_ms = now_ms
        self._seen_at = time.monotonic()

    def now_ms(self) -> int:
        """Return the time, in milliseconds since 1970."""
        estimate = self._time_ms + int((time.monotonic() - self._seen_at) * 1000)
        # An answer that was long on its way sets the estimate back by as much.
        self._told_ms = max(self._told_ms, estimate)
        return self._told_ms
