"""Proposals and approvals: bound to what was proposed, decided once, told to those who wait, and used once at most."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from keylane import (
    Approval,
    BlockingObjectContext,
    Decided,
    ObjectContext,
    Proposal,
    VirtualObject,
)
from keylane.testing import Harness, harness

pytestmark = pytest.mark.anyio

order = VirtualObject("Order", owner="refunds-oncall", state={"proposal": Proposal, "mine": Approval})


@order.handler
async def refund(ctx: ObjectContext, amount: Decimal) -> list[str]:
    """Propose a refund, wait for the decision in a lane that others may use, and say who approved it."""
    proposal = await ctx.propose(
        action="refund", amount=amount, recipient="ada", expires_in=timedelta(hours=48), notes={"why": "broken"}
    )
    ctx.set("proposal", proposal)
    approval = await ctx.approval(proposal, release_lane=True)
    assert approval.fields == proposal.fields
    return list(approval.approved_by)


@order.handler
def refund_blocking(ctx: BlockingObjectContext, amount: Decimal) -> list[str]:
    """Do the same in a plain function, with the lane held."""
    proposal = ctx.propose(action="refund", amount=amount, recipient="ada", expires_in=3600)
    return list(ctx.approval(proposal).approved_by)


async def proposed(h: Harness, key: str = "acme/o-1") -> str:
    """Return the id of the newest proposal of an object, once everything waits."""
    await h.settled()
    return (await h.client.approvals("Order", key))[-1].id


async def test_who_waits_for_a_decision_goes_on_when_it_is_made(store_url: str) -> None:
    """An approval reaches the handler that waits for it, and tells who has given it."""
    async with harness(order, store=store_url) as h:
        handle = await h.send(refund, "acme/o-1", Decimal("40.00"))
        name = await proposed(h)

        assert name == "Order/acme/o-1#refund.1"
        verdict = await h.client.approve(name, by="bob", reason="seen it")
        assert isinstance(verdict, Decided)
        assert verdict.standing == "approved"
        assert await handle.result() == ["bob"]
