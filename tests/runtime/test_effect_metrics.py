"""What the metrics say of effects and approvals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import anyio
import pytest

from keylane import Deduplicates, ObjectContext, Receiver, Settings, VirtualObject
from keylane.testing import Harness, harness
from tests.runtime.fake_bank import Bank, Receipt, Terms
from tests.runtime.scraping import Scraped, of, scrape

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
SETTINGS = Settings(metrics_port=0, partitions=1)
bank = Bank()
dedup_bank = Bank(is_deduplicating=True)

payments = Receiver("payments", owner="payments-oncall", lookup=bank.find, in_flight=timedelta(seconds=20))
deduplicating = Receiver("deduplicating", owner="payments-oncall", deduplicates=Deduplicates(timedelta(hours=1)))
blind = Receiver("blind", owner="blind-oncall", reconcile_within=timedelta(hours=2), in_flight=timedelta(seconds=20))


@payments.effect("refund", timeout=timedelta(milliseconds=300))
async def send_refund(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@deduplicating.effect("transfer", timeout=timedelta(milliseconds=300))
async def send_transfer(operation_id: str, terms: Terms) -> Receipt:
    return await dedup_bank.pay(operation_id, terms)


@blind.effect("cheque", timeout=timedelta(milliseconds=300))
async def send_cheque(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


order = VirtualObject("Order", owner="tests", effects=[send_refund, send_transfer, send_cheque])


@order.handler
async def refund(ctx: ObjectContext, operation: str) -> str:
    return (await ctx.effect(send_refund, operation_id=operation, params=Terms(amount=7))).id


@order.handler
async def transfer(ctx: ObjectContext) -> str:
    return (await ctx.effect(send_transfer, operation_id="transfer-1", params=Terms(amount=7))).id


@order.handler
async def cheque(ctx: ObjectContext) -> str:
    return (await ctx.effect(send_cheque, operation_id="cheque-1", params=Terms(amount=7))).id


@order.handler
async def propose(ctx: ObjectContext) -> None:
    await ctx.propose(action="refund", amount=7, recipient="ada", expires_in=timedelta(hours=1))


@pytest.fixture(autouse=True)
def _afresh() -> None:
    bank.empty()
    dedup_bank.empty()


@pytest.fixture
async def h(store_url: str) -> AsyncIterator[Harness]:
    async with harness(order, store=store_url, settings=SETTINGS) as h:
        yield h


def effects(scraped: Scraped, effect: str, outcome: str) -> float:
    receiver = {"refund": "payments", "transfer": "deduplicating", "cheque": "blind"}[effect]
    labels = {"object": "Order", "receiver": receiver, "effect": effect, "outcome": outcome}
    return of(scraped, "keylane_effects_total", **labels)


async def test_calls_are_counted_by_what_they_led_to(h: Harness) -> None:
    """What was not sent is tried again, and counted as a retry."""
    bank.whims.extend(["unreachable"])
    await h.call(refund, KEY, "refund-1")
    scraped = await scrape(h.runtime)
    assert (effects(scraped, "refund", "succeeded"), effects(scraped, "refund", "not sent")) == (1, 1)
    assert of(scraped, "keylane_retries_total", object="Order", what="effect") == 1


async def test_an_unknown_outcome_that_was_looked_up_is_settled_by_that(h: Harness) -> None:
    """It is open until then."""
    bank.whims.append("lose the answer")
    await h.call(refund, KEY, "refund-1")
    scraped = await scrape(h.runtime)
    assert effects(scraped, "refund", "unknown") == 1
    labels = {"object": "Order", "receiver": "payments"}
    assert of(scraped, "keylane_unknown_outcomes_settled_total", **labels, how="look-up") == 1
    assert of(scraped, "keylane_unknown_outcomes_open", **labels, settled_by="runtime") == 0


async def test_what_the_runtime_is_settling_is_open(store_url: str) -> None:
    """As long as look-ups bring nothing."""
    bank.whims.append("lose the request")
    bank.answers.extend(["lose the answer"] * 1_000)
    labels = {"object": "Order", "receiver": "payments", "settled_by": "runtime"}
    async with harness(order, store=store_url, settings=SETTINGS, auto_advance=False) as h:
        await h.send(refund, KEY, "refund-1")
        with anyio.fail_after(20):
            while of(await scrape(h.runtime), "keylane_unknown_outcomes_open", **labels) != 1:
                await anyio.sleep(0.01)


async def test_a_second_effect_that_did_not_happen_is_counted(h: Harness) -> None:
    """One was asked for under a known id, one sent again to who had it."""
    await h.call(refund, KEY, "refund-1")
    await h.call(refund, KEY, "refund-1")
    dedup_bank.whims.append("lose the answer")
    await h.call(transfer, KEY)
    assert (bank.payments("refund-1"), dedup_bank.payments("transfer-1")) == (1, 1)
    scraped = await scrape(h.runtime)
    prevented = "keylane_duplicate_effects_prevented_total"
    assert of(scraped, prevented, object="Order", receiver="payments", how="asked for again") == 1
    assert of(scraped, prevented, object="Order", receiver="deduplicating", how="sent again") == 1
    settled = "keylane_unknown_outcomes_settled_total"
    assert of(scraped, settled, object="Order", receiver="deduplicating", how="sent again") == 1


async def test_what_lies_with_people_is_open(h: Harness) -> None:
    """By receiver, out of the queue that they work on."""
    bank.whims.append("lose the answer")
    await h.send(cheque, KEY)
    labels = {"object": "Order", "receiver": "blind", "settled_by": "people"}
    with anyio.fail_after(20):
        while of(await scrape(h.runtime), "keylane_unknown_outcomes_open", **labels) != 1:
            await anyio.sleep(0.01)


async def test_proposals_are_open_until_they_are_settled(h: Harness) -> None:
    """Proposed and settled ones are counted, and the open ones told from the store."""
    await h.call(propose, KEY)
    await h.call(propose, KEY)
    scraped = await scrape(h.runtime)
    assert of(scraped, "keylane_approvals_open", object="Order") == 1
    assert of(scraped, "keylane_approvals_overdue", object="Order") == 0
    labels = {"object": "Order", "action": "refund"}
    assert of(scraped, "keylane_approvals_total", **labels, state="open") == 2
    assert of(scraped, "keylane_approvals_total", **labels, state="superseded") == 1
    await h.advance(timedelta(hours=2))
    scraped = await scrape(h.runtime)
    assert of(scraped, "keylane_approvals_open", object="Order") == 0
    assert of(scraped, "keylane_approvals_total", **labels, state="expired") == 1
