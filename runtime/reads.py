"""Shared handlers: they read what is durable, never take the lane, and leave no history."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from ..journal import codec
from ..journal.codec import Undecodable
from ..journal.errors import (
    CallError,
    InternalError,
    InvalidInput,
    InvalidOutput,
    KeylaneError,
    TerminalError,
    code_of,
    fields_of,
)
from ..journal.key import Key, format_id
from ..journal.lane_reading import read_state
from ..journal.outcomes import Outcome, Refused, Rejected, Succeeded, encode_outcome
from .blocking_context import BlockingReadingContext
from .context import ReadingContext
from .endings import answer, failure_of
from .partition import Partition, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..journal.keyspace import PartitionSpace
    from ..journal.requests import Request
    from ..journal.store import Store
    from ..objects.handler import Handler
    from .lane import Lane
    from .slots import Slots

logger = logging.getLogger("keylane.invocation")


class Reads:
    """Serves shared handlers on one worker.

    Args:
        store: The open store, for keys that are owned elsewhere or while the lease is in doubt.
        limiter: Bounds the threads that plain handlers run on.
    """

    def __init__(self, store: Store, limiter: anyio.CapacityLimiter) -> None:
        self._store = store
        self._limiter = limiter
        self.slots: Slots[Serving]

    async def run(
        self, partition: Partition | None, space: PartitionSpace, handler: Handler[Any, Any], key_text: str,
        payload: bytes | None, raw_id: bytes,
    ) -> Any:  # fmt: skip
        """Run a shared handler on the durable state and return its output.

        Raises:
            InvalidInput: The argument does not fit.
            StoreError: The state can't be read.
        """
        lane = None if partition is None else partition.lanes.get(key_text)
        if lane is not None and lane.loaded and partition is not None and partition.may_serve():
            # A copy: what is written together is seen together, also by a handler that waits between two values.
            values: Mapping[str, bytes] = dict(lane.durable)
            key = lane.key
        else:
            key = Key.parse(key_text)
            values = await self._values(partition, space, key_text)
        ctx = ReadingContext(
            space.type_name, key, values, format_id(space.type_name, space.number, raw_id), partial(_now, partition)
        )
        arguments: tuple[Any, ...] = ()
        if handler.input is not None:
            if payload is None:
                raise InvalidInput("argument", "the handler takes an argument and none was given")
            arguments = (handler.input.load(payload),)
        if not handler.is_blocking:
            return await handler.function(ctx, *arguments)
        call = partial(handler.function, BlockingReadingContext(ctx), *arguments)
        return await anyio.to_thread.run_sync(call, limiter=self._limiter)

    async def _values(self, partition: Partition | None, space: PartitionSpace, key_text: str) -> Mapping[str, bytes]:
        if partition is not None and partition.may_serve():
            lane = partition.lane(key_text)
            if not lane.loaded:
                await _loaded(lane)
            return dict(lane.durable)
        try:
            return (await read_state(self._store, space, key_text)).values
        except Undecodable as error:
            raise InternalError(f"the state of {key_text} can't be read: {error}") from error

    async def outcome(
        self, partition: Partition | None, space: PartitionSpace, handler: Handler[Any, Any], key_text: str,
        payload: bytes | None, raw_id: bytes,
    ) -> Outcome:  # fmt: skip
        """Run a shared handler and return what becomes of it, errors included."""
        try:
            value = await self.run(partition, space, handler, key_text, payload, raw_id)
            return Succeeded(handler.output.dump(value))
        except (TerminalError, InvalidOutput) as error:
            return Rejected(failure_of(error))
        except KeylaneError as error:
            return Refused(code_of(error), error.message, codec.pack(fields_of(error)))
        except Exception as error:  # noqa: BLE001, nothing was written: the caller decides whether to ask again
            logger.info("shared handler %s failed: %r", handler.name, error)
            return Rejected(failure_of(error))

    def serve(self, partition: Partition, handler: Handler[Any, Any], request: Request, entry: bytes | None) -> None:
        """Have a slot answer a request that came through the inbox."""
        partition.serving.add(request.invocation)
        self.slots.give(Serving(partition, handler, request, entry))

    async def serve_now(self, serving: Serving) -> None:
        """Answer one request."""
        partition, request = serving.partition, serving.request
        try:
            outcome = await self.outcome(
                partition, partition.space, serving.handler, request.key, request.payload, request.invocation
            )
            if partition.phase is not Phase.LOST:
                encoded = encode_outcome(outcome)
                answer(partition, request.invocation, serving.entry, request.client, encoded)
        finally:
            partition.serving.discard(request.invocation)


def _now(partition: Partition | None) -> datetime:
    seconds = time.time() if partition is None else partition.now_ms() / 1000
    return datetime.fromtimestamp(seconds, tz=UTC)


class Serving:
    """One request for a shared handler."""

    __slots__ = ("entry", "handler", "partition", "request")

    def __init__(self, partition: Partition, handler: Handler[Any, Any], request: Request, entry: bytes | None) -> None:
        self.partition = partition
        self.handler = handler
        self.request = request
        self.entry = entry


async def _loaded(lane: Lane) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    lane.when_loaded.append(partial(_done, future))
    await future
    if not lane.loaded:
        raise lane.load_error or CallError("the object can't be read now")


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
