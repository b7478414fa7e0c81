"""Approvals of undos: held against the effect when it is asked for, and used up with its intent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from keylane import (
    App,
    BlockingObjectContext,
    Handle,
    InvocationFailed,
    ObjectContext,
    Proposal,
    Receiver,
    Settings,
    TerminalError,
    VirtualObject,
)
from keylane.testing import Harness, harness
from tests.runtime.fake_bank import Bank, Receipt, Terms
from tests.runtime.test_declared_undos import has_status

pytestmark = pytest.mark.anyio

KEY = "acme/t-1"
PROPOSAL = f"Trip/{KEY}#refund.1"
TERMS = Terms(amount=7)


class Asked(BaseModel):
    """For how long an approval counts, and for what amount."""

    hours: int | None = None
    amount: int = 7


bank = Bank()
trail: list[str] = []
#: Who may not approve any more.
left: set[str] = set()

payments = Receiver(
    "payments", owner="oncall", lookup=bank.find, lookup_lag=timedelta(seconds=5), absent_means="not_done",
    late_calls="impossible", in_flight=timedelta(seconds=20),
)  # fmt: skip


@payments.effect("refund", timeout=timedelta(seconds=2))
async def send_refund(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


async def may_approve(approver: str, proposal: Proposal) -> bool:
    del proposal
    return approver not in left


trip = VirtualObject("Trip", owner="tests", effects=[send_refund], partitions=1, may_approve=may_approve)


@trip.handler
async def plan(ctx: ObjectContext, asked: Asked) -> None:
    """Have an undo approved ahead of what it undoes, and fail once somebody says so."""
    ctx.compensate("hotel", trail.append, "unbook hotel")
    expires_in = None if asked.hours is None else timedelta(hours=asked.hours)
    proposal = await ctx.propose(action="refund", amount=asked.amount, expires_in=expires_in)
    approval = await ctx.approval(proposal)
    ctx.compensate("payment", send_refund, operation_id="back-1", params=TERMS, approval=approval)
    await ctx.signal("fail", str)
    raise TerminalError("no visa", code="no-visa")


@trip.handler
def plan_in_a_thread(ctx: BlockingObjectContext) -> None:
    """The same on a thread."""
    approval = ctx.approval(ctx.propose(action="refund", amount=7))
    ctx.compensate("payment", send_refund, operation_id="back-1", params=TERMS, approval=approval)
    raise TerminalError("no visa", code="no-visa")


@trip.handler
async def misuse(ctx: ObjectContext) -> None:
    """Give what is no approval."""
    wrong: Any = "Trip/acme/t-1#refund.1"
    ctx.compensate("payment", send_refund, operation_id="back-1", params=TERMS, approval=wrong)


app = App([trip], settings=Settings(retry_first_seconds=0.001, retry_cap_seconds=0.002, retry_attempts=2))


@pytest.fixture(autouse=True)
def _afresh() -> None:
    bank.empty()
    trail.clear()
    left.clear()


@pytest.fixture(params=[None, "suspend", "replay"])
async def h(request: pytest.FixtureRequest, store_url: str) -> AsyncIterator[Harness]:
    """Give a harness, plain and with handlers that are always begun anew."""
    async with harness(app, store=store_url, force=request.param) as made:
        yield made


async def approved(h: Harness, hours: int | None = None, amount: int = 7) -> Handle[None]:
    """Have an undo registered with its approval."""
    handle = await h.send(plan, KEY, Asked(hours=hours, amount=amount))
    await has_status(handle, "waiting")
    await h.client.approve(PROPOSAL, by="ann", reason="as agreed", timeout=20)
    return handle


async def state_of(h: Harness) -> tuple[str, str]:
    """Return where the proposal stands, and what has used its approval up."""
    status = await h.client.approval_status(PROPOSAL)
    assert status is not None
    return status.standing, status.operation_id


async def is_parked(handle: Handle[None]) -> str:
    """Wait until an undo has failed, and return what is said of it."""
    await has_status(handle, "paused")
    told = await handle.describe()
    assert told.pause is not None
    assert told.pause.reason == "compensation_failed"
    return told.pause.detail


async def has_failed(handle: Handle[None]) -> None:
    with pytest.raises(InvocationFailed) as caught:
        await handle.result(timeout=20)
    assert caught.value.code == "no-visa"


async def test_an_undo_uses_its_approval_up_with_its_intent(h: Harness) -> None:
    """And not when it is registered: nothing was done with it until then."""
    handle = await approved(h)
    assert await state_of(h) == ("approved", "")
    await handle.signal("fail", "now")
    await has_failed(handle)
    assert await state_of(h) == ("consumed", "back-1")
    assert (bank.payments("back-1"), trail) == (1, ["unbook hotel"])


async def test_an_undo_of_a_plain_function_takes_an_approval(h: Harness) -> None:
    """As one of an `async def` handler does."""
    handle = await h.send(plan_in_a_thread, KEY)
    await has_status(handle, "waiting")
    await h.client.approve(PROPOSAL, by="ann", reason="as agreed", timeout=20)
    await has_failed(handle)
    assert (await state_of(h), bank.payments("back-1")) == (("consumed", "back-1"), 1)


@pytest.mark.parametrize("how", ["expired", "revoked", "other terms"])
async def test_an_undo_whose_approval_does_not_fit_any_more_lies_with_a_person(h: Harness, how: str) -> None:
    """Nothing is sent; another look says the same, and the undos before it run once it is given up."""
    handle = await approved(h, 1 if how == "expired" else None, 8 if how == "other terms" else 7)
    match how:
        case "expired":
            await h.advance(timedelta(hours=2))
            said = "its time has passed"
        case "revoked":
            await h.client.revoke(PROPOSAL, by="ann", reason="thought better of it", timeout=20)
            said = "the approval was taken back"
        case _:
            said = "the effect has another amount"
    await handle.signal("fail", "now")
    detail = await is_parked(handle)
    assert "'undo payment' failed for good with ApprovalUnfit" in detail
    assert said in detail
    await h.client.resume(handle.id, reason="look again", by="ann", timeout=20)
    await h.settled()
    assert said in await is_parked(handle)
    assert (bank.calls("back-1"), trail) == (0, [])
    await h.client.skip_compensation(handle.id, reason="refunded by hand", by="ann", timeout=20)
    await has_failed(handle)
    assert (dict(bank.sent), trail) == ({}, ["unbook hotel"])


async def test_an_undo_whose_approver_may_again_is_asked_for_when_resumed(h: Harness) -> None:
    """Under the same id: nothing was sent under it, and the approval is unused."""
    handle = await approved(h)
    left.add("ann")
    await handle.signal("fail", "now")
    assert "ApprovalUnfit" in await is_parked(handle)
    left.clear()
    await h.client.resume(handle.id, reason="she is back", by="ben", timeout=20)
    await has_failed(handle)
    assert (await state_of(h), bank.payments("back-1")) == (("consumed", "back-1"), 1)


async def test_an_approval_that_a_rejected_undo_has_used_up_allows_no_other(h: Harness) -> None:
    """One approval, one effect: what would be asked for under the next id is another."""
    bank.whims.append("refuse")
    handle = await approved(h)
    await handle.signal("fail", "now")
    assert "EffectRejected" in await is_parked(handle)
    await h.client.resume(handle.id, reason="open again", by="ann", timeout=20)
    await h.settled()
    assert "effect 'back-1' has used it up" in await is_parked(handle)
    assert [bank.calls(each) for each in ("back-1", "back-1~2")] == [1, 0]


async def test_what_is_no_approval_is_refused_when_it_is_registered(store_url: str) -> None:
    """Not when it is needed."""
    async with harness(app, store=store_url) as h:
        handle = await h.send(misuse, KEY)
        await has_status(handle, "paused")
        told = await handle.describe()
        assert told.pause is not None
        assert "approval= of ctx.compensate is the Approval that ctx.approval returned" in told.pause.detail
