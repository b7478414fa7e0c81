"""Changes of effects, each in one commit with the ends of the waits for it.

An invocation that waits for an effect may be in memory or parked; one that has ended, or was begun again, waits no
longer. Where several wait, the first gets the outcome in the commit that records it, and each other in one of its own:
until then it stands with the effect, which is due, so that whoever owns the partition then goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import anyio

from ..journal import operations
from ..journal.command_records import EffectStarted, WaitCompleted
from ..journal.effects import EffectEntry, EffectState
from .at_hand import written
from .cancel_delivery import cascade, is_due
from .effect_facts import Change, agenda_of, early_outcome, events_of, item_of, queue_of, release_of, with_life
from .invocation import Hold

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from ..journal.effects import Waiter
    from .agenda import Agenda
    from .at_hand import AtHand
    from .docket import Docket
    from .invocation import Invocation
    from .lane import Lane
    from .partition import Partition
    from .waits import Waits

#: Says what is to change, by where an effect stands and the partition's time; None where nothing is any more.
Decide: TypeAlias = Callable[[EffectEntry, int], Change | None]

#: How long a parked invocation is looked for; then it is looked at once more whether the partition is ours.
FOUND_WITHIN_SECONDS: Final = 10.0
#: The states of which those are told who want to hear of an unknown outcome.
TOLD_AS_UNKNOWN: Final = frozenset({EffectState.UNKNOWN, EffectState.UNRESOLVED})


class _Waiting(NamedTuple):
    """Somebody who waits for an effect, and is in memory."""

    waiter: Waiter
    invocation: Invocation


class EffectChanges:
    """Writes the changes of effects for one worker.

    Args:
        at_hand: Brings objects into memory.
        waits: Ends waits.
        agenda: Asked for what becomes due.
    """

    def __init__(self, at_hand: AtHand, waits: Waits, agenda: Agenda) -> None:
        self._at_hand = at_hand
        self._waits = waits
        self._agenda = agenda

    async def change(
        self,
        partition: Partition,
        key_text: str,
        operation: str,
        decide: Decide,
        more: Callable[[], list[Operation]] | None = None,
    ) -> EffectEntry | None:
        """Change an effect, and have those go on who wait for that; return where it stands then.

        Args:
            partition: The partition.
            key_text: The object.
            operation: The operation id.
            decide: Says what changes; called again where the store has refused it.
            more: Returns what is written in the same commit.

        Returns:
            None where nothing was changed: it is known otherwise by now, or the partition is lost.
        """
        sought: set[bytes] = set()
        while (found := await self._at_hand.bring(partition, key_text)) is not None:
            lane, docket = found
            entry = docket.effects.get(operation)
            if entry is None:
                return None
            missing = next((each for each in _ids(entry) if each not in sought and each not in partition.open), None)
            if missing is not None and decide(entry, partition.now_ms()) is None:
                return None
            write = partial(self._write, lane, operation, decide, more, sought)
            changed = write() if missing is None else await self._when_found(lane, missing, sought, write)
            if changed is None and missing is None:
                return None
            if changed is not None and await written(lane):
                if _only_told(changed, 0) is not None and decide is not _only_told:
                    await self.tell_others(partition, key_text, operation)
                return changed
        return None

    async def tell_others(self, partition: Partition, key_text: str, operation: str) -> None:
        """Give what is known of an effect to those who wait for that still."""
        while await self.change(partition, key_text, operation, _only_told) is not None:
            continue

    async def is_wanted(self, lane: Lane, entry: EffectEntry) -> bool:
        """Return whether anybody wants an effect of which nothing was done.

        Those who waited and do so no longer have ended otherwise, and who waits to undo it wants it not; who has taken
        an unknown outcome, or has gone on with something else, still wants it.
        """
        if not entry.waiters:
            return True
        partition, is_waiting = lane.partition, False
        for each in entry.waiters:
            invocation = partition.open.get(each.invocation)
            if invocation is None:
                is_waiting = await self._is_parked(lane, each, entry.operation)
            else:
                is_waiting = _wants(invocation, each, entry.operation)
            if is_waiting:
                return True
        return False

    @staticmethod
    async def _is_parked(lane: Lane, waiter: Waiter, operation: str) -> bool:
        """Return whether somebody waits for an effect who is parked beside the lane."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def found() -> None:
            invocation = lane.partition.open.get(waiter.invocation)
            if not future.done():
                future.set_result(invocation is not None and _wants(invocation, waiter, operation))

        lane.partition.host.find_parked(lane, waiter.invocation, found)
        with anyio.move_on_after(FOUND_WITHIN_SECONDS):
            return await future
        future.cancel()
        return True

    async def _when_found(
        self, lane: Lane, missing: bytes, sought: set[bytes], write: Callable[[], EffectEntry | None]
    ) -> EffectEntry | None:
        """Do something while an invocation is in memory that is parked beside its lane; it may have ended as well."""
        future: asyncio.Future[EffectEntry | None] = asyncio.get_running_loop().create_future()
        sought.add(missing)

        def found() -> None:
            if not future.done():
                is_current = lane.loaded and lane.docket is not None and lane.error is None and not lane.refused
                future.set_result(write() if is_current else None)

        lane.partition.host.find_parked(lane, missing, found)
        with anyio.move_on_after(FOUND_WITHIN_SECONDS):
            return await future
        future.cancel()
        return None

    def _write(
        self,
        lane: Lane,
        operation: str,
        decide: Decide,
        more: Callable[[], list[Operation]] | None,
        sought: Collection[bytes],
    ) -> EffectEntry | None:
        """Queue the commit; all that it is about is in memory."""
        partition, docket = lane.partition, lane.docket
        assert docket is not None
        entry, now_ms = docket.effects.get(operation), partition.now_ms()
        change = None if entry is None else decide(entry, now_ms)
        if entry is None or change is None:
            return None
        waiting, unseen = _those_who_wait(partition, entry, sought)
        if change.forgets and len(waiting) > 1:
            # Each is told in a commit of its own, and it is forgotten with the last.
            change = Change(entry, (), given=change.given)
        first, value = _first_told(change, waiting)
        is_only_telling = change.entry is entry and not change.happened
        if is_only_telling and first is None and not entry.is_settled:
            # Those who stand with it wait no longer.
            return None
        left = _still_to_tell(change, waiting, unseen, None if value is None else first)
        writes = [] if more is None else more()
        writes.extend(self.writes(lane, docket, entry, change, now_ms, left))
        writes.extend(_woken_to_be_told(lane, change, waiting))
        if first is None:
            lane.commit(writes)
        else:
            self._tell(lane, first, change, value, writes)
        return docket.effects.get(operation, change.entry)

    def writes(
        self, lane: Lane, docket: Docket, before: EffectEntry | None, change: Change, now_ms: int,
        waiters: tuple[Waiter, ...] | None = None,
    ) -> list[Operation]:  # fmt: skip
        """Return what writes a change; the docket has it from here on.

        Args:
            lane: The lane of the object.
            docket: Its docket.
            before: Where the effect stood; None for one that begins.
            change: The change.
            now_ms: The partition's time.
            waiters: Who stands with the effect afterwards; None leaves those of the change.
        """
        partition, key_text = lane.partition, lane.key_text
        partition.meters.effect_changed(partition, key_text, before, change)
        if change.forgets:
            item = item_of(key_text, change.entry.operation)
            return [
                docket.forget_effect(change.entry.operation),
                operations.take_off_agenda(partition.space, item),
                *events_of(partition, key_text, change),
                *self._released(lane, change.entry),
                *self._next_blocked(lane, docket, change.entry, now_ms),
            ]
        entry = with_life(change, waiters)
        writes = [
            docket.write_effect(entry),
            *events_of(partition, key_text, change),
            *agenda_of(partition, key_text, entry, now_ms),
            *queue_of(partition.space, key_text, before, entry, now_ms),
        ]
        if entry.is_settled and before is not None and not before.is_settled:
            writes.extend(self._next_blocked(lane, docket, entry, now_ms))
        if entry.next_ms and entry.state is not EffectState.INTENDED:
            self._agenda.ask_after(lane, max(entry.next_ms - now_ms, 0))
        return writes

    def _released(self, lane: Lane, entry: EffectEntry) -> list[Operation]:
        """Return what lets go of the operation id of an effect of which nothing was sent."""
        released = release_of(lane.partition, lane.key_text, entry, was_sent=False)
        if released:
            self._agenda.ask_after(lane, 0)
        return released

    def _next_blocked(self, lane: Lane, docket: Docket, settled: EffectEntry, now_ms: int) -> list[Operation]:
        """Return what has the next effect begin that has waited for one to be settled."""
        blocked = [
            each
            for each in docket.unsettled.values()
            if each.state is EffectState.BLOCKED and each.receiver == settled.receiver
        ]
        if not blocked:
            return []
        first = min(blocked, key=lambda each: (each.since_ms, each.operation))
        self._agenda.ask_after(lane, 0)
        item = item_of(lane.key_text, first.operation)
        return [
            docket.write_effect(first.but(next_ms=now_ms)),
            operations.put_on_agenda(lane.partition.space, item, 0),
        ]

    def _tell(
        self, lane: Lane, waiting: _Waiting, change: Change, value: bytes | None, writes: list[Operation]
    ) -> None:
        """End a wait in the commit of a change: with the outcome, or because its handler is told of a cancel."""
        waiter, invocation = waiting
        if value is not None:
            fact = WaitCompleted(waiter.place, change.entry.digest, value, change.entry.by)
            self._waits.complete(invocation, fact, writes, _nothing, _nothing)
            return
        self._waits.tell_of_cancel(invocation, waiter.place, [*writes, *cascade(lane, invocation)])


