"""Calls from outside: from any process, by reference to a handler or by its name."""

from __future__ import annotations

import asyncio
import contextlib
import os
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast, overload

import anyio
from typing_extensions import TypeForm

from ..journal import reading
from ..journal.background import Background
from ..journal.descriptions import InvocationDescription
from ..journal.endpoint import find_endpoint
from ..journal.errors import CallError, CallTimeout, StoreError, StoreUnavailable
from ..journal.inbox import comparable
from ..journal.key import InvocationId, Key, new_invocation_id, parse_id
from ..journal.keyspace import PartitionSpace
from ..journal.object_description import ObjectDescription
from ..journal.outcomes import Replayed, Succeeded
from ..journal.records import Paused
from ..journal.requests import CLIENT_BYTES, RequestKind
from ..journal.store import Store
from ..journal.urls import EmbeddedAddress, parse_store_url
from ..objects.handler import Handler, NoInput
from ..objects.settings import Settings, settings_of
from ..objects.types import Boundary, boundary_of
from .answers import Answers, Ended
from .approval_client import ApprovalClient
from .bounds import check_number
from .cancel_client import CancelClient
from .door import DoorClosed, LocalDoor, LocalRoutes
from .effect_desk import EffectDesk
from .ending_client import EndingClient
from .explaining import explained
from .handle import Handle, Timeout, seconds_of, value_of
from .operating import Operating
from .orders import Order, milliseconds, order_of
from .places import Places, name_of
from .reconcile_client import ReconcileClient
from .remote import Patience, Remote
from .signal_sending import SignalSender
from .sizing import partitions_for
from .spans import spans_of

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

Input = TypeVar("Input")
Output = TypeVar("Output")

#: How long the acceptance of a call in this process may take once its caller has given up; then it gets no id.
ACCEPT_SECONDS: Final = 1.0


def reachable(url: str) -> str:
    """Return the URL at which a store is reached; only `Runtime`, `keylane dev` and the test kit start one.

    Raises:
        StoreError: The URL can't be read.
        StoreUnavailable: No server runs on the folder of an embedded store.
    """
    address = parse_store_url(url)
    if not isinstance(address, EmbeddedAddress):
        return url
    found = find_endpoint(address.folder)
    if found is None:
        raise StoreUnavailable(url, "no server runs on this folder; `keylane dev` starts one")
    return found


