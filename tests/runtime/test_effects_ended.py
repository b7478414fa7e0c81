"""Effects outlive what asked for them: cancels and kills, branches that lost, workers that die or hand over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import (
    CallTimeout,
    Cancelled,
    CancelOutcome,
    CancelReport,
    EffectRejected,
    InvocationCancelled,
    ObjectContext,
    Receiver,
    Succeeded,
    Unknown,
    VirtualObject,
)
from keylane.journal.effects import EffectEntry, EffectState
from keylane.journal.key import parse_id
from keylane.journal.ledger import EventKind
from keylane.testing import Harness, harness
from tests.runtime.fake_bank import Bank, Receipt, Terms

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
SOON = 30.0
QUICK = timedelta(milliseconds=300)

bank = Bank()
trail: list[str] = []

payments = Receiver(
    "payments", owner="payments-oncall", lookup=bank.find, lookup_lag=timedelta(seconds=5), absent_means="not_done",
    late_calls="impossible", in_flight=timedelta(seconds=20),
)  # fmt: skip
freely = Receiver(
    "freely", owner="payments-oncall", lookup=bank.find, absent_means="not_done", late_calls="impossible",
    in_flight=timedelta(seconds=20), while_unknown="allow",
)  # fmt: skip


@payments.effect("refund", timeout=timedelta(seconds=15))
async def send_refund(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


@freely.effect("tip", timeout=timedelta(seconds=15))
async def send_tip(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


order = VirtualObject("Order", owner="tests", effects=[send_refund, send_tip], state={"seen": str})
skipping = VirtualObject("Skipping", owner="tests", effects=[send_refund], on_paused="skip")


@pytest.fixture(autouse=True)
def _afresh() -> None:
    bank.empty()
    trail.clear()


@pytest.fixture
async def h(store_url: str) -> AsyncIterator[Harness]:
    """Give a harness on the store that all tests share."""
    async with harness([order, skipping], store=store_url) as h:
        yield h


async def effect_of(h: Harness, operation: str, key: str = KEY) -> EffectEntry | None:
    """Return an effect as it lies in the store."""
    store = h.client.store
    for number in range(2):
        (data,) = await store.together([("HGET", store.space("Order", number).effects(key), operation)])
        if data is not None:
            return EffectEntry.decode(data)
    return None


async def note(what: str) -> None:
    """Leave a trace."""
    trail.append(what)


def refunding(ctx: ObjectContext, operation: str) -> Awaitable[Receipt]:
    """Ask for a refund."""
    return ctx.effect(send_refund, operation_id=operation, params=Terms(amount=7))


@order.handler
async def refund(ctx: ObjectContext, operation: str) -> str:
    try:
        receipt = await refunding(ctx, operation)
        trail.append("receipt")
        await ctx.run("tell", note, "told")
    except Cancelled:
        trail.append("cancelled")
        raise
    return receipt.id


@order.handler
async def refund_and_wait(ctx: ObjectContext, operation: str) -> str:
    receipt = await refunding(ctx, operation)
    await ctx.signal("never", str)
    return receipt.id


@skipping.handler
async def skip_refund(ctx: ObjectContext, operation: str) -> str:
    return (await refunding(ctx, operation)).id


@skipping.handler
async def skip_look_in(ctx: ObjectContext) -> str:
    return "in"


@order.handler
async def refund_in_branches(ctx: ObjectContext, operation: str) -> list[str]:
    try:
        first, second = await ctx.gather(refunding(ctx, operation), ctx.signal("never", str))
    except Cancelled:
        trail.append("cancelled")
        raise
    return [first.id, second]


@order.handler
async def race(ctx: ObjectContext, operation: str) -> str:
    winner, _ = await ctx.select(refund=refunding(ctx, operation), word=ctx.signal("word", str))
    return winner


@order.handler
async def two(ctx: ObjectContext) -> tuple[str, ...]:
    receipts = await ctx.gather(refunding(ctx, "a"), refunding(ctx, "b"))
    return tuple(each.id for each in receipts)


@order.handler
async def two_tips(ctx: ObjectContext) -> int:
    asked = [ctx.effect(send_tip, operation_id=each, params=Terms(amount=7)) for each in ("a", "b")]
    receipts = await ctx.gather(*asked)
    return len(receipts)


@order.handler
async def twice_the_same(ctx: ObjectContext) -> int:
    receipts = await ctx.gather(refunding(ctx, "a"), refunding(ctx, "a"))
    return len({each.id for each in receipts})


@order.handler
async def released(ctx: ObjectContext, operation: str) -> str:
    receipt = await ctx.effect(
        send_refund, operation_id=operation, params=Terms(amount=7), release_lane=True
    )  # fmt: skip
    return receipt.id


@order.handler
async def look_in(ctx: ObjectContext) -> str:
    return "in"


@order.handler
async def asked(ctx: ObjectContext, operation: str) -> str:
    match await ctx.effect_outcome(send_refund, operation_id=operation, params=Terms(amount=7)):
        case Succeeded(receipt):
            return receipt.id
        case EffectRejected() as rejected:
            return rejected.reason
        case Unknown(why=why):
            return f"unknown: {why}"


async def test_a_cancel_waits_for_the_answer_to_a_call(h: Harness) -> None:
    """The handler gets its receipt, and is told at its next durable point."""
    bank.whims.append("wait")
    handle = await h.send(refund, KEY, "r")
    await bank.waiting.wait()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancelled, handle)
        await until_asked(h, handle.id)
        assert trail == []
        bank.gate.set()
    assert list(dict.fromkeys(trail)) == ["receipt", "cancelled"]
    assert bank.payments("r") == 1


async def test_a_cancel_is_told_as_soon_as_the_outcome_is_unknown(h: Harness) -> None:
    """The effect is settled all the same, and who asks for it again gets its receipt."""
    bank.whims.append("lose the answer")
    bank.answers.extend(["lose the answer"] * 3)
    handle = await h.send(refund, KEY, "r")
    await h.settled()
    report = await cancelled(handle)
    assert report.unknown == ("payments.refund r",)
    assert trail == ["cancelled"]
    await h.advance(timedelta(minutes=2))
    entry = await effect_of(h, "r")
    assert entry is not None
    assert entry.state is EffectState.SUCCEEDED
    assert await h.call(asked, KEY, "r") == f"{h.namespace}.Order.{KEY}.r#1"
    assert bank.calls("r") == 1


async def test_a_cancel_that_came_during_the_call_is_told_once_that_is_unknown(h: Harness) -> None:
    """What was held back is told in the commit that records the unknown outcome."""
    bank.whims.append("wait, then lose the answer")
    bank.answers.extend(["lose the answer"] * 3)
    handle = await h.send(refund, KEY, "r")
    await bank.waiting.wait()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancelled, handle)
        await until_asked(h, handle.id)
        assert trail == []
        bank.gate.set()
    assert trail == ["cancelled"]
    entry = await effect_of(h, "r")
    assert entry is not None
    assert entry.state is EffectState.UNKNOWN


@pytest.mark.parametrize("whim", ["wait", "wait, then lose the answer"])
async def test_a_cancel_of_branches_waits_for_the_answer_to_a_call(h: Harness, whim: str) -> None:
    """However many branches there are, none is ended while one of them has a call under way."""
    bank.whims.append(whim)
    # It is told while the outcome is unknown, and not by something that settles it.
    bank.answers.extend(["lose the answer"] * 1_000)
    handle = await h.send(refund_in_branches, KEY, "r")
    await bank.waiting.wait()
    before = h.now()
    async with anyio.create_task_group() as tasks:
        tasks.cancel_scope.deadline = anyio.current_time() + SOON
        tasks.start_soon(cancelled, handle)
        await until_asked(h, handle.id)
        assert trail == []
        bank.gate.set()
    assert trail == ["cancelled"]
    assert bank.payments("r") == 1
    assert h.now() - before < timedelta(minutes=30)


async def test_the_report_of_a_cancel_tells_of_effects_that_stay(h: Harness) -> None:
    """A cancel never undoes what was done."""
    handle = await h.send(refund_and_wait, KEY, "r")
    await h.settled()
    report = await cancelled(handle)
    assert report.committed == ("payments.refund r",)
    assert report.unknown == ()


async def test_time_does_not_jump_to_when_an_effect_is_forgotten(h: Harness) -> None:
    """Nobody waits for that, also while somebody waits for something else that is never due."""
    bank.whims.append("lose the answer")
    handle = await h.send(refund_and_wait, KEY, "r")
    await h.settled()
    before = h.now()
    with pytest.raises(CallTimeout):
        await handle.result(timeout=1)
    assert h.now() - before < timedelta(days=1)


async def test_an_invocation_that_is_begun_again_gets_the_outcome_that_there_is(h: Harness) -> None:
    """Its effects lie with the object, and not with what it has done so far."""
    bank.whims.append("lose the answer")
    bank.answers.extend(["lose the answer"] * 3)
    handle = await h.send(refund, KEY, "r")
    await h.settled()
    await h.client.pause(handle.id, by="ann", reason="to look at it")
    await h.settled()
    await h.client.restart(handle.id, keep=0, by="ann", reason="once more")
    assert (await handle.result()).endswith("r#1")
    assert bank.calls("r") == 1


@pytest.mark.parametrize("whim", ["lose the answer", "unreachable"])
async def test_a_waiting_invocation_that_was_parked_beside_its_lane_is_found(h: Harness, whim: str) -> None:
    """Others go on past it, and what it waits for is recorded while it is parked."""
    # One that is not reached is tried again after a moment, which is not to be over before it is parked.
    bank.whims.extend([whim] * (7 if whim == "unreachable" else 1))
    bank.answers.extend(["lose the answer"] * 3)
    handle = await h.send(skip_refund, KEY, "r")
    await h.settled()
    await h.client.pause(handle.id, by="ann", reason="to look at it")
    assert await h.call(skip_look_in, KEY) == "in"
    await h.advance(timedelta(minutes=2))
    await h.client.resume(handle.id, by="ann", reason="go on")
    assert (await handle.result()).endswith("r#1")
    assert (bank.payments("r"), await in_memory(h)) == (1, 0)


async def in_memory(h: Harness) -> int:
    """Return how many invocations are open in the worker's memory."""
    await h.settled()
    return sum(len(each.open) for each in h.runtime.worker.partitions)


