"""One server that takes writes: its two connections, and the committer of the partitions that it has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import redis.exceptions

from .committer import Committer
from .library import Library
from .link import Connection, Link, LinkLost
from .memory import MemoryWatch
from .observer import Observer
from .refusals import store_error
from .replication import DurableCalls
from .server_identity import IdentityWatch
from .urls import Host
from .writer import Routes


class Node:
    """A primary, or the only server.

    Args:
        target: How it is named in messages.
        make_connection: Makes an unconnected connection to it, wherever it is by then.
        on_connect: Told of each new connection before anything else is sent over it.
        library: The functions.
        observer: Told of every state change that is sent.
        routes: Knows which server has which partition.
        answer_timeout_seconds: How long an answer may take before a connection counts as lost.
        memory_limit_ratio: The part of its `maxmemory` at which nothing new is taken in.
        leaves_read_only: Whether a connection is given up when its server says that it is a replica, because the next
            one may lead to the primary.
        host: Where it is, for a node of a cluster.
        replicas: How many have to have a commit before it is told of as durable.
    """

    def __init__(
        self,
        target: str,
        make_connection: Callable[[], Connection],
        *,
        on_connect: Callable[[Node, Connection], Awaitable[None]],
        library: Library,
        observer: Observer,
        routes: Routes,
        answer_timeout_seconds: float,
        memory_limit_ratio: float,
        leaves_read_only: bool = False,
        host: Host | None = None,
        replicas: int = 0,
    ) -> None:
        self.target = target
        self.host = host

        async def connected(connection: Connection) -> None:
            await on_connect(self, connection)

        def link(name: str) -> Link:
            return Link(
                make_connection,
                name=name,
                target=target,
                answer_timeout_seconds=answer_timeout_seconds,
                on_connect=connected,
                leaves_read_only=leaves_read_only,
            )

        self.calls = link("calls")
        self.commits = link("commits")
        self.identity = IdentityWatch()
        self.memory = MemoryWatch(self.call, memory_limit_ratio)
        self.committer = Committer(
            self.commits,
            library,
            observer,
            routes,
            self.memory.note_refusal,
            replicas=replicas,
            identity=self.identity,
        )
        #: The connection of calls that wait for replicas; made when the first such call is wanted.
        self.sends = link("sends")
        self.durable = DurableCalls(self.sends, library)
        self._sends_wanted = anyio.Event()
        self._scope: anyio.CancelScope | None = None
        self._is_closed = False
        if replicas:
            self.want_sends()

    async def run(self) -> None:
        """Keep connected and send, until it is closed or cancelled."""
        if self._is_closed:
            return
        with anyio.CancelScope() as self._scope:
            async with anyio.create_task_group() as tasks:
                runs = (self.calls.run, self.commits.run, self.committer.run, self.memory.run, self.run_sends)
                for work in runs:
                    tasks.start_soon(work)

    async def run_sends(self) -> None:
        """Keep the connection of durable calls, once it is wanted."""
        await self._sends_wanted.wait()
        await self.sends.run()

    def want_sends(self) -> None:
        """Have the connection of durable calls made."""
        self._sends_wanted.set()

    @property
    def is_quiet(self) -> bool:
        """Whether every command that was submitted has been answered."""
        return self.calls.is_quiet and self.commits.is_quiet and self.sends.is_quiet

    def sever(self) -> None:
        """Send nothing to it any more, as if the process had been killed."""
        for link in (self.calls, self.commits, self.sends):
            link.sever()

    def close(self) -> None:
        """End `run`; what was on its way gets `LinkLost`."""
        self._is_closed = True
        if self._scope is not None:
            self._scope.cancel()

    async def call(self, *words: Any) -> Any:
        """Send one command to this very server.

        Raises:
            StoreUnavailable: It is away, or gave no answer: whether the command ran is unknown.
            StoreFull: It has no memory for it.
            redis.exceptions.ResponseError: Another refusal of the server.
        """
        try:
            return await self.calls.call(*words)
        except (LinkLost, redis.exceptions.ResponseError, redis.exceptions.ConnectionError) as error:
            raise store_error(error, self.target) from error
