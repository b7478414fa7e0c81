"""Effects: nothing is sent before it is durable, nothing is guessed, and what was done once is not done again."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import (
    BlockingObjectContext,
    Deduplicates,
    EffectConflict,
    EffectRejected,
    InvocationFailed,
    ObjectContext,
    Receiver,
    Succeeded,
    TerminalError,
    Unknown,
    VirtualObject,
)
from keylane.journal.effects import EffectEntry, EffectState
from keylane.journal.ledger import EventKind, LedgerEvent
from keylane.journal.outcomes import Succeeded as Done
from keylane.runtime.effect_facts import follows_another, intent
from keylane.runtime.lane import Lane
from keylane.testing import Harness, harness
from tests.journal.ledgers import effect
from tests.runtime.fake_bank import Bank, Receipt, Terms

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
#: How long a test waits for what a passing clock brings.
SOON = 30.0

bank = Bank()
dedup_bank = Bank(is_deduplicating=True)
refusals: list[str] = []

payments = Receiver(
    "payments", owner="payments-oncall", lookup=bank.find, lookup_lag=timedelta(seconds=5), absent_means="not_done",
    late_calls="impossible", in_flight=timedelta(seconds=20),
)  # fmt: skip
deduplicating = Receiver(
    "deduplicating", owner="payments-oncall", deduplicates=Deduplicates(timedelta(hours=1)),
    in_flight=timedelta(seconds=20),
)  # fmt: skip
blind = Receiver("blind", owner="blind-oncall", reconcile_within=timedelta(hours=2), in_flight=timedelta(seconds=20))


async def find_wrongly(operation_id: str, terms: Terms) -> Any:
    """Answer with what is no receipt."""
    return f"{operation_id} of {terms.amount}"


garbled = Receiver(
    "garbled", owner="garbled-oncall", lookup=find_wrongly, lookup_lag=timedelta(seconds=5),
    in_flight=timedelta(seconds=20),
)  # fmt: skip


async def recheck(terms: Terms) -> dict[str, int]:
    """Refuse what the test has put on the list."""
    if refusals:
        raise TerminalError(refusals[0], code="not-any-more")
    return {"checked": terms.amount}


@payments.effect("refund", timeout=timedelta(milliseconds=300), recheck=recheck)
async def send_refund(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@payments.effect("fee", timeout=timedelta(milliseconds=300))
async def send_fee(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@deduplicating.effect("transfer", timeout=timedelta(milliseconds=300), recheck=recheck)
async def send_transfer(operation_id: str, terms: Terms) -> Receipt:
    return await dedup_bank.pay(operation_id, terms)


@blind.effect("cheque", timeout=timedelta(milliseconds=300))
async def send_cheque(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@garbled.effect("wire", timeout=timedelta(milliseconds=300))
async def send_wire(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


order = VirtualObject(
    "Order", owner="tests", effects=[send_refund, send_fee, send_transfer, send_cheque, send_wire], state={"seen": str}
)


@order.handler
async def refund(ctx: ObjectContext, amount: int) -> str:
    receipt = await ctx.effect(send_refund, operation_id="refund-1", params=Terms(amount=amount))
    return receipt.id


@order.handler
async def transfer(ctx: ObjectContext, amount: int) -> str:
    receipt = await ctx.effect(send_transfer, operation_id="transfer-1", params=Terms(amount=amount))
    return receipt.id


@order.handler
async def cheque(ctx: ObjectContext, amount: int) -> str:
    receipt = await ctx.effect(send_cheque, operation_id="cheque-1", params=Terms(amount=amount))
    return receipt.id


@order.handler
async def wire(ctx: ObjectContext, amount: int) -> str:
    receipt = await ctx.effect(send_wire, operation_id="wire-1", params=Terms(amount=amount))
    return receipt.id


@order.handler
async def fee(ctx: ObjectContext, amount: int) -> str:
    receipt = await ctx.effect(send_fee, operation_id="refund-1", params=Terms(amount=amount))
    return receipt.id


@order.handler
async def transfer_asking(ctx: ObjectContext, amount: int) -> str:
    asking = ctx.effect_outcome(send_refund, operation_id="refund-1", params=Terms(amount=amount))
    match await asking:
        case Succeeded(receipt):
            return f"done {receipt.amount}"
        case EffectRejected() as rejected:
            return f"rejected: {rejected.reason}"
        case Unknown(why=why):
            return f"unknown: {why}"


@order.handler
def refund_in_a_thread(ctx: BlockingObjectContext, amount: int) -> int:
    return ctx.effect(send_refund, operation_id="refund-1", params=Terms(amount=amount)).amount


@pytest.fixture(autouse=True)
def _afresh() -> None:
    bank.empty()
    dedup_bank.empty()
    refusals.clear()


@pytest.fixture
async def h(store_url: str) -> AsyncIterator[Harness]:
    """Give a harness on the store that all tests share."""
    async with harness(order, store=store_url) as h:
        yield h


async def entries(h: Harness, key: str = KEY) -> dict[str, EffectEntry]:
    """Return the effects of an object as they lie in the store."""
    store = h.client.store
    found: dict[str, EffectEntry] = {}
    for number in range(2):
        flat = await store.together([("HGETALL", store.space("Order", number).effects(key))])
        for data in flat[0][1::2]:
            entry = EffectEntry.decode(data)
            found[entry.operation] = entry
    return found


async def ledger(h: Harness) -> list[LedgerEvent]:
    """Return the ledger of the namespace."""
    store = h.client.store
    events: list[LedgerEvent] = []
    for number in range(2):
        (stream,) = await store.together([("XRANGE", store.space("Order", number).ledger, "-", "+")])
        events.extend(LedgerEvent.decode(fields[1]) for _, fields in stream)
    return events


async def test_an_effect_takes_two_commits_beyond_those_of_a_handler_without_one(h: Harness) -> None:
    """The intent is one with the record that begins the wait, and the outcome with the one that ends it."""
    assert await h.call(refund, KEY, 7) == f"{h.namespace}.Order.{KEY}.refund-1#1"
    (lane,) = [each.lanes[KEY] for each in h.runtime.worker.partitions if KEY in each.lanes]
    await h.settled()
    # Accepted with the intent; the outcome; the end of the invocation.
    assert lane.commits == 3
    assert [each.happened.kind for each in await ledger(h)] == [EventKind.INTENDED, EventKind.SUCCEEDED]


async def test_what_is_kept_of_an_effect_says_what_was_done(h: Harness) -> None:
    """Parameters, receipt, facts and life stand with the object."""
    await h.call(refund, KEY, 7)
    entry = (await entries(h))["refund-1"]
    assert (entry.state, entry.attempt, entry.waiters) == (EffectState.SUCCEEDED, 1, ())
    assert [each.kind for each in entry.life] == [EventKind.INTENDED, EventKind.SUCCEEDED]
    assert entry.facts is not None


async def test_a_rejection_is_told_to_the_handler_and_ends_it_as_failed(h: Harness) -> None:
    """What the receiver says for sure is an outcome."""
    bank.whims.append("refuse")
    with pytest.raises(InvocationFailed) as caught:
        await h.call(refund, KEY, 7)
    assert caught.value.code == EffectRejected.code
    assert caught.value.details == {"operation_id": "refund-1", "reason": "no such customer", "by": ""}
    assert (bank.calls("refund-1"), bank.payments("refund-1")) == (1, 0)


async def test_what_was_not_sent_is_attempted_again(h: Harness) -> None:
    """Nothing has left, so another attempt is no risk; it has an intent of its own."""
    bank.whims.extend(["unreachable", "unreachable"])
    await h.call(refund, KEY, 7)
    assert (bank.calls("refund-1"), bank.payments("refund-1")) == (3, 1)
    entry = (await entries(h))["refund-1"]
    assert entry.attempt == 3
    assert [each.kind for each in entry.life] == [
        EventKind.INTENDED, EventKind.NOT_SENT, EventKind.INTENDED, EventKind.NOT_SENT, EventKind.INTENDED,
        EventKind.SUCCEEDED,
    ]  # fmt: skip


async def test_a_lost_answer_is_found_out_and_nothing_is_done_twice(h: Harness) -> None:
    """The handler waits through all of it, and gets the receipt of what was done."""
    bank.whims.append("lose the answer")
    with anyio.fail_after(SOON):
        assert (await h.call(refund, KEY, 7)).endswith("refund-1#1")
    assert (bank.calls("refund-1"), bank.payments("refund-1")) == (1, 1)
    assert bank.questions("refund-1") == 1


async def test_a_lost_request_is_attempted_anew_once_absence_counts(h: Harness) -> None:
    """Before nothing can be under way any more, absence says nothing."""
    bank.whims.append("lose the request")
    with anyio.fail_after(SOON):
        await h.call(refund, KEY, 7)
    assert (bank.calls("refund-1"), bank.payments("refund-1")) == (2, 1)
    life = (await entries(h))["refund-1"].life
    intents = [each.at_ms for each in life if each.kind is EventKind.INTENDED]
    # Ten seconds in which it could be sent, twenty in flight, and a lag of five.
    assert intents[1] - intents[0] >= 35_000


async def test_a_call_that_takes_too_long_is_unknown_and_looked_into(h: Harness) -> None:
    """A timeout tells nothing."""
    bank.whims.append("hang")
    with anyio.fail_after(SOON):
        await h.call(refund, KEY, 7)
    life = [each.kind for each in (await entries(h))["refund-1"].life]
    assert life[:3] == [EventKind.INTENDED, EventKind.UNKNOWN, EventKind.ABSENT]
    assert bank.payments("refund-1") == 1


async def test_the_same_id_is_sent_again_where_the_receiver_takes_it_once(h: Harness) -> None:
    """Where there is no look-up, the same request is the question."""
    dedup_bank.whims.append("lose the answer")
    with anyio.fail_after(SOON):
        assert (await h.call(transfer, KEY, 7)).endswith("transfer-1#1")
    assert (dedup_bank.calls("transfer-1"), dedup_bank.payments("transfer-1")) == (2, 1)
    assert EventKind.RESENT in [each.kind for each in (await entries(h))["transfer-1"].life]


async def test_no_resend_leaves_after_the_receiver_may_have_forgotten_the_id(h: Harness) -> None:
    """From then on it lies with people."""
    dedup_bank.whims.extend(["lose the answer"] * 100)
    await h.send(transfer, KEY, 7)
    await h.advance(timedelta(hours=3))
    entry = (await entries(h))["transfer-1"]
    assert entry.state is EffectState.UNRESOLVED
    sent = [each.at_ms for each in entry.life if each.kind is EventKind.RESENT]
    assert sent
    assert max(sent) - entry.first_ms < 3_600_000 - 20_000
    assert dedup_bank.payments("transfer-1") == 1


@pytest.mark.parametrize("then", ["time passes", "the facts refuse it", "nobody waits any more"])
async def test_a_resend_that_is_not_sent_leaves_the_first_in_question(h: Harness, then: str) -> None:
    """The answer to the first attempt is lost, and then the receiver can't be reached: nobody knows, as before."""
    dedup_bank.whims.extend(["lose the answer", *["unreachable"] * 1_000])
    handle = await h.send(transfer, KEY, 7)
    await h.advance(timedelta(seconds=10))
    if then == "the facts refuse it":
        refusals.append("the customer is gone")
    elif then == "nobody waits any more":
        await h.client.kill(handle.id, by="tests", reason="enough")
    await h.advance(timedelta(minutes=5))
    entry = (await entries(h))["transfer-1"]
    assert entry.state is EffectState.UNKNOWN
    assert "may have been done" in entry.why

    dedup_bank.whims.clear()
    dedup_bank.whims.extend(["unreachable"] * 1_000)
    await h.advance(timedelta(hours=3))
    entry = (await entries(h))["transfer-1"]
    assert entry.state is EffectState.UNRESOLVED
    sent = [each.at_ms for each in entry.life if each.kind is EventKind.RESENT]
    assert max(sent) - entry.first_ms < 3_600_000 - 20_000
    assert not [each for each in entry.life[1:] if each.kind is EventKind.INTENDED]
    # An outage is no reason to ask every few seconds.
    assert dedup_bank.calls("transfer-1") < 60


