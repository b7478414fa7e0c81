"""When the results of steps are written, mode by mode, as seen in the store and by the handler itself."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from keylane import (
    BlockingObjectContext,
    InvocationFailed,
    ObjectContext,
    RegistrationError,
    RetryableError,
    RetryPolicy,
    Runtime,
    SharedContext,
    TerminalError,
    VirtualObject,
)
from keylane.journal.command_records import CompensationStarted, StepAttemptFailed, StepCompleted
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.record_bytes import decode
from keylane.journal.records import Accepted, AttemptFailed, Completed, Failed, Record
from keylane.objects.settings import Settings
from keylane.runtime.checkpoints import IN_FLIGHT_MAX, KEPT_BACK_MAX
from keylane.runtime.context import ExclusiveContext
from tests.faults.harness import eventually
from tests.plain import plain

pytestmark = pytest.mark.anyio

KEY = "acme/one"
QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=3)
LARGE = 100_000
desk = VirtualObject("Desk", owner="tests", partitions=1, state={"count": int}, retry=QUICK)
ran: Counter[str] = Counter()
seen: list[Any] = []
gate = asyncio.Event()
hook: list[Any] = []


async def step(name: str) -> str:
    """Count how often it ran."""
    ran[name] += 1
    return name


def plain_step(name: str) -> str:
    """Do the same, in a thread."""
    ran[name] += 1
    return name


async def large(name: str) -> bytes:
    ran[name] += 1
    return b"x" * LARGE


async def fail_once(name: str) -> str:
    ran[name] += 1
    if ran[name] == 1:
        raise RetryableError("not yet", retry_after=3600)
    return name


async def stumble(name: str) -> str:
    ran[name] += 1
    if ran[name] == 1:
        raise ValueError("once")
    return name


async def refuse(name: str) -> None:
    ran[name] += 1
    raise TerminalError(f"{name} is not possible")


@desk.handler(checkpoint="exit")
async def short(ctx: ObjectContext) -> list[str]:
    """Run three steps, and nothing else that has to be durable."""
    names = [await ctx.run(name, step, name) for name in ("a", "b", "c")]
    ctx.set("count", await ctx.get("count", int, 0) + 1)
    return names


@desk.handler(checkpoint="exit")
async def count_between_steps(ctx: ObjectContext) -> int:
    """Write and read between steps, and fail once behind them."""
    ctx.set("count", 1)
    await ctx.run("a", step, "a")
    seen.append(await ctx.get("count", int, 0))
    seen.append(await ctx.state_keys())
    await ctx.run("b", step, "b")
    ctx.set("count", 2)
    await ctx.run("c", step, "c")
    if ctx.attempt == 1:
        raise ValueError("once")
    return await ctx.get("count", int, 0)


@desk.handler(checkpoint="exit")
async def give_up(ctx: ObjectContext) -> None:
    """Write, run a step, and fail for good."""
    ctx.set("count", 7)
    await ctx.run("a", step, "a")
    raise TerminalError("no")


@desk.handler(checkpoint="exit")
async def wait_for_an_attempt(ctx: ObjectContext) -> list[str]:
    """Run a step, and one whose second attempt is due in an hour."""
    first = await ctx.run("a", step, "a")
    return [first, await ctx.run("b", fail_once, "b")]


@desk.handler(checkpoint="exit")
async def stumble_twice(ctx: ObjectContext) -> list[str]:
    """Run two steps, each of which succeeds at its second attempt."""
    return [await ctx.run(name, stumble, name, retry=QUICK) for name in ("a", "b")]


@desk.handler(checkpoint="exit")
async def on_lost_ground(ctx: ObjectContext) -> list[str]:
    """Run a step, and one while which the lane loses what it was built on; fail once behind them."""
    names = [await ctx.run("a", step, "a"), await ctx.run("b", hook[0])]
    if ctx.attempt == 1:
        raise ValueError("once")
    return names


@desk.handler(checkpoint="exit")
async def refused_step(ctx: ObjectContext) -> str:
    """Go on after a step that failed for good, and fail once behind it."""
    try:
        await ctx.run("a", refuse, "a")
    except TerminalError as error:
        message = error.message
    else:
        message = "nothing"
    if ctx.attempt == 1:
        raise ValueError("once")
    return message


@desk.handler(checkpoint="exit")
async def many(ctx: ObjectContext, count: int) -> int:
    """Run many steps, and wait outside of any step."""
    for name in map(str, range(count)):
        await ctx.run("a", step, name)
    await gate.wait()
    return count


@desk.handler(checkpoint="exit")
async def large_values(ctx: ObjectContext) -> int:
    """Keep a large result back, and fail once behind it."""
    found = await ctx.run("a", large, "a")
    if ctx.attempt == 1:
        raise ValueError("once")
    return len(found)


@desk.handler(checkpoint="exit")
async def branches_after_steps(ctx: ObjectContext) -> list[str]:
    """Run a step, then two in branches, then another, and fail once behind them."""
    first = await ctx.run("a", step, "a")
    two = await ctx.gather(ctx.run("b", step, "b"), ctx.run("c", step, "c"))
    last = await ctx.run("d", step, "d")
    if ctx.attempt == 1:
        raise ValueError("once")
    return [first, *two, last]


@desk.handler(checkpoint="async")
async def branches_after_steps_meanwhile(ctx: ObjectContext) -> list[str]:
    """Do the same while results are on their way."""
    return await branches_after_steps.function(ctx)


@desk.handler(checkpoint="exit")
async def undone(ctx: ObjectContext) -> None:
    """Fail for good behind steps of which one is undone, and a write that nothing has made durable."""
    ctx.set("count", 1)
    await ctx.run("a", step, "a")
    ctx.compensate("a", step, "undo a")
    await ctx.run("b", step, "b")
    ctx.set("count", 2)
    raise TerminalError("no")


@desk.handler(checkpoint="async")
async def undone_meanwhile(ctx: ObjectContext) -> None:
    """Do the same while results are on their way."""
    await undone.function(ctx)


@desk.handler(checkpoint="async")
async def far_ahead(ctx: ObjectContext, count: int) -> int:
    """Run steps that give way to nobody, and note how far the code is ahead of its records."""
    assert isinstance(ctx, ExclusiveContext)
    for number in range(count):
        await ctx.run("a", step, f"a-{number}")
        seen.append(ctx.in_flight)
    return count


@desk.handler(checkpoint="async")
async def built_on_sand(ctx: ObjectContext) -> int:
    """Run a step whose result the store refuses, and go on meanwhile."""
    ctx.set("count", await ctx.get("count", int, 0) + 1)
    found = await ctx.run("a", large, "a")
    await ctx.run("b", hook[0])
    return len(found)


@desk.handler(checkpoint="async")
def in_a_thread(ctx: BlockingObjectContext) -> list[str]:
    """Run steps from a thread."""
    return [ctx.run(name, plain_step, name) for name in ("a", "b", "c")]


@desk.handler(checkpoint="exit")
def in_a_thread_at_its_exit(ctx: BlockingObjectContext) -> list[str]:
    """Run steps from a thread."""
    return [ctx.run(name, plain_step, name) for name in ("a", "b", "c")]


@desk.shared
async def read(ctx: SharedContext) -> int:
    return await ctx.get("count", int, 0)


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    ran.clear()
    seen.clear()
    hook.clear()
    gate.clear()
    settings = Settings(blob_threshold_bytes=10_000)
    async with Runtime([desk], store=store_url, namespace=namespace, settings=settings) as runtime:
        yield runtime
        # A handler that a failed test has left waiting would keep the runtime open.
        gate.set()


def space_of(runtime: Runtime) -> PartitionSpace:
    return runtime.client.store.space("Desk", 0)


def records(url: str, runtime: Runtime) -> list[Record]:
    """Return the records of the only invocation that has a stream."""
    streams = plain(url, "KEYS", space_of(runtime).tag + b":i:*")
    assert len(streams) <= 1
    return [decode(fields[b"r"]) for stream in streams for _, fields in plain(url, "XRANGE", stream, "-", "+")]


def kinds(url: str, runtime: Runtime) -> list[type]:
    return [type(record) for record in records(url, runtime)]


def batches(runtime: Runtime) -> int:
    return runtime.worker.partitions[0].writer.number


@pytest.mark.parametrize("mode", ["", "none", "SYNC", None])
def test_a_mode_that_does_not_exist_is_refused_at_registration(mode: Any) -> None:
    """The error names the parameter and what it may be."""
    other = VirtualObject("Other", owner="tests")

    with pytest.raises(RegistrationError, match=re.escape(f"checkpoint is {mode!r}")) as refused:
        other.handler(checkpoint=mode)(short.function)

    assert refused.value.parameter == "checkpoint"
    assert '"sync", "async" or "exit"' in refused.value.remedy


def test_results_are_written_before_the_code_goes_on_unless_a_handler_says_otherwise() -> None:
    """Sync is the default."""
    other = VirtualObject("Other", owner="tests")

    assert other.handler(name="short")(short.function).checkpoint == "sync"


async def test_an_exit_handler_without_a_durable_point_is_one_short_commit(runtime: Runtime, store_url: str) -> None:
    """Its steps leave nothing: no stream, no records, and one entry of its object."""
    await runtime.client.call(read, KEY)
    before = batches(runtime)
    assert await runtime.client.call(short, KEY) == ["a", "b", "c"]

    assert batches(runtime) == before + 1
    assert records(store_url, runtime) == []
    assert plain(store_url, "XLEN", space_of(runtime).object(KEY)) == 1
    assert await runtime.client.call(read, KEY) == 1


async def test_what_an_exit_handler_kept_back_is_written_when_an_attempt_fails(
    runtime: Runtime, store_url: str
) -> None:
    """The next attempt runs no step again and sees between them what the first one saw."""
    assert await runtime.client.call(count_between_steps, KEY) == 2

    assert ran == {"a": 1, "b": 1, "c": 1}
    assert seen == [1, ["count"], 1, ["count"]]
    assert kinds(store_url, runtime) == [Accepted, *[StepCompleted] * 3, AttemptFailed, Completed]
    assert await runtime.client.call(read, KEY) == 2


async def test_an_exit_handler_that_fails_takes_back_what_it_wrote_before_its_steps(runtime: Runtime) -> None:
    """Its steps are no durable points."""
    with pytest.raises(InvocationFailed):
        await runtime.client.call(give_up, KEY)

    assert await runtime.client.call(read, KEY) == 0


async def test_a_failed_attempt_of_a_step_is_a_durable_point_of_an_exit_handler(
    runtime: Runtime, store_url: str
) -> None:
    """What was kept back is written with it, since the wait for the next attempt may outlive the process."""
    await runtime.client.send(wait_for_an_attempt, KEY)
    await eventually(lambda: StepAttemptFailed in kinds(store_url, runtime), "the attempt is recorded")

    assert kinds(store_url, runtime) == [Accepted, StepCompleted, StepAttemptFailed]
    assert ran == {"a": 1, "b": 1}


async def test_attempts_are_counted_for_each_step_by_itself(runtime: Runtime, store_url: str) -> None:
    """Also where the result of the step before is not written yet."""
    assert await runtime.client.call(stumble_twice, KEY) == ["a", "b"]

    assert ran == {"a": 2, "b": 2}
    attempts = [each.attempt for each in records(store_url, runtime) if isinstance(each, StepAttemptFailed)]
    assert attempts == [1, 1]


async def test_what_a_run_kept_back_that_was_thrown_away_is_not_written_by_the_next(
    runtime: Runtime, store_url: str
) -> None:
    """The next run has results of its own."""
    blobs = space_of(runtime).blobs(KEY)

    async def lose_ground() -> str:
        ran["b"] += 1
        if ran["b"] == 1:
            lane = runtime.worker.partitions[0].lanes[KEY]
            lane.commit([(b"h", blobs, b"digest", b"value")])
            await eventually(lambda: lane.error is not None or lane.refusals, "the store has refused it")
            plain(store_url, "DEL", blobs)
        return "b"

    hook.append(lose_ground)
    plain(store_url, "SET", blobs, "foreign")

    assert await runtime.client.call(on_lost_ground, KEY) == ["a", "b"]
    assert ran == {"a": 2, "b": 2}


async def test_a_step_that_failed_for_good_is_kept_back_like_any_result(runtime: Runtime) -> None:
    """It is not tried again by the next attempt of the handler."""
    assert await runtime.client.call(refused_step, KEY) == "a is not possible"

    assert ran == {"a": 1}


async def test_an_exit_handler_keeps_a_bounded_number_of_results_back(runtime: Runtime, store_url: str) -> None:
    """One commit has to hold them all."""
    count = 2 * KEPT_BACK_MAX + 50
    handle = await runtime.client.send(many, KEY, count)
    await eventually(lambda: len(ran) == count, "all steps ran")

    assert kinds(store_url, runtime) == [Accepted, *[StepCompleted] * (2 * KEPT_BACK_MAX)]
    gate.set()
    assert await handle.result(timeout=10) == count
    assert kinds(store_url, runtime) == [Accepted, *[StepCompleted] * count, Completed]


async def test_a_large_result_that_was_kept_back_is_written_apart(runtime: Runtime, store_url: str) -> None:
    """Its record refers to it, and a replay finds it."""
    assert await runtime.client.call(large_values, KEY) == LARGE

    assert ran == {"a": 1}
    assert plain(store_url, "HLEN", space_of(runtime).blobs(KEY)) == 1


@pytest.mark.parametrize("handler", [branches_after_steps, branches_after_steps_meanwhile])
@pytest.mark.counts_runs
async def test_branches_go_on_from_results_that_are_not_written_yet(runtime: Runtime, handler: Any) -> None:
    """Whatever the mode, the journal has them in the order in which the code saw them."""
    assert await runtime.client.call(handler, KEY) == ["a", "b", "c", "d"]

    assert ran == {"a": 1, "b": 1, "c": 1, "d": 1}


@pytest.mark.parametrize("handler", [undone, undone_meanwhile])
@pytest.mark.counts_runs
async def test_undoing_begins_from_what_the_journal_has(runtime: Runtime, store_url: str, handler: Any) -> None:
    """To begin it is a durable point, and each undo is written before the next one begins."""
    with pytest.raises(InvocationFailed):
        await runtime.client.call(handler, KEY)

    assert ran == {"a": 1, "b": 1, "undo a": 1}
    assert await runtime.client.call(read, KEY) == 1
    written = [each.name if isinstance(each, StepCompleted) else type(each) for each in records(store_url, runtime)]
    assert written == [Accepted, "a", "b", CompensationStarted, "undo a", Failed]


async def test_an_async_run_that_is_ended_goes_on_behind_what_it_had_on_its_way(runtime: Runtime) -> None:
    """The next run begins once it is known what of it is durable: no step of it runs twice."""
    runtime.worker.force("replay")

    assert await runtime.client.call(far_ahead, KEY, 5, timeout=10) == 5

    assert ran == {f"a-{number}": 1 for number in range(5)}


@pytest.mark.counts_runs
async def test_an_async_handler_is_a_bounded_number_of_results_ahead_of_its_records(
    runtime: Runtime, store_url: str
) -> None:
    """So is what a crash costs."""
    count = 3 * IN_FLIGHT_MAX
    assert await runtime.client.call(far_ahead, KEY, count) == count

    assert max(seen) == IN_FLIGHT_MAX
    assert kinds(store_url, runtime) == [Accepted, *[StepCompleted] * count, Completed]


@pytest.mark.counts_runs
async def test_what_an_async_handler_built_on_a_refused_result_is_thrown_away(runtime: Runtime, store_url: str) -> None:
    """It runs again from what is durable, and answers once, with state that counts it once."""
    blobs = space_of(runtime).blobs(KEY)
    refused = asyncio.Event()

    async def go_on() -> None:
        ran["b"] += 1
        if ran["b"] == 1:
            lane = runtime.worker.partitions[0].lanes[KEY]
            await eventually(lambda: lane.error is not None or lane.refusals, "the store has refused it")
            plain(store_url, "DEL", blobs)
            refused.set()

    hook.append(go_on)
    plain(store_url, "SET", blobs, "foreign")
    result = await runtime.client.call(built_on_sand, KEY)

    assert refused.is_set()
    assert result == LARGE
    assert ran == {"a": 2, "b": 2}
    assert await runtime.client.call(read, KEY) == 1


@pytest.mark.parametrize("handler", [in_a_thread, in_a_thread_at_its_exit])
async def test_plain_functions_have_the_same_modes(runtime: Runtime, store_url: str, handler: Any) -> None:
    """Their steps are written by the same rules."""
    assert await runtime.client.call(handler, KEY) == ["a", "b", "c"]

    assert ran == {"a": 1, "b": 1, "c": 1}
    if handler is in_a_thread:
        assert kinds(store_url, runtime) == [Accepted, *[StepCompleted] * 3, Completed]
