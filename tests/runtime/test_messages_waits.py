"""Waits that outlive the handler in memory, its worker and its owner: calls, sleeps, and what is to begin later."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from keylane import (
    App,
    BlockingClient,
    BlockingObjectContext,
    CallError,
    IdempotencyConflict,
    ObjectContext,
    RetryPolicy,
    Runtime,
    Settings,
    SharedContext,
    VirtualObject,
)
from keylane.journal.key import parse_id
from keylane.testing import shift_clock
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=3)
gates: dict[str, anyio.Event] = {}
trail: list[str] = []

callee = VirtualObject("Callee", owner="tests", partitions=2)
caller = VirtualObject("Caller", owner="tests", partitions=2, state={"words": list[str]}, retry=QUICK)


@callee.handler
async def hold(ctx: ObjectContext, name: str) -> str:
    await gates[name].wait()
    return name


@caller.handler
async def call_it(ctx: ObjectContext, name: str) -> str:
    trail.append("run")
    first = await ctx.run("step", str, "step")
    try:
        got = await ctx.call(hold, "acme/c", name)
    except Exception:
        trail.append("caught")
        raise
    trail.append("got")
    return f"{first} {got}"


@caller.handler
def call_it_blocking(ctx: BlockingObjectContext, name: str) -> str:
    trail.append("run")
    return ctx.call(hold, "acme/c", name)


@caller.handler
async def impatient(ctx: ObjectContext, name: str) -> str:
    trail.append("run")
    with anyio.move_on_after(0.01 if len(trail) == 1 else 10):
        return await ctx.call(hold, "acme/c", name)
    return "gave up"


@caller.handler
async def nap(ctx: ObjectContext, seconds: float) -> float:
    trail.append("run")
    began = await ctx.time()
    await ctx.sleep(seconds)
    return ((await ctx.time()) - began).total_seconds()


@caller.handler
async def note(ctx: ObjectContext, word: str) -> str:
    ctx.set("words", [*await ctx.get("words", list[str], []), word])
    return word


@caller.handler
async def send_later(ctx: ObjectContext, words: list[Any]) -> list[str]:
    return [(await ctx.send(note, "acme/late", word, delay=delay)).id for word, delay in words]


@caller.shared
async def words(ctx: SharedContext) -> list[str]:
    return await ctx.get("words", list[str], [])


def app_of(**numbers: Any) -> App:
    return App([callee, caller], settings=Settings(**numbers))


@pytest.fixture(autouse=True)
def _afresh() -> None:
    gates.clear()
    trail.clear()


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        yield runtime


def in_memory(runtime: Runtime, invocation_id: str) -> bool:
    """Return whether the handler of an invocation is waiting in memory."""
    raw_id = parse_id(invocation_id).raw
    return any(raw_id in partition.sleepers for partition in runtime.worker.partitions)


async def waiting(runtime: Runtime, handle: Any) -> None:
    """Wait until an invocation waits."""

    async def waits() -> bool:
        return (await handle.describe()).status == "waiting"

    await eventually(waits)


@pytest.mark.counts_runs
async def test_a_handler_that_waits_for_long_leaves_memory_and_is_replayed(store_url: str, namespace: str) -> None:
    """It is ended by what no `except Exception` catches, and runs again once its reply is there."""
    gates["a"] = anyio.Event()
    app = app_of(waiting_residency_seconds=0.05)
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(call_it, "acme/w", "a")
        await waiting(runtime, handle)

        async def has_left() -> bool:
            return not in_memory(runtime, handle.id)

        await eventually(has_left)
        assert trail == ["run"]
        gates["a"].set()
        assert await handle.result(timeout=10) == "step a"
        assert trail == ["run", "run", "got"]


@pytest.mark.counts_runs
async def test_a_handler_that_waits_for_a_moment_goes_on_where_it_stands(runtime: Runtime) -> None:
    """No replay, and no slot taken meanwhile."""
    gates["a"] = anyio.Event()
    handle = await runtime.client.send(call_it, "acme/w", "a")
    await waiting(runtime, handle)

    async def is_resident() -> bool:
        return in_memory(runtime, handle.id)

    # The store has its record a moment before its owner hears of it.
    await eventually(is_resident)
    gates["a"].set()

    assert await handle.result(timeout=10) == "step a"
    assert trail == ["run", "got"]


async def test_a_plain_function_that_waits_gives_its_thread_back_at_once(runtime: Runtime) -> None:
    """It is replayed when the reply is there."""
    gates["a"] = anyio.Event()
    handle = await runtime.client.send(call_it_blocking, "acme/w", "a")
    await waiting(runtime, handle)
    gates["a"].set()

    assert await handle.result(timeout=10) == "a"
    assert trail == ["run", "run"]


async def test_more_handlers_wait_than_there_are_slots(store_url: str, namespace: str) -> None:
    """A wait costs no concurrency: those that are called would never get a slot."""
    async with Runtime(app_of(lane_slots=2), store=store_url, namespace=namespace) as runtime:
        gates["a"] = anyio.Event()
        handles = [await runtime.client.send(call_it, f"acme/w-{number}", "a") for number in range(20)]
        for handle in handles:
            await waiting(runtime, handle)
        gates["a"].set()
        assert [await handle.result(timeout=10) for handle in handles] == ["step a"] * 20


@pytest.mark.parametrize("handler", [call_it, call_it_blocking], ids=["async", "plain"])
async def test_a_wait_outlives_its_worker(store_url: str, namespace: str, handler: Any) -> None:
    """The next owner does not run what waits, and goes on with it once the reply is there."""
    gates["a"] = anyio.Event()
    # What is called is cut off at the end of the worker, and run again.
    async with Runtime(app_of(drain_limit_seconds=0.1), store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(handler, "acme/w", "a")
        await waiting(runtime, handle)
        invocation_id = handle.id
    runs = trail.count("run")
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        handle = runtime.client.attach(invocation_id, str)
        # A call behind it brings its lane into memory, which must not make it run.
        behind = await runtime.client.send(note, "acme/w", "behind")
        await behind.accepted(timeout=10)
        assert trail.count("run") == runs
        assert (await handle.describe()).status == "waiting"
        gates["a"].set()
        assert (await handle.result(timeout=10)).endswith("a")
        assert await behind.result(timeout=10) == "behind"


@pytest.mark.counts_runs
async def test_a_timeout_around_a_call_is_no_end_of_it(runtime: Runtime) -> None:
    """A replay could not tell it again: the handler is tried once more, and gets the reply to the same call."""
    gates["a"] = anyio.Event()
    handle = await runtime.client.send(impatient, "acme/w", "a")

    async def is_tried_again() -> bool:
        return len(trail) >= 2

    await eventually(is_tried_again)
    gates["a"].set()
    assert await handle.result(timeout=10) == "a"
    told = await handle.describe()
    assert [step.name for step in told.steps] == ["call of Callee.hold at acme/c"]


@pytest.mark.counts_runs
async def test_a_sleep_lasts_at_least_as_long_as_asked(runtime: Runtime) -> None:
    """By the partition's own time, for many at once."""
    results: list[float] = []

    async def one(number: int) -> None:
        results.append(await runtime.client.call(nap, f"acme/n-{number}", 0.05 + number / 1000, timeout=10))

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(one, number)
    assert len(results) == 50
    assert min(results) >= 0.05
    assert trail.count("run") == 50


