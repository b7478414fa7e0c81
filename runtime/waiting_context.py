"""The part of an exclusive handler's context that waits for others, and sends to those who wait."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..journal.errors import WaitTimeout
from ..journal.place import format_place
from ..objects.context import ObjectContext
from ..objects.types import boundary_of
from ..objects.waiting import Awakeable
from .orders import milliseconds
from .signal_orders import check_signal_name, completion, packed_rejection, packed_value, signal

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Iterable
    from datetime import timedelta

    from ..journal.place import Place
    from ..objects.types import Boundary
    from ..objects.verdicts import WaitVerdict
    from ..objects.waiting import SignalTarget
    from .context import ExclusiveContext
    from .effects import Effects
    from .invocation import Invocation
    from .lane import Lane
    from .signal_orders import Sending

Result = TypeVar("Result")


class WaitingContext(ObjectContext):
    """What `ExclusiveContext` does for waits."""

    __slots__ = ()

    _lane: Lane
    _invocation: Invocation
    _messages: Effects

    @abstractmethod
    def _check_command(self, call: str) -> None: ...

    @abstractmethod
    async def unbroken(self, what: str, doing: Coroutine[Any, Any, Result]) -> Result:
        """Await what a call of ctx does."""

    @property
    def own(self) -> ExclusiveContext:
        """The whole context."""
        return cast("ExclusiveContext", self)

    async def awakeable(self, type: Any = Any, /) -> Awakeable[Any]:
        """Make something that code outside completes, the same one at each replay."""
        self._check_command("awakeable")
        boundary = boundary_of(type, where="the awakeable's value")
        making = self._messages.awakeable(self.own, self._lane, self._invocation)
        return RecordedAwakeable(self, await self.unbroken("awakeable", making), boundary)

    async def signal(
        self,
        name: str,
        type: Any,
        /,
        *,
        timeout: timedelta | float | None = None,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> Any:
        """Wait for a signal, or return the one that the recorded run got."""
        self._check_command("signal")
        if self.own.releases(expects, release_lane=release_lane):
            async with self.own.release_lane(expects=expects):
                return await self.signal(name, type, timeout=timeout)
        check_signal_name(name)
        boundary = boundary_of(type, where=f"signal {name!r}")
        return await self.wait_for("signal", name, None, timeout, boundary)

    async def wait_for(
        self,
        what: str,
        name: str,
        awakeable: Place | None,
        timeout: timedelta | float | None,
        boundary: Boundary[Any],
    ) -> Any:
        """Wait for a signal, or for the completion of an awakeable."""
        self._check_command(what)
        timeout_ms = None if timeout is None else milliseconds(timeout, "the timeout")
        waiting = self._messages.wait(
            self.own, self._lane, self._invocation, name, awakeable, timeout_ms, boundary
        )  # fmt: skip
        return await self.unbroken(what, waiting)

    async def resolve_awakeable(self, awakeable_id: str, value: Any, /, type: Any = None) -> WaitVerdict:
        """Complete another invocation's awakeable, or return what the recorded run was told."""
        packed = packed_value(value, type, self._lane.partition.payload_limit_bytes)
        return await self._deliver("resolve_awakeable", completion(awakeable_id, packed, self.invocation_id))

    async def reject_awakeable(self, awakeable_id: str, reason: str, /, *, code: str | None = None) -> WaitVerdict:
        """Complete another invocation's awakeable with a failure, or return what the recorded run was told."""
        packed = packed_rejection(reason, code, self._lane.partition.payload_limit_bytes)
        return await self._deliver("reject_awakeable", completion(awakeable_id, packed, self.invocation_id))

    async def send_signal(self, target: SignalTarget, name: str, value: Any, /, type: Any = None) -> WaitVerdict:
        """Send a signal, or return what the recorded run was told."""
        packed = packed_value(value, type, self._lane.partition.payload_limit_bytes)
        return await self._deliver("send_signal", signal(target, name, packed, self.invocation_id))

    async def _deliver(self, call: str, sending: Sending) -> WaitVerdict:
        self._check_command(call)
        delivering = self._messages.deliver(self.own, self._lane, self._invocation, sending)
        return await self.unbroken(call, delivering)


class RecordedAwakeable(Awakeable[Any]):
    """An awakeable of one run of a handler."""

    __slots__ = ("_boundary", "_ctx", "_expired", "_id", "_place")

    def __init__(self, ctx: WaitingContext, place: Place, boundary: Boundary[Any]) -> None:
        self._ctx = ctx
        self._place = place
        self._boundary = boundary
        self._expired: WaitTimeout | None = None
        head = ctx.invocation_id
        self._id = f"{head}.{format_place(place)}"

    @property
    def id(self) -> str:
        """What is given to whoever is to complete it."""
        return self._id

    def __repr__(self) -> str:
        return f"Awakeable({self._id!r})"

    async def wait(
        self,
        *,
        timeout: timedelta | float | None = None,
        release_lane: bool = False,
        expects: Iterable[str] = (),
    ) -> Any:
        """Wait until it is completed."""
        if self._ctx.own.releases(expects, release_lane=release_lane):
            async with self._ctx.own.release_lane(expects=expects):
                return await self.wait(timeout=timeout)
        if self._expired is not None:
            # Those who complete it are told that it has expired, so there is nothing to wait for.
            raise WaitTimeout(self._expired.what, self._expired.waited)
        try:
            return await self._ctx.wait_for("awakeable", "", self._place, timeout, self._boundary)
        except WaitTimeout as error:
            # Where several branches wait, the first whose time has passed has ended it for all.
            self._expired = self._expired or error
            raise WaitTimeout(self._expired.what, self._expired.waited) from None

    def __await__(self) -> Generator[Any, Any, Any]:
        """Wait without a timeout."""
        return self.wait().__await__()
