from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

import pytest

from keylane import Client
from tests.faults.harness import StoreServer

from .cells import LONG_MS, Kind, Promise, receiver_name
from .manner import Booking, Manner
from .mutants import Safeguard
from .receiver import ReceiverProcess
from .workers import GridWorker, Place

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]

ORDER = "o-1001"


async def refund_both(server: StoreServer, mutant: str = "") -> tuple[list[str], list[Booking]]:
    """Have two tenants refund the same order number and amount; returns what each was told, and the books."""
    with tempfile.TemporaryDirectory(prefix="kl-grid-") as name:
        folder, namespace = Path(name), f"grid-{secrets.token_hex(6)}"
        with ReceiverProcess(folder, Manner(dedup_ms=LONG_MS, can_look_up=True)) as receiver:
            await receiver.ready()
            place = Place(server.url, namespace, receiver.socket, folder)
            with GridWorker(place, "w", mutant=mutant) as worker:
                await worker.start()
                wish = {
                    "receiver": receiver_name(Promise.BOTH, Kind.PLAIN),
                    "terms": {"order": ORDER, "amount": "40.00"},
                }
                async with Client(server.url, namespace=namespace) as client:
                    told = [
                        await client.call("Cell", f"{tenant}/{ORDER}", "pay", wish, timeout=20)
                        for tenant in ("acme", "globex")
                    ]
            return told, receiver.books


async def test_two_tenants_with_the_same_order_number_and_amount_get_two_refunds(shared_server: StoreServer) -> None:
    """A receiver that deduplicates sees two operation ids, and each tenant has its own receipt."""
    told, books = await refund_both(shared_server)

    assert told == [booking.receipt for booking in books]
    assert len(set(told)) == len({booking.operation for booking in books}) == 2
    assert {(booking.order, booking.amount) for booking in books} == {(ORDER, "40.00")}


async def test_with_the_handlers_own_ids_one_tenant_would_go_without(shared_server: StoreServer) -> None:
    """The test above can fail: with ids that are not qualified the second tenant gets the receipt of the first."""
    told, books = await refund_both(shared_server, Safeguard.QUALIFIED)

    assert len(books) == 1
    assert len(set(told)) == 1
