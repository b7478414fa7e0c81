"""The order as an object of the real engine, with receivers in this process and a clock that jumps."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from examples.refund_order.models import AmendRequest, Order, Receipt, Refund, RefundRequest, RefundState
from examples.refund_order.order import amend, history, order, propose, refund, settle, status
from examples.refund_order.payments.wire import Behaviour
from keylane import Decided, InvocationCancelled, InvocationFailed, NotPermitted, SupersededBy
from keylane.testing import Harness, harness
from tests.examples.refund_world import BANK, KEY, World, around

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    async with around(tmp_path) as world:
        yield world


@pytest.fixture
async def h(world: World) -> AsyncGenerator[Harness]:
    async with harness(order) as h:
        yield h


def ask(amount: str, reason: str = "") -> RefundRequest:
    return RefundRequest(amount=Decimal(amount), reason=reason)


async def proposed(h: Harness, amount: str) -> tuple[Refund, str]:
    """Begin a refund that people have to decide on, and return it with the id of the proposal."""
    begun = await h.call(propose, KEY, ask(amount))
    assert begun.state is RefundState.PROPOSED
    assert begun.proposal is not None
    return begun, begun.proposal.id


async def ended(h: Harness, begun: Refund) -> Refund:
    """Wait for what becomes of a refund that was begun with `propose`."""
    return await h.client.attach(begun.invocation, type=Refund).result(timeout=20)


async def refused(h: Harness, key: str, request: RefundRequest) -> str:
    with pytest.raises(InvocationFailed) as caught:
        await h.call(refund, key, request)
    return caught.value.code


async def test_a_small_refund_is_paid_and_told(h: Harness, world: World) -> None:
    """One receipt, one movement of money under a qualified id, one mail, and the status adds it up."""
    done = await h.call(refund, KEY, ask("40.00"))

    assert done.state is RefundState.REFUNDED
    assert done.receipt is not None
    assert (done.receipt.amount, done.proposal) == (Decimal("40.00"), None)
    assert await world.sent() == [(done.receipt.operation_id, Decimal("40.00"))]
    assert done.receipt.operation_id.endswith("Order.acme/o-1.refund-1")
    told = await h.call(status, KEY)
    assert (told.refunded, told.pending, told.open) == (Decimal("40.00"), Decimal(0), ())
    assert await h.call(history, KEY) == (done,)
    assert [mail.customer for mail in world.services.mails.sent()] == ["customer-7"]


async def test_partial_refunds_never_exceed_the_order(h: Harness, world: World) -> None:
    """Two of the same amount are two refunds; the one that is too much is refused before anybody is asked."""
    for _ in range(2):
        await h.call(refund, BANK, ask("40.00"))

    with pytest.raises(InvocationFailed, match=r"40\.00 is more than the 20\.00 that is left") as caught:
        await h.call(refund, BANK, ask("40.00"))

    assert (caught.value.code, caught.value.details) == ("exceeds-order", {"left": Decimal("20.00")})
    assert [entry.operation_id[-8:] for entry in await world.transfers.ledger()] == ["refund-1", "refund-2"]
    assert len(world.log.questions()) == 2


async def test_what_must_not_be_is_refused_before_anything_is_written(h: Harness, world: World) -> None:
    """Against the policy, or for an order that does not exist: a code, no money, no trace in the book."""
    assert await refused(h, KEY, ask("40.00", "chargeback, and money back")) == "policy-refused"
    assert await refused(h, "acme/o-9", ask("40.00")) == "order-unknown"

    assert await world.sent() == []
    assert await h.call(history, KEY) == ()


async def test_a_large_refund_waits_for_somebody_who_may_approve_it(h: Harness, world: World) -> None:
    """Who may not is told so; after that of who may, exactly what was approved is paid, once."""
    begun, proposal = await proposed(h, "400.00")

    assert isinstance(await h.client.approve(proposal, by="bob"), NotPermitted)
    assert await world.sent() == []
    assert isinstance(await h.client.approve(proposal, by="ada"), Decided)

    done = await ended(h, begun)
    assert (done.state, done.number) == (RefundState.REFUNDED, begun.number)
    assert [amount for _, amount in await world.sent()] == [Decimal("400.00")]


async def test_a_very_large_refund_takes_two_people(h: Harness, world: World) -> None:
    """One approval is not enough, however often it is given."""
    begun, proposal = await proposed(h, "600.00")

    for _ in range(2):
        await h.client.approve(proposal, by="ada")
    await h.settled()
    assert await world.sent() == []
    await h.client.approve(proposal, by="eve")

    assert (await ended(h, begun)).state is RefundState.REFUNDED


async def test_a_declined_refund_gives_its_amount_back(h: Harness, world: World) -> None:
    """It ends with who declined it and why; then there may be another one for the same money."""
    begun, proposal = await proposed(h, "900.00")

    await h.client.decline(proposal, by="ada", reason="twice in a week")
    done = await ended(h, begun)

    assert done.state is RefundState.DECLINED
    assert "twice in a week" in done.note
    assert (await h.call(status, KEY)).pending == 0
    second, proposal = await proposed(h, "900.00")
    assert second.number == 2
    assert await world.sent() == []


async def test_a_refund_that_nobody_decides_on_expires(h: Harness, world: World) -> None:
    """After two days it ends, and who approves it then comes too late."""
    begun, proposal = await proposed(h, "400.00")

    await h.advance(timedelta(hours=48, seconds=1))

    assert (await ended(h, begun)).state is RefundState.EXPIRED
    assert not isinstance(await h.client.approve(proposal, by="ada"), Decided)
    assert await world.sent() == []


async def test_an_amended_refund_is_approved_anew(h: Harness, world: World) -> None:
    """The approval of the old amount is void; what is paid is what was approved last."""
    begun, old = await proposed(h, "400.00")
    await h.settled()  # it waits for the old version now

    amended = await h.call(amend, KEY, AmendRequest(number=begun.number, amount=Decimal("350.00")))
    assert isinstance(await h.client.approve(old, by="ada"), SupersededBy)
    assert amended.proposal is not None
    await h.client.approve(amended.proposal.id, by="ada")

    done = await ended(h, begun)
    assert (done.state, done.amount) == (RefundState.REFUNDED, Decimal("350.00"))
    assert [amount for _, amount in await world.sent()] == [Decimal("350.00")]


async def test_an_amendment_has_its_limits(h: Harness) -> None:
    """Not above the order, though the refund's own amount counts as free; and not after the end."""
    begun, _ = await proposed(h, "900.00")
    await h.call(amend, KEY, AmendRequest(number=begun.number, amount=Decimal("1000.00")))

    with pytest.raises(InvocationFailed, match="more than") as above:
        await h.call(amend, KEY, AmendRequest(number=begun.number, amount=Decimal("1000.01")))
    with pytest.raises(InvocationFailed) as unknown:
        await h.call(amend, KEY, AmendRequest(number=7, amount=Decimal("1.00")))

    assert (above.value.code, unknown.value.code) == ("exceeds-order", "not-proposed")


