"""Connections of redis-py to one server, with its retries off: who uses one watches the time and sends once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import redis
import redis.asyncio.connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.retry import Retry as SyncRetry

from .link import Connection
from .urls import ServerAddress, SocketAddress, connection_options

CONNECT_TIMEOUT_SECONDS = 5.0


class _Prompt:
    """What redis-py's connections lack: a write that is no coroutine, so that it can go out in mid-turn.

    And a look at what was read already: most replies arrive together, and to await each costs more than to take it.
    """

    _writer: asyncio.StreamWriter | None
    _parser: Any

    def write_now(self, data: bytes) -> None:
        """Write at once; on a connection that is gone this does nothing, its reader finds out."""
        if self._writer is not None:
            self._writer.write(data)

    def read_now(self) -> Any:
        """Return the next reply if it was read with the one before, else `NOTHING_READ`; refusals are returned too."""
        return self._parser._reader.gets(False)  # noqa: FBT003, SLF001, it takes no keywords, and nobody else has it


class _PlainConnection(_Prompt, redis.asyncio.connection.Connection):
    """A connection over TCP."""


class _TlsConnection(_Prompt, redis.asyncio.connection.SSLConnection):
    """A connection over TLS."""


class _SocketConnection(_Prompt, redis.asyncio.connection.UnixDomainSocketConnection):
    """A connection over a unix socket."""


def _connection_class(address: ServerAddress | SocketAddress) -> type:
    if isinstance(address, SocketAddress):
        return _SocketConnection
    return _PlainConnection if address.access.tls is None else _TlsConnection


def connection_to(address: ServerAddress | SocketAddress) -> Connection:
    """Return an unconnected connection."""
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
        # With a timeout of its own each write and read of redis-py costs a task; the link watches the time instead.
        "socket_timeout": None,
        **connection_options(address),
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "health_check_interval": 0,
    }
    return cast("Connection", cast("Any", _connection_class(address))(**options))


def sync_client_to(address: ServerAddress | SocketAddress, *, timeout_seconds: float) -> redis.Redis:
    """Return a blocking client for a thread of its own.

    Args:
        address: The server.
        timeout_seconds: Bounds each of its waits: for the connection, and for each answer.
    """
    options = connection_options(address)
    socket_path = options.pop("path", None)
    if socket_path is not None:
        options["unix_socket_path"] = socket_path
    return redis.Redis(
        **options,
        ssl=isinstance(address, ServerAddress) and address.access.tls is not None,
        protocol=2,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=timeout_seconds,
        retry=SyncRetry(NoBackoff(), 0),
        retry_on_error=[],
    )


@asynccontextmanager
async def connected(connection: Connection) -> AsyncGenerator[Connection]:
    """Connect for a short while."""
    try:
        await connection.connect()
        yield connection
    finally:
        with anyio.CancelScope(shield=True):
            await connection.disconnect(nowait=True)


async def ask(connection: Connection, *words: Any) -> Any:
    """Send one command over a connection that nobody else uses now, and return the reply."""
    await cast("Any", connection).send_command(*words)
    return await connection.read_response(disable_decoding=True)
