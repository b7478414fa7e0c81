"""What a handler may do: the four contexts.

    awaiting      ObjectContext (exclusive)           SharedContext (reads only)
    blocking      BlockingObjectContext (exclusive)   BlockingSharedContext (reads only)

`async def` handlers take an awaiting one, plain `def` handlers a blocking one with the same methods. An exclusive
context is a shared one too, so a helper that only reads works in both. The runtime fulfils these promises.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Literal, TypeVar, TypeVarTuple, overload
from uuid import UUID

from typing_extensions import TypeForm

from ..journal.key import Key
from .approving import Approving, BlockingApproving
from .branching import Branching
from .effecting import BlockingEffecting, Effecting
from .messaging import BlockingMessaging, Messaging
from .modelling import BlockingModelling, Modelling
from .policies import RetryPolicy
from .waiting import BlockingWaiting, Waiting

if TYPE_CHECKING:
    from .approvals import Approval
    from .receivers import Effect

T = TypeVar("T")
Params = TypeVar("Params")
Ts = TypeVarTuple("Ts")

OnExhausted = Literal["pause", "raise"]


class _Context(ABC):
    """What all handlers have, without awaiting."""

    __slots__ = ()

    @property
    @abstractmethod
    def key(self) -> Key:
        """The object's key; an attribute, unlike Restate's."""

    @property
    @abstractmethod
    def invocation_id(self) -> str:
        """The id of this invocation, e.g. `Order.3.0193…`."""

    @property
    @abstractmethod
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger that is silent during replay and carries type, key, invocation and attempt."""

    @abstractmethod
    def uuid(self) -> UUID:
        """A random id, the same one when the handler is replayed."""

    @abstractmethod
    def random(self) -> Random:
        """A source of random numbers, the same ones when the handler is replayed; not for secrets."""


class _Exclusive(ABC):
    """What an exclusive handler has in addition, without awaiting."""

    __slots__ = ()

    @property
    @abstractmethod
    def attempt(self) -> int:
        """The number of this attempt, counted from 1; a replay after a crash is no new attempt."""

    @abstractmethod
    def set(self, name: str, value: T, type: TypeForm[T] | None = None) -> None:
        """Write a state value; it becomes durable and visible with the next durable point, all at once.

        Args:
            name: The name of the value.
            value: Checked against the type under which the name is declared in `state=` of the object type.
            type: The type of an undeclared name; without it, the type of the value.

        Raises:
            InvalidOutput: The value does not fit its type, or holds something that can't be written down.
            PayloadTooLarge: It is larger than the payload limit, its name has more than 256 bytes, or the object would
                have more than 1,000 values, or more in all than its limit.
        """

    @abstractmethod
    def clear(self, name: str) -> None:
        """Remove a state value, with the next durable point."""

    @abstractmethod
    def clear_all(self) -> None:
        """Remove all state values, with the next durable point."""

    @abstractmethod
    def patched(self, name: str) -> bool:
        """Whether this invocation runs with a change of the code, so that old and new code live in one handler.

        ```python
        if ctx.patched("ask the fraud desk"):
            await ctx.run("ask the fraud desk", ask, order)
        ```

        True where the invocation comes here for the first time, which is noted in its journal together with its next
        record; False where its journal goes on with what older code did. It is found by its name, wherever the journal
        has it, and gives the same answer for as long as the invocation lives. Take the question away, and keep the new
        code, when `keylane deploy check` says that nothing open needs the old one.

        Args:
            name: The name of the change; at most 256 bytes.
        """

    @overload
    @abstractmethod
    def compensate(
        self,
        name: str,
        action: "Effect[Params, Any]",
        /,
        *,
        operation_id: str,
        params: Params,
        approval: "Approval | None" = None,
    ) -> None: ...
    @overload
    @abstractmethod
    def compensate(
        self,
        name: str,
        action: Callable[[*Ts], object],
        /,
        *arguments: *Ts,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        type: Any = None,
    ) -> None: ...
    @abstractmethod
    def compensate(self, name: str, action: Any, /, *arguments: Any, **options: Any) -> None:
        """Register an undo: it runs when this handler fails for good or is cancelled, and not when it returns.

        Undos run one after the other, what was registered last first, each as a step of its own that is journaled and
        retried. Register one before the step that it undoes: that step may have done its work without having been
        recorded. An undo that fails for good parks the invocation (`compensation_failed`), until somebody resumes it or
        gives that undo up.

        An effect as an undo is asked for as `ctx.effect` would: while its outcome is unknown the invocation waits, and
        stays `compensating`. Once the receiver has rejected it, it was not done, and its operation id says so for good:
        an invocation that is resumed then asks under the next id, `refund-1~2` after `refund-1`.

        Args:
            name: What is undone, as it stands in the journal and in the report of a cancel.
            action: Undoes it: a function, which may run more than once, or an effect that the object type lists. Either
                may be asked for where there turns out to be nothing to undo.
            arguments: What a function is called with.
            retry: How often and how patiently a function is tried; the policy of steps by default.
            timeout: How long one attempt of a function may take.
            type: What the result of a function is written as; by default what its annotation says.
            operation_id: Names the business operation that an effect is, among those of this object; at most 196 bytes.
            params: The parameters of an effect.
            approval: What allows an effect, where people had to. It has to hold when the undo is asked for, not when it
                is registered, so give its proposal no time, or one that outlasts the handler; it is used up with the
                intent of the undo. One that has expired or does not fit by then parks the invocation
                (`compensation_failed`), and nothing is sent. One approval allows one effect: what is asked for under
                the next id, after the receiver has rejected it, is not what was approved.

        Raises:
            TypeError: A function can't be called with these arguments, or an effect has no operation id, no parameters,
                or what is no approval.
            RegistrationError: The object type does not list the effect.
            InvalidInput: The parameters do not fit their type.
            PayloadTooLarge: The name has more than 256 bytes, or operation id or parameters are too large.
        """


