"""The order as a virtual object: refunds of one order happen one after the other, each of them once.

What a crash does to a refund, step by step:

- Before "policy check" is recorded: the check is asked again; nothing else has happened.
- After it: the recorded decision is used, the check is not asked again.
- While "send refund" is under way: another worker sends the same operation id with the same terms, and the
  payment service, which remembers the id, answers with the first receipt if the money had moved already.

The last line is a promise of the payment service and not of this code: it holds for as long as the service
remembers the id (24 hours here). A refund that stays open for longer must be looked up before it is sent.
"""

from datetime import timedelta
from urllib.parse import quote

import anyio.to_thread

from keylane import Key, ObjectContext, RetryableError, SharedContext, TerminalError, VirtualObject

from . import services
from .models import (
    Answer,
    Decision,
    Order,
    OrderStatus,
    Receipt,
    RefundRequest,
    RefundResult,
    RefundTerms,
    Rejection,
    terms_of,
    total,
)
from .payments.client import PaymentsBusy, RequestRefused

REFUNDS_BEGUN = "refunds_begun"
REFUNDED = "refunded"

order = VirtualObject("Order", owner="refunds-oncall", state={REFUNDS_BEGUN: int, REFUNDED: list[Receipt]})


@order.handler
async def refund(ctx: ObjectContext, request: RefundRequest) -> RefundResult:
    """Pay back a part of the order, or all of it.

    Raises:
        TerminalError: With the code `order-unknown`, `exceeds-order`, `policy-refused` or `payment-rejected`.
    """
    operation_id = await begin(ctx)
    placed = await ctx.run("read order", read_order, str(ctx.key))
    if placed is None:
        raise TerminalError(f"there is no order {ctx.key}", code="order-unknown")

    receipts = await ctx.get(REFUNDED, list[Receipt], [])
    left = placed.amount - total(receipts)
    if request.amount > left:
        message = f"{request.amount} is more than the {left} that is left of order {ctx.key}"
        raise TerminalError(message, code="exceeds-order", details={"left": left})

    decision = await ctx.run("policy check", ask_policy, operation_id, placed, request)
    if not decision.allowed:
        raise TerminalError(decision.reason, code="policy-refused")

    answer = await ctx.run("send refund", send_refund, operation_id, terms_of(placed, request))
    if isinstance(answer, Rejection):
        raise TerminalError(answer.message, code="payment-rejected", details={"reason": answer.reason})
    ctx.set(REFUNDED, [*receipts, answer])
    return RefundResult(receipt=answer, left=left - request.amount)


@order.shared
async def status(ctx: SharedContext) -> OrderStatus:
    """Say what has been refunded; answered while a refund of the same order is under way."""
    return OrderStatus.of(str(ctx.key), await ctx.get(REFUNDED, list[Receipt], []))


async def begin(ctx: ObjectContext) -> str:
    """Give this refund its number within the order, and by it the operation id.

    The number becomes durable together with the first step, so before anything is sent. A retry of this
    invocation gets the same number, since it replays what was read; the next refund gets the next one, since
    a number is never given back, not even when the refund is refused.
    """
    number = await ctx.get(REFUNDS_BEGUN, int, 0) + 1
    ctx.set(REFUNDS_BEGUN, number)
    return operation_id_of(ctx.key, number)


def operation_id_of(key: Key, number: int) -> str:
    """Name a refund for the outside world: by what it is, not by who carries it out or how often.

    Quoted, because an HTTP header takes no more than ASCII.
    """
    return f"{quote(str(key), safe='/')}/refund-{number}"


async def read_order(key: str) -> Order | None:
    """Step: read the order from the order store."""
    return await anyio.to_thread.run_sync(services.current().orders.read, key)


async def ask_policy(operation_id: str, placed: Order, request: RefundRequest) -> Decision:
    """Step: ask whether this refund is within the policy."""
    return await services.current().policy.ask(operation_id, placed, request)


async def send_refund(operation_id: str, terms: RefundTerms) -> Answer:
    """Step: send the refund and get the receipt, or the "no" of the payment service.

    A "no" is an answer like a receipt: it is recorded, and not asked for again. An unknown outcome (lost
    connection, timeout, failure of the service) leaves as the exception that it is, and so does a service
    that can't be reached: this step runs again, with the same operation id.

    Raises:
        RetryableError: The service asks to come back later.
        TerminalError: It refuses the request itself, so sending it again would change nothing.
    """
    try:
        return await services.current().payments.refund(operation_id, terms)
    except PaymentsBusy as error:
        raise RetryableError(str(error), retry_after=timedelta(seconds=error.retry_after_s)) from error
    except RequestRefused as error:
        raise TerminalError(str(error), code="payment-request-refused") from error
