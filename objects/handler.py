"""Handlers: functions of an object type that can be called, with what is known about them."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, cast, overload

from .context import BlockingObjectContext, BlockingSharedContext, ObjectContext, SharedContext
from .policies import RetryPolicy
from .signature import Kind
from .types import Boundary
from .validator import Validator

#: When the results of a handler's steps are written; see `HandlerDecorator`.
Checkpoint = Literal["sync", "async", "exit"]
CHECKPOINTS: Final = ("sync", "async", "exit")

Input = TypeVar("Input")
Output = TypeVar("Output")
Input_contra = TypeVar("Input_contra", contravariant=True)
Output_co = TypeVar("Output_co", covariant=True)


class NoInput:
    """The input type of a handler that takes none; nobody builds it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Handler(Generic[Input_contra, Output_co]):
    """One handler of an object type; what a decorator makes of a function.

    Attributes:
        object_name: The object type.
        name: The name by which it is called.
        version: Which version of the code; an invocation ends with the version that it began with.
        function: The plain function, e.g. for unit tests: `await refund.function(ctx, request)`.
        kind: `"exclusive"` holds the lane and may write state, `"shared"` only reads.
        is_blocking: Whether it is a plain `def`, run in a thread.
        is_private: Whether only other handlers may call it.
        input: The boundary of its argument; None if it takes none.
        output: The boundary of its result.
        retry: Its retry policy; None leaves it to the deployment.
        idempotency_retention: How long its idempotency keys are known; None leaves it to the deployment.
        partitions: How many partitions its object type declares; None leaves it to the deployment.
        validate: Looks at a call before it enters the lane, and may refuse it; None takes every call in.
        checkpoint: When the results of its steps are written.
    """

    object_name: str
    name: str
    version: int
    function: Callable[..., Any]
    kind: Kind
    is_blocking: bool
    is_private: bool
    input: Boundary[Any] | None
    output: Boundary[Any]
    retry: RetryPolicy | None
    idempotency_retention: timedelta | None
    partitions: int | None = None
    validate: Validator | None = None
    checkpoint: Checkpoint = "sync"

    def __str__(self) -> str:
        return f"{self.object_name}.{self.name}"

    def __repr__(self) -> str:
        return f"<{self.kind} handler {self.object_name}.{self.name}, version {self.version}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """What a decorator may be told; see `HandlerDecorator`."""

    name: str | None = None
    version: int = 1
    private: bool = False
    retry: RetryPolicy | None = None
    idempotency_retention: timedelta | None = None
    validate: Callable[..., Any] | None = None
    checkpoint: Checkpoint = "sync"


# async before plain, with an argument before without: type checkers take the first overload that matches.
class HandlerDecorator(Protocol):
    """`@order.handler`, or `@order.handler(…)` with options.

    Args:
        name: The name by which it is called; without it, the function's.
        version: Raise it when new code can't go on from the journals of the old one, and keep the old function.
        retry: The retry policy of the invocation; without it, the object type's.
        idempotency_retention: How long its idempotency keys are known; up to 400 days.
        private: Only other handlers may call it.
        validate: `async def` or plain `def`, with a reading context and the handler's argument. It runs before a call
            enters the lane, on what is durable then, and refuses by raising a `TerminalError` or a `ValueError`:
            nothing of the call is queued or recorded, and its caller gets `InvocationRefused`.
        checkpoint: When the results of its steps are written: `"sync"` before the code goes on, `"async"` while it goes
            on, `"exit"` with the next thing that has to be durable, or with the end. After a crash, what was not yet
            written runs again. What leaves the object, and answers, are durable first in each mode.
    """

    @overload
    def __call__(
        self, function: Callable[[ObjectContext, Input], Coroutine[Any, Any, Output]], /
    ) -> Handler[Input, Output]: ...
    @overload
    def __call__(
        self, function: Callable[[ObjectContext], Coroutine[Any, Any, Output]], /
    ) -> Handler[NoInput, Output]: ...
    @overload
    def __call__(self, function: Callable[[BlockingObjectContext, Input], Output], /) -> Handler[Input, Output]: ...
    @overload
    def __call__(self, function: Callable[[BlockingObjectContext], Output], /) -> Handler[NoInput, Output]: ...
    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        version: int = 1,
        retry: RetryPolicy | None = None,
        idempotency_retention: timedelta | None = None,
        private: bool = False,
        validate: Callable[..., Any] | None = None,
        checkpoint: Checkpoint = "sync",
    ) -> "HandlerDecorator": ...


class SharedDecorator(Protocol):
    """`@order.shared`, or `@order.shared(…)` with options.

    Args:
        name: The name by which it is called; without it, the function's.
        private: Only other handlers may call it.
    """

    @overload
    def __call__(
        self, function: Callable[[SharedContext, Input], Coroutine[Any, Any, Output]], /
    ) -> Handler[Input, Output]: ...
    @overload
    def __call__(
        self, function: Callable[[SharedContext], Coroutine[Any, Any, Output]], /
    ) -> Handler[NoInput, Output]: ...
    @overload
    def __call__(self, function: Callable[[BlockingSharedContext, Input], Output], /) -> Handler[Input, Output]: ...
    @overload
    def __call__(self, function: Callable[[BlockingSharedContext], Output], /) -> Handler[NoInput, Output]: ...
    @overload
    def __call__(self, /, *, name: str | None = None, private: bool = False) -> "SharedDecorator": ...


Register = Callable[[Callable[..., Any], HandlerOptions], Handler[Any, Any]]


def handler_decorator(register: Register) -> HandlerDecorator:
    """A decorator that hands each function with its options to `register`."""

    def decorate(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        if function is None:
            return partial(decorate, **options)
        return register(function, HandlerOptions(**options))

    return cast("HandlerDecorator", decorate)


def shared_decorator(register: Register) -> SharedDecorator:
    """The same for shared handlers, which have fewer options."""

    def decorate(
        function: Callable[..., Any] | None = None, /, *, name: str | None = None, private: bool = False
    ) -> Any:
        if function is None:
            return partial(decorate, name=name, private=private)
        return register(function, HandlerOptions(name=name, private=private))

    return cast("SharedDecorator", decorate)
