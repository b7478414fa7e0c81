"""Opening and closing: whatever ends the body, the partitions are handed over and no caller is left waiting."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from itertools import count
from typing import Any

import anyio
import pytest

from keylane import (
    CallError,
    Client,
    Handle,
    KeylaneError,
    ObjectContext,
    RetryableError,
    RetryPolicy,
    Runtime,
    SharedContext,
    StoreError,
    TerminalError,
    VirtualObject,
)
from keylane.journal.leases import acquire
from keylane.journal.tenure import Acquired
from keylane.objects.settings import Settings
from keylane.runtime import ownership
from keylane.runtime.partition import Phase

pytestmark = pytest.mark.anyio

LATER = RetryPolicy(first=timedelta(hours=1), cap=timedelta(hours=1), attempts=3)

door = VirtualObject("Door", owner="tests", partitions=4)
begun: list[anyio.Event] = []


@door.handler
async def fine(ctx: ObjectContext) -> str:
    return "fine"


@door.handler
async def endless(ctx: ObjectContext) -> None:
    begun[-1].set()
    await anyio.sleep_forever()


@door.handler
async def a_moment(ctx: ObjectContext) -> str:
    begun[-1].set()
    await anyio.sleep(0.5)
    return "ended"


async def _ask_again() -> int:
    begun[-1].set()
    raise RetryableError("later", retry_after=3600)


@door.handler
async def swallow_everything(ctx: ObjectContext) -> int:
    try:
        return await ctx.run("asks again", _ask_again)
    except BaseException:  # noqa: BLE001, the point of this handler
        return -1


@door.handler
async def fail_for_good_at_everything(ctx: ObjectContext) -> int:
    try:
        return await ctx.run("asks again", _ask_again)
    finally:
        raise TerminalError("the clean-up has failed")


@door.shared
async def look(ctx: SharedContext) -> str:
    return "seen"


#: A lease that no test waits out without being noticed, however busy the machine is.
PATIENT = Settings(lease_seconds=40)


async def _released(store_url: str, namespace: str) -> None:
    """Take everything over at once: nobody has to be waited out."""
    started = time.monotonic()
    async with Runtime([door], store=store_url, namespace=namespace, settings=PATIENT) as successor:
        assert len(successor.worker.partitions) == 4
        assert await successor.client.call(fine, "acme/next") == "fine"
    assert time.monotonic() - started < PATIENT.lease_seconds / 2


async def test_a_timeout_round_the_runtime_hands_everything_over(store_url: str, namespace: str) -> None:
    """The scope that cancels the body does not cancel the tasks that have to hand over."""
    started = time.monotonic()
    with anyio.move_on_after(0.2):
        async with Runtime([door], store=store_url, namespace=namespace) as runtime:
            assert await runtime.client.call(fine, "acme/a") == "fine"
            await anyio.sleep_forever()
    assert time.monotonic() - started < 20
    await _released(store_url, namespace)


@pytest.mark.parametrize("taken", [1, 3, 4])
async def test_a_start_that_is_cut_short_hands_over_what_it_has_taken(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """Also what it has asked for by then; others would have to wait its lease out."""
    numbers = count(1)

    async def acquired(*args: Any, **options: Any) -> Acquired | None:
        if next(numbers) == taken:
            scope.cancel()
        return await acquire(*args, **options)

    monkeypatch.setattr(ownership, "acquire", acquired)
    with anyio.CancelScope() as scope:
        async with Runtime([door], store=store_url, namespace=namespace):
            await anyio.sleep_forever()
    assert next(numbers) > taken
    await _released(store_url, namespace)


async def test_a_sibling_that_fails_in_a_task_group_does_not_break_the_hand_over(
    store_url: str, namespace: str
) -> None:
    """Nor does the cancellation by a task group."""
    started = time.monotonic()

    async def fail(when: anyio.Event) -> None:
        await when.wait()
        raise KeyError("sibling")

    async def body() -> None:
        async with anyio.create_task_group() as tasks:
            open_now = anyio.Event()
            tasks.start_soon(fail, open_now)
            async with Runtime([door], store=store_url, namespace=namespace):
                open_now.set()
                await anyio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await body()
    assert [type(error) for error in caught.value.exceptions] == [KeyError]
    assert time.monotonic() - started < 20
    await _released(store_url, namespace)


@pytest.mark.parametrize("cancels", [1, 2])
async def test_a_task_that_is_cancelled_while_it_closes_hands_over_first(
    store_url: str, namespace: str, cancels: int
) -> None:
    """As by a timeout of asyncio that ends then, which no shield of anyio holds off; the caller is told afterwards."""
    begun.append(anyio.Event())
    sent: list[Handle[str]] = []

    async def body() -> None:
        async with Runtime([door], store=store_url, namespace=namespace) as runtime:
            sent.append(await runtime.client.send(a_moment, "acme/a"))
            await begun[-1].wait()

    task = asyncio.ensure_future(body())
    await begun[-1].wait()
    for _ in range(cancels):
        await anyio.sleep(0.1)
        assert task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    async with Client(store_url, namespace=namespace) as client:
        assert (await client.describe(sent[0].id)).status == "completed"
    await _released(store_url, namespace)


async def test_a_hand_over_that_is_cut_short_leaves_nothing_running(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread renews leases for a worker that runs nothing, and whoever waits for what ran there is told at once."""

    async def cut_short(self: ownership.Ownership) -> None:
        raise asyncio.CancelledError

    begun.append(anyio.Event())
    monkeypatch.setattr(ownership.Ownership, "drain", cut_short)
    runtime = Runtime([door], store=store_url, namespace=namespace)
    await runtime.__aenter__()
    worker = runtime.worker
    call = asyncio.ensure_future(runtime.client.call(endless, "acme/a"))
    await begun[-1].wait()
    with pytest.raises(asyncio.CancelledError):
        await runtime.__aexit__(None, None, None)
    assert not worker.partitions
    assert "keylane-leases" not in [thread.name for thread in threading.enumerate()]
    done, _ = await asyncio.wait([call], timeout=5)
    assert [type(each.exception()) for each in done] == [CallError]


