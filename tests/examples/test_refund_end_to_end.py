"""Refunds through the real engine, a real store and a real payment process."""

from collections.abc import AsyncGenerator
from decimal import Decimal
from pathlib import Path
from typing import Protocol

import anyio
import pytest

from examples.refund_order import services
from examples.refund_order.app import app
from examples.refund_order.models import Order, Receipt, RefundRequest
from examples.refund_order.order import refund, status
from examples.refund_order.orders import OrderStore
from examples.refund_order.payments.client import PaymentClient
from examples.refund_order.payments.wire import Behaviour
from examples.refund_order.policy import PolicyCheck, PolicyLog
from keylane import InvocationFailed, Runtime

pytestmark = pytest.mark.anyio
KEY = "acme/o-1"
ANSWER_LIMIT_S = 20


class Process(Protocol):
    @property
    def url(self) -> str: ...


@pytest.fixture
async def payments(payment_process: Process) -> AsyncGenerator[PaymentClient]:
    async with PaymentClient(payment_process.url) as client:
        yield client


@pytest.fixture
def log(tmp_path: Path) -> PolicyLog:
    log = PolicyLog(tmp_path / "policy.sqlite")
    log.create()
    return log


@pytest.fixture
async def runtime(tmp_path: Path, log: PolicyLog, payments: PaymentClient) -> AsyncGenerator[Runtime]:
    """A worker in this process, with an order over 100.00."""
    orders = OrderStore(tmp_path / "orders.sqlite")
    orders.add([Order(key=KEY, customer="customer-7", amount=Decimal("100.00"))])
    policy = PolicyCheck(log, latency_ms=5, decided_by_people_above=Decimal("400.00"))
    with services.use(services.Services(orders, policy, payments)):
        async with Runtime(app, store=f"embedded:{tmp_path / 'store'}") as runtime:
            yield runtime


async def ask(runtime: Runtime, amount: str, name: str) -> Receipt | str:
    """Ask for a refund and return the receipt, or the code of the refusal."""
    request = RefundRequest(amount=Decimal(amount))
    try:
        result = await runtime.client.call(refund, KEY, request, idempotency_key=name, timeout=ANSWER_LIMIT_S)
    except InvocationFailed as error:
        return error.code
    return result.receipt


async def test_conflicting_refunds_never_exceed_the_order(runtime: Runtime, payments: PaymentClient) -> None:
    """Of three refunds at once, of which two fit, two are done and one is refused."""
    outcomes: list[Receipt | str] = []

    async def note(amount: str, name: str) -> None:
        outcomes.append(await ask(runtime, amount, name))

    async with anyio.create_task_group() as group:
        for number, amount in enumerate(("45.00", "50.00", "45.00")):
            group.start_soon(note, amount, f"ticket-{number}")

    receipts = [outcome for outcome in outcomes if isinstance(outcome, Receipt)]
    assert [outcome for outcome in outcomes if isinstance(outcome, str)] == ["exceeds-order"]
    assert {entry.receipt for entry in await payments.ledger()} == {receipt.receipt for receipt in receipts}
    told = await runtime.client.call(status, KEY, timeout=ANSWER_LIMIT_S)
    assert told.refunded == sum(receipt.terms.amount for receipt in receipts) <= Decimal("100.00")


async def test_a_lost_answer_is_asked_for_again_under_the_same_id(
    runtime: Runtime, payments: PaymentClient, log: PolicyLog
) -> None:
    """Two answers lost after the commit: one refund, one ledger entry, the policy check asked once."""
    await payments.set_behaviour(Behaviour(drop_next=2))

    receipt = await ask(runtime, "40.00", "ticket-1")

    assert isinstance(receipt, Receipt)
    assert [entry.operation_id for entry in await payments.ledger()] == [receipt.operation_id]
    assert (await payments.statistics()).dropped == 2
    assert len(log.questions()) == 1


async def test_a_caller_that_asks_again_gets_the_first_answer(runtime: Runtime, payments: PaymentClient) -> None:
    """The caller's own key makes its second try the same refund; another key is another refund."""
    first = await ask(runtime, "40.00", "ticket-1")
    again = await ask(runtime, "40.00", "ticket-1")
    other = await ask(runtime, "40.00", "ticket-2")

    assert again == first
    assert isinstance(other, Receipt)
    assert other != first
    assert len(await payments.ledger()) == 2


async def test_the_status_is_told_while_a_refund_is_under_way(runtime: Runtime, payments: PaymentClient) -> None:
    """A reader does not wait for the lane, and sees nothing that is not yet recorded."""
    await ask(runtime, "30.00", "ticket-1")
    await payments.set_behaviour(Behaviour(answer_delay_ms=1_000))

    told: list[Decimal] = []
    async with anyio.create_task_group() as group:
        group.start_soon(ask, runtime, "40.00", "ticket-2")
        with anyio.fail_after(ANSWER_LIMIT_S):
            while len(await payments.ledger()) < 2:
                await anyio.lowlevel.checkpoint()
        told.append((await runtime.client.call(status, KEY, timeout=1)).refunded)
    told.append((await runtime.client.call(status, KEY, timeout=1)).refunded)

    assert told == [Decimal("30.00"), Decimal("70.00")]
