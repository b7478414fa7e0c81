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

from ..journal.blobs import is_reference, read_blob
from ..journal.codec import Undecodable
from ..journal.errors import (
    InternalError,
    InvalidInput,
    InvalidOutput,
    KeylaneError,
    PayloadTooLarge,
    TerminalError,
)
from ..journal.key import Key, format_id
from ..journal.lane_reading import read_state
from ..journal.outcomes import Outcome, Rejected, Succeeded, encode_outcome
from .blocking_context import BlockingReadingContext
from .bounds import check_unpacked
from .failures import failure_of, refused
from .handler_thread import HandlerThread
from .idle import unheard
from .migrations import migrated
from .own_context import in_own_context
from .partition import Partition, Phase
from .reading_context import ReadingContext
from .replies import answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..journal.keyspace import PartitionSpace
    from ..journal.requests import Request
    from ..journal.store import Store
    from ..objects.app import App
    from ..objects.handler import Handler
    from .lane import Lane
    from .slots import Slots

logger = logging.getLogger("keylane.invocation")

#: A read waits so long for the commits before it, then it asks the store.
SETTLE_SECONDS = 0.005


class Reads:
    """Serves shared handlers on one worker.

    Args:
        app: What this worker hosts.
        store: The open store, for keys that are owned elsewhere or while the lease is in doubt.
        limiter: Bounds the threads that plain handlers run on.
        payload_limit_bytes: How large an output may be.
    """

    def __init__(self, app: App, store: Store, limiter: anyio.CapacityLimiter, payload_limit_bytes: int) -> None:
        self._app = app
        self._store = store
        self._payload_limit_bytes = payload_limit_bytes
        self._limiter = limiter
        self.slots: Slots[Serving]
        #: How many shared handlers run now.
        self.running = 0
        #: Called whenever one of them has ended; must not raise.
        self.on_rest: Callable[[], None] = unheard

    @property
    def is_at_rest(self) -> bool:
        """Whether no shared handler runs."""
        return not self.running

    async def run(
        self, partition: Partition | None, space: PartitionSpace, handler: Handler[Any, Any], key_text: str,
        payload: bytes | None, raw_id: bytes,
    ) -> Any:  # fmt: skip
        """Run a shared handler on the durable state and return its output.

        Raises:
            InvalidInput: The argument does not fit.
            StoreError: The state can't be read.
        """
        self.running += 1
        try:
            return await self._run(partition, space, handler, key_text, payload, raw_id)
        finally:
            self.running -= 1
            self.on_rest()

    async def _run(
        self, partition: Partition | None, space: PartitionSpace, handler: Handler[Any, Any], key_text: str,
        payload: bytes | None, raw_id: bytes,
    ) -> Any:  # fmt: skip
        is_ours = partition is not None and partition.phase is not Phase.LOST
        value = await self._run_on(partition, space, handler, key_text, payload, raw_id)
        if is_ours and partition is not None and partition.phase is Phase.LOST:
            # What it has read may be lost, and must not be told any more.
            return await self._run_on(None, space, handler, key_text, payload, raw_id)
        return value

    async def _run_on(
        self, partition: Partition | None, space: PartitionSpace, handler: Handler[Any, Any], key_text: str,
        payload: bytes | None, raw_id: bytes,
    ) -> Any:  # fmt: skip
        return await self._call(
            handler.function, await self._context(partition, space, key_text, raw_id), arguments_of(handler, payload),
            is_blocking=handler.is_blocking,
        )  # fmt: skip

    async def validate(
        self, partition: Partition, handler: Handler[Any, Any], key_text: str, payload: bytes | None, raw_id: bytes
    ) -> None:
        """Run a handler's validator on the durable state; it raises what it has against the call.

        Raises:
            InvalidInput: The argument does not fit.
            StoreError: The state can't be read.
        """
        validator = handler.validate
        if validator is not None:
            arguments = arguments_of(handler, payload)
            ctx = await self._context(partition, partition.space, key_text, raw_id)
            await self._call(validator.function, ctx, arguments, is_blocking=validator.is_blocking)

    async def _context(
        self, partition: Partition | None, space: PartitionSpace, key_text: str, raw_id: bytes
    ) -> ReadingContext:
        lane = None if partition is None else partition.lanes.get(key_text)
        key = Key.parse(key_text) if lane is None else lane.key
        values = await self._values(partition, space, key_text)
        return ReadingContext(
            space.type_name,
            key,
            values,
            format_id(space.type_name, space.number, raw_id),
            partial(_now, partition),
            partial(read_blob, self._store, space, key_text),
        )

    async def _call(
        self, function: Callable[..., Any], ctx: ReadingContext, arguments: tuple[Any, ...], *, is_blocking: bool
    ) -> Any:
        if not is_blocking:
            return await in_own_context(function(ctx, *arguments))
        thread = HandlerThread()
        call = partial(thread.run, function, BlockingReadingContext(ctx, thread), *arguments)
        return await anyio.to_thread.run_sync(call, limiter=self._limiter, abandon_on_cancel=True)

    async def _values(self, partition: Partition | None, space: PartitionSpace, key_text: str) -> Mapping[str, bytes]:
        if partition is not None and partition.may_serve():
            lane = partition.lane(key_text)
            if not lane.loaded:
                await _loaded(lane)
            if lane.loaded and await _is_settled(lane) and not lane.is_migrating:
                # A copy: what is written together is seen together, also by a handler that waits between two values.
                return await self._newest(space, key_text, dict(lane.durable), lane.state_version)
        try:
            state = await read_state(self._store, space, key_text)
            # Nobody may see what a failover could take back.
            await self._store.settle(space)
            return await self._newest(space, key_text, state.values, state.version)
        except Undecodable as error:
            raise InternalError(f"the state of {key_text} can't be read: {error}") from error

    async def _newest(
        self, space: PartitionSpace, key_text: str, values: dict[str, bytes], version: int
    ) -> dict[str, bytes]:
        """Return a state as this code's version has it; nothing of that is written."""
        virtual_object = self._app.objects[space.type_name]
        if version == virtual_object.state_version or not values:
            return values
        for name, packed in values.items():
            if is_reference(packed):
                values[name] = await read_blob(self._store, space, key_text, packed, f"state {name}")
        return migrated(virtual_object, values, version, self._app.settings)

    async def outcome(
        self, partition: Partition | None, space: PartitionSpace, handler: Handler[Any, Any], key_text: str,
        payload: bytes | None, raw_id: bytes,
    ) -> Outcome:  # fmt: skip
        """Run a shared handler and return what becomes of it, errors included."""
        try:
            value = await self.run(partition, space, handler, key_text, payload, raw_id)
            return Succeeded(self._packed(handler, value))
        except (TerminalError, InvalidOutput, PayloadTooLarge) as error:
            return Rejected(failure_of(error, self._payload_limit_bytes))
        except KeylaneError as error:
            return refused(error)
        except BaseException as error:
            if is_from_outside(error):
                raise
            # Nothing was written: the caller decides whether to ask again.
            logger.info("shared handler %s failed: %r", handler.name, error)
            return Rejected(failure_of(error))

    def _packed(self, handler: Handler[Any, Any], value: Any) -> bytes:
        check_unpacked("result", "", value, self._payload_limit_bytes)
        packed = handler.output.dump(value)
        if len(packed) > self._payload_limit_bytes:
            raise PayloadTooLarge("result", len(packed), self._payload_limit_bytes)
        return packed

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
                answer(partition, request.invocation, serving.entry, request.client, encoded, caller=request.caller)
        finally:
            partition.serving.discard(request.invocation)


