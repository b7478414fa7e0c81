"""Which partitions can be read: in a cluster some stand still, and what is half of a partition must not be judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ..errors import StoreUnavailable
from ..keyspace import PartitionSpace
from ..store import Store
from ..urls import ClusterAddress
from .findings import Finding, Kind, Place

#: Partitions that one turn is about.
AT_ONCE: Final = 512


@dataclass(slots=True)
class Reach:
    """The partitions that a checkup has asked for, each asked before anything else of it is read.

    A store of one server is there as a whole or not at all: nothing is asked.

    Args:
        store: The open store.
        away: Why partitions can't be read, by partition.
    """

    store: Store
    away: dict[PartitionSpace, str] = field(default_factory=dict[PartitionSpace, str])
    _there: set[PartitionSpace] = field(default_factory=set[PartitionSpace])

    async def readable(self, spaces: Iterable[PartitionSpace]) -> list[PartitionSpace]:
        """Return those of some partitions that can be read.

        Raises:
            StoreUnavailable: No server can be reached.
        """
        wanted = list(dict.fromkeys(spaces))
        if not isinstance(self.store.address, ClusterAddress):
            return wanted
        await self._ask([space for space in wanted if space not in self._there and space not in self.away])
        return [space for space in wanted if space in self._there]

    async def confirmed(self) -> list[Finding]:
        """Return those that can't be read, once nothing else has stopped meanwhile.

        Single reads go on in a partition that stands still, so that nothing has to have failed.

        Raises:
            StoreUnavailable: A partition that could be read can't be any more, or no server can be reached.
        """
        spaces = list(self._there)
        await self._ask(spaces)
        for space in spaces:
            if space in self.away:
                raise StoreUnavailable(self.store.url, self.away[space])
        return [_unreadable(space, why) for space, why in self.away.items()]

    async def _ask(self, spaces: list[PartitionSpace]) -> None:
        for start in range(0, len(spaces), AT_ONCE):
            piece = spaces[start : start + AT_ONCE]
            # No result has an empty id. A slot that is being moved refuses whatever asks for more than one key and
            # misses one, wherever the others are by now: so do commits and the reads of checks, sooner or later.
            replies = await self.store.each([("EXISTS", space.owner, space.result(b"")) for space in piece])
            for space, reply in zip(piece, replies, strict=True):
                if isinstance(reply, StoreUnavailable):
                    self.away[space] = self.store.topology.why_down(space) or reply.why
                else:
                    self._there.add(space)


def _unreadable(space: PartitionSpace, why: str) -> Finding:
    return Finding(
        Kind.PARTITION_UNREADABLE,
        Place(space.type_name, space.number),
        f"it can't be read now: {why}; nothing of it was judged, nor what is on its way to it",
        "it goes on by itself once its slot has arrived or its node is back: see to that, and look again then",
    )
