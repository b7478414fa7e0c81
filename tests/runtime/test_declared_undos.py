"""`compensate=True`: what an effect declares undoes it where it was done, once, in its turn, and never on a guess."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import (
    App,
    BlockingObjectContext,
    Deduplicates,
    EffectRejected,
    Handle,
    InvocationCancelled,
    InvocationFailed,
    ObjectContext,
    PayloadTooLarge,
    Receiver,
    Settings,
    TerminalError,
    Unknown,
    VirtualObject,
)
from keylane.journal.effects import EffectEntry, EffectState
from keylane.testing import Harness, harness
from tests.faults.harness import eventually_answers
from tests.runtime.fake_bank import Bank, Receipt, Terms

pytestmark = pytest.mark.anyio

KEY = "acme/t-1"
TERMS = Terms(amount=7)

bank = Bank()
trail: list[str] = []
refusing: list[str] = []

payments = Receiver(
    "payments", owner="oncall", lookup=bank.find, lookup_lag=timedelta(seconds=5), absent_means="not_done",
    late_calls="impossible", in_flight=timedelta(seconds=20),
)  # fmt: skip
till = Receiver("till", owner="oncall", deduplicates=Deduplicates(retention=timedelta(days=1)), while_unknown="allow")
desk = Receiver(
    "desk", owner="desk-oncall", lookup=bank.find, absent_means="not_done", late_calls="impossible", ids="verbatim",
    id_limit=32, in_flight=timedelta(seconds=20),
)  # fmt: skip


async def recheck(terms: Terms) -> None:
    if refusing:
        raise TerminalError(refusing.pop(), code="closed")


@payments.effect("refund", timeout=timedelta(seconds=2))
async def send_refund(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@payments.effect("charge", timeout=timedelta(seconds=2), compensate_with=send_refund, recheck=recheck)
async def send_charge(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@payments.effect("cheque", timeout=timedelta(seconds=2), compensate_with=send_refund, on_unknown="ask")
async def send_cheque(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@till.effect("note", timeout=timedelta(seconds=2), compensate_with=send_refund)
async def send_note(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@desk.effect("take-back", timeout=timedelta(seconds=2))
async def take_back(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@desk.effect("pay-out", timeout=timedelta(seconds=2), compensate_with=take_back)
async def pay_out(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


EFFECTS = {each.name: each for each in (send_charge, send_cheque, send_note, pay_out, send_refund)}
trip = VirtualObject("Trip", owner="tests", effects=[send_charge, send_cheque, send_note, pay_out], partitions=1)


async def unbook(what: str) -> None:
    trail.append(f"unbook {what} after {sum(bank.payments(each) for each in ('c-1-undo', 'c-2-undo'))} undos")


@trip.handler
async def plan(ctx: ObjectContext, name: str) -> None:
    """Fail behind an effect that is undone, between two other things."""
    ctx.compensate("hotel", unbook, "hotel")
    await ctx.effect(EFFECTS[name], operation_id="c-1", params=TERMS, compensate=True)
    ctx.compensate("car", unbook, "car")
    raise TerminalError("no visa", code="no-visa")


@trip.handler
def plan_in_a_thread(ctx: BlockingObjectContext, name: str) -> None:
    """Fail behind two effects, on a thread."""
    ctx.effect(EFFECTS[name], operation_id="c-1", params=TERMS, compensate=True)
    match ctx.effect_outcome(EFFECTS[name], operation_id="c-2", params=TERMS, compensate=True):
        case EffectRejected() | Unknown():
            raise AssertionError
        case _:
            raise TerminalError("no visa", code="no-visa")


@trip.handler
async def look_and_fail(ctx: ObjectContext, name: str) -> None:
    """Fail while the outcome is unknown, or whatever it is."""
    await ctx.effect_outcome(EFFECTS[name], operation_id="c-1", params=TERMS, compensate=True)
    outcome = await ctx.effect_outcome(EFFECTS[name], operation_id="c-1", params=TERMS, compensate=True)
    trail.append(type(outcome).__name__)
    raise TerminalError("no visa", code="no-visa")


@trip.handler
async def stay(ctx: ObjectContext, name: str) -> None:
    """Wait until it is cancelled, with an effect done."""
    await ctx.effect(EFFECTS[name], operation_id="c-1", params=TERMS, compensate=True)
    await ctx.signal("never", str)


@trip.handler
async def charge_twice(ctx: ObjectContext) -> None:
    """Ask for one effect behind another that is not settled."""
    await ctx.effect_outcome(send_cheque, operation_id="c-1", params=TERMS, compensate=True)
    await ctx.effect(send_charge, operation_id="c-2", params=TERMS, compensate=True)


@trip.handler
async def branch(ctx: ObjectContext) -> None:
    """Fail in one branch while another waits for its effect."""

    async def fail() -> None:
        await ctx.signal("fail", str)
        raise TerminalError("no visa", code="no-visa")

    await ctx.gather(ctx.effect(send_charge, operation_id="c-1", params=TERMS, compensate=True), fail())


@trip.handler
async def succeed(ctx: ObjectContext) -> str:
    """Return, so that nothing is undone."""
    return (await ctx.effect(send_charge, operation_id="c-1", params=TERMS, compensate=True)).id


@trip.handler
async def wait_for_long(ctx: ObjectContext) -> None:
    """Go on for so long that nobody knows an old effect any more whose outcome was never asked for."""
    await ctx.effect_outcome(send_charge, operation_id="c-1", params=TERMS, compensate=True)
    await ctx.sleep(timedelta(days=200))
    raise TerminalError("no visa", code="no-visa")


@trip.handler
async def misuse(ctx: ObjectContext, how: str) -> None:
    """Ask for what can't be."""
    match how:
        case "none declared":
            await ctx.effect(send_refund, operation_id="c-1", params=TERMS, compensate=True)
        case "a function":
            wrong: Any = unbook
            await ctx.effect(send_charge, operation_id="c-1", params=TERMS, compensate=wrong)
        case "too long":
            await ctx.effect(send_charge, operation_id="x" * 192, params=TERMS, compensate=True)
        case _:
            await ctx.effect(pay_out, operation_id="x" * 24, params=TERMS, compensate=True)


