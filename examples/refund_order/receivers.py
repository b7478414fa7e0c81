"""Who pays refunds out, what each of them promises, and what is asked of them.

This is the page that decides what a lost answer costs. A receiver is declared as its provider's documentation has it,
and no better: whether it takes an operation id once and for how long, whether one can ask it what became of an id, how
late that may show, and who settles what neither can tell.

| receiver | takes an id once | can be asked | so an unknown outcome is |
| --- | --- | --- | --- |
| `cards` | for 24 hours | yes | looked up, and where nothing is found sent again under the same id |
| `stripe` | not relied on here | by metadata | looked up, and where nothing is found put before a person |
| `transfers` | no | no | put before a person |
"""

from datetime import timedelta
from decimal import Decimal
from typing import TypedDict

import anyio.to_thread

from keylane import Deduplicates, Effect, NotSent, Receiver, Rejected, TerminalError

from . import services
from .models import PaidBy, Receipt, RefundTerms
from .payments import wire
from .payments.client import NotSent as NothingLeft
from .payments.client import PaymentClient, PaymentsBusy, RequestRefused

CALL_TIMEOUT = timedelta(seconds=10)
#: How long a request that has left may still be carried out, as the providers say.
IN_FLIGHT = timedelta(seconds=30)


class Facts(TypedDict):
    """What was looked at right before a refund was sent."""

    customer: str
    paid: Decimal


async def look_again(terms: RefundTerms) -> Facts:
    """Look at the order once more: people may have taken two days to approve the refund.

    Raises:
        TerminalError: The order is gone, has another customer, or costs less than it did.
    """
    placed = await anyio.to_thread.run_sync(services.current().orders.read, terms.order)
    if placed is None or placed.customer != terms.recipient or placed.amount < terms.amount:
        raise TerminalError(f"order {terms.order} is not what it was when this was asked for", code="order-changed")
    return Facts(customer=placed.customer, paid=placed.amount)


async def find_card_refund(operation_id: str, _: RefundTerms) -> Receipt | None:
    """Ask the card service what became of an operation id.

    Raises:
        Rejected: It was rejected.
    """
    answer = await services.current().cards.find(operation_id)
    return None if answer is None else receipt_of(answer)


async def find_stripe_refund(operation_id: str, terms: RefundTerms) -> Receipt | None:
    """Look for a refund of this payment that has the operation id in its metadata."""
    return await services.current().stripe.find(operation_id, terms)


cards = Receiver(
    "cards",
    owner="payments-oncall",
    deduplicates=Deduplicates(retention=timedelta(hours=24)),
    lookup=find_card_refund,
    in_flight=IN_FLIGHT,
    reconcile_within=timedelta(hours=4),
    runbook="Give the operation id to the desk of the card service; it answers within the hour.",
)
stripe = Receiver(
    "stripe",
    owner="payments-oncall",
    lookup=find_stripe_refund,
    lookup_lag=timedelta(seconds=5),
    in_flight=IN_FLIGHT,
    reconcile_within=timedelta(hours=4),
    runbook="Search the payment in the dashboard; its refunds show operation_id among their metadata.",
)
transfers = Receiver(
    "transfers",
    owner="treasury",
    in_flight=IN_FLIGHT,
    reconcile_within=timedelta(hours=24),
    runbook="Look for the operation id in the remittance texts of today's account statement, then say what you found.",
)


@cards.effect("refund", timeout=CALL_TIMEOUT, recheck=look_again)
async def refund_card(operation_id: str, terms: RefundTerms) -> Receipt:
    """Have the card service pay."""
    return await pay(services.current().cards, operation_id, terms)


@stripe.effect("refund", timeout=CALL_TIMEOUT, recheck=look_again)
async def refund_stripe(operation_id: str, terms: RefundTerms) -> Receipt:
    """Have Stripe pay."""
    return await services.current().stripe.refund(operation_id, terms)


@transfers.effect("refund", timeout=CALL_TIMEOUT, recheck=look_again)
async def refund_transfer(operation_id: str, terms: RefundTerms) -> Receipt:
    """Have the bank transfer the money."""
    return await pay(services.current().transfers, operation_id, terms)


EFFECTS: dict[PaidBy, Effect[RefundTerms, Receipt]] = {
    PaidBy.CARD: refund_card,
    PaidBy.STRIPE: refund_stripe,
    PaidBy.TRANSFER: refund_transfer,
}


async def pay(service: PaymentClient, operation_id: str, terms: RefundTerms) -> Receipt:
    """Ask a payment service for a refund, and tell the three kinds of answer apart.

    A receipt is returned and a "no" is `Rejected`. Where nothing was decided for certain it is `NotSent`, and there
    may be another attempt. All else (a timeout, a lost connection, a failure of the service, an answer that nobody
    expected) is let through as the exception that it is, and means that the outcome is unknown.
    """
    asked = wire.RefundTerms(order=terms.order, recipient=terms.recipient, amount=terms.amount)
    try:
        answer = await service.refund(operation_id, asked)
    except NothingLeft as error:
        raise NotSent(str(error)) from error
    except PaymentsBusy as error:
        raise NotSent(str(error), retry_after=error.retry_after_s) from error
    except RequestRefused as error:
        if error.problem.error == "key_reused":
            raise  # the service knows this id for something else: nobody but a person can tell what that was
        raise Rejected(str(error)) from error
    return receipt_of(answer)


def receipt_of(answer: wire.Receipt | wire.Rejection) -> Receipt:
    """Turn what the service says into a receipt.

    Raises:
        Rejected: It said no.
    """
    if isinstance(answer, wire.Rejection):
        raise Rejected(answer.message)
    return Receipt(
        number=answer.receipt,
        operation_id=answer.operation_id,
        amount=answer.terms.amount,
        at=answer.committed_at,
    )
