"""Pausing an object, a type or an invocation: exclusive work stops, everything else goes on, and nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio
import anyio.to_thread
import pytest

from keylane import (
    App,
    BlockingClient,
    BlockingObjectContext,
    CallError,
    CallTimeout,
    Client,
    InvocationPaused,
    ObjectContext,
    Overloaded,
    RetryPolicy,
    Runtime,
    Settings,
    SharedContext,
    UnknownObject,
    VirtualObject,
)
from keylane.journal.doctor.checkup import Plan, check_up
from keylane.journal.key import parse_id
from keylane.runtime.forcing import forced
from keylane.testing import shift_clock
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

KEY, OTHER = "acme/o-1", "acme/o-2"
WHO: dict[str, str] = {"reason": "stock count", "by": "ops"}
gates: dict[str, anyio.Event] = {}
trail: list[str] = []


def _object(name: str = "Order", **options: Any) -> VirtualObject:
    made = VirtualObject(name, owner="tests", partitions=2, state={"words": list[str]}, **options)

    @made.handler
    async def note(ctx: ObjectContext, word: str) -> str:  # pyright: ignore[reportUnusedFunction]
        trail.append(word)
        ctx.set("words", [*await ctx.get("words", list[str], []), word])
        return word

    @made.handler
    async def steps(ctx: ObjectContext, name: str) -> str:  # pyright: ignore[reportUnusedFunction]
        """Run a step that waits for a gate, and another one."""

        async def first() -> None:
            trail.append(f"{name} first")
            await gates[name].wait()

        await ctx.run("first", first)
        trail.append(f"{name} between")
        await ctx.run("second", trail.append, f"{name} second")
        return name

    @made.handler
    def steps_blocking(ctx: BlockingObjectContext, name: str) -> str:  # pyright: ignore[reportUnusedFunction]
        ctx.run("first", trail.append, f"{name} first")
        ctx.sleep(600)
        ctx.run("second", trail.append, f"{name} second")
        return name

    @made.handler
    async def nap(ctx: ObjectContext, name: str) -> str:  # pyright: ignore[reportUnusedFunction]
        await ctx.run("before", trail.append, f"{name} before")
        await ctx.sleep(600)
        trail.append(f"{name} awake")
        await ctx.run("after", trail.append, f"{name} after")
        return name

    @made.handler
    async def hold(ctx: ObjectContext, name: str) -> str:  # pyright: ignore[reportUnusedFunction]
        trail.append(f"{name} holds")
        await gates[name].wait()
        return name

    @made.handler(retry=RetryPolicy(first=timedelta(seconds=600), cap=timedelta(seconds=600)))
    async def fail_once(ctx: ObjectContext, name: str) -> str:  # pyright: ignore[reportUnusedFunction]
        trail.append(f"{name} tries")
        if trail.count(f"{name} tries") == 1:
            raise ValueError("not yet")
        return name

    @made.shared
    async def words(ctx: SharedContext) -> list[str]:  # pyright: ignore[reportUnusedFunction]
        return await ctx.get("words", list[str], [])

    return made


def app_of(**numbers: Any) -> App:
    return App([_object()], settings=Settings(**numbers))


@pytest.fixture(autouse=True)
def _afresh() -> None:
    gates.clear()
    gates.update((name, anyio.Event()) for name in ("a", "b", "c"))
    trail.clear()


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        yield runtime


def told(words: list[str]) -> list[str]:
    """Return what handlers have told of themselves; what code outside of steps tells again is left out where forced."""
    return words if forced() is None else list(dict.fromkeys(words))


async def said(text: str) -> None:
    """Wait until a handler has come to a place."""

    async def is_there() -> bool:
        return text in trail

    await eventually(is_there)


async def stands(client: Client, invocation_id: str, status: str) -> None:
    """Wait until an invocation has a status."""

    async def is_so() -> bool:
        return (await client.describe(invocation_id)).status == status

    await eventually(is_so)


async def order_taken_in(runtime: Runtime, invocation_id: str) -> None:
    """Wait until the owner knows that an invocation is to be paused at its next durable point."""
    raw_id = parse_id(invocation_id).raw

    async def is_wished() -> bool:
        found = [partition.open.get(raw_id) for partition in runtime.worker.partitions]
        return any(each is not None and each.pause_wish is not None for each in found)

    await eventually(is_wished)


async def all_taken_in(runtime: Runtime, key: str, count: int) -> None:
    """Wait until so many invocations of an object are durable in its lane."""

    async def are_there() -> bool:
        return (await runtime.client.inspect("Order", key)).lane.length == count

    await eventually(are_there)


async def test_a_paused_object_runs_nothing_exclusive_and_is_read_on(runtime: Runtime) -> None:
    """Other objects go on; what was called meanwhile runs in its order once the object is resumed."""
    client = runtime.client
    await client.call("Order", KEY, "note", "before")
    await client.pause("Order", KEY, **WHO, timeout=10)
    handles = [await client.send("Order", KEY, "note", f"w{n}") for n in range(5)]
    await all_taken_in(runtime, KEY, 5)
    with pytest.raises(CallTimeout):
        await client.call("Order", KEY, "note", "last", timeout=0.1)
    assert await client.call("Order", KEY, "words", timeout=10) == ["before"]
    assert await client.call("Order", OTHER, "note", "other", timeout=10) == "other"
    assert told(trail) == told(["before", "other"])
    await client.resume("Order", KEY, **WHO, timeout=10)
    assert [await handle.result(timeout=10) for handle in handles] == [f"w{n}" for n in range(5)]
    assert await client.call("Order", KEY, "words", timeout=10) == ["before", *[f"w{n}" for n in range(5)], "last"]


async def test_a_paused_object_stays_paused_over_owners_and_resumes_in_order(store_url: str, namespace: str) -> None:
    """Operators want to pause a key: it survives a restart (A10)."""
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        await runtime.client.pause("Order", KEY, **WHO, timeout=10)
        handles = [await runtime.client.send("Order", KEY, "note", f"w{n}") for n in range(3)]
        await all_taken_in(runtime, KEY, 3)
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        handles.append(await runtime.client.send("Order", KEY, "note", "w3"))
        await all_taken_in(runtime, KEY, 4)
        assert await runtime.client.call("Order", OTHER, "note", "other", timeout=10) == "other"
        assert told(trail) == told(["other"])
        await runtime.client.resume("Order", KEY, **WHO, timeout=10)
        for handle in handles:
            await runtime.client.attach(handle.id).result(timeout=10)
    assert told(trail) == told(["other", "w0", "w1", "w2", "w3"])


async def test_a_pause_that_was_ordered_while_no_worker_ran_holds_before_anything_runs(
    store_url: str, namespace: str
) -> None:
    """It lies in the inbox behind the work that it is to stop."""
    async with Runtime(app_of(), store=store_url, namespace=namespace):
        pass
    async with Client(store_url, namespace=namespace) as client:
        sent = await client.send("Order", KEY, "note", "w")
        with pytest.raises(CallTimeout):
            await client.pause("Order", KEY, **WHO, timeout=0.1)
        async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
            await sent.accepted(timeout=10)
            await all_taken_in(runtime, KEY, 1)
            assert told(trail) == told([])
            await client.resume("Order", KEY, **WHO, timeout=10)
            assert await sent.result(timeout=10) == "w"


async def test_a_paused_type_stops_all_of_its_objects_and_no_other_type(store_url: str, namespace: str) -> None:
    app = App([_object(), _object("Stock")])
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        client = runtime.client
        await client.pause("Order", **WHO, timeout=10)
        handles = [await client.send("Order", f"acme/o-{n}", "note", f"w{n}") for n in range(8)]
        for handle in handles:
            await handle.accepted(timeout=10)
        assert await client.call("Stock", KEY, "note", "stock", timeout=10) == "stock"
        assert told(trail) == told(["stock"])
        await client.resume("Order", **WHO, timeout=10)
        assert sorted([await handle.result(timeout=10) for handle in handles]) == [f"w{n}" for n in range(8)]


async def test_a_type_that_goes_on_brings_back_what_is_not_in_memory(store_url: str, namespace: str) -> None:
    """An owner that takes a paused type over reads none of its lanes, however many there are."""
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        await runtime.client.pause("Order", **WHO, timeout=10)
        handles = [await runtime.client.send("Order", f"acme/o-{n}", "note", f"w{n}") for n in range(8)]
        for handle in handles:
            await handle.accepted(timeout=10)
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        lanes = [lane for partition in runtime.worker.partitions for lane in partition.lanes.values()]
        assert lanes == []
        await runtime.client.resume("Order", **WHO, timeout=10)
        for handle in handles:
            await runtime.client.attach(handle.id).result(timeout=10)


async def test_a_paused_object_and_its_paused_type_are_resumed_each_by_itself(runtime: Runtime) -> None:
    client = runtime.client
    await client.pause("Order", KEY, **WHO, timeout=10)
    await client.pause("Order", **WHO, timeout=10)
    sent = await client.send("Order", KEY, "note", "w")
    await client.resume("Order", **WHO, timeout=10)
    assert await client.call("Order", OTHER, "note", "other", timeout=10) == "other"
    await all_taken_in(runtime, KEY, 1)
    assert told(trail) == told(["other"])
    await client.resume("Order", KEY, **WHO, timeout=10)
    assert await sent.result(timeout=10) == "w"


@pytest.mark.counts_runs
async def test_what_runs_goes_on_up_to_its_next_durable_point(runtime: Runtime) -> None:
    """The step that runs is recorded and not run again; the code behind it runs, the next step does not begin."""
    client = runtime.client
    handle = await client.send("Order", KEY, "steps", "a")
    await said("a first")
    await client.pause("Order", KEY, **WHO, timeout=10)
    gates["a"].set()

    async def is_recorded() -> bool:
        return len((await handle.describe()).steps) == 1

    await eventually(is_recorded)
    await said("a between")
    assert (await handle.describe()).status == "running"
    await client.resume("Order", KEY, **WHO, timeout=10)
    assert await handle.result(timeout=10) == "a"
    assert told(trail) == told(["a first", "a between", "a between", "a second"])


async def test_what_ends_before_its_next_durable_point_ends(runtime: Runtime) -> None:
    client = runtime.client
    handle = await client.send("Order", KEY, "hold", "a")
    await said("a holds")
    await client.pause("Order", KEY, **WHO, timeout=10)
    behind = await client.send("Order", KEY, "note", "behind")
    gates["a"].set()
    assert await handle.result(timeout=10) == "a"
    await all_taken_in(runtime, KEY, 1)
    assert "behind" not in trail
    await client.resume("Order", KEY, **WHO, timeout=10)
    assert await behind.result(timeout=10) == "behind"


@pytest.mark.parametrize("residency", [0.001, 30.0])
async def test_the_end_of_a_wait_is_taken_in_while_its_object_is_paused(
    store_url: str, namespace: str, residency: float
) -> None:
    """The handler goes on when the object does, whether it was in memory or not."""
    app = app_of(waiting_residency_seconds=residency)
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send("Order", KEY, "nap", "a")
        await stands(runtime.client, handle.id, "waiting")
        await runtime.client.pause("Order", KEY, **WHO, timeout=10)
        await shift_clock(runtime, timedelta(seconds=700))
        await stands(runtime.client, handle.id, "running")
        assert told(trail) == told(["a before"])
        await runtime.client.resume("Order", KEY, **WHO, timeout=10)
        assert await handle.result(timeout=10) == "a"
        assert told(trail) == told(["a before", "a awake", "a after"])


async def test_what_is_due_enters_its_lane_while_its_object_is_paused(runtime: Runtime) -> None:
    client = runtime.client
    await client.pause("Order", KEY, **WHO, timeout=10)
    later = await client.send("Order", KEY, "note", "later", delay=600)
    await later.accepted(timeout=10)
    await shift_clock(runtime, timedelta(seconds=700))
    await stands(client, later.id, "queued")
    assert told(trail) == told([])
    await client.resume("Order", KEY, **WHO, timeout=10)
    assert await later.result(timeout=10) == "later"


async def test_the_backlog_of_a_paused_object_is_bounded(store_url: str, namespace: str) -> None:
    async with Runtime(app_of(backlog_per_key=2), store=store_url, namespace=namespace) as runtime:
        client = runtime.client
        await client.pause("Order", KEY, **WHO, timeout=10)
        for n in range(2):
            await (await client.send("Order", KEY, "note", f"w{n}")).accepted(timeout=10)
        with pytest.raises(Overloaded):
            await client.call("Order", KEY, "note", "too many", timeout=10)


async def test_an_order_to_resume_is_read_however_much_stands_behind_a_pause(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With so much in hand an inbox is left alone; what can't go on does not count."""
    monkeypatch.setattr("keylane.runtime.inbox_reader.IN_HAND_MAX", 3)
    await runtime.client.pause("Order", KEY, **WHO, timeout=10)
    async with Client(runtime.store_url, namespace=runtime.client.store.namespace) as client:
        for n in range(5):
            await (await client.send("Order", KEY, "note", f"w{n}")).accepted(timeout=10)
        await client.resume("Order", KEY, **WHO, timeout=10)
    assert await runtime.client.call("Order", KEY, "words", timeout=10) is not None


