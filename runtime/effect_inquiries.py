"""What has become of an effect that is to be undone: waited for until it is known, and never asked for by that.

What the object has of it counts. An effect of which nothing was done so far, and that nobody else waits for, is
dropped; one in question is settled as its contract says, and this waits as long as that takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..journal import operations
from ..journal.command_records import EffectStarted, WaitCompleted, WaitWithdrawn
from ..journal.effects import EffectOutcome, EffectState, Unknown, Waiter, decode_effect_outcome
from ..journal.errors import EffectRejected
from ..journal.outcomes import Rejected, encode_outcome
from ..journal.place import format_place
from ..journal.undoing import begins_undoing
from .approvals import Approvals
from .commands import diverge
from .effect_facts import Change, accepted_at, kept_ms
from .effect_wishes import ended_by
from .failures import failure_of

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from ..journal.effects import EffectEntry
    from ..journal.records import Record
    from .context import ExclusiveContext
    from .docket import Docket
    from .effect_changes import EffectChanges
    from .effect_wishes import Wish
    from .invocation import Invocation
    from .lane import Lane

#: Those of which nothing was done, and nothing is about to be.
_NOTHING_SENT: Final = frozenset({EffectState.BLOCKED, EffectState.NOT_SENT})
NOT_ASKED: Final = "it was not asked for, so there is nothing to undo"
DROPPED: Final = "nothing was sent, and it is not wanted any more"


class EffectInquiries(Approvals):
    """Finds out for handlers that have ended what there is to undo."""

    changes: EffectChanges

    async def what_became(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, wish: Wish
    ) -> EffectOutcome | None:
        """Wait until it is known what became of an effect that a handler has asked for, unless that is recorded.

        Returns:
            None where nothing tells any more; nothing is recorded then.
        """
        found = ctx.next_recorded()
        if found is None:
            found = await self._begin_inquiry(ctx, lane, invocation, wish)
        elif isinstance(found, EffectStarted) and found.settles and wish.is_in(found):
            await self._pass_effect(ctx, lane, invocation, found)
        else:
            await diverge(ctx, lane, invocation, found, f"command {format_place(ctx.place)}, what became of {wish}")
        if found is None:
            return None
        ended = await self._ended(ctx, lane, invocation, found.index)
        assert isinstance(ended, WaitCompleted)
        return decode_effect_outcome(ended.value)

    async def _pass_effect(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, found: EffectStarted
    ) -> None:
        """Pass the record of an effect that the code has come to again, whose wait may go on."""
        ctx.take_index()
        ctx.pass_recorded()
        standing = invocation.standing
        if standing is not None and standing.wait_at(found.index) is not None:
            await self._go_on_with_effect(ctx, lane)

    async def _go_on_with_effect(self, ctx: ExclusiveContext, lane: Lane) -> None:
        """Note again that a lane waits whose handler was run again meanwhile."""
        await self.docket_of(ctx, lane)
        if ctx.conductor is None:
            self._stand_still(lane, [])

    async def _begin_inquiry(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, wish: Wish
    ) -> EffectStarted | None:
        """Record that it is waited for, with the outcome where that is known already."""
        await self._steps.may_begin(ctx, lane, invocation)
        docket = await self.docket_of(ctx, lane)
        ctx.check_current()
        entry = docket.effects.get(wish.operation)
        fact = EffectStarted(
            ctx.index, wish.operation, wish.effect.name, wish.effect.receiver.name, wish.digest, settles=True
        )
        if entry is None or not wish.is_of(entry) or not _asked(invocation, wish):
            value = _told_before(lane, invocation, wish)
            if value is None:
                return None
            more, end = [], ended_by(fact, value)
        elif entry.outcome is not None:
            more, end = [], ended_by(fact, entry.outcome, entry.by)
        else:
            more, end = self._attached(lane, docket, entry, Waiter(invocation.raw_id, fact.index)), None
        ctx.take_index()
        await self._write(ctx, lane, invocation, fact, more, end)
        return fact

    def _attached(self, lane: Lane, docket: Docket, entry: EffectEntry, waiter: Waiter) -> list[Operation]:
        """Return what has an invocation wait for an effect; where nothing was sent, what has that looked at at once."""
        name = (waiter.invocation, waiter.place)
        others = tuple(each for each in entry.waiters if (each.invocation, each.place) != name)
        waited_for = entry.but(waiters=(*others, waiter))
        still = operations.stand_still(lane.key_text)
        if entry.state not in _NOTHING_SENT:
            return [docket.write_effect(waited_for), still]
        now_ms = lane.partition.now_ms()
        change = Change(waited_for.but(next_ms=now_ms), ())
        return [*self.changes.writes(lane, docket, entry, change, now_ms), still]


def not_done(operation: str, reason: str) -> bytes:
    """Return the encoded outcome of an effect that was not done."""
    return encode_outcome(Rejected(failure_of(EffectRejected(operation, reason))))


def _asked(invocation: Invocation, wish: Wish) -> list[EffectStarted]:
    """Return the records with which a handler has asked for an effect; those of what undoes it are none."""
    records = invocation.records[: begins_undoing(invocation.records)]
    return [each for each in records if isinstance(each, EffectStarted) and wish.is_in(each)]


def _told_before(lane: Lane, invocation: Invocation, wish: Wish) -> bytes | None:
    """Return what became of an effect that its object does not have, None where nobody can know.

    Only one is dropped that is waited for by nobody but those who have ended otherwise: not one whose wait has ended
    with that nobody knew, or was withdrawn. What was settled is known for so long that only a handler which was
    accepted before that can have asked for it.
    """
    asked = _asked(invocation, wish)
    if not asked:
        return not_done(wish.operation, NOT_ASKED)
    match next((each for each in invocation.records if _ends(each, asked[-1])), None):
        case WaitCompleted(value=value):
            return None if isinstance(decode_effect_outcome(value), Unknown) else value
        case WaitWithdrawn():
            return None
        case _:
            now_ms = lane.partition.now_ms()
            is_old = now_ms - accepted_at(invocation, now_ms) >= kept_ms(lane.partition, wish.effect)
            return None if is_old else not_done(wish.operation, DROPPED)


def _ends(record: Record, wait: EffectStarted) -> bool:
    return isinstance(record, WaitCompleted | WaitWithdrawn) and record.index == wait.index
