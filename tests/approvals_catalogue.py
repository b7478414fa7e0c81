"""Objects that put proposals before people, for processes of their own."""

from __future__ import annotations

from decimal import Decimal

from keylane import App, ObjectContext, Proposal, VirtualObject

from .objects_catalogue import OWNER


async def may_approve(approver: str, proposal: Proposal) -> bool:
    """Let two people decide."""
    del proposal
    return approver in {"ann", "bob"}


desk = VirtualObject("Desk", owner=OWNER, partitions=4, may_approve=may_approve)


@desk.handler
async def ask(ctx: ObjectContext, quorum: int) -> list[str]:
    """Propose a refund, and return who has approved it."""
    proposal = await ctx.propose(action="refund", amount=Decimal("40.00"), quorum=quorum, expires_in=3600)
    return list((await ctx.approval(proposal)).approved_by)


app = App([desk])