async def test_idle_lanes_of_a_paused_object_may_leave_memory(store_url: str, namespace: str) -> None:
    """What stands in them lies in the store, and the order to resume brings it back."""
    async with Runtime(app_of(resident_lanes=1), store=store_url, namespace=namespace) as runtime:
        client = runtime.client
        await client.pause("Order", **WHO, timeout=10)
        handles = [await client.send("Order", f"acme/o-{n}", "note", f"w{n}") for n in range(6)]
        for handle in handles:
            await handle.accepted(timeout=10)

        async def have_left() -> bool:
            return sum(len(partition.lanes) for partition in runtime.worker.partitions) <= 1

        await eventually(have_left)
        await client.resume("Order", **WHO, timeout=10)
        assert sorted([await handle.result(timeout=10) for handle in handles]) == [f"w{n}" for n in range(6)]


async def test_pausing_what_is_paused_changes_nothing(runtime: Runtime) -> None:
    client = runtime.client
    await client.pause("Order", KEY, **WHO, timeout=10)
    await client.pause("Order", KEY, reason="another", by="somebody", timeout=10)
    (told,) = (await client.inspect("Order", KEY)).lane.pauses
    assert (told.by, told.reason, told.scope) == ("ops", "stock count", "object")


async def test_resuming_what_is_not_paused_is_refused(runtime: Runtime) -> None:
    with pytest.raises(CallError, match="acme/o-1 is not paused"):
        await runtime.client.resume("Order", KEY, **WHO, timeout=10)
    with pytest.raises(CallError, match="Order is not paused"):
        await runtime.client.resume("Order", **WHO, timeout=10)
    with pytest.raises(UnknownObject):
        await runtime.client.pause("Nothing", **WHO, timeout=10)


