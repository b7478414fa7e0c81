"""The primary of a service, as its sentinels name it: asked for each new connection, and its role verified on it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, cast
from weakref import WeakSet

import anyio
import redis
import redis.exceptions

from .connections import ask, connected, connection_to, sync_client_to
from .link import Connection
from .urls import Host, SentinelAddress, ServerAddress

logger = logging.getLogger("keylane.store")

#: How long one sentinel may take; all are asked at once.
SENTINEL_SECONDS: Final = 1.0
#: How often they are asked whether the primary is still the one that they name.
LOOK_SECONDS: Final = 2.0
_QUESTION: Final = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME")
_UNKNOWN: Final = "no sentinel that answered knows the service"


class NoPrimary(redis.exceptions.ConnectionError):
    """No sentinel names a primary now; asking again helps when there is one."""


async def find_primary(address: SentinelAddress) -> ServerAddress:
    """Ask all sentinels at once, and believe the primary that most of them name; one may be behind the others.

    Raises:
        NoPrimary: None of them named one within `SENTINEL_SECONDS`.
    """
    problems: list[str] = []
    named = await _ask_all(address, problems)
    if not named:
        raise NoPrimary(f"{address}: {'; '.join(problems)}")
    return named.most_common(1)[0][0]


async def agreed_primary(address: SentinelAddress) -> ServerAddress | None:
    """Return the primary that more than half of the sentinels name now, None where there is no such."""
    named = await _ask_all(address, [])
    return next((primary for primary, count in named.items() if count > len(address.hosts) // 2), None)


async def _ask_all(address: SentinelAddress, problems: list[str]) -> Counter[ServerAddress]:
    """Ask until more than half of the sentinels name the same one, or all have had their say."""
    named: Counter[ServerAddress] = Counter()
    tasks = [asyncio.ensure_future(_asked(address, host, problems)) for host in address.hosts]
    try:
        for each in asyncio.as_completed(tasks):
            found = await each
            if found is not None:
                named[found] += 1
                if named[found] > len(tasks) // 2:
                    break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return named


async def _asked(address: SentinelAddress, host: Host, problems: list[str]) -> ServerAddress | None:
    why = f"{host}: no answer within {SENTINEL_SECONDS:g} s"
    with anyio.move_on_after(SENTINEL_SECONDS):
        for access in address.greetings:
            try:
                reply = await _ask_once(ServerAddress(host, access), address.service)
            except redis.exceptions.AuthenticationError as error:
                why = f"{host}: {error}"
                continue
            except (OSError, redis.exceptions.RedisError) as error:
                why = f"{host}: {error}"
                break
            if reply is not None:
                return _primary(address, reply)
            why = f"{host}: {_UNKNOWN}"
            break
    problems.append(why)
    return None


async def _ask_once(sentinel: ServerAddress, service: str) -> Any:
    async with connected(connection_to(sentinel)) as connection:
        return await ask(connection, *_QUESTION, service)


def _primary(address: SentinelAddress, reply: Any) -> ServerAddress:
    name, port = reply
    return ServerAddress(Host(name.decode(), int(port)), address.access)


class SentinelConnection:
    """A connection that finds out where it leads when it connects, and makes sure that a primary is there.

    Args:
        address: The sentinels and the service.
        make: Makes an unconnected connection to a server.
    """

    def __init__(self, address: SentinelAddress, make: Callable[[ServerAddress], Connection]) -> None:
        self._address = address
        self._make = make
        self._inner: Connection | None = None
        #: Where it leads, from the moment at which it begins to connect until it is closed.
        self.primary: ServerAddress | None = None
        self.write_now: Callable[[bytes], None]
        self.read_response: Callable[..., Any]
        self.read_now: Callable[[], Any]
        self.send_packed_command: Callable[..., Any]
        self.send_command: Callable[..., Any]

    async def connect(self) -> None:
        """Find the primary and connect to it.

        Raises:
            NoPrimary: There is none, or what a sentinel named is none any more.
        """
        self.primary = await find_primary(self._address)
        self._inner = inner = self._make(self.primary)
        # From here on everything goes to the real connection without a detour.
        self.write_now = inner.write_now
        self.read_response = inner.read_response
        self.read_now = inner.read_now
        self.send_packed_command = inner.send_packed_command
        self.send_command = cast("Any", inner).send_command
        await inner.connect()
        role = (await ask(inner, "ROLE"))[0]
        if role != b"master":
            raise NoPrimary(f"{self._address}: what the sentinels name is a {role.decode()} at the moment")

    async def disconnect(self, nowait: bool = False) -> None:  # noqa: FBT001, FBT002, redis-py's
        """Close the socket."""
        self.primary = None
        if self._inner is not None:
            await self._inner.disconnect(nowait=nowait)

    def abort(self) -> None:
        """End the connection at once; its reader finds out."""
        if self._inner is not None:
            self._inner.abort()


class PrimaryWatch:
    """Has connections leave a primary that was replaced, though it lives: all that it still takes in will be lost.

    The sentinels tell it only after some ten seconds that it is none any more.

    Args:
        address: The sentinels and the service.
        make: Makes an unconnected connection to whichever server the sentinels name by then.
    """

    def __init__(self, address: SentinelAddress, make: Callable[[], Connection]) -> None:
        self._address = address
        self._make = make
        self._made: WeakSet[SentinelConnection] = WeakSet()

    def connection(self) -> Connection:
        """Return an unconnected connection that is watched from now on."""
        made = self._make()
        if isinstance(made, SentinelConnection):
            self._made.add(made)
        return made

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Ask the sentinels, and end the connections that lead elsewhere than they agree."""
        primary = await agreed_primary(self._address)
        if primary is None:
            return
        left = [each for each in self._made if each.primary is not None and each.primary != primary]
        if left:
            logger.warning("%s is left, the sentinels name %s: it was replaced", left[0].primary, primary)
        for connection in left:
            connection.abort()


