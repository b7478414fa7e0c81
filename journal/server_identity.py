"""Which server this is: one that was started anew, or promoted from a replica, may know less than the one before.

A server says so by its run id, which is new at each start, and by its replication id, which is new at each promotion.
It forgets at the next start that it was promoted, so it is also known by its node: in a cluster by the id that outlives
a restart, elsewhere by the address that the sentinels or the URL have for it.

What that can't tell: behind a URL whose name was led to another server, or that names a place which every machine has
for itself, all servers are one node. So is one that was replaced, had its place back without the end of the history,
and was started anew, all while nobody owned the partition. Other workers may spell an address in another way, as a name
or by its number; sentinels call a server whose address has changed another one; and a slot may be moved to another node
while no worker lives: what was whole is in doubt then, but only once, and where its last owner is gone as well.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

import redis.exceptions

from .safety import is_cluster_node, parse_info
from .urls import Host, ServerAddress, StoreAddress

logger = logging.getLogger("keylane.store")

#: A replication id that no server has.
NO_REPLICATION: Final = "0" * 40
#: What is kept of an id of 40 digits: a value above 64 bytes would make the owner's hash a larger kind of hash.
KEPT_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What a server says of itself.

    Args:
        run_id: New at each start; its first digits.
        replication_id: Of the history that it passes on to replicas; new when it is promoted.
        former_replication_id: The one that it had as a replica, empty when it was none.
        started_ms: When it was started, by its own clock; only as exact as a second.
        node: Where it runs, by what outlives a restart and no other node has; empty where nothing tells.
    """

    run_id: str
    replication_id: str
    former_replication_id: str
    started_ms: int
    node: str = ""

    def __str__(self) -> str:
        """Return what is written into the store."""
        run = f"{self.run_id}/{self.replication_id}"
        return f"{run}/{self.node}" if self.node else run

    def is_same(self, other: ServerIdentity) -> bool:
        """Return whether both are one run of one server with one history."""
        return (self.run_id, self.replication_id) == (other.run_id, other.replication_id)


def identity_of(info: Mapping[str, str]) -> ServerIdentity | None:
    """Read the sections `server` and `replication` of INFO; None where they don't say who the server is."""
    run_id, replication_id = info.get("run_id"), info.get("master_replid")
    if not run_id or not replication_id:
        return None
    former = info.get("master_replid2", NO_REPLICATION)
    former = "" if former == NO_REPLICATION else former[:KEPT_DIGITS]
    now_ms = int(info.get("server_time_usec", "0")) // 1000
    # Seconds are cut off, so the start may be up to one later than the age says.
    started_ms = now_ms - (int(info.get("uptime_in_seconds", "0")) + 1) * 1000
    return ServerIdentity(run_id[:KEPT_DIGITS], replication_id[:KEPT_DIGITS], former, started_ms)


def node_at(host: Host) -> str:
    """Return what stands for the node at an address, the same for each spelling of a number and for both cases."""
    name = host.name.lower().rstrip(".")
    address = _ip_address(name)
    name = name if address is None else str(address)
    return blake2b(f"{name} {host.port}".encode(), digest_size=KEPT_DIGITS // 2).hexdigest()


def shared_host(address: StoreAddress) -> Host | None:
    """Return the host of a URL; None where it is said to several, or is a place that every machine has for itself.

    Of one server at a socket and at a port of this machine neither has a node, so they are not taken for two.
    """
    if not isinstance(address, ServerAddress):
        return None
    number = _ip_address(address.host.name)
    is_own = address.host.name.lower() == "localhost" if number is None else number.is_loopback or number.is_unspecified
    return None if is_own else address.host


def _ip_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


class IdentityWatch:
    """Knows which server answers at one place.

    Attributes:
        identity: The server as it was last seen; None where none has said who it is.
    """

    def __init__(self) -> None:
        self.identity: ServerIdentity | None = None
        #: The node of each run that was seen, since a run stays where it was started.
        self._nodes: dict[str, str] = {}

    async def greet(self, ask: Callable[..., Awaitable[Any]], host: Host | None = None) -> bool:
        """Ask who answers over a connection, and return whether it is another server than before.

        Args:
            ask: Sends one command over that connection and returns its reply.
            host: Where the connection leads, as other workers know that server as well; told while it is new.
        """
        try:
            reply = await ask("INFO", "server", "replication")
        except redis.exceptions.ResponseError as error:
            logger.warning("the store does not tell who it is, so a lost tail of its history is not noticed: %s", error)
            return False
        info = parse_info(reply)
        identity = identity_of(info)
        if identity is None:
            return False
        if identity.run_id not in self._nodes:
            self._nodes[identity.run_id] = await _node_of(info, ask, host)
        return self.saw(replace(identity, node=self._nodes[identity.run_id]))

    def saw(self, identity: ServerIdentity) -> bool:
        """Take note of who answers, and return whether it is another server than before."""
        before, self.identity = self.identity, identity
        if before is None or before.is_same(identity):
            return False
        logger.warning("the store is another one than before: %s, it was %s", identity, before)
        return True


async def _node_of(info: Mapping[str, str], ask: Callable[..., Awaitable[Any]], host: Host | None) -> str:
    """Return where a server runs; empty where nothing tells."""
    if not is_cluster_node(info):
        return "" if host is None else node_at(host)
    try:
        reply: bytes = await ask("CLUSTER", "MYID")
    except redis.exceptions.ResponseError as error:
        logger.warning("the store does not tell which node it is, so one that took its place may go unseen: %s", error)
        return ""
    return reply.decode()[:KEPT_DIGITS]