async def test_an_invocation_that_runs_is_paused_at_its_next_durable_point(runtime: Runtime) -> None:
    """The order is answered when it is; others wait behind it, as behind any paused one."""
    client = runtime.client
    handle = await client.send("Order", KEY, "steps", "a")
    await said("a first")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: client.pause(handle.id, **WHO, timeout=10))
        await order_taken_in(runtime, handle.id)
        gates["a"].set()
    told = await handle.describe()
    assert told.status == "paused"
    assert told.pause is not None
    assert (told.pause.reason, told.pause.by, told.pause.detail) == ("operator", "ops", "stock count")
    assert "a second" not in trail
    with pytest.raises(InvocationPaused):
        await handle.result(timeout=10)
    await client.resume(handle.id, **WHO, timeout=10)
    assert await handle.result(timeout=10) == "a"
    assert trail.count("a first") == trail.count("a second") == 1


@pytest.mark.parametrize("residency", [0.001, 30.0])
async def test_an_invocation_that_waits_is_paused_at_once(store_url: str, namespace: str, residency: float) -> None:
    """Its time passes all the same; it goes on when it is resumed."""
    async with Runtime(app_of(waiting_residency_seconds=residency), store=store_url, namespace=namespace) as runtime:
        client = runtime.client
        handle = await client.send("Order", KEY, "nap", "a")
        await stands(client, handle.id, "waiting")
        await client.pause(handle.id, **WHO, timeout=10)
        assert (await handle.describe()).status == "paused"
        await shift_clock(runtime, timedelta(seconds=700))
        await client.resume(handle.id, **WHO, timeout=10)
        assert await handle.result(timeout=10) == "a"
        assert told(trail) == told(["a before", "a awake", "a after"])