async def test_a_month_of_sleep_passes_when_the_clock_says_so(store_url: str, namespace: str) -> None:
    """Not before, over a change of the owner, and with the time that the handler sees."""
    month = timedelta(days=30)
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(nap, "acme/n", month.total_seconds())
        await waiting(runtime, handle)
        told = await handle.describe()
        assert told.waits_for is not None
        assert "sleep" in told.waits_for
        invocation_id = handle.id
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        await shift_clock(runtime, month - timedelta(minutes=1))
        handle = runtime.client.attach(invocation_id, float)
        assert (await handle.describe()).status == "waiting"
        await shift_clock(runtime, timedelta(minutes=1))
        assert await handle.result(timeout=10) >= month.total_seconds()


async def test_a_sleep_whose_due_time_was_lost_is_found_with_its_lane(store_url: str, namespace: str) -> None:
    """The record says how long it was to be, and its place in the stream says since when."""
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(nap, "acme/n", 60)
        await waiting(runtime, handle)
        invocation = parse_id(handle.id)
        space = runtime.client.space_of(invocation)
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        before = await runtime.client.store.call("ZSCORE", space.due, invocation.raw)
        await runtime.client.store.call("ZREM", space.due, invocation.raw)
        await runtime.client.send(note, "acme/n", "behind")

        async def is_restored() -> bool:
            return await runtime.client.store.call("ZSCORE", space.due, invocation.raw) is not None

        await eventually(is_restored)
        after = await runtime.client.store.call("ZSCORE", space.due, invocation.raw)
        assert abs(float(after) - float(before)) < 1_000


