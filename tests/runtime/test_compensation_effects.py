"""Effects as undos: asked for once, never guessed, and what a receiver rejects lies with a person."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import TypedDict

import anyio
import pytest

from keylane import (
    App,
    BlockingObjectContext,
    CallError,
    Handle,
    InvocationCancelled,
    InvocationFailed,
    ObjectContext,
    PayloadTooLarge,
    Receiver,
    RegistrationError,
    RetryPolicy,
    Runtime,
    Settings,
    TerminalError,
    VirtualObject,
)
from keylane.journal.effects import EffectEntry, EffectState
from keylane.testing import Harness, harness
from tests.runtime.fake_bank import Bank, Receipt, Terms
from tests.runtime.ward import Ward, settings

pytestmark = pytest.mark.anyio


class WhoAndWhy(TypedDict):
    """Who has something paused, and why."""

    reason: str
    by: str
    timeout: float


KEY = "acme/t-1"
BY_OPS: WhoAndWhy = {"reason": "looking into it", "by": "ops", "timeout": 20}
QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=2)

bank = Bank()
trail: list[str] = []
unreachable: list[str] = []


async def recheck(terms: Terms) -> None:
    """Fail as often as the test says, for what would be refused or can't be seen now."""
    match unreachable.pop() if unreachable else "":
        case "closed":
            raise TerminalError("the books are closed", code="closed")
        case "away":
            raise OSError("the database is away")
        case _:
            trail.append(f"checked {terms.note}")


payments = Receiver(
    "payments", owner="oncall", lookup=bank.find, lookup_lag=timedelta(seconds=5), absent_means="not_done",
    late_calls="impossible", in_flight=timedelta(seconds=20),
)  # fmt: skip
desk = Receiver(
    "desk", owner="desk-oncall", lookup=bank.find, absent_means="not_done", late_calls="impossible", ids="verbatim",
    id_limit=32, in_flight=timedelta(seconds=20),
)  # fmt: skip


