"""How many effects and proposals of partitions wait for people: counted in the indexes, for who watches them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .keyspace import PartitionSpace
from .lane_reading import ask
from .ledger_reading import read_queue
from .store import Store

#: So many effects are looked at to tell by receiver; what is more is counted without.
QUEUE_MAX: Final = 5_000
MANY: Final = "(not looked at)"


@dataclass(frozen=True, slots=True)
class ProposalCount:
    """How many proposals of a partition are open.

    Args:
        open: All that wait for a decision.
        overdue: Those of them whose time has passed by now.
    """

    open: int
    overdue: int


async def count_proposals(store: Store, now_ms: Mapping[PartitionSpace, int]) -> dict[PartitionSpace, ProposalCount]:
    """Return how many proposals of partitions wait for a decision.

    Args:
        store: The open store.
        now_ms: The time of each partition.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where an index belongs.
    """
    spaces = list(now_ms)
    keys = [space.proposed for space in spaces]
    counts = await ask(store, [("ZCARD", key) for key in keys], keys)
    passed = [("ZCOUNT", space.proposed, "-inf", now_ms[space]) for space in spaces]
    overdue = await ask(store, passed, keys)
    return {space: ProposalCount(count, late) for space, count, late in zip(spaces, counts, overdue, strict=True)}


async def count_queued(store: Store, spaces: Sequence[PartitionSpace]) -> dict[tuple[str, str], int]:
    """Return how many effects people have to settle, by object type and receiver.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where one of ours belongs.
    """
    sizes = await ask(store, [("ZCARD", space.queue) for space in spaces], [space.queue for space in spaces])
    queued = {space: size for space, size in zip(spaces, sizes, strict=True) if size}
    counts: dict[tuple[str, str], int] = {}
    looked_at = 0
    few: list[PartitionSpace] = []
    for space, size in queued.items():
        looked_at += size
        if looked_at > QUEUE_MAX:
            _add(counts, space.type_name, MANY, size)
        else:
            few.append(space)
    async for page in read_queue(store, few):
        for found in page:
            if found.entry is not None:
                _add(counts, found.space.type_name, found.entry.receiver, 1)
    return counts


def _add(counts: dict[tuple[str, str], int], type_name: str, receiver: str, count: int) -> None:
    counts[type_name, receiver] = counts.get((type_name, receiver), 0) + count