plain = VirtualObject("Plain", owner="tests", partitions=1)


@plain.handler
async def unlisted(ctx: ObjectContext) -> None:
    """Ask for what its object does not list."""
    await ctx.effect(send_charge, operation_id="c-1", params=TERMS, compensate=True)


app = App([trip, plain], settings=Settings(retry_first_seconds=0.001, retry_cap_seconds=0.002, retry_attempts=2))


@pytest.fixture(autouse=True)
def _afresh() -> None:
    bank.empty()
    trail.clear()
    refusing.clear()


@pytest.fixture(params=[None, "suspend", "replay"])
async def h(request: pytest.FixtureRequest, store_url: str) -> AsyncIterator[Harness]:
    """Give a harness, plain and with handlers that are always begun anew."""
    async with harness(app, store=store_url, force=request.param) as made:
        yield made


async def has_status(handle: Handle[Any], wanted: str) -> None:
    async def has() -> bool:
        return (await handle.describe()).status == wanted

    await eventually_answers(has, wanted)


async def has_failed(handle: Handle[Any]) -> None:
    with pytest.raises(InvocationFailed) as caught:
        await handle.result(timeout=20)
    assert caught.value.code == "no-visa"


async def effect_of(h: Harness, operation: str) -> EffectEntry | None:
    """Return an effect as it lies in the store."""
    store = h.client.store
    (data,) = await store.together([("HGET", store.space("Trip", 0).effects(KEY), operation)])
    return None if data is None else EffectEntry.decode(data)


async def is_asked(h: Harness) -> None:
    """Wait until an effect lies with people."""

    async def is_there() -> bool:
        return bool(await h.client.reconcile_list())

    await eventually_answers(is_there, "it is there")


def done(*operations: str) -> list[int]:
    return [bank.payments(each) for each in operations]


async def test_a_declared_undo_runs_in_its_turn_and_once(h: Harness) -> None:
    """Where `ctx.compensate` right before the effect would have put it."""
    handle = await h.send(plan, KEY, "charge")
    await has_failed(handle)
    assert trail == ["unbook car after 0 undos", "unbook hotel after 1 undos"]
    assert (done("c-1", "c-1-undo"), bank.calls("c-1-undo")) == ([1, 1], 1)
    assert [each.name for each in (await handle.describe()).steps][-3:] == [
        "what became of effect payments.charge 'c-1', to undo it",
        "effect payments.refund 'c-1-undo'",
        "undo hotel",
    ]


async def test_the_effects_of_a_plain_function_are_undone(h: Harness) -> None:
    """Each of them, also where the handler has asked for the outcome."""
    await has_failed(await h.send(plan_in_a_thread, KEY, "charge"))
    assert done("c-1", "c-1-undo", "c-2", "c-2-undo") == [1, 1, 1, 1]


async def test_nothing_is_undone_of_a_handler_that_returns(h: Harness) -> None:
    """Whatever it had registered."""
    assert await h.call(succeed, KEY)
    assert done("c-1", "c-1-undo") == [1, 0]


