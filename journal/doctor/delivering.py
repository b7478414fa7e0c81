"""Watches outboxes: what lies in one arrives within moments as long as the sender's owner lives."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio

from ..codec import Undecodable
from ..keyspace import PartitionSpace
from ..numbering import HISTORY_FIELD, Base
from ..store import Store
from .findings import Finding
from .message_checks import counted_of, stuck
from .reach import Reach

#: A message that a live owner has not delivered for so long is stuck; it tries again every two seconds at least.
STUCK_SECONDS: Final = 5.0
#: Partitions that one turn is about.
AT_ONCE: Final = 128
#: So many outboxes with something in them are watched.
WATCHED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Pending:
    """An outbox with something in it: how much was sent, and how much of it the receiver has taken."""

    assigned: int
    arrived: int


_Route = tuple[PartitionSpace, bytes]


@dataclass(slots=True)
class Deliveries:
    """The outboxes of some partitions, watched from the first reading on.

    Args:
        store: The open store.
        reach: Knows which partitions can be read: nothing arrives in another one, and its senders are not to blame.
    """

    store: Store
    reach: Reach
    _began: float = 0.0
    _first: Mapping[_Route, _Pending] | None = None

    async def begin(self, spaces: Sequence[PartitionSpace]) -> dict[PartitionSpace, int]:
        """Note what is on its way; returns how many messages each partition has that have not arrived.

        Raises:
            StoreUnavailable: The store is away.
        """
        self._first = await self._read(spaces)
        self._began = time.monotonic()
        waiting: dict[PartitionSpace, int] = {}
        for (space, _), pending in self._first.items():
            waiting[space] = waiting.get(space, 0) + pending.assigned - pending.arrived
        return waiting

    async def stuck(self, live: Collection[PartitionSpace]) -> list[Finding]:
        """Return the outboxes of live owners of which nothing has arrived all the while.

        Raises:
            StoreUnavailable: The store is away.
        """
        first = {
            (space, target): pending
            for (space, target), pending in (self._first or {}).items()
            if space in live and self._space(target) not in self.reach.away
        }
        unmoved = await self._unmoved(first)
        left = STUCK_SECONDS - (time.monotonic() - self._began)
        if unmoved and left > 0:
            await anyio.sleep(left)
            unmoved = await self._unmoved(unmoved)
        seconds = time.monotonic() - self._began
        return [stuck(space, to, each.assigned - each.arrived, seconds) for (space, to), each in unmoved.items()]

    async def _unmoved(self, before: Mapping[_Route, _Pending]) -> dict[_Route, _Pending]:
        if not before:
            return {}
        after = await self._read(list({space for space, _ in before}))
        return {
            route: pending
            for route, pending in before.items()
            if route in after and after[route].arrived == pending.arrived
        }

    async def _read(self, spaces: Sequence[PartitionSpace]) -> dict[_Route, _Pending]:
        found: dict[_Route, _Pending] = {}
        for start in range(0, len(spaces), AT_ONCE):
            piece = spaces[start : start + AT_ONCE]
            replies = await self.store.together([(word, *key) for space in piece for word, key in _words(space)])
            for at, space in enumerate(piece):
                sent, bases = replies[2 * at : 2 * at + 2]
                if not isinstance(sent, Exception) and not isinstance(bases, Exception):
                    found.update(await self._pending(space, sent, bases, WATCHED_MAX - len(found)))
        return found

    async def _pending(
        self, space: PartitionSpace, sent: Sequence[bytes], bases: Sequence[bytes], count: int
    ) -> dict[_Route, _Pending]:
        numbers = {target: counted_of(target, text) for target, text in _pairs(sent)}
        open_ones = {
            target: counted
            for target, counted in numbers.items()
            if counted is not None and counted.assigned > counted.acknowledged
        }
        targets = list(open_ones)[: max(count, 0)]
        there = await self.reach.readable(map(self._space, targets))
        replies = await self.store.together([("HGET", each.marks, space.name) for each in there])
        marks: dict[PartitionSpace, Any] = dict(zip(there, replies, strict=True))
        base_of, history = dict(_pairs(bases)), dict(_pairs(sent)).get(HISTORY_FIELD.encode(), b"").decode()
        found: dict[_Route, _Pending] = {}
        for target in targets:
            counted, mark = open_ones[target], marks.get(self._space(target))
            # Where the marks are those of another history they say nothing, and what is noted to have arrived counts.
            arrived = max(_taken(mark, history, base_of.get(target, b"0:0")), counted.acknowledged)
            if counted.assigned > arrived:
                found[space, target] = _Pending(counted.assigned, arrived)
        return found

    def _space(self, target: bytes) -> PartitionSpace:
        type_name, _, number = target.decode().rpartition(".")
        return self.store.space(type_name, int(number))


def _words(space: PartitionSpace) -> list[tuple[str, tuple[bytes, ...]]]:
    return [("HGETALL", (space.sent,)), ("HGETALL", (space.bases,))]


def _pairs(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _taken(mark: Any, history: str, base_text: bytes) -> int:
    """Return the number up to which a receiver has taken messages, as the sender counts them."""
    try:
        base = Base.read(base_text)
    except Undecodable:
        return 0
    told = f"{history}.{base.restarts}" if base.restarts else history
    match mark.split(b":") if isinstance(mark, bytes) else []:
        case [known, number, *_] if known == told.encode() and number.isdigit():
            return int(number) + base.before
        case _:
            return 0
