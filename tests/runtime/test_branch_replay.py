"""Replays of handlers with branches: whatever ends a run, the next one sees all that it saw, in the same order."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from itertools import count
from typing import Any, cast

import anyio
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from keylane import App, Client, ObjectContext, Runtime, Settings, TerminalError, VirtualObject, WaitTimeout
from keylane.journal.command_records import WaitWithdrawn
from keylane.journal.key import parse_id
from keylane.journal.record_bytes import decode
from keylane.testing import shift_clock
from tests.branch_programs import app, chance, check_runs, play, programs, refuse, seen

pytestmark = pytest.mark.anyio

EXAMPLES = 30
given_programs = given(program=programs, seed=st.integers(0, 1 << 16))
often = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
#: A worker that ends at once cuts off what runs, and what is on its way to the store.
HASTY = Settings(drain_limit_seconds=0.01, lease_seconds=1, renewal_seconds=0.2)

crew = VirtualObject("Crew", owner="tests", partitions=4)
code: dict[str, Any] = {}


@crew.handler
async def work(ctx: ObjectContext, name: str) -> Any:
    return await code[name](ctx)


async def token(name: str, seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    return f"{name} {secrets.token_hex(3)}"


@pytest.fixture(params=["as is", "suspend", "replay"])
async def forced(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store_url: str, namespace: str
) -> AsyncIterator[tuple[Runtime, str]]:
    """Give a runtime in which runs end for nothing, and how often."""
    monkeypatch.setenv("KEYLANE_TEST_FORCE", "" if request.param == "as is" else request.param)
    async with Runtime(App([*app.objects.values(), crew]), store=store_url, namespace=namespace) as runtime:
        yield runtime, request.param


@often
@given_programs
async def test_each_run_of_a_generated_handler_sees_what_the_one_before_it_saw(
    forced: tuple[Runtime, str], program: list[Any], seed: int
) -> None:
    """As it is there is one run; with suspension or replay at each durable point there are many."""
    runtime, mode = forced
    chance.seed(seed)
    key = secrets.token_hex(4)
    result = await runtime.client.call(play, f"acme/{key}", program, timeout=20)
    assert as_plain(result) == as_plain(seen[key][-1])
    runs = check_runs(key)
    if mode == "as is":
        assert runs == 1


def as_plain(saw: list[Any]) -> list[Any]:
    """Return what a run saw as it is once it has been written down and read."""
    return [plain(each) for each in saw]


def plain(value: Any) -> Any:
    """Return a value as it is once it has been written down and read."""
    return [plain(each) for each in cast("list[Any]", value)] if isinstance(value, list | tuple) else value


async def taken_over_until_done(
    url: str, namespace: str, send: Any, objects: App, *, stay_seconds: float = 0.02
) -> list[Any]:
    """Have one worker after the other begin work and be cut off, until all of it is done; returns the results."""
    async with Client(url, namespace=namespace) as client:
        handles: list[Any] = []
        for round_number in range(40):
            async with Runtime(objects, store=url, namespace=namespace, settings=HASTY, durability="server"):
                handles = handles or [await client.send(*each) for each in send]
                await asyncio.sleep(stay_seconds * (1 + round_number / 4))
            told = [await client.describe(handle.id) for handle in handles]
            assert {each.status for each in told} <= {"queued", "running", "waiting", "completed"}, told
            if all(each.status == "completed" for each in told):
                break
        return [await handle.result(timeout=10) for handle in handles]


@pytest.mark.slow
@pytest.mark.counts_runs
async def test_generated_handlers_are_taken_over_again_and_again(store_url: str, namespace: str) -> None:
    """Each owner finds in the journal what the one before it has seen; seeds are printed with what differs."""
    chance.seed(7)
    examples = [program_of(random.Random(seed)) for seed in range(40)]
    send = [(play, f"acme/kill-{number}", each) for number, each in enumerate(examples)]
    results = await taken_over_until_done(store_url, namespace, send, app)
    for number, result in enumerate(results):
        assert as_plain(result) == as_plain(seen[f"kill-{number}"][-1])
        check_runs(f"kill-{number}")


def program_of(source: random.Random, depth: int = 0) -> list[Any]:
    """Return a program drawn from a seed."""
    return [command_of(source, depth) for _ in range(source.randint(1, 3))]


def command_of(source: random.Random, depth: int) -> list[Any]:
    """Return one command of a program."""
    if depth < 3 and source.random() < (0.75, 0.35, 0.2)[depth]:
        kind = source.choice(["gather", "select", "as_completed", "group"])
        return [kind, [program_of(source, depth + 1) for _ in range(source.randint(1, 3))]]
    kind = source.choice(["step", "falter", "sleep", "call", "send", "refused", "get", "set", "keys", "time", "uuid"])
    return [kind, source.choice("ab") if kind in ("get", "set") else source.choice(["x", "yy"])]


@pytest.mark.slow
async def test_a_gather_of_steps_is_recorded_in_an_order_that_another_worker_follows(
    store_url: str, namespace: str
) -> None:
    """Five steps with random delays, cut off and replayed by another worker two hundred times: no mismatch."""
    chance.seed(11)
    saw: dict[str, list[list[str]]] = {}

    async def five(ctx: ObjectContext) -> list[str]:
        mine: list[str] = []
        saw.setdefault(ctx.key.key, []).append(mine)

        async def one(number: int) -> str:
            got = await ctx.run(f"step {number}", token, str(number), chance.random() / 2)
            mine.append(got)
            return got

        return list(await ctx.gather(*(one(number) for number in range(5))))

    code["five"] = five
    keys = [f"five-{number}" for number in range(500)]
    while sum(len(each) - 1 for each in saw.values()) < 200:
        some, keys = keys[:50], keys[50:]
        send = [(work, f"acme/{key}", "five") for key in some]
        results = await taken_over_until_done(store_url, namespace, send, App([crew]), stay_seconds=0.12)
        for key, result in zip(some, results, strict=True):
            last = saw[key][-1]
            assert sorted(last) == sorted(result)
            assert all(run == last[: len(run)] for run in saw[key])


async def test_timers_of_branches_outlive_their_owner_and_are_never_early(store_url: str, namespace: str) -> None:
    """Each is due when it was to be, by the partition's time, whatever the store's one entry says."""

    async def naps(ctx: ObjectContext) -> list[float]:
        began = await ctx.time()
        await ctx.run("begin", token, "begin")

        async def nap(hours: int) -> float:
            await ctx.sleep(timedelta(hours=hours))
            await ctx.run("woke", token, "woke")
            return ((await ctx.time()) - began).total_seconds() / 3600

        return list(await ctx.gather(nap(3), nap(1), nap(2)))

    code["naps"] = naps
    objects = App([crew])
    async with Client(store_url, namespace=namespace) as client:
        async with Runtime(objects, store=store_url, namespace=namespace) as runtime:
            handle = await client.send(work, "acme/naps", "naps")
            await until(client, handle, "waiting", steps=4)
            await shift_clock(runtime, timedelta(hours=1, seconds=1))
            await until(client, handle, "waiting", steps=5)
        async with Runtime(objects, store=store_url, namespace=namespace) as runtime:
            await shift_clock(runtime, timedelta(hours=1))
            # What is written while the clock is put forward counts from the new time.
            await until(client, handle, "waiting", steps=6)
            await shift_clock(runtime, timedelta(hours=1))
            woke = await handle.result(timeout=20)
    assert [int(hours) for hours in woke] == [3, 1, 2] or woke[1] < woke[2] <= woke[0]
    assert min(woke[0] - 3, woke[1] - 1, woke[2] - 2) >= 0


async def until(client: Client, handle: Any, status: str, steps: int) -> None:
    """Wait until an invocation has a status, and so many commands."""
    with anyio.fail_after(20):
        while True:
            told = await client.describe(handle.id)
            if told.status == status and len(told.steps) >= steps:
                return
            await anyio.sleep(0.01)


async def test_what_decided_that_a_wait_is_given_up_is_recorded_with_its_end(
    forced: tuple[Runtime, str],
) -> None:
    """A note that nothing else has recorded would be another one in the next run."""
    runtime, _ = forced

    async def decides(ctx: ObjectContext) -> str:
        async with ctx.task_group() as group:
            doomed = group.create_task(ctx.sleep(timedelta(days=1)))
            group.create_task(ctx.sleep(0.05))
            await ctx.sleep(0.01)
            at = str(await ctx.time())
            doomed.cancel()
        return at

    code["decides"] = decides
    handle = await runtime.client.send(work, "acme/d", "decides")
    at = await handle.result(timeout=20)
    store, place = runtime.client.store, parse_id(handle.id)
    stream = store.space(place.type_name, place.partition).invocation(place.raw)
    records = [decode(fields[1]) for _, fields in await store.call("XRANGE", stream, "-", "+")]
    (withdrawn,) = [record for record in records if isinstance(record, WaitWithdrawn)]
    assert len(withdrawn.notes) == 1
    assert at


async def test_what_a_command_has_to_look_up_does_not_change_what_other_branches_read(
    forced: tuple[Runtime, str],
) -> None:
    """The first wait for a signal reads what came early; others do not go on meanwhile, as they don't in a replay."""
    runtime, _ = forced

    async def counts(ctx: ObjectContext) -> list[int]:
        async def waits() -> int:
            with contextlib.suppress(WaitTimeout):
                await ctx.signal("never", str, timeout=0.05)
            return 0

        async def adds() -> int:
            before = await ctx.get("n", int, 0)
            ctx.set("n", before + 1)
            await ctx.run("slow", token, "slow", 0.02)
            return before

        return [*await ctx.gather(waits(), adds()), await ctx.get("n", int, 0)]

    code["counts"] = counts
    assert await runtime.client.call(work, f"acme/{secrets.token_hex(4)}", "counts", timeout=20) == [0, 0, 1]


