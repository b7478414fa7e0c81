"""What has fallen due in a partition, by the store's clock."""

from __future__ import annotations

from dataclasses import dataclass

from .keyspace import PartitionSpace
from .store import Store


@dataclass(frozen=True, slots=True)
class Due:
    """An answer about due times.

    Args:
        ids: Raw ids of invocations that are due, earliest first.
        next_in_ms: How long until the next one, None when there is none.
    """

    ids: list[bytes]
    next_in_ms: int | None


async def read_due(store: Store, space: PartitionSpace, limit: int) -> Due:
    """Ask what is due.

    Raises:
        StoreUnavailable: The store is away.
    """
    now_ms, next_ms, *ids = await store.fcall("due", [space.owner, space.due], [limit], read_only=True)
    return Due(ids, None if next_ms < 0 else max(next_ms - now_ms, 0))