async def test_a_kill_leaves_the_call_and_what_comes_of_it(h: Harness) -> None:
    """The lane is free at once; the outcome is recorded without anybody who waits."""
    bank.whims.append("wait")
    handle = await h.send(refund, KEY, "r")
    await bank.waiting.wait()
    await h.client.kill(handle.id, by="ann", reason="no need")
    assert await h.call(look_in, KEY) == "in"
    bank.gate.set()
    await h.settled()
    entry = await effect_of(h, "r")
    assert entry is not None
    assert (entry.state, entry.waiters) == (EffectState.SUCCEEDED, ())
    assert trail == []


async def test_history_outlasts_its_retention_where_an_effect_is_not_settled(h: Harness) -> None:
    """Who looks into it needs to see who has asked for it, and on what facts."""
    bank.whims.extend(["lose the answer", "pay"])
    bank.answers.extend(["lose the answer"] * 3)
    unsettled = await h.send(asked, KEY, "r")
    assert (await unsettled.result()).startswith("unknown")
    settled = await h.send(asked, "acme/o-2", "s")
    await settled.result()
    store, left = h.client.store, list[int]()
    for handle in (unsettled, settled):
        space = store.space("Order", parse_id(handle.id).partition)
        left.extend(await store.together([("PTTL", space.invocation(parse_id(handle.id).raw))]))
    day = 86_400_000
    assert left[0] > 80 * day
    assert left[1] < 3 * day


