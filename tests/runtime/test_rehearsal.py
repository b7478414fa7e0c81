"""Rehearsals: code is held against journals, no step of it runs, and nothing is written."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from keylane import (
    App,
    BlockingObjectContext,
    Handle,
    ObjectContext,
    RetryPolicy,
    Runtime,
    Settings,
    TerminalError,
    VirtualObject,
)
from keylane.journal.codec import Undecodable
from keylane.journal.exported import Journal, journals_in, lines_of
from keylane.journal.key import parse_id
from keylane.journal.open_journals import open_journals, read_journal
from keylane.runtime.deploy_check import Verdict, check
from keylane.runtime.rehearsal import Fit, Rehearsal, Rehearsed
from keylane.testing import shift_clock
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=2)
trail: list[str] = []
Way = Callable[[ObjectContext], Awaitable[Any]]

callee = VirtualObject("Callee", owner="tests", partitions=2)


@callee.handler
async def answer(ctx: ObjectContext, name: str) -> str:
    return name


@pytest.fixture(autouse=True)
def _afresh() -> None:
    trail.clear()


def _note(text: str) -> str:
    trail.append(text)
    return text


def desk(way: Way, **more: Any) -> VirtualObject:
    """Return a type whose handler does what it is given."""
    made = VirtualObject("Desk", owner="tests", partitions=1, retry=QUICK, **more)

    @made.handler
    async def work(ctx: ObjectContext, name: str) -> Any:  # pyright: ignore[reportUnusedFunction]
        return await way(ctx)

    return made


async def recorded(ctx: ObjectContext) -> str:
    """What was there when the journals were written: one of each kind of command, and then a long sleep."""
    first = await ctx.run("first", _note, "first")
    ctx.set("seen", await ctx.get("seen", int, 0) + 1)
    await ctx.call(answer, "acme/c", "x")
    await ctx.send(answer, "acme/s", "y")
    await ctx.sleep(0.001)
    await ctx.run("second", _note, f"second {await ctx.time()} {ctx.uuid()}")
    await ctx.sleep(3600)
    return await ctx.run("last", _note, first)


async def waits_long(handle: Handle[Any]) -> None:
    """Wait until an invocation is in its last sleep."""

    async def is_so() -> bool:
        told = await handle.describe()
        return len(told.steps) == 6 and told.status == "waiting"

    await eventually(is_so)


async def journal_of(store_url: str, namespace: str, way: Way = recorded, *, ends: bool = False) -> Journal:
    """Have a journal written and read it back from a file."""
    async with Runtime([desk(way), callee], store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send("Desk", "acme/d", "work", "x")
        await waits_long(handle)
        if ends:
            await shift_clock(runtime, timedelta(hours=2))
            await handle.result(timeout=10)
        journal, written = await read_journal(runtime.client.store, parse_id(handle.id))
    trail.clear()
    (read,) = journals_in(lines_of(journal, written))
    assert read == journal
    return read


async def rehearsed(journal: Journal, hosted: VirtualObject, **more: Any) -> Rehearsed:
    result = await Rehearsal(App([hosted, callee]), **more).of(journal)
    assert trail == [], "a step ran in a rehearsal"
    return result


@pytest.mark.parametrize("ends", [False, True])
async def test_code_that_agrees_with_a_journal_fits(store_url: str, namespace: str, *, ends: bool) -> None:
    """Up to where the journal ends, or to the end of the handler."""
    journal = await journal_of(store_url, namespace, ends=ends)
    result = await rehearsed(journal, desk(recorded))
    assert (result.fit, result.detail, result.is_breaking) == (Fit.FITS, "", False)


async def test_steps_that_were_swapped_diverge_with_what_a_worker_would_say(store_url: str, namespace: str) -> None:
    """The recorded command, the attempted one and the line: the same words as of the pause that it would come to."""
    journal = await journal_of(store_url, namespace)

    async def swapped(ctx: ObjectContext) -> None:
        await ctx.call(answer, "acme/c", "x")
        await ctx.run("first", _note, "first")

    result = await rehearsed(journal, desk(swapped))
    assert (result.fit, result.recorded) == (Fit.DIVERGES, "step 0 'first'")
    assert result.attempted == "command 0, call of Callee.answer at acme/c"
    assert Path(__file__).name in result.line


@pytest.mark.parametrize(
    ("at", "made", "expected"),
    [
        ("ends", None, (Fit.ENDS_EARLY, "command 1, call of Callee.answer at acme/c", "the end of the handler")),
        ("raises", ValueError("no"), (Fit.RAISES, "command 1, call of Callee.answer at acme/c", "ValueError: no")),
        ("fails", TerminalError("no"), (Fit.RAISES, "command 1, call of Callee.answer at acme/c", "TerminalError: no")),
    ],
)
async def test_a_handler_that_leaves_its_journal_early_does_not_fit(
    store_url: str, namespace: str, at: str, made: Exception | None, expected: tuple[Any, ...]
) -> None:
    """By returning or by raising, while recorded commands lie ahead."""
    del at
    journal = await journal_of(store_url, namespace)

    async def early(ctx: ObjectContext) -> None:
        await ctx.run("first", _note, "first")
        if made is not None:
            raise made

    result = await rehearsed(journal, desk(early))
    assert (result.fit, result.recorded, result.attempted) == expected


async def test_what_is_swallowed_is_found_all_the_same(store_url: str, namespace: str) -> None:
    """A handler that catches everything does not hide that it disagrees, and runs no step behind that."""
    journal = await journal_of(store_url, namespace)

    async def greedy(ctx: ObjectContext) -> str:
        with contextlib.suppress(BaseException):
            await ctx.run("other", _note, "first")
        return await ctx.run("once more", _note, "more")

    assert (await rehearsed(journal, desk(greedy))).fit is Fit.DIVERGES


async def test_nothing_runs_past_the_end_of_a_journal(store_url: str, namespace: str) -> None:
    """Not the next step, no call, no message and no sleep; each of them is the end of the rehearsal."""
    journal = await journal_of(store_url, namespace)
    cut = replace(journal, records=journal.records[:2])

    async def step(ctx: ObjectContext) -> Any:
        await ctx.run("first", _note, "first")
        return await ctx.run("next", _note, "next")

    async def call(ctx: ObjectContext) -> Any:
        await ctx.run("first", _note, "first")
        return await ctx.call(answer, "acme/c", "x")

    async def send(ctx: ObjectContext) -> Any:
        await ctx.run("first", _note, "first")
        return await ctx.send(answer, "acme/c", "x")

    async def sleep(ctx: ObjectContext) -> Any:
        await ctx.run("first", _note, "first")
        await ctx.sleep(1)
        raise AssertionError("it slept")

    for way in (step, call, send, sleep):
        result = await rehearsed(cut, desk(way))
        assert (result.fit, result.detail) == (Fit.FITS, "")


async def test_a_finished_journal_notices_code_that_goes_on(store_url: str, namespace: str) -> None:
    """So that a golden journal pins the whole of a handler."""
    journal = await journal_of(store_url, namespace, ends=True)

    async def longer(ctx: ObjectContext) -> None:
        await recorded(ctx)
        await ctx.run("one more", _note, "more")

    assert (await rehearsed(journal, desk(longer))).fit is Fit.GOES_ON


async def test_reads_and_draws_of_a_rehearsal_are_those_of_the_recorded_run(store_url: str, namespace: str) -> None:
    """State as it was read then, the time, random numbers; past the journal the object's state."""
    journal = await journal_of(store_url, namespace)
    seen: list[Any] = []

    async def looks(ctx: ObjectContext) -> Any:
        await ctx.run("first", _note, "first")
        seen.append(await ctx.get("seen", int, 0))
        ctx.set("seen", 1)
        await ctx.call(answer, "acme/c", "x")
        await ctx.send(answer, "acme/s", "y")
        await ctx.sleep(0.001)
        seen.append(str(await ctx.time()))
        seen.append(str(ctx.uuid()))
        seen.append(await ctx.run("second", _note, "second"))
        await ctx.sleep(3600)
        return None

    assert (await rehearsed(journal, desk(looks))).fit is Fit.FITS
    assert seen[0] == 0
    assert seen[3] == f"second {seen[1]} {seen[2]}"
    assert journal.state.keys() == {"seen"}


