"""Sharded pub/sub in a cluster: one connection to each node that has a wanted channel; channels follow their slots."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.abc

from .slots import slot_of
from .subscription import Subscription
from .urls import Host

if TYPE_CHECKING:
    from .cluster import Cluster
    from .topology import Parts

#: How often what is not confirmed is subscribed to again, and looked for where its slot is by now.
CONFIRM_AGAIN_SECONDS: Final = 1.0


class _Part:
    """The subscription on one node."""

    __slots__ = ("scope", "subscription")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.scope = anyio.CancelScope()

    async def run(self) -> None:
        """Listen until cancelled."""
        with self.scope:
            await self.subscription.run()


class ClusterSubscription:
    """The channels of one listener; see `Subscription`, of which it has one on each node.

    Args:
        cluster: Knows who has which slot.
        parts: Makes connections.
        on_message: Called with channel and payload of each message.
        on_gap: Called when messages may have been missed and arrive again from now on.
    """

    def __init__(
        self,
        cluster: Cluster,
        parts: Parts,
        *,
        on_message: Callable[[bytes, bytes], None],
        on_gap: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._parts = parts
        self._on_message = on_message
        self._on_gap = on_gap
        self._hosts: dict[bytes, Host | None] = {}
        self._by_host: dict[Host, _Part] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        cluster.listen(self)

    @property
    def is_up(self) -> bool:
        """Whether any of the connections stands; without one nobody needs to wait for a confirmation."""
        return self._tasks is not None and any(node.calls.is_up for node in self._cluster.nodes)

    @property
    def wanted(self) -> frozenset[bytes]:
        """The channels that are subscribed to, confirmed or not."""
        return frozenset(self._hosts)

    def subscribe(self, channel: bytes) -> None:
        """Want the messages of a channel; wanting it twice is as good as once."""
        if channel not in self._hosts:
            host = self._hosts[channel] = self._cluster.host_of(slot_of(channel))
            if host is not None:
                self._at(host).subscribe(channel)

    def unsubscribe(self, channel: bytes) -> None:
        """Want them no longer."""
        host = self._hosts.pop(channel, None)
        if host in self._by_host:
            self._by_host[host].subscription.unsubscribe(channel)

    def is_subscribed(self, channel: bytes) -> bool:
        """Return whether messages of the channel arrive now."""
        part = self._part_of(channel)
        return part is not None and part.subscription.is_subscribed(channel)

    async def subscribed(self, channel: bytes, timeout_seconds: float) -> bool:
        """Subscribe and wait until the server has confirmed it.

        Returns:
            Whether it did within the time; messages are hints, so going on without is allowed.
        """
        self.subscribe(channel)
        part = self._part_of(channel)
        return part is not None and await part.subscription.subscribed(channel, timeout_seconds)

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the connections until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                for part in self._by_host.values():
                    tasks.start_soon(part.run)
                task_status.started()
                await self._keep()
        finally:
            # Whoever wants a channel from here on hears nothing, and finds what there is by looking.
            self._tasks = None

    async def _keep(self) -> None:
        while True:
            await anyio.sleep(CONFIRM_AGAIN_SECONDS)
            self.slots_moved()
            for part in self._by_host.values():
                part.subscription.ask_again()

    def slots_moved(self) -> None:
        """Move each channel to the node that has its slot, and give up connections that nothing is heard over."""
        for channel, former in list(self._hosts.items()):
            host = self._cluster.host_of(slot_of(channel))
            if host == former:
                continue
            self._hosts[channel] = host
            if former in self._by_host:
                self._by_host[former].subscription.unsubscribe(channel)
            if host is not None:
                # What was published in between was heard by nobody.
                self._at(host).subscribe(channel, after_a_gap=True)
        for host, part in list(self._by_host.items()):
            if not part.subscription.wanted:
                del self._by_host[host]
                part.scope.cancel()

    def _part_of(self, channel: bytes) -> _Part | None:
        host = self._hosts.get(channel)
        return None if host is None else self._by_host.get(host)

    def _at(self, host: Host) -> Subscription:
        part = self._by_host.get(host)
        if part is None:
            subscription = Subscription(
                partial(self._parts.connect, self._cluster.address_of(host)),
                on_message=self._on_message,
                on_gap=self._on_gap,
                observer=self._parts.observer,
                on_elsewhere=self._elsewhere,
            )
            part = self._by_host[host] = _Part(subscription)
            if self._tasks is not None:
                self._tasks.start_soon(part.run)
        return part.subscription

    def _elsewhere(self, error: Exception | None) -> None:
        """Learn where a slot is from the node that had it."""
        if error is None:
            self._cluster.want_map()
        else:
            self._cluster.refused(error)
            self.slots_moved()
