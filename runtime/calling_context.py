"""The part of an exclusive handler's context that asks other objects, and the clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..journal.key import parse_id
from ..objects.types import boundary_of
from .branching_context import BranchingContext
from .orders import milliseconds, seconds_in

if TYPE_CHECKING:
    from datetime import timedelta

    from ..journal.key import Key
    from ..objects.messaging import Sent


class CallingContext(BranchingContext):
    """What `ExclusiveContext` does for messages, calls and sleeps."""

    __slots__ = ()

    async def call(
        self, target: Any, key: Key | str, /, *rest: Any, release_lane: bool = False, expects: Iterable[str] = ()
    ) -> Any:
        """Call another object, or return what it answered in the recorded run."""
        self._check_command("call")
        if self.own.releases(expects, release_lane=release_lane):
            async with self.own.release_lane(expects=expects):
                return await self.call(target, key, *rest)
        order = self._messages.order(target, key, rest)
        return await self.unbroken("call", self._messages.call(self.own, self._lane, self._invocation, order))

    async def send(self, target: Any, key: Key | str, /, *rest: Any, delay: timedelta | float | None = None) -> Sent:
        """Send a message to an object, unless the recorded run has sent it."""
        self._check_command("send")
        order = self._messages.order(target, key, rest)
        delay_ms = milliseconds(delay, "delay")
        sending = self._messages.send(self.own, self._lane, self._invocation, order, delay_ms)
        return await self.unbroken("send", sending)

    async def attach(self, invocation_id: str, /, type: Any = None) -> Any:
        """Wait for the end of an invocation, or return what the recorded run was told of it."""
        self._check_command("attach")
        target, output = parse_id(invocation_id), None if type is None else boundary_of(type)
        attaching = self._messages.attach(self.own, self._lane, self._invocation, target, output)
        return await self.unbroken("attach", attaching)

    async def sleep(
        self, duration: timedelta | float, /, *, release_lane: bool = False, expects: Iterable[str] = ()
    ) -> None:
        """Wait for a while, counted from when the recorded run began to."""
        self._check_command("sleep")
        if self.own.releases(expects, release_lane=release_lane):
            async with self.own.release_lane(expects=expects):
                await self.sleep(duration)
            return
        delay_ms = milliseconds(seconds_in(duration, "the duration"), "the duration")
        await self.unbroken("sleep", self._messages.sleep(self.own, self._lane, self._invocation, delay_ms))
