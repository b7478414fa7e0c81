"""`Client` without await, for programs that have no event loop: the loop runs in a thread beside them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar, overload

from anyio.from_thread import BlockingPortal, start_blocking_portal
from typing_extensions import TypeForm

from ..journal.cancel_report import CancelReport
from ..journal.descriptions import InvocationDescription
from ..journal.errors import StoreError
from ..journal.key import Key
from ..journal.object_description import ObjectDescription
from ..journal.reading import TIMELINE_ENTRIES
from ..objects.handler import Handler, NoInput
from ..objects.settings import Settings
from ..objects.verdicts import WaitVerdict
from ..objects.virtual_object import VirtualObject
from .blocking_approvals import BlockingApprovals
from .blocking_desk import BlockingDesk
from .client import Client
from .handle import Handle, Timeout, Verdict

if TYPE_CHECKING:
    from ..objects.virtual_object import VirtualObject

Input = TypeVar("Input")
Output = TypeVar("Output")
Result = TypeVar("Result")
T = TypeVar("T")


class BlockingClient(BlockingApprovals, BlockingDesk):
    """Calls objects and blocks until they answer; use it as a context manager, from any number of threads.

    Args:
        store: The store's URL.
        namespace: The deployment's prefix.
        settings: The effective settings; by default from `KEYLANE_*` variables.

    Raises:
        RuntimeError: An event loop runs in this thread, which a blocking call would stop: use `Client` there.
    """

    def __init__(self, store: str, *, namespace: str = "keylane", settings: Settings | None = None) -> None:
        _refuse_in_loop()
        self._make = lambda: Client(store, namespace=namespace, settings=settings)
        self._stack = contextlib.ExitStack()
        self._portal: BlockingPortal | None = None
        self._client: Client | None = None

    def __enter__(self) -> Self:
        """Start the loop and connect.

        Raises:
            StoreUnavailable: The store did not answer within 5 s.
            StoreError: It is open already.
        """
        _refuse_in_loop()
        if self._client is not None:
            raise StoreError("this client is open already: make another one")
        with contextlib.ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal("asyncio"))
            client = self._portal.call(self._made)
            self._client = stack.enter_context(self._portal.wrap_async_context_manager(client))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Close the connections and stop the loop; invocations go on."""
        self._portal = self._client = None
        return self._stack.__exit__(kind, error, trace)

    async def _made(self) -> Client:
        # The client belongs to the loop of the portal, so it is made there.
        return self._make()

    @overload
    def call(
        self,
        handler: Handler[NoInput, Output],
        key: Key | str,
        /,
        *,
        idempotency_key: str | None = None,
        timeout: Timeout = None,
    ) -> Output: ...
    @overload
    def call(
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
    def call(
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
    def call(
        self,
        target: Any,
        key: Key | str,
        /,
        *rest: Any,
        idempotency_key: str | None = None,
        timeout: Timeout = None,
    ) -> Any:
        """Call a handler and block until its output is there; as `Client.call`."""
        return self._run(
            lambda client: client.call(target, key, *rest, idempotency_key=idempotency_key, timeout=timeout)
        )

    @overload
    def send(
        self,
        handler: Handler[NoInput, Output],
        key: Key | str,
        /,
        *,
        idempotency_key: str | None = None,
        delay: Timeout = None,
    ) -> BlockingHandle[Output]: ...
    @overload
    def send(
        self,
        handler: Handler[Input, Output],
        key: Key | str,
        argument: Input,
        /,
        *,
        idempotency_key: str | None = None,
        delay: Timeout = None,
    ) -> BlockingHandle[Output]: ...
    @overload
    def send(
        self,
        object_name: str,
        key: Key | str,
        handler_name: str,
        argument: Any = ...,
        /,
        *,
        idempotency_key: str | None = None,
        delay: Timeout = None,
    ) -> BlockingHandle[Any]: ...
    def send(
        self,
        target: Any,
        key: Key | str,
        /,
        *rest: Any,
        idempotency_key: str | None = None,
        delay: Timeout = None,
    ) -> BlockingHandle[Any]:
        """Have a handler run and return once the request is durable; as `Client.send`."""
        handle = self._run(lambda client: client.send(target, key, *rest, idempotency_key=idempotency_key, delay=delay))
        return BlockingHandle(self._run, handle)

    @overload
    def attach(self, invocation_id: str, /) -> BlockingHandle[Any]: ...
    @overload
    def attach(self, invocation_id: str, /, type: TypeForm[Output]) -> BlockingHandle[Output]: ...
    def attach(self, invocation_id: str, /, type: Any = None) -> BlockingHandle[Any]:
        """Return the handle of an invocation, by its id; as `Client.attach`."""

        async def attached(client: Client) -> Handle[Any]:
            return client.attach(invocation_id, type)

        return BlockingHandle(self._run, self._run(attached))

    def describe(self, invocation_id: str) -> InvocationDescription:
        """Return what is known of one invocation."""
        return self._run(lambda client: client.describe(invocation_id))

    def inspect(
        self, object_name: str, key: Key | str, *, timeline_entries: int = TIMELINE_ENTRIES
    ) -> ObjectDescription:
        """Return an object's state, lane and journal; as `Client.inspect`."""
        return self._run(lambda client: client.inspect(object_name, key, timeline_entries=timeline_entries))

    @overload
    def pause(self, target: VirtualObject | str, /, *, reason: str, by: str, timeout: Timeout = None) -> None: ...
    @overload
    def pause(
        self, object_type: VirtualObject | str, key: Key | str, /, *, reason: str, by: str, timeout: Timeout = None
    ) -> None: ...
    def pause(self, target: Any, key: Any = None, /, *, reason: str, by: str, timeout: Timeout = None) -> None:
        """Stop an invocation, or the exclusive work of an object or a type; as `Client.pause`."""
        rest = () if key is None else (key,)
        self._run(lambda client: client.pause(target, *rest, reason=reason, by=by, timeout=timeout))

    @overload
    def resume(self, target: VirtualObject | str, /, *, reason: str, by: str, timeout: Timeout = None) -> None: ...
    @overload
    def resume(
        self, object_type: VirtualObject | str, key: Key | str, /, *, reason: str, by: str, timeout: Timeout = None
    ) -> None: ...
    def resume(self, target: Any, key: Any = None, /, *, reason: str, by: str, timeout: Timeout = None) -> None:
        """Let what is paused go on; as `Client.resume`."""
        rest = () if key is None else (key,)
        self._run(lambda client: client.resume(target, *rest, reason=reason, by=by, timeout=timeout))

    def restart(
        self,
        invocation_id: str,
        *,
        keep: int,
        reason: str,
        by: str,
        version: int | None = None,
        timeout: Timeout = None,
    ) -> None:
        """Let a parked invocation go on from an earlier command; as `Client.restart`."""
        self._run(
            lambda client: client.restart(
                invocation_id, keep=keep, reason=reason, by=by, version=version, timeout=timeout
            )
        )

    def resolve_awakeable(
        self,
        awakeable_id: str,
        value: T,
        /,
        type: TypeForm[T] | None = None,
        *,
        message_id: str | None = None,
        by: str | None = None,
        timeout: Timeout = None,
    ) -> WaitVerdict:
        """Complete an awakeable; as `Client.resolve_awakeable`."""
        options = _Options(message_id, by, timeout)
        return self._run(lambda client: client.resolve_awakeable(awakeable_id, value, type, **options._asdict()))

    def reject_awakeable(
        self,
        awakeable_id: str,
        reason: str,
        /,
        *,
        code: str | None = None,
        message_id: str | None = None,
        by: str | None = None,
        timeout: Timeout = None,
    ) -> WaitVerdict:
        """Complete an awakeable with a failure; as `Client.reject_awakeable`."""
        options = _Options(message_id, by, timeout)
        return self._run(lambda client: client.reject_awakeable(awakeable_id, reason, code=code, **options._asdict()))

    def signal(
        self,
        invocation_id: str,
        name: str,
        value: T,
        /,
        type: TypeForm[T] | None = None,
        *,
        message_id: str | None = None,
        by: str | None = None,
        timeout: Timeout = None,
    ) -> WaitVerdict:
        """Send a signal to an invocation; as `Client.signal`."""
        options = _Options(message_id, by, timeout)
        return self._run(lambda client: client.signal(invocation_id, name, value, type, **options._asdict()))

    def signal_object(
        self,
        target: VirtualObject | str,
        key: Key | str,
        name: str,
        value: T,
        /,
        type: TypeForm[T] | None = None,
        *,
        message_id: str | None = None,
        by: str | None = None,
        timeout: Timeout = None,
    ) -> WaitVerdict:
        """Send a signal to whichever invocation of an object waits for it; as `Client.signal_object`."""
        options = _Options(message_id, by, timeout)
        return self._run(lambda client: client.signal_object(target, key, name, value, type, **options._asdict()))

    def cancel(
        self,
        invocation_id: str,
        *,
        cascade_to_sends: bool = False,
        reason: str = "",
        by: str = "",
        timeout: Timeout = None,
    ) -> CancelReport:
        """Cancel an invocation, and block until it has ended; as `Client.cancel`."""
        return self._run(
            lambda client: client.cancel(
                invocation_id, cascade_to_sends=cascade_to_sends, reason=reason, by=by, timeout=timeout
            )
        )

    def kill(self, invocation_id: str, *, reason: str, by: str, timeout: Timeout = None) -> CancelReport:
        """End an invocation at once; as `Client.kill`."""
        return self._run(lambda client: client.kill(invocation_id, reason=reason, by=by, timeout=timeout))

    def skip_compensation(self, invocation_id: str, *, reason: str, by: str, timeout: Timeout = None) -> None:
        """Give up the undo that has failed; as `Client.skip_compensation`."""
        self._run(lambda client: client.skip_compensation(invocation_id, reason=reason, by=by, timeout=timeout))

    def _run(self, ask: Callable[[Client], Coroutine[Any, Any, Result]]) -> Result:
        """Run something on the loop and block until it has ended.

        Raises:
            RuntimeError: An event loop runs in this thread, or the client is not open.
        """
        _refuse_in_loop()
        portal, client = self._portal, self._client
        if portal is None or client is None:
            raise RuntimeError("this client is not open: use `with BlockingClient(…) as client`")
        future = portal.start_task_soon(ask, client)
        try:
            return future.result()
        except BaseException:
            # An interrupt ends the waiting here; there it would go on for ever.
            future.cancel()
            raise


class _Options(NamedTuple):
    """What may be said beside a message."""

    message_id: str | None
    by: str | None
    timeout: Timeout


class BlockingHandle(Generic[Output]):
    """One invocation, by its id; as `Handle`, without await."""

    __slots__ = ("_handle", "_run")

    def __init__(
        self, run: Callable[[Callable[[Client], Coroutine[Any, Any, Any]]], Any], handle: Handle[Output]
    ) -> None:
        self._run = run
        self._handle = handle

    @property
    def id(self) -> str:
        """The invocation id as users see it."""
        return self._handle.id

    def __repr__(self) -> str:
        return f"BlockingHandle({self.id!r})"

    def accepted(self, timeout: Timeout = None) -> Verdict:
        """Block until the owner has said something to the request; as `Handle.accepted`."""
        return self._run(lambda _: self._handle.accepted(timeout))

    def result(self, timeout: Timeout = None) -> Output:
        """Block until the output is there; as `Handle.result`."""
        return self._run(lambda _: self._handle.result(timeout))

    def signal(
        self,
        name: str,
        value: T,
        /,
        type: TypeForm[T] | None = None,
        *,
        message_id: str | None = None,
        by: str | None = None,
        timeout: Timeout = None,
    ) -> WaitVerdict:
        """Send it a signal; as `Handle.signal`."""
        options = _Options(message_id, by, timeout)
        return self._run(lambda _: self._handle.signal(name, value, type, **options._asdict()))

    def cancel(
        self, *, cascade_to_sends: bool = False, reason: str = "", by: str = "", timeout: Timeout = None
    ) -> CancelReport:
        """Cancel the invocation, and block until it has ended; as `Client.cancel`."""
        return self._run(
            lambda _: self._handle.cancel(cascade_to_sends=cascade_to_sends, reason=reason, by=by, timeout=timeout)
        )

    def describe(self) -> InvocationDescription:
        """Return what is known of the invocation."""
        return self._run(lambda _: self._handle.describe())


def _refuse_in_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("an event loop runs in this thread and a blocking call would stop it: use `Client` and await it")
