"""The order as a virtual object: its refunds happen one after the other, each of them once, and never above its price.

What a crash does to a refund, step by step:

- Before "policy check" is recorded: the check is asked again; nothing else has happened.
- While people decide: nothing. The worker does not hold the refund, the store does.
- While the refund is sent: its intent is recorded and its receipt is not, so nobody here can know whether the money
  has moved. The next owner of the order finds that out by what the receiver promises (see `receivers`), and where the
  receiver promises too little, a person does. Only then does the handler go on.
- After that: the receipt is recorded; the customer may be told twice, since that is a plain step.
"""

from datetime import timedelta
from decimal import Decimal

import anyio.to_thread

from keylane import (
    Approval,
    ApprovalDeclined,
    ApprovalExpired,
    Cancelled,
    EffectRejected,
    ModelAnswer,
    ObjectContext,
    Proposal,
    SharedContext,
    Superseded,
    TerminalError,
    VirtualObject,
)

from . import services
from .models import (
    OPEN,
    AmendRequest,
    Book,
    Decision,
    Order,
    OrderStatus,
    Receipt,
    Refund,
    RefundRequest,
    RefundState,
    RefundTerms,
)
from .policy import MODEL
from .receivers import EFFECTS

BOOK = "book"
ACTION = "refund"
#: How long people have to decide, and how long what they approved may be carried out.
APPROVAL_WITHIN = timedelta(hours=48)


async def may_approve(approver: str, proposal: Proposal) -> bool:
    """Say whether somebody may approve a refund: asked when they do, and again before the money is sent."""
    limit = await anyio.to_thread.run_sync(services.current().approvers.limit_of, approver)
    return limit is not None and proposal["amount"] <= limit


order = VirtualObject(
    "Order",
    owner="refunds-oncall",
    state={BOOK: Book},
    effects=EFFECTS.values(),
    may_approve=may_approve,
)


@order.handler
async def refund(ctx: ObjectContext, request: RefundRequest) -> Refund:
    """Refund a part of the order, or all of it, and return what became of that.

    Raises:
        TerminalError: Nothing was begun: `order-unknown`, `exceeds-order`, `policy-refused` or `refund-open`.
    """
    asked = await begin(ctx, request)
    return await carry_out(ctx, asked.number)


@order.handler
async def propose(ctx: ObjectContext, request: RefundRequest) -> Refund:
    """Begin a refund and return at once; it is carried out in an invocation of its own.

    Raises:
        TerminalError: As for `refund`.
    """
    asked = await begin(ctx, request)
    sent = await ctx.send(settle, ctx.key, asked.number)
    return await write(ctx, asked.but(invocation=sent.id))


@order.handler
async def settle(ctx: ObjectContext, number: int) -> Refund:
    """Carry out a refund that has begun, or go on with one whose invocation was cancelled while it was being sent."""
    return await carry_out(ctx, number)


@order.handler
async def amend(ctx: ObjectContext, request: AmendRequest) -> Refund:
    """Change the amount of a refund that waits for approval: people decide anew, on the new amount alone.

    Raises:
        TerminalError: `not-proposed`, `order-unknown`, `exceeds-order` or `policy-refused`.
    """
    book = await ctx.get(BOOK, Book, Book())
    asked = book.find(request.number)
    if asked is None or asked.state is not RefundState.PROPOSED:
        raise TerminalError(f"refund {request.number} of {ctx.key} does not wait for approval", code="not-proposed")
    placed = await read(ctx)
    require_left(placed, book, request.amount, instead_of=asked.amount)
    decision = await checked(ctx, placed, RefundRequest(amount=request.amount, reason=asked.reason))
    terms = asked.terms.model_copy(update={"amount": request.amount})
    # What was proposed by an approval stays so, however little it has become.
    amended = await put_before_people(ctx, asked.but(terms=terms), decision, quorum=max(1, decision.approvals))
    return await write(ctx, amended)


@order.shared
async def status(ctx: SharedContext) -> OrderStatus:
    """Say what is refunded and what is open; answered while a refund of the same order is under way."""
    return OrderStatus.of(str(ctx.key), await ctx.get(BOOK, Book, Book()))


@order.shared
async def history(ctx: SharedContext) -> tuple[Refund, ...]:
    """Tell all refunds of the order, oldest first."""
    return (await ctx.get(BOOK, Book, Book())).refunds


async def begin(ctx: ObjectContext, request: RefundRequest) -> Refund:
    """Look at the facts, ask the policy, and enter the refund into the book.

    Its number names it for the outside world: it becomes durable together with what comes next, a retry replays it,
    and it is never given out again, not even when the refund comes to nothing.
    """
    placed = await read(ctx)
    book = await ctx.get(BOOK, Book, Book())
    require_left(placed, book, request.amount)
    decision = await checked(ctx, placed, request)
    terms = RefundTerms(order=placed.key, recipient=placed.customer, amount=request.amount, payment=placed.payment)
    asked = Refund(number=book.next_number, terms=terms, paid_by=placed.paid_by, reason=request.reason)
    if decision.approvals:
        if book.proposed is not None:
            message = f"refund {book.proposed.number} of {ctx.key} waits for approval: amend it, or let it be decided"
            raise TerminalError(message, code="refund-open", details={"number": book.proposed.number})
        asked = await put_before_people(ctx, asked, decision, quorum=decision.approvals)
    return await write(ctx, asked)


