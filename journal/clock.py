"""The clock of a namespace put forward, for tests: thirty days pass in a moment.

A partition's time is its server's plus an offset, which every function reads in one place. What ends with a key of its
own (results, histories, idempotency keys of a day) is deleted by the server, whose own clock nobody moves: what such a
key has left to live is cut by as much, which comes to the same.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from .keyspace import PartitionSpace
from .lane_reading import ask
from .scan import scan
from .store import Store
from .types_registry import read_types

KEYS_AT_ONCE = 1_000
_MILLISECOND = timedelta(milliseconds=1)
#: Further than anything falls due.
SHIFT_MAX = timedelta(days=40_000)


def shift_ms(by: timedelta) -> int:
    """Return how far time goes forward, in milliseconds.

    Raises:
        TypeError: It is no timedelta.
        ValueError: It is negative, since time never goes back, or so long that no calendar has the end of it.
    """
    if not isinstance(by, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance] - a test gives it
        raise TypeError(f"by is {by!r}; it takes a timedelta, such as timedelta(days=1)")
    if by < timedelta(0):
        raise ValueError(f"time never goes back, and {by} would take it there")
    if by > SHIFT_MAX:
        raise ValueError(f"by is {by}: it has to be at most {SHIFT_MAX.days:,} days")
    return by // _MILLISECOND


async def shift_clock(store: Store, by: timedelta) -> None:
    """Put the time of every partition of the namespace forward.

    Object types that the namespace does not have yet begin with the server's time. Ids of inbox entries, leases and
    timeouts of callers keep to real clocks.

    Args:
        store: The open store.
        by: How far. Shifts add up.

    Raises:
        TypeError: `by` is no timedelta.
        ValueError: `by` is negative, or more than 40,000 days.
        StoreUnavailable: The store is away; how much of it was done is unknown.
        WrongKeyType: A foreign key stands where the owner of a partition belongs.
    """
    by_ms = shift_ms(by)
    types = await read_types(store)
    spaces = [store.space(name, number) for name, count in types.items() for number in range(count)]
    # In this order: what is written in between keeps all of its time, as if it came after the shift.
    await _shorten(store, await _keys(store, spaces), by_ms)
    owners = [space.owner for space in spaces]
    await ask(store, [("HINCRBY", owner, "offset", by_ms) for owner in owners], owners)


async def _keys(store: Store, spaces: Collection[PartitionSpace]) -> list[bytes]:
    """Return the keys of partitions, each once, whatever the scan answers twice."""
    tags = {space.tag for space in spaces}
    found: dict[bytes, None] = {}
    async for keys in scan(store, f"{{{store.namespace}:".encode()):
        found.update((key, None) for key in keys if key[: key.find(b"}") + 1] in tags)
    return list(found)


async def _shorten(store: Store, keys: list[bytes], by_ms: int) -> None:
    """Let keys expire sooner; those that would be gone by then go at once."""
    for start in range(0, len(keys), KEYS_AT_ONCE):
        page = keys[start : start + KEYS_AT_ONCE]
        left = await ask(store, [("PTTL", key) for key in page], page)
        expiring = [(key, left_ms) for key, left_ms in zip(page, left, strict=True) if left_ms >= 0]
        commands = [("PEXPIRE", key, max(left_ms - by_ms, 0)) for key, left_ms in expiring]
        await ask(store, commands, [key for key, _ in expiring])