def _only_told(entry: EffectEntry, now_ms: int) -> Change | None:
    """Return what gives to those who wait what is known already, None where nobody is to be told."""
    del now_ms
    if entry.is_settled:
        return Change(entry, (), given=entry.outcome) if entry.waiters else None
    wants_it = entry.state in TOLD_AS_UNKNOWN and any(each.takes_unknown for each in entry.waiters)
    return Change(entry, (), given_early=early_outcome(entry)) if wants_it else None


def _still_to_tell(
    change: Change, waiting: list[_Waiting], unseen: list[Waiter], told: _Waiting | None
) -> tuple[Waiter, ...]:
    """Return who stands with an effect after a change.

    Who waits no longer stands there until it is settled, to show that nobody wants it any more.
    """
    entry = change.entry
    kept = (*(each.waiter for each in waiting), *unseen) if entry.is_settled else entry.waiters
    return tuple(each for each in kept if told is None or each != told.waiter)


def _ids(entry: EffectEntry) -> list[bytes]:
    return [each.invocation for each in entry.waiters]


def _those_who_wait(
    partition: Partition, entry: EffectEntry, sought: Collection[bytes]
) -> tuple[list[_Waiting], list[Waiter]]:
    """Return those who wait for an effect and are in memory, and those of whom that is not known yet."""
    waiting: list[_Waiting] = []
    unseen: list[Waiter] = []
    for each in entry.waiters:
        invocation = partition.open.get(each.invocation)
        if invocation is not None and waits(invocation, each, entry.operation):
            waiting.append(_Waiting(each, invocation))
        elif invocation is None and each.invocation not in sought:
            unseen.append(each)
    return waiting, unseen