async def test_branches_of_a_branch_that_is_cut_off_clean_up_before_it_does(forced: tuple[Runtime, str]) -> None:
    """What they waited for is given up with the first thing that they record after it."""
    runtime, _ = forced

    async def nested(ctx: ObjectContext) -> list[str]:
        cleaned: list[str] = []

        async def cleaning(name: str, doing: Awaitable[Any]) -> Any:
            try:
                return await doing
            except asyncio.CancelledError:
                cleaned.append((await ctx.run(f"clean {name}", token, name)).split()[0])
                raise

        async def quick() -> None:
            await ctx.sleep(0.02)

        inner = ctx.select(a=cleaning("a", ctx.sleep(100)), b=cleaning("b", ctx.sleep(200)))
        await ctx.select(quick=quick(), slow=cleaning("outer", inner))
        await ctx.sleep(0.01)
        return cleaned

    code["nested"] = nested
    key = f"acme/{secrets.token_hex(4)}"
    assert await runtime.client.call(work, key, "nested", timeout=20) == ["a", "b", "outer"]


async def test_a_block_that_a_failed_attempt_interrupts_waits_on_in_the_next_one(
    forced: tuple[Runtime, str],
) -> None:
    """What the block of a task group waits for is given up only where the handler goes on after the failure."""
    attempts = count()

    async def group(ctx: ObjectContext) -> str:
        async def fails_once() -> str:
            await ctx.run("before", token, "before")
            if next(attempts) == 0:
                raise ValueError("once")
            return "fine"

        async with ctx.task_group() as tasks:
            task = tasks.create_task(fails_once())
            await ctx.sleep(0.2)
        return await task

    code["group"] = group
    assert await forced[0].client.call(work, "acme/g", "group", timeout=20) == "fine"


