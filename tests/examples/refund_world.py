"""The systems around the order for a test: receivers in this process whose answers can be lost."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path

import httpx

from examples.refund_order import services
from examples.refund_order.approvers import Approvers
from examples.refund_order.mails import Mails
from examples.refund_order.models import Order, PaidBy
from examples.refund_order.orders import OrderStore
from examples.refund_order.payments.client import PaymentClient
from examples.refund_order.payments.ledger import Ledger
from examples.refund_order.payments.service import PaymentService
from examples.refund_order.policy import PolicyCheck, PolicyLog
from examples.refund_order.stripe_refunds import StripeRefunds

KEY, BANK = "acme/o-1", "acme/o-2"


class LosingTransport(httpx.AsyncBaseTransport):
    """Reaches a service in this process, and loses as many of the next answers as it is told to."""

    def __init__(self, service: PaymentService) -> None:
        self._inner = httpx.ASGITransport(service.application())
        self.lose_next = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        if self.lose_next:
            self.lose_next -= 1
            raise httpx.ReadError("lost", request=request)
        return response


class World:
    """The systems around the order, an order over 1,000.00 by card, and one over 100.00 by transfer."""

    def __init__(self, folder: Path, stripe: StripeRefunds | None = None) -> None:
        self.ledgers = {name: Ledger(folder / f"{name}.sqlite") for name in ("cards", "transfers")}
        self.lines = {name: LosingTransport(PaymentService(ledger)) for name, ledger in self.ledgers.items()}
        clients = {name: PaymentClient(f"http://{name}", transport=line) for name, line in self.lines.items()}
        self.cards, self.transfers = clients["cards"], clients["transfers"]
        self.log = PolicyLog(folder / "policy.sqlite")
        self.log.create()
        self.services = services.Services(
            orders=OrderStore(folder / "orders.sqlite"),
            approvers=Approvers(folder / "approvers.sqlite"),
            policy=PolicyCheck(
                self.log, latency_ms=0, approval_above=Decimal("100.00"), two_approvals_above=Decimal("500.00")
            ),
            mails=Mails(folder / "mails.sqlite"),
            cards=self.cards,
            transfers=self.transfers,
            stripe=stripe or StripeRefunds("sk_test_unused"),
        )
        self.place(Order(key=KEY, customer="customer-7", amount=Decimal("1000.00")))
        self.place(Order(key=BANK, customer="customer-8", amount=Decimal("100.00"), paid_by=PaidBy.TRANSFER))
        self.services.approvers.set({"ada": Decimal(1000), "eve": Decimal(1000), "bob": Decimal(50)})

    def place(self, placed: Order) -> None:
        self.services.orders.add([placed])

    async def sent(self) -> list[tuple[str, Decimal]]:
        """Return what has moved, by operation id."""
        return [(entry.operation_id, entry.terms.amount) for entry in await self.cards.ledger()]


@asynccontextmanager
async def around(folder: Path, stripe: StripeRefunds | None = None) -> AsyncGenerator[World]:
    """Let the order find a world around it inside the block."""
    world = World(folder, stripe)
    with services.use(world.services):
        yield world
    for client in (world.cards, world.transfers):
        await client.aclose()
    for ledger in world.ledgers.values():
        ledger.close()
