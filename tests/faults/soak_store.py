"""What goes wrong in a long run with the store itself. Each kind of store brings its own faults.

A run on one server kills it, starts it again and lets it stand still. A run on several, where primaries fail over and
slots move, is the same run with another `StoreFaults`: nothing else of it knows what the store is made of.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeAlias

import anyio
import anyio.to_thread
import redis

from keylane.journal.slots import slot_of

from .harness import StoreServer, eventually_aside
from .topologies import DOWN_MS, ClusterServers, SentinelServers
from .worker_process import FAST

#: A killed primary is noticed after a second; the rest is for slow machines.
RISE_SECONDS = 30.0
SETTLED_SECONDS = 60.0
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


class ServerFaults:
    """The faults of one server, one at a time.

    Args:
        server: The store.
    """

    replicas = 0

    def __init__(self, server: StoreServer) -> None:
        self.servers = self._server = server
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
            self._server.kill()
            await anyio.sleep(choose.choice([0, 0.5, 2.0]) * LEASE_SECONDS)
            await anyio.to_thread.run_sync(self._server.start)

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
        #: How long the primary of a slot had no successor, in seconds.
        self.promotions: list[float] = []

    @property
    def hurts(self) -> Mapping[StoreHurt, int]:
        """The faults with their weights."""
        common: dict[StoreHurt, int] = {self.fail_over: 1, self.stop_primary: 1, self.cut_off: 6, self.cut_replica: 1}
        return {**common, self.move_slots: 2} if isinstance(self.servers, ClusterServers) else common

    async def fail_over(self, choose: random.Random) -> None:
        """Kill a primary, wait until its replica has its place, and bring it back as the replica of that one."""
        async with self._lock:
            await self._settled()
            victim = choose.choice(self.servers.primaries)
            others = [server for server in self.servers.servers if server is not victim]
            before = sum(server.is_primary for server in others)
            killed = time.monotonic()
            victim.kill()
            await eventually_aside(
                lambda: sum(server.is_primary for server in others) > before,
                "a replica rises",
                seconds=RISE_SECONDS,
            )
            self.promotions.append(time.monotonic() - killed)
            await anyio.sleep(choose.choice([0, 1.0]) * LEASE_SECONDS)
            await anyio.to_thread.run_sync(self.servers.start_as_replica, victim)
            await self._settled()

    async def stop_primary(self, choose: random.Random) -> None:
        """Let a primary stand still: for a moment, or in a cluster until it has been replaced and learns of it."""
        async with self._lock:
            await self._settled()
            victim = choose.choice(self.servers.primaries)
            longest = 3.0 if isinstance(self.servers, ClusterServers) else 0.6
            victim.stop()
            await anyio.sleep(choose.choice([0.2, 0.6, longest]) * DOWN_MS / 1000)
            victim.go_on()
            await self._settled()

    async def cut_off(self, choose: random.Random) -> None:
        """Have a server close the connections of all clients, or of those that listen."""
        server = choose.choice(self.servers.servers)
        kind = choose.choice(["normal", "normal", "pubsub"])
        with contextlib.suppress(redis.RedisError):
            await anyio.to_thread.run_sync(server.ask, "CLIENT", "KILL", "TYPE", kind)

    async def cut_replica(self, choose: random.Random) -> None:
        """Let nothing reach the replica of a primary for a while: nothing can be acknowledged meanwhile."""
        async with self._lock:
            await self._settled()
            await anyio.to_thread.run_sync(self.servers.cut_replication, choose.choice(self.servers.primaries))
            await anyio.sleep(choose.choice([0.2, 1.0]) * LEASE_SECONDS)
            await anyio.to_thread.run_sync(self.servers.heal_replication)
            await self._settled()

    async def move_slots(self, choose: random.Random) -> None:
        """Move some slots from one primary to another, while they are written to."""
        assert isinstance(self.servers, ClusterServers)
        servers = self.servers
        async with self._lock:
            await self._settled()
            source = choose.choice(servers.primaries)
            target = choose.choice([each for each in servers.primaries if each is not source])
            key: bytes | None = source.ask("RANDOMKEY")
            if key is None:
                return
            slot = slot_of(key)
            await anyio.to_thread.run_sync(servers.move_at_once, slot, source, target)
            await eventually_aside(lambda: servers.has(target, slot), "the slot has moved", seconds=SETTLED_SECONDS)
            await self._settled()

    async def _settled(self) -> None:
        await eventually_aside(self._is_settled, "the servers are settled", seconds=SETTLED_SECONDS)

    def _is_settled(self) -> bool:
        try:
            return self.servers.is_settled()
        except redis.RedisError:
            return False
