"""The real client of Stripe against a stand-in for its server, which is a process of its own."""

import asyncio
import contextlib
import importlib.util
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import anyio
import pytest

from examples.refund_order.models import Order, PaidBy, RefundRequest, RefundState, RefundTerms
from examples.refund_order.order import order, refund
from examples.refund_order.stripe_refunds import StripeRefunds
from keylane import NotSent, Rejected
from keylane.testing import harness
from tests.examples.refund_world import around

MISSING = [name for name in ("stripe", "localstripe") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(MISSING), reason=f"needs the extras {MISSING}"),
    # The client hands httpx its bodies in a form that httpx would rather not see.
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
    pytest.mark.skipif(not socket.has_ipv6, reason="localstripe listens on IPv6"),
]
API_KEY = "sk_test_keylane"
CHUNK_BYTES = 65_536
# It would write all it has to one path under /tmp at each request, whoever else does, and fail where that is not ours.
STAND_IN = """
from localstripe import resources, server
resources.Store.dump_to_disk = lambda store: None
server.start()
"""


@dataclass
class LosingProxy:
    """Hands connections on, and loses as many of the next answers as it is told to."""

    upstream_port: int
    lose_next: int = 0
    url: str = ""
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self.upstream_port)
        task = asyncio.create_task(self._hand_on(reader, upstream_writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        while answer := await upstream_reader.read(CHUNK_BYTES):
            if self.lose_next:
                self.lose_next -= 1
                writer.transport.abort()
                break
            writer.write(answer)
        writer.close()
        upstream_writer.close()

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                writer.write(data)
        writer.close()


@pytest.fixture(scope="module")
def stripe_port(tmp_path_factory: pytest.TempPathFactory) -> Generator[int]:
    """Start the stand-in and return its port once it listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    log = (tmp_path_factory.mktemp("localstripe") / "log").open("wb")
    command = [sys.executable, "-W", "ignore", "-c", STAND_IN, "--port", str(port), "--from-scratch"]
    with log, subprocess.Popen(command, stdout=log, stderr=log, cwd=Path(log.name).parent) as process:
        try:
            anyio.run(_listens, port, process)
            yield port
        finally:
            process.terminate()


async def _listens(port: int, process: "subprocess.Popen[bytes]") -> None:
    """Return once the port takes connections; nothing tells when, so it is asked again and again."""
    with anyio.fail_after(20):
        while process.poll() is None:
            with contextlib.suppress(OSError):
                await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                return
            await anyio.sleep(0.02)
    pytest.fail(f"localstripe ended with status {process.returncode}")


@pytest.fixture
async def proxy(stripe_port: int) -> AsyncGenerator[LosingProxy]:
    proxy = LosingProxy(stripe_port)
    server = await asyncio.start_server(proxy.connected, "127.0.0.1", 0)
    async with server:
        proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield proxy


@pytest.fixture
async def refunds(proxy: LosingProxy) -> AsyncGenerator[StripeRefunds]:
    refunds = StripeRefunds(API_KEY, api_url=proxy.url, timeout_s=10)
    yield refunds
    await refunds.aclose()


@pytest.fixture
async def terms(proxy: LosingProxy) -> RefundTerms:
    """Ask for 40.00 of a payment of 100.00 by card."""
    return RefundTerms(order="acme/o-1", recipient="customer-7", amount=Decimal("40.00"), payment=await paid(proxy.url))


async def paid(url: str) -> str:
    """Pay 100.00 by card and return the id of the payment."""
    import stripe  # noqa: PLC0415 - it may be missing

    http = stripe.HTTPXClient(timeout=10)
    client = stripe.StripeClient(API_KEY, base_addresses={"api": url}, http_client=http, max_network_retries=0)
    card = {"number": "4242424242424242", "exp_month": 12, "exp_year": 2040, "cvc": "123"}
    method = await client.v1.payment_methods.create_async({"type": "card", "card": card})
    payment = await client.v1.payment_intents.create_async(
        {"amount": 10_000, "currency": "eur", "payment_method": method.id, "confirm": True}
    )
    await http.close_async()
    return payment.id


async def test_a_refund_is_found_by_its_operation_id(refunds: StripeRefunds, terms: RefundTerms) -> None:
    """What the look-up gives is the receipt that the refund had got, to the last field."""
    receipt = await refunds.refund("keylane.Order.acme/o-1.refund-1", terms)

    assert (receipt.amount, receipt.operation_id) == (Decimal("40.00"), "keylane.Order.acme/o-1.refund-1")
    assert await refunds.find("keylane.Order.acme/o-1.refund-1", terms) == receipt
    assert await refunds.find("keylane.Order.acme/o-1.refund-2", terms) is None


async def test_a_refund_whose_answer_was_lost_is_found(
    refunds: StripeRefunds, terms: RefundTerms, proxy: LosingProxy
) -> None:
    """The caller gets an error that says nothing about the money, and the look-up says that it has moved."""
    import stripe  # noqa: PLC0415 - it may be missing

    proxy.lose_next = 1
    with pytest.raises(stripe.APIConnectionError):
        await refunds.refund("refund-1", terms)

    found = await refunds.find("refund-1", terms)
    assert found is not None
    assert found.amount == Decimal("40.00")


async def test_the_stand_in_takes_an_operation_id_twice(refunds: StripeRefunds, terms: RefundTerms) -> None:
    """So its receiver must not be declared as one that deduplicates, and nothing may be sent to it again."""
    first, second = [await refunds.refund("refund-1", terms) for _ in range(2)]

    assert first.number != second.number


async def test_what_stripe_refuses_is_a_rejection(refunds: StripeRefunds, terms: RefundTerms) -> None:
    """A payment that does not exist is a no, with what Stripe says about it."""
    with pytest.raises(Rejected):
        await refunds.refund("refund-1", terms.model_copy(update={"payment": "pi_unknown"}))


async def test_a_server_that_cannot_be_reached_got_nothing(terms: RefundTerms) -> None:
    """A connection that never came about is no unknown outcome."""
    refunds = StripeRefunds(API_KEY, api_url="http://127.0.0.1:9", timeout_s=5)

    with pytest.raises(NotSent):
        await refunds.refund("refund-1", terms)
    await refunds.aclose()


async def test_an_order_whose_answer_was_lost_is_settled_by_what_stripe_has(
    refunds: StripeRefunds, terms: RefundTerms, proxy: LosingProxy, tmp_path: Path
) -> None:
    """The order object asks Stripe for the operation id, and ends with the receipt; nothing is sent again."""
    placed = Order(
        key="acme/o-7", customer="c-7", amount=Decimal("100.00"), paid_by=PaidBy.STRIPE, payment=terms.payment
    )
    async with around(tmp_path, refunds) as world, harness(order) as h:
        world.place(placed)
        proxy.lose_next = 1

        done = await h.call(refund, "acme/o-7", RefundRequest(amount=Decimal("40.00")))

        assert done.state is RefundState.REFUNDED
        assert done.receipt is not None
        assert await refunds.find(done.receipt.operation_id, done.terms) == done.receipt
        assert proxy.lose_next == 0
