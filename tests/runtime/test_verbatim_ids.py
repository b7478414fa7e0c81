"""Operation ids that a receiver sees as the handler wrote them belong to one object each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from keylane import (
    BlockingObjectContext,
    EffectConflict,
    InvocationFailed,
    ObjectContext,
    PayloadTooLarge,
    Receiver,
    VirtualObject,
)
from keylane.testing import Harness, harness
from tests.runtime.fake_bank import Bank, Receipt, Terms

pytestmark = pytest.mark.anyio

bank = Bank()
desk = Receiver(
    "desk", owner="desk-oncall", lookup=bank.find, absent_means="not_done", late_calls="impossible", ids="verbatim",
    id_limit=32, in_flight=timedelta(seconds=1),
)  # fmt: skip


@desk.effect("pay", timeout=timedelta(milliseconds=300))
async def pay_out(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


order = VirtualObject("Order", owner="tests", effects=[pay_out])


@order.handler
async def pay(ctx: ObjectContext, operation_id: str) -> str:
    return (await ctx.effect(pay_out, operation_id=operation_id, params=Terms(amount=7))).id


@order.handler
def pay_in_a_thread(ctx: BlockingObjectContext, operation_id: str) -> str:
    return ctx.effect(pay_out, operation_id=operation_id, params=Terms(amount=7)).id


@pytest.fixture(params=[None, "replay"])
async def h(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """Give a harness whose receiver's books are empty, plain and with each record replayed."""
    bank.empty()
    async with harness(order, force=request.param) as made:
        yield made


async def test_the_receiver_sees_the_id_as_it_was_written(h: Harness) -> None:
    """From handlers of both kinds, and once however often it is asked for."""
    for _ in range(2):
        await h.call(pay, "acme/o-1", "INV-1")
    await h.call(pay_in_a_thread, "acme/o-1", "INV-2")

    assert {name: len(receipts) for name, receipts in bank.books.items()} == {"INV-1": 1, "INV-2": 1}


async def test_an_id_that_another_object_has_is_refused_and_nothing_is_sent(h: Harness) -> None:
    """Else the receiver would take two operations for one, or the look-up of one find the other."""
    await h.call(pay, "acme/o-1", "INV-1")

    with pytest.raises(InvocationFailed, match="operation 'INV-1' was asked for by Order acme/o-1") as failed:
        await h.call(pay, "globex/o-1", "INV-1")

    assert failed.value.code == EffectConflict.code
    assert bank.sent["INV-1"] == 1


async def test_an_id_that_the_receiver_does_not_take_is_refused(h: Harness) -> None:
    """It can't be hashed: the receiver would see another one."""
    with pytest.raises(PayloadTooLarge, match="operation_id has 33 bytes, the limit is 32"):
        await h.call(pay, "acme/o-1", "I" * 33)

    assert not bank.sent
