"""One connection for sharded pub/sub: messages are hints, so a lost one costs latency and never work.

redis-py's own `PubSub` costs three times as much per message; the connection beneath it hands over raw replies.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, cast

import anyio
import anyio.abc
import hiredis
import redis.exceptions

from .link import RECONNECT_CAP_SECONDS, RECONNECT_FIRST_SECONDS, Connection, is_refusal
from .observer import NoObserver, Observer
from .refusals import said

logger = logging.getLogger("keylane.subscription")

#: A connection on which nothing was heard for so long is asked whether it is there.
QUIET_SECONDS: Final = 2.0
#: And counts as lost when it has not said anything for so long, also one that is being made.
SILENT_SECONDS: Final = 5.0

# Its type hint allows one word only.
_pack: Callable[[tuple[str | bytes, ...]], bytes] = cast("Any", hiredis).pack_command

_MESSAGE: Final = b"smessage"
_SUBSCRIBED: Final = b"ssubscribe"
_UNSUBSCRIBED: Final = b"sunsubscribe"


class Listening(Protocol):
    """What hears the channels that are wanted, on however many servers they lie."""

    @property
    def is_up(self) -> bool:
        """Whether messages can arrive at all, as far as is known."""
        ...

    @property
    def wanted(self) -> frozenset[bytes]:
        """The channels that are subscribed to, confirmed or not."""
        ...

    def subscribe(self, channel: bytes) -> None:
        """Want the messages of a channel."""
        ...

    def unsubscribe(self, channel: bytes) -> None:
        """Want them no longer."""
        ...

    def is_subscribed(self, channel: bytes) -> bool:
        """Return whether messages of the channel arrive now."""
        ...

    async def subscribed(self, channel: bytes, timeout_seconds: float) -> bool:
        """Subscribe and wait until that is confirmed."""
        ...

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled."""
        ...


