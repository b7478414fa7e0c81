"""The moment that matters: the money has moved, the receipt is not recorded, and the worker is killed."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import anyio
import pytest

from examples.refund_order.demo.processes import Processes
from examples.refund_order.models import Order, PaidBy, Refund, RefundRequest, RefundState
from examples.refund_order.order import history, propose
from examples.refund_order.orders import OrderStore
from examples.refund_order.payments.client import PaymentClient
from examples.refund_order.payments.wire import Behaviour
from examples.refund_order.policy import PolicyLog
from keylane import Client
from keylane.journal.embedded import EmbeddedStore

pytestmark = pytest.mark.anyio
CARD, BANK = "acme/o-1", "acme/o-2"
LIMIT_S = 30


@dataclass
class Scene:
    """A store, a client, and both receivers; workers are started and killed by the test."""

    client: Client
    payments: dict[str, PaymentClient]
    log: PolicyLog
    start_worker: Callable[[], Awaitable[Callable[[], None]]]

    async def paid_and_killed(self, key: str, receiver: str) -> Refund:
        """Begin a refund, and kill the worker once the receiver has paid and before it has answered."""
        kill = await self.start_worker()
        await self.payments[receiver].set_behaviour(self.behaviour(receiver, hold="before_answer"))
        begun = await self.client.call(propose, key, RefundRequest(amount=Decimal("40.00")), timeout=LIMIT_S)
        await until(lambda: self.has_paid(receiver))
        kill()
        await self.payments[receiver].set_behaviour(self.behaviour(receiver))
        return begun

    def behaviour(self, receiver: str, **switches: object) -> Behaviour:
        is_asked = receiver == "cards"
        return Behaviour.model_validate({"deduplicates": is_asked, "can_look_up": is_asked, **switches})

    async def has_paid(self, receiver: str) -> bool:
        return bool(await self.payments[receiver].ledger())

    async def lies_with_people(self, key: str) -> bool:
        return any(case.key == key for case in await self.client.reconcile_list("Order"))


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Return once something holds that only other processes know."""
    with anyio.fail_after(LIMIT_S):
        while not await holds():
            await anyio.sleep(0.01)


@asynccontextmanager
async def staged(folder: Path) -> AsyncGenerator[Scene]:
    OrderStore(folder / "orders.sqlite").add(
        [
            Order(key=CARD, customer="customer-7", amount=Decimal("100.00")),
            Order(key=BANK, customer="customer-8", amount=Decimal("100.00"), paid_by=PaidBy.TRANSFER),
        ]
    )
    log = PolicyLog(folder / "policy.sqlite")
    log.create()
    async with EmbeddedStore(folder / "store") as store, Processes(folder) as processes:
        urls = {name: await processes.payments(folder / f"{name}.sqlite") for name in ("cards", "transfers")}
        environment = {
            "REFUND_ORDER_CARDS_URL": urls["cards"],
            "REFUND_ORDER_TRANSFERS_URL": urls["transfers"],
            "REFUND_ORDER_FILES": str(folder),
        }

        async def start_worker() -> Callable[[], None]:
            number = len(processes.process_ids)
            return (await processes.worker(number, store.url, environment)).kill

        async with (
            PaymentClient(urls["cards"]) as cards,
            PaymentClient(urls["transfers"]) as transfers,
            Client(store.url) as client,
        ):
            yield Scene(client, {"cards": cards, "transfers": transfers}, log, start_worker)


async def test_a_worker_killed_between_payment_and_record_moves_no_money_twice(tmp_path: Path) -> None:
    """Another worker asks the receiver and gets the receipt: nothing is sent again, and the policy is asked once."""
    async with staged(tmp_path) as scene:
        begun = await scene.paid_and_killed(CARD, "cards")
        await scene.start_worker()

        done = await scene.client.attach(begun.invocation, type=Refund).result(timeout=LIMIT_S)

        assert done.state is RefundState.REFUNDED
        assert done.receipt is not None
        assert [entry.receipt for entry in await scene.payments["cards"].ledger()] == [done.receipt.number]
        assert await scene.client.call(history, CARD, timeout=LIMIT_S) == (done,)
        counted = await scene.payments["cards"].statistics()
        assert (counted.requests, counted.lookups) == (1, 1)
        assert len(scene.log.questions()) == 1


async def test_where_nothing_can_tell_a_person_does(tmp_path: Path) -> None:
    """The bank can't be asked: nothing is sent again, and the refund goes on with what a person has found out."""
    async with staged(tmp_path) as scene:
        begun = await scene.paid_and_killed(BANK, "transfers")
        await scene.start_worker()
        await until(lambda: scene.lies_with_people(BANK))
        (entry,) = await scene.payments["transfers"].ledger()

        receipt = {
            "number": entry.receipt,
            "operation_id": entry.operation_id,
            "amount": entry.terms.amount,
            "at": entry.committed_at,
        }
        await scene.client.reconcile_succeeded(
            "Order", BANK, "refund-1", receipt, by="tom", reason="statement of today"
        )  # fmt: skip

        done = await scene.client.attach(begun.invocation, type=Refund).result(timeout=LIMIT_S)
        assert done.receipt is not None
        assert (done.state, done.receipt.number) == (RefundState.REFUNDED, entry.receipt)
        assert (await scene.payments["transfers"].statistics()).requests == 1
