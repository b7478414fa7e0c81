"""What has to hold of an approval when an effect uses it up: looked at in the turn in which the intent is queued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..journal.codec import unpack
from ..journal.errors import ApprovalUnfit, RetryableError
from ..journal.ledger import EventKind, Happened
from ..journal.proposals import ProposalState, proposal_field
from ..objects.decisions import closed
from ..objects.proposing import proposal_id, proposal_of, unfit
from .approvals import is_named
from .authority import NotSaid

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from ..objects.approvals import Approval
    from ..objects.receivers import Effect
    from .authority import Authority
    from .lane import Lane
    from .proposal_changes import ProposalChanges


class ApprovalChecks:
    """Decides for one worker whether an approval allows an effect, and uses it up.

    Args:
        authority: Asks who may approve.
        changes: Writes what becomes of proposals.
    """

    def __init__(self, authority: Authority, changes: ProposalChanges) -> None:
        self._authority = authority
        self._changes = changes

    async def check(self, lane: Lane, approval: str) -> None:
        """Look before an intent whether the time of an approval has passed, and whether those who gave it still may.

        What else has to hold is looked at when it is used up, in the commit of the first intent.

        Args:
            lane: The lane of the object, whose docket is in memory.
            approval: Action and version of the proposal, as `refund.3`.

        Raises:
            ApprovalUnfit: It has passed, or they may not.
            RetryableError: Whether they may can't be said now.
        """
        docket, space = lane.docket, lane.partition.space
        entry = None if docket is None else docket.proposals.get(approval)
        if entry is None or entry.state not in (ProposalState.APPROVED, ProposalState.CONSUMED):
            # Using it up says why not.
            return
        name = proposal_id(space.type_name, lane.key_text, entry)
        if entry.expires_ms is not None and entry.expires_ms <= lane.partition.now_ms():
            raise ApprovalUnfit(name, "its time has passed: propose it anew")
        proposal = proposal_of(space.type_name, lane.key_text, entry)
        for decision in entry.decisions:
            why = await self._authority.answer(
                lane.partition.virtual_object, lane.key.tenant, decision.approver, proposal
            )  # fmt: skip
            if isinstance(why, NotSaid):
                raise RetryableError(str(why))
            if why is not None:
                raise ApprovalUnfit(name, f"{why} any more")

    def consume(
        self, lane: Lane, approval: Approval, effect: Effect[Any, Any], operation: str, params: bytes
    ) -> list[Operation]:
        """Return what uses an approval up, in the commit of the intent.

        Args:
            lane: The lane of the object, whose docket is in memory.
            approval: The approval, as the handler has it.
            effect: The effect.
            operation: The operation id; one that has used the approval up before may go on with it.
            params: The packed parameters.

        Raises:
            ApprovalUnfit: It does not allow this; nothing is written.
        """
        docket, now_ms = lane.docket, lane.partition.now_ms()
        assert docket is not None
        if not is_named(lane, approval.proposal_id, approval.action, approval.version):
            raise ApprovalUnfit(approval.proposal_id, "it is no approval of this object")
        entry = docket.proposals.get(proposal_field(approval.action, approval.version))
        why = unfit(approval, entry, effect.name, unpack(params), operation, now_ms)
        if why is not None:
            raise why
        assert entry is not None
        if entry.state is ProposalState.CONSUMED:
            return []
        event = Happened(now_ms, EventKind.CONSUMED, detail=f"by {operation!r}")
        used_up = closed(entry, ProposalState.CONSUMED, event, operation)
        return self._changes.changed(lane, docket, used_up, event)
