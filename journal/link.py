"""One connection to a server: commands go out in order and in one write per turn, answers come back in order.

redis-py's own calls cost about 100 µs of CPU each and send again by themselves after a lost answer; a link sends each
command once, and says `LinkLost` when the connection went down before the answer: whether the command ran is unknown.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, cast

import anyio
import hiredis
import redis.exceptions
from redis._parsers.hiredis import NOT_ENOUGH_DATA

from .errors import StoreUnavailable
from .futures import resolve_reply
from .refusals import said

# Its type hint allows one word only.
pack_command: Callable[[tuple[Any, ...]], bytes] = cast("Any", hiredis).pack_command

logger = logging.getLogger("keylane.store")

#: What a caller of `submit` gets: the reply, or the exception that stands for it.
Done = Callable[[Any], None]

#: What `Connection.read_now` returns where there is no whole reply.
NOTHING_READ: Final[object] = NOT_ENOUGH_DATA

RECONNECT_FIRST_SECONDS = 0.05
RECONNECT_CAP_SECONDS = 2.0
WATCH_SECONDS = 1.0


class LinkLost(Exception):
    """The connection went down before the answer arrived; the outcome is unknown."""


class Connection(Protocol):
    """The part of redis-py's asyncio connection that a link uses."""

    async def connect(self) -> None:
        """Connect and shake hands."""
        ...

    async def disconnect(self, nowait: bool = False) -> None:  # noqa: FBT001, FBT002, redis-py's
        """Close the socket."""
        ...

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: FBT001, FBT002, redis-py's
        """Write bytes and wait until they are handed to the system."""
        ...

    def write_now(self, data: bytes) -> None:
        """Write bytes at once, without waiting."""
        ...

    async def read_response(
        self,
        disable_decoding: bool = False,  # noqa: FBT001, FBT002, redis-py's
        timeout: float | None = None,
        *,
        disconnect_on_error: bool = True,
    ) -> Any:
        """Read one reply."""
        ...

    def read_now(self) -> Any:
        """Return the next reply if it was read with the one before, else `NOTHING_READ`; refusals are returned too."""
        ...

    def abort(self) -> None:
        """End the connection at once; its reader finds out."""
        ...