async def test_an_attempt_that_follows_on_another_one_is_told_from_a_first_one() -> None:
    """Also where both have the same millisecond: what may have been done is not forgotten for a fast clock."""
    first = effect("r", state=EffectState.UNKNOWN, first_ms=7, intended_ms=7)
    assert not follows_another(first)
    assert follows_another(intent(first, 7, 10, EventKind.RESENT).entry)
    unsent = replace(first, state=EffectState.NOT_SENT)
    assert not follows_another(intent(unsent, 9, 10, EventKind.INTENDED).entry)


async def test_what_nothing_can_tell_is_put_before_people_and_not_sent_again(h: Harness) -> None:
    """It stands in the queue with its deadline, and when that has passed they are told, once."""
    bank.whims.append("lose the answer")
    await h.send(cheque, KEY, 7)
    await h.settled()
    entry = (await entries(h))["cheque-1"]
    assert entry.state is EffectState.UNRESOLVED
    assert entry.reconcile_by_ms == entry.since_ms + 7_200_000
    store = h.client.store
    spaces = [store.space("Order", number) for number in range(2)]
    assert await queued(h) == 1
    for _ in range(3):
        await h.advance(timedelta(hours=2))
    alerts = await store.together([("XRANGE", space.alerts, "-", "+") for space in spaces])
    events = [LedgerEvent.decode(fields[1]) for stream in alerts for _, fields in stream]
    assert [(each.happened.kind, each.owner, each.subject) for each in events] == [
        (EventKind.OVERDUE, "blind-oncall", "cheque-1")
    ]
    assert (bank.calls("cheque-1"), bank.payments("cheque-1")) == (1, 1)


