"""`ctx.attach`: a handler waits for the end of an invocation that was asked for elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from keylane import (
    BlockingObjectContext,
    Client,
    Deadlock,
    Handle,
    InvocationFailed,
    KeylaneError,
    ObjectContext,
    RetryPolicy,
    Runtime,
    Settings,
    TerminalError,
    VirtualObject,
)
from keylane.journal.errors import code_of
from keylane.journal.key import format_id, new_invocation_id
from keylane.testing import shift_clock
from tests.faults.harness import eventually, eventually_answers
from tests.objects_catalogue import mark, marks, opened

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=2)
LARGE = "x" * 100_000


class Told(BaseModel):
    """What a handler answers, so that the type of an output counts."""

    word: str


worker = VirtualObject("Worker", owner="tests", partitions=2, retry=QUICK)
waiter = VirtualObject("Waiter", owner="tests", partitions=2, state={"runs": int}, retry=QUICK)


@worker.handler
async def work(ctx: ObjectContext, gate: str) -> Told:
    """Return a word once a file exists."""
    if gate:
        await ctx.run("gate", opened, gate)
    return Told(word=ctx.key.key)


@worker.handler
async def doze(ctx: ObjectContext) -> None:
    await ctx.sleep(600)


@worker.handler
async def work_at_once(ctx: ObjectContext) -> str:
    return LARGE if ctx.key.key == "large" else ctx.key.key


@worker.handler
async def fail(ctx: ObjectContext, gate: str) -> None:
    if gate:
        await ctx.run("gate", opened, gate)
    raise TerminalError("not today", code="closed")


@worker.handler
async def stumble(ctx: ObjectContext, gate: str) -> str:
    """Fail until a file exists, which parks it."""
    if not Path(gate).exists():
        raise ValueError("not yet")
    return "stumbled on"


@waiter.handler
async def wait_for(ctx: ObjectContext, asked: list[str]) -> Told:
    """Wait for an invocation, and leave marks around it."""
    target, trail = asked
    await ctx.run("before", mark, trail, "before")
    told = await ctx.attach(target, Told)
    await ctx.run("after", mark, trail, "after")
    return told


@waiter.handler
async def wait_plainly(ctx: ObjectContext, target: str) -> Any:
    return await ctx.attach(target)


@waiter.handler
async def wait_caught(ctx: ObjectContext, target: str) -> str:
    try:
        return await ctx.attach(target, str)
    except KeylaneError as error:
        return f"{code_of(error)}: {error.message}"


@waiter.handler
def wait_blocking(ctx: BlockingObjectContext, target: str) -> Told:
    return ctx.attach(target, Told)


@waiter.handler
async def send_and_wait(ctx: ObjectContext, key: str) -> str:
    """Wait for what was sent by the same handler, to whichever object."""
    sent = await ctx.send("Worker" if key else "Waiter", f"acme/{key or ctx.key.key}", "work_at_once" if key else "end")
    try:
        return await ctx.attach(sent.id, str)
    except Deadlock as error:
        return " → ".join(error.path)


@waiter.handler
async def end(ctx: ObjectContext) -> str:
    return "end"


@waiter.handler
async def wait_for_myself(ctx: ObjectContext) -> str:
    try:
        return await ctx.attach(ctx.invocation_id, str)
    except Deadlock as error:
        return " → ".join(error.path)


@waiter.handler
async def hold_and_wait(ctx: ObjectContext, asked: list[str]) -> str:
    """Hold the lane until a file exists, and then wait for what it names, by attaching."""
    trail, gate, target = asked
    await ctx.run("mark", mark, trail, ctx.key.key)
    await ctx.run("gate", opened, gate)
    try:
        return await ctx.attach(Path(target).read_text(), str)
    except Deadlock as error:
        return " → ".join(error.path)


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime([worker, waiter], store=store_url, namespace=namespace) as runtime:
        yield runtime


async def is_in(client: Client, handle: Handle[Any], status: str) -> bool:
    return (await client.describe(handle.id)).status == status


async def check_nothing_is_left(runtime: Runtime) -> None:
    """Make sure that no note of one who waits is left, and no request in an inbox."""
    call = runtime.client.store.call
    for name in ("Worker", "Waiter"):
        for number in range(2):
            space = runtime.client.store.space(name, number)
            assert await call("KEYS", space.attached(b"").decode().replace("{", "\\{") + "*") == []
            await eventually_answers(lambda space=space: is_empty(runtime, space.inbox), "the inbox is empty")


async def is_empty(runtime: Runtime, inbox: bytes) -> bool:
    return await runtime.client.store.call("XLEN", inbox) == 0


async def test_a_handler_waits_for_an_invocation_that_a_client_has_sent(runtime: Runtime, tmp_path: Path) -> None:
    """With the type of its output, also when many wait for the same one."""
    gate = tmp_path / "gate"
    sent = await runtime.client.send(work, "acme/w", str(gate))
    waiting = [
        await runtime.client.send(wait_for, f"acme/{number}", [sent.id, str(tmp_path / str(number))])
        for number in range(5)
    ]
    blocking = await runtime.client.send(wait_blocking, "acme/b", sent.id)
    for handle in (*waiting, blocking):
        await eventually_answers(lambda handle=handle: is_in(runtime.client, handle, "waiting"), "it waits")
    why = (await runtime.client.inspect("Waiter", "acme/0")).lane.open[0].why
    assert why == f"waits for the result of {sent.id}"
    gate.touch()

    assert [await handle.result(timeout=10) for handle in (*waiting, blocking)] == [Told(word="w")] * 6
    assert [step.name for step in (await waiting[0].describe()).steps] == ["before", f"result of {sent.id}", "after"]
    await check_nothing_is_left(runtime)


async def test_one_that_has_ended_answers_at_once(runtime: Runtime) -> None:
    """Short or long, with a large output too, and as often as somebody asks."""
    for key in ("small", "large"):
        sent = await runtime.client.send(work_at_once, f"acme/{key}")
        result = await sent.result(timeout=10)
        assert await runtime.client.call(wait_plainly, "acme/a", sent.id, timeout=10) == result
        assert await runtime.client.call(wait_plainly, "acme/a", sent.id, timeout=10) == result
    sent = await runtime.client.send(fail, "acme/w", "")
    with pytest.raises(InvocationFailed, match="not today") as failed:
        await runtime.client.call(wait_plainly, "acme/a", sent.id, timeout=10)
    assert failed.value.code == "closed"


async def test_a_repetition_leads_to_the_first_one(runtime: Runtime, tmp_path: Path) -> None:
    """An id that was given out for a known idempotency key stands for the invocation that the key stands for."""
    gate = tmp_path / "gate"
    pair = [await runtime.client.send(work, "acme/w", str(gate), idempotency_key="k") for _ in range(2)]
    waiting = await runtime.client.send(wait_plainly, "acme/a", pair[1].id)
    await eventually_answers(lambda: is_noted(runtime, pair[0].id), "who waits is noted with the first one")
    gate.touch()
    assert await waiting.result(timeout=10) == {"word": "w"}
    assert await runtime.client.call(wait_plainly, "acme/a", pair[1].id, timeout=10) == {"word": "w"}
    await check_nothing_is_left(runtime)


async def test_a_failure_reaches_those_who_wait(runtime: Runtime, tmp_path: Path) -> None:
    """As that of a call does: uncaught, it ends them."""
    gate = tmp_path / "gate"
    sent = await runtime.client.send(fail, "acme/w", str(gate))
    waiting = await runtime.client.send(wait_plainly, "acme/a", sent.id)
    await eventually_answers(lambda: is_in(runtime.client, waiting, "waiting"), "it waits")
    gate.touch()
    with pytest.raises(InvocationFailed, match="not today"):
        await waiting.result(timeout=10)


async def test_a_handler_waits_for_what_it_has_sent_itself(runtime: Runtime) -> None:
    """The message goes ahead of the wait for what comes of it."""
    assert await runtime.client.call(send_and_wait, "acme/a", "w", timeout=10) == "w"


async def test_waiting_for_what_waits_for_oneself_is_refused_with_the_path(runtime: Runtime) -> None:
    """For itself; and for what it has sent to its own object, which begins when it has ended."""
    assert await runtime.client.call(wait_for_myself, "acme/a", timeout=10) == (
        "Waiter.wait_for_myself at acme/a → Waiter.wait_for_myself at acme/a"
    )
    assert await runtime.client.call(send_and_wait, "acme/a", "", timeout=10) == (
        "Waiter.send_and_wait at acme/a → Waiter.end at acme/a"
    )


async def test_a_circle_of_those_who_wait_for_each_other_is_found(runtime: Runtime, tmp_path: Path) -> None:
    """Neither has asked for the other: one of the two is told, and the other one goes on."""
    trail, gate, client = tmp_path / "trail", tmp_path / "gate", runtime.client
    pair = [
        await client.send(hold_and_wait, f"acme/{key}", [str(trail), str(gate), str(tmp_path / key)]) for key in "ab"
    ]
    await eventually(lambda: len(marks(trail)) == 2, "both hold their lanes")
    (tmp_path / "a").write_text(pair[1].id)
    (tmp_path / "b").write_text(pair[0].id)
    gate.touch()
    results = sorted([await handle.result(timeout=4) for handle in pair], key=len)

    assert results[0] == results[1] or results[0] in results[1]
    assert " → " in results[1]
    await check_nothing_is_left(runtime)


async def test_one_of_which_nothing_is_known_is_a_named_error(runtime: Runtime) -> None:
    """Not at once: it may be on its way from elsewhere."""
    for target, told in (
        (format_id("Worker", 1, new_invocation_id()), "call: nothing is known of it: no such invocation was asked for"),
        (format_id("Worker", 77, new_invocation_id()), "call: nothing is known of it: Worker has 2 partitions"),
        (format_id("Nobody", 1, new_invocation_id()), "unknown-object: "),
        ("no id", "invalid-key: "),
    ):
        answer = await runtime.client.call(wait_caught, "acme/a", target, timeout=10)
        assert answer.startswith(told)


async def test_one_whose_result_has_expired_is_a_named_error(runtime: Runtime, tmp_path: Path) -> None:
    """Nobody waits for what can't come any more."""
    gate = tmp_path / "gate"
    sent = await runtime.client.send(work, "acme/w", str(gate))
    await eventually_answers(lambda: is_in(runtime.client, sent, "queued"), "it has records")
    gate.touch()
    await sent.result(timeout=10)
    space = runtime.client.store.space("Worker", int(sent.id.split(".")[1]))
    await runtime.client.store.call("DEL", space.result(bytes.fromhex(sent.id.split(".")[2])))
    answer = await runtime.client.call(wait_caught, "acme/a", sent.id, timeout=10)
    assert answer.startswith("result-expired: ")


