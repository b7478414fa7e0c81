"""What people do about effects of which nobody knows whether they were done: asked of the owner, answered once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import (
    AlreadySettled,
    App,
    BlockingClient,
    Deduplicates,
    IdempotencyConflict,
    InvalidInput,
    InvocationFailed,
    NotAllowed,
    ObjectContext,
    PayloadTooLarge,
    Receiver,
    Reconciled,
    Runtime,
    UnknownTarget,
    VirtualObject,
)
from keylane.journal.effect_cases import Alert, EffectCase
from keylane.journal.effect_orders import ReconcileAct, ReconcileOrder
from keylane.journal.effects import EffectState
from keylane.journal.key import new_invocation_id
from keylane.journal.ledger import EventKind
from keylane.journal.ledger_reading import read_ledger, spaces_of
from keylane.journal.requests import Request, RequestKind
from keylane.objects.reconciliation import NO_CONTRACT
from keylane.runtime.reconciling import check_order
from keylane.testing import Harness, crashes, harness
from tests.runtime.fake_bank import Bank, Receipt, Terms

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
SOON = 30.0
MS = timedelta(milliseconds=1)
WHY: dict[str, Any] = {"by": "ada", "reason": "ticket 77"}

bank = Bank()
blind = Receiver(
    "blind", owner="blind-oncall", reconcile_within=timedelta(hours=2), in_flight=timedelta(seconds=20),
    runbook="Ask Ben.",
)  # fmt: skip
asked = Receiver(
    "asked", owner="asked-oncall", lookup=bank.find, lookup_lag=timedelta(seconds=5), in_flight=timedelta(seconds=20),
    reconcile_within=timedelta(hours=2),
)  # fmt: skip
patient = Receiver(
    "patient", owner="patient-oncall", deduplicates=Deduplicates(timedelta(hours=1)), in_flight=timedelta(seconds=20),
)  # fmt: skip


@blind.effect("cheque", timeout=timedelta(milliseconds=300))
async def send_cheque(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@asked.effect("refund", timeout=timedelta(milliseconds=300), on_unknown="ask")
async def send_refund(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@patient.effect("transfer", timeout=timedelta(milliseconds=300), on_unknown="ask")
async def send_transfer(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


tenacious = Receiver(
    "tenacious", owner="tenacious-oncall", lookup=bank.find, in_flight=timedelta(seconds=20),
    reconcile_within=timedelta(minutes=8),
)  # fmt: skip


@tenacious.effect("voucher", timeout=timedelta(milliseconds=300))
async def send_voucher(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


order = VirtualObject("Order", owner="tests", effects=[send_cheque, send_refund, send_transfer, send_voucher])


@order.handler
async def settling(ctx: ObjectContext, amount: int) -> str:
    return (await ctx.effect(send_voucher, operation_id="op", params=Terms(amount=amount))).id


@order.handler
async def cheque(ctx: ObjectContext, amount: int) -> str:
    return (await ctx.effect(send_cheque, operation_id="op", params=Terms(amount=amount))).id


@order.handler
async def refund(ctx: ObjectContext, amount: int) -> str:
    return (await ctx.effect(send_refund, operation_id="op", params=Terms(amount=amount))).id


@order.handler
async def transfer(ctx: ObjectContext, amount: int) -> str:
    return (await ctx.effect(send_transfer, operation_id="op", params=Terms(amount=amount))).id


@pytest.fixture(autouse=True)
def _afresh() -> None:
    bank.empty()


@pytest.fixture
async def h(store_url: str) -> AsyncIterator[Harness]:
    """Give a harness on the store that all tests share."""
    async with harness(order, store=store_url, auto_advance=False) as h:
        yield h


async def unresolved(h: Harness, handler: Any, whim: str = "lose the answer") -> Any:
    """Have an effect end without an answer, and return its handler's invocation."""
    bank.whims.append(whim)
    handle = await h.send(handler, KEY, 7)
    with anyio.fail_after(SOON):
        while (case := await the_case(h)) is None or case.state is not EffectState.UNRESOLVED:
            await h.settled()
    return handle


