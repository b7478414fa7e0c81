"""Has effects made and settled: what a call has come to is recorded, and what stays unknown is looked into.

    intended ── the call's answer ──> succeeded · rejected · not sent · unknown
    not sent ── after a pause ──> intended, the next attempt
    unknown  ── by the receiver's contract ──> asked again and again · sent again · attempted anew · put before people

What is to be done next stands with each effect and on the agenda of its partition; so it is done by whoever owns that
partition then. An intent that an owner finds there and has not written itself is that of one that is gone.
"""

from __future__ import annotations

import asyncio
import logging
import random
from functools import partial
from typing import TYPE_CHECKING, Final

from ..journal import operations
from ..journal.agenda import AgendaKind
from ..journal.effects import EffectEntry, EffectState
from ..journal.ledger import EventKind
from ..objects.recovery import AskPeople, AttemptAnew, LookUp, Resend, pause_ms
from .effect_calls import Answer, EffectCalls, Unsent, Work
from .effect_facts import DAY_MS, agenda_of, effect_of, id_for_receiver, release_of
from .effect_plans import asked_next, called, found_out, found_overdue, in_lost_records, is_old, orphaned, planned
from .partition import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..journal.agenda import AgendaItem
    from ..objects.settings import Settings
    from .agenda import Agenda
    from .at_hand import AtHand
    from .effect_attempts import EffectAttempts
    from .effect_changes import EffectChanges
    from .effect_facts import Change
    from .lane import Lane
    from .partition import Partition
    from .settling_by_hand import More

logger = logging.getLogger("keylane.effects")

GONE: Final = "the worker that was to call has gone, and nobody knows whether it did"
NOT_OURS: Final = "the partition is about to be handed over"
NO_LEASE: Final = "the lease of the partition has run out"
TOO_LATE: Final = "its turn came too late after its intent"
NO_SUCH_EFFECT: Final = "this code has no such effect"