async def test_others_go_on_while_people_decide(h: Harness, world: World) -> None:
    """The lane is free: a small one is paid, of what the waiting one leaves over; a second large one is refused."""
    begun, proposal = await proposed(h, "900.00")

    small = await h.call(refund, KEY, ask("80.00"))
    assert small.state is RefundState.REFUNDED
    assert await refused(h, KEY, ask("30.00")) == "exceeds-order"
    world.place(Order(key=KEY, customer="customer-7", amount=Decimal("2000.00")))
    assert await refused(h, KEY, ask("400.00")) == "refund-open"
    await h.client.approve(proposal, by="ada")
    await h.client.approve(proposal, by="eve")

    assert (await ended(h, begun)).state is RefundState.REFUNDED
    assert sorted(amount for _, amount in await world.sent()) == [Decimal("80.00"), Decimal("900.00")]


async def test_a_waiting_refund_can_be_withdrawn(h: Harness, world: World) -> None:
    """A cancel ends it, its amount is free again, and an approval that comes later moves nothing."""
    begun, proposal = await proposed(h, "900.00")
    await h.settled()

    report = await h.client.cancel(begun.invocation, by="ada", reason="the customer keeps it")
    with pytest.raises(InvocationCancelled):
        await ended(h, begun)

    assert report.outcome == "cancelled"
    (withdrawn,) = await h.call(history, KEY)
    assert withdrawn.state is RefundState.WITHDRAWN
    assert (await h.call(status, KEY)).pending == 0
    await h.client.approve(proposal, by="ada")
    await h.client.approve(proposal, by="eve")
    await h.settled()
    assert await world.sent() == []


async def test_a_rejected_refund_leaves_its_number_used(h: Harness, world: World) -> None:
    """It ends with what the receiver said, and the next one has another operation id."""
    await world.cards.set_behaviour(Behaviour(reject_above=Decimal("50.00")))

    rejected = await h.call(refund, KEY, ask("60.00"))
    paid = await h.call(refund, KEY, ask("40.00"))

    assert (rejected.state, rejected.receipt) == (RefundState.REJECTED, None)
    assert "above the limit" in rejected.note
    assert paid.number == 2
    assert [name[-8:] for name, _ in await world.sent()] == ["refund-2"]


