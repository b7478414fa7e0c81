"""What goes wrong in a long run with the store itself. Each kind of store brings its own faults.

A run on one server kills it, starts it again and lets it stand still. A run on several, where primaries fail over and
slots move, is the same run with another `StoreFaults`: nothing else of it knows what the store is made of.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import anyio
import anyio.to_thread
import redis

from keylane.journal.slots import slot_of

from .harness import OURS, StoreServer, eventually_aside, wait_for
from .network_server import NetworkServer
from .topologies import DOWN_MS, ClusterServers, SentinelServers
from .worker_process import FAST

#: A killed primary is noticed within three seconds; the rest is for slow machines.
RISE_SECONDS = 60.0
SETTLED_SECONDS = 120.0
LEASE_SECONDS = float(str(FAST["lease_seconds"]))

Servers: TypeAlias = StoreServer | ClusterServers | SentinelServers

#: Something that goes wrong with the store; what is left to chance in it comes from its own source.
StoreHurt: TypeAlias = Callable[[random.Random], Awaitable[None]]


class StoreFaults(Protocol):
    """What can go wrong with a kind of store, and how often beside everything else."""

    @property
    def servers(self) -> Servers:
        """The store."""
        ...

    @property
    def socket(self) -> Path | None:
        """The only server's socket, before which a proxy can be put; None where clients find their servers."""
        ...

    @property
    def replicas(self) -> int:
        """How many replicas workers have to wait for, so that none of these faults loses anything."""
        ...

    @property
    def hurts(self) -> Mapping[StoreHurt, int]:
        """The faults with their weights."""
        ...

    @property
    def outages(self) -> Sequence[tuple[float, float]]:
        """From when to when nobody could get an answer, however well everybody did, because the store was killed."""
        ...


class ServerFaults:
    """The faults of one server, one at a time.

    Args:
        server: The store.
    """

    replicas = 0

    def __init__(self, server: StoreServer) -> None:
        self.servers = self._server = server
        self.outages: list[tuple[float, float]] = []
        self._lock = anyio.Lock()

    @property
    def socket(self) -> Path:
        """The server's socket."""
        return self._server.socket

    @property
    def hurts(self) -> Mapping[StoreHurt, int]:
        """The faults with their weights."""
        return {self.restart_store: 2, self.stop_store: 1}

    async def restart_store(self, choose: random.Random) -> None:
        """Kill the store and start it again, at once or after a while."""
        async with self._lock:
            killed = time.monotonic()
            self._server.kill()
            await anyio.sleep(choose.choice([0, 0.5, 2.0]) * LEASE_SECONDS)
            await anyio.to_thread.run_sync(self._server.start)
            self.outages.append((killed, time.monotonic()))

    async def stop_store(self, choose: random.Random) -> None:
        """Let the store stand still, with all connections open."""
        async with self._lock:
            self._server.stop()
            await anyio.sleep(choose.choice([0.2, 1.0, 3.0]) * LEASE_SECONDS)
            self._server.go_on()