async def test_what_is_sent_for_later_is_scheduled_and_begins_when_it_is_due(runtime: Runtime) -> None:
    """It holds no lane meanwhile; others run in it."""
    handle = await runtime.client.send(note, "acme/late", "later", delay=timedelta(hours=1))
    assert not (await handle.accepted(timeout=10)).replayed
    told = await handle.describe()
    assert told.status == "scheduled"
    assert told.retry_due_at is not None
    assert told.retry_due_at - told.read_at > timedelta(minutes=59)
    assert await runtime.client.call(note, "acme/late", "now", timeout=10) == "now"

    await shift_clock(runtime, timedelta(hours=1))
    assert await handle.result(timeout=10) == "later"
    assert await runtime.client.call(words, "acme/late") == ["now", "later"]
    told = await handle.describe()
    assert told.status == "completed"


async def test_what_is_sent_for_later_enters_its_lane_in_the_order_of_the_due_times(
    store_url: str, namespace: str
) -> None:
    """Also when nobody was there at those times."""
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        delays = [50, 10, 40, 20, 30]
        ids = [(await runtime.client.send(note, "acme/late", str(delay), delay=delay)).id for delay in delays]
        inside = await runtime.client.call(send_later, "acme/s", [["15", 15], ["45", 45]], timeout=10)
        for each in [*ids, *inside]:
            handle = runtime.client.attach(each, str)

            async def is_scheduled(handle: Any = handle) -> bool:
                return (await handle.describe()).status == "scheduled"

            await eventually(is_scheduled)
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        await shift_clock(runtime, timedelta(minutes=2))
        for each in [*ids, *inside]:
            await runtime.client.attach(each, str).result(timeout=10)
        assert await runtime.client.call(words, "acme/late") == ["10", "15", "20", "30", "40", "45", "50"]


async def test_many_that_are_due_at_once_all_begin(runtime: Runtime) -> None:
    """More than one answer of the store holds, each once."""
    handles = [await runtime.client.send(note, f"acme/l-{number % 7}", str(number), delay=60) for number in range(600)]
    await handles[-1].accepted(timeout=10)

    async def are_scheduled() -> bool:
        return all([(await handle.describe()).status == "scheduled" for handle in handles[::100]])

    await eventually(are_scheduled)
    await shift_clock(runtime, timedelta(minutes=2))
    results = [await handle.result(timeout=20) for handle in handles]
    assert results == [str(number) for number in range(600)]
    for key in range(7):
        expected = [str(number) for number in range(600) if number % 7 == key]
        assert await runtime.client.call(words, f"acme/l-{key}") == expected


async def test_nothing_of_what_is_scheduled_stays_in_memory(runtime: Runtime) -> None:
    """A million reminders for next year cost their place in the store alone."""
    handles = [await runtime.client.send(note, f"acme/l-{number}", "x", delay=3_600) for number in range(20)]
    for handle in handles:
        await handle.accepted(timeout=10)

    async def is_empty() -> bool:
        return not any(partition.open or partition.lanes for partition in runtime.worker.partitions)

    await eventually(is_empty)


