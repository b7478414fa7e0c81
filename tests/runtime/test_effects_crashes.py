"""A worker killed at any of its calls of the store never has an effect done twice, nor loses one."""

from __future__ import annotations

from datetime import timedelta

import pytest

from keylane import Deduplicates, ObjectContext, Receiver, VirtualObject
from keylane.journal.effects import EffectEntry, EffectState
from keylane.testing import Harness, crashes
from tests.runtime.fake_bank import Bank, Receipt, Terms

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KEY = "acme/o-1"
FLIGHT = timedelta(seconds=20)
QUICK = timedelta(seconds=2)

bank = Bank()
dedup_bank = Bank(is_deduplicating=True)

looked_up = Receiver(
    "looked-up", owner="oncall", lookup=bank.find, lookup_lag=timedelta(seconds=5), absent_means="not_done",
    late_calls="impossible", in_flight=FLIGHT,
)  # fmt: skip
deduplicating = Receiver(
    "deduplicating", owner="oncall", deduplicates=Deduplicates(timedelta(hours=1)), in_flight=FLIGHT
)
blind = Receiver("blind", owner="oncall", in_flight=FLIGHT)


@looked_up.effect("refund", timeout=QUICK)
async def send_refund(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@deduplicating.effect("transfer", timeout=QUICK)
async def send_transfer(operation_id: str, terms: Terms) -> Receipt:
    return await dedup_bank.pay(operation_id, terms)


@blind.effect("cheque", timeout=QUICK)
async def send_cheque(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


order = VirtualObject("Order", owner="tests", effects=[send_refund, send_transfer, send_cheque], partitions=1)
EFFECTS = {"refund": send_refund, "transfer": send_transfer, "cheque": send_cheque}


@order.handler
async def pay(ctx: ObjectContext, name: str) -> str:
    receipt = await ctx.effect(EFFECTS[name], operation_id="once", params=Terms(amount=7))
    return receipt.id


@order.handler
async def pay_in_turn(ctx: ObjectContext) -> list[str]:
    first, second = await ctx.gather(
        ctx.effect(send_refund, operation_id="one", params=Terms(amount=7)),
        ctx.effect(send_refund, operation_id="two", params=Terms(amount=8)),
    )
    return [first.id, second.id]


async def effect_of(h: Harness, operation: str) -> EffectEntry | None:
    """Return an effect as it lies in the store."""
    store = h.client.store
    (data,) = await store.together([("HGET", store.space("Order", 0).effects(KEY), operation)])
    return None if data is None else EffectEntry.decode(data)


def begin_anew(*whims: str) -> None:
    """Empty the books, and say what becomes of the next calls."""
    bank.empty()
    dedup_bank.empty()
    bank.whims.extend(whims)
    dedup_bank.whims.extend(whims)


@pytest.mark.parametrize(
    ("name", "whim"),
    [
        ("refund", "lose the answer"),
        ("transfer", "lose the answer"),
        ("refund", "unreachable"),
        pytest.param("refund", "lose the request", marks=pytest.mark.nightly),
        pytest.param("refund", "pay", marks=pytest.mark.nightly),
        pytest.param("transfer", "pay", marks=pytest.mark.nightly),
        pytest.param("transfer", "lose the request", marks=pytest.mark.nightly),
        pytest.param("transfer", "unreachable", marks=pytest.mark.nightly),
    ],
)
async def test_what_can_be_settled_is_done_once_wherever_the_worker_dies(store_url: str, name: str, whim: str) -> None:
    """The caller gets the receipt of the one payment, whatever becomes of the first call and of the worker."""

    async def scenario(h: Harness) -> str:
        begin_anew(whim)
        return await h.call(pay, KEY, name, idempotency_key="k")

    runs = 0
    async for crash in crashes(order, scenario, store=store_url):
        runs += 1
        assert crash.result().endswith(".once#1"), crash.point
        payments = (bank if name == "refund" else dedup_bank).payments("once")
        assert payments == 1, crash.point
    assert runs > 6


@pytest.mark.parametrize("whim", ["pay", pytest.param("lose the answer", marks=pytest.mark.nightly)])
async def test_what_nothing_can_tell_is_never_sent_twice_wherever_the_worker_dies(store_url: str, whim: str) -> None:
    """It has succeeded, or lies with people."""

    async def scenario(h: Harness) -> EffectEntry:
        begin_anew(whim)
        handle = await h.send(pay, KEY, "cheque")
        await h.settled()
        await handle.describe()
        entry = await effect_of(h, "once")
        assert entry is not None
        return entry

    states: set[EffectState] = set()
    async for crash in crashes(order, scenario, store=store_url):
        entry = crash.result()
        states.add(entry.state)
        assert bank.calls("once") <= 1, crash.point
        if entry.state is EffectState.SUCCEEDED:
            assert bank.payments("once") == 1, crash.point
        else:
            assert entry.state is EffectState.UNRESOLVED, crash.point
    assert EffectState.UNRESOLVED in states


async def test_two_effects_that_take_turns_are_each_done_once_wherever_the_worker_dies(store_url: str) -> None:
    """The second one begins when the first is settled, whoever owns the object then."""

    async def scenario(h: Harness) -> list[str]:
        begin_anew("lose the answer")
        return await h.call(pay_in_turn, KEY, idempotency_key="k")

    async for crash in crashes(order, scenario, store=store_url):
        assert [each[-5:] for each in crash.result()] == ["one#1", "two#1"], crash.point
        assert (bank.payments("one"), bank.payments("two")) == (1, 1), crash.point
