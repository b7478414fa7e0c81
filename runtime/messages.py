"""`ctx.call`, `ctx.send` and `ctx.sleep`: recorded in the commit with which they leave, and never done twice."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from ..journal import noted, operations
from ..journal.batch import Operation
from ..journal.command_records import (
    CallCompleted,
    CallStarted,
    CancelDelivered,
    MessageSent,
    TimerFired,
    TimerSet,
    WaitCompleted,
    WaitExpired,
)
from ..journal.errors import Deadlock, Fenced, KeylaneError, StoreUnavailable
from ..journal.futures import resolve
from ..journal.key import format_id
from ..journal.messages import Caller, Held, child_id, closes
from ..journal.outcomes import decode_outcome
from ..journal.place import format_place
from ..journal.records import Record
from ..journal.requests import Request, RequestKind
from ..objects.messaging import Sent
from .cancel_delivery import cascade, is_due, told
from .commands import diverge
from .due_times import note_due
from .endings import acceptance, record, state_change, take_out
from .handle import value_of
from .large_values import kept_delta, weigh
from .orders import Order, order_of
from .partition import OwnershipLost
from .releasing import end_if_released, standing_still
from .replay import BEGINNINGS, RESUMING, place_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..journal.key import InvocationId, Key
    from ..journal.keyspace import PartitionSpace
    from ..journal.place import Place
    from ..objects.app import App
    from ..objects.types import Boundary
    from .conductor import Conductor
    from .context import ExclusiveContext
    from .invocation import Invocation
    from .lane import Lane
    from .places import Places
    from .steps import Steps
    from .timers import Timers
    from .waits import Waits

#: How soon the registry of types is asked again while the store is away.
LOOK_AGAIN_SECONDS: Final = 0.2


class Messages:
    """What the handlers of a worker ask of other objects and of the clock.

    Args:
        app: What this worker hosts.
        places: Finds the partitions of keys.
        steps: Carries a context through its durable points.
        waits: Waits for replies and for the time.
        timers: Asks what is due.
        payload_limit_bytes: How large an argument may be.
    """

    def __init__(
        self, app: App, places: Places, steps: Steps, waits: Waits, timers: Timers, payload_limit_bytes: int
    ) -> None:
        self._app = app
        self._places = places
        self._steps = steps
        self.waits = waits
        self._timers = timers
        self._payload_limit_bytes = payload_limit_bytes

    def order(self, target: Any, key: Key | str, rest: tuple[Any, ...]) -> Order:
        """Check and pack what a handler wrote.

        Raises:
            TypeError: There is an argument too many or too few.
            CallError: It can't be called, or not with that.
        """
        limit = self._payload_limit_bytes
        return order_of(target, key, rest, idempotency_key=None, payload_limit_bytes=limit, is_inside=True)

    async def send(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, order: Order, delay_ms: int
    ) -> Sent:
        """Send a message, unless it was sent in the recorded run."""
        found = ctx.next_recorded()
        if found is None:
            await self._steps.may_begin(ctx, lane, invocation)
            space = await self.space_of(order)
            index = ctx.take_index()
            raw_id = child_id(invocation.raw_id, index, invocation.restarts)
            fact = MessageSent(
                index, space.type_name, space.number, order.key_text, order.handler_name, raw_id, delay_ms,
                *ctx.carried(),
            )  # fmt: skip
            order.trace = lane.partition.spans.of(invocation)
            request = order.request(RequestKind.OBJECT_SEND, raw_id, None, None, delay_ms=delay_ms)
            await self._write(ctx, lane, invocation, fact, [post(lane, space, request.encode())])
            found = fact
        elif isinstance(found, MessageSent) and _is_for(found, order):
            await ctx.pass_taken(ctx.take_index())
        else:
            await diverge(ctx, lane, invocation, found, _in_words(ctx, "send", order))
        return Sent(format_id(found.type_name, found.partition, found.invocation))

    async def call(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, order: Order) -> Any:
        """Call another object and wait for the reply, unless it is recorded.

        Raises:
            Deadlock: Who waits for this invocation, or itself, holds the lane that is called; nothing is recorded.
            KeylaneError: The call did not end with an output.
        """
        found = ctx.next_recorded()
        is_recorded = isinstance(found, CallStarted) and _is_for(found, order)
        if not is_recorded:
            self._check_path(ctx, lane, invocation, order)
        if found is None:
            await self._steps.may_begin(ctx, lane, invocation)
            found = await self._begin_call(ctx, lane, invocation, order)
        elif isinstance(found, CallStarted) and is_recorded:
            ctx.take_index()
            ctx.pass_recorded()
            if self._waits_on(ctx, invocation, found.index):
                self._stand_still(lane, [])
        else:
            await diverge(ctx, lane, invocation, found, _in_words(ctx, "call", order))
        return await self._replied(ctx, lane, invocation, found, order.output)

    async def _replied(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, call: CallStarted, output: Boundary[Any] | None
    ) -> Any:
        """Wait for a reply, and return the output in it, or raise what it says."""
        await end_if_released(ctx, lane, invocation, call.index)
        ended = await self._ended(ctx, lane, invocation, call.index)
        assert isinstance(ended, CallCompleted)
        callee = format_id(call.type_name, call.partition, call.invocation)
        try:
            return value_of(decode_outcome(ended.outcome), output, callee, "")
        except KeylaneError as error:
            ctx.recorded_errors = (*ctx.recorded_errors, error)
            raise

    async def _begin_call(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, order: Order) -> CallStarted:
        space = await self.space_of(order)
        index = ctx.take_index()
        raw_id = child_id(invocation.raw_id, index, invocation.restarts)
        fact = CallStarted(
            index, space.type_name, space.number, order.key_text, order.handler_name, raw_id, *ctx.carried(),
            releases=ctx.release is not None,
        )  # fmt: skip
        caller = _caller(ctx, lane, invocation, index)
        order.trace = lane.partition.spans.of(invocation)
        request = order.request(RequestKind.OBJECT_CALL, raw_id, None, None, caller=caller)
        still = standing_still(ctx, lane, invocation, operations.stand_still(lane.key_text))
        more = [post(lane, space, request.encode()), *still]
        await self._write(ctx, lane, invocation, fact, more)
        return fact

    async def attach(
        self,
        ctx: ExclusiveContext,
        lane: Lane,
        invocation: Invocation,
        target: InvocationId,
        output: Boundary[Any] | None,
    ) -> Any:
        """Wait for the end of an invocation that was asked for elsewhere, unless it is recorded.

        Raises:
            Deadlock: It is this invocation, or waits for it, or for its lane.
            KeylaneError: It did not end with an output, or nothing is known of it.
        """
        found = ctx.next_recorded()
        if found is None:
            await self._steps.may_begin(ctx, lane, invocation)
            found = await self._begin_attach(ctx, lane, invocation, target)
        elif isinstance(found, CallStarted) and found.is_attached and found.invocation == target.raw:
            ctx.take_index()
            ctx.pass_recorded()
            if self._waits_on(ctx, invocation, found.index):
                self._stand_still(lane, [])
        else:
            what = f"command {format_place(ctx.place)}, result of {target}"
            await diverge(ctx, lane, invocation, found, what)
        return await self._replied(ctx, lane, invocation, found, output)

    async def _begin_attach(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, target: InvocationId
    ) -> CallStarted:
        if target.raw == invocation.raw_id:
            own = _held(ctx, lane, invocation)
            raise deadlock(own, own[-1])
        space = await self._until_answered(partial(self._places.place_of, target))
        index = ctx.take_index()
        releases = ctx.release is not None
        fact = CallStarted(
            index, space.type_name, space.number, "", "", target.raw, *ctx.carried(), releases=releases
        )  # fmt: skip
        caller = _caller(ctx, lane, invocation, index)
        raw_id = child_id(invocation.raw_id, index, invocation.restarts)
        request = Request(RequestKind.ATTACH, raw_id, "", "", target.raw, caller=caller)
        still = standing_still(ctx, lane, invocation, operations.stand_still(lane.key_text))
        more = [post(lane, space, request.encode()), *still]
        await self._write(ctx, lane, invocation, fact, more)
        return fact

    async def sleep(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, delay_ms: int) -> None:
        """Wait for a while, unless the end of it is recorded."""
        found = ctx.next_recorded()
        partition = lane.partition
        if found is None:
            await self._steps.may_begin(ctx, lane, invocation)
            found = TimerSet(ctx.take_index(), delay_ms, *ctx.carried(), releases=ctx.release is not None)
            still = standing_still(ctx, lane, invocation, operations.stand_still(lane.key_text))
            more = [operations.schedule(invocation.raw_id, delay_ms), *still]
            await self._write(ctx, lane, invocation, found, more)
            self._timers.ask_in(partition, delay_ms)
        elif isinstance(found, TimerSet):
            ctx.take_index()
            ctx.pass_recorded()
            if self._waits_on(ctx, invocation, found.index):
                left_ms = max(invocation.due_ms - partition.now_ms(), 0)
                self._stand_still(lane, [operations.schedule(invocation.raw_id, left_ms)])
                self._timers.ask_in(partition, left_ms)
        else:
            await diverge(
                ctx,
                lane,
                invocation,
                found,
                f"command {format_place(ctx.place)}, sleep of {noted.seconds_of(delay_ms)}",
            )
        await end_if_released(ctx, lane, invocation, found.index)
        await self._ended(ctx, lane, invocation, found.index)

    async def _ended(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, index: Place
    ) -> CallCompleted | TimerFired | WaitCompleted | WaitExpired:
        """Return the record that ends a wait, once it is durable."""
        if ctx.conductor is not None:
            ended = await ctx.conductor.handed(index)
            assert isinstance(ended, CallCompleted | TimerFired | WaitCompleted | WaitExpired)
            return ended
        found = ctx.next_recorded()
        if isinstance(found, CallCompleted | TimerFired | WaitCompleted | WaitExpired):
            ctx.pass_recorded()
            return found
        return await self.waits.ended(ctx, lane, invocation, index)

    @staticmethod
    def _waits_on(ctx: ExclusiveContext, invocation: Invocation, place: Place) -> bool:
        """Return whether a wait goes on that the handler has come to again.

        Its end may be on its way to the store: that its lane is runnable again goes with it, and must be the last word.
        """
        standing = invocation.standing
        is_open = standing is not None and standing.wait_at(place) is not None
        return is_open and ctx.conductor is None and ctx.next_recorded() is None

    @staticmethod
    def _stand_still(lane: Lane, more: list[Operation]) -> None:
        """Note again that a lane waits whose handler was run again meanwhile."""
        lane.commit([operations.stand_still(lane.key_text), *more])

    async def space_of(self, order: Order) -> PartitionSpace:
        """Return the partition of a key, as the namespace has it.

        Raises:
            UnknownObject: The namespace has no such type.
            InvalidKey: The text is no key.
        """
        space = self._places.known(order.object_name, order.key_text)
        if space is not None:
            return space
        return await self._until_answered(partial(self._places.learned, order.object_name, order.key_text))

    @staticmethod
    async def _until_answered(ask: Callable[[], Awaitable[PartitionSpace]]) -> PartitionSpace:
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                await anyio.sleep(LOOK_AGAIN_SECONDS)

    def _check_path(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, order: Order) -> None:
        """Refuse a call that would wait for a lane that is held until it ends.

        Whether a handler that is hosted elsewhere takes the lane is not known here; its owner decides.
        """
        path = _held(ctx, lane, invocation)
        if order.shared or not closes(path, order.object_name, order.key_text):
            return
        hosted = self._app.objects.get(order.object_name)
        handler = None if hosted is None else hosted.handlers.get(order.handler_name)
        if handler is not None and handler.kind == "exclusive":
            raise deadlock(path, Held(order.object_name, order.key_text, order.handler_name))

    async def _write(
        self,
        ctx: ExclusiveContext,
        lane: Lane,
        invocation: Invocation,
        fact: Record,
        more: list[Operation],
        end: WaitCompleted | None = None,
        queued: Callable[[], None] | None = None,
    ) -> None:
        """Make a command durable, with what leaves with it and the state written since the last durable point.

        Nothing need be durable before: whatever the command is built on lies ahead of it in the same lane, and a commit
        that is refused takes those behind it in its lane along. A branch that begins a wait goes on at once: all that
        it can do is wait. A wait for what has come already ends in the same commit, or no new owner would see to it; a
        handler with branches is run again by one in any case, since its lane does not stand still.

        Args:
            ctx: The run that makes it.
            lane: Its lane.
            invocation: Its invocation.
            fact: The command.
            more: What leaves with it.
            end: What ends the wait that it begins.
            queued: Called once that is queued, unless the handler is told of a cancel in its place.

        Raises:
            Cancelled: In its place it was recorded that the handler is told of that.
        """
        if is_due(invocation) and end is None and (ctx.conductor is None or ctx.conductor.is_main_here):
            queued = None
            fact, more = CancelDelivered(place_of(fact), *ctx.carried()), cascade(lane, invocation)
        queued = queued or _nothing
        if ctx.conductor is not None:
            await self._write_of_branch(ctx.conductor, invocation, fact, more, end, queued)
            return
        ctx.check_current()
        was_accepted = invocation.accepted
        writes = acceptance(lane, invocation)
        record(invocation, fact)
        delta = kept_delta(lane, ctx.writes)
        writes.append(operations.record(lane.partition.space, invocation.raw_id, fact))
        if end is not None:
            record(invocation, end)
            writes.append(operations.record(lane.partition.space, invocation.raw_id, end))
        writes.extend(state_change(lane, invocation, delta))
        writes.extend(more)
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        facts = (fact,) if end is None else (fact, end)
        done = partial(_written, invocation, facts, durable, was_accepted)
        lane.commit(writes, delta or None, done, takes_in=not was_accepted, about=invocation.raw_id)
        queued()
        await ctx.through(durable)
        ctx.pass_durable_point()
        if isinstance(fact, CancelDelivered):
            raise told(invocation)
        if not isinstance(fact, BEGINNINGS):
            ctx.replay_if_forced()

    async def _write_of_branch(
        self,
        conductor: Conductor,
        invocation: Invocation,
        fact: Record,
        more: list[Operation],
        end: WaitCompleted | None,
        queued: Callable[[], None],
    ) -> None:
        conductor.write(fact, [] if end is not None else more)
        queued()
        if end is not None:
            self.waits.complete(invocation, end, more, _nothing, _nothing)
        if isinstance(fact, RESUMING):
            await conductor.durable(place_of(fact))


def deadlock(path: tuple[Held, ...], target: Held) -> Deadlock:
    """Return the error of a call that would wait for one of those who wait for it."""
    return Deadlock(tuple(map(str, (*path, target))))


def _caller(ctx: ExclusiveContext, lane: Lane, invocation: Invocation, index: Place) -> Caller:
    """Return who waits for the reply to a command."""
    own = lane.partition.space
    held = _held(ctx, lane, invocation)
    return Caller(own.type_name, own.number, lane.key_text, invocation.raw_id, index, held)


def _held(ctx: ExclusiveContext, lane: Lane, invocation: Invocation) -> tuple[Held, ...]:
    """Return the lanes that are held while an invocation waits: those of its callers, and its own if it keeps it."""
    if ctx.release is not None:
        return () if invocation.caller is None else invocation.caller.path
    own = Held(lane.partition.space.type_name, lane.key_text, invocation.handler.name)
    return (own,) if invocation.caller is None else (*invocation.caller.path, own)


def post(lane: Lane, space: PartitionSpace, message: bytes) -> Operation:
    """Return what sends a message with the next commit of a lane."""
    weigh(lane, message)
    return operations.post(lane.partition.space, space.name, message)


def _is_for(found: MessageSent | CallStarted, order: Order) -> bool:
    recorded = (found.type_name, found.key, found.handler)
    return recorded == (order.object_name, order.key_text, order.handler_name)


def _in_words(ctx: ExclusiveContext, what: str, order: Order) -> str:
    preposition = "to" if what == "send" else "of"
    target = f"{order.object_name}.{order.handler_name} at {order.key_text}"
    return f"command {format_place(ctx.place)}, {what} {preposition} {target}"


def _written(
    invocation: Invocation,
    facts: tuple[Record, ...],
    future: asyncio.Future[None],
    was_accepted: bool,  # noqa: FBT001, a callback's argument
    now_ms: int,
    error: BaseException | None,
) -> None:
    """Note a durable command for the next run, also when the one that wrote it waits no longer."""
    if error is None:
        invocation.records.extend(facts)
        if len(facts) == 1:
            note_due(invocation, facts[0], now_ms)
    elif not was_accepted and not isinstance(error, Fenced | OwnershipLost):
        take_out(invocation)
    resolve(future, None, error)


def _nothing() -> None:
    pass
