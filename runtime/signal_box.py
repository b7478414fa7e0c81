"""The signals to an object for which nobody waited when they came: kept in order, each for a while."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ..journal import operations
from ..journal.codec import Undecodable
from ..journal.lane_reading import ask
from ..journal.signals import EarlySignal

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from ..journal.keyspace import PartitionSpace
    from ..journal.store import Store

logger = logging.getLogger("keylane.invocation")

#: The hash goes so much later than the youngest signal in it expires: what counts is the time that stands in each.
BROOM_MS: Final = 60_000


class SignalBox:
    """What an owner knows of one object's early signals, with all that is queued.

    Args:
        space: The partition.
        key_text: The object.
        retention_ms: How long a signal is kept.
        found: What the store has, by number.
        last: The highest number that the store has.
    """

    __slots__ = ("_kept", "_key_text", "_next", "_retention_ms", "_space")

    def __init__(
        self, space: PartitionSpace, key_text: str, retention_ms: int, found: dict[int, EarlySignal], last: int
    ) -> None:
        self._space = space
        self._key_text = key_text
        self._retention_ms = retention_ms
        self._kept = dict(sorted(found.items()))
        self._next = last + 1

    def __len__(self) -> int:
        """How many there are."""
        return len(self._kept)

    def has(self, message: bytes) -> bool:
        """Return whether a message is among them."""
        return any(each.message == message for each in self._kept.values())

    def keep(self, signal: EarlySignal) -> list[Operation]:
        """Keep one more behind the others."""
        number, self._next = self._next, self._next + 1
        self._kept[number] = signal
        return operations.keep_signal(
            self._space, self._key_text, number, signal.encode(), self._retention_ms + BROOM_MS
        )

    def put_back(self, signal: EarlySignal) -> list[Operation]:
        """Keep one in front of the others: it came before them."""
        number = min(self._kept, default=self._next) - 1
        self._kept = {number: signal, **self._kept}
        return operations.keep_signal(
            self._space, self._key_text, number, signal.encode(), self._retention_ms + BROOM_MS
        )

    def first(self, name: str) -> tuple[int, EarlySignal] | None:
        """Return the first one of a name, with its number."""
        return next(((number, each) for number, each in self._kept.items() if each.name == name), None)

    def take(self, number: int) -> Operation:
        """Take one out; its waiter gets it with the same commit."""
        del self._kept[number]
        return operations.take_signal(self._space, self._key_text, number)

    def expire(self, now_ms: int) -> list[Operation]:
        """Take out those that have been kept for long enough."""
        limit_ms = now_ms - self._retention_ms
        over = [number for number, each in self._kept.items() if each.at_ms <= limit_ms]
        return [self.take(number) for number in over]


async def read_box(store: Store, space: PartitionSpace, key_text: str, retention_ms: int) -> SignalBox:
    """Read an object's early signals.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where they belong.
    """
    key = space.signals(key_text)
    (flat,) = await ask(store, [("HGETALL", key)], [key])
    found: dict[int, EarlySignal] = {}
    for field, data in zip(flat[::2], flat[1::2], strict=True):
        try:
            found[int(field)] = EarlySignal.decode(data)
        except (Undecodable, ValueError):
            logger.exception("%s %s: an early signal can't be read and is left where it is", space, key_text)
    last = max((int(field) for field in flat[::2] if field.isdigit()), default=0)
    return SignalBox(space, key_text, retention_ms, found, last)
