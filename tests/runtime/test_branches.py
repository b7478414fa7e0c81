"""Several things at a time in one handler: gather, select, as_completed, task_group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import (
    App,
    BlockingObjectContext,
    DurableTask,
    InvocationFailed,
    ObjectContext,
    RetryPolicy,
    Runtime,
    TerminalError,
    VirtualObject,
)
from keylane.journal.command_records import StepAttemptFailed
from keylane.journal.key import parse_id
from keylane.runtime.branch_journal import BranchJournal
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=3)
gates: dict[str, anyio.Event] = {}
trail: list[str] = []

other = VirtualObject("Other", owner="tests", partitions=2)
crowd = VirtualObject("Crowd", owner="tests", partitions=1, state={"words": list[str], "count": int}, retry=QUICK)


@pytest.fixture(autouse=True)
def _afresh() -> None:
    gates.clear()
    trail.clear()


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(App([other, crowd]), store=store_url, namespace=namespace) as runtime:
        yield runtime


async def late(seconds: float, word: str) -> str:
    trail.append(word)
    await asyncio.sleep(seconds)
    return word


async def failing(seconds: float) -> str:
    await asyncio.sleep(seconds)
    raise TerminalError("it never works", code="never")


@other.handler
async def echo(ctx: ObjectContext, word: str) -> str:
    return word


@other.handler
async def hold(ctx: ObjectContext, name: str) -> str:
    await gates[name].wait()
    return name


async def call(runtime: Runtime, handler: Any, *rest: Any, key: str = "acme/c") -> Any:
    return await runtime.client.call(handler, key, *rest, timeout=20)


@crowd.handler
async def add_in_branches(ctx: ObjectContext, first: str) -> str:
    async def add(what: str) -> None:
        ctx.set("text", await ctx.get("text", str, "") + what)

    ctx.set("text", first)
    await ctx.gather(add("a"), add("b"))
    return await ctx.get("text", str, "")


@crowd.handler
async def gather_meeting(ctx: ObjectContext, count: int) -> list[str]:
    begun: list[str] = []
    all_begun = asyncio.Event()

    async def meet(word: str) -> str:
        begun.append(word)
        if len(begun) == count:
            all_begun.set()
        await all_begun.wait()
        return word

    return list(await ctx.gather(*(ctx.run(f"s{n}", meet, str(n)) for n in range(count))))


@crowd.handler
async def gather_steps(ctx: ObjectContext, seconds: list[float]) -> list[str]:
    return list(await ctx.gather(*(ctx.run(f"s{n}", late, each, str(n)) for n, each in enumerate(seconds))))


@pytest.mark.counts_runs
async def test_gather_runs_steps_at_a_time_and_keeps_the_order_of_the_arguments(runtime: Runtime) -> None:
    """Whatever the order is in which they end: each of them waits until all have begun."""
    assert await call(runtime, gather_steps, [0.3, 0.2, 0.1, 0.0]) == ["0", "1", "2", "3"]
    assert await call(runtime, gather_meeting, 4) == ["0", "1", "2", "3"]


@crowd.handler
async def gather_all_kinds(ctx: ObjectContext) -> list[Any]:
    async def own(word: str) -> str:
        first = await ctx.run("own", late, 0.01, word)
        return first + str(await ctx.get("count", int, 0))

    ctx.set("count", 3)
    sent, called, slept, stepped, mine = await ctx.gather(
        ctx.send(echo, "acme/e", "sent"),
        ctx.call(echo, "acme/e", "called"),
        ctx.sleep(0.02),
        ctx.run("step", late, 0.01, "stepped"),
        own("own"),
    )
    return [sent.id.partition(".")[0], called, slept, stepped, mine]


async def test_gather_takes_steps_calls_sends_timers_and_coroutines(runtime: Runtime) -> None:
    """All that ctx gives, and the handler's own functions that use it."""
    assert await call(runtime, gather_all_kinds) == ["Other", "called", None, "stepped", "own3"]


@crowd.handler
async def gather_failing(ctx: ObjectContext) -> str:
    async def cleaning(word: str) -> str:
        try:
            return await ctx.run(word, late, 30, word)
        finally:
            trail.append(await ctx.run("cleanup", late, 0, "cleaned up"))

    try:
        await ctx.gather(cleaning("slow"), ctx.run("bad", failing, 0.02), ctx.sleep(timedelta(days=1)))
    except TerminalError as error:
        return error.code
    return "went on"


async def test_the_first_failure_of_a_gather_cancels_the_others_and_is_raised_itself(runtime: Runtime) -> None:
    """Their cleanup may await ctx, and ends before it is raised."""
    assert await call(runtime, gather_failing) == "never"
    assert trail[-1] == "cleaned up"


