"""The moment that matters: the money has moved, the receipt is not recorded, and the worker is killed."""

from decimal import Decimal
from pathlib import Path

import anyio
import pytest

from examples.refund_order.demo.processes import Processes
from examples.refund_order.models import Order, RefundRequest, RefundResult
from examples.refund_order.order import refund, status
from examples.refund_order.orders import OrderStore
from examples.refund_order.payments.client import PaymentClient
from examples.refund_order.payments.wire import Behaviour
from examples.refund_order.policy import PolicyLog
from keylane import Client
from keylane.journal.embedded import EmbeddedStore

pytestmark = pytest.mark.anyio
KEY = "acme/o-1"
ANSWER_LIMIT_S = 30


async def test_a_worker_killed_between_payment_and_record_moves_no_money_twice(tmp_path: Path) -> None:
    """Another worker sends the same id, gets the first receipt, and does not ask the policy check again."""
    OrderStore(tmp_path / "orders.sqlite").add([Order(key=KEY, customer="customer-7", amount=Decimal("100.00"))])
    log = PolicyLog(tmp_path / "policy.sqlite")
    log.create()
    results: list[RefundResult] = []
    async with EmbeddedStore(tmp_path / "store") as store, Processes(tmp_path) as processes:
        url = await processes.payments(tmp_path / "ledger.sqlite")
        environment = {
            "REFUND_ORDER_PAYMENTS_URL": url,
            "REFUND_ORDER_PAYMENT_TIMEOUT_S": "60",
            "REFUND_ORDER_ORDERS_PATH": str(tmp_path / "orders.sqlite"),
            "REFUND_ORDER_POLICY_PATH": str(tmp_path / "policy.sqlite"),
        }
        worker = await processes.worker(1, store.url, environment)
        async with PaymentClient(url) as payments, Client(store.url) as client, anyio.create_task_group() as group:
            await payments.set_behaviour(Behaviour(answer_delay_ms=60_000))
            group.start_soon(_ask, client, results)
            await _paid(payments)
            worker.kill()
            await payments.set_behaviour(Behaviour())

            await processes.worker(2, store.url, environment)
            with anyio.fail_after(ANSWER_LIMIT_S):
                while not results:
                    await anyio.sleep(0.01)

            entries = await payments.ledger()
            told = await client.call(status, KEY, timeout=ANSWER_LIMIT_S)
            assert [entry.receipt for entry in entries] == [results[0].receipt.receipt]
            assert list(told.receipts) == [results[0].receipt]
            assert (await payments.statistics()).sent_again == 1
            assert len(log.questions()) == 1


async def _ask(client: Client, results: list[RefundResult]) -> None:
    request = RefundRequest(amount=Decimal("40.00"))
    results.append(await client.call(refund, KEY, request, timeout=ANSWER_LIMIT_S))


async def _paid(payments: PaymentClient) -> None:
    """Wait until the ledger has an entry."""
    with anyio.fail_after(ANSWER_LIMIT_S):
        while not await payments.ledger():
            await anyio.sleep(0.01)