@pytest.mark.parametrize("when", ["open", "draining"])
async def test_the_end_of_the_loop_is_no_failure_and_is_not_held_up(store_url: str, namespace: str, when: str) -> None:
    """`asyncio.run` cancels all tasks that are left, those of the runtime, too: nobody is left to hand over."""
    begun.append(anyio.Event())
    leave = anyio.Event()
    before = asyncio.all_tasks()

    async def body() -> None:
        async with Runtime([door], store=store_url, namespace=namespace) as runtime:
            await runtime.client.send(endless, "acme/a")
            await leave.wait()

    task = asyncio.ensure_future(body())
    await begun[-1].wait()
    if when == "draining":
        leave.set()
        await anyio.sleep(0.1)
    started = time.monotonic()
    for each in asyncio.all_tasks() - before:
        each.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    # The drain limit is thirty seconds, and a connection is waited for five.
    assert time.monotonic() - started < 4
    assert not asyncio.all_tasks() - before


async def test_what_the_body_raises_passes_as_it_is(store_url: str, namespace: str) -> None:
    """No group is wrapped round it."""
    with pytest.raises(KeyError, match="mine"):
        async with Runtime([door], store=store_url, namespace=namespace):
            raise KeyError("mine")


async def test_an_open_runtime_is_not_opened_again(store_url: str, namespace: str) -> None:
    """The second opening is refused and leaves the first as it was; after closing it opens again."""
    runtime = Runtime([door], store=store_url, namespace=namespace)
    async with runtime:
        with pytest.raises(StoreError, match="open already"):
            async with runtime:
                pass
        assert await runtime.client.call(fine, "acme/a") == "fine"
    async with runtime:
        assert await runtime.client.call(fine, "acme/a") == "fine"


@pytest.mark.parametrize("namespace", ["", "a{b", "}", "{x}", "a\nb", "x" * 129])
async def test_a_namespace_that_breaks_the_hash_tag_is_refused(store_url: str, namespace: str) -> None:
    """A brace in it would spread the keys of one partition over a cluster."""
    with pytest.raises(StoreError, match="namespace"):
        async with Runtime([door], store=store_url, namespace=namespace):
            pass