async def test_blocking_handlers_are_rehearsed_too(store_url: str, namespace: str) -> None:
    """In a thread, as they run."""
    made = VirtualObject("Desk", owner="tests", partitions=1)
    swap = [False]

    @made.handler
    def work(ctx: BlockingObjectContext) -> None:
        for name in ("b", "a") if swap[0] else ("a", "b"):
            ctx.run(name, _note, name)
        ctx.sleep(3600)

    async with Runtime([made], store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(work, "acme/d")

        async def waits() -> bool:
            return (await handle.describe()).status == "waiting"

        await eventually(waits)
        journal, _ = await read_journal(runtime.client.store, parse_id(handle.id))
    trail.clear()
    assert (await rehearsed(journal, made)).fit is Fit.FITS
    swap[0] = True
    assert (await rehearsed(journal, made)).fit is Fit.DIVERGES


async def test_code_that_has_not_what_a_journal_needs_says_what(store_url: str, namespace: str) -> None:
    """A type, a handler, a version, an argument that fits, a state that can be migrated, an end."""
    journal = await journal_of(store_url, namespace)

    def broken(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        raise ZeroDivisionError("broken")

    async def stuck(ctx: ObjectContext) -> None:
        await anyio.sleep(60)

    other = VirtualObject("Desk", owner="tests")

    @other.handler(name="work", version=3)
    async def newer(ctx: ObjectContext, name: str) -> None:  # pyright: ignore[reportUnusedFunction]
        pass

    narrow = VirtualObject("Desk", owner="tests")

    @narrow.handler(name="work")
    async def numbers(ctx: ObjectContext, name: int) -> None:  # pyright: ignore[reportUnusedFunction]
        pass

    found = [
        await rehearsed(journal, VirtualObject("Other", owner="tests")),
        await rehearsed(journal, VirtualObject("Desk", owner="tests")),
        await rehearsed(journal, other),
        await rehearsed(journal, narrow),
        await rehearsed(journal, desk(recorded, state_version=2, migrate=broken)),
        await rehearsed(journal, desk(stuck), limit_seconds=0.05),
    ]
    assert [each.fit for each in found] == [
        Fit.NO_SUCH_TYPE,
        Fit.NEEDS_VERSION,
        Fit.NEEDS_VERSION,
        Fit.INVALID_INPUT,
        Fit.MIGRATION_FAILED,
        Fit.STUCK,
    ]
    assert found[2].detail == "needs version 1 of handler 'work'; this code has 3"


async def test_large_values_are_in_the_file(store_url: str, namespace: str) -> None:
    """A journal by itself is enough; where one lacks a value, the rehearsal says so."""
    large = "x" * 50_000

    async def big(ctx: ObjectContext) -> int:
        await ctx.run("first", _note, large)
        ctx.set("seen", 1)
        await ctx.call(answer, "acme/c", "x")
        await ctx.send(answer, "acme/s", "y")
        await ctx.sleep(0.001)
        got = await ctx.run("second", _note, large)
        await ctx.sleep(3600)
        return len(got)

    journal = await journal_of(store_url, namespace, big)
    assert (await rehearsed(journal, desk(big))).fit is Fit.FITS
    without = replace(journal, large={})
    assert (await rehearsed(without, desk(big))).fit is Fit.VALUE_LOST


async def test_a_file_of_a_later_form_or_one_that_was_cut_is_refused(store_url: str, namespace: str) -> None:
    """With the line at which it can't be read; lines that a later release adds are passed over."""
    async with Runtime([desk(recorded), callee], store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send("Desk", "acme/d", "work", "x")
        await waits_long(handle)
        lines = list(lines_of(*(await read_journal(runtime.client.store, parse_id(handle.id)))))
    (journal,) = journals_in([*lines[:1], '{"weather": "fine"}', "", *lines[1:]])
    assert journal.id == handle.id
    assert [each.id for each in journals_in(lines * 2)] == [handle.id, handle.id]
    for wrong, why in (
        (lines[:-1], "cut off"),
        (lines[1:], "line 1: it does not begin"),
        ([*lines[:-2], lines[-1]], "records where"),
        ([lines[0].replace('"form": 1', '"form": 2'), *lines[1:]], "line 1: its form is 2"),
        (["[]"], "line 1: no JSON object"),
        ([*lines[:2], '{"record": "?", "at_ms": 1}'], "line 3: no base64"),
        ([lines[0], lines[0]], "line 2: a journal begins before"),
    ):
        with pytest.raises(Undecodable, match=why):
            list(journals_in(wrong))


async def verdict(runtime: Runtime, *hosted: VirtualObject) -> Verdict:
    """Check the store of a runtime against other code."""
    store = runtime.client.store
    return await check(Rehearsal(App([*hosted]), store), open_journals(store, {each.name for each in hosted}))


async def test_a_deploy_check_rehearses_every_open_journal_and_changes_nothing(store_url: str, namespace: str) -> None:
    """Waiting, parked, queued behind others and scheduled ones, and none that has ended; by cause, with the oldest."""
    async with Runtime([desk(recorded), callee], store=store_url, namespace=namespace) as runtime:
        keys = ["acme/a", "acme/b", "umbrella/c"]
        handles = [await runtime.client.send("Desk", key, "work", "x") for key in keys]
        for handle in handles:
            await waits_long(handle)
        queued = await runtime.client.send("Desk", "acme/a", "work", "x")
        later = await runtime.client.send("Desk", "acme/e", "work", "x", delay=3600)
        for each in (queued, later):
            await each.accepted(timeout=10)

        async def is_durable() -> bool:
            return (await queued.describe()).place == "journal"

        await eventually(is_durable)
        keys_before = sorted(await runtime.client.store.call("KEYS", f"{{{namespace}:*"))
        trail.clear()

        fine = await verdict(runtime, desk(recorded))
        assert (fine.may_deploy, fine.journals) == (True, 5)
        assert dict(fine.versions) == {("Desk", "work", 1): 5}

        async def renamed(ctx: ObjectContext) -> None:
            await ctx.run("first, renamed", _note, "first")

        broken = await verdict(runtime, desk(renamed))
        assert not broken.may_deploy
        (one,) = broken.breaking
        assert (one.invocations, one.keys, len(one.named)) == (3, 3, 3)
        assert one.cause.recorded == "step 0 'first'"
        assert one.cause.attempted == "step 0 'first, renamed'"
        accepted = [(await handle.describe()).accepted_at for handle in handles]
        assert one.oldest == min(each for each in accepted if each is not None)
        assert sorted(await runtime.client.store.call("KEYS", f"{{{namespace}:*")) == keys_before
        assert trail == []


async def test_a_deploy_check_says_which_old_ways_are_still_gone(store_url: str, namespace: str) -> None:
    """So that somebody knows when a question for a patch, or an old version, can be taken out of the code."""

    async def patched(ctx: ObjectContext) -> Any:
        first = await ctx.run("first", _note, "first")
        ctx.patched("check")
        ctx.set("seen", 1)
        await ctx.call(answer, "acme/c", "x")
        await ctx.send(answer, "acme/s", "y")
        await ctx.sleep(0.001)
        await ctx.run("second", _note, "second")
        await ctx.sleep(3600)
        ctx.patched("later")
        return first

    async with Runtime([desk(recorded), callee], store=store_url, namespace=namespace, settings=Settings()) as runtime:
        await waits_long(await runtime.client.send("Desk", "acme/a", "work", "x"))
        trail.clear()
        found = await verdict(runtime, desk(patched))
        assert found.may_deploy
        assert dict(found.old_ways) == {("Desk", "work", "check"): 1}


async def in_branches(ctx: ObjectContext) -> Any:
    """Steps, calls and sleeps beside each other, and a race whose loser is withdrawn."""
    await ctx.run("first", _note, "first")

    async def one(name: str) -> str:
        got = await ctx.call(answer, f"acme/{name}", name)
        return await ctx.run(f"step {name}", _note, got)

    both = await ctx.gather(one("a"), one("b"), ctx.run("alone", _note, "alone"))
    ctx.set("seen", 1)
    await ctx.select(short=ctx.sleep(0.001), long=ctx.sleep(3000))
    await ctx.gather(ctx.sleep(0.002), ctx.sleep(3600))
    return both


async def branched(store_url: str, namespace: str) -> Journal:
    """Return the journal of an invocation that waits in a branch."""
    async with Runtime([desk(in_branches), callee], store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send("Desk", "acme/d", "work", "x")

        async def has_come_far() -> bool:
            told = await handle.describe()
            return told.status == "waiting" and sum(each.name.startswith("sleep") for each in told.steps) == 4

        await eventually(has_come_far)
        journal, _ = await read_journal(runtime.client.store, parse_id(handle.id))
    trail.clear()
    return journal


async def test_branches_are_rehearsed_in_the_order_of_their_journal(store_url: str, namespace: str) -> None:
    """Up to where each of them waits; none of them runs a step, asks anybody or sets a timer."""
    journal = await branched(store_url, namespace)
    result = await rehearsed(journal, desk(in_branches), limit_seconds=5)
    assert (result.fit, result.detail, result.recorded) == (Fit.FITS, "", "")
    for count in range(2, len(journal.records)):
        result = await rehearsed(replace(journal, records=journal.records[:count]), desk(in_branches), limit_seconds=5)
        assert (count, result.fit, result.recorded) == (count, Fit.FITS, "")


async def test_branches_that_ask_for_something_else_diverge(store_url: str, namespace: str) -> None:
    """A branch more, one less, or another command in one of them."""
    journal = await branched(store_url, namespace)

    async def fewer(ctx: ObjectContext) -> Any:
        await ctx.run("first", _note, "first")
        await ctx.gather(ctx.call(answer, "acme/a", "a"))
        return await ctx.run("last", _note, "last")

    async def other(ctx: ObjectContext) -> Any:
        await ctx.run("first", _note, "first")
        await ctx.gather(ctx.run("other", _note, "a"), ctx.run("another", _note, "b"))

    async def none(ctx: ObjectContext) -> Any:
        await ctx.run("first", _note, "first")
        return await ctx.run("last", _note, "last")

    for way in (fewer, other, none):
        result = await rehearsed(journal, desk(way), limit_seconds=5)
        assert result.fit is Fit.DIVERGES
        assert Path(__file__).name in result.line


async def test_a_handler_that_has_failed_and_is_being_undone_fits(store_url: str, namespace: str) -> None:
    """The records of undos are no commands of its own, and it raises ahead of them as it did."""
    made = VirtualObject("Desk", owner="tests", partitions=1, retry=QUICK)

    @made.handler
    async def work(ctx: ObjectContext) -> None:
        ctx.compensate("undo", _note, "undo")
        await ctx.run("first", _note, "first")
        raise TerminalError("no")

    async with Runtime([made], store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(work, "acme/d")

        async def is_failed() -> bool:
            return (await handle.describe()).status == "failed"

        await eventually(is_failed)
        journal, _ = await read_journal(runtime.client.store, parse_id(handle.id))
    assert trail == ["first", "undo"]
    trail.clear()
    assert (await rehearsed(journal, made)).fit is Fit.FITS


@pytest.mark.parametrize("kind", ["sleep", "signal", "call", "approval"])
async def test_what_a_cancelled_handler_did_after_it_was_told_is_rehearsed(
    store_url: str, namespace: str, kind: str
) -> None:
    """Whatever it waited for when it was told: code that cleans up in another way does not fit."""
    slow = VirtualObject("Slow", owner="tests", partitions=1)

    @slow.handler
    async def never(ctx: ObjectContext) -> None:
        await ctx.sleep(36_000)

    async def waiting(ctx: ObjectContext) -> None:
        match kind:
            case "sleep":
                await ctx.sleep(36_000)
            case "signal":
                await ctx.signal("go", str)
            case "call":
                await ctx.call(never, "acme/never")
            case _:
                await ctx.approval(await ctx.propose(action="it", amount=1))

    def cleaning(step: str) -> Way:
        async def way(ctx: ObjectContext) -> None:
            try:
                await waiting(ctx)
            finally:
                await ctx.run(step, _note, step)
                await ctx.sleep(3_600)

        return way

    async with Runtime([desk(cleaning("clean")), slow], store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send("Desk", "acme/d", "work", "x")

        async def waits() -> bool:
            return (await handle.describe()).waits_for is not None

        async def has_cleaned() -> bool:
            return trail == ["clean"] and await waits()

        await eventually(waits)
        async with anyio.create_task_group() as cancelling:
            cancelling.start_soon(handle.cancel)
            await eventually(has_cleaned)
            cancelling.cancel_scope.cancel()
        journal, _ = await read_journal(runtime.client.store, parse_id(handle.id))
    trail.clear()
    assert (await rehearsed(journal, desk(cleaning("clean")))).fit is Fit.FITS
    result = await rehearsed(journal, desk(cleaning("tidy")))
    assert (result.fit, result.attempted.partition(" ")[0]) == (Fit.DIVERGES, "step")
