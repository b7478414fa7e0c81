"""Beginning a parked invocation again from an earlier command: what stays is as it was, the rest is done anew."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import (
    BlockingClient,
    CallError,
    Cancelled,
    Handle,
    ObjectContext,
    RetryPolicy,
    Runtime,
    Settings,
    VirtualObject,
)
from keylane.journal.command_records import (
    CallCompleted,
    CallStarted,
    StepCompleted,
    TimerSet,
)
from keylane.journal.records import Accepted, PatchMarked, Restarted, SignalReceived
from keylane.journal.restarting import what_counts
from keylane.testing import shift_clock
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=2)
trail: list[str] = []
drawn: list[list[str]] = []
is_broken = [True]
gates: dict[str, anyio.Event] = {}

callee = VirtualObject("Callee", owner="tests", partitions=2)


@callee.handler
async def answer(ctx: ObjectContext, name: str) -> str:
    trail.append(f"asked {name}")
    if name in gates:
        await gates[name].wait()
    return f"{name} {sum(each == f'asked {name}' for each in trail)}"


@pytest.fixture(autouse=True)
def _afresh() -> None:
    trail.clear()
    drawn.clear()
    gates.clear()
    is_broken[0] = True


def _note(text: str) -> str:
    trail.append(text)
    return f"{text} {trail.count(text)}"


def _break(text: str) -> str:
    if is_broken[0]:
        raise ValueError("broken")
    return _note(text)


def desk(on_paused: Any = "hold") -> VirtualObject:
    made = VirtualObject("Desk", owner="tests", partitions=1, retry=QUICK, on_paused=on_paused)

    @made.handler
    async def work(ctx: ObjectContext) -> list[str]:  # pyright: ignore[reportUnusedFunction]
        numbers = drawn_now = [str(ctx.uuid())]
        first = await ctx.run("first", _note, "first")
        numbers.append(str(ctx.random().random()))
        ctx.set("count", await ctx.get("count", int, 0) + 1)
        second = await ctx.call(answer, "acme/c", "second")
        numbers.append(str(ctx.uuid()))
        sent = await ctx.send(answer, "acme/s", "sent")
        await ctx.sleep(0.001)
        drawn.append(drawn_now)
        last = await ctx.run("last", _break, "last", retry=QUICK)
        return [first, second, sent.id, last]

    @made.handler
    async def count(ctx: ObjectContext) -> int | None:  # pyright: ignore[reportUnusedFunction]
        return await ctx.get("count", int)

    return made


def opened(store_url: str, namespace: str, hosted: VirtualObject, **numbers: Any) -> Runtime:
    return Runtime([hosted, callee], store=store_url, namespace=namespace, settings=Settings(**numbers))


async def status(handle: Handle[Any], wanted: str) -> None:
    """Wait until an invocation stands so."""

    async def is_so() -> bool:
        return (await handle.describe()).status == wanted

    await eventually(is_so)


async def parked(runtime: Runtime) -> Handle[Any]:
    """Have an invocation parked at its last step."""
    handle = await runtime.client.send("Desk", "acme/d", "work")
    await status(handle, "paused")
    is_broken[0] = False
    return handle


async def begun_again(runtime: Runtime, invocation_id: str) -> Any:
    """Keep the first command of an invocation, and return what it ends with."""
    await runtime.client.restart(invocation_id, keep=1, by="tests", reason="repaired", timeout=10)
    return await runtime.client.attach(invocation_id).result(timeout=10)


@pytest.mark.parametrize("on_paused", ["hold", "skip"])
@pytest.mark.parametrize("is_taken_over", [False, True])
async def test_what_is_kept_is_not_done_again_and_the_rest_is(
    store_url: str, namespace: str, on_paused: str, *, is_taken_over: bool
) -> None:
    """With one owner and with the next one, which has only the journal."""
    async with opened(store_url, namespace, desk(on_paused)) as runtime:
        handle = await parked(runtime)
        result: list[str] = [] if is_taken_over else await begun_again(runtime, handle.id)
    if is_taken_over:
        async with opened(store_url, namespace, desk(on_paused)) as runtime:
            result = await begun_again(runtime, handle.id)
    assert result[:2] == ["first 1", "second 2"]
    assert result[3] == "last 1"
    assert [trail.count(each) for each in ("first", "asked second", "asked sent", "last")] == [1, 2, 2, 1]


@pytest.mark.parametrize("keep", range(5))
async def test_random_numbers_and_ids_are_the_same_wherever_it_begins_again(
    store_url: str, namespace: str, keep: int
) -> None:
    """Those of what is kept, and those that are drawn behind it."""
    async with opened(store_url, namespace, desk()) as runtime:
        handle = await parked(runtime)
        before = (await handle.describe()).steps
        await runtime.client.restart(handle.id, keep=keep, by="tests", reason="repaired", timeout=10)
        await handle.result(timeout=10)
        after = (await handle.describe()).steps
    assert drawn[-1] == drawn[0]
    assert after[:keep] == before[:keep]
    assert [(step.index, step.name) for step in after] == [(step.index, step.name) for step in before]


async def test_another_owner_replays_what_a_restart_has_left(store_url: str, namespace: str) -> None:
    """What does not count any more counts for nobody: the restarted run is replayed from its own records."""
    gates["second"] = anyio.Event()
    gates["second"].set()
    async with opened(store_url, namespace, desk(), drain_limit_seconds=0.1) as runtime:
        handle = await parked(runtime)
        gates["second"] = anyio.Event()
        await runtime.client.restart(handle.id, keep=1, by="tests", reason="repaired", timeout=10)
        await status(handle, "waiting")
    gates["second"].set()
    async with opened(store_url, namespace, desk()) as runtime:
        result = await runtime.client.attach(handle.id).result(timeout=10)
    assert result[0] == "first 1"
    # The one that an owner was stopped in the middle of is run again.
    assert trail.count("first") == 1
    assert drawn[-1] == drawn[0]


@pytest.mark.counts_runs
async def test_the_reply_to_a_call_that_does_not_count_is_not_taken_for_that_to_the_new_one(
    store_url: str, namespace: str
) -> None:
    """Both stand at the same place of the same invocation; the call that counts has another id."""
    made = VirtualObject("Desk", owner="tests", partitions=1, retry=QUICK)
    asked: list[str] = []

    @made.handler
    async def work(ctx: ObjectContext) -> str:
        asked.append("x")
        with anyio.move_on_after(0.05 if is_broken[0] else 10):
            return await ctx.call(answer, "acme/c", "slow" if len(asked) < 3 else "quick")
        return "gave up"

    gates["slow"], gates["quick"] = anyio.Event(), anyio.Event()
    async with opened(store_url, namespace, made) as runtime:
        handle = await runtime.client.send(work, "acme/d")
        await status(handle, "paused")
        is_broken[0] = False
        await runtime.client.restart(handle.id, keep=0, by="tests", reason="ask anew", timeout=10)
        await status(handle, "waiting")
        gates["slow"].set()

        async def is_answered() -> bool:
            return "asked quick" in trail

        await eventually(is_answered)
        assert (await handle.describe()).status == "waiting"
        gates["quick"].set()
        assert await handle.result(timeout=10) == "quick 1"


@pytest.mark.counts_runs
async def test_a_sleep_that_does_not_count_wakes_nobody(store_url: str, namespace: str) -> None:
    """Its due time goes with it."""
    made = VirtualObject("Desk", owner="tests", partitions=1, retry=QUICK)
    durations = iter([10.0, 10.0, 7_200.0, 7_200.0, 7_200.0])

    @made.handler
    async def work(ctx: ObjectContext) -> str:
        duration = next(durations) if is_broken[0] else 7_200.0
        with anyio.move_on_after(0.05 if is_broken[0] else 10_000):
            await ctx.sleep(duration)
            return "slept"
        return "gave up"

    async with opened(store_url, namespace, made) as runtime:
        handle = await runtime.client.send(work, "acme/d")
        await status(handle, "paused")
        is_broken[0] = False
        await runtime.client.restart(handle.id, keep=0, by="tests", reason="sleep longer", timeout=10)
        await status(handle, "waiting")
        await shift_clock(runtime, timedelta(minutes=1))
        assert (await handle.describe()).status == "waiting"
        await shift_clock(runtime, timedelta(hours=3))
        assert await handle.result(timeout=10) == "slept"


async def test_state_that_was_written_stays(store_url: str, namespace: str) -> None:
    """A restart undoes nothing: the count that the first run had written is there, and is counted up once more."""
    async with opened(store_url, namespace, desk()) as runtime:
        handle = await parked(runtime)
        await runtime.client.restart(handle.id, keep=1, by="tests", reason="repaired", timeout=10)
        await handle.result(timeout=10)
        assert await runtime.client.call("Desk", "acme/d", "count", timeout=10) == 2


async def test_what_can_not_be_begun_again_is_refused(store_url: str, namespace: str) -> None:
    """One that is not parked, or has fewer commands; and nothing of it is changed."""
    async with opened(store_url, namespace, desk()) as runtime:
        handle = await parked(runtime)
        before = await handle.describe()
        with pytest.raises(CallError, match="it has 4 commands that are done, so 5 can't be kept"):
            await runtime.client.restart(handle.id, keep=5, by="tests", reason="x", timeout=10)
        with pytest.raises(CallError, match=r"needs version 7 of handler 'work'; this code has 1"):
            await runtime.client.restart(handle.id, keep=0, by="tests", reason="x", version=7, timeout=10)
        with pytest.raises(ValueError, match="keep is -1"):
            await runtime.client.restart(handle.id, keep=-1, by="tests", reason="x")
        assert (await handle.describe()).records == before.records
        await runtime.client.restart(handle.id, keep=4, by="tests", reason="x", timeout=10)
        await handle.result(timeout=10)
        with pytest.raises(CallError, match="not paused"):
            await runtime.client.restart(handle.id, keep=0, by="tests", reason="x", timeout=10)


async def test_a_blocking_client_restarts_too(store_url: str, namespace: str) -> None:
    """As the other one."""
    async with opened(store_url, namespace, desk()) as runtime:
        handle = await parked(runtime)

        def restart() -> None:
            with BlockingClient(store_url, namespace=namespace) as client:
                client.restart(handle.id, keep=0, by="tests", reason="x", timeout=10)

        await anyio.to_thread.run_sync(restart)
        assert (await handle.result(timeout=10))[0] == "first 2"


async def test_one_whose_version_is_gone_is_begun_again_in_another(store_url: str, namespace: str) -> None:
    """The way out where nobody will deploy the old one again; later owners go by the chosen one, too."""

    def of(version: int) -> VirtualObject:
        made = VirtualObject("Desk", owner="tests", partitions=1)

        @made.handler(name="work", version=version)
        async def work(ctx: ObjectContext) -> str:  # pyright: ignore[reportUnusedFunction]
            await ctx.run(f"step of {version}", _note, f"ran {version}")
            await ctx.sleep(3600)
            return f"by {version}"

        return made

    async with opened(store_url, namespace, of(1)) as runtime:
        handle = await runtime.client.send("Desk", "acme/d", "work")
        await status(handle, "waiting")
    async with opened(store_url, namespace, of(2)) as runtime:
        await shift_clock(runtime, timedelta(hours=2))
        handle = runtime.client.attach(handle.id)
        await status(handle, "paused")
        with pytest.raises(CallError, match="deploy it again, or restart it with another version"):
            await runtime.client.restart(handle.id, keep=0, by="tests", reason="x", timeout=10)
        await runtime.client.restart(handle.id, keep=0, by="tests", reason="x", version=2, timeout=10)
        await status(handle, "waiting")
    async with opened(store_url, namespace, of(2)) as runtime:
        await shift_clock(runtime, timedelta(hours=2))
        assert await runtime.client.attach(handle.id).result(timeout=10) == "by 2"
    assert trail == ["ran 1", "ran 2"]


RAW = bytes(range(16))
ACCEPTED = Accepted(RAW, "work", 1, "acme/d")


def step(index: Any) -> StepCompleted:
    return StepCompleted(index, f"step {index}", b"\x01")


def test_records_of_branches_count_up_to_the_last_command_that_stays() -> None:
    """What ran beside the main branch until then is part of the same history; what came behind is not."""
    records = [ACCEPTED, step(0), step((0, 0, 0)), step(1), step((0, 1, 0)), step(2), Restarted(2, "a", "b"), step(2)]
    assert what_counts(records) == [ACCEPTED, step(0), step((0, 0, 0)), step(1), Restarted(2, "a", "b"), step(2)]


def test_a_wait_that_had_no_end_by_then_is_begun_anew() -> None:
    """Its reply may have come meanwhile, to a call that does not count: nobody would ever answer it again."""
    call = CallStarted((0, 0, 0), "T", 0, "acme/c", "answer", RAW)
    timer = TimerSet((0, 1, 0), 5)
    end = CallCompleted((0, 0, 0), b"")
    records = [ACCEPTED, call, timer, step(0), end, step(1), Restarted(1, "a", "b")]
    assert what_counts(records) == [ACCEPTED, step(0), Restarted(1, "a", "b")]
    assert what_counts([ACCEPTED, call, end, step(0), Restarted(1, "a", "b")])[:4] == [ACCEPTED, call, end, step(0)]


def test_what_came_from_outside_stays() -> None:
    """Signals, cancellations and marks are no commands of the handler; what was for an awakeable that is gone goes."""
    signal = SignalReceived("go", None, RAW, b"\x01")
    gone = SignalReceived("", 1, RAW, b"\x01")
    records = [ACCEPTED, step(0), PatchMarked("p"), signal, gone, step(1), Restarted(0, "a", "b")]
    assert what_counts(records) == [ACCEPTED, PatchMarked("p"), signal, Restarted(0, "a", "b")]


def test_one_restart_after_another_counts_from_what_the_first_had_left() -> None:
    """The second may go back behind the first, and never brings back what the first had dropped."""
    again = StepCompleted(1, "again", b"\x02")
    records = [
        ACCEPTED,
        step(0),
        step(1),
        Restarted(1, "a", "b"),
        again,
        Restarted(2, "a", "b"),
        Restarted(1, "a", "b"),
    ]
    assert [each for each in what_counts(records) if isinstance(each, StepCompleted)] == [step(0)]
    assert [each for each in what_counts(records[:-1]) if isinstance(each, StepCompleted)] == [step(0), again]


@pytest.mark.parametrize(("keep", "times"), [(0, 2), (1, 2), (2, 1)])
async def test_a_handler_is_told_of_its_cancel_once_in_what_is_kept(
    store_url: str, namespace: str, keep: int, times: int
) -> None:
    """It goes on cleaning up; where the place is not kept at which it was told, it is told anew."""
    made = VirtualObject("Desk", owner="tests", partitions=1)

    @made.handler
    async def clean_up(ctx: ObjectContext) -> str:  # pyright: ignore[reportUnusedFunction]
        told: list[str] = []
        try:
            await ctx.sleep(3600)
        except Cancelled:
            await ctx.run("tell", _note, "told")
            told.append("told")
        try:
            await ctx.run("clean", _break, "clean", retry=QUICK)
        except Cancelled:
            told.append("told again")
        return " ".join(told)

    async with opened(store_url, namespace, made) as runtime:
        handle = await runtime.client.send("Desk", "acme/d", "clean_up")
        await status(handle, "waiting")
        await runtime.client.cancel(handle.id, timeout=10)
        await status(handle, "paused")
        is_broken[0] = False
        await runtime.client.restart(handle.id, keep=keep, by="tests", reason="repaired", timeout=10)
        assert await handle.result(timeout=10) == "told"
        assert trail.count("told") == times