class Link:
    """A pipelined connection that comes back by itself.

    Args:
        make_connection: Makes an unconnected redis-py connection, with its retries switched off.
        name: What messages call it.
        target: The store's URL without its password, for messages.
        answer_timeout_seconds: How long an answer may take before the connection counts as lost.
        on_connect: Runs on each new connection before anything else is sent, such as loading functions.
    """

    def __init__(
        self,
        make_connection: Callable[[], Connection],
        *,
        name: str,
        target: str,
        answer_timeout_seconds: float,
        on_connect: Callable[[Connection], Any] | None = None,
        leaves_read_only: bool = False,
    ) -> None:
        self.name = name
        self.target = target
        self._make_connection = make_connection
        self._answer_timeout = answer_timeout_seconds
        self._on_connect = on_connect
        self._leaves_read_only = leaves_read_only
        self._connection: Connection | None = None
        self._waiting: deque[tuple[Done, float]] = deque()
        self._outgoing: list[bytes] = []
        self._flush_is_due = False
        self._up_waiters: list[asyncio.Future[None]] = []
        self.last_error: Exception | None = None
        self._is_severed = False

    @property
    def is_up(self) -> bool:
        """Whether commands can be sent now."""
        return self._connection is not None

    @property
    def is_quiet(self) -> bool:
        """Whether every command that was submitted has been answered."""
        return not self._waiting

    def sever(self) -> None:
        """Send nothing any more, not even what was submitted in this turn, as if the process had been killed."""
        self._is_severed = True
        self._connection = None
        self._outgoing = []

    def submit(self, args: tuple[Any, ...], done: Done) -> None:
        """Send a command; its reply or exception is handed to `done`, which must not raise.

        Args:
            args: The command's words: bytes, str, int or float.
            done: Called once, from the link's reader, or at once with `LinkLost` while the connection is down.
        """
        if self._connection is None:
            done(LinkLost(f"{self.name} is not connected"))
            return
        self._outgoing.append(pack_command(args))
        self._waiting.append((done, time.monotonic()))
        if not self._flush_is_due:
            self._flush_is_due = True
            # Everybody who is ready in this turn of the loop joins the same write.
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write what was submitted, without waiting for the end of the loop's turn."""
        self._flush_is_due = False
        outgoing, self._outgoing = self._outgoing, []
        if outgoing and self._connection is not None:
            # How much may be on the way is bounded by those who submit; a peer that reads nothing is seen by the watch.
            self._connection.write_now(b"".join(outgoing))

    async def call(self, *args: Any) -> Any:
        """Send a command and wait for its reply.

        Raises:
            StoreUnavailable: The link did not come up within the answer timeout.
            LinkLost: The connection went down before the answer.
            redis.exceptions.ResponseError: The server's refusal.
        """
        if self._connection is None:
            await self.wait_up(self._answer_timeout)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit(args, partial(resolve_reply, future))
        return await future

    async def wait_up(self, timeout_seconds: float) -> None:
        """Wait until the link is connected.

        Raises:
            StoreUnavailable: It was not within the time.
        """
        if self._connection is not None:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._up_waiters.append(future)
        try:
            with anyio.fail_after(timeout_seconds):
                await future
        except TimeoutError:
            why = f"no connection within {timeout_seconds:g} s: {said(self.last_error)}"
            raise StoreUnavailable(self.target, why) from None
        finally:
            if future in self._up_waiters:
                self._up_waiters.remove(future)

    async def run(self) -> None:
        """Keep the link connected until cancelled."""
        delay = RECONNECT_FIRST_SECONDS
        try:
            while not self._is_severed:
                connection = await self._connect()
                if connection is not None:
                    delay = RECONNECT_FIRST_SECONDS
                    await self._serve(connection)
                await anyio.sleep(delay)
                delay = min(delay * 2, RECONNECT_CAP_SECONDS)
        finally:
            self._drop(LinkLost(f"{self.name} was closed"))

    async def _connect(self) -> Connection | None:
        connection = self._make_connection()
        try:
            with anyio.fail_after(self._answer_timeout):
                await connection.connect()
                if self._on_connect is not None:
                    await self._on_connect(connection)
        except (OSError, redis.exceptions.RedisError) as error:
            if self.last_error is None:
                logger.warning("store not reachable over %s: %s", self.name, said(error))
            self.last_error = error
            with anyio.CancelScope(shield=True):
                await connection.disconnect(nowait=True)
            return None
        if self.last_error is not None:
            logger.info("store reachable again over %s", self.name)
        self.last_error = None
        self._connection = connection
        waiters, self._up_waiters = self._up_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return connection

    async def _serve(self, connection: Connection) -> None:
        """Read and watch until one of the two finds the connection gone."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._until_lost, self._read, connection, tasks.cancel_scope)
                tasks.start_soon(self._until_lost, self._watch, connection, tasks.cancel_scope)
        finally:
            self._connection = None
            with anyio.CancelScope(shield=True):
                await connection.disconnect(nowait=True)
            self._drop(LinkLost(f"{self.name} lost its connection: {self.last_error}"))

    async def _until_lost(
        self, work: Callable[[Connection], Any], connection: Connection, scope: anyio.CancelScope
    ) -> None:
        try:
            await work(connection)
        except (OSError, redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
            self.last_error = error
            scope.cancel()

    async def _read(self, connection: Connection) -> None:
        waiting, read, read_now = self._waiting, connection.read_response, connection.read_now
        while True:
            try:
                reply = await read(disable_decoding=True, timeout=math.inf, disconnect_on_error=False)
            except redis.exceptions.RedisError as error:
                # LOADING and its kin derive from ConnectionError but are answers: the command was not run.
                if not is_refusal(error):
                    raise
                reply = error
            while reply is not NOTHING_READ:
                _hand_over(waiting.popleft()[0], reply)
                if self._leaves_read_only and isinstance(reply, redis.exceptions.ReadOnlyError):
                    raise redis.exceptions.ConnectionError("the server is a replica now") from reply
                # The replies of a turn arrive together; each that is awaited costs several times what it takes to read.
                reply = read_now()

    async def _watch(self, connection: Connection) -> None:
        del connection
        while True:
            await anyio.sleep(WATCH_SECONDS)
            if self._waiting and time.monotonic() - self._waiting[0][1] > self._answer_timeout:
                raise redis.exceptions.TimeoutError(f"no answer within {self._answer_timeout:g} s")

    def _drop(self, error: LinkLost) -> None:
        """Tell everybody who waits that the outcome of their command is unknown."""
        self._outgoing = []
        waiting, self._waiting = self._waiting, deque()
        for done, _ in waiting:
            _hand_over(done, error)


def _hand_over(done: Done, reply: Any) -> None:
    try:
        done(reply)
    except Exception:
        # One that raises against its word must not cost the others their replies, and the process its connection.
        logger.exception("what waited for an answer of the store failed on it")


def is_refusal(error: Exception) -> bool:
    """Return whether an exception is the server's own word, rather than a broken connection."""
    return isinstance(error, redis.exceptions.ResponseError | redis.exceptions.BusyLoadingError) or str(
        error
    ).startswith(("LOADING", "MASTERDOWN"))