async def test_a_busy_receiver_is_asked_again(h: Harness, world: World) -> None:
    """Nothing was decided, so there are further attempts, under the same operation id."""
    await world.cards.set_behaviour(Behaviour(busy_next=3))

    done = await h.call(refund, KEY, ask("40.00"))

    assert done.state is RefundState.REFUNDED
    assert len(await world.sent()) == 1
    counted = await world.cards.statistics()
    assert (counted.sent_again, counted.lookups) == (3, 0)


async def test_a_lost_answer_is_looked_up(h: Harness, world: World) -> None:
    """The money has moved and nobody was told: the receiver is asked, and nothing is sent again."""
    world.lines["cards"].lose_next = 1

    done = await h.call(refund, KEY, ask("40.00"))

    assert done.state is RefundState.REFUNDED
    counted = await world.cards.statistics()
    assert (counted.requests, counted.lookups) == (1, 1)


async def test_what_nobody_can_know_is_settled_by_a_person(h: Harness, world: World) -> None:
    """The bank can't be asked: the refund stays open, with its amount taken, until somebody says what has happened."""
    world.lines["transfers"].lose_next = 1
    begun = await h.call(propose, BANK, ask("60.00"))
    await h.settled()

    assert (await h.call(status, BANK)).pending == Decimal("60.00")
    (case,) = await h.client.reconcile_list("Order")
    assert (case.key, case.operation_id, case.owner) == (BANK, "refund-1", "treasury")
    await h.advance(timedelta(minutes=2))  # nothing can be under way any more
    await h.client.reconcile_not_done("Order", BANK, "refund-1", by="tom", reason="not in the statement")

    done = await ended(h, begun)
    assert (done.state, done.receipt) == (RefundState.REJECTED, None)
    assert (await h.call(status, BANK)).pending == 0


async def test_a_refund_that_was_cancelled_while_it_was_sent_is_taken_up_again(h: Harness, world: World) -> None:
    """The cancel says that nobody knows; the refund stays open, and ends as it turns out, sent once."""
    world.lines["transfers"].lose_next = 1
    begun = await h.call(propose, BANK, ask("60.00"))
    await h.settled()

    report = await h.client.cancel(begun.invocation, by="ada", reason="too slow")
    assert (report.outcome, report.unknown) == ("cancelled", ("transfers.refund refund-1",))
    assert (await h.call(status, BANK)).pending == Decimal("60.00")
    (entry,) = await world.transfers.ledger()
    receipt = Receipt(number=entry.receipt, operation_id=entry.operation_id, amount=Decimal(60), at=entry.committed_at)
    await h.client.reconcile_succeeded("Order", BANK, "refund-1", receipt, by="tom", reason="in the statement")

    done = await h.call(settle, BANK, begun.number)
    assert (done.state, done.receipt) == (RefundState.REFUNDED, receipt)
    assert await h.call(settle, BANK, begun.number) == done
    assert len(await world.transfers.ledger()) == 1


async def test_an_order_that_has_changed_is_not_refunded(h: Harness, world: World) -> None:
    """What was true when it was proposed is looked at again before the money is sent."""
    begun, proposal = await proposed(h, "400.00")
    world.place(Order(key=KEY, customer="somebody else", amount=Decimal("1000.00")))

    await h.client.approve(proposal, by="ada")

    assert (await ended(h, begun)).state is RefundState.REFUSED
    assert await world.sent() == []


async def test_an_approver_who_may_no_longer_approve_does_not_count(h: Harness, world: World) -> None:
    """Who may is asked again before the money is sent: here it waits for a second person meanwhile."""
    begun, proposal = await proposed(h, "600.00")
    await h.client.approve(proposal, by="ada")

    world.services.approvers.set({"eve": Decimal(1000)})
    await h.client.approve(proposal, by="eve")

    assert (await ended(h, begun)).state is RefundState.REFUSED
    assert await world.sent() == []


async def test_tenants_are_apart(h: Harness, world: World) -> None:
    """The same order number and the same amount for two tenants are two refunds, each with its receipt."""
    world.place(Order(key="globex/o-1", customer="customer-7", amount=Decimal("1000.00")))

    first, second = [await h.call(refund, key, ask("40.00")) for key in (KEY, "globex/o-1")]

    assert first.receipt is not None
    assert second.receipt is not None
    assert first.receipt.number != second.receipt.number
    assert len({name for name, _ in await world.sent()}) == 2


async def test_the_flow_replays_as_it_ran(world: World) -> None:
    """With every await replayed: the policy is asked once, and the money moves once."""
    async with harness(order, force="replay") as h:
        begun, proposal = await proposed(h, "400.00")
        await h.client.approve(proposal, by="ada")

        assert (await ended(h, begun)).state is RefundState.REFUNDED
        assert len(world.log.questions()) == 1
        assert len(await world.sent()) == 1
