"""Which servers a store has, and which of them a command goes to; here for a store that is one server at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from anyio.abc import TaskGroup

from .committer import Committer
from .keyspace import PartitionSpace
from .library import Library
from .link import Connection, Done
from .node import Node
from .observer import Observer
from .refusals import said
from .sentinel import PrimaryWatch
from .subscription import Listening, Subscription
from .urls import Host, SentinelAddress, ServerAddress, SocketAddress
from .writer import PartitionWriter, Routes

#: Sends a command and hands the reply, or the exception that stands for it, to a function that must not raise.
Submit: TypeAlias = Callable[[tuple[Any, ...], Done], None]


@dataclass(frozen=True, slots=True)
class Parts:
    """What the nodes of a store are made of.

    Args:
        connect: Makes an unconnected connection to an address, for a sentinel's one to the primary that it names.
        on_connect: Told of each new connection of a node before anything else is sent over it.
        library: The functions.
        observer: Told of every state change that is sent.
        answer_timeout_seconds: How long an answer may take before a connection counts as lost.
        memory_limit_ratio: The part of a server's `maxmemory` at which nothing new is taken in.
        replicas: How many have to have a commit before it is told of as durable.
    """

    connect: Callable[[ServerAddress | SocketAddress | SentinelAddress], Connection]
    on_connect: Callable[[Node, Connection], Awaitable[None]]
    library: Library
    observer: Observer
    answer_timeout_seconds: float
    memory_limit_ratio: float
    replicas: int = 0

    def node(
        self,
        target: str,
        make_connection: Callable[[], Connection],
        routes: Routes,
        *,
        leaves_read_only: bool = False,
        host: Host | None = None,
    ) -> Node:
        """Return a node that does not run yet."""
        return Node(
            target,
            make_connection,
            on_connect=self.on_connect,
            library=self.library,
            observer=self.observer,
            routes=routes,
            answer_timeout_seconds=self.answer_timeout_seconds,
            memory_limit_ratio=self.memory_limit_ratio,
            leaves_read_only=leaves_read_only,
            host=host,
            replicas=self.replicas,
        )


class Topology(Routes, Protocol):
    """The servers of a store."""

    @property
    def nodes(self) -> Sequence[Node]:
        """Those that take writes now."""
        ...

    def node_of(self, key: bytes) -> Node:
        """Return the node that has a key."""
        ...

    def attend(self, writer: PartitionWriter) -> None:
        """Have a writer follow its partition to the server that has it."""
        ...

    async def open(self, tasks: TaskGroup, timeout_seconds: float) -> None:
        """Connect, and keep connected in these tasks.

        Raises:
            StoreUnavailable: Nobody answered in time.
        """
        ...

    async def wait_up(self, timeout_seconds: float) -> None:
        """Wait until commands can be sent.

        Raises:
            StoreUnavailable: They can't within the time.
        """
        ...

    @property
    def submit(self) -> Submit:
        """Send a command to the node that has its key; while that is not connected, `LinkLost` comes at once."""
        ...

    def submit_beside(self, commands: Sequence[tuple[Any, ...]]) -> Submit:
        """Return what sends these commands: those without a key go where the first one with a key goes."""
        ...

    async def reach(self, key: bytes) -> Node:
        """Wait until the node that has a key is connected, and return it.

        Raises:
            StoreUnavailable: None did so in time.
        """
        ...

    async def call(self, *words: Any) -> Any:
        """Send a command to the node that has its key, and wait for the reply.

        Raises:
            StoreUnavailable: That node did not come up in time.
            LinkLost: The connection went down before the answer.
            redis.exceptions.ResponseError: The server's refusal.
        """
        ...

    def why_down(self, space: PartitionSpace) -> str | None:
        """Return why the server of a partition can't be reached, None when it can."""
        ...

    def new_subscription(self, *, on_message: Callable[[bytes, bytes], None], on_gap: Callable[[], None]) -> Listening:
        """Return a subscription that follows its channels to the servers that have them."""
        ...


class OneServer:
    """A store that is one server at a time: a fixed one, or whichever the sentinels name.

    Args:
        address: Where it is, or who knows it.
        parts: What its node is made of.
    """

    def __init__(self, address: ServerAddress | SocketAddress | SentinelAddress, parts: Parts) -> None:
        self.troubles: dict[bytes, str] = {}
        self._address = address
        self._parts = parts
        is_found = isinstance(address, SentinelAddress)
        self._watch = PrimaryWatch(address, partial(parts.connect, address)) if is_found else None
        self._node = parts.node(str(address), self._connect, self, leaves_read_only=is_found)
        self.nodes: Sequence[Node] = (self._node,)
        #: Bound once: a command of the only server costs no routing.
        self.submit: Submit = self._node.calls.submit
        self.call = self._node.calls.call

    def _connect(self) -> Connection:
        return self._parts.connect(self._address) if self._watch is None else self._watch.connection()

    def node_of(self, key: bytes) -> Node:
        """Return the only node."""
        del key
        return self._node

    async def reach(self, key: bytes) -> Node:
        """Wait until the only node is connected."""
        del key
        await self._node.calls.wait_up(self._parts.answer_timeout_seconds)
        return self._node

    def committer_of(self, space: PartitionSpace) -> Committer:
        """Return the only committer."""
        del space
        return self._node.committer

    def attend(self, writer: PartitionWriter) -> None:
        """There is nowhere to go."""
        del writer

    def refused(self, error: Exception) -> None:
        """There is no other server to go to."""
        del error

    def lost(self) -> None:
        """The link comes back by itself."""

    async def open(self, tasks: TaskGroup, timeout_seconds: float) -> None:
        """Connect; the second connection is made once the first one stands."""
        tasks.start_soon(self._node.calls.run)
        await self._node.calls.wait_up(timeout_seconds)
        tasks.start_soon(self._node.commits.run)
        tasks.start_soon(self._node.committer.run)
        tasks.start_soon(self._node.memory.run)
        tasks.start_soon(self._node.run_sends)
        if self._watch is not None:
            tasks.start_soon(self._watch.run)

    async def wait_up(self, timeout_seconds: float) -> None:
        """Wait until the server is connected."""
        await self._node.calls.wait_up(timeout_seconds)

    def submit_beside(self, commands: Sequence[tuple[Any, ...]]) -> Submit:
        """Return what sends to the only server."""
        del commands
        return self.submit

    def why_down(self, space: PartitionSpace) -> str | None:
        """Return why the server can't be reached."""
        del space
        calls = self._node.calls
        return None if calls.is_up else f"not connected: {said(calls.last_error)}"

    def new_subscription(self, *, on_message: Callable[[bytes, bytes], None], on_gap: Callable[[], None]) -> Listening:
        """Return a subscription on the only server."""
        return Subscription(self._connect, on_message=on_message, on_gap=on_gap, observer=self._parts.observer)
