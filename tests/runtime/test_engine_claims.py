"""Idempotency keys while the first call is still being decided on, and while its owner loses the partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import Client, IdempotencyConflict, ObjectContext, RetryPolicy, Runtime, VirtualObject
from keylane.journal.link import LinkLost

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=2)
ledger = VirtualObject("Ledger", owner="tests", partitions=1, state={"runs": int}, retry=QUICK)
gate: list[anyio.Event] = [anyio.Event()]


@ledger.handler
async def book(ctx: ObjectContext, amount: int) -> int:
    runs = await ctx.get("runs", int, 0) + 1
    ctx.set("runs", runs)
    return runs


@ledger.handler
async def book_slowly(ctx: ObjectContext, amount: int) -> int:
    await ctx.run("wait", gate[0].wait)
    return await book.function(ctx, amount)


@pytest.mark.parametrize("is_remote", [False, True])
async def test_calls_that_come_together_under_a_used_key_are_all_told_the_same(
    store_url: str, namespace: str, *, is_remote: bool
) -> None:
    """The second waits until it is known what the first is told; it is never pointed at a call that was refused."""
    async with Runtime([ledger], store=store_url, namespace=namespace) as runtime:
        assert await runtime.client.call(book, "acme/a", 40, idempotency_key="t") == 1
    async with (
        Runtime([ledger], store=store_url, namespace=namespace) as runtime,
        Client(store_url, namespace=namespace) as other,
    ):
        client = other if is_remote else runtime.client
        with anyio.fail_after(10):
            calls = [client.call(book, "acme/a", 45, idempotency_key="t") for _ in range(4)]
            calls += [client.call(book, "acme/a", 40, idempotency_key="t") for _ in range(4)]
            found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in found[:4]] == [IdempotencyConflict] * 4
    assert found[4:] == [1] * 4


async def test_a_used_key_is_looked_up_again_when_its_result_was_lost_on_the_way(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is cut between the key and its result is no reason to refuse a call for good."""
    lost = list[object]()

    async with Runtime([ledger], store=store_url, namespace=namespace) as runtime:
        assert await runtime.client.call(book, "acme/a", 40, idempotency_key="t") == 1
        submit = runtime.client.store.submit

        def lose_the_first_result(words: tuple[Any, ...], done: Callable[[Any], None]) -> None:
            if words[0] == "GET" and not lost:
                lost.append(words)
                done(LinkLost("it was cut"))
            else:
                submit(words, done)

        monkeypatch.setattr(runtime.client.store, "submit", lose_the_first_result)

        assert await runtime.client.call(book, "acme/a", 40, idempotency_key="t", timeout=10) == 1
    assert lost


async def test_a_second_call_is_answered_though_its_partition_is_lost_meanwhile(store_url: str, namespace: str) -> None:
    """Between the decision on a key and its durable answer the tenure may end; the call then asks the next owner."""
    gate[0] = anyio.Event()
    async with (
        Runtime([ledger], store=store_url, namespace=namespace) as runtime,
        Runtime([ledger], store=store_url, namespace=namespace),
    ):
        with anyio.fail_after(20):
            first = asyncio.ensure_future(runtime.client.call(book_slowly, "acme/a", 1, idempotency_key="t"))
            while not any(partition.open for partition in runtime.worker.partitions):
                await asyncio.sleep(0)
                if first.done():
                    break
            second = asyncio.ensure_future(runtime.client.call(book_slowly, "acme/a", 1, idempotency_key="t"))
            await asyncio.sleep(0)
            for partition in runtime.worker.partitions:
                partition.lose()
            gate[0].set()
            assert await asyncio.gather(first, second) == [1, 1]


@pytest.mark.parametrize("leave", [0, 1, 3])
async def test_one_key_runs_once_however_often_it_is_sent_across_hand_overs(
    store_url: str, namespace: str, leave: int
) -> None:
    """In flight, accepted and unfinished, or only in the inbox: the retry is pointed at the first call."""
    gate[0] = anyio.Event()
    async with Client(store_url, namespace=namespace) as client:
        early = await client.send(book_slowly, "acme/a", 7, idempotency_key="t")
        handles = [early]
        for number in range(leave):
            async with Runtime([ledger], store=store_url, namespace=namespace) as runtime:
                handles.append(await runtime.client.send(book_slowly, "acme/a", 7, idempotency_key="t"))
                if number:
                    with anyio.fail_after(10):
                        await handles[-1].accepted()
                runtime.worker.partitions[0].lose()
        async with Runtime([ledger], store=store_url, namespace=namespace) as runtime:
            late = asyncio.ensure_future(runtime.client.call(book_slowly, "acme/a", 7, idempotency_key="t"))
            await asyncio.sleep(0)
            gate[0].set()
            with anyio.fail_after(20):
                assert await late == 1
            assert [await client.attach(handle.id, int).result(timeout=10) for handle in handles] == [1] * len(handles)
            assert await runtime.client.call(book, "acme/a", 0) == 2
