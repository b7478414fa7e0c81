"""`ctx.effect` and `ctx.effect_outcome`: what is to be done is durable before it is asked for, and what came of it too.

The wait is the invocation's, the effect its object's. The record that begins the wait and the intent are one commit,
and so are the outcome and the end of the wait; in between the call is made by tasks of the worker. An effect that the
object has already is not asked for again: its outcome is given, or waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..journal import operations
from ..journal.codec import unpack
from ..journal.command_records import EffectStarted, WaitCompleted
from ..journal.effects import (
    OPERATION_MAX,
    EffectEntry,
    EffectOutcome,
    EffectState,
    Waiter,
    decode_effect_outcome,
    digest_of,
)
from ..journal.errors import ApprovalUnfit, RegistrationError, TerminalError
from ..journal.ledger import EventKind, Happened
from ..journal.place import format_place
from ..journal.proposals import proposal_field
from ..objects.fingerprint import canonical
from .cancel_delivery import is_due
from .commands import diverge
from .effect_calls import check_value
from .effect_changes import TOLD_AS_UNKNOWN
from .effect_checks import check_operation, checked
from .effect_facts import Change, accepted_at, blocks, early_outcome, intent
from .effect_inquiries import EffectInquiries
from .effect_plans import in_lost_records
from .effect_wishes import Wish, conflict, ended_by, refused
from .failures import failure_of
from .releasing import end_if_released, standing_still

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from ..journal.outcomes import Failure
    from ..objects.approvals import Approval
    from ..objects.receivers import Effect
    from .context import ExclusiveContext
    from .docket import Docket
    from .effect_checks import ApprovalCheck
    from .invocation import Invocation
    from .lane import Lane
    from .settling import Settling


@dataclass(frozen=True, slots=True)
class _Begun:
    """What is written as an effect is asked for.

    Args:
        writes: With the record that begins the wait.
        end: What ends the wait in the same commit.
        attempt: The attempt that is to be called once that is durable; 0 where none is.
    """

    writes: list[Operation]
    end: WaitCompleted | None = None
    attempt: int = 0


class Effects(EffectInquiries):
    """What the handlers of a worker ask of others, of the clock, of whoever sends to them, and of the world outside."""

    settling: Settling
    #: Decides whether an approval allows an effect, and uses it up.
    approvals: ApprovalCheck | None = None
    send_within_ms: int

    def wish(
        self,
        lane: Lane,
        effect: Effect[Any, Any],
        operation_id: str,
        params: Any,
        approval: Approval | None,
        *,
        takes_unknown: bool,
    ) -> Wish:
        """Check and pack what a handler wrote.

        Raises:
            RegistrationError: The object type does not list the effect.
            TypeError: The operation id is no text, or is empty.
            PayloadTooLarge: The parameters or the operation id are too large.
            InvalidInput: The parameters do not fit their type.
        """
        virtual_object = lane.partition.virtual_object
        if virtual_object.find_effect(effect.receiver.name, effect.name) is not effect:
            remedy = f"list it: VirtualObject({virtual_object.name!r}, effects=[…])"
            raise RegistrationError(f"{effect!r} is no effect of {virtual_object.name}", remedy=remedy)
        check_operation(operation_id, OPERATION_MAX)
        packed, basis = effect.params.dump_both(params)
        check_value(effect, "params", packed)
        digest = digest_of(effect.name, canonical(unpack(basis)))
        return Wish(effect, operation_id, packed, digest, approval, takes_unknown)

    async def effect(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, wish: Wish) -> EffectOutcome:
        """Ask for an effect and wait for what becomes of it, unless that is recorded."""
        found = ctx.next_recorded()
        if found is None:
            found = await self._begin_effect(ctx, lane, invocation, wish)
        elif isinstance(found, EffectStarted) and not found.settles and wish.is_in(found):
            await self._pass_effect(ctx, lane, invocation, found)
        else:
            await diverge(ctx, lane, invocation, found, f"command {format_place(ctx.place)}, {wish}")
        await end_if_released(ctx, lane, invocation, found.index)
        ended = await self._ended(ctx, lane, invocation, found.index)
        assert isinstance(ended, WaitCompleted)
        return decode_effect_outcome(ended.value)

    async def _begin_effect(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, wish: Wish
    ) -> EffectStarted:
        """Record that an effect is asked for, with its intent; what is known already ends the wait in that commit."""
        await self._steps.may_begin(ctx, lane, invocation)
        docket = await self.docket_of(ctx, lane)
        facts: bytes | None = None
        refusal: Failure | None = None
        if wish.operation not in docket.effects and not is_due(invocation):
            try:
                facts = await self._checked(ctx, lane, wish)
            except TerminalError as error:
                refusal = failure_of(error)
            docket = await self.docket_of(ctx, lane)
        ctx.check_current()
        fact = EffectStarted(
            ctx.take_index(), wish.operation, wish.effect.name, wish.effect.receiver.name, wish.digest, *ctx.carried(),
            releases=ctx.release is not None,
        )  # fmt: skip
        if is_due(invocation) and (ctx.conductor is None or ctx.conductor.is_main_here):
            # In its place the handler is told that it is cancelled.
            await self._write(ctx, lane, invocation, fact, [])
            return fact
        begun = self._begun(ctx, lane, invocation, docket, wish, fact, facts, refusal)
        if begun.end is not None:
            fact = replace(fact, releases=False)
        queued = partial(self.settling.begin, lane, wish.operation, begun.attempt) if begun.attempt else None
        await self._write(ctx, lane, invocation, fact, begun.writes, begun.end, queued)
        return fact

    async def _checked(self, ctx: ExclusiveContext, lane: Lane, wish: Wish) -> bytes | None:
        """Look at what an effect depends on; the other branches of the handler go on meanwhile."""
        approval = "" if wish.approval is None else proposal_field(wish.approval.action, wish.approval.version)
        if not approval and wish.effect.recheck is None:
            return None
        checking = partial(checked, lane, wish.effect, wish.params, approval, self.approvals)
        if ctx.conductor is None:
            return await checking()
        with ctx.conductor.working(ctx.conductor.current, ctx.place):
            facts = await checking()
        await ctx.conductor.turn()
        return facts

    def _begun(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, docket: Docket, wish: Wish,
        fact: EffectStarted, facts: bytes | None, refusal: Failure | None,
    ) -> _Begun:  # fmt: skip
        """Return what is written as an effect is asked for."""
        entry = docket.effects.get(wish.operation)
        if entry is None and refusal is not None:
            return _Begun([], refused(fact, refusal))
        if entry is not None and not wish.is_of(entry):
            return _Begun([], refused(fact, failure_of(conflict(entry, wish))))
        if entry is not None:
            lane.partition.meters.prevented(lane.partition, entry.receiver, "asked for again")
        if entry is not None and entry.outcome is not None:
            return _Begun([], ended_by(fact, entry.outcome, entry.by))
        if entry is not None and wish.takes_unknown and entry.state in TOLD_AS_UNKNOWN:
            return _Begun([], ended_by(fact, early_outcome(entry)))
        still = standing_still(ctx, lane, invocation, operations.stand_still(lane.key_text))
        waiter = Waiter(invocation.raw_id, fact.index, wish.takes_unknown)
        if entry is not None:
            name = (waiter.invocation, waiter.place)
            others = tuple(each for each in entry.waiters if (each.invocation, each.place) != name)
            attached = entry.but(waiters=(*others, waiter))
            return _Begun([docket.write_effect(attached), *still])
        return self._first(lane, invocation, docket, wish, fact, facts, waiter, still)

    def _first(
        self, lane: Lane, invocation: Invocation, docket: Docket, wish: Wish, fact: EffectStarted,
        facts: bytes | None, waiter: Waiter, still: list[Operation],
    ) -> _Begun:  # fmt: skip
        """Return what is written of an effect that the object does not have yet."""
        partition = lane.partition
        try:
            used_up = self._used_up(lane, wish)
        except ApprovalUnfit as error:
            return _Begun([], refused(fact, failure_of(error)))
        now_ms = partition.now_ms()
        entry = EffectEntry(
            operation=wish.operation,
            effect=wish.effect.name,
            receiver=wish.effect.receiver.name,
            state=EffectState.BLOCKED,
            params=wish.params,
            digest=wish.digest,
            attempt=0,
            invocation=invocation.raw_id,
            first_ms=now_ms,
            intended_ms=now_ms,
            send_before_ms=now_ms,
            since_ms=now_ms,
            facts=facts,
            approval="" if wish.approval is None else proposal_field(wish.approval.action, wish.approval.version),
            waiters=(waiter,),
        )
        change = self._beginning(lane, invocation, docket, wish, entry, now_ms)
        if wish.takes_unknown and change.given_early is not None:
            change = replace(change, entry=change.entry.but(waiters=()))
            writes = [*used_up, *self.changes.writes(lane, docket, None, change, now_ms)]
            return _Begun(writes, ended_by(fact, early_outcome(change.entry)))
        writes = [*used_up, *self.changes.writes(lane, docket, None, change, now_ms), *still]
        is_called = change.entry.state is EffectState.INTENDED
        return _Begun(writes, None, change.entry.attempt if is_called else 0)

    def _beginning(
        self, lane: Lane, invocation: Invocation, docket: Docket, wish: Wish, entry: EffectEntry, now_ms: int
    ) -> Change:
        """Return how an effect begins: with its intent, behind another one, or in doubt."""
        accepted_ms = accepted_at(invocation, now_ms)
        if lane.partition.in_doubt(accepted_ms):
            return in_lost_records(lane.partition, entry.but(first_ms=accepted_ms), self.send_within_ms, now_ms)
        if blocks(wish.effect) and _has_to_wait(docket, entry):
            return Change(entry, (Happened(now_ms, EventKind.BLOCKED),))
        return intent(entry, now_ms, self.send_within_ms, EventKind.INTENDED)

    def _used_up(self, lane: Lane, wish: Wish) -> list[Operation]:
        if wish.approval is None or self.approvals is None:
            return []
        return self.approvals.consume(lane, wish.approval, wish.effect, wish.operation, wish.params)

    def withdrawn(self, lane: Lane, invocation: Invocation, wait: object) -> list[Operation]:
        """Return what takes a branch that has lost from those who wait for an effect; the effect goes on."""
        docket = lane.docket
        if not isinstance(wait, EffectStarted) or docket is None:
            return []
        entry = docket.effects.get(wait.operation)
        name = (invocation.raw_id, wait.index)
        if entry is None or all((each.invocation, each.place) != name for each in entry.waiters):
            return []
        left = tuple(each for each in entry.waiters if (each.invocation, each.place) != name)
        return [docket.write_effect(entry.but(waiters=left))]


def _has_to_wait(docket: Docket, entry: EffectEntry) -> bool:
    """Return whether another effect there is in question, or waits its turn."""
    return any(
        each.receiver == entry.receiver and (each.is_in_question or each.state is EffectState.BLOCKED)
        for each in docket.unsettled.values()
    )