async def test_nothing_is_attempted_anew_that_nobody_waits_for(h: Harness) -> None:
    """It is certain that nothing was done, so nothing is left of it; its operation id may be used again."""
    bank.whims.append("lose the request")
    handle = await h.send(refund, KEY, "r")
    await h.settled()
    await h.client.kill(handle.id, by="ann", reason="no need")
    await h.advance(timedelta(minutes=5))
    assert (bank.calls("r"), bank.payments("r")) == (1, 0)
    assert await effect_of(h, "r") is None
    await h.call(refund, KEY, "r")
    assert bank.payments("r") == 1


async def test_an_effect_goes_on_when_its_branch_has_lost(h: Harness) -> None:
    """The wait is withdrawn, and the outcome recorded."""
    bank.whims.append("lose the request")
    handle = await h.send(race, KEY, "r")
    await h.settled()
    await handle.signal("word", "now")
    assert await handle.result() == "word"
    await h.advance(timedelta(minutes=5))
    assert bank.payments("r") == 1
    entry = await effect_of(h, "r")
    assert entry is not None
    assert entry.state is EffectState.SUCCEEDED


async def test_an_effect_waits_for_another_one_at_its_receiver(h: Harness) -> None:
    """Which is first is what the handler asked for first; the other is sent once that is settled."""
    bank.whims.extend(["lose the request"])
    receipts = await h.call(two, KEY)
    assert receipts == tuple(f"{h.namespace}.Order.{KEY}.{each}#1" for each in ("a", "b"))
    first, second = await effect_of(h, "a"), await effect_of(h, "b")
    assert first is not None
    assert second is not None
    assert [each.kind for each in second.life] == [EventKind.BLOCKED, EventKind.INTENDED, EventKind.SUCCEEDED]
    assert second.intended_ms >= first.since_ms


