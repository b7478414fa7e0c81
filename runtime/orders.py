"""A call that has been checked and packed, before it is known which way it goes."""

from __future__ import annotations

import inspect
import math
from datetime import timedelta
from typing import Any, Final

from ..journal.errors import CallError, InvalidInput, PayloadTooLarge
from ..journal.key import PART_LIMIT_BYTES, Key, is_name
from ..journal.messages import Caller
from ..journal.requests import Request, RequestKind
from ..objects.handler import Handler
from ..objects.types import Boundary, boundary_of
from ..objects.virtual_object import VirtualObject
from .bounds import check_own_name

#: Bytes of UTF-8 that an idempotency key may have, as the parts of an object's key may.
IDEMPOTENCY_KEY_LIMIT_BYTES: Final = PART_LIMIT_BYTES
#: Characters that the name of a handler may have.
HANDLER_NAME_LIMIT: Final = 64
_BY_VALUE: Final = boundary_of(Any, where="argument")

#: A hundred years: sums of such times stay exact in the store.
LONGEST_SECONDS: Final = 100 * 366 * 86_400
#: What lies further ahead or back is as good as this.
FAR_SECONDS: Final = 10**15


class Order:
    """What is called, with what.

    Args:
        object_name: The object type.
        handler_name: The handler.
        key_text: The key, not checked yet.
    """

    __slots__ = (
        "basis", "handler_name", "key_text", "object_name", "output", "partitions", "payload", "shared", "trace"
    )  # fmt: skip

    def __init__(self, object_name: str, handler_name: str, key_text: str) -> None:
        self.object_name = object_name
        self.handler_name = handler_name
        self.key_text = key_text
        self.payload: bytes | None = None
        self.basis: bytes | None = None
        self.output: Boundary[Any] | None = None
        self.partitions: int | None = None
        self.shared = False
        #: The context of the trace that it belongs to.
        self.trace: bytes | None = None

    @property
    def only_takes_in(self) -> bool:
        """Whether it is known to ask for new work; of a call by name that knows only the owner."""
        return self.output is not None and not self.shared

    def request(
        self,
        kind: RequestKind,
        raw_id: bytes,
        idempotency_key: str | None,
        client: bytes | None,
        *,
        again: bool = False,
        delay_ms: int = 0,
        caller: Caller | None = None,
    ) -> Request:
        """Return the request that an inbox takes."""
        return Request(
            kind,
            raw_id,
            self.handler_name,
            self.key_text,
            self.payload,
            self.basis,
            idempotency_key,
            client,
            self.shared,
            again,
            delay_ms,
            caller,
            self.trace,
        )


def order_of(
    target: Handler[Any, Any] | str,
    key: Key | str,
    rest: tuple[Any, ...],
    *,
    idempotency_key: Any,
    payload_limit_bytes: int,
    is_inside: bool = False,
) -> Order:
    """Check and pack what a caller wrote.

    Args:
        target: The handler, or the name of an object type.
        key: The object.
        rest: What stands behind the key: the argument, or the handler's name and the argument.
        idempotency_key: The caller's key, for which the owner will have to compare the argument with another one.
        payload_limit_bytes: How large an argument may be.
        is_inside: Whether another handler calls, which may call private ones too.

    Raises:
        TypeError: There is an argument too many or too few, or the idempotency key is no text.
        CallError: The handler is private.
        InvalidKey: The key is none.
        InvalidInput: The argument does not fit the handler, or the idempotency key is empty.
        PayloadTooLarge: The argument is too large.
    """
    if idempotency_key is not None:
        check_own_name("idempotency_key", idempotency_key)
    key_text = key if type(key) is str else str(Key.parse(key))
    if isinstance(target, str):
        order = _by_name(target, key_text, rest)
    elif not isinstance(target, Handler):  # pyright: ignore[reportUnnecessaryIsInstance] - a user gives it
        raise TypeError(f"what is called is a handler, or the name of an object type, not {_shown(target)}")
    else:
        if target.is_private and not is_inside:
            raise CallError(f"{target} is private: only other handlers may call it")
        order = _by_reference(target, key_text, rest, has_idempotency_key=idempotency_key is not None)
    if idempotency_key is not None or len(order.handler_name) > HANDLER_NAME_LIMIT:
        check_call(order.handler_name, idempotency_key)
    payload = order.payload
    if payload is not None and len(payload) > payload_limit_bytes:
        raise PayloadTooLarge("argument", len(payload), payload_limit_bytes)
    return order