def waits(invocation: Invocation, waiter: Waiter, operation: str) -> bool:
    """Return whether an invocation waits at a place for an effect."""
    standing = invocation.standing
    wait = None if standing is None or invocation.ended else standing.wait_at(waiter.place)
    return isinstance(wait, EffectStarted) and wait.operation == operation


def _wants(invocation: Invocation, waiter: Waiter, operation: str) -> bool:
    """Return whether an invocation waits at a place for an effect, and not only to undo it."""
    standing = invocation.standing
    wait = None if standing is None else standing.wait_at(waiter.place)
    return waits(invocation, waiter, operation) and not (isinstance(wait, EffectStarted) and wait.settles)


def _first_told(change: Change, waiting: list[_Waiting]) -> tuple[_Waiting | None, bytes | None]:
    """Return whose wait ends with a change, and with what; one that is told of its cancel instead gets nothing."""
    if change.given is not None:
        return (waiting[0], change.given) if waiting else (None, None)
    for each in waiting:
        if change.given_early is not None and each.waiter.takes_unknown:
            return each, change.given_early
    if change.entry.state is EffectState.INTENDED:
        return None, None
    return next((each for each in waiting if _may_be_told(each)), None), None


def _may_be_told(waiting: _Waiting) -> bool:
    """Return whether a handler waits here in its main branch and is to be told that it is cancelled."""
    waiter, invocation = waiting
    standing = invocation.standing
    is_main = standing is not None and waiter.place == standing.steps and invocation.conductor is None
    return is_main and not invocation.is_branched and is_due(invocation)


def _woken_to_be_told(lane: Lane, change: Change, waiting: list[_Waiting]) -> list[Operation]:
    """Return what has a handler with branches run again, also by another owner, that is to be told of its cancel."""
    writes: list[Operation] = []
    if change.entry.state is EffectState.INTENDED:
        return writes
    for _, invocation in waiting:
        if is_due(invocation) and (invocation.conductor is not None or invocation.is_branched):
            writes.append(operations.unpark(lane.key_text))
            if invocation.conductor is not None:
                invocation.conductor.goes_on()
                invocation.conductor.poke()
            elif invocation.hold is Hold.WAITING:
                lane.partition.release_hold(lane, invocation)
    return writes


def _nothing() -> None:
    pass