async def the_case(h: Harness) -> EffectCase | None:
    """Return what is known of the one effect of the object."""
    found = await h.client.effects(order, KEY)
    return found[0] if found else None


async def life(h: Harness) -> list[tuple[EventKind, str]]:
    """Return what has happened to the effect, and who has done it."""
    case = await the_case(h)
    assert case is not None
    return [(each.kind, each.by) for each in case.tried]


async def ledger(h: Harness) -> list[tuple[EventKind, str]]:
    """Return what the ledgers of all partitions have."""
    spaces = await spaces_of(h.client.store)
    events = [each.event async for page in read_ledger(h.client.store, spaces) for each in page]
    return [(each.happened.kind, each.happened.by) for each in events if each is not None]


async def test_the_queue_shows_what_a_person_needs(h: Harness) -> None:
    """Owner, deadline, parameters, all that was tried, what is allowed and why the rest is not, and the runbook."""
    handle = await unresolved(h, cheque)
    (case,) = await h.client.reconcile_list()
    assert (case.owner, case.receiver, case.effect, case.operation_id) == ("blind-oncall", "blind", "cheque", "op")
    assert (case.params, case.runbook, case.is_overdue) == ({"amount": 7, "note": ""}, "Ask Ben.", False)
    assert case.deadline is not None
    assert timedelta(hours=1.9) < case.deadline - case.read_at <= timedelta(hours=2)
    assert case.waiting == (handle.id,)
    assert [each.kind for each in case.tried] == [EventKind.INTENDED, EventKind.UNKNOWN, EventKind.QUEUED]
    assert "connection lost" in case.last_answer
    assert case.allowed == ("succeeded", "hand-over")
    assert "offers no look-up" in case.forbidden["lookup"]
    assert "could be done twice" in case.forbidden["resend"]
    assert "may still take effect until" in case.forbidden["not-done"]
    assert case.sent_as.endswith(".Order.acme/o-1.op")
    shown = await h.client.reconcile_show(order, KEY, "op")
    assert replace(shown, read_at=case.read_at) == case
    assert await h.client.reconcile_list(receiver="asked") == ()


async def test_marked_as_done_the_handler_gets_the_receipt(h: Harness) -> None:
    """It is recorded with name and reason, and leaves the queue; the next who tries hears that it is settled."""
    handle = await unresolved(h, cheque)
    done = await h.client.reconcile_succeeded(order, KEY, "op", {"id": "by phone", "amount": 7}, **WHY)
    assert isinstance(done, Reconciled)
    assert done.state == "succeeded"
    assert await handle.result(timeout=SOON) == "by phone"
    assert (await life(h))[-1] == (EventKind.MARKED_SUCCEEDED, "ada")
    assert (EventKind.MARKED_SUCCEEDED, "ada") in await ledger(h)
    assert await h.client.reconcile_list() == ()
    again = await h.client.reconcile_not_done(order, KEY, "op", by="bob", reason="no")
    assert isinstance(again, AlreadySettled)
    assert (again.state, again.by) == ("succeeded", "ada")


async def test_a_receipt_that_the_effect_does_not_take_changes_nothing(h: Harness) -> None:
    """The effect's own type decides, at the owner; it stays in the queue."""
    await unresolved(h, cheque)
    with pytest.raises(InvalidInput, match="amount"):
        await h.client.reconcile_succeeded(order, KEY, "op", {"id": "by phone"}, **WHY)
    assert len(await h.client.reconcile_list()) == 1