def sync_client_to_primary(address: SentinelAddress, *, timeout_seconds: float) -> redis.Redis:
    """Ask the sentinels one after the other, from a thread, and return a client for the primary that most of them name.

    Raises:
        NoPrimary: None of them names one, or what they name says that it is none.
        OSError: It can't be reached.
        redis.exceptions.RedisError: It gave no answer.
    """
    why = _UNKNOWN
    named: Counter[ServerAddress] = Counter()
    for host in address.hosts:
        for access in address.greetings:
            try:
                primary = _sync_ask(ServerAddress(host, access), address, timeout_seconds)
            except redis.exceptions.AuthenticationError as error:
                why = f"{host}: {error}"
                continue
            except (OSError, redis.exceptions.RedisError) as error:
                why = f"{host}: {error}"
            else:
                named[primary] += 1
            break
        if named and named.most_common(1)[0][1] > len(address.hosts) // 2:
            break
    if not named:
        raise NoPrimary(f"{address}: {why}")
    return _verified(sync_client_to(named.most_common(1)[0][0], timeout_seconds=timeout_seconds))


def _sync_ask(sentinel: ServerAddress, address: SentinelAddress, timeout_seconds: float) -> ServerAddress:
    client = cast("Any", sync_client_to(sentinel, timeout_seconds=min(timeout_seconds, SENTINEL_SECONDS)))
    client.response_callbacks.clear()
    try:
        reply = client.execute_command(*_QUESTION, address.service)
    finally:
        client.close()
    if reply is None:
        raise NoPrimary(_UNKNOWN)
    return _primary(address, reply)


def _verified(client: redis.Redis) -> redis.Redis:
    raw = cast("Any", client)
    raw.response_callbacks.clear()
    try:
        role = raw.execute_command("ROLE")[0]
    except BaseException:
        client.close()
        raise
    if role != b"master":
        client.close()
        raise NoPrimary("what the sentinels name is no primary at the moment")
    return client