@payments.effect("refund", timeout=timedelta(seconds=2))
async def send_refund(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@payments.effect("fee-back", timeout=timedelta(seconds=2), recheck=recheck)
async def send_fee_back(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@payments.effect("cheque", timeout=timedelta(seconds=2), on_unknown="ask")
async def send_cheque(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@desk.effect("pay-out", timeout=timedelta(seconds=2), recheck=recheck)
async def pay_out(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@payments.effect("unlisted", timeout=timedelta(seconds=2))
async def send_unlisted(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


trip = VirtualObject("Trip", owner="tests", effects=[send_refund, send_fee_back, send_cheque, pay_out], partitions=1)
EFFECTS = {"refund": send_refund, "fee-back": send_fee_back, "cheque": send_cheque, "pay-out": pay_out}


async def unbook(what: str) -> None:
    trail.append(f"unbook {what}")


@trip.handler
async def plan(ctx: ObjectContext, name: str) -> None:
    """Fail behind three things that are undone, of which the middle one is an effect."""
    ctx.compensate("hotel", unbook, "hotel", retry=QUICK)
    ctx.compensate("payment", EFFECTS[name], operation_id="back-1", params=Terms(amount=7, note=name))
    ctx.compensate("car", unbook, "car", retry=QUICK)
    await ctx.run("book", trail.append, "book")
    raise TerminalError("no visa", code="no-visa")


@trip.handler
async def stay(ctx: ObjectContext, name: str) -> None:
    """Wait until it is cancelled."""
    ctx.compensate("payment", EFFECTS[name], operation_id="back-1", params=Terms(amount=7))
    ctx.compensate("fee", EFFECTS[name], operation_id="back-2", params=Terms(amount=1))
    await ctx.signal("never", str)


@trip.handler
def stay_in_a_thread(ctx: BlockingObjectContext, name: str) -> None:
    """Wait until it is cancelled, on a thread."""
    ctx.compensate("payment", EFFECTS[name], operation_id="back-1", params=Terms(amount=7))
    ctx.signal("never", str)


@trip.handler
async def branch(ctx: ObjectContext) -> None:
    """Fail with two branches, one of which waits."""
    ctx.compensate("payment", send_refund, operation_id="back-1", params=Terms(amount=7))

    async def fail() -> None:
        await ctx.run("book", trail.append, "book")
        raise TerminalError("no visa", code="no-visa")

    await ctx.gather(ctx.signal("never", str), fail())


@trip.handler
async def register(ctx: ObjectContext, what: str) -> None:
    """Register what can't be asked for."""
    match what:
        case "unlisted":
            ctx.compensate("x", send_unlisted, operation_id="x", params=Terms(amount=7))
        case "no id":
            ctx.compensate("x", send_refund, params=Terms(amount=7))  # type: ignore[call-overload, unused-ignore]
        case "an option too many":
            ctx.compensate("x", send_refund, operation_id="x", params=Terms(amount=7), retry=QUICK)  # type: ignore[call-overload, unused-ignore]
        case "too long":
            ctx.compensate("x", send_refund, operation_id="x" * 197, params=Terms(amount=7))
        case _:
            ctx.compensate("x", pay_out, operation_id="x" * 29, params=Terms(amount=7))


app = App([trip], settings=Settings(retry_first_seconds=0.001, retry_cap_seconds=0.002, retry_attempts=2))


@pytest.fixture(autouse=True)
def _afresh() -> None:
    bank.empty()
    trail.clear()
    unreachable.clear()


@pytest.fixture(params=[None, "suspend", "replay"])
async def h(request: pytest.FixtureRequest, store_url: str) -> AsyncIterator[Harness]:
    """Give a harness, plain and with handlers that are always begun anew."""
    async with harness(app, store=store_url, force=request.param) as made:
        yield made


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    """Wait until something holds."""
    with anyio.fail_after(20):
        while not await holds():
            await anyio.sleep(0.005)


async def has_status(handle: Handle[None], wanted: str) -> None:
    async def has() -> bool:
        return (await handle.describe()).status == wanted

    await until(has)


async def is_parked(handle: Handle[None]) -> str:
    """Wait until an undo has failed, and return what is said of it."""
    await has_status(handle, "paused")
    told = await handle.describe()
    assert told.pause is not None
    assert told.pause.reason == "compensation_failed"
    return told.pause.detail


async def effect_of(h: Harness, operation: str) -> EffectEntry:
    """Return an effect as it lies in the store."""
    store = h.client.store
    (data,) = await store.together([("HGET", store.space("Trip", 0).effects(KEY), operation)])
    return EffectEntry.decode(data)


async def has_failed(handle: Handle[None]) -> None:
    with pytest.raises(InvocationFailed) as caught:
        await handle.result(timeout=20)
    assert caught.value.code == "no-visa"


async def test_an_effect_undoes_in_its_turn_and_once(h: Harness) -> None:
    """Last thing first, as functions do; the caller gets the error of the handler."""
    handle = await h.send(plan, KEY, "refund")
    await has_failed(handle)
    assert trail == ["book", "unbook car", "unbook hotel"]
    assert (bank.calls("back-1"), bank.payments("back-1")) == (1, 1)
    assert (await effect_of(h, "back-1")).state is EffectState.SUCCEEDED


@pytest.mark.parametrize("is_blocking", [False, True], ids=["awaiting", "blocking"])
async def test_what_a_cancelled_handler_did_is_undone_by_effects(h: Harness, *, is_blocking: bool) -> None:
    """The report names the undos, and does not count what they did among what was done and stays."""
    handle = await (h.send(stay_in_a_thread, KEY, "refund") if is_blocking else h.send(stay, KEY, "refund"))
    await has_status(handle, "waiting")
    report = await handle.cancel(timeout=20)
    assert report.undone == (("payment",) if is_blocking else ("fee", "payment"))
    assert (report.committed, report.unknown, report.compensation_failed) == ((), (), False)
    assert bank.payments("back-1") == 1


async def test_a_handler_with_branches_is_undone_by_effects(h: Harness) -> None:
    """Whatever its branches wait for."""
    await has_failed(await h.send(branch, KEY))
    assert (bank.calls("back-1"), bank.payments("back-1")) == (1, 1)


async def test_an_undo_of_which_nobody_knows_is_waited_for(h: Harness) -> None:
    """The invocation stays compensating, says for what it waits, and goes on once the receiver was asked."""
    bank.whims.append("lose the answer")
    bank.answers.extend(["not yet", "lose the answer"])
    handle = await h.send(plan, KEY, "refund")
    await has_failed(handle)
    assert trail == ["book", "unbook car", "unbook hotel"]
    assert (bank.calls("back-1"), bank.payments("back-1")) == (1, 1)
    assert bank.questions("back-1") >= 3


async def test_an_undo_that_a_person_has_to_settle_keeps_its_invocation_compensating(h: Harness) -> None:
    """`describe` says that it waits for the effect; a cancel changes nothing of it; then the rest is undone."""
    bank.whims.append("lose the answer")
    handle = await h.send(stay, KEY, "cheque")
    await has_status(handle, "waiting")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(handle.cancel)

        async def is_asked() -> bool:
            return bool(await h.client.reconcile_list())

        await until(is_asked)
        # It comes too late to be told to anybody, and does not end what is being undone.
        tasks.start_soon(handle.cancel)
        with pytest.raises(CallError, match="no undo of it has failed"):
            await h.client.skip_compensation(handle.id, reason="too early", by="ann", timeout=20)
        told = await handle.describe()
        assert told.status == "compensating"
        assert "effect payments.cheque 'back-2'" in (told.waits_for or "")
        assert (bank.calls("back-2"), bank.calls("back-1")) == (1, 0)
        receipt = {"id": "on the statement", "amount": 1}
        await h.client.reconcile_succeeded(trip, KEY, "back-2", receipt, by="ann", reason="I have seen it", timeout=20)
    with pytest.raises(InvocationCancelled) as caught:
        await handle.result(timeout=20)
    assert not caught.value.compensation_failed
    assert (bank.calls("back-2"), bank.payments("back-1")) == (1, 1)


async def test_a_rejected_undo_parks_and_is_asked_for_under_the_next_id_when_resumed(h: Harness) -> None:
    """What was rejected was not done; under the same id it would be answered with the same rejection."""
    bank.whims.extend(["refuse", "refuse"])
    handle = await h.send(plan, KEY, "refund")
    assert "'undo payment' failed for good with EffectRejected" in await is_parked(handle)
    assert trail == ["book", "unbook car"]
    for again in (2, 3):
        await h.client.resume(handle.id, reason="the account is open again", by="ann", timeout=20)
        if again == 2:

            async def is_asked_again() -> bool:
                return bank.calls("back-1~2") == 1

            await until(is_asked_again)
            await is_parked(handle)
    await has_failed(handle)
    assert trail == ["book", "unbook car", "unbook hotel"]
    assert [bank.calls(each) for each in ("back-1", "back-1~2", "back-1~3")] == [1, 1, 1]
    assert [bank.payments(each) for each in ("back-1", "back-1~2", "back-1~3")] == [0, 0, 1]
    assert not (await handle.describe()).compensation_failed


async def test_a_rejected_undo_can_be_given_up_at_any_time(h: Harness) -> None:
    """After the first rejection or after another one; the undos before it run still, and the end says so."""
    bank.whims.extend(["refuse", "refuse", "pay"])
    handle = await h.send(stay, KEY, "refund")
    await has_status(handle, "waiting")
    report = await handle.cancel(timeout=20)
    assert (report.outcome, report.compensation_failed, report.undone) == ("paused", True, ())
    await h.client.resume(handle.id, reason="once more", by="ann", timeout=20)

    async def is_asked_again() -> bool:
        return bank.calls("back-2~2") == 1

    await until(is_asked_again)
    await is_parked(handle)
    await h.client.skip_compensation(handle.id, reason="paid in cash", by="ann", timeout=20)
    with pytest.raises(InvocationCancelled) as caught:
        await handle.result(timeout=20)
    assert caught.value.compensation_failed
    assert (bank.payments("back-2"), bank.payments("back-2~2"), bank.payments("back-1")) == (0, 0, 1)
    assert (await handle.cancel(timeout=20)).undone == ("payment",)
    (given_up,) = [each for each in (await handle.describe()).steps if "given up by ann" in each.name]
    assert given_up.name.startswith("fee,")


async def test_two_undos_may_be_rejected_one_after_the_other(h: Harness) -> None:
    """That one was tried again by a person does not let the next one try again by itself."""
    bank.whims.extend(["refuse", "pay", "refuse"])
    handle = await h.send(stay, KEY, "refund")
    await has_status(handle, "waiting")
    await handle.cancel(timeout=20)
    await h.client.resume(handle.id, reason="once more", by="ann", timeout=20)

    async def is_at_next() -> bool:
        return bank.calls("back-1") == 1

    await until(is_at_next)
    await is_parked(handle)
    assert (bank.payments("back-2~2"), bank.calls("back-1~2")) == (1, 0)
    await h.client.skip_compensation(handle.id, reason="paid in cash", by="ann", timeout=20)
    with pytest.raises(InvocationCancelled):
        await handle.result(timeout=20)
    assert (await handle.cancel(timeout=20)).undone == ("fee",)


async def test_an_undo_whose_facts_refuse_it_is_asked_for_under_the_same_id_when_resumed(h: Harness) -> None:
    """Nothing was sent, and nothing is known of the id."""
    unreachable.append("closed")
    handle = await h.send(plan, KEY, "fee-back")
    assert "the books are closed" in await is_parked(handle)
    await h.client.resume(handle.id, reason="open again", by="ann", timeout=20)
    await has_failed(handle)
    assert (bank.calls("back-1"), bank.calls("back-1~2"), bank.payments("back-1")) == (1, 0, 1)


async def test_an_undo_whose_facts_can_not_be_seen_is_tried_again_as_a_step_would_be(h: Harness) -> None:
    """Also where the operation id was reserved before that."""
    unreachable.append("away")
    await has_failed(await h.send(plan, KEY, "fee-back"))
    assert bank.payments("back-1") == 1
    unreachable.append("away")
    await has_failed(await h.send(plan, "acme/t-2", "pay-out"))
    assert len(bank.books["back-1"]) == 1
    assert trail.count("unbook hotel") == 2


@pytest.mark.parametrize("name", ["fee-back", "pay-out"])
async def test_an_undo_whose_facts_stay_out_of_sight_lies_with_a_person(h: Harness, name: str) -> None:
    """Who has it tried again, or gives it up."""
    unreachable.extend(["away"] * 4)
    handle = await h.send(plan, KEY, name)
    assert "OSError: the database is away" in await is_parked(handle)
    assert len(unreachable) == 2
    await h.client.resume(handle.id, reason="back", by="ann", timeout=20)

    async def is_tried() -> bool:
        return not unreachable

    await until(is_tried)
    await is_parked(handle)
    await h.client.skip_compensation(handle.id, reason="paid in cash", by="ann", timeout=20)
    await has_failed(handle)
    assert (dict(bank.sent), trail[-1]) == ({}, "unbook hotel")


async def test_an_undo_under_an_id_as_the_receiver_sees_it_reserves_it_first(h: Harness) -> None:
    """Each time that it is asked for."""
    bank.whims.append("refuse")
    handle = await h.send(plan, KEY, "pay-out")
    await is_parked(handle)
    await h.client.resume(handle.id, reason="once more", by="ann", timeout=20)
    await has_failed(handle)
    assert {each: len(done) for each, done in bank.books.items()} == {"back-1~2": 1}


async def test_an_undo_under_an_id_that_another_object_has_lies_with_a_person(h: Harness) -> None:
    """Who may give it up; nothing is sent."""
    await has_failed(await h.send(plan, "globex/t-1", "pay-out"))
    handle = await h.send(plan, KEY, "pay-out")
    assert "EffectConflict" in await is_parked(handle)
    await h.client.resume(handle.id, reason="once more", by="ann", timeout=20)
    await h.settled()
    assert "EffectConflict" in await is_parked(handle)
    await h.client.skip_compensation(handle.id, reason="paid in cash", by="ann", timeout=20)
    await has_failed(handle)
    assert bank.sent == {"back-1": 1}


@pytest.mark.parametrize("is_object", [False, True], ids=["invocation", "object"])
async def test_a_pause_meets_an_undo_that_waits(h: Harness, *, is_object: bool) -> None:
    """The effect is settled meanwhile; the rest is undone once it is over."""
    bank.whims.append("wait")
    handle = await h.send(plan, KEY, "refund")
    await bank.waiting.wait()
    await (h.client.pause(trip, KEY, **BY_OPS) if is_object else h.client.pause(handle.id, **BY_OPS))
    bank.gate.set()

    async def is_done() -> bool:
        return (await effect_of(h, "back-1")).state is EffectState.SUCCEEDED

    await until(is_done)
    await h.settled()
    assert trail == ["book", "unbook car"]
    await (h.client.resume(trip, KEY, **BY_OPS) if is_object else h.client.resume(handle.id, **BY_OPS))
    await has_failed(handle)
    assert (bank.calls("back-1"), bank.payments("back-1"), trail[-1]) == (1, 1, "unbook hotel")


@pytest.mark.slow
async def test_an_undo_in_question_or_rejected_is_no_damage(ward: Ward) -> None:
    """A checkup finds nothing wrong with either."""
    where = {"store": ward.url, "namespace": ward.store.namespace, "durability": "server"}
    async with Runtime([trip], settings=settings(), **where) as runtime:  # pyright: ignore[reportArgumentType]
        bank.whims.append("refuse")
        await is_parked(await runtime.client.send(plan, "acme/t-2", "refund"))
        bank.whims.append("lose the answer")
        await runtime.client.send(plan, KEY, "cheque")

        async def is_asked() -> bool:
            return bool(await runtime.client.reconcile_list())

        await until(is_asked)
        report = await ward.sweep()
        assert report.findings == ()


async def test_one_that_is_killed_leaves_its_undo_to_be_settled(h: Harness) -> None:
    """Its end says that it was not undone whole; the effect is looked into all the same."""
    bank.whims.append("wait, then lose the answer")
    handle = await h.send(plan, KEY, "refund")
    await bank.waiting.wait()
    report = await h.client.kill(handle.id, reason="enough", by="ops", timeout=20)
    assert (report.outcome, report.compensation_failed) == ("killed", True)
    bank.gate.set()

    async def is_settled() -> bool:
        return (await effect_of(h, "back-1")).state is EffectState.SUCCEEDED

    await until(is_settled)
    assert (bank.calls("back-1"), trail) == (1, ["book", "unbook car"])


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("unlisted", RegistrationError),
        ("no id", TypeError),
        ("an option too many", TypeError),
        ("too long", PayloadTooLarge),
        ("too long for its receiver", PayloadTooLarge),
    ],
)
async def test_what_can_not_be_asked_for_is_refused_when_it_is_registered(
    store_url: str, what: str, error: type[Exception]
) -> None:
    """Not when it is needed, and with room for the ids of later attempts."""
    async with harness(app, store=store_url) as h:
        handle = await h.send(register, KEY, what)
        if error is PayloadTooLarge:
            with pytest.raises(error, match="operation_id has"):
                await handle.result(timeout=20)
            return
        await has_status(handle, "paused")
        told = await handle.describe()
        assert told.pause is not None
        assert error.__name__ in told.pause.detail