async def test_an_invocation_of_a_plain_function_is_paused_where_it_waits(runtime: Runtime) -> None:
    client = runtime.client
    handle = await client.send("Order", KEY, "steps_blocking", "a")
    await stands(client, handle.id, "waiting")
    await client.pause(handle.id, **WHO, timeout=10)
    await shift_clock(runtime, timedelta(seconds=700))
    await client.resume(handle.id, **WHO, timeout=10)
    assert await handle.result(timeout=10) == "a"
    assert told(trail) == told(["a first", "a second"])


async def test_an_invocation_that_waits_for_its_next_attempt_is_paused_at_once(runtime: Runtime) -> None:
    client = runtime.client
    handle = await client.send("Order", KEY, "fail_once", "a")
    await stands(client, handle.id, "waiting")
    await client.pause(handle.id, **WHO, timeout=10)
    assert (await handle.describe()).status == "paused"
    await client.resume(handle.id, **WHO, timeout=10)
    assert await handle.result(timeout=10) == "a"


async def test_a_queued_invocation_that_is_paused_stops_the_lane_when_its_turn_comes(runtime: Runtime) -> None:
    """Those before it run; those behind it wait, until it is resumed in its place."""
    client = runtime.client
    first = await client.send("Order", KEY, "hold", "a")
    await said("a holds")
    second = await client.send("Order", KEY, "note", "second")
    third = await client.send("Order", KEY, "note", "third")
    await all_taken_in(runtime, KEY, 3)
    await client.pause(second.id, **WHO, timeout=10)
    gates["a"].set()
    assert await first.result(timeout=10) == "a"
    lane = (await client.inspect("Order", KEY)).lane
    assert [each.id for each in lane.open] == [second.id, third.id]
    assert not lane.is_runnable
    await client.resume(second.id, **WHO, timeout=10)
    assert [await each.result(timeout=10) for each in (second, third)] == ["second", "third"]
    assert told(trail) == told(["a holds", "second", "third"])


