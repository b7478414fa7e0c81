"""What the decorators make of a function's types, and which functions they refuse; never run, only checked."""

from dataclasses import dataclass
from datetime import timedelta
from typing import assert_type

from keylane import (
    BlockingObjectContext,
    BlockingSharedContext,
    Deduplicates,
    Effect,
    Handler,
    NoInput,
    ObjectContext,
    Proposal,
    Receiver,
    RetryPolicy,
    SharedContext,
    VirtualObject,
)


@dataclass
class Ask:
    amount: int


@dataclass
class Done:
    receipt: str


order = VirtualObject("Order", owner="refunds-oncall")
VirtualObject("Order")  # type: ignore[call-arg]  # E an object type without an owner


@order.handler
async def refund(ctx: ObjectContext, request: Ask) -> Done:
    return Done("r")


@order.handler
def blocking_refund(ctx: BlockingObjectContext, request: Ask) -> Done:
    return Done("r")


@order.handler
async def touch(ctx: ObjectContext) -> None: ...


@order.handler()
def blocking_touch(ctx: BlockingObjectContext) -> int:
    return 1


@order.handler(name="refund", version=2, retry=RetryPolicy(attempts=3), private=True)
async def refund_or_none(ctx: ObjectContext, request: Ask | None) -> Done:
    return Done("r")


@order.handler
async def refund_many(ctx: ObjectContext, requests: list[Ask]) -> dict[str, Done]:
    return {}


@order.handler
async def only_reads(ctx: SharedContext) -> int:
    return 1


@order.shared
async def count(ctx: SharedContext) -> int:
    return 1


@order.shared(name="find", private=True)
def blocking_find(ctx: BlockingSharedContext, receipt: str) -> Done | None:
    return None


assert_type(refund, Handler[Ask, Done])
assert_type(blocking_refund, Handler[Ask, Done])
assert_type(touch, Handler[NoInput, None])
assert_type(blocking_touch, Handler[NoInput, int])
assert_type(refund_or_none, Handler[Ask | None, Done])
assert_type(refund_many, Handler[list[Ask], dict[str, Done]])
assert_type(only_reads, Handler[NoInput, int])
assert_type(count, Handler[NoInput, int])
assert_type(blocking_find, Handler[str, Done | None])


@order.handler  # type: ignore[arg-type]  # E a plain def with the awaiting context
def plain_awaiting(ctx: ObjectContext, request: Ask) -> Done:
    return Done("r")


@order.handler  # type: ignore[arg-type]  # E a handler with two arguments
async def two_arguments(ctx: ObjectContext, first: Ask, second: Ask) -> Done:
    return Done("r")


@order.handler  # type: ignore[arg-type]  # E a handler without a context
async def no_context() -> Done:
    return Done("r")


@order.shared  # type: ignore[arg-type]  # E an exclusive context in a shared handler
async def exclusive_shared(ctx: ObjectContext) -> int:
    return 1


@order.shared  # type: ignore[arg-type]  # E an exclusive context in a blocking shared handler
def blocking_exclusive_shared(ctx: BlockingObjectContext, request: Ask) -> int:
    return 1


order.handler(retries=3)  # type: ignore[call-overload]  # E an option that does not exist
order.shared(version=2)  # type: ignore[call-overload]  # E an option that a shared handler has not
refund.name = "other"  # type: ignore[misc]  # E a handler does not change
refund(None, Ask(1))  # type: ignore[operator]  # E a handler is called through a client or a context


async def find_payment(operation_id: str, params: Ask) -> Done | None:
    return None


async def find_by_number(number: int, params: Ask) -> Done | None:
    return None


payments = Receiver("payments", owner="payments-oncall", lookup=find_payment, absent_means="not_done")
Receiver("payments")  # type: ignore[call-arg]  # E a receiver without an owner
Receiver("payments", owner="me", lookup=find_by_number)  # type: ignore[arg-type]  # E an operation id is text
Receiver("payments", owner="me", absent_means="nothing")  # type: ignore[arg-type]  # E no such meaning
Receiver("payments", owner="me", deduplicates=timedelta(days=1))  # type: ignore[arg-type]  # E it says how long and what
Receiver("payments", owner="me", deduplicates=Deduplicates(timedelta(days=1)), in_flight=timedelta(minutes=2))


@payments.effect("refund", timeout=timedelta(seconds=5))
async def send_refund(operation_id: str, terms: Ask) -> Done:
    return Done(operation_id)


@payments.effect("note", on_unknown="ask")
async def send_note(operation_id: str, text: str | None) -> None: ...


@payments.effect("charge", compensate_with=send_refund)
async def send_charge(operation_id: str, terms: Ask) -> Done:
    return Done(operation_id)


assert_type(send_refund, Effect[Ask, Done])
assert_type(send_charge, Effect[Ask, Done])
assert_type(send_note, Effect[str | None, None])


@payments.effect("plain")  # type: ignore[arg-type]  # E a plain def
def send_plainly(operation_id: str, terms: Ask) -> Done:
    return Done(operation_id)


@payments.effect("lacking")  # type: ignore[arg-type]  # E a function without an operation id
async def send_lacking(terms: Ask) -> Done:
    return Done("r")


payments.effect("retrying", on_unknown="retry")  # type: ignore[arg-type]  # E no such choice
payments.effect("undone", compensate_with=find_payment)  # type: ignore[arg-type]  # E a function is no effect


async def may_approve(approver: str, proposal: Proposal) -> bool:
    return proposal.action == approver


VirtualObject("Order", owner="refunds-oncall", effects=[send_refund, send_note], may_approve=may_approve)
VirtualObject("Order", owner="refunds-oncall", effects=[may_approve])  # type: ignore[list-item]  # E no effect
VirtualObject("Order", owner="refunds-oncall", may_approve=find_payment)  # type: ignore[arg-type]  # E it says no yes or no