async def test_not_done_is_refused_while_it_may_still_happen(h: Harness) -> None:
    """Before the last call can't take effect any more it is refused and noted; then the handler hears of it."""
    handle = await unresolved(h, cheque)
    refused = await h.client.reconcile_not_done(order, KEY, "op", **WHY)
    assert isinstance(refused, NotAllowed)
    assert refused.allowed == ("succeeded", "hand-over")
    assert (EventKind.REFUSED, "ada") in await ledger(h)
    assert len(await h.client.reconcile_list()) == 1
    await h.advance(timedelta(minutes=5))
    done = await h.client.reconcile_not_done(order, KEY, "op", by="ada", reason="not in their books")
    assert isinstance(done, Reconciled)
    assert done.state == "rejected"
    with pytest.raises(InvocationFailed, match="op was not done, says ada: not in their books"):
        await handle.result(timeout=SOON)
    assert (await life(h))[-1] == (EventKind.MARKED_NOT_DONE, "ada")


async def test_a_look_up_is_made_at_once_and_settles(h: Harness) -> None:
    """The receiver has it: the answer says where the effect stands since, and who has asked is recorded."""
    handle = await unresolved(h, refund)
    done = await h.client.reconcile_lookup(order, KEY, "op", **WHY)
    assert isinstance(done, Reconciled)
    assert done.state == "succeeded"
    assert (await handle.result(timeout=SOON)).endswith("#1")
    assert (EventKind.FOUND, "ada") in await life(h)


async def test_a_look_up_that_finds_nothing_leaves_it_with_people(h: Harness) -> None:
    """What the receiver said is recorded, and nothing is guessed from it."""
    await unresolved(h, refund, "lose the request")
    done = await h.client.reconcile_lookup(order, KEY, "op", **WHY)
    assert isinstance(done, Reconciled)
    assert done.state == "unresolved"
    assert (EventKind.ABSENT, "ada") in await life(h)
    assert len(await h.client.reconcile_list()) == 1


async def test_a_resend_is_made_only_inside_the_window(h: Harness) -> None:
    """While the receiver knows the id it is sent again; afterwards it is refused, with what is allowed instead."""
    await unresolved(h, transfer, "lose the request")
    bank.whims.append("lose the request")
    done = await h.client.reconcile_resend(order, KEY, "op", **WHY)
    assert isinstance(done, Reconciled)
    assert (EventKind.RESENT, "ada") in await life(h)
    with anyio.fail_after(SOON):
        while not await h.client.reconcile_list():
            await h.settled()
    await h.advance(timedelta(hours=1))
    sent = sum(bank.sent.values())
    refused = await h.client.reconcile_resend(order, KEY, "op", **WHY)
    assert isinstance(refused, NotAllowed)
    assert "could be done twice" in refused.why
    assert "resend" not in refused.allowed
    assert sum(bank.sent.values()) == sent


async def test_who_does_not_deduplicate_is_never_sent_it_again(h: Harness) -> None:
    """Not by anybody, at any time."""
    await unresolved(h, cheque)
    await h.advance(timedelta(days=3))
    assert isinstance(await h.client.reconcile_resend(order, KEY, "op", **WHY), NotAllowed)
    assert sum(bank.sent.values()) == 1


async def test_handed_over_it_is_somebody_elses_with_their_own_time(h: Harness) -> None:
    """Owner and deadline change where everybody sees them; without a time of their own the deadline stays."""
    await unresolved(h, cheque)
    (before,) = await h.client.reconcile_list()
    assert isinstance(await h.client.reconcile_hand_over(order, KEY, "op", to="bea", **WHY), Reconciled)
    (case,) = await h.client.reconcile_list()
    assert (case.owner, case.deadline) == ("bea", before.deadline)
    day = timedelta(days=1)
    assert isinstance(await h.client.reconcile_hand_over(order, KEY, "op", to="cy", within=day, **WHY), Reconciled)
    (case,) = await h.client.reconcile_list()
    assert case.owner == "cy"
    assert case.deadline is not None
    assert day - timedelta(minutes=1) < case.deadline - case.read_at <= day
    await h.advance(timedelta(hours=3))
    assert await h.client.alerts() == ()
    await h.advance(day)
    (alert,) = await alerts(h)
    assert alert.owner == "cy"