async def test_an_idempotency_key_holds_for_what_is_scheduled(runtime: Runtime) -> None:
    """The second one is the first one, before it has begun and after it has ended."""
    first = await runtime.client.send(note, "acme/late", "a", delay=60, idempotency_key="k")
    await first.accepted(timeout=10)
    second = await runtime.client.send(note, "acme/late", "a", delay=60, idempotency_key="k")
    assert (await second.accepted(timeout=10)).replayed
    other = await runtime.client.send(note, "acme/late", "b", delay=60, idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        await other.accepted(timeout=10)

    await shift_clock(runtime, timedelta(minutes=2))
    assert await first.result(timeout=10) == "a"
    assert await second.result(timeout=10) == "a"
    assert await runtime.client.call(note, "acme/late", "a", idempotency_key="k", timeout=10) == "a"
    assert await runtime.client.call(words, "acme/late") == ["a"]


async def test_a_shared_handler_can_not_be_asked_for_later(runtime: Runtime) -> None:
    """It leaves no history, so nothing could be kept of it."""
    with pytest.raises(CallError, match="leaves no history"):
        await runtime.client.send(words, "acme/late", delay=1)
    handle = await runtime.client.send("Caller", "acme/late", "words", delay=1)
    with pytest.raises(CallError, match="leaves no history"):
        await handle.accepted(timeout=10)


@pytest.mark.parametrize("delay", [-1, float("inf"), float("nan")])
async def test_a_delay_that_is_no_time_is_refused(runtime: Runtime, delay: float) -> None:
    """Before anything is sent."""
    with pytest.raises(ValueError, match="delay"):
        await runtime.client.send(note, "acme/late", "a", delay=delay)


async def test_a_blocking_client_sends_for_later_too(runtime: Runtime) -> None:
    """As the other one."""

    def send(url: str) -> str:
        with BlockingClient(url, namespace=runtime.namespace) as client:
            return client.send(note, "acme/late", "a", delay=timedelta(milliseconds=20)).result(timeout=10)

    assert await anyio.to_thread.run_sync(send, runtime.store_url) == "a"


async def test_code_that_asks_for_another_command_parks_the_invocation_as_diverged(
    store_url: str, namespace: str
) -> None:
    """With the recorded command, the attempted one, and the line of the code; for each kind of command."""
    recorded: list[str] = []
    for made, asked in (("send", "call"), ("call", "sleep"), ("sleep", "run"), ("run", "send"), ("send", "other")):
        async with Runtime([changing(made, asked), callee], store=store_url, namespace=namespace) as runtime:
            gates["g"] = anyio.Event()
            gates["g"].set()
            handle = await runtime.client.send("Changing", f"acme/{made}-{asked}", "work")
            recorded.append(await why_diverged(handle))
    assert recorded == [
        f"recorded command 0, send to {X}, the code now asks for command 0, call of {X}",
        f"recorded command 0, call of {X}, the code now asks for command 0, sleep of 0.001 s",
        "recorded command 0, sleep of 0.001 s, the code now asks for step 0 'step'",
        f"recorded step 0 'step', the code now asks for command 0, send to {X}",
        f"recorded command 0, send to {X}, the code now asks for command 0, send to Callee.hold at acme/y",
    ]


X = "Callee.hold at acme/x"


def changing(made: str, asked: str) -> VirtualObject:
    """Return a type whose handler asks for something else each time but the first."""
    runs: list[int] = []
    made_of = VirtualObject("Changing", owner="tests", partitions=1, retry=QUICK)

    @made_of.handler
    async def work(ctx: ObjectContext) -> None:  # pyright: ignore[reportUnusedFunction]
        runs.append(1)
        for what in (made if len(runs) == 1 else asked, "end"):
            await do(ctx, what)

    return made_of


async def why_diverged(handle: Any) -> str:
    """Wait until an invocation is paused as diverged, and return why, up to the line of the code."""

    async def is_paused() -> bool:
        return (await handle.describe()).status == "paused"

    await eventually(is_paused)
    pause = (await handle.describe()).pause
    assert pause is not None
    assert pause.reason == "diverged"
    why, _, line = pause.detail.partition(" at /")
    assert Path(__file__).name in line
    return why


async def do(ctx: ObjectContext, what: str) -> None:
    """Give one command, or fail so that the handler is tried again."""
    match what:
        case "send":
            await ctx.send(hold, "acme/x", "g")
        case "other":
            await ctx.send(hold, "acme/y", "g")
        case "call":
            await ctx.call(hold, "acme/x", "g")
        case "sleep":
            await ctx.sleep(0.001)
        case "run":
            await ctx.run("step", str, "x")
        case _:
            raise ValueError("once more")


@pytest.mark.counts_runs
async def test_a_wait_holds_over_a_pause(runtime: Runtime) -> None:
    """What comes for a paused invocation is recorded, and there when it is resumed."""
    gates["a"] = anyio.Event()
    stubborn = VirtualObject("Stubborn", owner="tests", partitions=1, retry=QUICK)
    is_broken = [True]

    @stubborn.handler
    async def work(ctx: ObjectContext) -> str:
        with anyio.move_on_after(0.01 if is_broken[0] else 10):
            return await ctx.call(hold, "acme/c", "a")
        return "gave up"

    async with Runtime([stubborn], store=runtime.store_url, namespace=runtime.namespace) as second:
        handle = await second.client.send(work, "acme/s")

        async def is_paused() -> bool:
            return (await handle.describe()).status == "paused"

        await eventually(is_paused)
        gates["a"].set()

        async def is_recorded() -> bool:
            return all(step.is_settled for step in (await handle.describe()).steps)

        await eventually(is_recorded)
        assert (await handle.describe()).status == "paused"
        is_broken[0] = False
        await second.client.resume(handle.id, reason="repaired", by="tests", timeout=10)
        assert await handle.result(timeout=10) == "a"


async def test_latency_of_a_call_without_faults_is_far_below_a_sweep(runtime: Runtime) -> None:
    """Hints are heard: a chain of twenty calls takes less than one sweep of waiting for each."""
    gates["a"] = anyio.Event()
    gates["a"].set()
    began = time.monotonic()
    for number in range(20):
        await runtime.client.call(call_it, f"acme/w-{number}", "a", timeout=10)
    assert time.monotonic() - began < 10
