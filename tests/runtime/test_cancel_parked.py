"""What is parked, blocks a thread, has too many records or is asked from the shell is cancelled and killed likewise."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import (
    App,
    BlockingObjectContext,
    Cancelled,
    InvocationCancelled,
    ObjectContext,
    RetryPolicy,
    Runtime,
    Settings,
    VirtualObject,
)
from keylane.journal.command_records import CancelDelivered
from keylane.journal.record_bytes import decode
from tests.runtime.shell_command import run

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=2)
trail: list[str] = []
names: dict[str, str] = {}
released = threading.Event()
begun = threading.Event()

holding = VirtualObject("Holding", owner="tests", partitions=2)
skipping = VirtualObject("Skipping", owner="tests", partitions=2, on_paused="skip")


@pytest.fixture(autouse=True)
def _afresh() -> None:
    trail.clear()
    names.clear()
    released.clear()
    begun.clear()


async def fail() -> None:
    trail.append("attempt")
    raise OSError("no")


@holding.handler
async def spent(ctx: ObjectContext) -> None:
    try:
        await ctx.run("fails", fail, retry=QUICK)
    except Cancelled:
        await ctx.run("clean up", str, "c")
        trail.append("told")
        raise


skipping.handler(name="spent")(spent.function)


@holding.handler
async def diverges(ctx: ObjectContext) -> None:
    await ctx.run(names.get("step", "first"), str, "x")
    await ctx.sleep(3600)


@holding.handler
async def long_one(ctx: ObjectContext) -> None:
    for number in range(100):
        await ctx.run(f"step {number}", str, "x")


@holding.handler
def blocks(ctx: BlockingObjectContext) -> None:
    begun.set()
    released.wait(30)


@holding.handler
async def sleeps_in_branches(ctx: ObjectContext) -> None:
    try:
        await ctx.gather(ctx.sleep(3600), ctx.run("step", hold_on), ctx.sleep(7200))
    finally:
        trail.append("left")


async def hold_on() -> None:
    begun.set()
    await anyio.sleep(30)


@holding.handler
async def touch(ctx: ObjectContext) -> str:
    return "touched"


skipping.handler(name="touch")(touch.function)
app = App([holding, skipping])


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    """Wait until something holds."""
    with anyio.fail_after(10):
        while not await holds():
            await anyio.sleep(0.005)


async def has_status(handle: Any, wanted: str) -> None:
    async def has() -> bool:
        return (await handle.describe()).status == wanted

    await until(has)


@pytest.mark.parametrize("object_name", ["Holding", "Skipping"])
async def test_what_is_parked_is_brought_back_to_clean_up(store_url: str, namespace: str, object_name: str) -> None:
    """In its lane or beside it, by the owner that has parked it or by the next one; without a further attempt."""
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        first = await runtime.client.send(object_name, "acme/p", "spent")
        await has_status(first, "paused")
        assert (await first.cancel(timeout=10)).outcome == "cancelled"
        second = await runtime.client.send(object_name, "acme/p", "spent")
        await has_status(second, "paused")
        second_id = second.id
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        report = await runtime.client.cancel(second_id, timeout=10)
        assert (report.outcome, report.committed) == ("cancelled", ("clean up",))
        assert await runtime.client.call(object_name, "acme/p", "touch", timeout=10) == "touched"
        assert (await runtime.client.inspect(object_name, "acme/p")).lane.open == ()
    assert trail.count("attempt") == 4
    assert trail[-1] == "told"


async def test_what_the_code_can_not_replay_ends_at_once(store_url: str, namespace: str) -> None:
    """One that has diverged has no code that could clean up: its person has decided with that in view."""
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(diverges, "acme/d")
        await has_status(handle, "waiting")
        invocation_id = handle.id
    names["step"] = "second"
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        handle = runtime.client.attach(invocation_id)
        # It waits, so that its code runs only when it is told.
        told = await handle.cancel(timeout=10)
        assert told.outcome == "paused"
        assert (await handle.describe()).pause is not None
        again = await handle.cancel(timeout=10)
        assert again.outcome == "cancelled"
        assert await runtime.client.call(touch, "acme/d", timeout=10) == "touched"


async def test_what_has_too_many_records_is_told_all_the_same(store_url: str, namespace: str) -> None:
    """That it is cancelled needs no more room than its end."""
    few = App([holding], settings=Settings(records_per_invocation=10))
    async with Runtime(few, store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(long_one, "acme/l")
        await has_status(handle, "paused")
        assert (await handle.cancel(timeout=10)).outcome == "cancelled"


async def test_a_thread_that_is_killed_is_left_behind(store_url: str, namespace: str) -> None:
    """A plain function can't be ended from outside: its lane is free, and whatever it does next is refused."""
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(blocks, "acme/b")
        await anyio.to_thread.run_sync(begun.wait, 10)
        report = await runtime.client.kill(handle.id, by="ops", reason="stuck", timeout=10)
        assert report.outcome == "killed"
        assert await runtime.client.call(touch, "acme/b", timeout=10) == "touched"
        released.set()


