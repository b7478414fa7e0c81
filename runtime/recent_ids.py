"""Ids that are remembered for a while: what was dealt with a moment ago may come, or be found, once more."""

from __future__ import annotations

import time
from collections.abc import Iterator

#: How long one is remembered.
REMEMBERED_SECONDS = 60.0


class RecentIds:
    """Raw ids with the moment at which each was noted, the oldest first."""

    __slots__ = ("_noted",)

    def __init__(self) -> None:
        self._noted: dict[bytes, float] = {}

    def __contains__(self, raw_id: bytes) -> bool:
        """Return whether an id was noted a moment ago."""
        return raw_id in self._noted

    def __len__(self) -> int:
        """Return how many ids are remembered."""
        return len(self._noted)

    def __iter__(self) -> Iterator[bytes]:
        """Return the ids, the oldest first."""
        return iter(self._noted)

    def note(self, raw_id: bytes) -> None:
        """Remember an id from here on."""
        # A dict keeps the order in which keys came, so one that is noted again has to come anew.
        self._noted.pop(raw_id, None)
        self._noted[raw_id] = time.monotonic()

    def drop(self, raw_id: bytes) -> None:
        """Forget an id at once."""
        self._noted.pop(raw_id, None)

    def clear(self) -> None:
        """Forget all of them."""
        self._noted.clear()

    def forget_old(self) -> None:
        """Forget the ids that were noted long enough ago."""
        limit = time.monotonic() - REMEMBERED_SECONDS
        while self._noted:
            raw_id, since = next(iter(self._noted.items()))
            if since > limit:
                break
            del self._noted[raw_id]
