"""A proxy between the processes under test and the store: cuts, holds back and drops what passes, when told to."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

CHUNK_BYTES = 65_536
ANSWER_SECONDS = 5.0
STOP_POLL_SECONDS = 0.001
#: A function call on the wire; the verb is what follows the library's name, `keylane_<hash>_`.
CALL = re.compile(rb"\r\nFCALL(?:_RO)?\r\n\$\d+\r\nkeylane_[0-9a-f]+_(\w+)\r\n")
#: Longer than any call's head up to its verb, so that one that lies across two chunks is seen.
TAIL_BYTES = 160

Result = TypeVar("Result")


@dataclass
class _Rules:
    """What is done to what passes; read and changed on the proxy's own loop only."""

    refuse: bool = False
    only: str | None = None
    drop_replies: bool = False
    keep_back: bool = False
    cut_after: int | None = None
    requests: asyncio.Event = field(default_factory=asyncio.Event)
    replies: asyncio.Event = field(default_factory=asyncio.Event)


class Proxy:
    """Listens on a socket of its own and passes everything on to the server, in a thread of its own.

    A rule holds for all connections, or with `only="commit"` for those over which a function with that verb was called:
    so the connection for commits can be hurt while the others go on.

    Args:
        upstream: The server's socket.
        listen: The socket to listen on.

    Attributes:
        calls: How many calls of each verb have reached the server.
        cuts: How many connections were cut.
        held: How many times a request had to wait.
        replied: How many bytes have come back from the server.
    """

    def __init__(self, upstream: Path, listen: Path) -> None:
        self.upstream = upstream
        self.listen = listen
        self.calls: Counter[str] = Counter()
        self.cuts = 0
        self.held = 0
        self.replied = 0
        self._open: set[_Connection] = set()
        self._kept: list[_Connection] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self.rules = _Rules()

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"unix://{self.listen}"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._open)

    def __enter__(self) -> Self:
        """Listen."""
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cut everything and stop listening."""
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_SECONDS)
        self._loop.close()

    def cut(self, *, only: str | None = None) -> int:
        """Cut the open connections; new ones are let in. Returns how many were cut."""
        return self._do(lambda: self._cut(only))

    def refuse(self) -> None:
        """Cut everything and let nobody in, as if the server were down."""

        def change() -> None:
            self.rules.refuse = True
            self._cut(None)

        self._do(change)

    def hold_replies(self, *, only: str | None = None) -> None:
        """Let requests through and keep the answers back."""

        def change() -> None:
            self.rules.only = only
            self.rules.replies.clear()

        self._do(change)

    def let_replies_pass(self) -> None:
        """Let the answers that were held back go, and leave every other rule as it is."""
        self._do(self.rules.replies.set)

    def stall(self, *, only: str | None = None) -> None:
        """Let nothing through in either direction, without closing anything."""

        def change() -> None:
            self.rules.only = only
            self.rules.requests.clear()
            self.rules.replies.clear()

        self._do(change)

    def drop_replies(self, *, only: str | None = None) -> None:
        """Let requests through and swallow the answers."""

        def change() -> None:
            self.rules.only = only
            self.rules.drop_replies = True

        self._do(change)

    def keep_back(self, *, only: str | None = None) -> None:
        """Keep the next requests of one connection back and cut its client off, as if they were long on their way."""

        def change() -> None:
            self.rules.only = only
            self.rules.keep_back = True

        self._do(change)

    @property
    def keeps(self) -> int:
        """How many connections' requests are kept back."""
        return len(self._kept)

    def deliver_late(self) -> bytes:
        """Let what was kept back reach the server, and return what the server says to it."""

        async def deliver() -> bytes:
            kept, self._kept = self._kept, []
            return b"".join([await connection.deliver_late() for connection in kept])

        return self._run(deliver())

    def cut_after(self, reply_bytes: int, *, only: str | None = None) -> None:
        """Let this many more bytes of answers through, then cut the connection, once."""

        def change() -> None:
            self.rules.only = only
            self.rules.cut_after = reply_bytes

        self._do(change)

    def heal(self) -> None:
        """Let everything pass again, also what was kept back."""

        def change() -> None:
            self.rules.refuse = False
            self.rules.drop_replies = False
            self.rules.keep_back = False
            self.rules.cut_after = None
            self.rules.requests.set()
            self.rules.replies.set()

        self._do(change)

    def _cut(self, only: str | None) -> int:
        chosen = [connection for connection in self._open if connection.matches(only)]
        for connection in chosen:
            connection.cut()
        self.cuts += len(chosen)
        return len(chosen)

    def _do(self, change: Callable[[], Result]) -> Result:
        async def run() -> Result:
            return change()

        return self._run(run())

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_SECONDS)

    async def _start(self) -> None:
        self.rules.requests.set()
        self.rules.replies.set()
        self._server = await asyncio.start_unix_server(self._serve, self.listen)

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        # Whatever is held back goes nowhere any more, and each connection ends by itself.
        self._cut(None)
        for connection in self._kept:
            connection.give_up()
        self.rules.requests.set()
        self.rules.replies.set()
        while self._open:
            await asyncio.sleep(STOP_POLL_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.rules.refuse:
            writer.transport.abort()
            return
        try:
            upstream_reader, upstream_writer = await asyncio.open_unix_connection(self.upstream)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(self, writer, upstream_reader, upstream_writer)
        self._open.add(connection)
        try:
            await connection.run(reader)
        finally:
            self._open.discard(connection)
            connection.cut()
            if connection.kept:
                self._kept.append(connection)


class _Connection:
    """Two pumps between a client and the server."""

    def __init__(
        self, proxy: Proxy, client: asyncio.StreamWriter, replies: asyncio.StreamReader, upstream: asyncio.StreamWriter
    ) -> None:
        self.kept = b""
        self._proxy = proxy
        self._client = client
        self._replies = replies
        self._upstream = upstream
        self._verbs: set[str] = set()
        self._tail = b""

    def matches(self, only: str | None) -> bool:
        """Return whether a rule for a verb, or for everybody, holds here."""
        return only is None or only in self._verbs

    def cut(self) -> None:
        """Close both sides without a farewell; the server's stays open while something is kept for it."""
        self._client.transport.abort()
        if not self.kept:
            self.give_up()

    def give_up(self) -> None:
        """Close the server's side."""
        self._upstream.transport.abort()

    async def deliver_late(self) -> bytes:
        """Hand what was kept to the server, and return what it says."""
        self._upstream.write(self.kept)
        await self._upstream.drain()
        said = await self._replies.read(CHUNK_BYTES)
        self.give_up()
        return said

    async def run(self, client: asyncio.StreamReader) -> None:
        """Pass everything on until one side is closed."""
        pumps = [
            asyncio.ensure_future(self._pass_requests(client)),
            asyncio.ensure_future(self._pass_replies(self._replies)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pass_requests(self, client: asyncio.StreamReader) -> None:
        rules = self._proxy.rules
        with contextlib.suppress(OSError):
            while data := await client.read(CHUNK_BYTES):
                verbs = self._verbs_in(data)
                self._verbs.update(verbs)
                if self.matches(rules.only) and rules.keep_back:
                    rules.keep_back = False
                    self.kept = data
                    return
                if self.matches(rules.only) and not rules.requests.is_set():
                    self._proxy.held += 1
                    await rules.requests.wait()
                self._upstream.write(data)
                await self._upstream.drain()
                self._proxy.calls.update(verbs)

    def _verbs_in(self, data: bytes) -> list[str]:
        text = self._tail + data
        found = list(CALL.finditer(text))
        self._tail = text[max(found[-1].end() - 2 if found else 0, len(text) - TAIL_BYTES) :]
        return [match[1].decode() for match in found]

    async def _pass_replies(self, upstream: asyncio.StreamReader) -> None:
        rules = self._proxy.rules
        with contextlib.suppress(OSError):
            while data := await upstream.read(CHUNK_BYTES):
                self._proxy.replied += len(data)
                if self.matches(rules.only):
                    await rules.replies.wait()
                    if rules.drop_replies:
                        continue
                    if rules.cut_after is not None and len(data) > rules.cut_after:
                        await self._cut_within(data[: rules.cut_after])
                        return
                    if rules.cut_after is not None:
                        rules.cut_after -= len(data)
                self._client.write(data)
                await self._client.drain()

    async def _cut_within(self, part: bytes) -> None:
        self._proxy.rules.cut_after = None
        self._proxy.cuts += 1
        self._client.write(part)
        await self._client.drain()
        # Closed and not aborted: what was let through must arrive.
        self._client.close()