class SeveralFaults:
    """The faults of servers with replicas, one at a time; the next comes when all is whole again.

    Workers have to wait for the replica of each primary, so that what is acknowledged outlives any of them.

    Args:
        servers: The store.
    """

    socket = None
    replicas = 1

    def __init__(self, servers: ClusterServers | SentinelServers) -> None:
        self.servers: ClusterServers | SentinelServers = servers
        self._lock = anyio.Lock()
        self.outages: list[tuple[float, float]] = []

    @property
    def promotions(self) -> list[float]:
        """How long each killed primary had no successor, in seconds."""
        return [risen - killed for killed, risen in self.outages]

    @property
    def hurts(self) -> Mapping[StoreHurt, int]:
        """The faults with their weights."""
        common: dict[StoreHurt, int] = {self.fail_over: 1, self.stop_primary: 1, self.cut_off: 6, self.cut_replica: 1}
        return {**common, self.move_slots: 2} if isinstance(self.servers, ClusterServers) else common

    async def fail_over(self, choose: random.Random) -> None:
        """Kill a primary, wait until its replica has its place, and bring it back as the replica of that one."""
        async with self._lock:
            victim = choose.choice(await self._settled())
            others = [server for server in self.servers.servers if server is not victim]
            before = self.servers.primary_count - 1
            killed = time.monotonic()
            victim.kill()
            await eventually_aside(
                lambda: sum(server.is_primary for server in others) > before,
                "a replica rises",
                seconds=RISE_SECONDS,
            )
            self.outages.append((killed, time.monotonic()))
            await anyio.sleep(choose.choice([0, 1.0]) * LEASE_SECONDS)
            await anyio.to_thread.run_sync(self.servers.start_as_replica, victim)
            await self._settled()

    async def stop_primary(self, choose: random.Random) -> None:
        """Let a primary stand still: for a moment, or in a cluster until it has been replaced and learns of it."""
        async with self._lock:
            victim = choose.choice(await self._settled())
            longest = 3.0 if isinstance(self.servers, ClusterServers) else 0.6
            victim.stop()
            await anyio.sleep(choose.choice([0.2, 0.6, longest]) * DOWN_MS / 1000)
            victim.go_on()
            await self._settled()

    async def cut_off(self, choose: random.Random) -> None:
        """Have a server close the connections of all clients but ours, or of those that listen."""
        server = choose.choice(self.servers.servers)
        kind = choose.choice(["normal", "normal", "pubsub"])
        # What another fault has just killed can't cut anybody off.
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            await anyio.to_thread.run_sync(cut_others_off, server, kind)

    async def cut_replica(self, choose: random.Random) -> None:
        """Let nothing reach the replica of a primary for a while: nothing can be acknowledged meanwhile."""
        async with self._lock:
            primary = choose.choice(await self._settled())
            await anyio.to_thread.run_sync(self.servers.cut_replication, primary)
            await anyio.sleep(choose.choice([0.2, 1.0]) * LEASE_SECONDS)
            await anyio.to_thread.run_sync(self.servers.heal_replication)
            await self._settled()

    async def move_slots(self, choose: random.Random) -> None:
        """Move some slots from one primary to another, while they are written to."""
        assert isinstance(self.servers, ClusterServers)
        servers = self.servers
        async with self._lock:
            primaries = await self._settled()
            source = choose.choice(primaries)
            target = choose.choice([each for each in primaries if each is not source])
            await anyio.to_thread.run_sync(move_some_slot, servers, source, target)
            await self._settled()

    async def _settled(self) -> list[NetworkServer]:
        """Wait until the servers are settled, and return the primaries."""
        primaries: list[NetworkServer] = []

        def look() -> bool:
            primaries[:] = self.servers.all_primaries
            return self.servers.is_settled()

        await eventually_aside(look, "the servers are settled", seconds=SETTLED_SECONDS)
        return primaries


def cut_others_off(server: NetworkServer, kind: str) -> None:
    """Have a server close the connections of a kind, but for ours."""
    try:
        server.ask("CLIENT", "KILL", "TYPE", kind, "NOT-NAME", OURS)
    except redis.ResponseError:
        # Redis can't spare connections by their name: there, another fault may have to ask again.
        server.ask("CLIENT", "KILL", "TYPE", kind)


def move_some_slot(servers: ClusterServers, source: NetworkServer, target: NetworkServer) -> None:
    """Move a slot that has something in it, unless one of both loses its place to its replica meanwhile."""
    keys: list[bytes | None] = []
    wait_for(lambda: keys.append(source.ask("RANDOMKEY")) or True, "the source names a key")
    [key] = keys
    if key is None:
        return
    slot = slot_of(key)

    def has_moved() -> bool:
        if servers.has(target, slot) or not (source.is_primary and target.is_primary):
            return True
        # Refused while the move is under way; one that was broken off begins anew.
        servers.move_at_once(slot, source, target)
        return False

    wait_for(has_moved, "the slot has moved", seconds=SETTLED_SECONDS)
