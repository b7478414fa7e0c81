"""A cancel is told to a handler once, at its next durable point, whatever it is in; callers and the report say so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import (
    App,
    CallError,
    CallTimeout,
    Cancelled,
    InvocationCancelled,
    InvocationFailed,
    ObjectContext,
    RetryPolicy,
    Runtime,
    VirtualObject,
)
from keylane.journal.key import parse_id
from keylane.runtime.reviving import NO_EXTRAS

pytestmark = pytest.mark.anyio

PATIENT = RetryPolicy(first=timedelta(hours=1), cap=timedelta(hours=1), attempts=5)
QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=3)
trail: list[str] = []
gates: dict[str, anyio.Event] = {}

job = VirtualObject("Job", owner="tests", partitions=2, state={"status": str})
child = VirtualObject("Child", owner="tests", partitions=2)


@pytest.fixture(autouse=True)
def _afresh() -> None:
    trail.clear()
    gates.clear()


def gate(name: str) -> anyio.Event:
    return gates.setdefault(name, anyio.Event())


@job.handler
async def nap(ctx: ObjectContext, seconds: float) -> str:
    trail.append("run")
    await ctx.run("before", str, "b")
    try:
        await ctx.sleep(seconds)
    except Cancelled as told:
        trail.append(f"told {told.by} {told.reason}")
        await ctx.run("clean up", str, "c")
        ctx.set("status", "cleaned up")
        raise
    return "slept"


@job.handler
async def status(ctx: ObjectContext) -> str:
    return await ctx.get("status", str, "none")


@job.handler
async def failing(ctx: ObjectContext) -> None:
    await ctx.run("fails", fail, retry=PATIENT)


async def fail() -> None:
    trail.append("attempt")
    raise ValueError("no")


@job.handler
async def running(ctx: ObjectContext, name: str) -> str:
    await ctx.run("held", hold, name)
    trail.append("held")
    await ctx.run("after", str, "a")
    trail.append("after")
    return "done"


async def hold(name: str) -> str:
    gate(f"{name} begun").set()
    await gate(name).wait()
    return name


@job.handler
async def then(ctx: ObjectContext, what: str) -> None:
    await ctx.run("held", hold, what)
    match what:
        case "call":
            await ctx.call(child_nap, "acme/c", 0)
        case "send":
            await ctx.send(child_nap, "acme/c", 0)
        case "signal":
            await ctx.signal("go", str)
        case _:
            await ctx.sleep(0)
    trail.append("went on")


@job.handler
async def fails_in_the_end(ctx: ObjectContext, name: str) -> None:
    await ctx.run("held", hold_and_fail, name, retry=PATIENT)


async def hold_and_fail(name: str) -> None:
    await hold(name)
    trail.append("attempt")
    raise ValueError("no")


@job.handler
async def fails_itself(ctx: ObjectContext, name: str) -> None:
    await ctx.run("held", hold, name)
    trail.append("attempt")
    raise ValueError("no")


@job.handler
async def stubborn(ctx: ObjectContext) -> None:
    await ctx.run("first", str, "x")
    gate("x begun").set()
    with contextlib.suppress(asyncio.CancelledError):
        await gate("x").wait()
    await ctx.run("second", trail.append, "second")


@job.handler
async def last_step(ctx: ObjectContext, name: str) -> str:
    return await ctx.run("held", hold, name)


@job.handler
async def calling(ctx: ObjectContext, seconds: float) -> str:
    return await ctx.call(child_nap, "acme/c", seconds)


@child.handler
async def child_nap(ctx: ObjectContext, seconds: float) -> str:
    trail.append("child")
    try:
        await ctx.sleep(seconds)
    finally:
        trail.append("child through")
    return "slept"


app = App([job, child])


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        yield runtime


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    """Wait until something holds."""
    with anyio.fail_after(10):
        while not await holds():
            await anyio.sleep(0.005)


async def waiting(handle: Any) -> None:
    async def waits() -> bool:
        return (await handle.describe()).status == "waiting"

    await until(waits)


async def test_a_sleeper_is_told_and_cleans_up(runtime: Runtime) -> None:
    """Its clean-up may await, what it writes there is kept, and its callers hear who asked and why."""
    handle = await runtime.client.send(nap, "acme/a", 3600)
    await waiting(handle)

    report = await handle.cancel(by="ann", reason="changed her mind", timeout=10)

    assert report.outcome == "cancelled"
    assert report.stopped == ("sleep of 3,600 s",)
    assert report.committed == ("before", "clean up")
    # A replay runs the handler again up to where it was told, and tells it there.
    assert list(dict.fromkeys(trail)) == ["run", "told ann changed her mind"]
    with pytest.raises(InvocationCancelled) as caught:
        await handle.result(timeout=10)
    assert (caught.value.how, caught.value.by, caught.value.reason) == ("cancelled", "ann", "changed her mind")
    assert await runtime.client.call(status, "acme/a", timeout=10) == "cleaned up"
    told = await handle.describe()
    assert (told.status, told.waits_for, told.retry_due_at) == ("cancelled", None, None)
    space = runtime.client.store.space(told.object_name, told.partition)
    assert await runtime.client.store.call("ZCARD", space.due) == 0


async def test_what_has_not_begun_ends_at_once(runtime: Runtime) -> None:
    """Queued behind another one, it never runs."""
    first = await runtime.client.send(nap, "acme/a", 3600)
    await waiting(first)
    begun = len(trail)
    second = await runtime.client.send(nap, "acme/a", 1)
    await second.accepted(timeout=10)

    report = await second.cancel(timeout=10)

    assert (report.outcome, report.committed, report.was_over) == ("cancelled", (), True)
    assert len(trail) == begun
    with pytest.raises(InvocationCancelled):
        await second.result(timeout=10)
    assert (await second.describe()).status == "cancelled"
    assert (await runtime.client.inspect("Job", "acme/a")).lane.length == 1


async def test_what_comes_first_in_a_paused_object_ends_at_once(runtime: Runtime) -> None:
    """It never ran, so nobody has to be told, which would have to wait until the object goes on."""
    await runtime.client.pause("Job", "acme/a", reason="stock count", by="ops", timeout=10)
    first = await runtime.client.send(nap, "acme/a", 3600)
    second = await runtime.client.send(nap, "acme/a", 0)
    await second.accepted(timeout=10)

    report = await first.cancel(timeout=10)

    assert (report.outcome, report.was_over) == ("cancelled", True)
    await runtime.client.resume("Job", "acme/a", reason="counted", by="ops", timeout=10)
    await second.result(timeout=10)
    with pytest.raises(InvocationCancelled):
        await first.result(timeout=10)


async def test_what_is_scheduled_ends_at_once(runtime: Runtime) -> None:
    """Its time does not come, also not for an owner that looks for what is due."""
    handle = await runtime.client.send(nap, "acme/a", 1, delay=timedelta(hours=1))
    await handle.accepted(timeout=10)

    report = await handle.cancel(timeout=10)

    assert report.outcome == "cancelled"
    told = await handle.describe()
    assert (told.status, told.retry_due_at) == ("cancelled", None)
    assert trail == []


async def test_what_is_scheduled_is_killed_by_a_kill_and_left_alone_by_what_is_about_undos(runtime: Runtime) -> None:
    """What was asked for is what is done, also to what is in the journal alone."""
    handle = await runtime.client.send(nap, "acme/a", 1, delay=timedelta(hours=1))
    await handle.accepted(timeout=10)

    with pytest.raises(CallError, match="no undo of it has failed"):
        await runtime.client.skip_compensation(handle.id, by="ops", reason="wrong id", timeout=10)
    assert (await handle.describe()).status == "scheduled"

    report = await runtime.client.kill(handle.id, by="ops", reason="unwanted", timeout=10)

    assert report.outcome == "killed"
    assert (await handle.describe()).status == "killed"


async def test_what_was_found_due_before_its_cancel_does_not_enter_its_lane(runtime: Runtime) -> None:
    """Who has read it a moment before the cancel puts it nowhere: it has ended."""
    handle = await runtime.client.send(nap, "acme/a", 1, delay=timedelta(hours=1))
    await handle.accepted(timeout=10)
    invocation = parse_id(handle.id)
    (partition,) = [
        each
        for each in runtime.worker.partitions
        if (each.space.type_name, each.number) == (invocation.type_name, invocation.partition)
    ]
    worker = runtime.worker
    (found,), _, _ = await worker._reviving.read(partition, [invocation.raw])
    await handle.cancel(timeout=10)

    worker._finding._take_found(partition, found, NO_EXTRAS)

    assert invocation.raw not in partition.open
    assert await runtime.client.call(status, "acme/a", timeout=10) == "none"
    assert trail == []


async def test_what_is_cancelled_while_a_retry_is_due_gets_no_later_attempt(runtime: Runtime) -> None:
    """The step that failed is not tried again; its handler is told in its place (K3)."""
    handle = await runtime.client.send(failing, "acme/a")
    await waiting(handle)

    report = await handle.cancel(timeout=10)

    assert report.outcome == "cancelled"
    assert report.stopped == ("retries of step 'fails', after 1 failed",)
    assert trail == ["attempt"]
    space = runtime.client.store.space("Job", (await handle.describe()).partition)
    assert await runtime.client.store.call("ZCARD", space.due) == 0


async def test_who_waits_too_long_for_a_cancel_hears_what_it_waits_for(runtime: Runtime) -> None:
    """The cancel itself stands, and is told once the step that runs has ended."""
    handle = await runtime.client.send(running, "acme/a", "x")
    await gate("x begun").wait()

    async def is_told_why() -> bool:
        with pytest.raises(CallTimeout) as caught:
            await handle.cancel(timeout=0.2)
        assert caught.value.invocation_id == handle.id
        return caught.value.why == "it is told at its next durable point that it is cancelled"

    await until(is_told_why)
    gate("x").set()
    with pytest.raises(InvocationCancelled):
        await handle.result(timeout=10)


async def test_a_step_that_runs_is_let_finish(runtime: Runtime) -> None:
    """Its result is recorded, and the handler is told in place of the next step."""
    handle = await runtime.client.send(running, "acme/a", "x")
    await gate("x begun").wait()
    reports: list[Any] = []
    async with anyio.create_task_group() as tasks:

        async def cancel() -> None:
            reports.append(await handle.cancel(timeout=10))

        tasks.start_soon(cancel)

        async def is_pending() -> bool:
            return any(e.what == "cancel requested" for e in (await runtime.client.inspect("Job", "acme/a")).timeline)

        await until(is_pending)
        gate("x").set()
    assert reports[0].outcome == "cancelled"
    assert reports[0].committed == ("held",)
    assert set(trail) == {"held"}


@pytest.mark.parametrize("what", ["call", "send", "sleep", "signal"])
async def test_a_handler_is_told_in_place_of_whatever_it_asks_for_next(runtime: Runtime, what: str) -> None:
    """A call, a message, a sleep, a wait: nothing of it leaves."""
    handle = await runtime.client.send(then, "acme/a", what)
    await gate(f"{what} begun").wait()
    reports: list[Any] = []

    async def cancel() -> None:
        reports.append(await handle.cancel(timeout=10))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)

        async def is_pending() -> bool:
            return (await handle.describe()).cancel is not None

        await until(is_pending)
        gate(what).set()
    assert (reports[0].outcome, reports[0].committed) == ("cancelled", ("held",))
    assert trail == []
    told = await handle.describe()
    assert [step.name for step in told.steps] == ["held", "cancellation"]


@pytest.mark.parametrize("handler", [fails_in_the_end, fails_itself], ids=["step", "handler"])
async def test_what_fails_while_it_is_to_be_cancelled_gets_no_later_attempt(runtime: Runtime, handler: Any) -> None:
    """The attempt that was under way is the last one, of a step and of a handler (K3)."""
    handle = await runtime.client.send(handler, "acme/a", "x")
    await gate("x begun").wait()
    reports: list[Any] = []

    async def cancel() -> None:
        reports.append(await handle.cancel(timeout=10))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)

        async def is_pending() -> bool:
            return (await handle.describe()).cancel is not None

        await until(is_pending)
        gate("x").set()
    assert reports[0].outcome == "cancelled"
    assert trail == ["attempt"]


async def test_a_killed_handler_that_goes_on_begins_nothing_more(runtime: Runtime) -> None:
    """Whatever it swallows: its context does nothing any more."""
    handle = await runtime.client.send(stubborn, "acme/a")
    await gate("x begun").wait()
    report = await runtime.client.kill(handle.id, by="ops", reason="stuck", timeout=10)
    assert report.outcome == "killed"
    assert await runtime.client.call(status, "acme/a", timeout=10) == "none"
    assert trail == []


async def test_a_cancel_that_comes_after_the_last_step_says_that_it_came_too_late(runtime: Runtime) -> None:
    """A handler that returns before it is told has completed (K1)."""
    handle = await runtime.client.send(last_step, "acme/a", "x")
    await gate("x begun").wait()
    reports: list[Any] = []

    async def cancel() -> None:
        reports.append(await handle.cancel(timeout=10))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)

        async def is_pending() -> bool:
            return any(e.what == "cancel requested" for e in (await runtime.client.inspect("Job", "acme/a")).timeline)

        await until(is_pending)
        gate("x").set()
    assert (reports[0].outcome, reports[0].was_over) == ("completed", False)
    assert await handle.result(timeout=10) == "x"
    again = await handle.cancel(timeout=10)
    assert (again.outcome, again.was_over) == ("completed", True)


async def test_a_call_is_cancelled_with_its_caller(runtime: Runtime) -> None:
    """The callee is told as well, and stands in the report."""
    handle = await runtime.client.send(calling, "acme/a", 3600)
    await waiting(handle)

    async def has_begun() -> bool:
        return "child" in trail

    await until(has_begun)
    report = await handle.cancel(timeout=10)

    assert report.outcome == "cancelled"
    assert len(report.stopped) == 2
    assert report.stopped[0] == "call of Child.child_nap at acme/c"
    assert (await runtime.client.describe(report.stopped[1])).status == "cancelled"
    assert trail[-1] == "child through"
    assert report.left_running == ()


async def test_a_caller_of_what_is_cancelled_gets_an_error(runtime: Runtime) -> None:
    """`ctx.call` raises it, and where nothing catches it, the caller has failed."""
    handle = await runtime.client.send(calling, "acme/a", 3600)
    await waiting(handle)

    async def has_begun() -> bool:
        return "child" in trail

    async def called_one() -> bool:
        return (await runtime.client.inspect("Child", "acme/c")).lane.holder is not None

    await until(has_begun)
    await until(called_one)
    called = (await runtime.client.inspect("Child", "acme/c")).lane.holder
    assert called is not None
    report = await runtime.client.cancel(called.id, timeout=10)
    assert report.outcome == "cancelled"
    with pytest.raises(InvocationFailed) as caught:
        await handle.result(timeout=10)
    assert caught.value.code == "invocation-cancelled"


async def test_what_nobody_knows_can_not_be_cancelled(runtime: Runtime) -> None:
    """An id without a trace is an error, as elsewhere."""
    with pytest.raises(CallError, match="nothing is known of it"):
        await runtime.client.cancel("Job.0.0193a0b0c0d0e0f00102030405060708", timeout=10)


async def test_a_killed_invocation_ends_without_cleaning_up(runtime: Runtime) -> None:
    """A running one is thrown away, its lane is free, and its callers hear of it."""
    handle = await runtime.client.send(running, "acme/a", "x")
    await gate("x begun").wait()
    report = await runtime.client.kill(handle.id, by="ops", reason="stuck", timeout=10)
    assert report.outcome == "killed"
    with pytest.raises(InvocationCancelled) as caught:
        await handle.result(timeout=10)
    assert (caught.value.how, caught.value.by) == ("killed", "ops")
    assert await runtime.client.call(status, "acme/a", timeout=10) == "none"
    assert trail == []
    assert (await handle.describe()).status == "killed"


async def test_a_killed_sleeper_frees_its_lane(runtime: Runtime) -> None:
    """It is told nothing; what waits behind it runs."""
    handle = await runtime.client.send(nap, "acme/a", 3600)
    await waiting(handle)
    behind = await runtime.client.send(status, "acme/a")
    report = await runtime.client.kill(handle.id, by="ops", reason="stuck", timeout=10)
    assert report.outcome == "killed"
    assert await behind.result(timeout=10) == "none"
    assert set(trail) == {"run"}