async def test_a_failed_attempt_gives_nothing_up_that_the_next_one_waits_for(
    forced: tuple[Runtime, str],
) -> None:
    """A failure that is no part of the journal may not be there the next time."""
    attempts = count()

    async def flaky(ctx: ObjectContext) -> str:
        async def fails_once() -> str:
            await ctx.run("before", token, "before")
            if next(attempts) == 0:
                raise ValueError("once")
            return "fine"

        done, _ = await ctx.gather(fails_once(), ctx.sleep(0.3))
        return done

    code["flaky"] = flaky
    assert await forced[0].client.call(work, "acme/f", "flaky", timeout=20) == "fine"


@pytest.mark.counts_runs
async def test_what_branches_record_beside_a_failed_attempt_gives_nothing_up_for_it(runtime_of_crew: Runtime) -> None:
    """While the failure is on its way to the handler, others do not know of it: the next attempt may have none."""
    attempts = count()
    is_cut, is_recorded = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> str:
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            is_cut.set()
            await is_recorded.wait()
            raise
        return "slow"

    async def flaky(ctx: ObjectContext) -> list[str]:
        async def fails_once() -> str:
            await ctx.run("before", token, "before")
            if next(attempts) == 0:
                raise ValueError("once")
            return "fine"

        async def inner() -> str:
            _, done, _ = await ctx.gather(ctx.sleep(0.3), fails_once(), ctx.run("slow", slow_to_end))
            return done

        async def beside() -> str:
            await ctx.run("until the failure", is_cut.wait)
            got = await ctx.run("recorded beside it", token, "beside")
            is_recorded.set()
            return got

        return list(await ctx.gather(inner(), beside()))

    code["beside"] = flaky
    handle = await runtime_of_crew.client.send(work, "acme/b", "beside")
    done, _ = await handle.result(timeout=20)
    assert done == "fine"
    assert next(attempts) >= 2


