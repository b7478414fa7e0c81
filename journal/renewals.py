"""The renewals of leases, from a thread of their own: over one connection, or over that to a primary that moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import redis
import redis.exceptions

from .keyspace import PartitionSpace
from .library import Library
from .refusals import is_missing_function
from .sentinel import sync_client_to_primary
from .slots import View, view_of
from .tenure import Tenure
from .urls import Host, SentinelAddress


@dataclass(frozen=True, slots=True)
class Renewed:
    """The tenure holds its partition still."""

    lease: int


@dataclass(frozen=True, slots=True)
class TenureLost:
    """The partition has another owner, or none: for this tenure that is final."""

    why: str


@dataclass(frozen=True, slots=True)
class NotRenewed:
    """No answer, or the store's own refusal: nothing is known, try again."""

    why: str


Renewal: TypeAlias = Renewed | TenureLost | NotRenewed


#: The tenures that are to be renewed, each with its partition.
Held: TypeAlias = Sequence[tuple[PartitionSpace, Tenure]]


class Leases(Protocol):
    """The renewals of a thread of its own."""

    def renew(self, held: Held) -> list[Renewal]:
        """Raise the counters of tenures; never raises for what the store does."""
        ...

    def close(self) -> None:
        """Close the connections; from another thread, this ends a call that still waits."""
        ...


class SyncLeases:
    """Renewals over one blocking connection, which is shared with nobody.

    Args:
        client: From `sync_client_to`: its retries are off, its timeout bounds each call.
        library: The functions.
    """

    def __init__(self, client: redis.Redis, library: Library) -> None:
        # The stubs of the client type its pipeline only in part.
        self._client: Any = client
        self._renew = library.function("renew")
        self._code = library.code

    def renew(self, held: Held) -> list[Renewal]:
        """Raise the counters of tenures in one write.

        Returns:
            What became of each, in order. One partition's refusal does not touch the others.
        """
        if not held:
            return []
        try:
            return [renewal_of(reply) for reply in self.ask(held)]
        except (OSError, redis.exceptions.RedisError) as error:
            return [NotRenewed(str(error))] * len(held)

    def ask(self, held: Held, *, is_asking: bool = False) -> list[Any]:
        """Raise the counters of tenures in one write, and return the replies as they are.

        Args:
            held: The tenures.
            is_asking: Whether their slots are still on their way to this server.

        Raises:
            OSError: The server can't be reached.
            redis.exceptions.RedisError: It gave no answer.
        """
        replies = self._send(held, is_asking=is_asking)
        if any(isinstance(reply, Exception) and is_missing_function(reply) for reply in replies):
            self._load()
            replies = self._send(held, is_asking=is_asking)
        return replies

    def _send(self, held: Held, *, is_asking: bool) -> list[Any]:
        with self._client.pipeline(transaction=False) as pipeline:
            for space, tenure in held:
                if is_asking:
                    pipeline.execute_command("ASKING")
                pipeline.execute_command("FCALL", self._renew, 1, space.owner, tenure.epoch, tenure.token)
            replies: list[Any] = pipeline.execute(raise_on_error=False)
        return replies[1::2] if is_asking else replies

    def read_map(self, host: Host) -> View:
        """Return what this node of a cluster says of it.

        Raises:
            OSError: The server can't be reached.
            redis.exceptions.RedisError: It gave no answer.
        """
        with self._client.pipeline(transaction=False) as pipeline:
            # Without the client's own reading of the replies, which differs from release to release.
            pipeline.response_callbacks.clear()
            pipeline.execute_command("CLUSTER", "INFO")
            pipeline.execute_command("CLUSTER", "SLOTS")
            info, slots = pipeline.execute()
        return view_of(info, slots, host)

    def _load(self) -> None:
        try:
            self._client.function_load(self._code)
        except redis.exceptions.ResponseError as error:
            if "already exists" not in str(error):
                raise

    def close(self) -> None:
        """Close the connection; from another thread, this ends a call that still waits."""
        self._client.connection_pool.disconnect()


class SentinelLeases:
    """Renewals on whichever server the sentinels name; asked anew after a turn in which nothing was renewed.

    And before it is believed that a tenure is lost: a primary that was replaced may live on for a while, and knows
    nothing of who has acquired a partition since.

    Args:
        address: The sentinels and the service.
        library: The functions.
        timeout_seconds: Bounds each question and each call.
    """

    def __init__(self, address: SentinelAddress, library: Library, timeout_seconds: float) -> None:
        self._address = address
        self._library = library
        self._timeout_seconds = timeout_seconds
        self._leases: SyncLeases | None = None

    def renew(self, held: Held) -> list[Renewal]:
        """Raise the counters of tenures in one write."""
        if not held:
            return []
        is_new = self._leases is None
        renewals = self._renew(held)
        if any(isinstance(renewal, TenureLost) for renewal in renewals) and not is_new:
            self.close()
            renewals = self._renew(held)
        if all(isinstance(renewal, NotRenewed) for renewal in renewals):
            self.close()
        return renewals

    def _renew(self, held: Held) -> list[Renewal]:
        try:
            leases = self._leases = self._leases or self._find()
        except (OSError, redis.exceptions.RedisError) as error:
            return [NotRenewed(str(error))] * len(held)
        return leases.renew(held)

    def _find(self) -> SyncLeases:
        return SyncLeases(sync_client_to_primary(self._address, timeout_seconds=self._timeout_seconds), self._library)

    def close(self) -> None:
        """Close the connection."""
        leases, self._leases = self._leases, None
        if leases is not None:
            leases.close()


def renewal_of(reply: Any) -> Renewal:
    """Return what a reply means."""
    match reply:
        case int():
            return Renewed(reply)
        case redis.exceptions.ResponseError() if str(reply).startswith("FENCED"):
            return TenureLost(str(reply))
        case _:
            return NotRenewed(str(reply))
