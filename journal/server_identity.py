"""Which server this is: one that was started anew, or promoted from a replica, may know less than the one before.

A server says so by its run id, which is new at each start, and by its replication id, which is new at each promotion.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import redis.exceptions

from .safety import parse_info

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
    """

    run_id: str
    replication_id: str
    former_replication_id: str
    started_ms: int

    def __str__(self) -> str:
        """Return what is written into the store."""
        return f"{self.run_id}/{self.replication_id}"

    def is_same(self, other: ServerIdentity) -> bool:
        """Return whether both are one run of one server with one history."""
        return str(self) == str(other)


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


class IdentityWatch:
    """Knows which server answers at one place.

    Attributes:
        identity: The server as it was last seen; None where none has said who it is.
    """

    def __init__(self) -> None:
        self.identity: ServerIdentity | None = None

    async def greet(self, ask: Callable[..., Awaitable[Any]]) -> bool:
        """Ask who answers over a connection that is new, and return whether it is another server than before.

        Args:
            ask: Sends one command over that connection and returns its reply.
        """
        try:
            reply = await ask("INFO", "server", "replication")
        except redis.exceptions.ResponseError as error:
            logger.warning("the store does not tell who it is, so a lost tail of its history is not noticed: %s", error)
            return False
        identity = identity_of(parse_info(reply))
        return identity is not None and self.saw(identity)

    def saw(self, identity: ServerIdentity) -> bool:
        """Take note of who answers, and return whether it is another server than before."""
        before, self.identity = self.identity, identity
        if before is None or before.is_same(identity):
            return False
        logger.warning("the store is another one than before: %s, it was %s", identity, before)
        return True