@pytest.fixture
async def runtime_of_crew(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    """Give a runtime of the object whose code the tests write."""
    async with Runtime(App([crew]), store=store_url, namespace=namespace) as runtime:
        yield runtime


@pytest.mark.parametrize("change", ["another step", "no branch", "another kind"])
async def test_branches_that_disagree_with_the_journal_park_with_both_commands_and_the_line(
    store_url: str, namespace: str, change: str
) -> None:
    """There is no retry loop, and no step of the other code runs."""
    ran: list[str] = []

    async def first(ctx: ObjectContext) -> Any:
        return await ctx.gather(ctx.run("a", token, "a"), ctx.sleep(timedelta(days=1)), ctx.run("b", token, "b"))

    async def second(ctx: ObjectContext) -> Any:
        async def run(name: str) -> None:
            await ctx.run(name, ran.append, name)

        match change:
            case "another step":
                return await ctx.gather(run("a"), ctx.sleep(timedelta(days=1)), run("c"))
            case "no branch":
                return await ctx.gather(run("a"), ctx.sleep(timedelta(days=1)))
            case _:
                return await ctx.gather(run("a"), ctx.run("b", token, "b"), run("b"))

    async with Client(store_url, namespace=namespace) as client:
        code["parts"] = first
        async with Runtime(App([crew]), store=store_url, namespace=namespace):
            handle = await client.send(work, "acme/p", "parts")
            await until(client, handle, "waiting", steps=3)
        code["parts"] = second
        async with Runtime(App([crew]), store=store_url, namespace=namespace) as runtime:
            await shift_clock(runtime, timedelta(days=1, seconds=1))
            await until(client, handle, "paused", steps=3)
            told = await client.describe(handle.id)
    assert told.pause is not None
    assert told.pause.reason == "diverged"
    assert "recorded" in told.pause.detail
    assert "test_branch_replay.py" in told.pause.detail
    assert ran == []


async def test_a_step_may_use_task_groups_of_other_libraries_also_when_it_is_cut_off(
    forced: tuple[Runtime, str],
) -> None:
    """All of a step runs in one task: no scope is left in another one than it was entered in."""
    runtime, _ = forced

    async def scopes(word: str) -> str:
        async def endless() -> AsyncIterator[str]:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 0.001)
                yield word
                await anyio.sleep(30 if word == "slow" else 0)

        async for each in endless():
            word = each
        return word

    async def races(ctx: ObjectContext) -> Any:
        name, word = await ctx.select(quick=ctx.run("quick", scopes, "quick"), slow=ctx.run("slow", scopes, "slow"))
        return [name, word, *await ctx.gather(ctx.run("x", scopes, "x"), ctx.run("y", scopes, "y"))]

    code["races"] = races
    assert await runtime.client.call(work, "acme/s", "races", timeout=20) == ["quick", "quick", "x", "y"]