async def test_what_is_scheduled_or_parked_is_waited_for_too(runtime: Runtime, tmp_path: Path) -> None:
    """Neither is in memory; whoever brings it back knows who waits."""
    later = await runtime.client.send(work, "acme/later", "", delay=60)
    parked = await runtime.client.send(stumble, "acme/parked", str(tmp_path / "gate"))
    await eventually_answers(lambda: is_in(runtime.client, later, "scheduled"), "scheduled")
    await eventually_answers(lambda: is_in(runtime.client, parked, "paused"), "paused")
    first = await runtime.client.send(wait_plainly, "acme/a", later.id)
    second = await runtime.client.send(wait_plainly, "acme/b", parked.id)
    for handle, target in ((first, later), (second, parked)):
        await eventually_answers(lambda handle=handle: is_in(runtime.client, handle, "waiting"), "it waits")
        await eventually_answers(lambda target=target: is_noted(runtime, target.id), "who waits is noted")
    (tmp_path / "gate").touch()
    await runtime.client.resume(parked.id, reason="repaired", by="tests", timeout=10)
    await shift_clock(runtime, timedelta(minutes=2))

    assert await first.result(timeout=10) == {"word": "later"}
    assert await second.result(timeout=10) == "stumbled on"
    await check_nothing_is_left(runtime)


