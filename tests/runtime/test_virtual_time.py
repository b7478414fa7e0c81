"""Time that passes when a test says so: retries, results, histories and idempotency keys follow the shifted clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from keylane import (
    CallError,
    Client,
    Handle,
    Handler,
    InvocationFailed,
    InvocationPaused,
    ObjectContext,
    ResultExpired,
    RetryableError,
    RetryPolicy,
    Runtime,
    Settings,
    SharedContext,
    TerminalError,
    VirtualObject,
)
from keylane.journal.standing import Status
from keylane.testing import shift_clock
from tests.faults.harness import eventually_answers
from tests.objects_catalogue import mark, marks, opened
from tests.plain import plain

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
HALF_AN_HOUR = timedelta(minutes=30)
#: Results are kept for 24 hours, keys for 30 days and at most one more.
AFTER_RESULTS = timedelta(hours=25)
AFTER_KEYS = timedelta(days=32)
DAY_SECONDS = 86_400
#: Leaves what runs behind for the next worker.
IMPATIENT = Settings(drain_limit_seconds=0.1)

ONCE = RetryPolicy(first=timedelta(milliseconds=1), attempts=1)

clerk = VirtualObject("Clerk", owner="tests", state={"runs": int})


@clerk.handler
async def again_in_half_an_hour(ctx: ObjectContext, trail: str) -> int:
    mark(trail, "attempt")
    if len(marks(Path(trail))) == 1:
        raise RetryableError("not now", retry_after=HALF_AN_HOUR)
    return len(marks(Path(trail)))


@clerk.handler
async def step_again_in_half_an_hour(ctx: ObjectContext, trail: str) -> int:
    return await ctx.run("ask", _ask, trail)


def _ask(trail: str) -> int:
    mark(trail, "attempt")
    if len(marks(Path(trail))) == 1:
        raise RetryableError("not now", retry_after=HALF_AN_HOUR)
    return len(marks(Path(trail)))


@clerk.handler
async def count(ctx: ObjectContext) -> int:
    runs = await ctx.get("runs", int, 0) + 1
    ctx.set("runs", runs)
    return runs


@clerk.handler
async def refuse(ctx: ObjectContext) -> None:
    await count.function(ctx)
    raise TerminalError("no")


@clerk.handler(retry=ONCE)
async def count_after_a_pause(ctx: ObjectContext, gate: str) -> int:
    if not Path(gate).exists():
        raise ValueError("the gate is closed")
    return await count.function(ctx)


@clerk.handler
async def count_behind_a_gate(ctx: ObjectContext, gate: str) -> int:
    await ctx.run("wait", opened, gate)
    return await count.function(ctx)


@clerk.handler
async def two_times(ctx: ObjectContext, gate: str) -> list[datetime]:
    before = await ctx.time()
    await ctx.run("wait", opened, gate)
    return [before, await ctx.time()]


@clerk.shared
async def time_there(ctx: SharedContext) -> datetime:
    return await ctx.time()


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(clerk, store=store_url, namespace=namespace) as runtime:
        yield runtime


Shift = Callable[[timedelta], Awaitable[None]]


@pytest.fixture(params=["runtime", "client"])
async def shift(
    request: pytest.FixtureRequest, runtime: Runtime, store_url: str, namespace: str
) -> AsyncIterator[Shift]:
    """Shift as the worker's own process does, then as another process would."""
    if request.param == "runtime":
        yield lambda by: shift_clock(runtime, by)
        return
    async with Client(store_url, namespace=namespace) as outside:
        yield lambda by: shift_clock(outside, by)


async def is_waiting(handle: Handle[int]) -> bool:
    return (await handle.describe()).status is Status.WAITING


@pytest.mark.parametrize("handler", [again_in_half_an_hour, step_again_in_half_an_hour], ids=lambda each: each.name)
async def test_a_retry_in_half_an_hour_runs_once_half_an_hour_has_passed(
    runtime: Runtime, shift: Shift, tmp_path: Path, handler: Handler[str, int]
) -> None:
    """Not a minute before it, and within a sweep after it."""
    trail = tmp_path / "trail"
    handle = await runtime.client.send(handler, KEY, str(trail))
    await eventually_answers(lambda: is_waiting(handle), "it waits for its next attempt")

    await shift(HALF_AN_HOUR - timedelta(minutes=1))
    await runtime.worker.look_for_due()
    assert await is_waiting(handle)
    assert len(marks(trail)) == 1

    await shift(timedelta(minutes=1))
    assert await handle.result(timeout=5) == 2