class Settling:
    """The effects of one worker's partitions, from the intent to the outcome.

    Args:
        settings: The effective settings.
        calls: Makes calls and look-ups.
        changes: Writes what becomes of effects.
        at_hand: Brings objects into memory.
        agenda: Says what is due.
    """

    def __init__(
        self, settings: Settings, calls: EffectCalls, changes: EffectChanges, at_hand: AtHand, agenda: Agenda
    ) -> None:
        self.calls = calls
        self.changes = changes
        self._at_hand = at_hand
        self._agenda = agenda
        self._retry = settings.retry
        self._send_within_ms = int(settings.send_within_seconds * 1000)
        self._random = random.Random()  # noqa: S311, it spreads retries
        #: Makes further attempts.
        self.attempts: EffectAttempts
        agenda.on_due[AgendaKind.EFFECT] = self._due
        agenda.on_due[AgendaKind.OLD_EFFECT] = self._forget
        agenda.busy = calls.count
        agenda.is_busy = _is_busy(calls)

    def begin(self, lane: Lane, operation: str, attempt: int) -> None:
        """Have an effect called as soon as its intent is durable, which is queued just now."""
        partition = lane.partition
        self.calls.hold(partition, lane.key_text, operation)
        partition.calling += 1
        gate = lane.gate()
        assert gate is not None
        gate.add_done_callback(partial(self._is_durable, partition, lane.key_text, operation, attempt))

    def _is_durable(
        self, partition: Partition, key_text: str, operation: str, attempt: int, gate: asyncio.Future[None]
    ) -> None:
        if gate.cancelled() or gate.exception() is not None:
            partition.calling -= 1
            self.calls.let_go(partition, key_text, operation)
            return
        self.calls.give(Work(partition, key_text, operation, partial(self.call_given, attempt)))

    async def call_given(self, attempt: int, work: Work) -> None:
        """Call an effect that counts among those that are called; it does not any more afterwards."""
        try:
            await self.call(work.partition, work.key_text, work.operation, attempt)
        finally:
            work.partition.calling -= 1

    async def call(self, partition: Partition, key_text: str, operation: str, attempt: int) -> None:
        """Call an effect whose intent is durable, and record what that has come to."""
        found = await self._at_hand.bring(partition, key_text)
        entry = None if found is None else found[1].effects.get(operation)
        if entry is None or not _is_of(entry, attempt):
            return
        effect = effect_of(partition, entry)
        if effect is None:
            answer = Unsent(NO_SUCH_EFFECT)
        else:
            seen_id = id_for_receiver(partition, key_text, effect, operation)
            may_send = partial(why_not, partition, entry.send_before_ms)
            with partition.spans.effect(partition, key_text, entry, "effect") as span:
                answer = await self.calls.call(effect, seen_id, entry.params, may_send)
                partition.spans.came_to(span, answer)
        decide = partial(called, partition, attempt, answer, self._pause_ms(partition, attempt, answer))
        if await self.changes.change(partition, key_text, operation, decide) is None and partition.phase is Phase.LOST:
            # Whoever owns it now finds that out of the receiver, or has to ask people.
            logger.warning("%s %s: the answer of %s came too late: %s", partition.space, key_text, operation, answer)

    def _pause_ms(self, partition: Partition, attempt: int, answer: Answer) -> int:
        """Return the pause before another attempt: none where another owner is about to make it."""
        if not isinstance(answer, Unsent) or partition.phase is not Phase.OPEN:
            return 0
        tried = min(attempt, self._retry.attempts)
        pause = self._retry.delay(tried, self._random.random, retry_after=answer.retry_after)
        # A receiver that can't be reached for long is not asked every few seconds for ever.
        least_ms = 1 if attempt <= tried else pause_ms(attempt - tried)
        return max(int(pause.total_seconds() * 1000), least_ms)

    async def _due(self, lane: Lane, item: AgendaItem) -> None:
        """Do what is due about an effect."""
        partition, docket, operation = lane.partition, lane.docket, item.name
        assert docket is not None
        entry = docket.effects.get(operation)
        if entry is None:
            lane.commit([operations.take_off_agenda(partition.space, item)])
        elif self.calls.has(partition, lane.key_text, operation) or partition.phase is not Phase.OPEN:
            # An owner that comes finds it due.
            return
        elif entry.next_ms > partition.now_ms() or (entry.is_settled and not entry.waiters):
            # It was put off a moment ago; unless the index is wrong.
            if lane.is_settled:
                lane.commit(agenda_of(partition, lane.key_text, entry, partition.now_ms()))
        else:
            await self._do(partition, lane.key_text, entry)

    async def _do(self, partition: Partition, key_text: str, entry: EffectEntry) -> None:
        operation = entry.operation
        match entry.state:
            case EffectState.INTENDED:
                decide = partial(orphaned, partition, entry.attempt, GONE)
                await self.changes.change(partition, key_text, operation, decide)
            case EffectState.NOT_SENT | EffectState.BLOCKED if partition.in_doubt(entry.first_ms):
                await self.changes.change(partition, key_text, operation, partial(self._may_be_sent, partition))
            case EffectState.NOT_SENT | EffectState.BLOCKED:
                self.attempts.give(partition, key_text, entry, EventKind.INTENDED)
            case EffectState.UNKNOWN | EffectState.UNRESOLVED:
                await self._look_into(partition, key_text, entry)
            case _:
                await self.changes.tell_others(partition, key_text, operation)

    def _may_be_sent(self, partition: Partition, entry: EffectEntry, now_ms: int) -> Change | None:
        if entry.state not in (EffectState.NOT_SENT, EffectState.BLOCKED):
            return None
        return in_lost_records(partition, entry, self._send_within_ms, now_ms)

    async def _look_into(self, partition: Partition, key_text: str, entry: EffectEntry) -> None:
        """Go on with an effect whose outcome is unknown, as its contract says."""
        if entry.state is EffectState.UNRESOLVED:
            await self.changes.change(partition, key_text, entry.operation, partial(found_overdue, partition))
        else:
            await self.changes.tell_others(partition, key_text, entry.operation)
        now_ms = partition.now_ms()
        match asked_next(partition, entry, now_ms):
            case LookUp(at_ms) if at_ms <= now_ms:
                self.look_up(partition, key_text, entry)
            case AskPeople(look_again_ms=int() as at_ms) if at_ms <= now_ms and (entry.state is EffectState.UNRESOLVED):
                self.look_up(partition, key_text, entry)
            case Resend(at_ms) if at_ms <= now_ms:
                self.attempts.give(partition, key_text, entry, EventKind.RESENT)
            case AttemptAnew(at_ms) if at_ms <= now_ms:
                self.attempts.give(partition, key_text, entry, EventKind.INTENDED)
            case _:
                await self.changes.change(partition, key_text, entry.operation, partial(planned, partition))

    def look_up(self, partition: Partition, key_text: str, entry: EffectEntry) -> None:
        """Have the receiver asked what became of an effect, unless something is under way with it."""
        if self.calls.hold(partition, key_text, entry.operation):
            work = Work(partition, key_text, entry.operation, partial(self._look_up, entry))
            self.calls.give(work)

    async def _look_up(self, entry: EffectEntry, work: Work) -> None:
        await self.ask(entry, work)

    async def ask(
        self, entry: EffectEntry, work: Work, *, by: str = "", reason: str = "", more: More | None = None
    ) -> EffectEntry | None:
        """Ask the receiver what became of an effect, and record what it said.

        Args:
            entry: Where the effect stood when this was asked for.
            work: What is done.
            by: Who asks; empty for the runtime itself.
            reason: Why they do.
            more: What is written in the same commit.

        Returns:
            Where it stands then, None where that is known otherwise by now.
        """
        partition = work.partition
        effect = effect_of(partition, entry)
        if effect is None or partition.phase is not Phase.OPEN:
            return None
        seen_id = id_for_receiver(partition, work.key_text, effect, work.operation)
        # An answer says what was so when it was asked, and no later.
        asked_ms = partition.now_ms()
        with partition.spans.effect(partition, work.key_text, entry, "look-up") as span:
            answer = await self.calls.look_up(effect, seen_id, entry.params)
            partition.spans.came_to(span, answer)
        decide = partial(found_out, partition, entry.attempt, answer, asked_ms, by=by, reason=reason)
        return await self.changes.change(partition, work.key_text, work.operation, decide, more)

    async def _forget(self, lane: Lane, item: AgendaItem) -> None:
        """Forget an effect that was settled long enough ago."""
        partition, docket = lane.partition, lane.docket
        assert docket is not None
        entry = docket.effects.get(item.name)
        writes = [operations.take_off_agenda(partition.space, item)]
        if entry is not None and is_old(partition, entry):
            writes.append(docket.forget_effect(item.name))
            released = release_of(partition, lane.key_text, entry, was_sent=True)
            writes.extend(released)
            if released:
                self._agenda.ask_after(lane, 0)
            ledger_ms = partition.settings.ledger_retention_days * DAY_MS
            writes.append(operations.trim_ledger(partition.space, ledger_ms))
            writes.append(operations.trim_alerts(partition.space, ledger_ms))
        lane.commit(writes)


def _is_busy(calls: EffectCalls) -> Callable[[Partition, AgendaItem], bool]:
    def is_busy(partition: Partition, item: AgendaItem) -> bool:
        return item.kind is AgendaKind.EFFECT and calls.has(partition, item.key, item.name)

    return is_busy


def why_not(partition: Partition, send_before_ms: int) -> str | None:
    """Return why the first byte of a call must not leave any more, None where it may."""
    if partition.phase is not Phase.OPEN:
        return NOT_OURS
    if not partition.may_serve():
        return NO_LEASE
    if partition.now_ms() >= send_before_ms:
        return TOO_LATE
    return None


def _is_of(entry: EffectEntry, attempt: int) -> bool:
    return entry.state is EffectState.INTENDED and entry.attempt == attempt