@pytest.mark.parametrize("how", ["refuse", "closed"])
async def test_what_was_not_done_is_not_undone(h: Harness, how: str) -> None:
    """Neither what the receiver has rejected nor what the facts have refused; nothing of it is recorded."""
    (bank.whims if how == "refuse" else refusing).append(how)
    handle = await h.send(plan, KEY, "charge")
    with pytest.raises(InvocationFailed):
        await handle.result(timeout=20)
    assert (bank.calls("c-1-undo"), trail) == (0, ["unbook hotel after 0 undos"])
    assert "to undo it" not in str([each.name for each in (await handle.describe()).steps])


@pytest.mark.parametrize("was_done", [True, False])
async def test_an_undo_waits_until_it_is_known_what_became_of_its_effect(h: Harness, *, was_done: bool) -> None:
    """The invocation stays compensating and says for what it waits; a person who settles it has it go on."""
    bank.whims.append("lose the answer")
    handle = await h.send(look_and_fail, KEY, "cheque")
    await is_asked(h)
    await has_status(handle, "compensating")
    await h.settled()
    told = await handle.describe()
    assert (told.status, trail[-1]) == ("compensating", "Unknown")
    assert "what became of effect payments.cheque 'c-1', to undo it" in (told.waits_for or "")
    assert bank.calls("c-1-undo") == 0
    who = {"by": "ann", "reason": "I have seen the statement", "timeout": 20}
    await h.advance(timedelta(minutes=5))
    if was_done:
        await h.client.reconcile_succeeded(trip, KEY, "c-1", {"id": "seen", "amount": 7}, **who)  # pyright: ignore[reportArgumentType]
    else:
        await h.client.reconcile_not_done(trip, KEY, "c-1", **who)  # pyright: ignore[reportArgumentType]
    await has_failed(handle)
    assert bank.calls("c-1-undo") == was_done


@pytest.mark.parametrize("name", ["charge", "note"])
async def test_an_unknown_effect_is_settled_by_its_contract_before_it_is_undone(h: Harness, name: str) -> None:
    """By a look-up, or by sending the same id again where the receiver takes one once."""
    bank.is_deduplicating = name == "note"
    bank.whims.append("lose the answer")
    try:
        await has_failed(await h.send(look_and_fail, KEY, name))
    finally:
        bank.is_deduplicating = False
    assert (done("c-1", "c-1-undo"), bank.calls("c-1-undo")) == ([1, 1], 1)


async def test_an_unknown_effect_that_was_not_done_is_not_tried_anew_to_be_undone(h: Harness) -> None:
    """The receiver knows nothing of it, and nobody wants it any more."""
    bank.whims.append("lose the request")
    await has_failed(await h.send(look_and_fail, KEY, "charge"))
    assert (bank.calls("c-1"), bank.calls("c-1-undo"), trail[-1]) == (1, 0, "Unknown")
    assert await effect_of(h, "c-1") is None


async def test_what_a_cancelled_handler_did_is_undone_and_reported(h: Harness) -> None:
    """What was undone does not count among what stays."""
    handle = await h.send(stay, KEY, "charge")
    await has_status(handle, "waiting")

    async def waits_for_the_signal() -> bool:
        return "signal" in ((await handle.describe()).waits_for or "")

    await eventually_answers(waits_for_the_signal, "it waits for the signal")
    report = await handle.cancel(timeout=20)
    assert (report.undone, report.committed, report.unknown) == (("payments.charge c-1",), (), ())
    assert done("c-1", "c-1-undo") == [1, 1]


async def test_a_cancel_while_the_call_is_under_way_has_its_effect_undone(h: Harness) -> None:
    """It is told of the cancel once the outcome is known, or is not."""
    bank.whims.append("wait, then lose the answer")
    handle = await h.send(stay, KEY, "charge")
    await bank.waiting.wait()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(handle.cancel)
        bank.gate.set()
        with pytest.raises(InvocationCancelled):
            await handle.result(timeout=20)
    assert not (await handle.describe()).compensation_failed
    assert (done("c-1", "c-1-undo"), bank.calls("c-1")) == ([1, 1], 1)