async def test_a_time_that_was_named_before_it_came_to_people_counts(h: Harness) -> None:
    """Handed over while the receiver is still asked, it has that person's time when it lies with them, not another."""
    bank.answers.extend(["not yet"] * 100)
    bank.whims.append("lose the request")
    await h.send(settling, KEY, 7)
    with anyio.fail_after(SOON):
        while (case := await the_case(h)) is None or case.state is not EffectState.UNKNOWN:
            await h.settled()
    assert case.deadline is None
    day = timedelta(days=1)
    assert isinstance(await h.client.reconcile_hand_over(order, KEY, "op", to="bea", within=day, **WHY), Reconciled)
    await h.advance(timedelta(minutes=2))
    (lies,) = await h.client.reconcile_list()
    assert (lies.owner, lies.state) == ("bea", EffectState.UNRESOLVED)
    assert lies.deadline is not None
    assert abs(lies.deadline - day - case.read_at) < timedelta(seconds=30)
    await h.advance(timedelta(hours=1))
    assert await h.client.alerts() == ()
    await h.advance(day)
    (alert,) = await alerts(h)
    assert alert.owner == "bea"


async def test_who_settles_it_again_after_a_resend_has_a_new_time(h: Harness) -> None:
    """The time that people had ends when it is taken back from them: it comes again with the receiver's time."""
    await unresolved(h, transfer, "lose the request")
    week = timedelta(days=7)
    assert isinstance(await h.client.reconcile_hand_over(order, KEY, "op", to="bea", within=week, **WHY), Reconciled)
    bank.whims.append("lose the request")
    assert isinstance(await h.client.reconcile_resend(order, KEY, "op", **WHY), Reconciled)
    with anyio.fail_after(SOON):
        while not (cases := await h.client.reconcile_list()):
            await h.settled()
    assert cases[0].deadline is not None
    assert cases[0].deadline - cases[0].read_at <= timedelta(hours=24)


