"""Effects in rehearsals: code is held against what was asked for, and nothing is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from keylane import App, ObjectContext, Receiver, Runtime, VirtualObject
from keylane.journal.exported import Journal, journals_in, lines_of
from keylane.journal.key import parse_id
from keylane.journal.open_journals import read_journal
from keylane.runtime.rehearsal import Fit, Rehearsal, Rehearsed
from tests.runtime.fake_bank import Bank, Receipt, Terms

pytestmark = pytest.mark.anyio

Way = Callable[[ObjectContext], Awaitable[Any]]

bank = Bank()
payments = Receiver("payments", owner="oncall", lookup=bank.find, lookup_lag=timedelta(seconds=5))


@payments.effect("refund")
async def send_refund(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


def refunding(amount: int) -> Way:
    """Return a handler that refunds, and waits after it."""

    async def way(ctx: ObjectContext) -> str:
        receipt = await ctx.effect(send_refund, operation_id="r", params=Terms(amount=amount))
        await ctx.signal("never", str)
        return receipt.id

    return way


def desk(way: Way) -> VirtualObject:
    """Return a type whose handler does what it is given."""
    made = VirtualObject("Desk", owner="tests", partitions=1, effects=[send_refund])

    @made.handler
    async def work(ctx: ObjectContext) -> Any:  # pyright: ignore[reportUnusedFunction]
        return await way(ctx)

    return made


async def journal_of(store_url: str, namespace: str, *, is_settled: bool) -> Journal:
    """Have a journal written in which an effect is settled, or waited for."""
    bank.empty()
    bank.whims.append("pay" if is_settled else "wait")
    async with Runtime([desk(refunding(7))], store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send("Desk", "acme/d", "work")
        store, found = runtime.client.store, parse_id(handle.id)
        await (_until_waiting(runtime, handle.id) if is_settled else bank.waiting.wait())
        journal, written = await read_journal(store, found)
        bank.gate.set()
    (read,) = journals_in(lines_of(journal, written))
    bank.empty()
    return read


async def _until_waiting(runtime: Runtime, invocation_id: str) -> None:
    awaited = runtime.client.attach(invocation_id)
    while "signal" not in str((await awaited.describe()).waits_for):
        continue


async def rehearsed(journal: Journal, way: Way) -> Rehearsed:
    result = await Rehearsal(App([desk(way)])).of(journal)
    assert not bank.sent, "something was sent in a rehearsal"
    return result


@pytest.mark.parametrize("is_settled", [True, False])
async def test_code_that_asks_for_the_same_effect_fits(store_url: str, namespace: str, *, is_settled: bool) -> None:
    """Settled or waited for, nothing of it is done."""
    journal = await journal_of(store_url, namespace, is_settled=is_settled)
    assert (await rehearsed(journal, refunding(7))).fit is Fit.FITS


async def test_code_that_asks_for_another_amount_diverges(store_url: str, namespace: str) -> None:
    """The parameters are part of what was asked for."""
    journal = await journal_of(store_url, namespace, is_settled=True)
    result = await rehearsed(journal, refunding(8))
    assert result.fit is Fit.DIVERGES
    assert "payments.refund" in result.attempted
