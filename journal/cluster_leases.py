"""Renewals in a cluster: each node over a connection and in a thread of its own, so that none waits for another.

The thread of the leases has to go on while the event loop is stuck, so it follows the slots by itself where the loop's
map is behind.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import redis.exceptions

from .connections import sync_client_to
from .library import Library
from .refusals import redirect_of
from .renewals import Held, NotRenewed, Renewal, SyncLeases, renewal_of
from .slots import View, slot_of
from .urls import Host

if TYPE_CHECKING:
    from .cluster import Cluster

#: Nodes that are spoken to at once.
THREADS: Final = 32
#: How often a renewal follows where the nodes point.
ROUNDS_MAX: Final = 4

#: Where a renewal goes, and whether its slot is still on its way there.
_Place: TypeAlias = tuple[Host, bool]


class ClusterLeases:
    """The renewals of one worker.

    Args:
        cluster: Its map is where the search begins.
        library: The functions.
        timeout_seconds: How long all renewals together may take.
    """

    def __init__(self, cluster: Cluster, library: Library, timeout_seconds: float) -> None:
        self._cluster = cluster
        self._library = library
        self._timeout_seconds = timeout_seconds
        self._nodes: dict[Host, SyncLeases] = {}
        self._busy: dict[Host, Future[list[Any]]] = {}
        self._learned: dict[int, Host] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="keylane-leases")

    def renew(self, held: Held) -> list[Renewal]:
        """Raise the counters of tenures, on all nodes at once.

        Returns:
            What became of each, in order. A node that does not answer costs its own partitions only.
        """
        deadline = time.monotonic() + self._timeout_seconds
        renewals: list[Renewal] = [NotRenewed("no node of the cluster serves its slot")] * len(held)
        todo: dict[int, _Place] = {}
        for position, (space, _) in enumerate(held):
            host = self._host_of(slot_of(space.owner))
            if host is not None:
                todo[position] = (host, False)
        for _ in range(ROUNDS_MAX):
            if todo and time.monotonic() < deadline:
                todo = self._round(held, todo, renewals, deadline)
        return renewals

    def _host_of(self, slot: int) -> Host | None:
        return self._learned.get(slot) or self._cluster.host_of(slot)

    def _round(
        self, held: Held, todo: dict[int, _Place], renewals: list[Renewal], deadline: float
    ) -> dict[int, _Place]:
        """Ask every node that has some, and return what has to be asked elsewhere."""
        by_place: dict[_Place, list[int]] = {}
        for position, place in todo.items():
            by_place.setdefault(place, []).append(position)
        asked = {
            place: self._ask(place, [held[position] for position in positions]) for place, positions in by_place.items()
        }
        wait([future for future in asked.values() if future is not None], max(deadline - time.monotonic(), 0))
        elsewhere: dict[int, _Place] = {}
        for place, future in asked.items():
            positions = by_place[place]
            replies = self._replies(place[0], future, len(positions))
            for position, reply in zip(positions, replies, strict=True):
                found = self._follow(reply)
                renewals[position] = renewal_of(reply)
                if found is not None:
                    elsewhere[position] = found
        return elsewhere

    def _ask(self, place: _Place, held: Held) -> Future[list[Any]] | None:
        host, is_asking = place
        busy = self._busy.get(host)
        if busy is not None and not busy.done():
            # Its last question is still open, and its connection with it.
            return None
        future = self._busy[host] = self._threads.submit(self._at(host).ask, held, is_asking=is_asking)
        return future

    def _at(self, host: Host) -> SyncLeases:
        leases = self._nodes.get(host)
        if leases is None:
            client = sync_client_to(self._cluster.address_of(host), timeout_seconds=self._timeout_seconds)
            leases = self._nodes[host] = SyncLeases(client, self._library)
        return leases

    def _replies(self, host: Host, future: Future[list[Any]] | None, count: int) -> Sequence[Any]:
        error: Exception
        if future is None or not future.done():
            error = redis.exceptions.TimeoutError(f"{host} gave no answer yet")
        else:
            try:
                return future.result()
            except (OSError, redis.exceptions.RedisError) as problem:
                error = problem
        self._lost(host)
        return [error] * count

    def _follow(self, reply: Any) -> _Place | None:
        redirect = redirect_of(reply)
        if redirect is None or not redirect.host:
            return None
        host = Host(redirect.host, redirect.port)
        if not redirect.is_ask:
            self._learned[redirect.slot] = host
        return host, redirect.is_ask

    def _lost(self, host: Host) -> None:
        """Have others say where the slots of a node are that is lost; the next turn goes by it."""
        self._learned = {slot: other for slot, other in self._learned.items() if other != host}
        for other, leases in self._nodes.items():
            busy = self._busy.get(other)
            if other != host and busy is not None and busy.done() and busy.exception() is None:
                self._threads.submit(self._learn, leases, other)
                return

    def _learn(self, leases: SyncLeases, host: Host) -> None:
        try:
            view: View = leases.read_map(host)
        except (OSError, redis.exceptions.RedisError):
            return
        self._learned = {slot: owner for first, last, owner in view.ranges for slot in range(first, last + 1)}

    def close(self) -> None:
        """Close the connections; what waits in another thread ends by that."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for leases in list(self._nodes.values()):
            leases.close()
