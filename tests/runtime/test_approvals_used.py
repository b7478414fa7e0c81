"""Approvals and effects: an effect is done with what was approved, by those who may, in time, and once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from keylane import (
    AlreadyDecided,
    Approval,
    ApprovalUnfit,
    Decided,
    Deduplicates,
    EffectRejected,
    NotPermitted,
    ObjectContext,
    Proposal,
    Receiver,
    VirtualObject,
)
from keylane.testing import Harness, crashes, harness
from tests.runtime.fake_bank import Bank, Receipt, Terms

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
bank = Bank(is_deduplicating=True)
#: Who may not approve any more.
dismissed: set[str] = set()
#: How often the next questions about that fail.
outages: list[Exception] = []

payments = Receiver(
    "payments", owner="payments-oncall", deduplicates=Deduplicates(timedelta(hours=100)),
    in_flight=timedelta(seconds=20),
)  # fmt: skip


@payments.effect("refund", timeout=timedelta(milliseconds=300))
async def send_refund(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@payments.effect("payout", timeout=timedelta(milliseconds=300))
async def send_payout(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


async def may_approve(approver: str, proposal: Proposal) -> bool:
    del proposal
    if outages:
        raise outages.pop()
    return approver not in dismissed


order = VirtualObject(
    "Order", owner="tests", effects=[send_refund, send_payout], may_approve=may_approve,
    state={"proposal": Proposal, "approval": Approval},
)  # fmt: skip


@pytest.fixture(autouse=True)
def _afresh() -> None:
    bank.empty()
    dismissed.clear()
    outages.clear()


async def paid(ctx: ObjectContext, approval: Approval, amount: int = 40, operation: str = "refund-1") -> str:
    """Have a refund sent, and say what came of it."""
    try:
        receipt = await ctx.effect(
            send_refund, operation_id=operation, params=Terms(amount=amount, note="n"), approval=approval
        )
    except (ApprovalUnfit, EffectRejected) as error:
        return f"{error.code}: {error}"
    return f"paid {receipt.amount}"


@order.handler
async def refund(ctx: ObjectContext, pay: int) -> str:
    """Propose 40, and pay something once that is approved."""
    proposal = await ctx.propose(action="refund", amount=40, expires_in=timedelta(hours=48))
    approval = await ctx.approval(proposal, release_lane=True)
    ctx.set("approval", approval)
    return await paid(ctx, approval, pay)


@order.handler
async def approve_first(ctx: ObjectContext) -> str:
    """Wait for an approval and keep it."""
    proposal = await ctx.propose(action="refund", amount=40, expires_in=timedelta(hours=48))
    ctx.set("proposal", proposal)
    ctx.set("approval", await ctx.approval(proposal, release_lane=True))
    return proposal.id


@order.handler
async def use(ctx: ObjectContext, operation: str) -> str:
    """Use the approval that another invocation has kept."""
    approval = await ctx.get("approval", Approval)
    assert approval is not None
    return await paid(ctx, approval, operation=operation)


@order.handler
async def use_twice(ctx: ObjectContext) -> list[str]:
    """Use one approval for two effects in a row, and one of them once more."""
    approval = await ctx.get("approval", Approval)
    assert approval is not None
    return [await paid(ctx, approval, operation=each) for each in ("a", "b", "a")]


@order.handler
async def use_in_branches(ctx: ObjectContext) -> list[str]:
    approval = await ctx.get("approval", Approval)
    assert approval is not None
    ways = [paid(ctx, approval, operation=each) for each in ("a", "b")]
    return sorted(await ctx.gather(*ways))


@order.handler
async def use_otherwise(ctx: ObjectContext, how: str) -> str:
    """Use an approval for what was not approved."""
    approval = await ctx.get("approval", Approval)
    assert approval is not None
    match how:
        case "altered":
            return await paid(ctx, replace(approval, fields={"amount": 4000}), 4000)
        case "other people":
            return await paid(ctx, replace(approval, approved_by=("eve",)))
        case "more time":
            return await paid(ctx, replace(approval, expires_at=None))
        case "another object":
            return await paid(ctx, replace(approval, proposal_id="Order/acme/o-2#refund.1"))
        case _:
            try:
                await ctx.effect(send_payout, operation_id="p", params=Terms(amount=40), approval=approval)
            except ApprovalUnfit as error:
                return f"{error.code}: {error}"
            return "paid"


async def approved(h: Harness) -> str:
    """Have an approval kept in the state of the object."""
    handle = await h.send(approve_first, KEY)
    await h.settled()
    name = (await h.client.approvals("Order", KEY))[-1].id
    assert isinstance(await h.client.approve(name, by="bob"), Decided)
    await handle.result(timeout=10)
    return name


async def standing(h: Harness, name: str) -> tuple[str, str]:
    """Return where a proposal stands, and what has used it up."""
    status = await h.client.approval_status(name)
    assert status is not None
    return status.standing, status.operation_id


async def test_what_was_approved_is_done_once_and_uses_the_approval_up(store_url: str) -> None:
    """The effect goes through, and the proposal says which one it was."""
    async with harness(order, store=store_url) as h:
        handle = await h.send(refund, KEY, 40)
        await h.settled()
        name = (await h.client.approvals("Order", KEY))[-1].id
        await h.client.approve(name, by="bob")

        assert await handle.result(timeout=10) == "paid 40"
        assert await standing(h, name) == ("consumed", "refund-1")
        assert isinstance(await h.client.revoke(name, by="bob", reason="late"), AlreadyDecided)
        assert len(bank.books) == 1


async def test_another_amount_is_not_sent(store_url: str) -> None:
    """The error names the field; the approval is still there for what was approved."""
    async with harness(order, store=store_url) as h:
        handle = await h.send(refund, KEY, 41)
        await h.settled()
        name = (await h.client.approvals("Order", KEY))[-1].id
        await h.client.approve(name, by="bob")

        assert "the effect has another amount" in await handle.result(timeout=10)
        assert not bank.sent
        assert await standing(h, name) == ("approved", "")
        assert await h.call(use, KEY, "refund-2", timeout=10) == "paid 40"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("altered", "it was altered since it was approved"),
        ("another object", "it is no approval of this object"),
        ("another effect", "it is about 'refund', and the effect is 'payout'"),
    ],
)
async def test_nothing_else_is_allowed(store_url: str, how: str, said: str) -> None:
    """Nothing is sent for an approval that was altered, is another object's, or is about another effect."""
    async with harness(order, store=store_url) as h:
        name = await approved(h)

        assert said in await h.call(use_otherwise, KEY, how, timeout=10)
        assert not bank.sent
        assert await standing(h, name) == ("approved", "")