def seconds_in(duration: timedelta | float, what: str) -> float:
    """Return a duration in seconds.

    Raises:
        TypeError: It is neither a number nor a timedelta.
    """
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if not isinstance(duration, int | float):  # pyright: ignore[reportUnnecessaryIsInstance] - a user gives it
        raise TypeError(f"{what} is {duration!r}: it has to be a number of seconds or a timedelta")
    # An int can be larger than any float.
    return max(min(duration, FAR_SECONDS), -FAR_SECONDS) if isinstance(duration, int) else duration


def milliseconds(duration: timedelta | float | None, what: str) -> int:
    """Return a duration in whole milliseconds, rounded up; None is none.

    Raises:
        TypeError: It is neither a number nor a timedelta.
        ValueError: It is negative or no finite time.
    """
    if duration is None:
        return 0
    seconds = seconds_in(duration, what)
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise ValueError(f"{what} is {seconds} s: it has to be between 0 and {LONGEST_SECONDS:,} s")
    return math.ceil(round(seconds * 1000, 6))


def check_call(handler_name: str, idempotency_key: str | None) -> None:
    """Refuse names that are too long before anything is written under them.

    Raises:
        PayloadTooLarge: One is.
    """
    if len(handler_name) > HANDLER_NAME_LIMIT:
        shown = f"the handler's name {handler_name[:HANDLER_NAME_LIMIT]!r}…"
        raise PayloadTooLarge(
            shown, len(handler_name), HANDLER_NAME_LIMIT, unit="characters", remedy="no handler has it"
        )
    # A character has at most four bytes, so most keys are settled by this look.
    if idempotency_key is None or len(idempotency_key) * 4 <= IDEMPOTENCY_KEY_LIMIT_BYTES:
        return
    size_bytes = len(idempotency_key.encode(errors="surrogatepass"))
    if size_bytes > IDEMPOTENCY_KEY_LIMIT_BYTES:
        what, remedy = "idempotency_key", "use a hash of it"
        raise PayloadTooLarge(what, size_bytes, IDEMPOTENCY_KEY_LIMIT_BYTES, remedy=remedy)


def _shown(target: object) -> str:
    """Return what stands in place of a handler, with what to write where that can be guessed."""
    if isinstance(target, VirtualObject):
        return f"the object type {target.name} itself: name one of its handlers, or write {target.name!r}"
    if inspect.isroutine(target):
        return f"the function {target.__qualname__}: declare it with @….handler, and call what that returns"
    return type(target).__name__


def _by_reference(
    handler: Handler[Any, Any], key_text: str, rest: tuple[Any, ...], *, has_idempotency_key: bool
) -> Order:
    boundary = handler.input
    if len(rest) != (boundary is not None):
        wanted = "no argument" if boundary is None else "one argument"
        raise TypeError(f"{handler} takes {wanted} behind the key, not {len(rest)}")
    order = Order(handler.object_name, handler.name, key_text)
    order.output = handler.output
    order.partitions = handler.partitions
    order.shared = handler.kind == "shared"
    if boundary is not None:
        order.payload = boundary.dump(rest[0])
        if has_idempotency_key:
            order.basis = boundary.dump_unset(rest[0])
    return order


def _named(object_name: str, handler_name: str, key_text: str) -> Order:
    """Begin an order by a name that a handler may have; one that is too long is told of as such later."""
    if len(handler_name) <= HANDLER_NAME_LIMIT and not is_name(handler_name):
        raise InvalidInput("the handler's name", f"{handler_name!r} can't be one: write the name of a handler")
    return Order(object_name, handler_name, key_text)


def _by_name(object_name: str, key_text: str, rest: tuple[Any, ...]) -> Order:
    """Pack an argument as it is: the owner knows the type and validates it."""
    match rest:
        case (str() as handler_name,):
            return _named(object_name, handler_name, key_text)
        case (str() as handler_name, argument):
            order = _named(object_name, handler_name, key_text)
            order.payload = _BY_VALUE.dump(argument)
            return order
        case _:
            raise TypeError("by name: the object type, the key, the handler's name and at most one argument")
