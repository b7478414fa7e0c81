"""Moments at which something is to happen, in slots of ten milliseconds that share one timer of the event loop.

A timeout object per call costs more than the rest of a short call; entering and leaving a slot costs a microsecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

SLOTS_PER_SECOND: Final = 100

Item = TypeVar("Item", bound=Hashable)


class Wheel(Generic[Item]):
    """Hands items over when their moment has come, never before it and at most a slot after it.

    Args:
        on_due: Called with each item, from the event loop; must not raise.
    """

    __slots__ = ("_armed_for", "_moments", "_on_due", "_slots", "_timer")

    def __init__(self, on_due: Callable[[Item], None]) -> None:
        self._on_due = on_due
        self._slots: dict[int, set[Item]] = {}
        self._moments: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0

    def add(self, item: Item, delay_seconds: float) -> int:
        """Enter an item.

        Returns:
            The slot, which `discard` wants to know.
        """
        loop = asyncio.get_running_loop()
        slot = int((loop.time() + delay_seconds) * SLOTS_PER_SECOND) + 1
        items = self._slots.get(slot)
        if items is not None:
            items.add(item)
            return slot
        self._slots[slot] = {item}
        heappush(self._moments, slot)
        if self._timer is None or slot < self._armed_for:
            self._arm(loop)
        return slot

    def discard(self, item: Item, slot: int) -> None:
        """Take an item out, if it is still in."""
        items = self._slots.get(slot)
        if items is not None:
            items.discard(item)

    def close(self) -> None:
        """Forget everything."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._slots.clear()
        self._moments.clear()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the timer to the earliest slot that holds anything; emptied ones are dropped on the way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        moments, slots = self._moments, self._slots
        while moments and not slots[moments[0]]:
            del slots[heappop(moments)]
        if moments:
            self._armed_for = moments[0]
            self._timer = loop.call_at(self._armed_for / SLOTS_PER_SECOND, self._turn, loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = int(loop.time() * SLOTS_PER_SECOND)
        moments = self._moments
        while moments and moments[0] <= now:
            for item in self._slots.pop(heappop(moments)):
                self._on_due(item)
        if self._timer is None:
            self._arm(loop)