@crowd.handler
async def race(ctx: ObjectContext, name: str) -> str:
    match await ctx.select(reply=ctx.call(hold, "acme/h", name), timeout=ctx.sleep(timedelta(days=30))):
        case "reply", answer:
            ctx.set("words", [str(answer)])
            await ctx.run("after", late, 0, "after")
            return f"replied {answer}"
        case _:
            return "too late"


async def due_of(runtime: Runtime, invocation_id: str) -> Any:
    """Return the due time of an invocation in the store."""
    store, at = runtime.client.store, parse_id(invocation_id)
    space = store.space(at.type_name, at.partition)
    return await store.call("ZSCORE", space.due, at.raw)


async def test_the_loser_of_a_race_leaves_no_timer(runtime: Runtime) -> None:
    """After the answer came, nothing is due any more, and the invocation has ended."""
    gates["a"] = anyio.Event()
    handle = await runtime.client.send(race, "acme/c", "a")

    async def is_due() -> Any:
        return await due_of(runtime, handle.id)

    await eventually(is_due)
    gates["a"].set()
    assert await handle.result(timeout=10) == "replied a"
    assert await due_of(runtime, handle.id) is None
    assert (await handle.describe()).status == "completed"


@crowd.handler
async def race_timers(ctx: ObjectContext) -> str:
    name, _ = await ctx.select(
        slow=ctx.sleep(timedelta(days=1)), quick=ctx.sleep(0.02), step=ctx.run("s", late, 9, "x")
    )
    return name


async def test_the_earliest_of_several_timers_wins(runtime: Runtime) -> None:
    """Whichever was set first."""
    assert await call(runtime, race_timers) == "quick"


@crowd.handler
async def in_order_of_ends(ctx: ObjectContext) -> list[str]:
    steps = [ctx.run(word, late, seconds, word) for word, seconds in [("b", 0.1), ("a", 0)]]
    return [await done async for done in ctx.as_completed(*steps)]


async def test_as_completed_gives_each_when_it_has_ended(runtime: Runtime) -> None:
    """In the order of the ends."""
    assert await call(runtime, in_order_of_ends) == ["a", "b"]


@crowd.handler
async def group_of_tasks(ctx: ObjectContext) -> list[str]:
    async with ctx.task_group() as group:
        slow = group.create_task(ctx.run("slow", late, 0.05, "slow"))
        doomed = group.create_task(ctx.sleep(timedelta(days=3)))
        own = await ctx.run("in the block", late, 0, "block")
        name, value = await ctx.select(slow=slow, timer=ctx.sleep(timedelta(hours=1)))
        doomed.cancel()
    return [own, name, str(value), str(doomed.is_cancelled), await slow]


async def test_a_task_of_a_group_is_raced_awaited_again_and_cancelled(runtime: Runtime) -> None:
    """It is the user's: no race cancels it."""
    assert await call(runtime, group_of_tasks) == ["block", "slow", "slow", "True", "slow"]


@crowd.handler
async def group_with_a_failure(ctx: ObjectContext) -> list[str]:
    caught: list[str] = []
    tasks: list[DurableTask[None]] = []
    try:
        async with ctx.task_group() as group:
            group.create_task(ctx.run("bad", failing, 0.02))
            tasks.append(group.create_task(ctx.sleep(timedelta(days=1))))
            await ctx.sleep(timedelta(days=2))
    except* TerminalError as errors:
        caught.extend(str(error) for error in errors.exceptions)
    return [*caught, str(tasks[0].is_cancelled), await ctx.run("after", late, 0, "after")]


async def test_a_failure_in_a_group_ends_its_block_and_its_other_branches(runtime: Runtime) -> None:
    """It is raised as it is, and the handler goes on after it."""
    assert await call(runtime, group_with_a_failure) == ["it never works", "True", "after"]


@crowd.handler
async def foreign(ctx: ObjectContext, how: str) -> str:
    try:
        match how:
            case "asyncio.gather":
                await asyncio.gather(ctx.run("a", late, 0, "a"), ctx.run("b", late, 0, "b"))
            case "anyio":
                async with anyio.create_task_group() as group:
                    group.start_soon(ctx.sleep, 1)
            case "create_task":
                await ctx.gather(asyncio.create_task(asyncio.sleep(0)))
            case _:
                async with asyncio.TaskGroup() as group:
                    group.create_task(ctx.sleep(1))
    except (RuntimeError, TypeError, ExceptionGroup) as error:
        told = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        raise TerminalError(str(told)) from error
    return "went on"


@pytest.mark.parametrize("how", ["asyncio.gather", "anyio", "create_task", "TaskGroup"])
async def test_tasks_of_others_are_refused_with_the_name_of_what_to_use(runtime: Runtime, how: str) -> None:
    """Their order is not recorded, so no replay could repeat it."""
    with pytest.raises(InvocationFailed, match=r"ctx\.gather|ctx\.task_group"):
        await call(runtime, foreign, how)