async def test_a_paused_invocation_lets_others_go_on_where_its_type_says_so(store_url: str, namespace: str) -> None:
    app = App([_object(on_paused="skip")])
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        client = runtime.client
        first = await client.send("Order", KEY, "nap", "a")
        await stands(client, first.id, "waiting")
        await client.pause(first.id, **WHO, timeout=10)
        assert await client.call("Order", KEY, "note", "other", timeout=10) == "other"
        await client.resume(first.id, **WHO, timeout=10)
        await shift_clock(runtime, timedelta(seconds=700))
        assert await first.result(timeout=10) == "a"


async def test_an_invocation_that_ends_first_is_not_paused(runtime: Runtime) -> None:
    """Whoever wished it is told so."""
    client = runtime.client
    handle = await client.send("Order", KEY, "hold", "a")
    await said("a holds")
    await handle.accepted(timeout=10)
    refused: list[str] = []

    async def order() -> None:
        with pytest.raises(CallError) as caught:
            await client.pause(handle.id, **WHO, timeout=10)
        refused.append(caught.value.message)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(order)
        await order_taken_in(runtime, handle.id)
        gates["a"].set()
    assert await handle.result(timeout=10) == "a"
    assert "it has ended" in refused[0]
    with pytest.raises(CallError, match="it has ended"):
        await client.pause(handle.id, **WHO, timeout=10)


