"""The clocks of a store's servers: each partition goes by that of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..keyspace import PartitionSpace
from ..node import Node
from ..store import Store


@dataclass(frozen=True, slots=True)
class Clocks:
    """What the clocks of all servers said at about one moment.

    Args:
        store: The open store.
        by_node: The time of each, in milliseconds.
    """

    store: Store
    by_node: Mapping[Node, int]

    def of(self, space: PartitionSpace) -> int:
        """Return the time of the server that has a partition.

        Raises:
            StoreUnavailable: Nobody is known to have it.
        """
        return self.by_node.get(self.store.topology.node_of(space.owner), self.latest)

    @property
    def latest(self) -> int:
        """The latest of them."""
        return max(self.by_node.values())


async def read_clocks(store: Store) -> Clocks:
    """Ask every server that is connected for its time.

    Raises:
        StoreUnavailable: One of them is away.
    """
    found: dict[Node, int] = {}
    for node in store.connected:
        clock: Any = await node.call("TIME")
        found[node] = int(clock[0]) * 1000 + int(clock[1]) // 1000
    return Clocks(store, found)
