"""A cluster: who has which slot, one node for each primary, and commands that follow their slots.

What a node says of a slot that it does not serve (MOVED, ASK) was not applied and goes to the node that it names. The
map as a whole is read anew when a node is lost, when a slot has moved, and now and then.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import anyio
from anyio.abc import TaskGroup

from .cluster_sending import Sending
from .cluster_subscription import ClusterSubscription
from .cluster_views import read_views
from .committer import Committer
from .errors import StoreUnavailable
from .futures import resolve_reply
from .keyspace import PartitionSpace
from .library import Library
from .link import Done
from .node import Node
from .refusals import Redirect, redirect_of, said
from .slots import SLOTS, View, key_of, slot_of
from .topology import Parts, Submit
from .urls import ClusterAddress, Host, ServerAddress
from .writer import PartitionWriter

logger = logging.getLogger("keylane.cluster")

#: How often the map is read when nothing asks for it.
REFRESH_SECONDS: Final = 10.0
#: And at most so often when something does.
REFRESH_SPACING_SECONDS: Final = 0.1
#: A node without a slot is kept for so long: a view of the cluster may be behind.
IDLE_NODE_SECONDS: Final = 30.0
LOOK_AGAIN_SECONDS: Final = 0.02


class MapListener(Protocol):
    """What goes where the slots go."""

    def slots_moved(self) -> None:
        """Follow."""
        ...


class Cluster:
    """The primaries of a cluster.

    Args:
        address: Some of its nodes.
        parts: What a node of ours is made of.
    """

    def __init__(self, address: ClusterAddress, parts: Parts) -> None:
        self.troubles: dict[bytes, str] = {}
        self._address = address
        self._parts = parts
        self._nodes: dict[Host, Node] = {}
        self._others: tuple[Host, ...] = ()
        self._idle_since: dict[Host, float] = {}
        #: Replaced slot by slot and read from other threads, which see the one or the other.
        self._slots: list[Node | None] = [None] * SLOTS
        self._tasks: TaskGroup | None = None
        self._wanted = asyncio.Event()
        self._writers: weakref.WeakSet[PartitionWriter] = weakref.WeakSet()
        self._listeners: weakref.WeakSet[MapListener] = weakref.WeakSet()
        self._last_error = "no node has told its map yet"

    @property
    def nodes(self) -> Sequence[Node]:
        """The primaries that have slots."""
        return [node for host, node in self._nodes.items() if host not in self._idle_since]

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Every host that may know the map: first those that are primaries, last those of the URL."""
        return tuple(dict.fromkeys((*self._nodes, *self._others, *self._address.hosts)))

    @property
    def library(self) -> Library:
        """The functions."""
        return self._parts.library

    @property
    def answer_timeout_seconds(self) -> float:
        """How long an answer may take."""
        return self._parts.answer_timeout_seconds

    def address_of(self, host: Host) -> ServerAddress:
        """Return the address of a host, with the credentials of the URL."""
        return ServerAddress(host, self._address.access)

    def host_of(self, slot: int) -> Host | None:
        """Return which host has a slot; may be asked from any thread."""
        node = self._slots[slot]
        return None if node is None else node.host

    def node_of(self, key: bytes) -> Node:
        """Return the node that has a key.

        Raises:
            StoreUnavailable: None has its slot.
        """
        node = self._slots[slot_of(key)]
        if node is None:
            self.want_map()
            raise StoreUnavailable(str(self._address), "no node of the cluster serves this slot now")
        return node

    # What writers need to know.

    def committer_of(self, space: PartitionSpace) -> Committer:
        """Return the committer of the node that has a partition; while none has it, that of any node."""
        node = self._slots[slot_of(space.owner)]
        return (node or self._any_node()).committer

    def attend(self, writer: PartitionWriter) -> None:
        """Have a writer follow its slot."""
        self._writers.add(writer)

    def listen(self, listener: MapListener) -> None:
        """Have something told when slots have moved."""
        self._listeners.add(listener)

    def refused(self, error: Exception) -> Committer | None:
        """Learn from a refusal where a slot is, and return where this one command belongs if it is on its way."""
        redirect = redirect_of(error)
        if redirect is None or not redirect.host:
            self.want_map()
            return None
        node = self.named(redirect)
        if redirect.is_ask:
            return node.committer
        self._moved(redirect.slot, node)
        return None

    def named(self, redirect: Redirect) -> Node:
        """Return the node that a redirection names."""
        return self._node_at(Host(redirect.host, redirect.port))

    def lost(self) -> None:
        """Have the map read anew: the slots of a node that is gone may have gone to another one."""
        self.want_map()

    def want_map(self) -> None:
        """Have the map read soon."""
        self._wanted.set()

    # Sending.

    def submit(self, words: tuple[Any, ...], done: Done) -> None:
        """Send a command to the node that has its key; while that is not connected, `LinkLost` comes at once."""
        Sending(self, words, done, key_of(words)).send()

    def submit_beside(self, commands: Sequence[tuple[Any, ...]]) -> Submit:
        """Return what sends these commands: those without a key go where the first one with a key goes."""
        beside = next((key for words in commands if (key := key_of(words)) is not None), None)

        def submit(words: tuple[Any, ...], done: Done) -> None:
            Sending(self, words, done, key_of(words) or beside).send()

        return submit

    async def call(self, *words: Any) -> Any:
        """Send a command to the node that has its key, waiting for a node that has it, and wait for the reply."""
        key = key_of(words)
        await self.reach(key)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        Sending(self, words, partial(resolve_reply, future), key).send()
        return await future

    async def reach(self, key: bytes | None) -> Node:
        """Wait until the node for a key is connected, and return it."""
        deadline = time.monotonic() + self._parts.answer_timeout_seconds
        while (node := self.at(key)) is None or not node.calls.is_up:
            self.want_map()
            if time.monotonic() > deadline:
                raise StoreUnavailable(str(self._address), self._why_not(node))
            await anyio.sleep(LOOK_AGAIN_SECONDS)
        return node

    def at(self, key: bytes | None) -> Node | None:
        """Return the node for a key, or one that is connected for a command without."""
        return self._any_node() if key is None else self._slots[slot_of(key)]

    def _why_not(self, node: Node | None) -> str:
        if node is None:
            return f"no node of the cluster serves this slot now: {self._last_error}"
        return f"its node {node.host} is not connected: {said(node.calls.last_error)}"

    def why_down(self, space: PartitionSpace) -> str | None:
        """Return why the node of a partition can't be reached, None when it can."""
        node = self._slots[slot_of(space.owner)]
        return None if node is not None and node.calls.is_up else self._why_not(node)

    async def wait_up(self, timeout_seconds: float) -> None:
        """Wait until any node is connected: one that is away must not keep what the others have."""
        deadline = time.monotonic() + timeout_seconds
        while not any(node.calls.is_up for node in self._nodes.values()):
            if time.monotonic() > deadline:
                raise StoreUnavailable(str(self._address), self._last_error)
            await anyio.sleep(LOOK_AGAIN_SECONDS)

    def new_subscription(
        self, *, on_message: Callable[[bytes, bytes], None], on_gap: Callable[[], None]
    ) -> ClusterSubscription:
        """Return a subscription with a connection to each node that has a wanted channel."""
        return ClusterSubscription(self, self._parts, on_message=on_message, on_gap=on_gap)

    # The map.

    async def open(self, tasks: TaskGroup, timeout_seconds: float) -> None:
        """Read the map and connect to all primaries, as many as answer."""
        self._tasks = tasks
        deadline = time.monotonic() + timeout_seconds
        while not self._nodes:
            await self._read_map()
            if not self._nodes:
                if time.monotonic() > deadline:
                    raise StoreUnavailable(str(self._address), self._last_error)
                await anyio.sleep(LOOK_AGAIN_SECONDS)
        tasks.start_soon(self._keep_map)
        with anyio.move_on_after(max(deadline - time.monotonic(), 0.1)):
            while not all(node.calls.is_up and node.commits.is_up for node in self.nodes):
                # One that is away may have been replaced, which the map has not told yet.
                self.want_map()
                await anyio.sleep(LOOK_AGAIN_SECONDS / 4)
        await self.wait_up(0.1)

    async def _keep_map(self) -> None:
        while True:
            with anyio.move_on_after(REFRESH_SECONDS):
                await self._wanted.wait()
            self._wanted.clear()
            await self._read_map()
            await anyio.sleep(REFRESH_SPACING_SECONDS)

    async def _read_map(self) -> None:
        links = {host: node.calls for host, node in self._nodes.items() if node.calls.is_up}
        strangers = [self.address_of(host) for host in self.hosts if host not in links]
        views, problems = await read_views(links, strangers, self._parts.connect)
        if not views:
            self._last_error = "; ".join(problems) or "no node answered"
            return
        # One that was cut off from the others has not heard of the last failovers.
        self._take(max(views, key=lambda each: each.epoch))

    def _take(self, view: View) -> None:
        slots: list[Node | None] = [None] * SLOTS
        for first, last, host in view.ranges:
            slots[first : last + 1] = [self._node_at(host)] * (last + 1 - first)
        self._others = view.others
        has_moved = slots != self._slots
        self._slots = slots
        self._retire(set(slots))
        if has_moved:
            self._tell()

    def _retire(self, used: set[Node | None]) -> None:
        now = time.monotonic()
        for host, node in list(self._nodes.items()):
            if node in used:
                self._idle_since.pop(host, None)
            elif now - self._idle_since.setdefault(host, now) > IDLE_NODE_SECONDS:
                del self._nodes[host], self._idle_since[host]
                node.close()

    def _moved(self, slot: int, node: Node) -> None:
        if self._slots[slot] is not node:
            if node.host is not None:
                self._idle_since.pop(node.host, None)
            self._slots[slot] = node
            # Rarely one slot goes alone.
            self.want_map()
            self._tell()

    def _tell(self) -> None:
        for writer in list(self._writers):
            writer.settle()
        for listener in list(self._listeners):
            listener.slots_moved()

    def _node_at(self, host: Host) -> Node:
        node = self._nodes.get(host)
        if node is None:
            logger.info("the cluster has a primary at %s", host)
            address = self.address_of(host)
            node = self._parts.node(str(address), partial(self._parts.connect, address), self, host=host)
            self._nodes[host] = node
            if self._tasks is not None:
                self._tasks.start_soon(node.run)
        return node

    def _any_node(self) -> Node:
        nodes = self.nodes or list(self._nodes.values())
        return next((node for node in nodes if node.calls.is_up), nodes[0])
