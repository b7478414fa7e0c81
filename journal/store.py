"""One namespace of one store: its connections, its function library, and the calls that everything else is made of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import cache, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, assert_never, cast

import redis
import redis.asyncio.connection
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.retry import Retry as SyncRetry

from .background import Background
from .errors import StoreError, StoreFull, StoreUnavailable
from .keyspace import PartitionSpace, check_namespace
from .library import library
from .link import Connection, Link, LinkLost
from .observer import NoObserver, Observer
from .urls import (
    ClusterAddress,
    EmbeddedAddress,
    SentinelAddress,
    ServerAddress,
    SocketAddress,
    StoreAddress,
    connection_options,
    parse_store_url,
)
from .writer import Committer, PartitionWriter

if TYPE_CHECKING:
    from .tenure import Tenure

ANSWER_TIMEOUT_SECONDS = 5.0
CONNECT_TIMEOUT_SECONDS = 5.0

_UNAVAILABLE = ("LOADING", "BUSY", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "MISCONF", "NOREPLICAS")


class Refusal(Exception):
    """A function's refusal, as the code and the text that its head describes."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        """Return the refusal as the function said it."""
        return f"{self.code} {self.text}".rstrip()


class Store:
    """The open store; use it as an async context manager.

    Args:
        url: A `redis://`, `rediss://` or `unix://` URL; the other forms are refused for now.
        namespace: The prefix under which everything lives.
        observer: Told of every state change that is sent; for tests.
        answer_timeout_seconds: How long an answer may take before a connection counts as lost.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str,
        observer: Observer | None = None,
        answer_timeout_seconds: float = ANSWER_TIMEOUT_SECONDS,
    ) -> None:
        self._address = _openable(parse_store_url(url))
        self.url = str(self._address)
        self.namespace = check_namespace(namespace)
        self.observer: Observer = observer or NoObserver()
        self.library = library()
        self._options = connection_options(self._address)
        self._connection_class = cast("Any", _connection_class(self._address))
        self.answer_timeout_seconds = answer_timeout_seconds
        self._calls = self._new_link("calls", answer_timeout_seconds)
        self._commits = self._new_link("commits", answer_timeout_seconds)
        self.committer = Committer(self._commits, self.library, self.observer)
        self._stack = contextlib.AsyncExitStack()
        # Spelling the fixed keys of a partition costs more than looking it up.
        self.space = cache(self._space)

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            StoreUnavailable: The store did not answer in time.
        """
        await self._stack.__aenter__()
        try:
            tasks = await self._stack.enter_async_context(Background())
            tasks.start_soon(self._calls.run)
            await self._calls.wait_up(CONNECT_TIMEOUT_SECONDS)
            tasks.start_soon(self._commits.run)
            tasks.start_soon(self.committer.run)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self._stack.aclose()

    def _space(self, type_name: str, number: int) -> PartitionSpace:
        return PartitionSpace(self.namespace, type_name, number)

    def writer(self, space: PartitionSpace, tenure: Tenure) -> PartitionWriter:
        """Return the writer of a tenure, whose first batch is number 1."""
        return PartitionWriter(space, tenure, self.committer)

    @property
    def link(self) -> Link:
        """The connection of single calls, for those who send many in one turn."""
        return self._calls

    async def call(self, *args: Any) -> Any:
        """Send one command over the connection of single calls.

        Raises:
            StoreUnavailable: The store is away, or gave no answer: whether the command ran is unknown.
            StoreFull: The store has no memory for it.
            redis.exceptions.ResponseError: Another refusal of the server.
        """
        try:
            return await self._calls.call(*args)
        except (LinkLost, redis.exceptions.ResponseError, redis.exceptions.ConnectionError) as error:
            raise store_error(error, self.url) from error

    async def together(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands in one turn and wait for all of their replies; a refusal is returned in its place.

        Raises:
            StoreUnavailable: A reply was lost, or the store refuses everything at the moment.
        """
        await self._calls.wait_up(self.answer_timeout_seconds)
        replies: list[Any] = [None] * len(commands)
        unanswered = len(commands)
        complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def take(position: int, reply: Any) -> None:
            nonlocal unanswered
            replies[position] = reply
            unanswered -= 1
            if not unanswered and not complete.done():
                complete.set_result(None)

        for position, words in enumerate(commands):
            self._calls.submit(words, partial(take, position))
        if commands:
            await complete
        for reply in replies:
            error = store_error(reply, self.url) if isinstance(reply, Exception) else None
            if isinstance(error, StoreUnavailable):
                raise error
        return replies

    async def fcall(self, verb: str, keys: Sequence[bytes], args: Sequence[Any], *, read_only: bool = False) -> Any:
        """Call a function of the library.

        Raises:
            Refusal: The function refused, with the code that its head describes.
            StoreUnavailable: The store is away, or gave no answer: whether the function ran is unknown.
            StoreFull: The store has no memory for it.
        """
        words = (*self.words(verb, keys, read_only=read_only), *args)
        try:
            return await self.call(*words)
        except redis.exceptions.ResponseError as error:
            if not is_missing_function(error):
                raise refusal(error) from error
        await self.load_library()
        try:
            return await self.call(*words)
        except redis.exceptions.ResponseError as error:
            raise refusal(error) from error

    def words(self, verb: str, keys: Sequence[bytes], *, read_only: bool = False) -> tuple[Any, ...]:
        """Return the head of a function call: its arguments are appended."""
        return ("FCALL_RO" if read_only else "FCALL", self.library.function(verb), len(keys), *keys)

    async def load_library(self) -> None:
        """Load the functions; a library that is there already is left alone."""
        try:
            await self.call("FUNCTION", "LOAD", self.library.code)
        except redis.exceptions.ResponseError as error:
            if "already exists" not in str(error):
                raise

    def new_connection(self) -> Connection:
        """Return an unconnected connection whose library-level retries are off; who uses it watches the time."""
        options: dict[str, Any] = {
            "protocol": 2,
            "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
            # With a timeout of its own each write and read of redis-py costs a task; the link watches the time instead.
            "socket_timeout": None,
            **self._options,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_error": [],
            "health_check_interval": 0,
        }
        return cast("Connection", self._connection_class(**options))

    def new_sync_client(self, *, timeout_seconds: float = ANSWER_TIMEOUT_SECONDS) -> redis.Redis:
        """Return a blocking client for a thread of its own; its library-level retries are off."""
        options = dict(self._options)
        socket_path = options.pop("path", None)
        if socket_path is not None:
            options["unix_socket_path"] = socket_path
        return redis.Redis(
            **options,
            ssl=isinstance(self._address, ServerAddress) and self._address.access.tls is not None,
            protocol=2,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            retry=SyncRetry(NoBackoff(), 0),
            retry_on_error=[],
        )

    def _new_link(self, name: str, answer_timeout_seconds: float) -> Link:
        return Link(
            self.new_connection,
            name=name,
            target=self.url,
            answer_timeout_seconds=answer_timeout_seconds,
            on_connect=self._load_on_connect,
        )

    async def _load_on_connect(self, connection: Connection) -> None:
        """Load the library where the server lacks it, before anything else is sent."""
        if await _ask(connection, "FUNCTION", "LIST", "LIBRARYNAME", self.library.name):
            return
        try:
            await _ask(connection, "FUNCTION", "LOAD", self.library.code)
        except redis.exceptions.ResponseError as error:
            if "already exists" not in str(error):
                raise


def _openable(address: StoreAddress) -> ServerAddress | SocketAddress:
    """Return an address that can be opened.

    Raises:
        StoreError: It names a cluster, sentinels or an embedded store.
    """
    match address:
        case ServerAddress() | SocketAddress():
            return address
        case ClusterAddress() | SentinelAddress():
            raise StoreError(f"{address}: clusters and sentinels are not supported yet; name one server")
        case EmbeddedAddress():
            raise StoreError(f"{address} names an embedded store, which Runtime and `keylane dev` start; name its URL")
        case _:
            assert_never(address)


def _connection_class(address: ServerAddress | SocketAddress) -> type:
    if isinstance(address, SocketAddress):
        return _SocketConnection
    return _PlainConnection if address.access.tls is None else _TlsConnection


class _WritesNow:
    """What redis-py's connections lack: a write that is no coroutine, so that it can go out in mid-turn."""

    _writer: asyncio.StreamWriter | None

    def write_now(self, data: bytes) -> None:
        """Write at once; on a connection that is gone this does nothing, its reader finds out."""
        if self._writer is not None:
            self._writer.write(data)


class _PlainConnection(_WritesNow, redis.asyncio.connection.Connection):
    """A connection over TCP."""


class _TlsConnection(_WritesNow, redis.asyncio.connection.SSLConnection):
    """A connection over TLS."""


class _SocketConnection(_WritesNow, redis.asyncio.connection.UnixDomainSocketConnection):
    """A connection over a unix socket."""


async def _ask(connection: Connection, *args: Any) -> Any:
    await cast("Any", connection).send_command(*args)
    return await connection.read_response(disable_decoding=True)


def is_missing_function(error: Exception) -> bool:
    """Return whether the server lacks our library, as after a flush or on a node that is new in a cluster."""
    return "Function not found" in str(error)


def refusal(error: redis.exceptions.ResponseError) -> Refusal:
    """Split a function's refusal into code and text."""
    code, _, text = str(error).partition(" ")
    return Refusal(code, text)


def store_error(error: Exception, url: str) -> Exception:
    """Translate an exception of the client library; a refusal of the server that is not about the store stays."""
    if isinstance(error, redis.exceptions.OutOfMemoryError) or str(error).startswith("OOM"):
        return StoreFull(str(error))
    if isinstance(error, redis.exceptions.ResponseError):
        unavailable = isinstance(error, redis.exceptions.ReadOnlyError | redis.exceptions.ClusterDownError)
        return StoreUnavailable(url, str(error)) if unavailable or str(error).startswith(_UNAVAILABLE) else error
    if isinstance(error, StoreError):
        return error
    return StoreUnavailable(url, str(error))
