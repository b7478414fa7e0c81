"""Invocations that wait for another object's reply or for their time: in memory for a while, then in the journal alone.

A wait ends with a record, whoever owns the partition by then. Where the handler is still in memory it goes on from
where it stands; else its lane is loaded and it is replayed up to there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..journal import operations
from ..journal.batch import Commit, Operation
from ..journal.codec import Undecodable
from ..journal.command_records import (
    CallCompleted,
    CallStarted,
    CancelDelivered,
    TimerFired,
    TimerSet,
    WaitCompleted,
    WaitExpired,
    WaitStarted,
)
from ..journal.errors import Fenced, MessageLost, Suspended
from ..journal.inbox import leaves_no_trace
from ..journal.key import format_id
from ..journal.messages import Reply, reply_id
from ..journal.outbox import read_messages
from ..journal.outcomes import encode_outcome
from ..journal.place import sort_key
from ..journal.tracing import traceless
from .aside import returning
from .at_hand import is_ready
from .cancel_delivery import cascade, is_due, told
from .due_times import awaits_attempt, delay_of, entry_of, forget_due
from .effect_shield import is_shielded
from .endings import record
from .failures import refused
from .forcing import forced
from .invocation import Hold, Invocation
from .parking import has_to_stop
from .partition import OwnershipLost, Partition, Phase
from .residents import Residents

if TYPE_CHECKING:
    from ..journal.keyspace import PartitionSpace
    from ..journal.place import Place
    from ..journal.requests import Request
    from ..journal.standing import OpenWait
    from ..journal.store import Store
    from .context import ExclusiveContext
    from .lane import Lane
    from .slots import Slots
    from .timers import Timers

logger = logging.getLogger("keylane.invocation")

EndOfWait: TypeAlias = CallCompleted | TimerFired | WaitCompleted | WaitExpired


class Waits:
    """The waits of one worker.

    Args:
        timers: Asks what is due.
        residency_seconds: How long a handler that waits stays in memory.
        resident_max: How many do; beyond that, those go first that have waited longest.
    """

    def __init__(self, timers: Timers, residency_seconds: float, resident_max: int) -> None:
        self._timers = timers
        self._residents = Residents(let_go, residency_seconds, resident_max)
        #: Whether each wait suspends its handler at once.
        self.is_never_resident = residency_seconds == 0 or forced() == "suspend"
        #: For tests: whether each record that lets a handler go on suspends it.
        self.is_always_replayed = forced() == "replay"
        #: Asked what takes the registration of a wait away that is withdrawn.
        self.on_withdrawn: list[Callable[[Lane, Invocation, OpenWait], list[Operation]]] = []
        #: Told of waits that nobody waits for any more, and that have ended: what came was taken by nobody.
        self.on_abandoned: list[Callable[[Lane, Invocation, Place], None]] = []
        self.slots: Slots[Lane]

    def force(self, how: Literal["suspend", "replay"] | None) -> None:
        """Have handlers suffer what few runs meet; for tests."""
        self.is_never_resident = self.is_never_resident or how == "suspend"
        self.is_always_replayed = self.is_always_replayed or how == "replay"

    async def ended(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, index: Place) -> EndOfWait:
        """Wait for the record that ends the open wait of an invocation; its slot serves others meanwhile.

        Raises:
            Suspended: The handler leaves memory, or its partition is handed over: it goes on from its journal.
            Cancelled: The handler is told of that, in place of the end.
        """
        if ctx.conductor is not None:
            ended = await ctx.conductor.handed(index)
            assert isinstance(ended, EndOfWait)
            return ended
        recorded = ctx.next_recorded()
        if isinstance(recorded, CancelDelivered):
            ctx.pass_recorded()
            raise told(invocation)
        if is_due(invocation) and is_shielded(invocation) is False:
            # It was asked for while the handler was not in memory.
            self._tell_of_cancel(lane, invocation, index)
        while True:
            ctx.check_current()
            found = _end_of(invocation, index)
            if isinstance(found, CancelDelivered):
                raise told(invocation)
            if found is not None:
                ctx.replay_if_forced()
                return found
            is_dear = invocation.handler.is_blocking or self.is_never_resident
            if is_dear and invocation.standing is not None:
                # A thread, for one, is too dear to be held for as long as others take.
                invocation.hold = Hold.WAITING
                raise ctx.end(Suspended())
            await self._wait(ctx, lane, invocation)

    async def _wait(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation) -> None:
        partition = lane.partition
        if partition.phase is not Phase.OPEN or invocation.pause_wish is not None:
            # What was asked for while the wait was on its way is done where it begins.
            raise ctx.end(Suspended())
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        partition.sleepers[invocation.raw_id] = future
        place = self.enter(invocation)
        if self.is_never_resident:
            let_go(invocation)
        try:
            with self.slots.lent():
                await future
        except Suspended as suspended:
            # A handler that swallows it must not be taken to have succeeded.
            raise ctx.end(suspended) from None
        finally:
            self.leave(invocation, place)
            if partition.sleepers.get(invocation.raw_id) is future:
                del partition.sleepers[invocation.raw_id]

    def _tell_of_cancel(self, lane: Lane, invocation: Invocation, index: Place) -> None:
        forget_due(invocation, index)
        more = [entry_of(lane.partition, invocation), *cascade(lane, invocation)]
        self._end(invocation, CancelDelivered(index), more, _nothing, _nothing)

    def tell_of_cancel(self, invocation: Invocation, place: Place, more: list[Operation]) -> None:
        """End a wait that is never due by itself with that its handler is told of its cancel.

        Args:
            invocation: The one that waits.
            place: Where.
            more: What is written with it.
        """
        self._end(invocation, CancelDelivered(place), more, _nothing, _nothing)

    def enter(self, invocation: Invocation) -> int:
        """Have a handler that waits leave memory after a while; returns what `leave` wants to know."""
        return self._residents.enter(invocation)

    def leave(self, invocation: Invocation, place: int) -> None:
        """Take note that a handler goes on, or has left memory."""
        self._residents.leave(invocation, place)

    def ask_in(self, partition: Partition, delay_ms: int) -> None:
        """Ask in a while what is due in a partition."""
        self._timers.ask_in(partition, delay_ms)

    def withdrawal(self, lane: Lane, invocation: Invocation, place: Place) -> list[Operation] | None:
        """Return what takes away all that a wait leaves behind when it is waited for no longer; None if it is over."""
        standing = invocation.standing
        wait = None if standing is None else standing.wait_at(place)
        if wait is None:
            if forget_due(invocation, place):
                # The next attempt of a step.
                lane.commit([entry_of(lane.partition, invocation)])
            for tell in self.on_abandoned:
                tell(lane, invocation, place)
            return None
        writes: list[Operation] = []
        if delay_of(wait) is not None:
            # It may be on its way yet, in which case it is not among the moments, but the store will have it.
            forget_due(invocation, place)
            writes.append(entry_of(lane.partition, invocation))
        for forget in self.on_withdrawn:
            writes.extend(forget(lane, invocation, wait))
        return writes

    def take_reply(self, partition: Partition, entry: bytes, request: Request) -> None:
        """Take the reply to a call in; its caller may be in memory or not.

        Raises:
            InvalidKey: What it says of its caller is no key.
        """
        try:
            reply = Reply.decode(request.payload or b"")
        except Undecodable:
            writes = [operations.keep_undecodable(request.encode()), operations.settle_entry(entry)]
            partition.writer.commit(Commit(writes))
            return
        partition.lane(request.key)
        partition.serving.add(request.invocation)
        self._seek_caller(partition, entry, request, reply)

    def _seek_caller(self, partition: Partition, entry: bytes, request: Request, reply: Reply) -> None:
        if partition.phase is Phase.LOST:
            return
        lane = partition.lane(request.key)
        again = partial(self._seek_caller, partition, entry, request, reply)
        if not is_ready(lane, again):
            return
        if reply.invocation in partition.open:
            self._answer_caller(partition, entry, request, reply)
        else:
            answer = partial(self._answer_caller, partition, entry, request, reply)
            partition.host.find_parked(lane, reply.invocation, answer)

    def _answer_caller(self, partition: Partition, entry: bytes, request: Request, reply: Reply) -> None:
        if partition.phase is Phase.LOST:
            return
        invocation = partition.open.get(reply.invocation)
        call = None if invocation is None else _awaited(invocation, reply.index)
        if invocation is None or call is None or not _answers(request, reply, call):
            # A second copy, the caller has ended otherwise, or was begun again and has called anew.
            _note_taken(partition, request.invocation)
            partition.settle_entry(entry)
            return
        again = partial(self._seek_caller, partition, entry, request, reply)
        done = partial(_note_taken, partition, request.invocation)
        fact = CallCompleted(reply.index, reply.outcome)
        self._end(invocation, fact, [operations.settle_entry(entry)], done, again)

    def fire(self, partition: Partition, invocation: Invocation) -> None:
        """Take note that the time of an invocation in memory has come, if that is what it waits for."""
        if invocation.standing is None or invocation.ended or not invocation.dues:
            return
        if invocation.hold is Hold.RETRYING or awaits_attempt(invocation):
            # Also while that is on its way to the store: what is written behind it would take its due time away.
            return
        lane = invocation.lane
        now_ms = partition.now_ms()
        left_ms = invocation.due_ms - now_ms
        if left_ms > 0 or not lane.loaded or lane.error is not None or lane.refused:
            self._timers.ask_in(partition, max(left_ms, 0))
            return
        due = sorted((due_ms, sort_key(place), place) for place, due_ms in invocation.dues.items() if due_ms <= now_ms)
        for _, _, place in due:
            self._fall_due(partition, invocation, place)
        if invocation.dues:
            self._timers.ask_in(partition, max(invocation.due_ms - now_ms, 0))

    def _fall_due(self, partition: Partition, invocation: Invocation, place: Place) -> None:
        forget_due(invocation, place)
        more = [entry_of(partition, invocation)]
        wait = None if invocation.standing is None else invocation.standing.wait_at(place)
        ask_again = partial(self._timers.sweep, partition)
        match wait:
            case TimerSet():
                self._end(invocation, TimerFired(place), more, _nothing, ask_again)
            case WaitStarted():
                self._end(invocation, WaitExpired(place), more, _nothing, ask_again)
                self._expire_others(partition, invocation, wait)
            case _:
                invocation.lane.commit(more)
                if invocation.conductor is not None:
                    invocation.conductor.is_due(place)

    def _expire_others(self, partition: Partition, invocation: Invocation, expired: WaitStarted) -> None:
        """End the waits of other branches for an awakeable whose time has passed: nothing can complete it any more."""
        standing = invocation.standing
        for wait in () if standing is None or expired.awakeable is None else standing.waits:
            if isinstance(wait, WaitStarted) and wait.awakeable == expired.awakeable:
                self.expire(partition, invocation, wait.index)

    def expire(self, partition: Partition, invocation: Invocation, place: Place) -> None:
        """End a wait for what nothing can complete any more."""
        more = [entry_of(partition, invocation)] if forget_due(invocation, place) else []
        self._end(invocation, WaitExpired(place), more, _nothing, _nothing)

    def complete(
        self,
        invocation: Invocation,
        fact: WaitCompleted,
        more: list[Operation],
        done: Callable[[], None],
        again: Callable[[], None],
    ) -> None:
        """End a wait for a signal or a completion with what has come; no due time of it is left."""
        standing = invocation.standing
        assert standing is not None
        wait = standing.wait_at(fact.index)
        if wait is not None and delay_of(wait) is not None:
            # It may be on its way yet, in which case it is not among the moments, but the store will have it.
            forget_due(invocation, fact.index)
            if invocation.hold is not Hold.RETRYING and not awaits_attempt(invocation):
                more = [*more, entry_of(invocation.lane.partition, invocation)]
        self._end(invocation, fact, more, done, again)

    def _end(
        self,
        invocation: Invocation,
        fact: EndOfWait | CancelDelivered,
        more: list[Operation],
        done: Callable[[], None],
        again: Callable[[], None],
    ) -> None:
        """Record the end of a wait, and let the handler go on once it is durable.

        Args:
            invocation: The one that waits.
            fact: What ends its wait.
            more: What is written with it.
            done: Called once it is durable.
            again: Tries it once more, where the store has refused the lane's commits.
        """
        lane = invocation.lane
        assert invocation.standing is not None
        is_parked = invocation.standing.paused is not None
        was_aside = invocation.standing.is_aside
        record(invocation, fact)
        invocation.ending += 1
        if invocation.conductor is not None:
            invocation.conductor.goes_on()
        writes = [operations.record(lane.partition.space, invocation.raw_id, fact), *more]
        if was_aside and not is_parked:
            writes.extend(returning(lane, invocation))
        elif not is_parked:
            writes.append(operations.unpark(lane.key_text))
        lane.commit(writes, None, partial(_ended, invocation, fact, done, again))

    async def fail_lost_calls(self, store: Store, partition: Partition, target: PartitionSpace) -> None:
        """Tell the callers in memory whose call to a partition is nowhere that it was lost.

        Raises:
            StoreUnavailable: The store is away; some may not have been told.
        """
        waiting = [(each, call) for each in list(partition.open.values()) for call in _open_calls(each, target)]
        if not waiting:
            return
        still_here = await read_messages(store, partition.space.outbox(target.name))
        for invocation, call in waiting:
            if any(call.invocation in message for message in still_here):
                continue
            is_lost = await leaves_no_trace(store, target, call.invocation)
            if is_lost and _awaits_reply(invocation, call.index) and partition.phase is Phase.OPEN:
                self._lose_call(invocation, call)

    async def fail_if_lost(self, store: Store, partition: Partition, raw_id: bytes) -> bool:
        """Tell a caller in memory that its call was lost, if nothing is left of it; returns whether it was.

        Raises:
            StoreUnavailable: The store is away.
        """
        invocation = partition.open.get(raw_id)
        if invocation is None:
            return False
        was_lost = False
        for call in _durable_calls(invocation):
            target = store.space(call.type_name, call.partition)
            is_lost = await traceless(store, partition.space, target, [call.invocation])
            if is_lost and _awaits_reply(invocation, call.index) and partition.phase is Phase.OPEN:
                self._lose_call(invocation, call)
                was_lost = True
        return was_lost

    def _lose_call(self, invocation: Invocation, call: CallStarted) -> None:
        callee = format_id(call.type_name, call.partition, call.invocation)
        error = MessageLost(invocation_id=callee)
        outcome = encode_outcome(refused(error))
        logger.error("%s: its call %s was lost", invocation.lane.partition.invocation_id(invocation.raw_id), callee)
        self._end(invocation, CallCompleted(call.index, outcome), [], _nothing, _nothing)


def let_go(invocation: Invocation) -> None:
    """Let a handler leave memory that has waited there for long enough."""
    standing = invocation.standing
    future = invocation.lane.partition.sleepers.get(invocation.raw_id)
    if future is None or future.done() or standing is None or standing.waiting is None:
        # The end of its wait is on its way to the store.
        return
    invocation.hold = Hold.WAITING
    future.set_exception(Suspended())


def _end_of(invocation: Invocation, index: Place) -> EndOfWait | CancelDelivered | None:
    """Return the durable record that ends a wait, if there is one."""
    for each in reversed(invocation.records):
        if isinstance(each, EndOfWait | CancelDelivered):
            return each if each.index == index else None
    return None


def _answers(request: Request, reply: Reply, call: CallStarted) -> bool:
    """Return whether a reply is that to a call, and not to one that was made at its place in an earlier run."""
    if call.is_attached:
        return reply.attached == call.invocation
    return request.invocation == reply_id(call.invocation)


def _awaits_reply(invocation: Invocation, index: Place) -> bool:
    return _awaited(invocation, index) is not None


def _awaited(invocation: Invocation, index: Place) -> CallStarted | None:
    """Return the call at a place whose reply an invocation waits for, if it does."""
    standing = invocation.standing
    wait = None if standing is None or invocation.ended else standing.wait_at(index)
    return wait if isinstance(wait, CallStarted) else None


def _open_calls(invocation: Invocation, target: PartitionSpace) -> list[CallStarted]:
    """Return the calls to a partition that an invocation waits for, once they are durable."""
    wanted = (target.type_name, target.number)
    return [call for call in _durable_calls(invocation) if (call.type_name, call.partition) == wanted]


def _durable_calls(invocation: Invocation) -> list[CallStarted]:
    waits = () if invocation.standing is None else invocation.standing.waits
    return [wait for wait in waits if isinstance(wait, CallStarted) and wait in invocation.records]


def _ended(
    invocation: Invocation,
    fact: EndOfWait | CancelDelivered,
    done: Callable[[], None],
    again: Callable[[], None],
    now_ms: int,
    error: BaseException | None,
) -> None:
    del now_ms
    partition = invocation.lane.partition
    future = partition.sleepers.get(invocation.raw_id)
    is_resident = future is not None and not future.done()
    invocation.ending -= 1
    if isinstance(error, Fenced | OwnershipLost):
        return
    if error is not None:
        # Its lane is read anew, and waits again.
        if future is not None and is_resident:
            future.set_exception(Suspended())
        if invocation.conductor is not None:
            invocation.conductor.refused()
        partition.recall_again.append(again)
        return
    invocation.records.append(fact)
    done()
    if future is not None and is_resident and has_to_stop(invocation.lane, invocation):
        # It goes on from its journal when the pause is over.
        future.set_exception(Suspended())
        is_resident = False
    if invocation.conductor is not None:
        invocation.conductor.poke()
    if invocation.hold is Hold.WAITING:
        invocation.hold = None
    if future is not None and is_resident:
        future.set_result(None)
    else:
        partition.host.ready(invocation.lane)


def _note_taken(partition: Partition, raw_id: bytes) -> None:
    partition.serving.discard(raw_id)
    partition.remember(raw_id)


def _nothing() -> None:
    pass