async def test_branches_that_wait_for_each_other_are_told_so(runtime_of_crew: Runtime) -> None:
    """None of them could ever go on."""

    async def stuck(ctx: ObjectContext) -> str:
        tasks: list[Any] = []

        async def waits(number: int) -> None:
            await tasks[number]

        try:
            async with ctx.task_group() as group:
                tasks.extend([group.create_task(waits(1)), group.create_task(waits(0))])
        except RuntimeError as error:
            return str(error)
        return "went on"

    code["stuck"] = stuck
    assert "none can go on" in await runtime_of_crew.client.call(work, "acme/w", "stuck", timeout=20)


async def test_a_timeout_of_asyncio_around_a_branch_is_no_end_of_it(runtime_of_crew: Runtime) -> None:
    """A replay could not tell it again: the attempt fails, and the next one goes on from the journal."""
    attempts = count()

    async def impatient(ctx: ObjectContext) -> str:
        async with asyncio.timeout(0.02 if next(attempts) == 0 else 20):
            first, _ = await ctx.gather(ctx.run("a", token, "a", 0.1), ctx.sleep(0.1))
        return first

    code["impatient"] = impatient
    assert (await runtime_of_crew.client.call(work, "acme/i", "impatient", timeout=20)).startswith("a ")
    assert next(attempts) >= 2


async def test_branches_that_are_cut_off_clean_up_in_an_order_that_no_step_decides(
    forced: tuple[Runtime, str],
) -> None:
    """A step that takes its time to end does not run in a replay, whose branches clean up in the same order."""
    runtime, _ = forced
    runs: list[list[str]] = []

    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            for _ in range(20):
                await asyncio.sleep(0)

    async def loses(ctx: ObjectContext) -> list[str]:
        mine: list[str] = []
        runs.append(mine)

        async def cleaning(name: str, awaitable: Any) -> None:
            try:
                await awaitable
            except asyncio.CancelledError:
                mine.append(name)
                await ctx.run(f"clean up {name}", token, name)
                raise

        await ctx.select(
            first=cleaning("first", ctx.run("slow", slow_to_end)),
            second=cleaning("second", ctx.sleep(timedelta(days=1))),
            winner=ctx.sleep(0.05),
        )
        await ctx.run("after", token, "after")
        return mine

    code["loses"] = loses
    assert await runtime.client.call(work, "acme/l", "loses", timeout=20) == ["first", "second"]
    assert all(run == ["first", "second"][: len(run)] for run in runs)


async def test_a_wait_that_the_code_does_not_come_to_any_more_parks_though_it_has_no_end_yet(
    store_url: str, namespace: str
) -> None:
    """What came in its place would be built on something else than the journal has."""

    async def two(ctx: ObjectContext) -> None:
        await ctx.gather(ctx.sleep(timedelta(hours=1)), ctx.sleep(timedelta(days=1)))

    async def one(ctx: ObjectContext) -> None:
        await ctx.gather(ctx.sleep(timedelta(hours=1)))

    async with Client(store_url, namespace=namespace) as client:
        code["naps"] = two
        async with Runtime(App([crew]), store=store_url, namespace=namespace):
            handle = await client.send(work, "acme/n", "naps")
            await until(client, handle, "waiting", steps=2)
        code["naps"] = one
        async with Runtime(App([crew]), store=store_url, namespace=namespace) as runtime:
            await shift_clock(runtime, timedelta(hours=1, seconds=1))
            await until(client, handle, "paused", steps=2)
            told = await client.describe(handle.id)
    assert told.pause is not None
    assert "sleep of 86,400 s" in told.pause.detail


async def test_a_branch_that_a_failure_cuts_off_may_clean_up_in_steps(forced: tuple[Runtime, str]) -> None:
    """It goes on after its own wait, which is given up with the first thing that it records."""
    runtime, _ = forced

    async def fails(ctx: ObjectContext) -> str:
        async def cleans_up() -> None:
            try:
                await ctx.sleep(timedelta(days=1))
            except asyncio.CancelledError:
                done.append(await ctx.run("clean up", token, "clean"))
                raise

        async def refuses() -> None:
            await ctx.run("refuse", refuse, "no")

        done: list[str] = []
        try:
            await ctx.gather(cleans_up(), refuses())
        except TerminalError as error:
            return f"{error.message} {len(done)}"
        return "went on"

    code["fails"] = fails
    assert await runtime.client.call(work, f"acme/{secrets.token_hex(4)}", "fails", timeout=20) == "no 1"
