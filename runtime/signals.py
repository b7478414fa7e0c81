"""`ctx.awakeable`, `ctx.signal`, and what handlers send to others who wait: recorded, and never done twice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..journal import operations
from ..journal.codec import REFERENCE_BYTES, Undecodable
from ..journal.command_records import (
    AwakeableMade,
    CallCompleted,
    CallStarted,
    WaitCompleted,
    WaitExpired,
    WaitStarted,
)
from ..journal.errors import InternalError, InvalidInput, InvalidKey, KeylaneError, WaitTimeout
from ..journal.key import format_id
from ..journal.messages import Caller, child_id
from ..journal.noted import seconds_of
from ..journal.outcomes import Rejected, Succeeded, decode_outcome
from ..journal.place import format_place
from ..journal.requests import Request
from ..journal.signals import format_awakeable
from ..objects.verdicts import WaitVerdict, verdict_of
from .commands import diverge
from .failures import terminal_error
from .handle import value_of
from .large_reads import whole
from .messages import Messages, post
from .orders import Order
from .releasing import end_if_released, standing_still
from .signal_delivery import note_value
from .signal_orders import SOME_KEY

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from ..journal.keyspace import PartitionSpace
    from ..journal.place import Place
    from ..journal.store import Store
    from ..objects.types import Boundary
    from .context import ExclusiveContext
    from .invocation import Invocation
    from .lane import Lane
    from .signal_boxes import SignalBoxes
    from .signal_orders import Sending


class Signals(Messages):
    """What the handlers of a worker ask of others, of the clock, and of whoever sends to them."""

    boxes: SignalBoxes
    store: Store

    async def awakeable(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation) -> Place:
        """Make an awakeable, unless the recorded run has; returns the place that its id names."""
        found = ctx.next_recorded()
        if found is None:
            await self._steps.may_begin(ctx, lane, invocation)
            found = AwakeableMade(ctx.take_index(), *ctx.carried())
            await self._write(ctx, lane, invocation, found, [])
        elif isinstance(found, AwakeableMade):
            await ctx.pass_taken(ctx.take_index())
        else:
            await diverge(ctx, lane, invocation, found, f"command {format_place(ctx.place)}, an awakeable")
        return found.index

    async def wait(
        self,
        ctx: ExclusiveContext,
        lane: Lane,
        invocation: Invocation,
        name: str,
        awakeable: Place | None,
        timeout_ms: int | None,
        boundary: Boundary[Any],
    ) -> Any:
        """Wait for a signal, or for the completion of an awakeable, unless its end is recorded.

        Args:
            ctx: The run that waits.
            lane: Its lane.
            invocation: Its invocation.
            name: The signal's name; empty for an awakeable.
            awakeable: The place of the awakeable; None for a signal.
            timeout_ms: How long it waits at most.
            boundary: What is waited for.

        Raises:
            WaitTimeout: It did not come in time.
            TerminalError: The awakeable was rejected.
            InvalidInput: What came does not fit.
        """
        found = ctx.next_recorded()
        if found is None:
            found = await self._begin(ctx, lane, invocation, name, awakeable, timeout_ms)
        elif isinstance(found, WaitStarted) and (found.name, found.awakeable) == (name, awakeable):
            ctx.take_index()
            ctx.pass_recorded()
            standing = invocation.standing
            if standing is not None and standing.wait_at(found.index) is not None:
                await self._go_on_waiting(ctx, lane, invocation, found)
        else:
            what = f"signal {name!r}" if awakeable is None else "the completion of an awakeable"
            await diverge(ctx, lane, invocation, found, f"command {format_place(ctx.place)}, a wait for {what}")
        await end_if_released(ctx, lane, invocation, found.index)
        ended = await self._ended(ctx, lane, invocation, found.index)
        if isinstance(ended, WaitExpired):
            raise WaitTimeout(_what(lane, invocation, found), seconds_of(found.timeout_ms or 0))
        assert isinstance(ended, WaitCompleted)
        return await self._value(ctx, lane, invocation, ended, boundary)

    async def _begin(
        self,
        ctx: ExclusiveContext,
        lane: Lane,
        invocation: Invocation,
        name: str,
        awakeable: Place | None,
        timeout_ms: int | None,
    ) -> WaitStarted:
        """Begin to wait; what is there already ends the wait in the same commit."""
        await self._steps.may_begin(ctx, lane, invocation)
        if awakeable is None:
            await self._read_box(ctx, lane)
        if ctx.conductor is not None:
            # What a failure has ended may give back what this waits for.
            ctx.conductor.say_withdrawn()
        fact = WaitStarted(ctx.take_index(), name, awakeable, timeout_ms, *ctx.carried())
        early = self._early(lane, invocation, fact)
        if early is not None:
            end, writes = early
            await self._write(ctx, lane, invocation, fact, writes, end)
            return fact
        if ctx.release is not None:
            fact = replace(fact, releases=True)
        more = standing_still(ctx, lane, invocation, operations.stand_still(lane.key_text))
        if timeout_ms is not None:
            more.append(operations.schedule(invocation.raw_id, timeout_ms))
        await self._write(ctx, lane, invocation, fact, more)
        if timeout_ms is not None:
            self._timers.ask_in(lane.partition, timeout_ms)
        return fact

    async def _go_on_waiting(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, wait: WaitStarted
    ) -> None:
        """Note again that a lane waits whose handler was run again meanwhile, unless what it waits for has come.

        A signal to its object may have: one that was paused beside its lane gets none.
        """
        if wait.awakeable is None:
            await self._read_box(ctx, lane)
        standing = invocation.standing
        if standing is None or standing.wait_at(wait.index) is None:
            # Its end is on its way.
            return
        early = self._early(lane, invocation, wait)
        if early is not None:
            end, writes = early
            self.waits.complete(invocation, end, writes, _nothing, _nothing)
            return
        mail = invocation.mail
        if mail is not None and wait.awakeable is not None and mail.has_expired(wait.awakeable):
            # The wait of another branch has ended it, and a crash came before this one's end was written.
            self.waits.expire(lane.partition, invocation, wait.index)
            return
        if ctx.conductor is not None:
            # When all branches wait, and until when, is seen to there.
            return
        if wait.timeout_ms is None:
            self._stand_still(lane, [])
            return
        left_ms = max(invocation.due_ms - lane.partition.now_ms(), 0)
        self._stand_still(lane, [operations.schedule(invocation.raw_id, left_ms)])
        self._timers.ask_in(lane.partition, left_ms)

    async def _read_box(self, ctx: ExclusiveContext, lane: Lane) -> None:
        """Bring the early signals of an object into memory: from then on what comes is decided here, in order."""
        while lane.box is None:
            await self.boxes.wait(lane)
            ctx.check_current()

    @staticmethod
    def _early(lane: Lane, invocation: Invocation, wait: WaitStarted) -> tuple[WaitCompleted, list[Operation]] | None:
        """Return what ends a wait because it came before, with what takes it from where it was kept."""
        mail = invocation.mail
        if wait.awakeable is not None:
            done = None if mail is None else mail.completion(wait.awakeable)
            return None if done is None else (WaitCompleted(wait.index, done.message, done.value, done.by), [])
        own = None if mail is None else mail.first(wait.name)
        if own is not None:
            return WaitCompleted(wait.index, own.message, own.value, own.by), []
        box = lane.box
        assert box is not None
        expired = box.expire(lane.partition.now_ms())
        if expired:
            lane.commit(expired)
        kept = box.first(wait.name)
        if kept is None:
            return None
        number, signal = kept
        note_value(invocation, signal.value)
        end = WaitCompleted(wait.index, signal.message, signal.value, signal.by, of_object=True)
        return end, [box.take(number)]

    @staticmethod
    async def _value(
        ctx: ExclusiveContext, lane: Lane, invocation: Invocation, ended: WaitCompleted, boundary: Boundary[Any]
    ) -> Any:
        """Return the value that ended a wait, of the type that is waited for.

        Raises:
            TerminalError: It is a rejection.
            InvalidInput: It does not fit; that is recorded, so no further attempt could get another one.
        """
        match decode_outcome(ended.value):
            case Succeeded(result=packed):
                if len(packed) == REFERENCE_BYTES:
                    packed = await whole(ctx, lane, invocation, packed, boundary.where)
                try:
                    return boundary.load(packed)
                except (InvalidInput, Undecodable) as error:
                    misfit = error if isinstance(error, InvalidInput) else InvalidInput(boundary.where, error.message)
                    ctx.recorded_errors = (*ctx.recorded_errors, misfit)
                    raise misfit from error
            case Rejected(failure=failure):
                raise terminal_error(failure)
            case _:
                raise InternalError(f"{boundary.where} was ended by something that is no value")

    async def deliver(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, sending: Sending) -> WaitVerdict:
        """Send something to others who wait, and wait for the verdict, unless it is recorded.

        Raises:
            UnknownObject: The namespace has no such type.
            InvalidKey: The type has fewer partitions than the id says.
            KeylaneError: Its owner has refused it.
        """
        found = ctx.next_recorded()
        what = "(completion)" if sending.order.awakeable is not None else f"(signal {sending.order.name!r})"
        asked = (sending.type_name, sending.target, what)
        if found is None:
            await self._steps.may_begin(ctx, lane, invocation)
            found = await self._send_signal(ctx, lane, invocation, sending, what)
        elif isinstance(found, CallStarted) and (found.type_name, found.key, found.handler) == asked:
            ctx.take_index()
            ctx.pass_recorded()
            if self._waits_on(ctx, invocation, found.index):
                self._stand_still(lane, [])
        else:
            await diverge(
                ctx, lane, invocation, found, f"command {format_place(ctx.place)}, {what[1:-1]} to {sending.target}"
            )
        ended = await self._ended(ctx, lane, invocation, found.index)
        assert isinstance(ended, CallCompleted)
        message_id = format_id(found.type_name, found.partition, found.invocation)
        try:
            return verdict_of(value_of(decode_outcome(ended.outcome), None, message_id, ""))
        except KeylaneError as error:
            ctx.recorded_errors = (*ctx.recorded_errors, error)
            raise

    async def _send_signal(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, sending: Sending, what: str
    ) -> CallStarted:
        space = await self._space_of(sending)
        index = ctx.take_index()
        raw_id = child_id(invocation.raw_id, index, invocation.restarts)
        own = lane.partition.space
        fact = CallStarted(index, space.type_name, space.number, sending.target, what, raw_id, *ctx.carried())
        # A verdict waits for no lane, so those that are held meanwhile make no circle with it.
        caller = Caller(own.type_name, own.number, lane.key_text, invocation.raw_id, index, ())
        request = Request(sending.kind, raw_id, "", sending.key, sending.order.encode(), caller=caller)
        more = [post(lane, space, request.encode()), operations.stand_still(lane.key_text)]
        await self._write(ctx, lane, invocation, fact, more)
        return fact

    async def _space_of(self, sending: Sending) -> PartitionSpace:
        if sending.partition is None:
            return await self.space_of(Order(sending.type_name, "", sending.key))
        some = await self.space_of(Order(sending.type_name, "", SOME_KEY))
        count = self._places.partitions(sending.type_name)
        if sending.partition >= count:
            raise InvalidKey(sending.target, f"{some.type_name} has {count} partitions")
        return self.store.space(sending.type_name, sending.partition)


def _what(lane: Lane, invocation: Invocation, wait: WaitStarted) -> str:
    if wait.awakeable is None:
        return f"signal {wait.name!r}"
    space = lane.partition.space
    awakeable = format_awakeable(space.type_name, space.number, invocation.raw_id, wait.awakeable)
    return f"the completion of awakeable {awakeable}"


def _nothing() -> None:
    pass
