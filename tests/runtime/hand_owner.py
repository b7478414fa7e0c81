"""An owner made by hand for tests of what stands outside it: reads an inbox and answers with plain commands."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from keylane.journal.inbox import START, read_after
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.outcomes import Outcome, encode_outcome
from keylane.journal.record_bytes import encode
from keylane.journal.records import Accepted, Record
from keylane.journal.requests import Answer, Request
from keylane.journal.store import Store
from keylane.journal.subscription import Subscription
from keylane.runtime.answers import Answers
from keylane.runtime.remote import Remote

RESULT_MS = 60_000


class HandOwner:
    """Answers what a test tells it to, for one partition.

    Args:
        store: The open store.
        space: The partition.
    """

    def __init__(self, store: Store, space: PartitionSpace) -> None:
        self._store = store
        self._space = space
        self._cursor = START

    async def next(self) -> Request:
        """Wait for the next request in the inbox and take it out."""
        with anyio.fail_after(10):
            while not (entries := await read_after(self._store, self._space, self._cursor, 1)):
                await anyio.sleep(0.005)
        self._cursor, data = entries[0]
        await self._store.call("XDEL", self._space.inbox, self._cursor)
        return Request.decode(data)

    async def end(self, request: Request, outcome: Outcome, *, announce: bool = True) -> None:
        """Keep an outcome, and announce it."""
        data = encode_outcome(outcome)
        await self._store.call("SET", self._space.result(request.invocation), data, "PX", RESULT_MS)
        if announce:
            await self.announce(request, data)

    async def accept(self, request: Request, *, announce: bool = True) -> None:
        """Begin the stream of an invocation, and announce that there is news."""
        fact = Accepted(request.invocation, request.handler, 1, request.key, request.payload, None, request.client)
        await self.write(request, fact)
        if announce:
            await self.announce(request, None)

    async def write(self, request: Request, record: Record) -> None:
        """Write a record of an invocation, and say nothing."""
        await self._store.call("XADD", self._space.invocation(request.invocation), "*", "r", encode(record))

    async def announce(self, request: Request, outcome: bytes | None) -> None:
        """Announce an answer."""
        message = Answer(request.client or b"", request.invocation, outcome).encode()
        await self._store.call("SPUBLISH", self._space.answer_channel, message)


@asynccontextmanager
async def waiting(store: Store, *, deaf: bool = False) -> AsyncGenerator[Remote]:
    """Open what a client waits with; a deaf one hears no announcement."""
    answers = Answers(store, sweep_seconds=0.2)
    remote = Remote(store, answers)
    if deaf:
        answers.subscription = Subscription(store.new_connection, on_message=_ignore, on_gap=answers.look_at_all)
    async with anyio.create_task_group() as tasks:
        await tasks.start(answers.subscription.run)
        yield remote
        answers.close()
        tasks.cancel_scope.cancel()


def _ignore(channel: bytes, payload: bytes) -> None:
    del channel, payload