def arguments_of(handler: Handler[Any, Any], payload: bytes | None) -> tuple[Any, ...]:
    """Return what a function of a handler is called with behind its context.

    Raises:
        InvalidInput: The argument does not fit.
    """
    if handler.input is None:
        return ()
    if payload is None:
        raise InvalidInput("argument", "the handler takes an argument and none was given")
    try:
        return (handler.input.load(payload),)
    except Undecodable as error:
        raise InvalidInput(handler.input.where, str(error)) from error


def is_from_outside(error: BaseException) -> bool:
    match error:
        case asyncio.CancelledError():
            task = asyncio.current_task()
            return task is not None and task.cancelling() > 0
        case KeyboardInterrupt() | GeneratorExit():
            return True
        case _:
            return False


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


def asker_of(serving: Serving) -> str:
    """Return the tenant who asks."""
    return serving.request.key.partition("/")[0]


async def _is_settled(lane: Lane) -> bool:
    """Return whether what was queued in a lane is durable by now, or soon.

    The store announces an answer as it applies the commit. So where the commit's reply is late, somebody may know of a
    state that its owner does not know to be durable yet, and must not be shown an older one: then only the store can
    tell.
    """
    gate = lane.gate()
    if gate is None:
        return True
    try:
        await asyncio.wait((gate,), timeout=SETTLE_SECONDS)
    finally:
        is_durable = not gate.cancel() and gate.exception() is None
    return is_durable


async def _loaded(lane: Lane) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    lane.when_loaded = (*lane.when_loaded, partial(_done, future))
    await future
    if lane.load_error is not None:
        raise lane.load_error


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
