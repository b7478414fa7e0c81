"""What goes wrong in a long run with the store itself. Each kind of store brings its own faults.

A run on one server kills it, starts it again and lets it stand still. A run on several, where primaries fail over and
slots move, is the same run with another `StoreFaults`: nothing else of it knows what the store is made of.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias

import anyio
import anyio.to_thread

from .harness import StoreServer
from .worker_process import FAST

LEASE_SECONDS = float(str(FAST["lease_seconds"]))

#: Something that goes wrong with the store; what is left to chance in it comes from its own source.
StoreHurt: TypeAlias = Callable[[random.Random], Awaitable[None]]


class StoreFaults(Protocol):
    """What can go wrong with a kind of store, and how often beside everything else."""

    @property
    def hurts(self) -> Mapping[StoreHurt, int]:
        """The faults with their weights."""
        ...


class ServerFaults:
    """The faults of one server, one at a time.

    Args:
        server: The store.
    """

    def __init__(self, server: StoreServer) -> None:
        self._server = server
        self._lock = anyio.Lock()

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
