"""How much an owner has in hand of one partition, and whether a tenant has its part of it already."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Container, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .invocation import Invocation

#: How old a count may be.
COUNTED_SECONDS: Final = 0.1
#: With so many invocations in hand, what is scheduled has to wait until some have ended.
IN_HAND_MAX: Final = 4096


class InHand:
    """Counts the invocations of one partition, now and then.

    Args:
        open_ones: Those that have not ended.
        sleepers: Those of them whose handler waits.
        parked: Those of them that were set aside.
    """

    __slots__ = ("_open", "_parked", "_shares", "_shares_counted_at", "_sleepers", "_still", "_still_counted_at")

    def __init__(
        self, open_ones: Mapping[bytes, Invocation], sleepers: Container[bytes], parked: Collection[bytes]
    ) -> None:
        self._open = open_ones
        self._sleepers = sleepers
        self._parked = parked
        self._still = 0
        self._still_counted_at = 0.0
        self._shares: Counter[str] = Counter()
        self._shares_counted_at = 0.0

    def reaches(self, count: int) -> bool:
        """Return whether so many invocations or more can go on; those behind one that waits need no slot for now.

        Were these counted, a few lanes that stand still would keep the inbox from being read, with the resumption in
        it that sets them going.
        """
        return len(self._open) >= count and len(self._open) - self._standing_still() >= count

    def has_no_room(self, count: int, tenant: str) -> bool:
        """Return whether a call of a tenant is one too many."""
        return self.reaches(count) and self._has_its_share(count, tenant)

    def _has_its_share(self, count: int, tenant: str) -> bool:
        """Return whether a tenant has its part of so many invocations in hand, all that have some counted alike."""
        now = time.monotonic()
        if now - self._shares_counted_at > COUNTED_SECONDS:
            self._shares = Counter(each.lane.key.tenant for each in self._open.values())
            self._shares_counted_at = now
        tenants = len(self._shares) + (tenant not in self._shares)
        return self._shares[tenant] * tenants >= count

    def _standing_still(self) -> int:
        now = time.monotonic()
        if now - self._still_counted_at > COUNTED_SECONDS:
            waiting = [each for each in self._open.values() if each.is_waiting or each.raw_id in self._sleepers]
            lanes = {each.lane for each in waiting if each.raw_id not in self._parked}
            lanes.update(each.lane for each in self._open.values() if each.lane.is_paused)
            self._still = len(self._parked) + sum(len(lane.queue) for lane in lanes)
            self._still_counted_at = now
        return self._still