async def test_what_had_not_left_when_its_handler_was_cancelled_is_neither_sent_nor_undone(h: Harness) -> None:
    """Though another effect keeps it waiting that nobody has settled."""
    bank.whims.append("lose the answer")
    handle = await h.send(charge_twice, KEY)
    await is_asked(h)

    async def is_blocked() -> bool:
        entry = await effect_of(h, "c-2")
        return entry is not None and entry.state is EffectState.BLOCKED

    await eventually_answers(is_blocked, "it is blocked")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(handle.cancel)

        async def is_dropped() -> bool:
            return await effect_of(h, "c-2") is None

        await eventually_answers(is_dropped, "it is dropped")
        await h.client.reconcile_succeeded(
            trip, KEY, "c-1", {"id": "seen", "amount": 7}, by="ann", reason="I have seen it", timeout=20
        )
        with pytest.raises(InvocationCancelled):
            await handle.result(timeout=20)
    assert (bank.calls("c-2"), bank.calls("c-2-undo"), done("c-1-undo")) == (0, 0, [1])
    assert (await handle.cancel(timeout=20)).undone == ("payments.cheque c-1",)


async def test_an_effect_is_undone_whose_branch_was_cut_off(h: Harness) -> None:
    """Once the call that is under way has come to something."""
    bank.whims.append("wait")
    handle = await h.send(branch, KEY)
    await bank.waiting.wait()
    await handle.signal("fail", "now")
    await has_status(handle, "compensating")
    bank.gate.set()
    await has_failed(handle)
    assert (bank.calls("c-1"), done("c-1", "c-1-undo")) == (1, [1, 1])


async def test_an_undo_under_an_id_as_the_receiver_sees_it_is_reserved(h: Harness) -> None:
    """As that of its effect was."""
    await has_failed(await h.send(plan, KEY, "pay-out"))
    assert {each: len(receipts) for each, receipts in bank.books.items()} == {"c-1": 1, "c-1-undo": 1}


async def test_a_declared_undo_that_is_rejected_lies_with_a_person(h: Harness) -> None:
    """Who has it asked for under the next id; what became of the effect is not looked at again."""
    bank.whims.extend(["pay", "refuse"])
    handle = await h.send(plan, KEY, "charge")
    await has_status(handle, "paused")
    await h.client.resume(handle.id, reason="open again", by="ann", timeout=20)
    await has_failed(handle)
    assert [bank.calls(each) for each in ("c-1", "c-1-undo", "c-1-undo~2")] == [1, 1, 1]
    assert trail[-1] == "unbook hotel after 0 undos"


async def test_a_declared_undo_can_be_given_up(h: Harness) -> None:
    """The others run, and the report does not name it."""
    bank.whims.extend(["pay", "refuse"])
    handle = await h.send(plan, KEY, "charge")
    await has_status(handle, "paused")
    await h.client.skip_compensation(handle.id, reason="paid in cash", by="ann", timeout=20)
    await has_failed(handle)
    report = await handle.cancel(timeout=20)
    assert (report.undone, report.compensation_failed) == (("car", "hotel"), True)


async def test_what_nobody_knows_any_more_is_not_guessed(h: Harness) -> None:
    """An outcome that was forgotten before it was asked for lies with a person, and so does the undo."""
    bank.whims.append("lose the answer")
    handle = await h.send(wait_for_long, KEY)
    await has_status(handle, "waiting")
    await h.advance(timedelta(days=201))
    assert await effect_of(h, "c-1") is None
    await has_status(handle, "paused")
    told = await handle.describe()
    assert told.pause is not None
    assert (told.pause.reason, bank.calls("c-1-undo")) == ("compensation_failed", 0)
    assert "nothing is known any more of 'c-1'" in told.pause.detail
    await h.client.resume(handle.id, reason="once more", by="ann", timeout=20)
    await h.settled()
    await has_status(handle, "paused")
    await h.client.skip_compensation(handle.id, reason="refunded by hand", by="ann", timeout=20)
    await has_failed(handle)
    assert (await handle.describe()).compensation_failed


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("none declared", "declares no compensate_with"),
        ("a function", "compensate= of ctx.effect is True or False"),
        ("too long", ""),
        ("too long for its receiver", ""),
    ],
)
async def test_what_can_not_be_undone_so_is_refused_before_anything_is_asked_for(
    store_url: str, how: str, what: str
) -> None:
    """In words, and with room for the ids of later attempts of the undo."""
    async with harness(app, store=store_url) as h:
        handle = await h.send(misuse, KEY, how)
        if not what:
            with pytest.raises(PayloadTooLarge, match="operation_id has"):
                await handle.result(timeout=20)
        else:
            await has_status(handle, "paused")
            told = await handle.describe()
            assert told.pause is not None
            assert what in told.pause.detail
        assert not bank.sent


async def test_an_object_that_does_not_list_the_effect_is_refused_it(store_url: str) -> None:
    """With its undo, which is listed with it."""
    async with harness(app, store=store_url) as h:
        handle = await h.send(unlisted, KEY)
        await has_status(handle, "paused")
        told = await handle.describe()
        assert told.pause is not None
        assert "is no effect of Plain" in told.pause.detail