@pytest.mark.parametrize("within", [timedelta(0), timedelta(seconds=-1), timedelta(days=400_000), timedelta.max])
async def test_a_time_of_their_own_lies_ahead_and_ends(h: Harness, within: timedelta) -> None:
    """One that no calendar has is refused before it is written: the whole queue could not be read with it."""
    await unresolved(h, cheque)
    with pytest.raises(ValueError, match="within is"):
        await h.client.reconcile_hand_over(order, KEY, "op", to="bea", within=within, **WHY)
    (case,) = await h.client.reconcile_list()
    assert case.owner == "blind-oncall"
    # The owner doesn't take it either, from whoever sends it.
    with pytest.raises(InvalidInput, match="at most 3,653 days"):
        check_order(ReconcileOrder(ReconcileAct.HAND_OVER, "op", "ada", "why", None, "bea", within // MS))


async def test_what_the_code_no_longer_has_is_handed_over_and_nothing_else(store_url: str, namespace: str) -> None:
    """A deploy without the effect leaves it to people: somebody may take it over, and is told how it can be settled."""
    bank.whims.append("lose the answer")
    async with Runtime(App([order]), store=store_url, namespace=namespace) as runtime:
        await runtime.client.send(cheque, KEY, 7)
        with anyio.fail_after(SOON):
            while not await runtime.client.reconcile_list(order):
                await anyio.lowlevel.checkpoint()
    bare = VirtualObject("Order", owner="tests")
    bare.handler(cheque.function)
    async with Runtime(App([bare]), store=store_url, namespace=namespace) as runtime:
        refused = await runtime.client.reconcile_not_done("Order", KEY, "op", **WHY)
        given = await runtime.client.reconcile_hand_over("Order", KEY, "op", to="bea", **WHY)
        (case,) = await runtime.client.reconcile_list()

    assert refused == NotAllowed(NO_CONTRACT, ("hand-over",))
    assert isinstance(given, Reconciled)
    assert case.owner == "bea"
    assert case.allowed == ("hand-over",)


async def alerts(h: Harness) -> tuple[Alert, ...]:
    """Wait until there are alerts, and return them."""
    with anyio.fail_after(SOON):
        while not (found := await h.client.alerts()):
            await h.settled()
    return found


async def test_a_deadline_that_passes_is_told_once(h: Harness) -> None:
    """However much time passes; and the queue says that it is overdue."""
    await unresolved(h, cheque)
    assert await h.client.alerts() == ()
    await h.advance(timedelta(hours=2, minutes=1))
    (alert,) = await alerts(h)
    assert (alert.kind, alert.owner, alert.subject, alert.key) == ("overdue", "blind-oncall", "op", KEY)
    await h.advance(timedelta(days=2))
    assert len(await h.client.alerts()) == 1
    (case,) = await h.client.reconcile_list()
    assert case.is_overdue


@pytest.mark.parametrize("is_overdue", [False, True])
async def test_a_look_up_that_fails_takes_nothing_back_from_people(h: Harness, *, is_overdue: bool) -> None:
    """The case stays in the queue with its deadline, and that is told once, however the receiver fares meanwhile."""
    bank.answers.extend(["not yet"] * 100)
    bank.whims.append("lose the request")
    await h.send(settling, KEY, 7)
    await h.advance(timedelta(minutes=2))
    before = await the_case(h)
    assert before is not None
    assert before.state is EffectState.UNRESOLVED
    if is_overdue:
        await h.advance(timedelta(minutes=7))
        assert len(await h.client.alerts()) == 1
    bank.answers.clear()
    bank.answers.extend(["lose the answer"] * 3)
    await h.advance(timedelta(minutes=5))
    case = await the_case(h)
    assert case is not None
    assert "look-up failed" in case.last_answer
    assert (case.state, case.deadline) == (EffectState.UNRESOLVED, before.deadline)
    assert len(await h.client.reconcile_list()) == 1
    await h.advance(timedelta(minutes=50))
    assert len(await h.client.alerts()) == 1


async def test_who_follows_hears_of_each_alert_once(h: Harness) -> None:
    """Those that were raised before, and then each that comes."""
    await unresolved(h, cheque)
    await h.advance(timedelta(hours=2, minutes=1))
    await alerts(h)
    following = h.client.follow_alerts(order)
    with anyio.fail_after(SOON):
        assert (await anext(following)).subject == "op"
        day = timedelta(days=1)
        await h.client.reconcile_hand_over(order, KEY, "op", to="bea", within=day, **WHY)
        await h.advance(timedelta(days=1, minutes=1))
        assert (await anext(following)).owner == "bea"
    await following.aclose()


async def test_a_request_that_comes_twice_is_answered_twice_and_done_once(h: Harness) -> None:
    """The same message id gets the same answer; with another content it is refused."""
    await unresolved(h, cheque)
    for _ in range(2):
        done = await h.client.reconcile_hand_over(order, KEY, "op", to="bea", message_id="m-1", **WHY)
        assert isinstance(done, Reconciled)
    assert (await life(h)).count((EventKind.HANDED_OVER, "ada")) == 1
    with pytest.raises(IdempotencyConflict):
        await h.client.reconcile_hand_over(order, KEY, "op", to="cy", message_id="m-1", **WHY)


async def test_an_answer_that_another_owner_gave_counts(h: Harness) -> None:
    """A second copy of a request that lay in the inbox too is known to the next owner by the kept answer."""
    await unresolved(h, cheque)
    store = h.client.store
    (space,) = [each.space for each in h.runtime.worker.partitions if KEY in each.lanes]
    request = Request(
        RequestKind.RECONCILE, new_invocation_id(), "", KEY,
        ReconcileOrder(ReconcileAct.HAND_OVER, "op", "ada", "ticket 77", whom="bea").encode(),
    )  # fmt: skip
    for _ in range(2):
        await store.together([("XADD", space.inbox, "*", "m", request.encode())])
        with anyio.fail_after(SOON):
            while await store.together([("XLEN", space.inbox)]) != [0]:
                await h.settled()
        for partition in h.runtime.worker.partitions:
            partition.forget(request.invocation)
    assert (await life(h)).count((EventKind.HANDED_OVER, "ada")) == 1


async def test_what_is_not_said_is_asked_for(h: Harness) -> None:
    """Nobody settles anything without a name and a reason; what is not there is not known."""
    await unresolved(h, cheque)
    with pytest.raises(InvalidInput, match="answer for it"):
        await h.client.reconcile_lookup(order, KEY, "op", by=" ", reason="why")
    with pytest.raises(InvalidInput, match="goes into the record"):
        await h.client.reconcile_lookup(order, KEY, "op", by="ada", reason="")
    with pytest.raises(PayloadTooLarge, match="in fewer words"):
        await h.client.reconcile_lookup(order, KEY, "op", by="ada", reason="r" * 5_000)
    with pytest.raises(InvalidInput, match="to whom"):
        await h.client.reconcile_hand_over(order, KEY, "op", to="", **WHY)
    assert isinstance(await h.client.reconcile_lookup(order, KEY, "other", **WHY), UnknownTarget)
    assert isinstance(await h.client.reconcile_lookup("Parcel", KEY, "op", **WHY), UnknownTarget)


async def test_a_client_without_await_does_the_same(h: Harness) -> None:
    """From a thread."""
    handle = await unresolved(h, cheque)

    def settle() -> Any:
        with BlockingClient(h.runtime.store_url, namespace=h.namespace) as client:
            (case,) = client.reconcile_list()
            handed = client.reconcile_hand_over("Order", case.key, case.operation_id, to="bea", **WHY)
            receipt = {"id": "paper", "amount": 7}
            return handed, client.reconcile_succeeded("Order", case.key, case.operation_id, receipt, **WHY)

    handed, settled = await anyio.to_thread.run_sync(settle)
    assert isinstance(handed, Reconciled)
    assert isinstance(settled, Reconciled)
    assert await handle.result(timeout=SOON) == "paper"


async def through_people(h: Harness) -> tuple[int, list[tuple[EventKind, str]], str]:
    """An effect comes to people, its time passes, it is handed over and settled; returns what is kept of that."""
    bank.empty()
    handle = await unresolved(h, cheque)
    await h.advance(timedelta(hours=2, minutes=1))
    await alerts(h)
    await h.advance(timedelta(days=1))
    with anyio.fail_after(SOON):
        await h.client.reconcile_hand_over(order, KEY, "op", to="bea", **WHY)
        await h.client.reconcile_succeeded(order, KEY, "op", {"id": "by phone", "amount": 7}, **WHY)
        return len(await h.client.alerts()), await ledger(h), await handle.result()


async def test_whatever_dies_an_alert_is_raised_once_and_an_act_is_done_once(store_url: str) -> None:
    """Also where the worker dies between the deadline and its commit, or between the act and its answer."""
    points = 0
    async for crash in crashes(order, through_people, store=store_url):
        raised, events, result = crash.result()
        points += crash.point is not None
        assert result == "by phone"
        assert raised == 1, crash.point
        for kind, by in (
            (EventKind.OVERDUE, ""),
            (EventKind.HANDED_OVER, "ada"),
            (EventKind.MARKED_SUCCEEDED, "ada"),
            (EventKind.QUEUED, ""),
        ):
            assert events.count((kind, by)) == 1, (kind, crash.point)
        assert sum(bank.sent.values()) <= 1
    assert points > 10


async def test_an_object_shows_its_effects_in_question_and_so_does_who_waits(h: Harness) -> None:
    """`inspect` names each with why and until when; `describe` of the invocation names what it waits for."""
    handle = await unresolved(h, cheque)
    told = await h.client.inspect("Order", KEY)
    (effect,) = told.effects
    assert (effect.operation, effect.state, effect.receiver) == ("op", "unresolved", "blind")
    assert effect.due is not None
    described = await h.client.describe(handle.id)
    assert "blind.cheque 'op'" in (described.waits_for or "")
    assert "unresolved" in (described.waits_for or "")
    await h.client.reconcile_succeeded(order, KEY, "op", {"id": "by phone", "amount": 7}, **WHY)
    assert (await h.client.inspect("Order", KEY)).effects == ()
