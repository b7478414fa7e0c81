"""`ctx.patched`: old and new code in one handler, and each invocation goes on with the one that it began with."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from keylane import BlockingObjectContext, Handle, ObjectContext, RetryPolicy, Runtime, Settings, VirtualObject
from keylane.journal.key import parse_id
from keylane.journal.lane_reading import read_invocations
from keylane.journal.records import PatchMarked
from keylane.testing import shift_clock
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=3)
trail: list[str] = []
answers: list[bool] = []


@pytest.fixture(autouse=True)
def _afresh() -> None:
    trail.clear()
    answers.clear()


def _note(text: str) -> None:
    trail.append(text)


def desk(*, is_new: bool, fails: bool = False) -> VirtualObject:
    """Return a type whose newer code has a step that the older code lacks, behind a question for it."""
    made = VirtualObject("Desk", owner="tests", partitions=1, retry=QUICK)
    failures = iter([fails])

    @made.handler
    async def work(ctx: ObjectContext) -> list[bool]:  # pyright: ignore[reportUnusedFunction]
        await ctx.run("first", _note, "first")
        await ctx.sleep(3600)
        asked: list[bool] = []
        for _ in range(2):
            if is_new:
                asked.append(ctx.patched("check"))
                if asked[-1]:
                    await ctx.run("check", _note, "check")
            await ctx.run("second", _note, "second")
        if next(failures, False):
            raise ValueError("once more")
        answers.extend(asked)
        return asked

    return made


def opened(store_url: str, namespace: str, hosted: VirtualObject) -> Runtime:
    return Runtime([hosted], store=store_url, namespace=namespace, settings=Settings())


async def sent(runtime: Runtime, handler: str = "work") -> Handle[Any]:
    handle = await runtime.client.send("Desk", "acme/d", handler)

    async def waits() -> bool:
        return (await handle.describe()).status == "waiting"

    await eventually(waits)
    return handle


async def marks(runtime: Runtime, invocation_id: str) -> list[str]:
    """Return the patches that a journal names."""
    store, parsed = runtime.client.store, parse_id(invocation_id)
    (found,) = await read_invocations(store, runtime.client.space_of(parsed), [parsed.raw])
    return [record.name for record in found.records if isinstance(record, PatchMarked)]


async def test_an_invocation_that_had_not_come_to_the_change_takes_the_new_code(store_url: str, namespace: str) -> None:
    """It is marked in its journal, so that a replay takes it too, and the second question gets the first answer."""
    async with opened(store_url, namespace, desk(is_new=False)) as runtime:
        handle = await sent(runtime)
    async with opened(store_url, namespace, desk(is_new=True, fails=True)) as runtime:
        await shift_clock(runtime, timedelta(hours=2))
        assert await runtime.client.attach(handle.id).result(timeout=10) == [True, True]
        assert await marks(runtime, handle.id) == ["check"]
    assert trail == ["first", "check", "second", "check", "second"]


async def test_an_invocation_that_was_past_the_change_stays_with_the_old_code(store_url: str, namespace: str) -> None:
    """Also at a later question for the same change that it comes to for the first time."""

    def of(*, is_new: bool) -> VirtualObject:
        made = VirtualObject("Desk", owner="tests", partitions=1)

        @made.handler
        async def work(ctx: ObjectContext) -> list[bool]:  # pyright: ignore[reportUnusedFunction]
            asked: list[bool] = []
            for _ in range(2):
                if is_new:
                    asked.append(ctx.patched("check"))
                    if asked[-1]:
                        await ctx.run("check", _note, "check")
                await ctx.run("second", _note, "second")
                await ctx.sleep(3600)
            return asked

        return made

    async with opened(store_url, namespace, of(is_new=False)) as runtime:
        handle = await sent(runtime)
    for _ in range(2):
        async with opened(store_url, namespace, of(is_new=True)) as runtime:
            await shift_clock(runtime, timedelta(hours=2))

            async def waits_again(runtime: Runtime = runtime) -> bool:
                told = await runtime.client.describe(handle.id)
                return told.status == "completed" or len(told.steps) == 4

            await eventually(waits_again)
    async with opened(store_url, namespace, of(is_new=True)) as runtime:
        assert await runtime.client.attach(handle.id).result(timeout=10) == [False, False]
        assert await marks(runtime, handle.id) == []
    assert trail == ["second", "second"]


async def test_the_answer_is_the_same_in_a_hundred_replays(store_url: str, namespace: str) -> None:
    """However often the handler is run again behind the change, and where the mark stands in the journal."""
    made = VirtualObject("Desk", owner="tests", partitions=1, retry=RetryPolicy(first=timedelta(0), attempts=200))
    runs: list[bool] = []

    @made.handler
    async def work(ctx: ObjectContext) -> bool:
        await ctx.run("first", _note, "first")
        # Asked ahead of a step here, and found behind it in the journal of the first run.
        is_new = ctx.patched("order") if runs else None
        await ctx.run("second", _note, "second")
        if is_new is None:
            is_new = ctx.patched("order")
        await ctx.run("third", _note, "third")
        runs.append(is_new)
        if len(runs) < 100:
            raise ValueError("once more")
        return is_new

    async with opened(store_url, namespace, made) as runtime:
        assert await runtime.client.call(work, "acme/d", timeout=30)
    assert runs == [True] * 100
    assert trail == ["first", "second", "third"]


async def test_a_patch_that_was_asked_for_before_anything_was_recorded_is_marked(
    store_url: str, namespace: str
) -> None:
    """Its mark goes ahead of the first record, in the commit that takes the invocation in or in one behind it."""
    made = VirtualObject("Desk", owner="tests", partitions=1, retry=QUICK)

    @made.handler
    async def work(ctx: ObjectContext) -> bool:
        is_new = ctx.patched("early")
        await ctx.run("first", _note, "first")
        await ctx.sleep(3600)
        return is_new

    @made.handler
    def blocking(ctx: BlockingObjectContext) -> bool:
        is_new = ctx.patched("early")
        ctx.sleep(3600)
        return is_new

    async with opened(store_url, namespace, made) as runtime:
        for handler in (work, blocking):
            handle = await runtime.client.send(handler, f"acme/{handler.name}")

            async def waits(handle: Handle[bool] = handle) -> bool:
                return (await handle.describe()).status == "waiting"

            await eventually(waits)
            assert await marks(runtime, handle.id) == ["early"]
            await shift_clock(runtime, timedelta(hours=2))
            assert await handle.result(timeout=10)


async def test_a_question_that_nothing_is_recorded_behind_leaves_no_mark(store_url: str, namespace: str) -> None:
    """A short handler stays short."""
    made = VirtualObject("Desk", owner="tests", partitions=1)

    @made.handler
    async def work(ctx: ObjectContext) -> bool:
        return ctx.patched("nothing")

    async with opened(store_url, namespace, made) as runtime:
        assert await runtime.client.call(work, "acme/d", timeout=10)
        told = await runtime.client.inspect("Desk", "acme/d")
        assert [event.what for event in told.timeline] == ["completed"]


async def test_a_patch_in_a_branch_has_the_same_answer_in_a_hundred_replays(store_url: str, namespace: str) -> None:
    """Whichever branch asks first, and whatever the others have recorded by then."""
    made = VirtualObject("Desk", owner="tests", partitions=1, retry=RetryPolicy(first=timedelta(0), attempts=200))
    runs: list[list[bool]] = []

    @made.handler
    async def work(ctx: ObjectContext) -> list[bool]:
        async def branch(name: str) -> bool:
            await ctx.run(f"before {name}", _note, name)
            is_new = ctx.patched("in a branch")
            await ctx.run("new" if is_new else "old", _note, name)
            return is_new

        found = await ctx.gather(*(branch(name) for name in "abc"))
        runs.append(list(found))
        if len(runs) < 100:
            raise ValueError("once more")
        return list(found)

    async with opened(store_url, namespace, made) as runtime:
        assert await runtime.client.call(work, "acme/d", timeout=30) == [True, True, True]
    assert runs == [[True] * 3] * 100
    # How often each ran is another matter: one that has not ended when a run does is begun again.
    assert set(trail) == {"a", "b", "c"}
