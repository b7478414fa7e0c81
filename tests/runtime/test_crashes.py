"""The public crash kit: a scenario is run with the worker killed at every call of the store, and taken over."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from keylane import InvocationPaused, ObjectContext, TerminalError, VirtualObject
from keylane.runtime.virtual_time import Subject
from keylane.testing import CrashPoint, Harness, crashes

pytestmark = pytest.mark.anyio

ledger: Counter[str] = Counter()
order = VirtualObject("Order", owner="tests", state={"paid": int})
customer = VirtualObject("Customer", owner="tests", state={"mails": int})
careless = VirtualObject("Careless", owner="tests")


@order.handler
async def pay(ctx: ObjectContext, amount: int) -> int:
    """Two steps with a wait and a call between them, and state that is written on the way."""
    await ctx.run("charge", charge, amount)
    ctx.set("paid", await ctx.get("paid", int, 0) + amount)
    await ctx.sleep(timedelta(days=30))
    mails = await ctx.call(tell, str(ctx.key))
    await ctx.run("note", note)
    return mails


@customer.handler
async def tell(ctx: ObjectContext) -> int:
    mails = await ctx.get("mails", int, 0) + 1
    ctx.set("mails", mails)
    return mails


@careless.handler
async def pay_without_a_step(ctx: ObjectContext, amount: int) -> None:
    charge(amount)
    await ctx.run("note", note)


@careless.handler
async def refuse(ctx: ObjectContext) -> None:
    await ctx.run("note", note)
    raise TerminalError("no")


@order.handler
async def charge_and_note(ctx: ObjectContext, amount: int) -> None:
    await ctx.run("charge", charge, amount)
    await ctx.run("note", note)


def charge(amount: int) -> None:
    ledger["charge"] += amount


def note() -> None:
    ledger["note"] += 1


async def scenario(h: Harness) -> tuple[int, dict[str, int]]:
    ledger.clear()
    mails = await h.call(pay, "acme/o-1", 10)
    return mails, dict(ledger)


@pytest.mark.one_server  # of calls of several servers the number alone does not tell which one it is
async def test_whatever_dies_each_answer_comes_once_and_a_step_runs_again_only_when_its_record_is_missing(
    store_url: str,
) -> None:
    """Messages and state are exactly once; a step is at least once, and again only before its record is written."""
    points: list[CrashPoint] = []
    repeated: list[CrashPoint] = []
    async for crash in crashes([order, customer], scenario, store=store_url):
        mails, done = crash.result()
        assert mails == 1
        assert set(done) == {"charge", "note"}
        if crash.point is None:
            assert done == {"charge": 10, "note": 1}
            continue
        points.append(crash.point)
        if done != {"charge": 10, "note": 1}:
            assert done in ({"charge": 20, "note": 1}, {"charge": 10, "note": 2})
            repeated.append(crash.point)

    # Acceptance, two steps, a timer and its end, a call, its reply and the end, and the messages between the two.
    assert len([point for point in points if point.moment == "before"]) >= 10
    assert len([point for point in points if point.moment == "after"]) >= 10
    assert {point.call.split()[0] for point in points} == {"commit", "deliver"}
    # Both steps were caught between their doing and their record; once the record is there, they are never done again.
    assert [point.moment for point in repeated] == ["before", "before"]


@pytest.mark.counts_runs
async def test_what_a_handler_does_outside_of_steps_is_seen_to_happen_again(store_url: str) -> None:
    """The kit tells a careless handler from a careful one."""

    async def pay_carelessly(h: Harness) -> int:
        ledger.clear()
        await h.call(pay_without_a_step, "acme/c-1", 10)
        return ledger["charge"]

    charged = [crash.result() async for crash in crashes(careless, pay_carelessly, store=store_url)]

    assert charged[0] == 10
    assert 20 in charged


async def test_who_waits_for_a_worker_to_do_something_looks_at_the_one_that_takes_its_place(store_url: str) -> None:
    """The dead one may not come to rest once more, and the clock would stand still."""
    async with Harness(order, store=store_url) as first, Harness(order, store=store_url) as second:
        former, heir = first.runtime.worker, second.runtime.worker
        subject = Subject(former, first.client)
        await first.settled()
        waiting = asyncio.ensure_future(subject.changed(former, former.idle.rests))
        await asyncio.sleep(0)
        subject.replace(heir)
        await asyncio.wait_for(waiting, 0.5)


async def test_what_a_scenario_raises_is_handed_over_with_the_place_of_the_crash(store_url: str) -> None:
    """For the test to decide whether it may."""

    async def be_refused(h: Harness) -> None:
        await h.call(refuse, "acme/c-1")

    runs = [crash async for crash in crashes(careless, be_refused, store=store_url, moments=["before"])]

    assert len(runs) > 2
    for run in runs[1:]:
        with pytest.raises(Exception, match="no") as raised:
            run.result()
        assert raised.value.__notes__ == [f"the worker was killed {run.point}"]


@pytest.mark.parametrize(
    "plan",
    [
        {"moments": ()},
        {"moments": "before"},
        {"moments": ("never",)},
        {"points_max": 0},
        {"points_max": "3"},
        {"run_seconds": 0},
        {"run_seconds": float("nan")},
    ],
)
async def test_a_plan_that_crashes_nowhere_is_refused(store_url: str, plan: dict[str, Any]) -> None:
    """Each assertion would hold, of no crash at all."""
    with pytest.raises(ValueError, match=next(iter(plan))):
        _ = [run async for run in crashes([order, customer], scenario, store=store_url, **plan)]


async def test_a_scenario_that_calls_the_store_without_end_is_given_up(store_url: str) -> None:
    """The kit is bounded, and says what to do."""
    runs = crashes([order, customer], scenario, store=store_url, points_max=2)

    with pytest.raises(AssertionError, match="points_max"):
        _ = [run async for run in runs]


async def test_the_kit_sees_an_owner_that_does_not_take_up_what_the_one_before_has_left(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is checked by a safeguard that is taken out: the heir does not look for lanes that can run."""

    async def nothing(*_: object) -> list[str]:
        return []

    monkeypatch.setattr("keylane.runtime.worker.read_runnable", nothing)

    with pytest.raises(TimeoutError):
        _ = [run async for run in crashes([order, customer], scenario, store=store_url, run_seconds=2.0)]


async def test_the_kit_sees_an_owner_that_forgets_what_is_recorded(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another safeguard: without its records, a handler charges again after the charge has been recorded."""

    def forget(records: object) -> list[object]:
        del records
        return []

    monkeypatch.setattr("keylane.runtime.restarting.commands_of", forget)
    runs = crashes(order, charge_only, store=store_url, moments=["after"], run_seconds=5.0)

    first, *others = [run async for run in runs]

    assert first.result() == 10
    assert any(run.result() > 10 for run in others)


async def charge_only(h: Harness) -> int:
    ledger.clear()
    with contextlib.suppress(InvocationPaused):
        await h.call(charge_and_note, "acme/o-1", 10)
    return ledger["charge"]
