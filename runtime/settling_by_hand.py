"""What people do about effects whose outcome is unknown; each act is one commit with what tells them so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from ..journal.effects import EffectEntry, EffectState
from ..journal.ledger import EventKind, Happened
from .effect_calls import Work
from .effect_facts import Change, intent
from .effect_plans import in_question, settled

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from ..journal.outcomes import Outcome
    from .lane import Lane
    from .settling import Settling

#: Returns what is written in the same commit, such as the answer to whoever has asked for it.
More: TypeAlias = Callable[[], "list[Operation]"]
#: In which people do anything about an effect.
OPEN_TO_PEOPLE = frozenset({EffectState.UNKNOWN, EffectState.UNRESOLVED})


class SettlingByHand:
    """Acts of people on one worker. What the contract allows is for the caller to decide, in the same turn.

    Each act returns where the effect stands once it is durable, and None where nothing was done: the effect is not
    unknown any more, or something is under way with it.

    Args:
        settling: Has effects made and settled.
        send_within_seconds: How soon after its intent a call has to begin.
    """

    def __init__(self, settling: Settling, send_within_seconds: float) -> None:
        self._settling = settling
        self._send_within_ms = int(send_within_seconds * 1000)

    def is_under_way(self, lane: Lane, operation: str) -> bool:
        """Return whether a call or a look-up of an effect is under way, or about to be."""
        return self._settling.calls.has(lane.partition, lane.key_text, operation)

    async def settle(
        self, lane: Lane, entry: EffectEntry, outcome: Outcome, kind: EventKind, *, by: str, detail: str,
        more: More | None = None,
    ) -> EffectEntry | None:  # fmt: skip
        """Give an effect the outcome that somebody knows of.

        Args:
            lane: The lane of its object.
            entry: Where it stands.
            outcome: `Succeeded` with the packed receipt; for what was not done, `Rejected` with an `EffectRejected`.
            kind: `MARKED_SUCCEEDED` or `MARKED_NOT_DONE`.
            by: Who says so.
            detail: Why; for what was not done, the evidence.
            more: What is written in the same commit.
        """

        def decide(found: EffectEntry, now_ms: int) -> Change | None:
            return settled(found, outcome, now_ms, kind, detail=detail, by=by) if _is_same(found, entry) else None

        return await self._change(lane, entry, decide, more)

    async def hand_over(
        self, lane: Lane, entry: EffectEntry, whom: str, *, by: str, detail: str, within_ms: int | None = None,
        more: More | None = None,
    ) -> EffectEntry | None:  # fmt: skip
        """Have somebody else settle an effect, who has the time that is left, or a time of their own."""

        def decide(found: EffectEntry, now_ms: int) -> Change | None:
            if not _is_same(found, entry):
                return None
            event = Happened(now_ms, EventKind.HANDED_OVER, found.attempt, f"to {whom}: {detail}", by)
            after = found.but(assigned=whom)
            if within_ms is None:
                return Change(after, (event,))
            after = after.but(reconcile_by_ms=now_ms + within_ms, is_overdue=False)
            if found.state is not EffectState.UNRESOLVED:
                # It has its next look-up to come; should it lie with people after that, this is the time they have.
                return Change(after, (event,))
            return in_question(lane.partition, after, (event,), now_ms)

        return await self._change(lane, entry, decide, more)

    async def look_up_now(
        self, lane: Lane, entry: EffectEntry, *, by: str, detail: str, more: More | None = None
    ) -> EffectEntry | None:
        """Ask the receiver at once, and return where the effect stands then."""
        partition, key_text = lane.partition, lane.key_text
        if not self._settling.calls.hold(partition, key_text, entry.operation):
            return None
        answered: asyncio.Future[EffectEntry | None] = asyncio.get_running_loop().create_future()

        async def ask(work: Work) -> None:
            found = None
            try:
                found = await self._settling.ask(entry, work, by=by, reason=detail, more=more)
            finally:
                if not answered.done():
                    answered.set_result(found)

        self._settling.calls.give(Work(partition, key_text, entry.operation, ask))
        return await answered

    async def resend_now(
        self, lane: Lane, entry: EffectEntry, *, by: str, detail: str, more: More | None = None
    ) -> EffectEntry | None:
        """Send the same operation id once more, and return once the intent of that is durable."""
        partition, key_text, operation = lane.partition, lane.key_text, entry.operation
        settling = self._settling
        if not settling.calls.hold(partition, key_text, operation):
            return None

        def decide(found: EffectEntry, now_ms: int) -> Change | None:
            is_same = _is_same(found, entry)
            return intent(found, now_ms, self._send_within_ms, EventKind.RESENT, detail, by) if is_same else None

        intended: EffectEntry | None = None
        try:
            intended = await self._change(lane, entry, decide, more)
        finally:
            if intended is None:
                settling.calls.let_go(partition, key_text, operation)
        if intended is not None:
            partition.calling += 1
            do = partial(settling.call_given, intended.attempt)
            settling.calls.give(Work(partition, key_text, operation, do))
        return intended

    async def _change(
        self, lane: Lane, entry: EffectEntry, decide: Callable[[EffectEntry, int], Change | None], more: More | None
    ) -> EffectEntry | None:
        changes = self._settling.changes
        return await changes.change(lane.partition, lane.key_text, entry.operation, decide, more)


def _is_same(found: EffectEntry, entry: EffectEntry) -> bool:
    """Return whether an effect is in question as it was when somebody looked at it."""
    return found.state in OPEN_TO_PEOPLE and found.attempt == entry.attempt
