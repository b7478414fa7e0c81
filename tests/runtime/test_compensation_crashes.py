"""A worker killed at any of its calls of the store never has an undo done twice that is an effect, nor loses one."""

from __future__ import annotations

from datetime import timedelta

import pytest

from keylane import (
    Handle,
    InvocationFailed,
    InvocationPaused,
    ObjectContext,
    Receiver,
    Rejected,
    TerminalError,
    VirtualObject,
)
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
    if operation_id.endswith(tuple(refused)):
        bank.sent[operation_id] += 1
        raise Rejected("the account is closed")
    return await bank.pay(operation_id, terms)


trip = VirtualObject("Trip", owner="tests", effects=[send_refund], partitions=1)


@trip.handler
async def plan(ctx: ObjectContext) -> None:
    ctx.compensate("fare", send_refund, operation_id="fare", params=Terms(amount=7))
    ctx.compensate("fee", send_refund, operation_id="fee", params=Terms(amount=1))
    raise TerminalError("no visa", code="no-visa")


async def sent(h: Harness, *whims: str, refuses: str = "") -> Handle[None]:
    """Begin with empty books, and with what becomes of the next calls."""
    bank.empty()
    refused.clear()
    refused.update([refuses] if refuses else [])
    bank.whims.extend(whims)
    return await h.send(plan, KEY, idempotency_key="k")


async def is_parked(handle: Handle[None]) -> None:
    """Wait until an undo was rejected, and the invocation lies with a person."""
    with pytest.raises(InvocationPaused) as caught:
        await handle.result(timeout=30)
    assert caught.value.reason == "compensation_failed"


async def end_of(handle: Handle[None]) -> str:
    """Return with what an invocation has failed."""
    with pytest.raises(InvocationFailed) as caught:
        await handle.result(timeout=30)
    return caught.value.code


@pytest.mark.parametrize("whim", ["lose the answer", "unreachable", pytest.param("pay", marks=pytest.mark.nightly)])
async def test_undos_are_done_once_and_in_order_wherever_the_worker_dies(store_url: str, whim: str) -> None:
    """Whatever becomes of the first call and of the worker; the caller gets the error of the handler."""

    async def scenario(h: Harness) -> str:
        return await end_of(await sent(h, whim))

    runs = 0
    async for crash in crashes(trip, scenario, store=store_url):
        runs += 1
        assert crash.result() == "no-visa", crash.point
        assert (bank.payments("fee"), bank.payments("fare")) == (1, 1), crash.point
        assert [each.rsplit(".", 1)[1] for each in bank.books] == ["fee", "fare"], crash.point
    assert runs > 6


async def test_what_was_rejected_waits_for_a_person_wherever_the_worker_dies(store_url: str) -> None:
    """It is asked for once under each id, and never again by itself."""

    async def scenario(h: Harness) -> str:
        handle = await sent(h, refuses=".fee")
        await is_parked(handle)
        assert not bank.calls("fee~2")
        await h.client.resume(handle.id, reason="once more", by="ann", timeout=30)
        return await end_of(handle)

    async for crash in crashes(trip, scenario, store=store_url):
        assert crash.result() == "no-visa", crash.point
        calls = [bank.calls(each) for each in ("fee", "fee~2", "fee~3", "fare")]
        assert (bank.payments("fee"), bank.payments("fee~2"), bank.payments("fare")) == (0, 1, 1), (crash.point, calls)
        assert not bank.calls("fee~3"), crash.point


async def test_what_was_given_up_stays_so_wherever_the_worker_dies(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The undos before it are done still; a parking that a lost partition cuts short is no failure of the runtime."""

    async def scenario(h: Harness) -> str:
        handle = await sent(h, refuses=".fee")
        await is_parked(handle)
        await h.client.skip_compensation(handle.id, reason="paid in cash", by="ann", timeout=30)
        return await end_of(handle)

    async for crash in crashes(trip, scenario, store=store_url):
        assert crash.result() == "no-visa", crash.point
        assert (bank.payments("fee"), bank.calls("fee~2"), bank.payments("fare")) == (0, 0, 1), crash.point
    assert "the runtime itself failed" not in caplog.text
