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
from .tls import context_of
from .urls import ServerAddress, SocketAddress, Tls, connection_options

CONNECT_TIMEOUT_SECONDS = 5.0
#: How long a TLS connection waits for the farewell of a server that may have stopped.
FAREWELL_SECONDS = 1.0


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

    def abort(self) -> None:
        """End the connection at once; its reader finds out."""
        if self._writer is not None:
            self._writer.transport.abort()

    def read_now(self) -> Any:
        """Return the next reply if it was read with the one before, else `NOTHING_READ`; refusals are returned too."""
        return self._parser._reader.gets(False)  # noqa: FBT003, SLF001, it takes no keywords, and nobody else has it

    async def disconnect(
        self,
        nowait: bool = False,  # noqa: FBT001, FBT002, as redis-py has it
        error: Exception | None = None,
        failure_count: int | None = None,
        health_check_failed: bool = False,  # noqa: FBT001, FBT002, as redis-py has it
    ) -> None:
        """Close the connection, however it may have ended before."""
        self._leave(nowait=nowait)
        await cast("Any", super()).disconnect(nowait, error, failure_count, health_check_failed)

    def _leave(self, *, nowait: bool) -> None:
        """Do what comes before the closing."""
        del nowait
        if self._writer is not None:
            _take_end(self._writer)


def _take_end(writer: asyncio.StreamWriter) -> None:
    """Have looked at how a connection ends, which its reader has told of already.

    Else asyncio now and then reports it as an error that nobody has looked at, as the order of the garbage collector
    has it.
    """
    ended: asyncio.Future[Any] | None = getattr(writer.transport.get_protocol(), "_closed", None)
    if ended is not None:
        ended.add_done_callback(_looked_at)


def _looked_at(ended: asyncio.Future[Any]) -> None:
    if not ended.cancelled():
        ended.exception()


class _PlainConnection(_Prompt, redis.asyncio.connection.Connection):
    """A connection over TCP."""


class _TlsConnection(_PlainConnection):
    """A connection over TLS."""

    def __init__(self, *, tls: Tls, **options: Any) -> None:
        cast("Any", super()).__init__(**options)
        self._tls = tls

    def _connection_arguments(self) -> Any:
        words = cast("Any", super())._connection_arguments()  # noqa: SLF001, there is no other place to say it
        return {**words, "ssl": context_of(self._tls), "ssl_shutdown_timeout": FAREWELL_SECONDS}

    def _leave(self, *, nowait: bool) -> None:
        super()._leave(nowait=nowait)
        if nowait:
            # Closing alone waits for the server's farewell, and the socket with it, perhaps beyond the end of the loop.
            self.abort()


class _SocketConnection(_Prompt, redis.asyncio.connection.UnixDomainSocketConnection):
    """A connection over a unix socket."""


class _SyncTlsConnection(redis.Connection):
    """A blocking connection over TLS."""

    def __init__(self, *, tls: Tls, **options: Any) -> None:
        cast("Any", super()).__init__(**options)
        self._tls = tls

    def _connect(self) -> Any:
        bare: Any = super()._connect()
        try:
            return context_of(self._tls).wrap_socket(bare, server_hostname=self.host)
        except BaseException:
            bare.close()
            raise


def _words(address: ServerAddress | SocketAddress) -> dict[str, Any]:
    """Return what connections of either kind are told of an address."""
    tls = address.access.tls
    return connection_options(address) if tls is None else {**connection_options(address), "tls": tls}


def _connection_class(address: ServerAddress | SocketAddress) -> type:
    if isinstance(address, SocketAddress):
        return _SocketConnection
    return _PlainConnection if address.access.tls is None else _TlsConnection


def _sync_class(address: ServerAddress | SocketAddress) -> type:
    if isinstance(address, SocketAddress):
        return redis.UnixDomainSocketConnection
    return redis.Connection if address.access.tls is None else _SyncTlsConnection


def connection_to(address: ServerAddress | SocketAddress) -> Connection:
    """Return an unconnected connection."""
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
        # With a timeout of its own each write and read of redis-py costs a task; the link watches the time instead.
        "socket_timeout": None,
        **_words(address),
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
    pool = redis.ConnectionPool(
        connection_class=_sync_class(address),
        **_words(address),
        protocol=2,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=timeout_seconds,
        retry=SyncRetry(NoBackoff(), 0),
        retry_on_error=[],
    )
    return redis.Redis.from_pool(pool)


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