class SharedContext(_Context):
    """What an `async def` shared handler may do: read what is durable, while others hold the lane."""

    __slots__ = ()

    @overload
    @abstractmethod
    async def get(self, name: str, type: TypeForm[T], /) -> T | None: ...
    @overload
    @abstractmethod
    async def get(self, name: str, type: TypeForm[T], default: T, /) -> T: ...
    @abstractmethod
    async def get(self, name: str, type: Any, default: Any = None, /) -> Any:
        """Read a state value.

        Args:
            name: The name of the value.
            type: Its type: whatever pydantic understands, e.g. `list[Item]` or `Item | None`.
            default: Given back when there is no value of this name; None without it.

        Raises:
            InvalidOutput: What is stored does not fit the type.
        """

    @abstractmethod
    async def state_keys(self) -> list[str]:
        """The names of all state values, sorted."""

    @abstractmethod
    async def time(self) -> datetime:
        """The partition's time, in UTC; recorded in an exclusive handler, so a replay sees the same one.

        A `datetime`, unlike Restate's, which is a number of seconds.
        """


class ObjectContext(_Exclusive, Branching, Messaging, Modelling, Waiting, Approving, Effecting, SharedContext):
    """What an `async def` exclusive handler may do: hold the lane, write state, run steps, and ask other objects."""

    __slots__ = ()

    @overload
    @abstractmethod
    async def run(
        self,
        name: str,
        action: Callable[[*Ts], object],
        /,
        *arguments: *Ts,
        type: TypeForm[T],
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        on_exhausted: OnExhausted = "pause",
    ) -> T: ...
    @overload
    @abstractmethod
    async def run(
        self,
        name: str,
        action: Callable[[*Ts], Coroutine[Any, Any, T]],
        /,
        *arguments: *Ts,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        on_exhausted: OnExhausted = "pause",
    ) -> T: ...
    @overload
    @abstractmethod
    async def run(
        self,
        name: str,
        action: Callable[[*Ts], T],
        /,
        *arguments: *Ts,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        on_exhausted: OnExhausted = "pause",
    ) -> T: ...
    @abstractmethod
    async def run(
        self,
        name: str,
        action: Callable[..., Any],
        /,
        *arguments: Any,
        type: Any = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        on_exhausted: OnExhausted = "pause",
    ) -> Any:
        """Run a step: at least once, until its result is recorded; from then on the result is what counts.

        Args:
            name: What the step is called in the journal.
            action: `async def` or plain `def`; a plain one runs in a thread.
            *arguments: Handed to the action, by position only.
            type: The type of the result; without it, the action's return annotation.
            retry: How often it is tried again; without it, the default of the deployment.
            timeout: How long one attempt may take.
            on_exhausted: What happens when the attempts are spent: `"pause"` parks the invocation for its owner,
                `"raise"` raises `StepFailed` here.

        Returns:
            The result as it is read back from the journal, in the first run too, so that no replay can differ.

        Raises:
            TerminalError: The action raised it, or (as `StepFailed`) its attempts are spent.
            InvalidOutput: The result does not fit its type, or can't be written down.
        """


class BlockingSharedContext(_Context):
    """What a plain `def` shared handler may do: as `SharedContext`, without await."""

    __slots__ = ()

    @overload
    @abstractmethod
    def get(self, name: str, type: TypeForm[T], /) -> T | None: ...
    @overload
    @abstractmethod
    def get(self, name: str, type: TypeForm[T], default: T, /) -> T: ...
    @abstractmethod
    def get(self, name: str, type: Any, default: Any = None, /) -> Any:
        """Read a state value; see `SharedContext.get`."""

    @abstractmethod
    def state_keys(self) -> list[str]:
        """The names of all state values, sorted."""

    @abstractmethod
    def time(self) -> datetime:
        """The partition's time, in UTC; see `SharedContext.time`."""


class BlockingObjectContext(
    _Exclusive,
    BlockingMessaging,
    BlockingModelling,
    BlockingWaiting,
    BlockingApproving,
    BlockingEffecting,
    BlockingSharedContext,
):
    """What a plain `def` exclusive handler may do: as `ObjectContext`, without await."""

    __slots__ = ()

    @overload
    @abstractmethod
    def run(
        self,
        name: str,
        action: Callable[[*Ts], object],
        /,
        *arguments: *Ts,
        type: TypeForm[T],
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        on_exhausted: OnExhausted = "pause",
    ) -> T: ...
    @overload
    @abstractmethod
    def run(
        self,
        name: str,
        action: Callable[[*Ts], T],
        /,
        *arguments: *Ts,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        on_exhausted: OnExhausted = "pause",
    ) -> T: ...
    @abstractmethod
    def run(
        self,
        name: str,
        action: Callable[..., Any],
        /,
        *arguments: Any,
        type: Any = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        on_exhausted: OnExhausted = "pause",
    ) -> Any:
        """Run a step, a plain function; see `ObjectContext.run`."""


AnyContext = SharedContext | BlockingSharedContext
