"""A worker killed at any of its calls of the store never undoes an effect twice, nor one that was not done."""

from __future__ import annotations

from datetime import timedelta

import pytest

from keylane import Handle, InvocationFailed, ObjectContext, Receiver, Rejected, TerminalError, VirtualObject
from keylane.testing import Harness, crashes
from tests.runtime.fake_bank import Bank, Receipt, Terms

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KEY = "acme/t-1"
bank = Bank()
#: Ends of the operation ids that are refused, whoever asks.
refused: set[str] = set()

payments = Receiver(
    "payments", owner="oncall", lookup=bank.find, lookup_lag=timedelta(seconds=5), absent_means="not_done",
    late_calls="impossible", in_flight=timedelta(seconds=20),
)  # fmt: skip


@payments.effect("refund", timeout=timedelta(seconds=2))
async def send_refund(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@payments.effect("charge", timeout=timedelta(seconds=2), compensate_with=send_refund)
async def send_charge(operation_id: str, terms: Terms) -> Receipt:
    if operation_id.endswith(tuple(refused)):
        bank.sent[operation_id] += 1
        raise Rejected("the account is closed")
    return await bank.pay(operation_id, terms)


trip = VirtualObject("Trip", owner="tests", effects=[send_charge], partitions=1)


@trip.handler
async def plan(ctx: ObjectContext) -> None:
    """Fail behind two effects, whatever has become of them."""
    for operation in ("fare", "fee"):
        await ctx.effect_outcome(send_charge, operation_id=operation, params=Terms(amount=7), compensate=True)
    raise TerminalError("no visa", code="no-visa")


async def end_of(h: Harness, *whims: str, refuses: str = "") -> str:
    """Begin with empty books, and return with what an invocation has failed."""
    bank.empty()
    refused.clear()
    refused.update([refuses] if refuses else [])
    bank.whims.extend(whims)
    handle: Handle[None] = await h.send(plan, KEY, idempotency_key="k")
    with pytest.raises(InvocationFailed) as caught:
        await handle.result(timeout=30)
    return caught.value.code


@pytest.mark.parametrize("whim", ["pay", pytest.param("lose the answer", marks=pytest.mark.nightly)])
async def test_what_was_done_is_undone_once_and_in_order_wherever_the_worker_dies(store_url: str, whim: str) -> None:
    """Between an effect and the intent of its undo, behind it, and everywhere else.

    One whose worker died between its intent and its call was not done, which the look-up says: it is not undone.
    """

    async def scenario(h: Harness) -> str:
        return await end_of(h, whim)

    runs = whole = 0
    async for crash in crashes(trip, scenario, store=store_url):
        runs += 1
        assert crash.result() == "no-visa", crash.point
        for operation in ("fare", "fee"):
            assert bank.payments(operation) == bank.payments(f"{operation}-undo") <= 1, crash.point
        undone = [each.rsplit(".", 1)[1] for each in bank.books if each.endswith("-undo")]
        assert undone == sorted(undone, reverse=True), crash.point
        whole += len(undone) == 2
    assert runs > 8
    assert whole > runs / 2


@pytest.mark.nightly
async def test_what_was_refused_is_never_undone_wherever_the_worker_dies(store_url: str) -> None:
    """The other one is."""

    async def scenario(h: Harness) -> str:
        return await end_of(h, refuses=".fee")

    async for crash in crashes(trip, scenario, store=store_url):
        assert crash.result() == "no-visa", crash.point
        assert (bank.payments("fare"), bank.payments("fare-undo"), bank.calls("fee-undo")) == (1, 1, 0), crash.point