async def test_the_next_owner_pauses_what_the_one_before_could_not(store_url: str, namespace: str) -> None:
    """An order for an invocation that runs stays in the inbox until the pause is recorded."""
    async with Client(store_url, namespace=namespace) as client:
        async with Runtime(app_of(drain_limit_seconds=0.1), store=store_url, namespace=namespace) as runtime:
            handle = await client.send("Order", KEY, "steps", "a")
            await said("a first")
            with pytest.raises(CallTimeout):
                await client.pause(handle.id, **WHO, timeout=0.2)
            del runtime
        gates["a"].set()
        async with Runtime(app_of(), store=store_url, namespace=namespace):
            await stands(client, handle.id, "paused")
            await client.resume(handle.id, **WHO, timeout=10)
            assert await handle.result(timeout=10) == "a"


async def test_a_call_behind_a_paused_head_does_not_make_its_lane_runnable(runtime: Runtime) -> None:
    """Whoever takes over need not read it: nothing in it can run."""
    client = runtime.client
    handle = await client.send("Order", KEY, "nap", "a")
    await stands(client, handle.id, "waiting")
    await client.pause(handle.id, **WHO, timeout=10)
    await (await client.send("Order", KEY, "note", "behind")).accepted(timeout=10)
    later = await client.send("Order", KEY, "note", "later", delay=600)
    await later.accepted(timeout=10)
    await shift_clock(runtime, timedelta(seconds=700))
    await stands(client, later.id, "queued")
    assert not (await client.inspect("Order", KEY)).lane.is_runnable


async def test_describe_inspect_and_the_doctor_say_what_is_paused_by_whom_and_why(runtime: Runtime) -> None:
    client = runtime.client
    await client.pause("Order", KEY, **WHO, timeout=10)
    handle = await client.send("Order", KEY, "note", "w")
    await handle.accepted(timeout=10)
    told = await handle.describe()
    assert "object paused by ops" in told.note
    assert "stock count" in told.note
    inspected = (await client.inspect("Order", KEY)).lane
    assert [str(each.scope) for each in inspected.pauses] == ["object"]
    assert "paused by ops" in inspected.open[0].why
    report = await check_up(client.store, Plan(3.0, "server"))
    assert report.findings == ()
    assert any("acme/o-1" in notice and "paused by ops" in notice for notice in report.notices)


def test_a_blocking_client_pauses_and_resumes(store_url: str, namespace: str) -> None:
    async def run() -> None:
        async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
            await anyio.to_thread.run_sync(operate)
            assert await runtime.client.call("Order", KEY, "note", "w", timeout=10) == "w"

    def operate() -> None:
        with BlockingClient(store_url, namespace=namespace) as client:
            client.pause("Order", KEY, **WHO, timeout=10)
            client.pause("Order", **WHO, timeout=10)
            sent = client.send("Order", KEY, "note", "v")
            sent.accepted(timeout=10)
            client.resume("Order", KEY, **WHO, timeout=10)
            assert told(trail) == told([])
            client.resume("Order", **WHO, timeout=10)
            assert sent.result(timeout=10) == "v"

    anyio.run(run)