async def carry_out(ctx: ObjectContext, number: int) -> Refund:
    """Wait for approval where that is needed, send the refund, and tell the customer."""
    asked = await find(ctx, number)
    if asked.state not in OPEN:
        return asked
    await write(ctx, asked.but(invocation=ctx.invocation_id))
    try:
        approval = await approved(ctx, number)
        receipt = await send(ctx, number, approval)
    except TerminalError as refused:
        return await close(ctx, number, ending_of(refused), str(refused))
    except Cancelled as told:
        asked = await find(ctx, number)
        # One that was being sent stays open: nobody knows here whether the money has moved, but `settle` finds out.
        state = RefundState.WITHDRAWN if asked.state is RefundState.PROPOSED else asked.state
        await close(ctx, number, state, str(told))
        raise
    done = await close(ctx, number, RefundState.REFUNDED, "", receipt)
    await ctx.run("tell customer", tell_customer, done)
    return done


async def approved(ctx: ObjectContext, number: int) -> Approval | None:
    """Wait until people have approved the refund, in the version in which it stands then; None where nobody has to.

    Others may use the lane meanwhile. One of them may amend the refund; then the wait for the old version ends, or
    its approval comes too late to be of use, and people are asked about the new one.
    """
    while (proposal := (await find(ctx, number)).proposal) is not None:
        try:
            approval = await ctx.approval(proposal, release_lane=True)
        except Superseded:
            if (await find(ctx, number)).proposal == proposal:
                raise  # not by a change of this refund
            continue
        if (await find(ctx, number)).proposal == proposal:
            return approval
    return None


async def send(ctx: ObjectContext, number: int, approval: Approval | None) -> Receipt:
    """Send the refund; it ends with what the receiver has done for certain, however long it takes to know."""
    asked = await write(ctx, (await find(ctx, number)).but(state=RefundState.SENDING))
    effect = EFFECTS[asked.paid_by]
    return await ctx.effect(effect, operation_id=f"refund-{number}", params=asked.terms, approval=approval)


async def put_before_people(ctx: ObjectContext, asked: Refund, decision: Decision, *, quorum: int) -> Refund:
    """Have people decide on exactly this amount for exactly this recipient."""
    proposal = await ctx.propose(
        action=ACTION,
        amount=asked.amount,
        recipient=asked.terms.recipient,
        expires_in=APPROVAL_WITHIN,
        quorum=quorum,
        notes={"reason": asked.reason, "policy": decision.reason},
    )
    return asked.but(state=RefundState.PROPOSED, proposal=proposal)


async def close(
    ctx: ObjectContext, number: int, state: RefundState, note: str, receipt: Receipt | None = None
) -> Refund:
    """Enter into the book how a refund has ended. That is a result, not an error: it was begun, and others read it."""
    return await write(ctx, (await find(ctx, number)).but(state=state, note=note, receipt=receipt))


async def write(ctx: ObjectContext, refund: Refund) -> Refund:
    """Enter a refund into the book as it is now, durable with whatever the handler records next."""
    ctx.set(BOOK, (await ctx.get(BOOK, Book, Book())).put(refund))
    return refund


async def find(ctx: ObjectContext, number: int) -> Refund:
    found = (await ctx.get(BOOK, Book, Book())).find(number)
    if found is None:
        raise TerminalError(f"{ctx.key} has no refund {number}", code="refund-unknown")
    return found


async def read(ctx: ObjectContext) -> Order:
    placed = await ctx.run("read order", read_order, str(ctx.key))
    if placed is None:
        raise TerminalError(f"there is no order {ctx.key}", code="order-unknown")
    return placed


async def checked(ctx: ObjectContext, placed: Order, request: RefundRequest) -> Decision:
    decision = await ctx.model("policy check", ask_policy, placed, request, model=MODEL)
    if not decision.allowed:
        raise TerminalError(decision.reason, code="policy-refused")
    return decision


def require_left(placed: Order, book: Book, amount: Decimal, *, instead_of: Decimal = Decimal(0)) -> None:
    """Refuse what is more than is left: of the price, less all that is paid back or may be yet."""
    left = placed.amount - book.taken + instead_of
    if amount > left:
        message = f"{amount} is more than the {left} that is left of order {placed.key}"
        raise TerminalError(message, code="exceeds-order", details={"left": left})


def ending_of(refused: TerminalError) -> RefundState:
    """Say how a refund ends that was refused on its way."""
    match refused:
        case ApprovalDeclined():
            return RefundState.DECLINED
        case ApprovalExpired():
            return RefundState.EXPIRED
        case EffectRejected():
            return RefundState.REJECTED
        case _:
            return RefundState.REFUSED


async def read_order(key: str) -> Order | None:
    """Step: read the order from the order store."""
    return await anyio.to_thread.run_sync(services.current().orders.read, key)


async def ask_policy(placed: Order, request: RefundRequest) -> ModelAnswer[Decision]:
    """Step: ask a model whether this refund is within the policy; the answer is recorded with what it has cost."""
    return await services.current().policy.ask(placed, request)


async def tell_customer(done: Refund) -> None:
    """Step: tell the customer; after a crash perhaps once more."""
    text = f"refund {done.number} of {done.terms.order}: {done.amount}"
    await anyio.to_thread.run_sync(services.current().mails.send, done.terms.recipient, text)
