"""What an exclusive handler may ask of other objects and of the clock: `call`, `send`, `attach` and `sleep`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload

from typing_extensions import TypeForm

from ..journal.key import Key

if TYPE_CHECKING:
    from .handler import Handler, NoInput

Input = TypeVar("Input")
Output = TypeVar("Output")


@dataclass(frozen=True, slots=True)
class Sent:
    """What `ctx.send` returns: the message is durable, and its invocation will run.

    Attributes:
        id: The id of the invocation, e.g. `Order.3.0193…`; the same one when the handler is replayed. A client attaches
            to it.
    """

    id: str


class Messaging(ABC):
    """Calls, messages and sleeps of an `async def` handler."""

    __slots__ = ()

    @overload
    @abstractmethod
    async def call(
        self,
        handler: "Handler[NoInput, Output]",
        key: Key | str,
        /,
        *,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> Output: ...
    @overload
    @abstractmethod
    async def call(
        self,
        handler: "Handler[Input, Output]",
        key: Key | str,
        argument: Input,
        /,
        *,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> Output: ...
    @overload
    @abstractmethod
    async def call(
        self,
        object_name: str,
        key: Key | str,
        handler_name: str,
        argument: Any = ...,
        /,
        *,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> Any: ...
    @abstractmethod
    async def call(
        self, target: Any, key: Key | str, /, *rest: Any, release_lane: bool = False, expects: Iterable[str] = ()
    ) -> Any:
        """Call another object and wait for its output, for as long as it takes: also while its handler is paused.

        The lane of this object stays held meanwhile, unless it is released, and `inspect` shows it with what it waits
        for. The wait costs no concurrency, and outlives this process. The output is recorded: no replay calls again.

        Args:
            target: The handler; or the name of the object type, with the handler's name behind the key.
            key: The object, as `Key` or `tenant/key`.
            rest: The argument, for a handler that takes one.
            release_lane: Whether others may change this object meanwhile; see `release_lane`.
            expects: Names of state values that nobody else may have changed when it returns, with `release_lane=True`.

        Returns:
            The output: of the declared type by reference, of plain values by name.

        Raises:
            Superseded: Others have changed what was expected to stay.
            Deadlock: This handler, or one that waits for it, holds the lane that the call would wait for; the error
                names the path.
            InvocationFailed: The handler ended with a `TerminalError`. Uncaught, it ends this invocation as failed.
            Overloaded: As many calls wait for that object as may.
            MessageLost: A server that syncs less than it should has lost the call; whether it ran is not known.
            UnknownObject: No worker has ever hosted an object type of this name.
            CallError: The call was refused.
            PayloadTooLarge: The argument is larger than the payload limit.
        """

    @overload
    @abstractmethod
    async def send(
        self, handler: "Handler[NoInput, Output]", key: Key | str, /, *, delay: timedelta | float | None = None
    ) -> Sent: ...
    @overload
    @abstractmethod
    async def send(
        self,
        handler: "Handler[Input, Output]",
        key: Key | str,
        argument: Input,
        /,
        *,
        delay: timedelta | float | None = None,
    ) -> Sent: ...
    @overload
    @abstractmethod
    async def send(
        self,
        object_name: str,
        key: Key | str,
        handler_name: str,
        argument: Any = ...,
        /,
        *,
        delay: timedelta | float | None = None,
    ) -> Sent: ...
    @abstractmethod
    async def send(self, target: Any, key: Key | str, /, *rest: Any, delay: timedelta | float | None = None) -> Sent:
        """Have a handler of another object run, once, without waiting for it.

        What one object sends to another is taken in there in the order in which it was sent. A message is never refused
        because the other object has much to do. One that can't be run, such as one for a handler that does not exist,
        is kept as refused under its id, and logged with the name of the object's owner.

        Args:
            target: The handler; or the name of the object type, with the handler's name behind the key.
            key: The object, as `Key` or `tenant/key`; it may be this one.
            rest: The argument, for a handler that takes one.
            delay: How long it is to wait before it enters its lane, counted from its arrival; seconds or a timedelta.

        Raises:
            UnknownObject: No worker has ever hosted an object type of this name.
            PayloadTooLarge: The argument is larger than the payload limit.
        """

    @overload
    @abstractmethod
    async def attach(self, invocation_id: str, /) -> Any: ...
    @overload
    @abstractmethod
    async def attach(self, invocation_id: str, /, type: TypeForm[Output]) -> Output: ...
    @abstractmethod
    async def attach(self, invocation_id: str, /, type: Any = None) -> Any:
        """Wait for the output of an invocation that was asked for elsewhere, such as by `send`, however long it takes.

        The lane of this object stays held meanwhile, and the wait outlives this process, as with `call`. The output is
        recorded: no replay waits again. One that has ended answers at once, for as long as its result is kept.

        Args:
            invocation_id: The id that a `send` returned, here or anywhere else.
            type: What its output is read as; by default plain values.

        Raises:
            InvalidKey: The text is no invocation id.
            Deadlock: The invocation can't end before this one does: it is this one or waits for it, or it waits for a
                lane that is held until this one has ended. The error names the path.
            InvocationFailed: Its handler ended with a `TerminalError`. Uncaught, it ends this invocation as failed.
            ResultExpired: It has ended, and its result is no longer kept.
            UnknownObject: No worker has ever hosted an object type of this name.
            CallError: Nothing is known of it: no such invocation was asked for, or it is long forgotten.
            InvalidOutput: Its output does not fit the type.
        """

    @abstractmethod
    async def sleep(
        self, duration: timedelta | float, /, *, release_lane: bool = False, expects: Iterable[str] = ()
    ) -> None:
        """Wait for a while, by the partition's time: never less, also when the process ends meanwhile.

        The lane stays held, unless it is released; the wait costs no concurrency.

        Args:
            duration: Seconds, or a timedelta.
            release_lane: Whether others may change this object meanwhile; see `release_lane`.
            expects: Names of state values that nobody else may have changed when it returns, with `release_lane=True`.

        Raises:
            Superseded: Others have changed what was expected to stay.
        """

    @abstractmethod
    def release_lane(self, *, expects: Iterable[str] = ()) -> AbstractAsyncContextManager[None]:
        """Leave the lane to others during each wait of a block: `async with ctx.release_lane():`.

        With the record of a wait, what was written to the state becomes durable and the lane goes to whoever is next.
        The handler leaves memory. When the wait has ended, the invocation gets the head of the lane, behind what runs
        there, and reads what the others have written. Between its waits it holds the lane as ever.

        It is for the handler itself: no branches are made in the block, and none goes on beside it.

        Args:
            expects: Names of state values. At the end of the block each has to be what it was at its beginning, or what
                the handler itself has written since; else the block ends with `Superseded`, which names them.
        """


class BlockingMessaging(ABC):
    """Calls, messages and sleeps of a plain `def` handler.

    A wait ends the handler's thread, by an exception that is none of `Exception`'s; the handler is replayed afterwards.
    """

    __slots__ = ()

    @overload
    @abstractmethod
    def call(
        self,
        handler: "Handler[NoInput, Output]",
        key: Key | str,
        /,
        *,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> Output: ...
    @overload
    @abstractmethod
    def call(
        self,
        handler: "Handler[Input, Output]",
        key: Key | str,
        argument: Input,
        /,
        *,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> Output: ...
    @overload
    @abstractmethod
    def call(
        self,
        object_name: str,
        key: Key | str,
        handler_name: str,
        argument: Any = ...,
        /,
        *,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> Any: ...
    @abstractmethod
    def call(
        self, target: Any, key: Key | str, /, *rest: Any, release_lane: bool = False, expects: Iterable[str] = ()
    ) -> Any:
        """Call another object and wait for its output; see `ObjectContext.call`."""

    @overload
    @abstractmethod
    def send(
        self, handler: "Handler[NoInput, Output]", key: Key | str, /, *, delay: timedelta | float | None = None
    ) -> Sent: ...
    @overload
    @abstractmethod
    def send(
        self,
        handler: "Handler[Input, Output]",
        key: Key | str,
        argument: Input,
        /,
        *,
        delay: timedelta | float | None = None,
    ) -> Sent: ...
    @overload
    @abstractmethod
    def send(
        self,
        object_name: str,
        key: Key | str,
        handler_name: str,
        argument: Any = ...,
        /,
        *,
        delay: timedelta | float | None = None,
    ) -> Sent: ...
    @abstractmethod
    def send(self, target: Any, key: Key | str, /, *rest: Any, delay: timedelta | float | None = None) -> Sent:
        """Have a handler of another object run without waiting for it; see `ObjectContext.send`."""

    @overload
    @abstractmethod
    def attach(self, invocation_id: str, /) -> Any: ...
    @overload
    @abstractmethod
    def attach(self, invocation_id: str, /, type: TypeForm[Output]) -> Output: ...
    @abstractmethod
    def attach(self, invocation_id: str, /, type: Any = None) -> Any:
        """Wait for the output of an invocation that was asked for elsewhere; see `ObjectContext.attach`."""

    @abstractmethod
    def sleep(self, duration: timedelta | float, /, *, release_lane: bool = False, expects: Iterable[str] = ()) -> None:
        """Wait for a while; see `ObjectContext.sleep`."""

    @abstractmethod
    def release_lane(self, *, expects: Iterable[str] = ()) -> AbstractContextManager[None]:
        """Leave the lane to others during the waits of a block: `with ctx.release_lane():`; see `ObjectContext`."""
