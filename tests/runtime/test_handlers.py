"""What a handler may lean on: state written whole or not at all, steps that are recorded, attempts that are counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from keylane import (
    App,
    BlockingObjectContext,
    BlockingSharedContext,
    InvocationFailed,
    InvocationPaused,
    ObjectContext,
    RetryableError,
    RetryPolicy,
    Runtime,
    SharedContext,
    StepFailed,
    TerminalError,
    VirtualObject,
)
from keylane.journal.codec import pack
from keylane.journal.key import partition_of
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.snapshots import FIRST_READ_ENTRIES, fold, is_whole
from tests.objects_catalogue import mark, marks

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=5), cap=timedelta(milliseconds=10), attempts=3)

note = VirtualObject("Note", owner="tests", state={"text": str, "count": int}, retry=QUICK)


@note.handler
async def write(ctx: ObjectContext, text: str) -> None:
    ctx.set("text", text)
    ctx.set("count", await ctx.get("count", int, 0) + 1)


@note.handler
async def wipe(ctx: ObjectContext) -> list[str]:
    before = await ctx.state_keys()
    ctx.clear_all()
    return [*before, *await ctx.state_keys()]


@note.handler
async def read_own_write(ctx: ObjectContext, text: str) -> list[str | None]:
    ctx.set("text", text)
    seen = [await ctx.get("text", str)]
    ctx.clear("text")
    return [*seen, await ctx.get("text", str)]


@note.shared
async def read(ctx: SharedContext) -> dict[str, str | int | None]:
    return {"text": await ctx.get("text", str), "count": await ctx.get("count", int)}


@note.shared
def read_blocking(ctx: BlockingSharedContext) -> list[str]:
    return ctx.state_keys()


@note.handler
def write_blocking(ctx: BlockingObjectContext, text: str) -> str:
    shouted = ctx.run("shout", str.upper, text, type=str)
    ctx.set("text", shouted)
    return shouted


@note.handler
async def facts(ctx: ObjectContext, trail: str) -> list[str]:
    """Take facts before and after a step, fail twice, and return what each attempt saw."""
    at = await ctx.time()
    count = await ctx.get("count", int, 0)
    seen = f"{at.isoformat()} {ctx.uuid()} {ctx.random().random()} {count}"
    ctx.set("count", count + 1)
    token = await ctx.run("mark", mark, trail, "step")
    lines = Path(trail).with_suffix(".seen")
    with lines.open("a") as file:
        file.write(f"{seen} {token} {await ctx.get('count', int, 0)}\n")
    if ctx.attempt < QUICK.attempts:
        raise RetryableError("again", retry_after=0.001)
    return lines.read_text().splitlines()


@note.handler
async def step_that_fails(ctx: ObjectContext, trail: str) -> str:
    def attempt() -> None:
        mark(trail, "tried")
        raise ValueError("no")

    try:
        await ctx.run("attempt", attempt, retry=QUICK, on_exhausted="raise")
    except StepFailed as error:
        return f"{error.name} {error.attempts}"
    return "it worked"


@note.handler
async def step_that_pauses(ctx: ObjectContext, trail: str) -> str:
    def attempt() -> str:
        mark(trail, "tried")
        if len(marks(Path(trail))) <= QUICK.attempts:
            raise ValueError("not yet")
        return "worked"

    return await ctx.run("attempt", attempt, retry=QUICK)


@note.handler
async def step_that_refuses(ctx: ObjectContext) -> None:
    def refuse() -> None:
        raise TerminalError("card declined", code="declined", details={"left": 3})

    await ctx.run("charge", refuse)


@note.handler
async def slow_step(ctx: ObjectContext) -> str:
    try:
        await ctx.run("sleep", anyio.sleep, 30, timeout=timedelta(milliseconds=10), retry=QUICK, on_exhausted="raise")
    except StepFailed as error:
        return error.error
    return "slept"


@note.handler
async def foreign_task(ctx: ObjectContext) -> str:
    errors: list[str] = []

    async def child() -> None:
        try:
            await ctx.run("child", int)
        except RuntimeError as error:
            errors.append(str(error))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(child)
    return errors[0]


@note.handler(retry=RetryPolicy(first=timedelta(milliseconds=1), attempts=2, then="fail"))
async def fails_for_good(ctx: ObjectContext) -> None:
    ctx.set("text", "lost")
    raise ValueError("broken")


@note.handler
async def swallows_everything(ctx: ObjectContext) -> str:
    try:
        await ctx.run("never", always_fails, retry=RetryPolicy(attempts=1))
    except BaseException:  # noqa: BLE001, a handler may be as wrong as this
        return "swallowed"
    return "worked"


def always_fails() -> None:
    raise ValueError("never")


@note.handler
async def other(ctx: ObjectContext) -> str:
    return "the lane is free"


app = App([note])


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        yield runtime


async def test_state_is_read_back_and_wiped(runtime: Runtime) -> None:
    """What a handler wrote is read by shared ones, and cleared values are gone."""
    client = runtime.client
    await client.call(write, "t/a", "hello")

    assert await client.call(read, "t/a") == {"text": "hello", "count": 1}
    assert await client.call(wipe, "t/a") == ["count", "text"]
    assert await client.call(read, "t/a") == {"text": None, "count": None}


async def test_a_handler_sees_its_own_writes(runtime: Runtime) -> None:
    """A value that was set is read back before it is durable, and one that was cleared is not."""
    assert await runtime.client.call(read_own_write, "t/a", "mine") == ["mine", None]


async def test_plain_functions_do_what_coroutines_do(runtime: Runtime) -> None:
    """A blocking handler runs steps, writes state and reads it."""
    assert await runtime.client.call(write_blocking, "t/a", "loud") == "LOUD"
    assert await runtime.client.call(read_blocking, "t/a") == ["text"]


async def test_each_attempt_sees_what_the_first_one_saw(runtime: Runtime, tmp_path: Path) -> None:
    """Time, random numbers, ids and reads before the last recorded step are the same at each replay."""
    trail = tmp_path / "trail"
    lines = await runtime.client.call(facts, "t/a", str(trail))

    assert len(lines) == QUICK.attempts
    assert len(set(lines)) == 1
    assert len(marks(trail)) == 1, "a recorded step is not run again"


async def test_time_is_close_to_the_clock(runtime: Runtime, tmp_path: Path) -> None:
    """The recorded time is the partition's, which follows the server's clock."""
    lines = await runtime.client.call(facts, "t/a", str(tmp_path / "trail"))

    at = datetime.fromisoformat(lines[0].split()[0])
    assert abs(datetime.now(tz=UTC) - at) < timedelta(seconds=5)


async def test_spent_retries_of_a_step_reach_the_handler_when_it_asks_for_them(
    runtime: Runtime, tmp_path: Path
) -> None:
    """A step declared with on_exhausted="raise" raises StepFailed after its attempts."""
    trail = tmp_path / "trail"

    assert await runtime.client.call(step_that_fails, "t/a", str(trail)) == "attempt 3"
    assert len(marks(trail)) == QUICK.attempts


async def test_spent_retries_of_a_step_pause_the_invocation(runtime: Runtime, tmp_path: Path) -> None:
    """The caller is told at once and by whom it may be resumed; the lane is held; after a resumption it goes on."""
    client, trail = runtime.client, tmp_path / "trail"
    handle = await client.send(step_that_pauses, "t/a", str(trail))

    with pytest.raises(InvocationPaused) as paused:
        await handle.result(timeout=10)
    assert (paused.value.reason, paused.value.owner) == ("retries_spent", "tests")
    behind = await client.send(other, "t/a")
    assert (await handle.describe()).status == "paused"

    await client.resume(handle.id, reason="the outside works again", by="anna")

    assert await handle.result(timeout=10) == "worked"
    assert await behind.result(timeout=10) == "the lane is free"


async def test_a_terminal_error_of_a_step_ends_the_invocation(runtime: Runtime) -> None:
    """Message, code and details reach the caller."""
    with pytest.raises(InvocationFailed) as failed:
        await runtime.client.call(step_that_refuses, "t/a")

    assert (failed.value.message, failed.value.code, failed.value.details) == ("card declined", "declined", {"left": 3})


async def test_a_step_has_a_timeout(runtime: Runtime) -> None:
    """An attempt that takes longer counts as failed."""
    assert "TimeoutError" in await runtime.client.call(slow_step, "t/a")


async def test_a_step_in_a_foreign_task_is_refused(runtime: Runtime) -> None:
    """The error names what to do instead."""
    assert "ctx.gather" in await runtime.client.call(foreign_task, "t/a")


async def test_an_invocation_may_end_as_failed_when_its_retries_are_spent(runtime: Runtime) -> None:
    """With then="fail" the caller gets the last error and nothing of the writes is kept."""
    with pytest.raises(InvocationFailed, match="broken"):
        await runtime.client.call(fails_for_good, "t/a")

    assert (await runtime.client.call(read, "t/a"))["text"] is None


async def test_a_handler_that_swallows_its_suspension_does_not_complete(runtime: Runtime) -> None:
    """An invocation that was parked stays parked, whatever its handler returns afterwards."""
    with pytest.raises(InvocationPaused):
        await runtime.client.call(swallows_everything, "t/a")


async def test_one_hot_key_is_serial(runtime: Runtime) -> None:
    """Two hundred concurrent writes are counted one by one."""
    async with anyio.create_task_group() as calls:
        for number in range(200):
            calls.start_soon(runtime.client.call, write, "t/hot", str(number))

    assert (await runtime.client.call(read, "t/hot"))["count"] == 200


async def test_state_survives_many_snapshots_and_a_restart(store_url: str, namespace: str) -> None:
    """A new owner reads the newest snapshot and the deltas after it."""
    async with Runtime(app, store=store_url, namespace=namespace) as first:
        for number in range(101):
            await first.client.call(write, "t/a", str(number))

    async with Runtime(app, store=store_url, namespace=namespace) as second:
        assert await second.client.call(read, "t/a") == {"text": "100", "count": 101}
        await second.client.call(write, "t/a", "after")
        assert await second.client.call(read, "t/a") == {"text": "after", "count": 102}


@note.handler
async def change_nothing(ctx: ObjectContext) -> None:
    await ctx.get("text", str)


async def test_history_without_changes_gets_snapshots_too(runtime: Runtime, namespace: str) -> None:
    """An object that is called and never changed can be read in one piece, however long its history."""
    client = runtime.client
    await client.call(write, "t/a", "kept")
    for _ in range(70):
        await client.call(change_nothing, "t/a")

    space = PartitionSpace(namespace, "Note", partition_of("t/a", 16))
    newest = await client.store.call("XREVRANGE", space.object("t/a"), "+", "-", "COUNT", FIRST_READ_ENTRIES)
    assert is_whole(newest, FIRST_READ_ENTRIES)
    assert fold(newest).values["text"] == pack("kept")