async def test_one_approval_allows_one_effect(store_url: str) -> None:
    """A second one is refused; the first asked for again gives what came of it."""
    async with harness(order, store=store_url) as h:
        await approved(h)

        first, second, again = await h.call(use_twice, KEY, timeout=10)
        assert (first, again) == ("paid 40", "paid 40")
        assert "effect 'a' has used it up" in second
        assert "used it up" in await h.call(use, KEY, "c", timeout=10)
        assert len(bank.books) == 1


async def test_two_branches_do_not_share_an_approval(store_url: str) -> None:
    """The first of them gets it."""
    async with harness(order, store=store_url) as h:
        await approved(h)

        unfit, done = await h.call(use_in_branches, KEY, timeout=10)
        assert done == "paid 40"
        assert "used it up" in unfit
        assert len(bank.books) == 1


async def test_its_time_is_looked_at_when_it_is_used(store_url: str) -> None:
    """An approval that has expired meanwhile allows nothing, whoever kept it."""
    async with harness(order, store=store_url) as h:
        await approved(h)
        await h.advance(timedelta(hours=48))

        assert "its time has passed" in await h.call(use, KEY, "a", timeout=10)
        assert not bank.sent


async def test_what_is_stored_counts_and_not_what_the_approval_says(store_url: str) -> None:
    """An approval in hand that names other people, or no end of its time, is worth what its proposal is worth."""
    async with harness(order, store=store_url) as h:
        await approved(h)
        dismissed.add("bob")
        assert "bob may not approve this any more" in await h.call(use_otherwise, KEY, "other people", timeout=10)
        dismissed.clear()
        await h.advance(timedelta(hours=48))

        assert "its time has passed" in await h.call(use_otherwise, KEY, "more time", timeout=10)
        assert not bank.sent


