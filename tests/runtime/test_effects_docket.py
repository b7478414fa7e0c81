"""What an owner knows of an object's effects is read at most once, and only where the store has some."""

from __future__ import annotations

from datetime import timedelta

import pytest

from keylane import Deduplicates, ObjectContext, Receiver, Runtime, VirtualObject
from keylane.runtime.docket import Dockets
from keylane.runtime.lane import Lane
from tests.runtime.fake_bank import Bank, Receipt, Terms

pytestmark = pytest.mark.anyio

bank = Bank()
payments = Receiver("payments", owner="payments-oncall", deduplicates=Deduplicates(timedelta(hours=1)))


@payments.effect("refund")
async def send_refund(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


order = VirtualObject("Order", owner="tests", effects=[send_refund])


@order.handler
async def refund(ctx: ObjectContext, operation: str) -> str:
    receipt = await ctx.effect(send_refund, operation_id=operation, params=Terms(amount=40))
    return receipt.id


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the objects whose docket is read."""
    bank.empty()
    read, objects = Dockets.read, list[str]()

    def noted(self: Dockets, lane: Lane, done: object) -> None:
        objects.append(lane.key_text)
        read(self, lane, done)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Dockets, "read", noted)
    return objects


async def test_an_object_without_effects_is_not_asked_for_them(
    store_url: str, namespace: str, reads: list[str]
) -> None:
    """Whether it has any is known with its lane: its first effect costs no read of its own."""
    async with Runtime(order, store=store_url, namespace=namespace) as runtime:
        first = await runtime.client.call(refund, "acme/o-1", "refund-1")
        second = await runtime.client.call(refund, "acme/o-1", "refund-2")

    assert first != second
    assert reads == []


async def test_what_an_owner_before_has_asked_for_is_read(store_url: str, namespace: str, reads: list[str]) -> None:
    """The effects of an object are known to whoever owns it: what was done is not done again."""
    async with Runtime(order, store=store_url, namespace=namespace) as runtime:
        first = await runtime.client.call(refund, "acme/o-1", "refund-1")
    async with Runtime(order, store=store_url, namespace=namespace) as runtime:
        again = await runtime.client.call(refund, "acme/o-1", "refund-1")

    assert again == first
    assert (reads, bank.calls("refund-1")) == (["acme/o-1"], 1)
