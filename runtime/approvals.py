"""`ctx.propose` and `ctx.approval`: what people decide on, and the wait for what they have decided."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ..journal import operations
from ..journal.codec import unpack
from ..journal.command_records import ApprovalAwaited, Proposed, WaitCompleted
from ..journal.effects import Waiter
from ..journal.errors import ApprovalUnfit, InternalError, PayloadTooLarge
from ..journal.ledger import EventKind, Happened
from ..journal.outcomes import Rejected, Succeeded, decode_outcome, encode_outcome
from ..journal.place import format_place
from ..journal.proposals import CLOSED, ProposalEntry, ProposalId, ProposalState, proposal_field
from ..objects.approvals import Approval, Proposal
from ..objects.decisions import closed, is_lapsed
from ..objects.proposing import Draft, as_proposed, digest_of, proposal_of
from ..objects.types import boundary_of
from .cancel_delivery import is_due
from .commands import diverge
from .failures import failure_with_fields, terminal_error
from .large_values import weigh
from .proposal_changes import APPROVAL, newest_version, outcome_of, waiter_at
from .releasing import end_if_released, standing_still
from .signals import Signals

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from ..journal.outcomes import Outcome
    from .context import ExclusiveContext
    from .docket import Docket, Dockets
    from .invocation import Invocation
    from .lane import Lane
    from .proposal_changes import ProposalChanges

#: Proposals of one object that are not closed.
OPEN_MAX: Final = 200
_PROPOSAL: Final = boundary_of(Proposal, where="the proposal")


class Approvals(Signals):
    """What the handlers of a worker propose, and what they are told of the decisions."""

    dockets: Dockets
    proposals: ProposalChanges

    async def propose(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, draft: Draft) -> Proposal:
        """Propose something, unless the recorded run has.

        Raises:
            PayloadTooLarge: The object has as many open proposals as it may.
        """
        found = ctx.next_recorded()
        if found is None:
            await self._steps.may_begin(ctx, lane, invocation)
            docket = await self.docket_of(ctx, lane)
            found = await self._propose(ctx, lane, invocation, docket, draft)
        elif isinstance(found, Proposed) and found.action == draft.action:
            self._check_recorded(ctx, lane, found, draft)
            await ctx.pass_taken(ctx.take_index())
        else:
            what = f"command {format_place(ctx.place)}, proposal {draft.action!r}"
            await diverge(ctx, lane, invocation, found, what)
        return recorded_proposal(found)

    def _check_recorded(self, ctx: ExclusiveContext, lane: Lane, found: Proposed, draft: Draft) -> None:
        """Compare what was proposed with what the code would propose now: a rehearsal tells of it."""

    async def docket_of(self, ctx: ExclusiveContext, lane: Lane) -> Docket:
        """Bring the docket of an object into memory: from then on what comes for it is decided here, in order."""
        while lane.docket is None:
            await self.dockets.wait(lane)
            ctx.check_current()
        return lane.docket

    async def _propose(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, docket: Docket, draft: Draft
    ) -> Proposed:
        entry = _entry(lane, invocation, docket, draft)
        space = lane.partition.space
        value = _PROPOSAL.dump(proposal_of(space.type_name, lane.key_text, entry))
        fact = Proposed(ctx.take_index(), entry.action, entry.version, value, *ctx.carried())
        if _is_told_instead(ctx, invocation):
            await self._write(ctx, lane, invocation, fact, [])
            return fact
        superseded = [] if draft.is_concurrent else _superseded(docket, entry)
        more = [
            *self._supersede(lane, docket, superseded, entry),
            *self.proposals.changed(lane, docket, entry, entry.life[0]),
        ]
        weigh(lane, value)
        try:
            await self._write(ctx, lane, invocation, fact, more)
        finally:
            for each in superseded:
                self.proposals.tell(lane, each.field)
        return fact

    async def approval(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, proposal: Proposal) -> Approval:
        """Wait for the decision on a proposal of this object, unless it is recorded.

        Raises:
            ApprovalUnfit: It is none of this object's, or was altered.
            ApprovalDeclined: Somebody said no.
            ApprovalExpired: Its time has passed.
            Superseded: There is a newer one.
        """
        _check_own(lane, proposal)
        asked = (proposal.action, proposal.version)
        found = ctx.next_recorded()
        if found is None:
            found = await self._begin_awaiting(ctx, lane, invocation, proposal)
        elif isinstance(found, ApprovalAwaited) and (found.action, found.version) == asked:
            ctx.take_index()
            ctx.pass_recorded()
            standing = invocation.standing
            if standing is not None and standing.wait_at(found.index) is not None:
                await self._go_on_awaiting(ctx, lane, invocation, found)
        else:
            what = f"command {format_place(ctx.place)}, decision on {asked[0]!r}, version {asked[1]}"
            await diverge(ctx, lane, invocation, found, what)
        await end_if_released(ctx, lane, invocation, found.index)
        ended = await self._ended(ctx, lane, invocation, found.index)
        assert isinstance(ended, WaitCompleted)
        match decode_outcome(ended.value):
            case Succeeded(result=packed):
                return APPROVAL.load(packed)
            case Rejected(failure=failure):
                raise terminal_error(failure)
            case _:
                raise InternalError(f"the decision on {proposal.id} is none")

    async def _begin_awaiting(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, proposal: Proposal
    ) -> ApprovalAwaited:
        """Begin to wait; what was decided already ends the wait in the same commit."""
        await self._steps.may_begin(ctx, lane, invocation)
        docket = await self.docket_of(ctx, lane)
        fact = ApprovalAwaited(ctx.take_index(), proposal.action, proposal.version, *ctx.carried())
        entry = docket.proposals.get(proposal_field(proposal.action, proposal.version))
        if _is_told_instead(ctx, invocation):
            await self._write(ctx, lane, invocation, fact, [])
            return fact
        outcome = _outcome_at_once(lane, docket, entry, proposal)
        if outcome is not None or entry is None:
            assert outcome is not None
            value = encode_outcome(outcome)
            weigh(lane, value)
            await self._write(ctx, lane, invocation, fact, [], WaitCompleted(fact.index, b"", value, ""))
            return fact
        if ctx.release is not None:
            fact = replace(fact, releases=True)
        waiting = replace(entry, waiters=(*entry.waiters, Waiter(invocation.raw_id, fact.index)))
        more = standing_still(ctx, lane, invocation, operations.stand_still(lane.key_text))
        await self._write(ctx, lane, invocation, fact, [*more, *self.proposals.changed(lane, docket, waiting)])
        return fact

    async def _go_on_awaiting(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, wait: ApprovalAwaited
    ) -> None:
        """Note again that a lane waits whose handler was run again meanwhile, unless it was decided."""
        docket = await self.docket_of(ctx, lane)
        standing = invocation.standing
        if standing is None or standing.wait_at(wait.index) is None:
            # Its end is on its way.
            return
        entry = docket.proposals.get(proposal_field(wait.action, wait.version))
        if entry is not None and entry.state is ProposalState.OPEN:
            more: list[Operation] = []
            if waiter_at(entry, invocation, wait) is None:
                waiting = replace(entry, waiters=(*entry.waiters, Waiter(invocation.raw_id, wait.index)))
                more = self.proposals.changed(lane, docket, waiting)
            if ctx.conductor is None:
                self._stand_still(lane, more)
            elif more:
                lane.commit(more)
            return
        name = str(ProposalId(lane.partition.space.type_name, lane.key_text, wait.action, wait.version))
        outcome = _not_proposed(name) if entry is None else outcome_of(lane, docket, entry)
        assert outcome is not None
        self.waits.complete(
            invocation, WaitCompleted(wait.index, b"", encode_outcome(outcome), ""), [], _nothing, _nothing
        )

    def _supersede(
        self, lane: Lane, docket: Docket, superseded: list[ProposalEntry], newer: ProposalEntry
    ) -> list[Operation]:
        writes: list[Operation] = []
        for each in superseded:
            event = Happened(newer.proposed_ms, EventKind.SUPERSEDED, detail=f"by version {newer.version}")
            after = closed(each, ProposalState.SUPERSEDED, event)
            writes.extend(self.proposals.changed(lane, docket, after, event))
        return writes


def recorded_proposal(fact: Proposed) -> Proposal:
    """Return a proposal as its handler gets it."""
    return _PROPOSAL.load(fact.value)


def _entry(lane: Lane, invocation: Invocation, docket: Docket, draft: Draft) -> ProposalEntry:
    """Return a new proposal.

    Raises:
        PayloadTooLarge: The object has as many open ones as it may.
    """
    count = sum(each.state not in CLOSED for each in docket.proposals.values())
    if count >= OPEN_MAX:
        remedy = "let people decide, or give proposals a time after which they expire"
        raise PayloadTooLarge("the open proposals", count + 1, OPEN_MAX, unit="proposals", remedy=remedy)
    version, now_ms = newest_version(docket, draft.action) + 1, lane.partition.now_ms()
    detail = f"{draft.quorum} have to approve" if draft.quorum > 1 else ""
    event = Happened(now_ms, EventKind.PROPOSED, detail=detail)
    return ProposalEntry(
        action=draft.action, version=version, state=ProposalState.OPEN, bound=draft.bound, notes=draft.notes,
        digest=digest_of(draft.action, version, unpack(draft.bound)), quorum=draft.quorum,
        invocation=invocation.raw_id, proposed_ms=now_ms,
        expires_ms=None if draft.expires_in_ms is None else now_ms + draft.expires_in_ms,
        since_ms=now_ms, is_concurrent=draft.is_concurrent, life=(event,),
        is_guarded=lane.partition.virtual_object.may_approve is not None,
    )  # fmt: skip


def _superseded(docket: Docket, newer: ProposalEntry) -> list[ProposalEntry]:
    """Return the proposals whose place a newer one takes: those of its action that nothing has come of yet."""
    return [
        each
        for each in docket.proposals.values()
        if each.action == newer.action and each.state not in CLOSED and not each.is_concurrent
    ]


def _is_told_instead(ctx: ExclusiveContext, invocation: Invocation) -> bool:
    """Return whether the handler is told of its cancel in place of a command: nothing of that is written then."""
    return is_due(invocation) and (ctx.conductor is None or ctx.conductor.is_main_here)


def _check_own(lane: Lane, proposal: Proposal) -> None:
    """Refuse a proposal that is another object's, or is not what was proposed.

    Raises:
        ApprovalUnfit: It is refused; each replay says the same.
    """
    if not is_named(lane, proposal.id, proposal.action, proposal.version):
        raise ApprovalUnfit(proposal.id, "it is no proposal of this object")
    if not as_proposed(proposal.action, proposal.version, proposal.fields, proposal.digest):
        raise ApprovalUnfit(proposal.id, "it was altered since it was proposed: propose it anew")


def is_named(lane: Lane, text: str, action: str, version: int) -> bool:
    """Return whether a proposal's id names one of an object."""
    return text == str(ProposalId(lane.partition.space.type_name, lane.key_text, action, version))


def _outcome_at_once(lane: Lane, docket: Docket, entry: ProposalEntry | None, proposal: Proposal) -> Outcome | None:
    """Return with what a wait ends that need not begin; None where it has to."""
    if entry is None or entry.digest.hex() != proposal.digest:
        return _not_proposed(proposal.id)
    if is_lapsed(entry, lane.partition.now_ms()):
        # Whatever notes it is on its way; who asks now is told so.
        entry = replace(entry, state=ProposalState.EXPIRED)
    return outcome_of(lane, docket, entry)


def _not_proposed(name: str) -> Outcome:
    return Rejected(failure_with_fields(ApprovalUnfit(name, "this object has proposed no such thing")))


def _nothing() -> None:
    pass