async def test_the_same_id_gives_the_same_receipt_and_is_not_sent_again(h: Harness) -> None:
    """An operation id names one business operation of the object, whoever asks."""
    first = await h.call(refund, KEY, 7)
    assert await h.call(refund, KEY, 7) == first
    assert bank.calls("refund-1") == 1


async def test_the_same_id_with_other_parameters_is_refused_and_names_them(h: Harness) -> None:
    """Nothing is sent."""
    await h.call(refund, KEY, 7)
    with pytest.raises(InvocationFailed) as caught:
        await h.call(refund, KEY, 8)
    assert caught.value.code == EffectConflict.code
    told = {"operation_id": "refund-1", "fields": ("terms.amount",), "holder": "", "effect": ""}
    assert caught.value.details == told
    assert bank.calls("refund-1") == 1


async def test_a_look_up_that_gives_no_receipt_is_told_with_the_effect_and_not_in_the_log(
    h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """It is made again and again; each time would be an alarm of its own."""
    bank.whims.append("lose the answer")
    await h.send(wire, KEY, 7)
    await h.settled()
    await h.advance(timedelta(hours=1))
    entry = (await entries(h))["wire-1"]
    assert entry.lookups > 1
    last = [each for each in entry.life if each.kind is EventKind.LOOKUP_FAILED][-1]
    assert "its receipt can't be recorded" in last.detail
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_the_same_id_for_another_effect_is_refused(h: Harness) -> None:
    """No parameter is to blame: the other effect is named."""
    await h.call(refund, KEY, 7)
    with pytest.raises(InvocationFailed, match=r"as payments\.refund, which is another effect") as caught:
        await h.call(fee, KEY, 7)
    told = {"operation_id": "refund-1", "fields": (), "holder": "", "effect": "payments.refund"}
    assert caught.value.details == told


async def test_two_objects_have_operations_of_their_own(h: Harness) -> None:
    """What the receiver sees is qualified by tenant and key."""
    await h.call(refund, "acme/o-1", 7)
    await h.call(refund, "other/o-1", 7)
    assert len(bank.books) == 2
    assert bank.payments("refund-1") == 2


async def test_a_recheck_that_refuses_keeps_anything_from_being_sent(h: Harness) -> None:
    """The refusal is what the handler gets, and nothing is left of the operation."""
    refusals.append("the customer is gone")
    with pytest.raises(InvocationFailed) as caught:
        await h.call(refund, KEY, 7)
    assert caught.value.code == "not-any-more"
    assert not bank.sent
    assert not await entries(h)
    refusals.clear()
    await h.call(refund, KEY, 7)
    assert bank.payments("refund-1") == 1


async def test_an_unknown_outcome_is_told_to_who_asks_for_it_and_settled_all_the_same(h: Harness) -> None:
    """Asking again later gives what became of it."""
    bank.whims.append("lose the answer")
    bank.answers.extend(["lose the answer"] * 3)
    assert await h.call(transfer_asking, KEY, 7) == "unknown: ConnectionError: connection lost"
    await h.advance(timedelta(minutes=2))
    assert await h.call(transfer_asking, KEY, 7) == "done 7"
    assert bank.payments("refund-1") == 1


async def test_who_asks_for_the_outcome_gets_a_rejection_as_one(h: Harness) -> None:
    """It is returned and not raised."""
    bank.whims.append("refuse")
    assert await h.call(transfer_asking, KEY, 7) == "rejected: no such customer"


async def test_a_plain_function_has_effects_too(h: Harness) -> None:
    """It waits without its thread."""
    bank.whims.append("lose the answer")
    with anyio.fail_after(SOON):
        assert await h.call(refund_in_a_thread, KEY, 7) == 7
    assert bank.payments("refund-1") == 1


async def test_what_a_person_says_settles_an_effect_and_lets_its_handler_go_on(h: Harness) -> None:
    """It is recorded with name and reason, and the effect leaves the queue."""
    bank.whims.append("lose the answer")
    handle = await h.send(cheque, KEY, 7)
    await h.settled()
    parts = h.runtime.worker.effect_parts
    lane, entry = await at_hand(h, "cheque-1")
    assert await parts.by_hand.hand_over(lane, entry, "ann", by="bob", detail="she knows them") is not None
    assert await parts.by_hand.look_up_now(lane, entry, by="bob", detail="they have phoned") is not None
    receipt = send_cheque.receipt.dump(Receipt(id="by phone", amount=7))
    settled = await parts.by_hand.settle(
        lane, entry, Done(receipt), EventKind.MARKED_SUCCEEDED, by="ann", detail="their books have it"
    )
    assert settled is not None
    assert await handle.result() == "by phone"
    entry = (await entries(h))["cheque-1"]
    assert (entry.state, entry.by, entry.assigned) == (EffectState.SUCCEEDED, "ann", "ann")
    assert [(each.kind, each.by) for each in entry.life[3:]] == [
        (EventKind.HANDED_OVER, "bob"), (EventKind.LOOKUP_FAILED, "bob"), (EventKind.MARKED_SUCCEEDED, "ann"),
    ]  # fmt: skip
    assert not await parts.by_hand.settle(lane, entry, Done(receipt), EventKind.MARKED_SUCCEEDED, by="x", detail="")
    assert await queued(h) == 0


async def test_a_person_may_have_the_same_id_sent_again(h: Harness) -> None:
    """The resend has an intent of its own, and its answer settles the effect."""
    bank.whims.append("lose the request")
    handle = await h.send(cheque, KEY, 7)
    await h.settled()
    lane, entry = await at_hand(h, "cheque-1")
    by_hand = h.runtime.worker.effect_parts.by_hand
    resent = await by_hand.resend_now(lane, entry, by="ann", detail="they have not got it")
    assert resent is not None
    assert (await handle.result()).endswith("#1")
    assert bank.calls("cheque-1") == 2
    assert await queued(h) == 0


async def at_hand(h: Harness, operation: str) -> tuple[Lane, EffectEntry]:
    """Return an object's lane and one of its effects, as the owner has them."""
    parts = h.runtime.worker.effect_parts
    (partition,) = [each for each in h.runtime.worker.partitions if KEY in each.lanes]
    found = await parts.at_hand.bring(partition, KEY)
    assert found is not None
    return found[0], found[1].effects[operation]


async def queued(h: Harness) -> int:
    """Return how many effects lie with people."""
    store = h.client.store
    return sum(await store.together([("ZCARD", store.space("Order", number).queue) for number in range(2)]))
