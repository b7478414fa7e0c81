"""Orders that propose refunds and wait for the decision of somebody, who may have to be allowed to decide."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal, cast

from pydantic import BaseModel

from keylane import (
    Approval,
    ApprovalDeclined,
    ApprovalExpired,
    ApprovalUnfit,
    BlockingObjectContext,
    Decided,
    DecisionVerdict,
    ObjectContext,
    Proposal,
    RetryPolicy,
    Superseded,
    VirtualObject,
)
from keylane.objects.proposing import digest_of
from keylane.testing import Harness

KEY = "acme/o-1"
TWO_DAYS = timedelta(hours=48)
ONCE = RetryPolicy(attempts=1)
#: Who may approve in `guarded`; a name in `failing` breaks the question.
allowed: set[str] = set()
failing: set[str] = set()
asked: list[tuple[str, str]] = []


class Address(BaseModel):
    """Where a parcel goes."""

    street: str
    number: int


async def may_approve(approver: str, proposal: Proposal) -> bool:
    asked.append((approver, proposal.id))
    if approver in failing:
        raise ConnectionError("the directory is away")
    return approver in allowed


order = VirtualObject("Order", owner="refunds-oncall", state={"proposal": Proposal, "approval": Approval}, retry=ONCE)
guarded = VirtualObject("Guarded", owner="refunds-oncall", may_approve=may_approve, state={"proposal": Proposal})


async def told(waiting: Awaitable[Approval]) -> str:
    """Return what became of a wait for a decision."""
    try:
        approval = await waiting
    except (ApprovalDeclined, ApprovalExpired, ApprovalUnfit, Superseded) as error:
        return f"{type(error).__name__}: {error}"
    return f"approved by {', '.join(approval.approved_by)}"


@order.handler
async def refund(ctx: ObjectContext, amount: Decimal) -> str:
    """Propose a refund, and wait for the decision in a lane that others may use."""
    proposal = await ctx.propose(
        action="refund", amount=amount, recipient="ada", expires_in=TWO_DAYS, notes={"why": "it was broken"}
    )
    ctx.set("proposal", proposal)
    return await told(ctx.approval(proposal, release_lane=True))


@order.handler
def refund_blocking(ctx: BlockingObjectContext, amount: Decimal) -> list[str]:
    proposal = ctx.propose(action="refund", amount=amount, recipient="ada", expires_in=3600)
    return list(ctx.approval(proposal).approved_by)


@order.handler
async def only_propose(ctx: ObjectContext, how: Literal["alone", "beside"]) -> str:
    """Propose something in the place of what was proposed before, or beside it."""
    proposal = await ctx.propose(
        action="refund", amount=Decimal(1), expires_in=TWO_DAYS, concurrent=how == "beside"
    )  # fmt: skip
    ctx.set("proposal", proposal)
    return proposal.id


@order.handler
async def wait(ctx: ObjectContext) -> str:
    """Wait for the decision on what another invocation has proposed."""
    proposal = await ctx.get("proposal", Proposal)
    assert proposal is not None
    return await told(ctx.approval(proposal, release_lane=True))


@order.handler
async def wait_in_branches(ctx: ObjectContext) -> list[str]:
    proposal = await ctx.propose(action="refund", amount=Decimal(1))
    return list(await ctx.gather(told(ctx.approval(proposal)), told(ctx.approval(proposal))))


@order.handler
async def wait_for_a_day(ctx: ObjectContext) -> list[str]:
    """Let a race with a sleep give the wait up, and wait again afterwards."""
    proposal = await ctx.propose(action="refund", amount=Decimal(1))
    first, _ = await ctx.select(approval=ctx.approval(proposal), day=ctx.sleep(timedelta(days=1)))
    return [first, await told(ctx.approval(proposal))]


@order.handler
async def supersede_own(ctx: ObjectContext) -> list[str]:
    """Propose anew in one branch while another waits for the decision on what was proposed first."""
    first = await ctx.propose(action="refund", amount=Decimal(1))

    async def amend() -> str:
        await ctx.sleep(60)
        return (await ctx.propose(action="refund", amount=Decimal(2))).id

    return list(await ctx.gather(told(ctx.approval(first)), amend()))


@order.handler
async def alter(ctx: ObjectContext, field: str) -> str:
    """Wait for the decision on a proposal in which something was changed."""
    proposal = await ctx.propose(action="refund", amount=Decimal(40), notes={"why": "x"})
    match field:
        case "amount":
            proposal = replace(proposal, fields={"amount": Decimal(4000)})
        case "notes":
            proposal = replace(proposal, notes={"why": "another reason"})
        case "digest":
            fields = {"amount": Decimal(4000)}
            proposal = replace(proposal, fields=fields, digest=digest_of("refund", 1, fields).hex())
        case _:
            proposal = replace(proposal, id="Order/acme/o-2#refund.1")
    return await told(ctx.approval(proposal))


@order.handler
async def keep_approval(ctx: ObjectContext) -> str:
    """Keep proposal and approval in the state, as plain values of their types."""
    address = Address(street="Elm", number=3)
    proposal = await ctx.propose(action="send", to=address, amount=Decimal("1.50"), lines=[1, 2], on=True)
    approval = await ctx.approval(proposal)
    ctx.set("approval", approval)
    assert proposal["to"] == {"street": "Elm", "number": 3}
    assert approval.fields == proposal.fields
    return approval.proposal_id


@order.handler
async def two_actions(ctx: ObjectContext) -> list[str]:
    ids = [await ctx.propose(action=action, amount=1) for action in ("refund", "refund", "gift", "refund")]
    return [each.id for each in ids]


@order.handler
async def propose_badly(ctx: ObjectContext, how: str) -> None:
    match how:
        case "name":
            await ctx.propose(action="not a name", amount=1)
        case "quorum":
            await ctx.propose(action="refund", quorum=0, amount=1)
        case "notes":
            await ctx.propose(action="refund", notes=cast("dict[str, Any]", "broken"), amount=1)
        case "nothing":
            await ctx.propose(action="refund", notes={"amount": 1})
        case "value":
            await ctx.propose(action="refund", what=object)
        case "size":
            await ctx.propose(action="refund", text="x" * 70_000)
        case _:
            for _ in range(201):
                await ctx.propose(action="refund", concurrent=True, amount=1)


@guarded.handler
async def ask(ctx: ObjectContext, quorum: int) -> str:
    proposal = await ctx.propose(action="refund", amount=Decimal(1), quorum=quorum, expires_in=TWO_DAYS)
    ctx.set("proposal", proposal)
    return await told(ctx.approval(proposal))


async def proposed(h: Harness, type_name: str = "Order", key: str = KEY) -> str:
    """Return the id of the newest proposal of an object, once everything waits."""
    await h.settled()
    return (await h.client.approvals(type_name, key))[-1].id


def standing(verdict: DecisionVerdict) -> str:
    """Return where a proposal stands after a decision that counts."""
    assert isinstance(verdict, Decided), verdict
    return verdict.standing


def begin_afresh() -> None:
    """Forget what the test before has left."""
    allowed.clear()
    failing.clear()
    asked.clear()