class Client(SignalSender, ApprovalClient, EndingClient, Operating, EffectDesk, ReconcileClient):
    """Calls objects, whichever process holds them; use it as an async context manager.

    A call without `timeout` waits for as long as it takes; that its request becomes durable is waited for 30 s at most.

    Args:
        store: The store's URL, or an open `Store` to share. `embedded:FOLDER` finds the server that another process
            runs on that folder.
        namespace: The deployment's prefix.
        settings: The effective settings; by default from `KEYLANE_*` variables.
        local: The partitions that this process owns itself, supplied by `Runtime`.
        tracing: Whether calls and sends are spans of OpenTelemetry, and what they ask for belongs to their traces: a
            tracer provider, or True for the global one. By default as the settings say. Needs `keylane[otel]`.

    Raises:
        StoreError: The URL can't be read.
        StoreUnavailable: No server runs on the folder of an embedded store.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        namespace: str = "keylane",
        settings: Settings | None = None,
        local: LocalRoutes | None = None,
        tracing: TracerProvider | bool | None = None,
    ) -> None:
        self.settings = settings_of(settings)
        self._own_store = None if isinstance(store, Store) else self._opened(store, namespace)
        self._store = self._own_store or cast("Store", store)
        self.answers = Answers(self._store, sweep_seconds=self.settings.sweep_seconds)
        self._remote = Remote(self._store, self.answers)
        self._local = local
        self._spans = spans_of(self.settings.tracing if tracing is None else tracing)
        self._id = os.urandom(CLIENT_BYTES)
        self._all_places = Places(self._store, local)
        self._payload_limit_bytes = self.settings.payload_limit_bytes
        self._all_cancels = CancelClient(self._store, self._remote, self._id)
        self._stack = contextlib.AsyncExitStack()
        self._was_opened = False

    def _opened(self, url: str, namespace: str) -> Store:
        return Store(reachable(url), namespace=namespace, memory_limit_ratio=self.settings.memory_limit_ratio)

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            StoreUnavailable: The store did not answer within 5 s.
            StoreError: It was open before.
        """
        if self._was_opened:
            raise StoreError("this client is open, or was closed already: make another one")
        self._was_opened = True
        await self._stack.__aenter__()
        try:
            if self._own_store is not None:
                await self._stack.enter_async_context(self._own_store)
                await self._all_places.learn_durability()
            tasks = await self._stack.enter_async_context(Background())
            self._stack.callback(self.answers.close)
            await tasks.start(self.answers.subscription.run)
        except BaseException:
            await self._stack.aclose()
            raise
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections; invocations go on."""
        self._loop = None
        await self._stack.aclose()

    @overload
    async def call(
        self,
        handler: Handler[NoInput, Output],
        key: Key | str,
        /,
        *,
        idempotency_key: str | None = None,
        timeout: Timeout = None,
    ) -> Output: ...
    @overload
    async def call(
        self,
        handler: Handler[Input, Output],
        key: Key | str,
        argument: Input,
        /,
        *,
        idempotency_key: str | None = None,
        timeout: Timeout = None,
    ) -> Output: ...
    @overload
    async def call(
        self,
        object_name: str,
        key: Key | str,
        handler_name: str,
        argument: Any = ...,
        /,
        *,
        idempotency_key: str | None = None,
        timeout: Timeout = None,
    ) -> Any: ...
    async def call(
        self,
        target: Any,
        key: Key | str,
        /,
        *rest: Any,
        idempotency_key: str | None = None,
        timeout: Timeout = None,
    ) -> Any:
        """Call a handler and wait for its output.

        Args:
            target: The handler; or the name of the object type, with the handler's name behind the key.
            key: The object, as `Key` or `tenant/key`.
            rest: The argument, for a handler that takes one.
            idempotency_key: The same key and arguments get the first call's result instead of a second run.
            timeout: How long to wait; the invocation goes on afterwards.

        Returns:
            The output: of the declared type by reference, of plain values by name.

        Raises:
            InvocationFailed: The handler ended with a `TerminalError`.
            InvocationPaused: It waits for a person.
            CallTimeout: The time passed; the error carries the id to attach to.
            CallError: The call was refused.
            StoreError: The store was away for too long, or refused.
        """
        order = self._order(target, key, rest, idempotency_key)
        try:
            if self._spans.is_on:
                with self._spans.asking("call", order):
                    return await self._answer_of(order, idempotency_key, timeout)
            return await self._answer_of(order, idempotency_key, timeout)
        except CallTimeout as error:
            raise await explained(self._store, error) from None

    @overload
    async def send(
        self,
        handler: Handler[NoInput, Output],
        key: Key | str,
        /,
        *,
        idempotency_key: str | None = None,
        delay: Timeout = None,
    ) -> Handle[Output]: ...
    @overload
    async def send(
        self,
        handler: Handler[Input, Output],
        key: Key | str,
        argument: Input,
        /,
        *,
        idempotency_key: str | None = None,
        delay: Timeout = None,
    ) -> Handle[Output]: ...
    @overload
    async def send(
        self,
        object_name: str,
        key: Key | str,
        handler_name: str,
        argument: Any = ...,
        /,
        *,
        idempotency_key: str | None = None,
        delay: Timeout = None,
    ) -> Handle[Any]: ...
    async def send(
        self,
        target: Any,
        key: Key | str,
        /,
        *rest: Any,
        idempotency_key: str | None = None,
        delay: Timeout = None,
    ) -> Handle[Any]:
        """Have a handler run and don't wait for it; also while no worker is up.

        Args:
            target: The handler; or the name of the object type, with the handler's name behind the key.
            key: The object, as `Key` or `tenant/key`.
            rest: The argument, for a handler that takes one.
            idempotency_key: The same key and arguments get the first call's result instead of a second run.
            delay: How long it waits, from when its owner takes it in, before it enters its lane.

        Returns:
            A handle, once the request is durable. What the owner says to it tells `Handle.accepted`.

        Raises:
            CallError: The call was refused at once.
            StoreError: The store was away for too long, or refused.
        """
        self._check_use()
        order = self._order(target, key, rest, idempotency_key)
        delay_ms = milliseconds(delay, "delay")
        if delay_ms and order.shared:
            raise CallError(f"{target} is shared: it leaves no history, so it can't be asked for later")
        space = await self._space(order)
        self._store.memory_of(space).check()
        with self._spans.asking("send", order):
            request = order.request(RequestKind.SEND, new_invocation_id(), idempotency_key, self._id, delay_ms=delay_ms)
            entry = await self._remote.put(space, request, Patience(None))
        invocation = InvocationId(space.type_name, space.number, request.invocation)
        return Handle(self, invocation, order.output, entry)

    @overload
    def attach(self, invocation_id: str, /) -> Handle[Any]: ...
    @overload
    def attach(self, invocation_id: str, /, type: TypeForm[Output]) -> Handle[Output]: ...
    def attach(self, invocation_id: str, /, type: Any = None) -> Handle[Any]:
        """Return the handle of an invocation, by its id.

        Args:
            invocation_id: As given out by a `send`, or with a `CallTimeout`.
            type: What its output is read as; by default plain values.

        Raises:
            InvalidKey: The text is no invocation id.
        """
        return Handle(self, parse_id(invocation_id), None if type is None else boundary_of(type))

    async def describe(self, invocation_id: str) -> InvocationDescription:
        """Return what is known of one invocation.

        Raises:
            InvalidKey: The text is no invocation id.
        """
        return await reading.describe(self.store, parse_id(invocation_id))

    async def inspect(
        self, object_name: str, key: Key | str, *, timeline_entries: int = reading.TIMELINE_ENTRIES
    ) -> ObjectDescription:
        """Return an object's state, lane and journal.

        Args:
            object_name: The object type.
            key: The object.
            timeline_entries: How many of the newest entries of its stream are shown.

        Raises:
            UnknownObject: The namespace has no such type.
            InvalidKey: The text is no key.
        """
        check_number("timeline_entries", timeline_entries)
        parsed = Key.parse(key)
        space = await self._places.place(name_of(object_name), str(parsed))
        return await reading.inspect(self.store, space, parsed, timeline_entries=timeline_entries)

    def space_of(self, invocation: InvocationId) -> PartitionSpace:
        """Return the partition that an invocation id names."""
        return self._store.space(invocation.type_name, invocation.partition)

    async def output_of(self, ended: Ended, invocation: InvocationId, output: Boundary[Any] | None) -> Any:
        """Return the output of an invocation, or raise what its end means.

        Raises:
            InvocationFailed: The handler failed for good.
            InvocationPaused: It waits for a person.
            CallError: It was refused.
        """
        owner = await self._all_places.owner(invocation.type_name) if isinstance(ended, Paused) else ""
        return value_of(ended, output, str(invocation), owner)

    async def _answer_of(self, order: Order, idempotency_key: str | None, timeout: Timeout) -> Any:
        self._check_use()
        raw_id = new_invocation_id()
        patience = Patience(seconds_of(timeout))
        door = None if self._local is None else self._local.route(order.object_name, order.key_text)
        ended = None if door is None else await self._enter(door, order, raw_id, idempotency_key, patience)
        if type(ended) is Succeeded and order.output is not None:
            return order.output.load(ended.result)
        space = await self._space(order, patience)
        if ended is None:
            if door is None and order.only_takes_in:
                self._store.memory_of(space).check()
            request = order.request(RequestKind.CALL, raw_id, idempotency_key, self._id, again=door is not None)
            ended = await self._remote.ask(space, request, patience)
        elif isinstance(ended, Replayed):
            ended = await self._remote.follow(space, ended, patience)
        return await self.output_of(ended, InvocationId(space.type_name, space.number, raw_id), order.output)

    def _order(self, target: Any, key: Key | str, rest: tuple[Any, ...], idempotency_key: str | None) -> Order:
        return order_of(
            target,
            key,
            rest,
            idempotency_key=idempotency_key,
            payload_limit_bytes=self._payload_limit_bytes,
        )

    async def _space(self, order: Order, patience: Patience | None = None) -> PartitionSpace:
        """Return the partition of a call; nothing is awaited for a type that is known."""
        places = self._all_places
        space = places.known(order.object_name, order.key_text)
        if space is None:
            declared = (
                (order.partitions or partitions_for(self.settings, self._store)) if order.output is not None else None
            )
            learn = partial(places.learned, order.object_name, order.key_text, declared)
            space = await self._remote.persist(learn, patience or Patience(None))
        return space

    async def _enter(
        self, door: LocalDoor, order: Order, raw_id: bytes, idempotency_key: str | None, patience: Patience
    ) -> Ended | None:
        """Call an owner in this process.

        Returns:
            How it ended; None where the call has to go through the inbox: the owner has lost the partition meanwhile,
            or has not taken in yet what this process had put there before.
        """
        try:
            if order.shared or door.is_shared(order.handler_name):
                return await self._read(door, order, raw_id, patience)
            if self._remote.last_entries and not await self._may_enter(door, order):
                return None
            future = door.call(order.handler_name, order.key_text, order.payload, order.basis, idempotency_key, raw_id)
            return await self._remote.until(future, patience)
        except DoorClosed:
            return None
        except TimeoutError:
            raise await self._gave_up(door, order, raw_id, patience) from None

    async def _read(self, door: LocalDoor, order: Order, raw_id: bytes, patience: Patience) -> Ended:
        if patience.until is None:
            return await door.read(order.handler_name, order.key_text, order.payload, raw_id)
        with anyio.move_on_after(patience.left):
            return await door.read(order.handler_name, order.key_text, order.payload, raw_id)
        # Nothing is left of a read that was given up, so there is no id to attach to.
        raise CallTimeout(patience.seconds or 0.0)

    async def _may_enter(self, door: LocalDoor, order: Order) -> bool:
        """Return whether what this process has put into the inbox before has been taken in."""
        tag = (await self._space(order)).tag
        last_entry = self._remote.last_entries.get(tag)
        if last_entry is not None and comparable(door.taken_in) < comparable(last_entry):
            return False
        self._remote.last_entries.pop(tag, None)
        return True

    async def _gave_up(
        self, door: LocalDoor, order: Order, raw_id: bytes, patience: Patience
    ) -> CallTimeout | StoreUnavailable:
        """Return what a caller is told whose time has passed: the id only once the acceptance is durable."""
        space = await self._space(order)
        if (why := self._store.why_waiting(space)) is not None:
            return self._remote.unknown_fate(patience, why)
        with contextlib.suppress(DoorClosed), anyio.move_on_after(ACCEPT_SECONDS):
            await door.accepted(raw_id)
            return patience.spent(space, raw_id)
        why = self._store.why_waiting(space)
        return CallTimeout(patience.seconds or 0.0) if why is None else self._remote.unknown_fate(patience, why)