async def test_a_handler_with_branches_is_killed_with_all_of_them(store_url: str, namespace: str) -> None:
    """Its steps are broken off, its due times are gone, and nothing of it is recorded any more."""
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(sleeps_in_branches, "acme/k")
        await anyio.to_thread.run_sync(begun.wait, 10)
        report = await runtime.client.kill(handle.id, by="ops", reason="stuck", timeout=10)
        assert report.outcome == "killed"
        assert await runtime.client.call(touch, "acme/k", timeout=10) == "touched"

        async def is_left() -> bool:
            return trail == ["left"]

        await until(is_left)
        for partition in runtime.worker.partitions:
            assert await runtime.client.store.call("ZCARD", partition.space.due) == 0


@pytest.mark.slow
async def test_the_shell_cancels_and_kills(store_url: str, namespace: str) -> None:
    """Its exit code is the answer: 0 when it is so, 1 when it had ended otherwise; `describe` shows who asked."""
    where = ("--store", store_url, "--namespace", namespace)
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        handles = [await runtime.client.send(diverges, f"acme/{number}") for number in range(2)]
        for handle in handles:
            await has_status(handle, "waiting")
        first, second = (handle.id for handle in handles)

        async def shell(*words: str) -> Any:
            return await anyio.to_thread.run_sync(lambda: run(*words, *where))

        done = await shell("cancel", first, "--by", "ann", "--reason", "twice")
        assert (done.code, done.out.splitlines()) == (
            0,
            [f"{first} cancelled", "  stopped: sleep of 3,600 s", "  committed: first"],
        )
        done = await shell("kill", second, "--by", "ops", "--reason", "stuck", "--json")
        assert (done.code, json.loads(done.out)["outcome"]) == (0, "killed")
        done = await shell("compensation", "skip", first, "--by", "ops", "--reason", "by hand")
        assert done.code == 1
        assert "no undo of it has failed" in done.err
        shown = (await shell("describe", first)).out
        assert "asked for by ann" in shown
        assert "its handler was told" in shown


async def test_a_cancel_that_is_asked_for_twice_is_told_once(store_url: str, namespace: str) -> None:
    """Both get the report; the journal has it once."""
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(diverges, "acme/t")
        await has_status(handle, "waiting")
        reports: list[str] = []

        async def cancel() -> None:
            reports.append((await handle.cancel(timeout=10)).outcome)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(cancel)
        assert reports == ["cancelled"] * 3
        with pytest.raises(InvocationCancelled):
            await handle.result(timeout=10)
        told = await handle.describe()
        space = runtime.client.store.space(told.object_name, told.partition)
        entries = await runtime.client.store.call("XRANGE", space.invocation(bytes.fromhex(handle.id[-32:])), "-", "+")
        records = [decode(fields[1]) for _, fields in entries]
        assert sum(isinstance(each, CancelDelivered) for each in records) == 1