async def test_the_time_that_handlers_see_is_shifted(runtime: Runtime) -> None:
    """Exclusive and shared ones, as soon as the shift has been made."""
    before = await runtime.client.call(time_there, KEY)

    await shift_clock(runtime, timedelta(days=400))

    after = await runtime.client.call(time_there, KEY)
    assert timedelta(days=400) <= after - before < timedelta(days=400, minutes=1)
    assert abs(datetime.now(UTC) - before) < timedelta(minutes=1)


async def test_the_time_that_a_handler_took_before_a_shift_stays(runtime: Runtime, tmp_path: Path) -> None:
    """Two looks at the clock in one invocation are as far apart as the shift between them."""
    gate = tmp_path / "gate"
    handle = await runtime.client.send(two_times, KEY, str(gate))
    await handle.accepted(timeout=10)

    await shift_clock(runtime, timedelta(days=2))
    gate.touch()

    before, after = await handle.result(timeout=10)
    assert timedelta(days=2) <= after - before < timedelta(days=2, minutes=1)


async def test_shifts_add_up(runtime: Runtime) -> None:
    """Twice an hour are two."""
    before = await runtime.client.call(time_there, KEY)

    for _ in range(2):
        await shift_clock(runtime, timedelta(hours=1))

    assert await runtime.client.call(time_there, KEY) - before >= timedelta(hours=2)


async def test_time_does_not_go_back(runtime: Runtime) -> None:
    """A shift into the past is refused."""
    with pytest.raises(ValueError, match="never goes back"):
        await shift_clock(runtime, timedelta(seconds=-1))


async def test_the_time_of_a_partition_in_memory_does_not_go_back_either(runtime: Runtime) -> None:
    """An answer that was long on its way carries an older time than its owner has told by then."""
    partition = runtime.worker.partitions[0]
    told = partition.now_ms()

    partition.saw_time(told - 60_000)
    assert partition.now_ms() >= told

    partition.saw_time(told + 60_000)
    assert partition.now_ms() >= told + 60_000


async def test_the_time_of_a_partition_in_memory_follows_the_answers_to_its_commits(runtime: Runtime) -> None:
    """Its owner learns it with each batch, and asks for it nowhere else while it has something to write."""
    partition = runtime.worker.partitions[0]
    told = partition.now_ms()
    assert partition.writer.on_time is not None

    partition.writer.on_time(told + 60_000)

    assert partition.now_ms() >= told + 60_000


async def test_a_result_within_its_retention_is_still_there(runtime: Runtime, shift: Shift) -> None:
    """A retry of the same call is answered with it."""
    assert await runtime.client.call(count, KEY, idempotency_key="k") == 1

    await shift(timedelta(hours=23))

    assert await runtime.client.call(count, KEY, idempotency_key="k") == 1


async def test_after_the_retention_of_results_a_retry_is_told_how_it_ended(runtime: Runtime, shift: Shift) -> None:
    """And it is not run again, however it had ended."""
    assert await runtime.client.call(count, KEY, idempotency_key="k") == 1
    with pytest.raises(InvocationFailed):
        await runtime.client.call(refuse, KEY, idempotency_key="l")

    for by in (AFTER_RESULTS, timedelta(days=28)):
        await shift(by)
        with pytest.raises(ResultExpired, match="completed"):
            await runtime.client.call(count, KEY, idempotency_key="k", timeout=10)
        with pytest.raises(ResultExpired, match="failed"):
            await runtime.client.call(refuse, KEY, idempotency_key="l", timeout=10)

    assert await runtime.client.call(count, KEY) == 2


async def test_after_the_retention_of_results_an_id_stands_for_nothing(runtime: Runtime, tmp_path: Path) -> None:
    """Result and history are gone together, and who asks is told that they may have been there."""
    gate = tmp_path / "gate"
    gate.touch()
    handle = await runtime.client.send(count_behind_a_gate, KEY, str(gate))
    assert await handle.result(timeout=10) == 1

    await shift_clock(runtime, AFTER_RESULTS)

    with pytest.raises(CallError, match="ended longer ago than results are kept"):
        await handle.result(timeout=10)