async def test_the_end_of_what_is_cancelled_reaches_those_who_wait(runtime: Runtime) -> None:
    """Whether it sleeps or has not begun."""
    asleep = await runtime.client.send(doze, "acme/w")
    later = await runtime.client.send(work, "acme/later", "", delay=600)
    for target, key in ((asleep, "a"), (later, "b")):
        waiting = await runtime.client.send(wait_caught, f"acme/{key}", target.id)
        await eventually_answers(lambda target=target: is_noted(runtime, target.id), "who waits is noted")
        await runtime.client.cancel(target.id, by="tests", reason="enough", timeout=10)
        assert (await waiting.result(timeout=10)).startswith("invocation-cancelled")
    await check_nothing_is_left(runtime)


async def is_noted(runtime: Runtime, invocation_id: str) -> bool:
    name, number, raw = invocation_id.split(".")
    space = runtime.client.store.space(name, int(number))
    return await runtime.client.store.call("SCARD", space.attached(bytes.fromhex(raw))) == 1


async def test_the_wait_outlives_both_owners(store_url: str, namespace: str, tmp_path: Path) -> None:
    """Nobody who knew of it is left when it ends: its next owner tells those that are noted, and no step is redone."""
    gate, trail = tmp_path / "gate", tmp_path / "trail"
    settings = Settings(drain_limit_seconds=0.1)
    async with Runtime([worker, waiter], store=store_url, namespace=namespace, settings=settings) as first:
        sent = await first.client.send(work, "acme/w", str(gate))
        waiting = await first.client.send(wait_for, "acme/a", [sent.id, str(trail)])
        await eventually_answers(lambda: is_noted(first, sent.id), "who waits is noted")
    async with Runtime([worker, waiter], store=store_url, namespace=namespace) as second:
        gate.touch()
        assert await second.client.attach(waiting.id, Told).result(timeout=10) == Told(word="w")
        await check_nothing_is_left(second)
    assert [word for word, _ in marks(trail)] == ["before", "after"]