async def test_authority_is_asked_for_again_when_it_is_used(store_url: str) -> None:
    """Who has lost it since has approved nothing any more."""
    async with harness(order, store=store_url) as h:
        name = await approved(h)
        dismissed.add("bob")

        assert "bob may not approve this any more" in await h.call(use, KEY, "a", timeout=10)
        assert not bank.sent
        dismissed.clear()
        assert await h.call(use, KEY, "b", timeout=10) == "paid 40"
        assert await standing(h, name) == ("consumed", "b")
        dismissed.add("eve")
        other = await h.send(refund, KEY, 40)
        await h.settled()
        newest = (await h.client.approvals("Order", KEY))[-1].id
        assert isinstance(await h.client.approve(newest, by="eve"), NotPermitted)
        await h.client.cancel(other.id)


@pytest.mark.counts_runs
@pytest.mark.parametrize("is_sent_before", [False, True])
async def test_nobody_to_ask_for_a_moment_refuses_nothing(store_url: str, *, is_sent_before: bool) -> None:
    """What was approved stays so until somebody says otherwise, also where a first attempt could not be sent."""
    async with harness(order, store=store_url) as h:
        name = await approved(h)
        if is_sent_before:
            bank.on_call = fail_to_ask
            bank.whims.append("unreachable")
        else:
            outages.append(ConnectionError("the directory is away"))

        assert await h.call(use, KEY, "a", timeout=30) == "paid 40"
        assert await standing(h, name) == ("consumed", "a")
        assert not outages


async def fail_to_ask(operation_id: str) -> None:
    """Have the next question about authority fail."""
    del operation_id
    bank.on_call = None
    outages.append(ConnectionError("the directory is away"))


async def test_who_has_lost_authority_is_not_told_as_the_receivers_no(store_url: str) -> None:
    """The receiver was never asked a second time; the story, the case and the metrics do not say that it was."""
    async with harness(order, store=store_url) as h:
        await approved(h)
        bank.on_call = dismiss_bob
        bank.whims.append("unreachable")
        assert "bob may not approve this any more" in await h.call(use, KEY, "a", timeout=10)
        story = [each.text for each in (await h.client.explain("Order", KEY)).lines]
        (case,) = await h.client.effects("Order", KEY)
        assert not [each for each in story if "refuses" in each]
        assert [each for each in story if "nothing was sent: it must not be done any more" in each]
        assert case.last_answer.startswith("not sent: ")
        assert (case.state, bank.calls("a")) == ("rejected", 1)


async def dismiss_bob(operation_id: str) -> None:
    """Take the authority of who has approved."""
    del operation_id
    dismissed.add("bob")


async def test_an_approval_that_was_taken_back_allows_nothing(store_url: str) -> None:
    """Though the handler has been told of it."""
    async with harness(order, store=store_url) as h:
        name = await approved(h)
        assert isinstance(await h.client.revoke(name, by="ann", reason="a fraud"), Decided)

        assert "the approval was taken back" in await h.call(use, KEY, "a", timeout=10)
        assert not bank.sent


async def test_an_effect_that_the_receiver_refuses_has_used_its_approval_up(store_url: str) -> None:
    """One approval, one effect, whatever became of it."""
    async with harness(order, store=store_url) as h:
        name = await approved(h)
        bank.whims.append("refuse")

        assert "effect-rejected" in await h.call(use, KEY, "a", timeout=10)
        assert await standing(h, name) == ("consumed", "a")
        assert "used it up" in await h.call(use, KEY, "b", timeout=10)


async def propose_approve_pay(h: Harness) -> tuple[Any, ...]:
    """Go all the way, with a decision that comes while the handler waits."""
    bank.empty()
    handle = await h.send(refund, KEY, 40)
    await h.settled()
    name = (await h.client.approvals("Order", KEY))[-1].id
    verdict = await h.client.approve(name, by="bob", message_id="m", timeout=30)
    answer = await handle.result(timeout=30)
    return type(verdict), answer, await standing(h, name), {id_: len(each) for id_, each in bank.books.items()}


@pytest.mark.slow
async def test_whatever_dies_an_approval_is_counted_told_and_used_once(store_url: str) -> None:
    """A worker that dies at any of its writes leaves neither a decision untold nor an approval used twice."""
    points = 0
    async for crash in crashes(order, propose_approve_pay, store=store_url):
        verdict, answer, stands, books = crash.result()
        assert (verdict, answer, stands) == (Decided, "paid 40", ("consumed", "refund-1")), crash.point
        assert list(books.values()) == [1], crash.point
        points += 1
    assert points > 10