@crowd.handler
async def with_a_semaphore(ctx: ObjectContext) -> list[str]:
    limit = asyncio.Semaphore(2)

    async def one(number: int) -> str:
        async with limit:
            return await ctx.run(f"s{number}", late, 0.01, str(number))

    return list(await ctx.gather(*(one(number) for number in range(6))))


async def test_branches_may_wait_for_each_other_with_locks_of_asyncio(runtime: Runtime) -> None:
    """A semaphore bounds how many steps run at a time."""
    assert await call(runtime, with_a_semaphore) == ["0", "1", "2", "3", "4", "5"]


@crowd.handler
def blocking(ctx: BlockingObjectContext) -> str:
    try:
        ctx.gather  # type: ignore[attr-defined]  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    except Exception as error:
        raise TerminalError(str(error)) from error
    return "went on"


async def test_a_plain_function_is_told_to_become_an_async_one(runtime: Runtime) -> None:
    """It does one thing after the other."""
    with pytest.raises(InvocationFailed, match="async def"):
        await call(runtime, blocking)


@crowd.handler
async def stubborn_steps(ctx: ObjectContext) -> int:
    failed: dict[int, int] = {}

    async def third_time(number: int) -> int:
        failed[number] = failed.get(number, 0) + 1
        if failed[number] < 3:
            raise ValueError(number)
        return number

    return sum(await ctx.gather(*(ctx.run(f"s{number}", third_time, number) for number in range(20))))


@pytest.mark.counts_runs
async def test_steps_of_branches_are_tried_again_each_when_it_is_due(runtime: Runtime) -> None:
    """Also where that is before its branch has come to wait for it."""
    for number in range(5):
        assert await call(runtime, stubborn_steps, key=f"acme/stubborn-{number}") == sum(range(20))


@pytest.mark.counts_runs
async def test_a_retry_that_is_due_before_its_branch_waits_for_it_is_not_missed(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would tell it once more."""
    noted = BranchJournal._note_due  # pyright: ignore[reportPrivateUsage]

    def note_and_fall_due(journal: Any, fact: Any, now_ms: int) -> None:
        noted(journal, fact, now_ms)
        if isinstance(fact, StepAttemptFailed):
            journal._waits._fall_due(journal._lane.partition, journal._invocation, fact.index)

    monkeypatch.setattr(BranchJournal, "_note_due", note_and_fall_due)
    assert await call(runtime, stubborn_steps) == sum(range(20))


@crowd.handler
async def foreign_in_a_branch(ctx: ObjectContext) -> str:
    async def own() -> str:
        try:
            return "".join(await asyncio.gather(ctx.run("a", late, 0, "a"), ctx.run("b", late, 0, "b")))
        except RuntimeError as error:
            return str(error)

    told, _ = await ctx.gather(own(), ctx.run("c", late, 0, "c"))
    return told


async def test_tasks_of_others_are_refused_inside_of_branches_too(runtime: Runtime) -> None:
    """No branch is taken for another one."""
    assert "ctx.gather" in await call(runtime, foreign_in_a_branch)


@crowd.handler
async def won_at_once(ctx: ObjectContext, name: str) -> str:
    async def at_once() -> str:
        return "at once"

    winner, _ = await ctx.select(timer=ctx.sleep(timedelta(days=1)), own=at_once())
    await ctx.run("wait", gates[name].wait)
    return winner


async def test_a_timer_that_is_lost_on_its_way_to_the_store_leaves_nothing_there(runtime: Runtime) -> None:
    """What it is due for is taken away before the store has told when that is."""
    gates["w"] = anyio.Event()
    handle = await runtime.client.send(won_at_once, "acme/w", "w")

    async def is_withdrawn() -> bool:
        return (await handle.describe()).records >= 3

    # Accepted, TimerSet and WaitWithdrawn are durable; what is written after them is written in order.
    await eventually(is_withdrawn)
    partition = next(each for each in runtime.worker.partitions if each.number == parse_id(handle.id).partition)

    async def is_idle() -> bool:
        return partition.writer.is_idle

    await eventually(is_idle)
    assert await due_of(runtime, handle.id) is None
    gates["w"].set()
    assert await handle.result(timeout=10) == "own"


@pytest.mark.parametrize("length", range(18, 26))
async def test_branches_do_not_come_between_reading_a_small_value_and_writing_it(runtime: Runtime, length: int) -> None:
    """Of whatever length it is: one that is as long as the reference to a large value is no reference."""
    assert await call(runtime, add_in_branches, "x" * length) == "x" * length + "ab"
