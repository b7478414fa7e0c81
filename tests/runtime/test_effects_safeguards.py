"""What keeps effects from being done twice or sent late, each with a test that fails without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import (
    App,
    Deduplicates,
    KeylaneError,
    ObjectContext,
    PayloadTooLarge,
    Receiver,
    RegistrationError,
    RetryPolicy,
    Runtime,
    Settings,
    VirtualObject,
)
from keylane.journal.doubt import DoubtSpan
from keylane.journal.effects import EffectEntry
from keylane.journal.ledger import EventKind
from keylane.runtime.effect_plans import TAIL_LOST
from keylane.runtime.settling import NO_LEASE, NOT_OURS, TOO_LATE
from keylane.testing import Harness, harness
from tests.runtime.fake_bank import Bank, Receipt, Terms

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
SOON = 30.0
SPENT = RetryPolicy(first=timedelta(milliseconds=1), attempts=1)

#: What a handler may give by mistake, and what it is told.
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "a function": ({"effect": print}, "takes an effect, which print is not: declare it with @receiver.effect"),
    "a name": ({"effect": "payments.refund"}, "takes an effect, which str is not"),
    "an approval's id": (
        {"approval": "Order/acme/o-1#refund.1"},
        "the Approval that ctx.approval returned, not str",
    ),
    "a long id": ({"operation_id": "r" * 201}, "the limit is 200: shorten it, and put data into the parameters"),
}

bank = Bank()
payments = Receiver(
    "payments", owner="payments-oncall", lookup=bank.find, lookup_lag=timedelta(seconds=5), absent_means="not_done",
    late_calls="impossible", in_flight=timedelta(seconds=20),
)  # fmt: skip
patient = Receiver("patient", owner="payments-oncall", deduplicates=Deduplicates(timedelta(days=200)))
blind = Receiver("blind", owner="blind-oncall")


@payments.effect("refund", timeout=timedelta(seconds=15))
async def send_refund(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@payments.effect("letter", timeout=timedelta(seconds=15))
async def send_letter(operation_id: str, terms: Terms) -> Receipt:
    await bank.pay(operation_id, terms)
    return Receipt(id="x" * 70_000, amount=7)


@patient.effect("deposit", timeout=timedelta(seconds=15))
async def send_deposit(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@blind.effect("unlisted")
async def send_unlisted(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


order = VirtualObject(
    "Order", owner="tests", effects=[send_refund, send_letter, send_deposit], partitions=2, retry=SPENT
)


@order.handler
async def refund(ctx: ObjectContext, operation: str) -> str:
    receipt = await ctx.effect(send_refund, operation_id=operation, params=Terms(amount=7))
    return receipt.id


@order.handler
async def refund_when_told(ctx: ObjectContext, operation: str) -> str:
    await ctx.signal("go", str, release_lane=True)
    receipt = await ctx.effect(send_refund, operation_id=operation, params=Terms(amount=7))
    return receipt.id


@order.handler
async def refund_both(ctx: ObjectContext) -> list[str]:
    both = [ctx.effect(send_refund, operation_id=each, params=Terms(amount=7)) for each in ("a", "b")]
    return [receipt.id for receipt in await ctx.gather(*both)]


@order.handler
async def refund_at_length(ctx: ObjectContext, size: int) -> str:
    receipt = await ctx.effect(send_refund, operation_id="r", params=Terms(amount=7, note="x" * size))
    return receipt.id


@order.handler
async def refund_by_mistake(ctx: ObjectContext, mistake: str) -> str:
    given: dict[str, Any] = {"operation_id": "r", "params": Terms(amount=7), **MISTAKES[mistake][0]}
    return str(await ctx.effect(given.pop("effect", send_refund), **given))


@order.handler
async def deposit(ctx: ObjectContext) -> str:
    receipt = await ctx.effect(send_deposit, operation_id="d", params=Terms(amount=7))
    return receipt.id


@order.handler
async def letter(ctx: ObjectContext) -> str:
    receipt = await ctx.effect(send_letter, operation_id="r", params=Terms(amount=7))
    return receipt.id


@order.handler
async def unlisted(ctx: ObjectContext) -> str:
    receipt = await ctx.effect(send_unlisted, operation_id="r", params=Terms(amount=7))
    return receipt.id


@pytest.fixture(autouse=True)
def _afresh() -> None:
    bank.empty()


@pytest.fixture
async def h(store_url: str) -> AsyncIterator[Harness]:
    """Give a harness on the store that all tests share."""
    async with harness(order, store=store_url) as h:
        yield h


async def effect_of(host: Harness | Runtime, operation: str, key: str = KEY) -> EffectEntry | None:
    """Return an effect as it lies in the store."""
    store = host.client.store
    for number in range(2):
        (data,) = await store.together([("HGET", store.space("Order", number).effects(key), operation)])
        if data is not None:
            return EffectEntry.decode(data)
    return None


async def life_of(host: Harness | Runtime, operation: str, key: str = KEY) -> list[tuple[EventKind, str]]:
    """Return what has happened to an effect."""
    entry = await effect_of(host, operation, key)
    assert entry is not None
    return [(each.kind, each.detail) for each in entry.life]


async def test_nothing_is_sent_without_a_valid_lease(h: Harness) -> None:
    """Whoever took the partition over may have sent it; who is not sure of the lease does not send."""
    leases = {each: each._lease_is_valid for each in h.runtime.worker.partitions}  # pyright: ignore[reportPrivateUsage]
    for partition in leases:
        partition.hold_lease(lambda: False)
    handle = await h.send(refund, KEY, "r")
    await h.settled()
    assert bank.calls("r") == 0
    for partition, is_valid in leases.items():
        partition.hold_lease(is_valid)
    await handle.result()
    assert bank.calls("r") == 1
    assert (EventKind.NOT_SENT, NO_LEASE) in await life_of(h, "r")


async def test_nothing_is_sent_long_after_its_intent(store_url: str) -> None:
    """By then the time may have begun after which its absence counts; it is attempted anew, with another intent."""
    settings = Settings(effect_slots=1, send_within_seconds=0.05, partitions=2)
    async with harness(order, store=store_url, settings=settings) as h:
        bank.whims.append("wait")
        first = await h.send(refund, "acme/o-1", "first")
        await bank.waiting.wait()
        second = await h.send(refund, "acme/o-2", "second")
        with anyio.fail_after(SOON):
            while True:
                entry = await effect_of(h, "second", "acme/o-2")
                parts = [each for each in h.runtime.worker.partitions if "acme/o-2" in each.lanes]
                if entry is not None and parts[0].now_ms() > entry.send_before_ms:
                    break
                await anyio.sleep(0.005)
        bank.gate.set()
        await first.result()
        await second.result()
        assert (bank.calls("second"), bank.payments("second")) == (1, 1)
        assert (EventKind.NOT_SENT, TOO_LATE) in await life_of(h, "second", "acme/o-2")


async def test_a_worker_that_leaves_waits_for_the_answer_to_a_call(store_url: str, namespace: str) -> None:
    """The outcome is recorded by who has called, and nothing has to be found out."""
    bank.whims.append("wait")
    async with Runtime(order, store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(refund, KEY, "r")
        await bank.waiting.wait()
        (partition,) = [each for each in runtime.worker.partitions if KEY in each.lanes]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.worker._ownership.drain)  # pyright: ignore[reportPrivateUsage]
            with anyio.fail_after(SOON):
                while partition.phase.name != "DRAINING":
                    await anyio.sleep(0.005)
            assert partition.calling == 1
            assert not partition.is_quiet
            bank.gate.set()
    async with Runtime(order, store=store_url, namespace=namespace) as runtime:
        handle = runtime.client.attach(handle.id, str)
        with anyio.fail_after(SOON):
            assert (await handle.result()).endswith("r#1")
        assert [kind for kind, _ in await life_of(runtime, "r")] == [EventKind.INTENDED, EventKind.SUCCEEDED]
    assert bank.calls("r") == 1


async def test_what_a_worker_that_leaves_has_not_called_is_not_sent_by_it(store_url: str, namespace: str) -> None:
    """Nothing begins once a partition is to be handed over; the next owner makes another attempt at once."""
    settings = Settings(effect_slots=1, partitions=2)
    app = App(order, settings=settings)
    bank.whims.append("wait")
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        await runtime.client.send(refund, "acme/o-1", "first")
        await bank.waiting.wait()
        second = await runtime.client.send(refund, "acme/o-2", "second")
        with anyio.fail_after(SOON):
            while await effect_of(runtime, "second", "acme/o-2") is None:
                await anyio.sleep(0.005)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.worker._ownership.drain)  # pyright: ignore[reportPrivateUsage]
            with anyio.fail_after(SOON):
                while any(each.phase.name == "OPEN" for each in runtime.worker.partitions):
                    await anyio.sleep(0.005)
            bank.gate.set()
    assert bank.calls("second") == 0
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        handle = runtime.client.attach(second.id, str)
        with anyio.fail_after(SOON):
            await handle.result()
        assert (EventKind.NOT_SENT, NOT_OURS) in await life_of(runtime, "second", "acme/o-2")
    assert (bank.calls("second"), bank.payments("second")) == (1, 1)


async def test_a_call_that_outlasts_the_drain_limit_is_found_out_by_the_next_owner(
    store_url: str, namespace: str
) -> None:
    """The intent that it finds is of an owner that has gone: nobody knows, so the receiver is asked."""
    settings = Settings(drain_limit_seconds=0.1, partitions=2)
    app = App(order, settings=settings)
    bank.whims.append("wait, then lose the answer")
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(refund, KEY, "r")
        await bank.waiting.wait()
        bank.gate.set()
        bank.books[f"{namespace}.Order.{KEY}.r"] = [Receipt(id="r#1", amount=7)]
        bank.gate = anyio.Event()
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        attached = runtime.client.attach(handle.id, str)
        with anyio.fail_after(SOON):
            assert await attached.result() == "r#1"
        assert bank.calls("r") == 1


async def test_the_first_attempt_after_a_lost_tail_is_found_out_and_not_called(h: Harness) -> None:
    """It may have been done before: the records that would say so may be what was lost."""
    for partition in h.runtime.worker.partitions:
        partition.doubt = DoubtSpan(0, 2**50)
    bank.books[f"{h.namespace}.Order.{KEY}.r"] = [Receipt(id="before", amount=7)]
    assert await h.call(refund, KEY, "r") == "before"
    assert bank.calls("r") == 0
    assert (await life_of(h, "r"))[0] == (EventKind.UNKNOWN, TAIL_LOST)


async def test_what_was_open_when_a_tail_was_lost_does_nothing_again_that_it_may_have_done_in_it(h: Harness) -> None:
    """It was taken in long before, and what has let it go on is missing as well as what it did then."""
    handle = await h.runtime.client.send(refund_when_told, KEY, "r")
    with anyio.fail_after(SOON):
        while (await handle.describe()).status != "waiting":
            await anyio.sleep(0.01)
    for partition in h.runtime.worker.partitions:
        now_ms = partition.now_ms()
        partition.doubt = DoubtSpan(now_ms + 1, now_ms + 1)
    bank.books[f"{h.namespace}.Order.{KEY}.r"] = [Receipt(id="before", amount=7)]
    await handle.signal("go", "on")
    with anyio.fail_after(SOON):
        assert await handle.result() == "before"
    assert bank.calls("r") == 0
    assert (await life_of(h, "r"))[0] == (EventKind.UNKNOWN, TAIL_LOST)


async def test_what_waited_its_turn_when_a_tail_was_lost_is_found_out_and_not_called(h: Harness) -> None:
    """Its turn may have come in what is missing."""
    bank.whims.append("lose the request")
    handle = await h.send(refund_both, KEY)
    await h.settled()
    assert (bank.calls("a"), bank.calls("b")) == (1, 0)
    for partition in h.runtime.worker.partitions:
        now_ms = partition.now_ms()
        partition.doubt = DoubtSpan(now_ms, now_ms)
    bank.books[f"{h.namespace}.Order.{KEY}.b"] = [Receipt(id="before", amount=7)]
    await h.advance(timedelta(minutes=5))
    assert (await handle.result())[1] == "before"
    assert bank.calls("b") == 0
    assert (EventKind.UNKNOWN, TAIL_LOST) in await life_of(h, "b")


async def test_parameters_that_are_too_large_are_refused_by_name(h: Harness) -> None:
    """They would lie in the memory of each owner."""
    with pytest.raises(PayloadTooLarge, match="params of effect refund has 65,556 bytes"):
        await h.call(refund_at_length, KEY, 65_537)
    assert not bank.sent


async def test_a_receipt_that_is_too_large_is_no_reason_to_call_it_failed(h: Harness) -> None:
    """It was done; a person says with what receipt."""
    await h.send(letter, KEY)
    await h.settled()
    entry = await effect_of(h, "r")
    assert entry is not None
    assert [each.kind for each in entry.life] == [EventKind.INTENDED, EventKind.UNKNOWN, EventKind.FOUND]
    assert "receipt of effect letter" in entry.life[1].detail
    assert bank.payments("r") == 1


async def test_an_effect_that_the_object_does_not_list_is_refused(h: Harness) -> None:
    """Nothing else of it would be found again after a crash."""
    handle = await h.send(unlisted, KEY)
    await h.settled()
    described = await handle.describe()
    assert described.status == "paused"
    assert described.error is not None
    assert described.error.code == RegistrationError.code
    assert not bank.sent


async def test_a_settled_effect_is_kept_and_then_forgotten(h: Harness) -> None:
    """Until then its operation id is taken; afterwards nothing is left of it."""
    await h.call(refund, KEY, "r")
    await h.advance(timedelta(days=89))
    assert await effect_of(h, "r") is not None
    await h.advance(timedelta(days=2))
    await h.settled()
    assert await effect_of(h, "r") is None
    store = h.client.store
    spaces = [store.space("Order", number) for number in range(2)]
    left = await store.together([("EXISTS", space.agenda, space.effects(KEY)) for space in spaces])
    assert left == [0, 0]


async def test_an_operation_id_is_known_for_as_long_as_the_receiver_knows_it(h: Harness) -> None:
    """Where that is longer than the ledger is kept; asked for after that, it is sent anew."""
    await h.call(deposit, KEY)
    await h.advance(timedelta(days=199))
    await h.call(deposit, KEY)
    assert bank.payments("d") == 1

    await h.advance(timedelta(days=2))
    await h.call(deposit, KEY)
    assert bank.payments("d") == 2


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_what_is_no_effect_and_no_approval_is_said(h: Harness, mistake: str) -> None:
    """A handler that gives something else is told what belongs there, and nothing is recorded of it."""
    handle = await h.send(refund_by_mistake, KEY, mistake)
    with pytest.raises(KeylaneError) as raised:
        await handle.result(timeout=SOON)

    assert MISTAKES[mistake][1] in str(raised.value)
    assert await h.client.effects(order, KEY) == ()
