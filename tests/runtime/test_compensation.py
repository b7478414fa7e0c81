"""`ctx.compensate`: what a handler did is undone when it fails for good or is cancelled; an undo that fails is seen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import (
    App,
    BlockingObjectContext,
    CallError,
    InvocationCancelled,
    InvocationFailed,
    InvocationPaused,
    ObjectContext,
    RetryPolicy,
    Runtime,
    Settings,
    TerminalError,
    VirtualObject,
)
from keylane.runtime.compensation import compensation

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=2)
GIVE_UP = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=2, then="fail")
trail: list[str] = []
broken: set[str] = set()
gates: dict[str, anyio.Event] = {}

trip = VirtualObject("Trip", owner="tests", partitions=2, state={"status": str})


@pytest.fixture(autouse=True)
def _afresh() -> None:
    trail.clear()
    broken.clear()
    gates.clear()


async def book(what: str) -> str:
    trail.append(f"book {what}")
    return what


def book_now(what: str) -> str:
    trail.append(f"book {what}")
    return what


async def unbook(what: str) -> None:
    trail.append(f"unbook {what}")
    if f"{what} for good" in broken:
        raise TerminalError("the hotel is gone", code="gone")
    if what in broken:
        raise OSError("unreachable")
    if what in gates:
        await gates[what].wait()


@trip.handler
async def plan(ctx: ObjectContext, end: str) -> str:
    for what in ("flight", "hotel", "car"):
        ctx.compensate(what, unbook, what, retry=QUICK)
        await ctx.run(f"book {what}", book, what)
    ctx.set("status", "booked")
    if end == "fail":
        raise TerminalError("no visa", code="no-visa")
    if end == "wait":
        await ctx.sleep(3600)
    return "booked"


@trip.handler
def plan_blocking(ctx: BlockingObjectContext, end: str) -> str:
    ctx.compensate("flight", unbook, "flight", retry=QUICK)
    ctx.run("book flight", book_now, "flight")
    ctx.sleep(3600)
    return end


@trip.handler(retry=GIVE_UP)
async def flaky(ctx: ObjectContext) -> None:
    ctx.compensate("flight", unbook, "flight", retry=QUICK)
    await ctx.run("book flight", book, "flight")
    if len(trail) < 3:
        trail.append("flaky")
        raise OSError("now and then")
    await ctx.run("book hotel", book, "hotel")


@trip.handler
async def status(ctx: ObjectContext) -> str:
    return await ctx.get("status", str, "none")


app = App([trip])


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        yield runtime


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    """Wait until something holds."""
    with anyio.fail_after(10):
        while not await holds():
            await anyio.sleep(0.005)


async def has_status(handle: Any, wanted: str) -> None:
    async def has() -> bool:
        return (await handle.describe()).status == wanted

    await until(has)


BOOKED = ["book flight", "book hotel", "book car"]
UNBOOKED = ["unbook car", "unbook hotel", "unbook flight"]


async def test_what_a_failed_handler_did_is_undone_last_thing_first(runtime: Runtime) -> None:
    """Its caller gets the error of the handler, and what it had written since its last step is not kept."""
    with pytest.raises(InvocationFailed) as caught:
        await runtime.client.call(plan, "acme/t", "fail", timeout=10)
    assert caught.value.code == "no-visa"
    assert trail == [*BOOKED, *UNBOOKED]
    assert await runtime.client.call(status, "acme/t", timeout=10) == "none"


async def test_what_a_cancelled_handler_did_is_undone(runtime: Runtime) -> None:
    """The report names what was undone."""
    handle = await runtime.client.send(plan, "acme/t", "wait")
    await has_status(handle, "waiting")
    report = await handle.cancel(timeout=10)
    assert report.outcome == "cancelled"
    assert not report.compensation_failed
    assert report.undone == ("car", "hotel", "flight")
    assert report.committed == tuple(BOOKED)
    assert trail == [*BOOKED, *UNBOOKED]
    with pytest.raises(InvocationCancelled):
        await handle.result(timeout=10)


async def test_what_a_plain_function_did_is_undone(runtime: Runtime) -> None:
    """As in a coroutine."""
    handle = await runtime.client.send(plan_blocking, "acme/t", "x")
    await has_status(handle, "waiting")
    report = await handle.cancel(timeout=10)
    assert (report.outcome, report.undone) == ("cancelled", ("flight",))


async def test_a_handler_that_returns_undoes_nothing(runtime: Runtime) -> None:
    """An undo is for what did not come to its end."""
    assert await runtime.client.call(plan, "acme/t", "return", timeout=10) == "booked"
    assert trail == BOOKED


async def test_what_is_undone_stays_so_where_a_replay_would_not_fail_again(runtime: Runtime) -> None:
    """Retries are spent: that it has failed is recorded before the first undo, and no replay goes past it."""
    broken.add("flight")
    handle = await runtime.client.send(flaky, "acme/t")
    await has_status(handle, "paused")
    broken.clear()
    # The handler would go on now, to its next step.
    await runtime.client.resume(handle.id, reason="the airline is back", by="ann", timeout=10)
    with pytest.raises(InvocationFailed):
        await handle.result(timeout=10)
    assert "book hotel" not in trail
    assert trail[-1] == "unbook flight"


@pytest.mark.parametrize("how", ["hotel", "hotel for good"], ids=["retries spent", "for good"])
async def test_an_undo_that_fails_parks_its_invocation_until_a_person_tries_it_again(
    runtime: Runtime, how: str
) -> None:
    """It is a state of its own, which `describe` shows; what was undone already is not undone twice (K5)."""
    broken.add(how)
    handle = await runtime.client.send(plan, "acme/t", "wait")
    await has_status(handle, "waiting")
    report = await handle.cancel(timeout=10)
    assert (report.outcome, report.compensation_failed) == ("paused", True)
    told = await handle.describe()
    assert told.pause is not None
    assert told.pause.reason == "compensation_failed"
    with pytest.raises(InvocationPaused):
        await handle.result(timeout=10)

    broken.clear()
    await runtime.client.resume(handle.id, reason="the hotel is back", by="ann", timeout=10)
    with pytest.raises(InvocationCancelled) as caught:
        await handle.result(timeout=10)
    assert not caught.value.compensation_failed
    assert trail.count("unbook car") == 1
    assert trail[-2:] == ["unbook hotel", "unbook flight"]


@pytest.mark.parametrize("raised", [SystemExit(3), GeneratorExit()])
async def test_whatever_an_undo_raises_costs_no_other_object_its_worker(
    store_url: str, namespace: str, raised: BaseException
) -> None:
    """It has failed for good as with any other error, and the others go on."""
    made = VirtualObject("Odd", owner="tests", partitions=1)

    async def undo() -> None:
        raise raised

    @made.handler
    async def work(ctx: ObjectContext, ends: str) -> str:
        ctx.compensate("it", undo, retry=GIVE_UP)
        if ends == "fail":
            raise TerminalError("no")
        return ends

    async with Runtime([made], store=store_url, namespace=namespace) as runtime:
        with pytest.raises(InvocationPaused, match="'undo it' failed for good") as caught:
            await runtime.client.call(work, "acme/a", "fail", timeout=10)
        assert caught.value.reason == "compensation_failed"
        assert await runtime.client.call(work, "acme/b", "well", timeout=10) == "well"


async def test_an_undo_that_is_given_up_marks_the_end(runtime: Runtime) -> None:
    """The ones before it are undone still, and the end says that one was not."""
    broken.add("hotel")
    handle = await runtime.client.send(plan, "acme/t", "wait")
    await has_status(handle, "waiting")
    await handle.cancel(timeout=10)
    await runtime.client.skip_compensation(handle.id, reason="refunded by hand", by="ann", timeout=10)
    with pytest.raises(InvocationCancelled) as caught:
        await handle.result(timeout=10)
    assert caught.value.compensation_failed
    assert trail[-1] == "unbook flight"
    told = await handle.describe()
    assert (told.status, told.compensation_failed) == ("cancelled", True)
    with pytest.raises(CallError, match="no undo of it has failed"):
        await runtime.client.skip_compensation(handle.id, reason="again", by="ann", timeout=10)


async def test_undoing_goes_on_where_it_was_at_the_next_owner(store_url: str, namespace: str) -> None:
    """What was undone before the worker went is not undone again."""
    settings = Settings(drain_limit_seconds=0.1)
    gates["hotel"] = anyio.Event()
    async with Runtime(App([trip], settings=settings), store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(plan, "acme/t", "fail")

        async def has_begun() -> bool:
            return "unbook hotel" in trail

        await until(has_begun)
        told = await handle.describe()
        assert told.status == "compensating"
        invocation_id = handle.id
    gates["hotel"].set()
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        with pytest.raises(InvocationFailed) as caught:
            await runtime.client.attach(invocation_id).result(timeout=10)
        assert caught.value.code == "no-visa"
    assert trail.count("unbook car") == 1
    assert trail[-1] == "unbook flight"


async def test_a_cancel_of_what_is_being_undone_comes_too_late(runtime: Runtime) -> None:
    """It is not told to anybody, and the report says that the handler had failed."""
    gates["hotel"] = anyio.Event()
    handle = await runtime.client.send(plan, "acme/t", "fail")
    await has_status(handle, "compensating")
    reports: list[Any] = []

    async def cancel() -> None:
        reports.append(await handle.cancel(timeout=10))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)
        gates["hotel"].set()
    assert reports[0].outcome == "failed"
    assert trail == [*BOOKED, *UNBOOKED]


async def test_a_killed_one_undoes_nothing(runtime: Runtime) -> None:
    """And where it was being undone, its end says that it was not undone whole."""
    gates["hotel"] = anyio.Event()
    handle = await runtime.client.send(plan, "acme/t", "fail")
    await has_status(handle, "compensating")

    async def is_at_hotel() -> bool:
        return "unbook hotel" in trail

    await until(is_at_hotel)
    report = await runtime.client.kill(handle.id, reason="enough", by="ops", timeout=10)
    assert (report.outcome, report.compensation_failed) == ("killed", True)
    assert trail[-1] == "unbook hotel"
    assert (await handle.describe()).compensation_failed
    assert await runtime.client.call(status, "acme/t", timeout=10) == "none"


async def test_those_behind_one_that_is_killed_while_it_is_undone_have_their_turn(runtime: Runtime) -> None:
    """Whatever comes next to that object: they are there already, and nobody else wakes the lane."""
    gates["hotel"] = anyio.Event()
    handle = await runtime.client.send(plan, "acme/t", "fail")

    async def is_at_hotel() -> bool:
        return "unbook hotel" in trail

    await until(is_at_hotel)
    behind = await runtime.client.send(status, "acme/t")
    await behind.accepted(timeout=10)
    await runtime.client.kill(handle.id, reason="enough", by="ops", timeout=10)
    assert await behind.result(timeout=10) == "none"


def test_an_undo_that_can_not_be_called_so_is_refused_when_it_is_registered() -> None:
    """Not when it is needed."""
    with pytest.raises(TypeError):
        compensation("x", unbook, (), {})
    with pytest.raises(TypeError, match="no option 'on_exhausted'"):
        compensation("x", unbook, ("a",), {"on_exhausted": "raise"})
    with pytest.raises(TypeError, match="can't be called"):
        compensation("x", 3, (), {})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"another object undoes by a call of yours: .* await ctx.call"):
        compensation("x", status, ("acme/t",), {})  # type: ignore[arg-type]
