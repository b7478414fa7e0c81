"""What an exclusive handler may wait for, and may tell others who wait: awakeables and signals."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

from typing_extensions import TypeForm

from ..journal.key import Key
from .verdicts import WaitVerdict

if TYPE_CHECKING:
    from .virtual_object import VirtualObject

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: Who gets a signal: an invocation, by its id; or whichever invocation of an object waits for it, by type and key.
SignalTarget: TypeAlias = "str | tuple[VirtualObject | str, Key | str]"


class Awakeable(ABC, Generic[T_co]):
    """Something that code outside of the handler completes, once, by its id."""

    __slots__ = ()

    @property
    @abstractmethod
    def id(self) -> str:
        """What is given to whoever is to complete it, e.g. `Order.3.0193….7`; the same one in every replay."""

    @abstractmethod
    async def wait(
        self,
        *,
        timeout: timedelta | float | None = None,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> T_co:
        """Wait until it is completed, for as long as it takes or until a timeout; once it is, this returns at once.

        Several branches may wait for it: all of them get its value, and all are told when it expires.

        The lane stays held meanwhile, unless it is released; the wait costs no concurrency and outlives this process.

        Args:
            timeout: Seconds, or a timedelta, by the partition's time. A wait that has timed out ends the awakeable:
                who completes it afterwards is told that it has expired.
            release_lane: Whether others may change this object meanwhile; see `ObjectContext.release_lane`.
            expects: Names of state values that nobody else may have changed when it returns, with `release_lane=True`.

        Raises:
            Superseded: Others have changed what was expected to stay.
            WaitTimeout: It was not completed in time.
            TerminalError: It was rejected; the message and the code are those of the rejection.
            InvalidInput: It was completed with a value of another type. Uncaught, it ends this invocation as failed.
        """

    @abstractmethod
    def __await__(self) -> Generator[Any, Any, T_co]:
        """Wait without a timeout."""


class Waiting(ABC):
    """Awakeables and signals of an `async def` handler."""

    __slots__ = ()

    @overload
    @abstractmethod
    async def awakeable(self, type: TypeForm[T], /) -> Awakeable[T]: ...
    @overload
    @abstractmethod
    async def awakeable(self, /) -> Awakeable[Any]: ...
    @abstractmethod
    async def awakeable(self, type: Any = Any, /) -> Awakeable[Any]:
        """Make something that code outside completes by its id, and wait for it when you like.

        Once this returns the id is durable, so it may be given away, best in a step: whoever has it may complete the
        awakeable (`client.resolve_awakeable`), also before it is waited for and after this process has ended.

        Args:
            type: What it is completed with, whatever pydantic understands; without it, plain values.
        """

    @abstractmethod
    async def signal(
        self,
        name: str,
        type: TypeForm[T],
        /,
        *,
        timeout: timedelta | float | None = None,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> T:
        """Wait for a signal: one to this invocation, or one to its object. Each signal is taken by one wait.

        Signals that came early are taken in the order in which they came, those to this invocation first. Where several
        invocations of an object wait for one name, a signal to the object goes to the one that waits longest.

        Args:
            name: Its name.
            type: What it carries, whatever pydantic understands.
            timeout: Seconds, or a timedelta, by the partition's time.
            release_lane: Whether others may change this object meanwhile; see `ObjectContext.release_lane`.
            expects: Names of state values that nobody else may have changed when it returns, with `release_lane=True`.

        Raises:
            Superseded: Others have changed what was expected to stay.
            WaitTimeout: None came in time.
            InvalidInput: It carries a value of another type. Uncaught, it ends this invocation as failed.
            PayloadTooLarge: The name has more than 256 bytes.
        """

    @abstractmethod
    async def resolve_awakeable(self, awakeable_id: str, value: T, /, type: TypeForm[T] | None = None) -> WaitVerdict:
        """Complete the awakeable of another invocation, and return what its owner says to it; the answer is recorded.

        It waits for the verdict as `ctx.call` does, but for no lane, so it can't be part of a deadlock.

        Args:
            awakeable_id: Its id.
            value: What it is completed with.
            type: The type by which the value is written; without it, its own.

        Raises:
            InvalidKey: The text is no awakeable's id.
            InvalidInput: The value can't be written down.
            PayloadTooLarge: It is larger than the payload limit.
        """

    @abstractmethod
    async def reject_awakeable(self, awakeable_id: str, reason: str, /, *, code: str | None = None) -> WaitVerdict:
        """Complete the awakeable of another invocation with a failure: its wait raises a `TerminalError`.

        Args:
            awakeable_id: Its id.
            reason: The error's message.
            code: The error's code; without it, `awakeable-rejected`.

        Raises:
            InvalidKey: The text is no awakeable's id.
        """

    @abstractmethod
    async def send_signal(
        self, target: SignalTarget, name: str, value: T, /, type: TypeForm[T] | None = None
    ) -> WaitVerdict:
        """Send a signal, and return what the target's owner says to it; the answer is recorded.

        It waits for the verdict as `ctx.call` does, but for no lane, so it can't be part of a deadlock.

        Args:
            target: The id of an invocation; or an object type and a key, for whichever of the object's invocations
                waits for it, or comes to.
            name: The signal's name.
            value: What it carries.
            type: The type by which the value is written; without it, its own.

        Raises:
            InvalidKey: The target is no invocation id, or has no key.
            UnknownObject: No worker has ever hosted an object type of this name.
            Overloaded: As many signals wait for that target as may.
            PayloadTooLarge: The value is larger than the payload limit, or the name has more than 256 bytes.
        """


class BlockingAwakeable(ABC, Generic[T_co]):
    """As `Awakeable`, for a plain function."""

    __slots__ = ()

    @property
    @abstractmethod
    def id(self) -> str:
        """What is given to whoever is to complete it."""

    @abstractmethod
    def wait(
        self,
        *,
        timeout: timedelta | float | None = None,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> T_co:
        """Wait until it is completed; see `Awakeable.wait`."""


class BlockingWaiting(ABC):
    """Awakeables and signals of a plain `def` handler; a wait ends its thread, and it is replayed afterwards."""

    __slots__ = ()

    @overload
    @abstractmethod
    def awakeable(self, type: TypeForm[T], /) -> BlockingAwakeable[T]: ...
    @overload
    @abstractmethod
    def awakeable(self, /) -> BlockingAwakeable[Any]: ...
    @abstractmethod
    def awakeable(self, type: Any = Any, /) -> BlockingAwakeable[Any]:
        """Make something that code outside completes by its id; see `ObjectContext.awakeable`."""

    @abstractmethod
    def signal(
        self,
        name: str,
        type: TypeForm[T],
        /,
        *,
        timeout: timedelta | float | None = None,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> T:
        """Wait for a signal; see `ObjectContext.signal`."""

    @abstractmethod
    def resolve_awakeable(self, awakeable_id: str, value: T, /, type: TypeForm[T] | None = None) -> WaitVerdict:
        """Complete the awakeable of another invocation; see `ObjectContext.resolve_awakeable`."""

    @abstractmethod
    def reject_awakeable(self, awakeable_id: str, reason: str, /, *, code: str | None = None) -> WaitVerdict:
        """Complete the awakeable of another invocation with a failure; see `ObjectContext.reject_awakeable`."""

    @abstractmethod
    def send_signal(self, target: SignalTarget, name: str, value: T, /, type: TypeForm[T] | None = None) -> WaitVerdict:
        """Send a signal; see `ObjectContext.send_signal`."""
