"""What the demo shows, one thing after the other, before the crowd comes."""

from decimal import Decimal

import anyio

from keylane import Decided, DecisionVerdict, NotPermitted, SupersededBy

from ..models import AmendRequest, PaidBy, Receipt, Refund, RefundRequest, RefundState
from ..order import amend, refund
from ..payments.wire import Behaviour
from .stage import LIMIT_S, Stage, order_of

LARGE, LOST, BANK, TWINS = "acme/o-1", "acme/o-2", "acme/o-3", ("acme/o-4", "globex/o-4")
ORDERS = (
    order_of(LARGE, "900.00"),
    order_of(LOST, "80.00"),
    order_of(BANK, "120.00", PaidBy.TRANSFER),
    *(order_of(key, "60.00") for key in TWINS),
)
APPROVERS = {"ada": Decimal(1000), "bob": Decimal(100)}


async def approvals(stage: Stage) -> None:
    """A refund that people decide on, in exactly the version that they have seen."""
    stage.title("1. A large refund is approved, in the version that was seen")
    first = await stage.proposed(LARGE, RefundRequest(amount=Decimal("700.00"), reason="ticket-1"))
    assert first.proposal is not None
    stage.say(f"700.00 of {LARGE} waits for approval as {first.proposal.id}")
    verdict = await stage.client.approve(first.proposal, by="bob", reason="why not")
    stage.check(f"bob, who may approve up to 100.00: {told(verdict)}", holds=isinstance(verdict, NotPermitted))
    request = AmendRequest(number=first.number, amount=Decimal("600.00"))
    amended = await stage.client.call(amend, LARGE, request, timeout=LIMIT_S)
    assert amended.proposal is not None
    stage.say(f"the customer keeps a part: 600.00 instead, which is {amended.proposal.id}")
    verdict = await stage.client.approve(first.proposal, by="ada")
    stage.check(f"ada approves what she has seen before: {told(verdict)}", holds=isinstance(verdict, SupersededBy))
    verdict = await stage.client.approve(amended.proposal, by="ada")
    stage.check(f"ada approves the new version: {told(verdict)}", holds=isinstance(verdict, Decided))
    done = await stage.ended(LARGE, first.number)
    is_right = done.receipt is not None and done.receipt.amount == Decimal("600.00")
    stage.check(f"{done.state}: {shown(done)}", holds=is_right)


async def lost_answer(stage: Stage) -> None:
    """The money has moved, and the answer is lost: the receiver is asked, and nothing is sent again."""
    stage.title("2. An answer is lost after the money has moved")
    before = await stage.cards.statistics()
    await stage.cards.set_behaviour(Behaviour(drop_next=1))
    request = RefundRequest(amount=Decimal("40.00"), reason="ticket-2")
    done = await stage.client.call(refund, LOST, request, idempotency_key="ticket-2", timeout=LIMIT_S)
    after = await stage.cards.statistics()
    stage.say("the card service has paid, and has closed the connection without a word")
    looked_up, sent = after.lookups - before.lookups, after.requests - before.requests
    stage.check(f"looked up {looked_up} times, sent {sent} times", holds=looked_up >= 1 and sent == 1)
    stage.check(f"{done.state}: {shown(done)}", holds=done.state is RefundState.REFUNDED)


async def twins(stage: Stage) -> None:
    """Two tenants with the same order number and amount are two refunds."""
    stage.title("3. Two tenants have the same order number, and ask for the same amount")
    request = RefundRequest(amount=Decimal("25.00"), reason="ticket-3")
    done = [await stage.client.call(refund, key, request, idempotency_key="ticket-3", timeout=LIMIT_S) for key in TWINS]
    receipts = [each.receipt for each in done if each.receipt is not None]
    for receipt in receipts:
        stage.say(f"{receipt.number} for {receipt.operation_id}")
    stage.check("two receipts", holds=len({receipt.number for receipt in receipts}) == len(TWINS))


async def operator(stage: Stage) -> None:
    """The bank neither knows operation ids nor answers questions: a person has to look."""
    stage.title("4. The bank's answer is lost, and nothing but a person can find out what has happened")
    await stage.transfers.set_behaviour(Behaviour(deduplicates=False, can_look_up=False, drop_next=1))
    asked = await stage.proposed(BANK, RefundRequest(amount=Decimal("55.00"), reason="ticket-4"))
    await lies_with_people(stage, BANK)
    await stage.shell("reconcile", "show", "Order", BANK, f"refund-{asked.number}")
    await stage.shell(*await stage.compared("transfers", stage.transfers), expected=1)
    entry = (await stage.transfers.ledger())[0]
    stage.say(f"tom looks into the bank's statement, and finds {entry.receipt}")
    receipt = Receipt(
        number=entry.receipt, operation_id=entry.operation_id, amount=entry.terms.amount, at=entry.committed_at
    )
    by = ("--by", "tom", "--reason", f"statement of today: {entry.receipt}")
    await stage.shell("reconcile", "succeeded", "Order", BANK, f"refund-{asked.number}", receipt.model_dump_json(), *by)
    done = await stage.ended(BANK, asked.number)
    stage.check(f"{done.state}: {shown(done)}", holds=done.state is RefundState.REFUNDED)
    stage.check("sent once", holds=(await stage.transfers.statistics()).requests == 1)


async def lies_with_people(stage: Stage, key: str) -> None:
    """Wait until an effect of an order is in the queue."""
    with anyio.fail_after(LIMIT_S):
        while not any(case.key == key for case in await stage.client.reconcile_list("Order")):
            await anyio.sleep(0.02)


def shown(done: Refund) -> str:
    """Return how a refund has ended, for the eye."""
    return done.note if done.receipt is None else f"{done.receipt.number} over {done.receipt.amount}"


def told(verdict: DecisionVerdict) -> str:
    """Return a verdict in words."""
    match verdict:
        case Decided():
            return verdict.standing
        case NotPermitted():
            return "not permitted"
        case SupersededBy():
            return f"superseded by version {verdict.version}"
        case _:
            return str(verdict)
