"""How a client decides on proposals, and what it is told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

from ..journal.docket_reading import read_proposal, read_proposals_of
from ..journal.effect_orders import DecisionAct, DecisionOrder
from ..journal.errors import IdempotencyConflict
from ..journal.key import InvocationId, Key, new_invocation_id
from ..journal.ledger_reading import read_proposed, spaces_of
from ..journal.requests import Request, RequestKind
from ..journal.signals import message_raw_id
from ..objects.approvals import Approval, Proposal
from ..objects.proposing import read_proposal_id, status_of
from ..objects.verdicts import UnknownTarget, decision_verdict_of
from ..objects.virtual_object import VirtualObject
from .bounds import check_own_name, check_text, check_who
from .deciding import check_order
from .handle import Timeout, seconds_of, value_of
from .open_client import OpenClient
from .places import name_if_any, place_if_any
from .remote import Patience

if TYPE_CHECKING:
    from ..journal.keyspace import PartitionSpace
    from ..objects.approvals import ProposalStatus
    from ..objects.verdicts import DecisionVerdict

#: What names a proposal: its id, or the proposal itself.
ProposalRef: TypeAlias = "str | Proposal | Approval"


class ApprovalClient(OpenClient):
    """What `Client` says to proposals.

    Each decision has an id. The same id again, for the same proposal, is answered as the first time, and decides
    nothing: give one where you may have to ask again. Ids are remembered for the retention of results.
    """

    async def approve(
        self,
        proposal: ProposalRef,
        /,
        *,
        by: str,
        reason: str = "",
        on_behalf_of: str | None = None,
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> DecisionVerdict:
        """Approve a proposal; whoever waits for that goes on once enough people have, also if no worker is up yet.

        Args:
            proposal: The proposal, or its id, e.g. `Order/acme/o-1001#refund.3`.
            by: Who approves it. Whether they may is asked of the object type's `may_approve`.
            reason: Why, for the record.
            on_behalf_of: Whose decision it is, where they have delegated it to `by`; `may_approve` is asked of them.
            message_id: Makes asking again safe.
            timeout: How long to wait for the verdict.

        Returns:
            What became of it: `Decided` once it is durable, `AlreadyDecided`, `Expired`, `SupersededBy`,
            `NotPermitted` or `UnknownTarget`.

        Raises:
            InvalidKey: The text is no proposal's id.
            InvalidInput: `by` is empty.
            PayloadTooLarge: A name has more than 256 bytes, or the reason more than 4 KiB.
            IdempotencyConflict: The message id was used before, for another decision.
            CallTimeout: The time passed; the decision stays where it is, and is taken in when there is an owner.
            StoreError: The store was away for too long, or refused.
        """
        return await self._decide(DecisionAct.APPROVE, proposal, by, reason, on_behalf_of, message_id, timeout)

    async def decline(
        self,
        proposal: ProposalRef,
        /,
        *,
        by: str,
        reason: str,
        on_behalf_of: str | None = None,
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> DecisionVerdict:
        """Decline a proposal: one who may decide is enough, and whoever waits gets `ApprovalDeclined`.

        Args:
            proposal: The proposal, or its id.
            by: Who declines it.
            reason: Why; the handler is told it.
            on_behalf_of: Whose decision it is, where they have delegated it to `by`.
            message_id: Makes asking again safe.
            timeout: How long to wait for the verdict.

        Raises:
            InvalidKey: The text is no proposal's id.
            IdempotencyConflict: The message id was used before, for another decision.
            CallTimeout: The time passed; the decision stays where it is.
            StoreError: The store was away for too long, or refused.
        """
        return await self._decide(DecisionAct.DECLINE, proposal, by, reason, on_behalf_of, message_id, timeout)

    async def revoke(
        self,
        proposal: ProposalRef,
        /,
        *,
        by: str,
        reason: str,
        on_behalf_of: str | None = None,
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> DecisionVerdict:
        """Take an approval back that no effect has used yet; while others have yet to approve, one's own.

        A handler that has been told of the approval finds that it allows nothing any more.

        Args:
            proposal: The proposal, or its id.
            by: Who takes it back: somebody who may approve it.
            reason: Why, for the record.
            on_behalf_of: Whose decision it is, where they have delegated it to `by`.
            message_id: Makes asking again safe.
            timeout: How long to wait for the verdict.

        Raises:
            InvalidKey: The text is no proposal's id.
            IdempotencyConflict: The message id was used before, for another decision.
            CallTimeout: The time passed; the decision stays where it is.
            StoreError: The store was away for too long, or refused.
        """
        return await self._decide(DecisionAct.REVOKE, proposal, by, reason, on_behalf_of, message_id, timeout)

    async def delegate(
        self,
        proposal: ProposalRef,
        /,
        *,
        by: str,
        to: str,
        reason: str = "",
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> DecisionVerdict:
        """Let somebody else decide on one proposal in one's place; they say `on_behalf_of=` when they do.

        Args:
            proposal: The proposal, or its id.
            by: Who delegates: somebody who may approve it, now and when it is decided.
            to: To whom; they need not be one who may.
            reason: Why, for the record.
            message_id: Makes asking again safe.
            timeout: How long to wait for the verdict.

        Raises:
            InvalidKey: The text is no proposal's id.
            IdempotencyConflict: The message id was used before, for another decision.
            CallTimeout: The time passed; the decision stays where it is.
            StoreError: The store was away for too long, or refused.
        """
        check_text("to", to)
        return await self._decide(DecisionAct.DELEGATE, proposal, by, reason, to, message_id, timeout)

    async def approvals(
        self, object_type: VirtualObject | str | None = None, key: Key | str | None = None, /
    ) -> list[ProposalStatus]:
        """Return the proposals that wait for a decision, the one that expires first at the top; of one object all.

        Args:
            object_type: The object type; without it, all.
            key: The object; then also what was decided is told, in the order in which it was proposed.

        Raises:
            UnknownObject: The namespace has no such type.
            InvalidKey: The text is no key.
            StoreError: The store was away for too long, or refused.
        """
        name = name_if_any(object_type)
        if key is not None:
            if name is None:
                raise TypeError("a key goes with its object type")
            text = str(Key.parse(key))
            space = await self._places.place(name, text)
            found = await read_proposals_of(self.store, space, text)
            return [status_of(name, text, entry) for entry in found.proposals]
        open_ones: dict[tuple[PartitionSpace, str, str], tuple[int, ProposalStatus]] = {}
        async for page in read_proposed(self.store, await spaces_of(self.store, name)):
            for each in page:
                if each.entry is not None:
                    status = status_of(each.space.type_name, each.item.key, each.entry)
                    open_ones[each.space, each.item.key, each.item.name] = each.due_ms, status
        return [status for _, status in sorted(open_ones.values(), key=lambda each: (each[0], each[1].id))]

    async def approval_status(self, proposal: ProposalRef, /) -> ProposalStatus | None:
        """Return where a proposal stands and how it came to that; None where nothing is known of it.

        Raises:
            InvalidKey: The text is no proposal's id.
            StoreError: The store was away for too long, or refused.
        """
        parsed = read_proposal_id(proposal)
        space = await place_if_any(self._places, self.remote, parsed.type_name, parsed.key, Patience(None))
        if space is None:
            return None
        entry = await read_proposal(self.store, space, parsed.key, parsed.action, parsed.version)
        return None if entry is None else status_of(parsed.type_name, parsed.key, entry)

    async def _decide(
        self,
        act: DecisionAct,
        proposal: ProposalRef,
        by: str,
        reason: str,
        whom: str | None,
        message_id: str | None,
        timeout: Timeout,
    ) -> DecisionVerdict:
        parsed, patience = read_proposal_id(proposal), Patience(seconds_of(timeout))
        order = DecisionOrder(act, parsed.action, parsed.version, by, reason, whom or "")
        _check(order, message_id)
        space = await place_if_any(self._places, self.remote, parsed.type_name, parsed.key, patience)
        if space is None:
            return UnknownTarget()
        raw_id = new_invocation_id() if message_id is None else message_raw_id(f"decision {parsed}", message_id)
        request = Request(RequestKind.DECIDE, raw_id, "", parsed.key, order.encode(), client=self._id)
        ended = await self.remote.ask(space, request, patience)
        told = value_of(ended, None, str(InvocationId(space.type_name, space.number, raw_id)), "")
        verdict, digest = cast("list[object]", told)[:2]
        if digest != order.digest:
            raise IdempotencyConflict(None)
        return decision_verdict_of(verdict)


def _check(order: DecisionOrder, message_id: str | None) -> None:
    for what, text in (("by", order.by), ("reason", order.reason), ("on_behalf_of", order.whom)):
        check_text(what, text)
    if message_id is not None:
        check_own_name("message_id", message_id)
    check_order(order)
    check_who(order.by)
