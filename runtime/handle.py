"""An invocation as its callers hold it, and what the end of one means to them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, assert_never, cast

from typing_extensions import TypeForm

from ..journal.cancel_report import CancelReport
from ..journal.codec import unpack
from ..journal.descriptions import InvocationDescription
from ..journal.errors import (
    CallError,
    CallTimeout,
    InternalError,
    InvalidOutput,
    InvocationCancelled,
    InvocationFailed,
    InvocationPaused,
    KeylaneError,
    PayloadTooLarge,
    error_from,
)
from ..journal.inbox import KNOWN, comparable
from ..journal.key import InvocationId
from ..journal.outcomes import Failure, Refused, Rejected, Replayed, Stopped, Succeeded
from ..journal.records import Paused
from .answers import Ended
from .explaining import explained
from .orders import seconds_in
from .remote import Patience

if TYPE_CHECKING:
    from ..objects.types import Boundary
    from ..objects.verdicts import WaitVerdict
    from .client import Client

#: Seconds, or a timedelta; None waits for as long as it takes.
Timeout: TypeAlias = float | timedelta | None

Output = TypeVar("Output")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the owner said to a request.

    Attributes:
        replayed: Whether its idempotency key was known, so that the result is that of the first call.
        first_at: When that first call was accepted; for a new one, when the store took it in, where that is known.
    """

    replayed: bool
    first_at: datetime | None


class Handle(Generic[Output]):
    """One invocation, by its id.

    Args:
        client: The client that it was made with.
        invocation: Type, partition and raw id.
        output: How its output is read; None reads it by value.
        entry: Its entry in the inbox, where this process put it there.
    """

    __slots__ = ("_client", "_entry", "_invocation", "_output")

    def __init__(
        self, client: Client, invocation: InvocationId, output: Boundary[Any] | None, entry: bytes | None = None
    ) -> None:
        self._client = client
        self._invocation = invocation
        self._output = output
        self._entry = entry

    @property
    def id(self) -> str:
        """The invocation id as users see it, such as `Order.3.0193…`."""
        return str(self._invocation)

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"

    async def accepted(self, timeout: Timeout = None) -> Verdict:
        """Wait for the owner's verdict on the request.

        Args:
            timeout: How long; there is no verdict while a partition has no owner.

        Raises:
            CallTimeout: The time passed; the request stays where it is.
            IdempotencyConflict: The idempotency key belongs to another call.
            InvalidInput: The argument does not fit the handler.
            CallError: Another refusal, or nothing is known of it.
        """
        remote, space = self._client.remote, self._client.space_of(self._invocation)
        ended = await remote.acceptance_of(space, self._invocation.raw, Patience(seconds_of(timeout)))
        match ended:
            case Replayed(first_at_ms=first_at_ms):
                return Verdict(replayed=True, first_at=_moment(first_at_ms))
            case Refused():
                raise refusal_of(ended, self.id)
            case _:
                return Verdict(replayed=False, first_at=self._taken_in_at())

    async def result(self, timeout: Timeout = None) -> Output:
        """Wait for the output.

        Raises:
            CallTimeout: The time passed; the invocation goes on.
            InvocationFailed: The handler ended with a `TerminalError`.
            InvocationCancelled: It was cancelled or killed.
            InvocationPaused: It waits for a person.
            ResultExpired: It ended so long ago that its result is no longer kept.
            CallError: It was refused, or nothing is known of it.
        """
        remote, space = self._client.remote, self._client.space_of(self._invocation)
        try:
            ended = await remote.end_of(space, self._invocation.raw, Patience(seconds_of(timeout)))
        except CallTimeout as error:
            raise await explained(remote.store, error) from None
        return await self._client.output_of(ended, self._invocation, self._output)

    async def signal(
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
        """Send it a signal; see `Client.signal`."""
        return await self._client.signal(self.id, name, value, type, message_id=message_id, by=by, timeout=timeout)

    async def cancel(
        self, *, cascade_to_sends: bool = False, reason: str = "", by: str = "", timeout: Timeout = None
    ) -> CancelReport:
        """Cancel the invocation, and wait until it has ended; as `Client.cancel`."""
        return await self._client.cancel(
            self.id, cascade_to_sends=cascade_to_sends, reason=reason, by=by, timeout=timeout
        )  # fmt: skip

    async def describe(self) -> InvocationDescription:
        """Return what is known of the invocation."""
        return await self._client.describe(self.id)

    def _taken_in_at(self) -> datetime | None:
        if self._entry is None or self._entry == KNOWN:
            return None
        return _moment(comparable(self._entry)[0])


def seconds_of(timeout: Timeout) -> float | None:
    """Return a timeout in seconds; one in the past is over at once, and None never is.

    Raises:
        TypeError: It is neither a number nor a timedelta.
        ValueError: It is no finite time.
    """
    if timeout is None:
        return None
    seconds = seconds_in(timeout, "timeout")
    if not math.isfinite(seconds):
        raise ValueError(f"timeout is {seconds} s: give a number of seconds, or leave it out to wait for ever")
    return max(seconds, 0.0)


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)


def value_of(ended: Ended, output: Boundary[Any] | None, invocation_id: str, owner: str) -> Any:
    """Return the output of an invocation, or raise what its end means to its caller.

    Args:
        ended: How it ended.
        output: How its output is read; None reads it by value.
        invocation_id: The id as users see it.
        owner: Who is in charge of the object type.

    Raises:
        InvocationFailed: The handler failed for good.
        InvocationCancelled: It was cancelled or killed.
        InvocationPaused: It waits for a person.
        CallError: It was refused.
    """
    match ended:
        case Succeeded(result=result):
            return unpack(result) if output is None else output.load(result)
        case Rejected(failure=failure):
            raise _failed(failure, invocation_id)
        case Refused():
            raise refusal_of(ended, invocation_id)
        case Stopped():
            raise InvocationCancelled(
                ended.how, ended.by, ended.reason, compensation_failed=ended.compensation_failed,
                invocation_id=invocation_id,
            )  # fmt: skip
        case Paused():
            raise InvocationPaused(ended.reason.value, owner, ended.detail, invocation_id=invocation_id)
        case Replayed():
            raise InternalError(f"the first call of {invocation_id} was not followed")
        case _:
            assert_never(ended)


#: Failures of a handler that name the value at fault and reach the caller as what they are.
_NAMED: Final = (InvalidOutput.code, PayloadTooLarge.code)


def _failed(failure: Failure, invocation_id: str) -> KeylaneError:
    details = None if failure.details is None else unpack(failure.details)
    if failure.code in _NAMED and isinstance(details, dict):
        fields = cast("dict[str, Any]", details)
        return error_from(failure.code, failure.message, {**fields, "invocation_id": invocation_id})
    return InvocationFailed(failure.message, failure.code, details, invocation_id=invocation_id)


def refusal_of(refused: Refused, invocation_id: str) -> KeylaneError:
    """Return the error for which an invocation never ran."""
    error = error_from(refused.code, refused.message, unpack(refused.fields))
    if isinstance(error, CallError) and error.invocation_id is None:
        error.invocation_id = invocation_id
    return error