async def test_after_its_own_retention_a_key_is_free(runtime: Runtime, shift: Shift) -> None:
    """A call that brings it is a new call, which is remembered in its turn."""
    assert await runtime.client.call(count, KEY, idempotency_key="k") == 1

    await shift(AFTER_KEYS)

    assert await runtime.client.call(count, KEY, idempotency_key="k") == 2
    assert await runtime.client.call(count, KEY, idempotency_key="k") == 2
    await shift(AFTER_RESULTS)
    with pytest.raises(ResultExpired):
        await runtime.client.call(count, KEY, idempotency_key="k", timeout=10)
    await shift(AFTER_KEYS)
    assert await runtime.client.call(count, KEY, idempotency_key="k") == 3


@pytest.mark.one_server  # it looks for keys of whichever partition
async def test_a_key_is_kept_under_the_day_that_it_is_in_the_store(
    runtime: Runtime, shift: Shift, store_url: str
) -> None:
    """Also when its owner has not noticed yet that it is another day, so that the next owner looks for it there."""
    assert await runtime.client.call(count, KEY, idempotency_key="k") == 1

    await shift(AFTER_KEYS)
    assert await runtime.client.call(count, KEY, idempotency_key="k") == 2

    today = (await runtime.client.call(time_there, KEY)).timestamp() // DAY_SECONDS
    days = plain(store_url, "KEYS", f"{{{runtime.namespace}:*:k:*")
    assert [int(each.rsplit(b":", 1)[1]) for each in days] == [today]


async def test_a_new_owner_gives_the_same_verdicts(store_url: str, namespace: str) -> None:
    """What is known of a key lies in the store, under the days of the partition's own time."""
    async with Runtime(clerk, store=store_url, namespace=namespace) as first:
        assert await first.client.call(count, KEY, idempotency_key="k") == 1
        await shift_clock(first, timedelta(days=10))
        assert await first.client.call(count, KEY, idempotency_key="l") == 2
        await shift_clock(first, timedelta(days=20))

    async with Runtime(clerk, store=store_url, namespace=namespace) as second:
        for key in ("k", "l"):
            with pytest.raises(ResultExpired):
                await second.client.call(count, KEY, idempotency_key=key, timeout=10)
        await shift_clock(second, timedelta(days=2))
        assert await second.client.call(count, KEY, idempotency_key="k") == 3
        with pytest.raises(ResultExpired):
            await second.client.call(count, KEY, idempotency_key="l", timeout=10)


async def test_a_key_of_an_invocation_that_a_new_owner_ends_is_known_as_ended(
    store_url: str, namespace: str, tmp_path: Path
) -> None:
    """Also where the clock of the caller, which made the id, is days away from the partition's."""
    gate = tmp_path / "gate"
    async with Runtime(clerk, store=store_url, namespace=namespace, settings=IMPATIENT) as first:
        await shift_clock(first, timedelta(days=5))
        handle = await first.client.send(count_behind_a_gate, KEY, str(gate), idempotency_key="k")
        await handle.accepted(timeout=10)

    gate.touch()
    async with Runtime(clerk, store=store_url, namespace=namespace) as second:
        assert await second.client.attach(handle.id, int).result(timeout=10) == 1
        await shift_clock(second, AFTER_RESULTS)
        with pytest.raises(ResultExpired, match="completed"):
            await second.client.call(count_behind_a_gate, KEY, str(gate), idempotency_key="k", timeout=10)


async def test_the_key_of_an_invocation_that_ends_late_is_known_for_its_retention_and_then_forgotten(
    runtime: Runtime, tmp_path: Path
) -> None:
    """The day on which it came is long gone by then, and what is written of it anew must end, too."""
    gate = tmp_path / "gate"
    with pytest.raises(InvocationPaused) as paused:
        await runtime.client.call(count_after_a_pause, KEY, str(gate), idempotency_key="k", timeout=10)
    assert paused.value.invocation_id is not None
    await shift_clock(runtime, AFTER_KEYS)

    gate.touch()
    await runtime.client.resume(paused.value.invocation_id, by="tests", reason="the gate is open")
    assert await runtime.client.attach(paused.value.invocation_id, int).result(timeout=10) == 1

    await shift_clock(runtime, timedelta(days=29))
    with pytest.raises(ResultExpired, match="completed"):
        await runtime.client.call(count_after_a_pause, KEY, str(gate), idempotency_key="k", timeout=10)
    await shift_clock(runtime, timedelta(days=3))
    assert await runtime.client.call(count_after_a_pause, KEY, str(gate), idempotency_key="k", timeout=10) == 2