class Subscription:
    """A connection that comes back by itself and subscribes anew to what is wanted.

    Args:
        make_connection: Makes an unconnected redis-py connection, such as `Store.new_connection`.
        on_message: Called with channel and payload of each message.
        on_gap: Called when messages may have been missed and arrive again from now on, so that one look at the store
            finds the rest; also after the first connection.
        observer: May drop messages; for tests.
        on_elsewhere: Called with the refusal that names another server, and with None when this one gave a channel up:
            the slot has moved.
    """

    def __init__(
        self,
        make_connection: Callable[[], Connection],
        *,
        on_message: Callable[[bytes, bytes], None],
        on_gap: Callable[[], None],
        observer: Observer | None = None,
        on_elsewhere: Callable[[Exception | None], None] | None = None,
    ) -> None:
        self._make_connection = make_connection
        self._on_message = on_message
        self._on_gap = on_gap
        self._deliver = (observer or NoObserver()).deliver
        self._on_elsewhere = on_elsewhere
        self._wanted: dict[bytes, None] = {}
        self._confirmed: set[bytes] = set()
        self._waiters: dict[bytes, list[asyncio.Future[None]]] = {}
        self._outgoing: list[bytes] = []
        self._writer_idle: asyncio.Future[None] | None = None
        self._is_up = False
        # The channel whose confirmation ends a time in which messages were missed; replies come in order.
        self._gap_ends_with: bytes | None = None
        self._heard_at = 0.0
        self._last_error: Exception | None = None

    @property
    def is_up(self) -> bool:
        """Whether the connection stands, as far as is known."""
        return self._is_up

    @property
    def wanted(self) -> frozenset[bytes]:
        """The channels that are subscribed to, confirmed or not."""
        return frozenset(self._wanted)

    def subscribe(self, channel: bytes, *, after_a_gap: bool = False) -> None:
        """Want the messages of a channel; wanting it twice is as good as once.

        Args:
            channel: The channel.
            after_a_gap: Whether messages on it may have been missed until it is confirmed.
        """
        if channel not in self._wanted:
            self._wanted[channel] = None
            if after_a_gap and self._is_up:
                self._gap_ends_with = channel
            self._send("SSUBSCRIBE", channel)

    def ask_again(self) -> None:
        """Subscribe again to what the server has not confirmed."""
        for channel in self._wanted:
            if channel not in self._confirmed:
                self._send("SSUBSCRIBE", channel)

    def unsubscribe(self, channel: bytes) -> None:
        """Want them no longer."""
        if channel in self._wanted:
            del self._wanted[channel]
            self._confirmed.discard(channel)
            self._release(channel)
            self._send("SUNSUBSCRIBE", channel)

    def is_subscribed(self, channel: bytes) -> bool:
        """Return whether messages of the channel arrive now."""
        return channel in self._confirmed

    async def subscribed(self, channel: bytes, timeout_seconds: float) -> bool:
        """Subscribe and wait until the server has confirmed it.

        Returns:
            Whether it did within the time; messages are hints, so going on without is allowed.
        """
        self.subscribe(channel)
        if channel in self._confirmed:
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(channel, [])
        waiters.append(future)
        with anyio.move_on_after(timeout_seconds):
            await future
        if future in waiters:
            waiters.remove(future)
        return channel in self._confirmed

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the connection until cancelled; started after the first attempt, whether it succeeded or not."""
        delay = RECONNECT_FIRST_SECONDS
        connection = await self._connect()
        task_status.started()
        while True:
            if connection is not None:
                delay = RECONNECT_FIRST_SECONDS
                await self._serve(connection)
            await anyio.sleep(delay)
            delay = min(delay * 2, RECONNECT_CAP_SECONDS)
            connection = await self._connect()

    async def _connect(self) -> Connection | None:
        connection = self._make_connection()
        try:
            # A server that is stopped lets itself be connected to, and then never shakes hands.
            with anyio.fail_after(SILENT_SECONDS):
                await connection.connect()
        except (OSError, redis.exceptions.RedisError) as error:
            self._note(error)
            with anyio.CancelScope(shield=True):
                await connection.disconnect(nowait=True)
            return None
        self._last_error = None
        self._heard_at = time.monotonic()
        self._is_up = True
        self._gap_ends_with = next(reversed(self._wanted), None)
        for channel in self._wanted:
            self._send("SSUBSCRIBE", channel)
        return connection

    def _note(self, error: Exception) -> None:
        """Report the first failure of a row and keep quiet about its repetitions."""
        if self._last_error is None:
            logger.warning("notifications are interrupted, results arrive by polling: %s", said(error))
        self._last_error = error

    async def _serve(self, connection: Connection) -> None:
        """Read, write and watch until one of the three finds the connection gone."""
        try:
            async with anyio.create_task_group() as tasks:
                for work in (self._read, self._write, self._watch):
                    tasks.start_soon(self._until_lost, work, connection, tasks.cancel_scope)
        finally:
            self._is_up = False
            self._confirmed.clear()
            self._outgoing.clear()
            with anyio.CancelScope(shield=True):
                await connection.disconnect(nowait=True)

    async def _until_lost(
        self, work: Callable[[Connection], Awaitable[None]], connection: Connection, scope: anyio.CancelScope
    ) -> None:
        try:
            await work(connection)
        except (OSError, redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
            self._note(error)
            scope.cancel()

    async def _read(self, connection: Connection) -> None:
        """Take replies as they come.

        Only the reading itself is awaited: as long as replies lie in the buffer, the loop runs without a pause.
        """
        read = connection.read_response
        deliver, on_message = self._deliver, self._on_message
        while True:
            try:
                reply: Any = await read(disable_decoding=True, timeout=math.inf, disconnect_on_error=False)
            except (redis.exceptions.ConnectionError, redis.exceptions.ResponseError) as error:
                if not is_refusal(error):
                    raise
                if self._on_elsewhere is not None:
                    self._on_elsewhere(error)
                    continue
                logger.warning("the server refused a subscription, results arrive by polling: %s", error)
                continue
            self._heard_at = time.monotonic()
            if reply[0] != _MESSAGE:
                self._control(reply)
            elif deliver(reply[1]):
                try:
                    on_message(reply[1], reply[2])
                except Exception:
                    # One message that can't be dealt with must not cost the others their connection.
                    logger.exception("a notification could not be dealt with")

    def _control(self, reply: Any) -> None:
        """Take in what is not a message; PONG, which has two forms, says nothing more than that it came."""
        match reply:
            case [kind, bytes() as channel, *_] if kind == _SUBSCRIBED:
                self._subscribed(channel)
            case [kind, bytes() as channel, *_] if kind == _UNSUBSCRIBED and channel in self._wanted:
                # The server sends this by itself when the channel's slot moves to another node.
                self._confirmed.discard(channel)
                self._gap_ends_with = channel
                self._send("SSUBSCRIBE", channel)
                if self._on_elsewhere is not None:
                    self._on_elsewhere(None)
            case _:
                pass

    def _subscribed(self, channel: bytes) -> None:
        if channel in self._wanted:
            self._confirmed.add(channel)
            self._release(channel)
        if channel == self._gap_ends_with:
            self._gap_ends_with = None
            self._on_gap()

    def _release(self, channel: bytes) -> None:
        for waiter in self._waiters.pop(channel, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _send(self, *words: str | bytes) -> None:
        """Queue a command; without a connection there is no need, as all channels are sent when it comes back."""
        if not self._is_up:
            return
        self._outgoing.append(_pack(words))
        idle, self._writer_idle = self._writer_idle, None
        if idle is not None and not idle.done():
            idle.set_result(None)

    async def _write(self, connection: Connection) -> None:
        while True:
            if not self._outgoing:
                self._writer_idle = idle = asyncio.get_running_loop().create_future()
                await idle
            outgoing, self._outgoing = self._outgoing, []
            await connection.send_packed_command([b"".join(outgoing)], check_health=False)

    async def _watch(self, connection: Connection) -> None:
        del connection
        while True:
            await anyio.sleep(QUIET_SECONDS / 2)
            silence = time.monotonic() - self._heard_at
            if silence > SILENT_SECONDS:
                raise redis.exceptions.TimeoutError(f"nothing heard for {silence:.1f} s")
            if silence > QUIET_SECONDS:
                self._send("PING")