async def test_effects_go_side_by_side_where_the_receiver_allows_that(h: Harness) -> None:
    """An unknown outcome holds up nothing there."""
    bank.whims.extend(["lose the request"])
    assert await h.call(two_tips, KEY) == 2
    second = await effect_of(h, "b")
    assert second is not None
    assert [each.kind for each in second.life] == [EventKind.INTENDED, EventKind.SUCCEEDED]


async def test_two_waits_for_one_operation_get_one_receipt(h: Harness) -> None:
    """It is done once."""
    assert await h.call(twice_the_same, KEY) == 1
    assert bank.calls("a") == 1


async def test_a_released_lane_serves_others_while_an_effect_is_looked_into(h: Harness) -> None:
    """The wait leaves the lane, and returns with the outcome."""
    bank.whims.append("lose the answer")
    bank.answers.extend(["lose the answer"] * 3)
    handle = await h.send(released, KEY, "r")
    await h.settled()
    assert await h.call(look_in, KEY) == "in"
    assert (await handle.result()).endswith("r#1")
    assert bank.payments("r") == 1


async def until_asked(h: Harness, invocation_id: str) -> None:
    """Wait until an invocation in memory is to be cancelled."""
    raw_id = parse_id(invocation_id).raw

    def is_asked() -> bool:
        found = [each.open[raw_id] for each in h.runtime.worker.partitions if raw_id in each.open]
        return any(each.standing is not None and each.standing.extras.cancel is not None for each in found)

    with anyio.fail_after(SOON):
        while not is_asked():
            await anyio.sleep(0.005)
    # What follows of it by itself has happened once whoever asks after it has an answer.
    for _ in range(3):
        await h.client.describe(invocation_id)


async def cancelled(handle: Any) -> CancelReport:
    """Cancel, and wait until it has ended so."""
    report = await handle.cancel(by="ann", reason="no need")
    assert report.outcome is CancelOutcome.CANCELLED
    with pytest.raises(InvocationCancelled):
        await handle.result()
    return report