async def test_two_runtimes_of_one_process_share_the_partitions(store_url: str, namespace: str) -> None:
    """They are two workers like any others."""
    # So many that chance gives each of them some.
    wide: Any = VirtualObject("Wide", owner="tests", partitions=24)
    served = wide.handler(name="fine")(fine.function)
    async with (
        Runtime([wide], store=store_url, namespace=namespace) as first,
        Runtime([wide], store=store_url, namespace=namespace) as second,
    ):
        with anyio.fail_after(10):
            while not (first.worker.partitions and second.worker.partitions):
                await anyio.sleep(0.01)
        for number in range(20):
            client = (first, second)[number % 2].client
            assert await client.call(served, f"acme/{number}", timeout=10) == "fine"


async def test_a_caller_in_flight_is_told_when_the_runtime_closes(store_url: str, namespace: str) -> None:
    """A call whose handler does not end within the drain limit ends with an error, not never."""
    begun.append(anyio.Event())
    settings = Settings(drain_limit_seconds=0.2)
    async with Runtime([door], store=store_url, namespace=namespace, settings=settings) as runtime:
        calls = [asyncio.ensure_future(runtime.client.call(endless, "acme/a")) for _ in range(3)]
        await begun[-1].wait()
    done, pending = await asyncio.wait(calls, timeout=5)
    for call in pending:
        call.cancel()
    assert not pending
    assert all(isinstance(call.exception(), KeylaneError) for call in done)
    assert all("what was taken in of it goes on" in str(call.exception()) for call in done)


@pytest.mark.parametrize("handler", [swallow_everything, fail_for_good_at_everything])
async def test_what_a_handler_makes_of_the_hand_over_is_no_end(store_url: str, namespace: str, handler: Any) -> None:
    """A step that waits for its next attempt is suspended at a hand-over; what comes of the handler then counts not."""
    begun.append(anyio.Event())
    async with Runtime([door], store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(handler, "acme/a")
        with anyio.fail_after(10):
            await begun[-1].wait()
            while (await handle.describe()).status != "waiting":
                await anyio.sleep(0.01)
    async with Runtime([door], store=store_url, namespace=namespace) as successor:
        assert (await successor.client.describe(handle.id)).status == "waiting"


async def test_a_worker_leaves_at_once_though_a_partition_never_opened(store_url: str, namespace: str) -> None:
    """A foreign key keeps one partition from being recovered; that is no reason to wait for the drain limit."""
    async with Runtime([door], store=store_url, namespace=namespace) as runtime:
        store = runtime.client.store
        await store.call("SET", store.space("Door", 1).runnable, "foreign")
    async with Runtime([door], store=store_url, namespace=namespace) as runtime:
        phases = sorted(partition.phase.name for partition in runtime.worker.partitions)
        left_at = time.monotonic()
    assert phases == ["OPEN", "OPEN", "OPEN", "OPENING"]
    # The drain limit is thirty seconds.
    assert time.monotonic() - left_at < 15


async def test_hand_overs_do_not_keep_other_objects_from_being_read(store_url: str, namespace: str) -> None:
    """However many partitions wait for their handlers to end, the others load what they need."""
    many: Any = VirtualObject("Many", owner="tests", partitions=24)
    started: list[str] = []

    @many.handler
    async def hold(ctx: ObjectContext) -> None:
        started.append(str(ctx.key))
        await anyio.sleep_forever()

    settings = Settings(drain_limit_seconds=1)
    async with Runtime([many], store=store_url, namespace=namespace, settings=settings) as runtime:
        calls = [asyncio.ensure_future(runtime.client.call(hold, f"acme/{number}")) for number in range(60)]
        while len(started) < 60:
            await anyio.sleep(0.001)
        left_at = time.monotonic()
    # Twenty-four partitions, each of which waits to its limit, all at once: one after the other takes as many seconds.
    assert time.monotonic() - left_at < 12
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)


async def test_a_shared_read_survives_that_its_partition_is_lost(store_url: str, namespace: str) -> None:
    """One that waits for the object to be read when the tenure ends reads the store itself."""
    async with Runtime([door], store=store_url, namespace=namespace) as runtime:
        reads = [asyncio.ensure_future(runtime.client.call(look, f"acme/{number}")) for number in range(40)]
        await asyncio.sleep(0)
        for partition in runtime.worker.partitions:
            partition.lose()
            assert partition.phase is Phase.LOST
        with anyio.fail_after(10):
            assert await asyncio.gather(*reads) == ["seen"] * 40
