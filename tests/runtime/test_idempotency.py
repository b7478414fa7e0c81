"""Idempotency keys: the table of what counts as the same call, and what a second one is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from keylane import (
    App,
    Client,
    IdempotencyConflict,
    ObjectContext,
    ResultExpired,
    Runtime,
    SharedContext,
    VirtualObject,
)
from keylane.journal.key import partition_of
from keylane.journal.keyspace import PartitionSpace

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"


class Refund(BaseModel):
    """What is asked for."""

    amount: Decimal
    times: int = 1
    note: str | None = None


till = VirtualObject("Till", owner="tests", state={"runs": int})


@till.handler
async def refund(ctx: ObjectContext, request: Refund) -> int:
    runs = await ctx.get("runs", int, 0) + 1
    ctx.set("runs", runs)
    return runs


@till.handler
async def void(ctx: ObjectContext, request: Refund) -> int:
    return await refund.function(ctx, request)


@till.handler
async def slow_refund(ctx: ObjectContext, request: Refund) -> int:
    await ctx.run("take some time", anyio.sleep, 0.1)
    return await refund.function(ctx, request)


@till.shared
async def runs(ctx: SharedContext) -> int:
    return await ctx.get("runs", int, 0)


app = App([till])


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        yield runtime


@pytest.fixture(params=["same process", "other process"])
async def client(
    request: pytest.FixtureRequest, runtime: Runtime, store_url: str, namespace: str
) -> AsyncIterator[Client]:
    if request.param == "same process":
        yield runtime.client
        return
    async with Client(store_url, namespace=namespace) as outside:
        yield outside


@dataclass
class Row:
    """Two sets of arguments by name, and what the second is told."""

    first: Any
    second: Any
    differ: tuple[str, ...] | None = None
    handler: str = "refund"
    name: str = field(default="")


TABLE = [
    Row({"amount": "10", "note": "a"}, {"note": "a", "amount": "10"}, name="key order"),
    Row({"amount": " 10 "}, {"amount": "10"}, name="white space around a number"),
    Row({"amount": "10", "times": 1}, {"amount": "10", "times": 1.0}, name="1 and 1.0 of an int"),
    Row({"amount": Decimal(10)}, {"amount": Decimal("10.0")}, name="10 and 10.0 of a Decimal"),
    Row({"amount": "10"}, {"amount": "10", "note": None}, ("note",), name="missing and null"),
    Row({"amount": "10"}, {"amount": "10", "times": 1}, ("times",), name="missing and the default spelled out"),
    Row({"amount": "40"}, {"amount": "45"}, ("amount",), name="other amount"),
    Row({"amount": "40"}, {"amount": "40"}, ("handler",), "void", name="other handler"),
]


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
async def test_the_table_of_what_is_the_same_call(client: Client, row: Row) -> None:
    """A second call with the same key gets the first one's result, or is told which fields differ."""
    assert await client.call("Till", KEY, "refund", row.first, idempotency_key="k") == 1

    if row.differ is None:
        assert await client.call("Till", KEY, row.handler, row.second, idempotency_key="k") == 1
    else:
        with pytest.raises(IdempotencyConflict) as conflict:
            await client.call("Till", KEY, row.handler, row.second, idempotency_key="k")
        assert any(row.differ[0] in path for path in conflict.value.fields or ())

    assert await client.call(runs, KEY) == 1


async def test_a_default_that_a_deploy_adds_does_not_matter(runtime: Runtime, store_url: str, namespace: str) -> None:
    """The fingerprint leaves out what the caller did not set, also for typed callers."""
    assert await runtime.client.call(refund, KEY, Refund(amount=Decimal(5)), idempotency_key="k") == 1
    newer = VirtualObject("Till", owner="tests", state={"runs": int})

    class NewerRefund(Refund):
        currency: str = "EUR"

    async def refund_with_currency(ctx: ObjectContext, request: NewerRefund) -> int:
        return await refund.function(ctx, request)

    handler = newer.handler(name="refund")(refund_with_currency)
    await runtime.__aexit__(None, None, None)
    async with Runtime(App([newer]), store=store_url, namespace=namespace) as second:
        assert await second.client.call(handler, KEY, NewerRefund(amount=Decimal(5)), idempotency_key="k") == 1


async def test_a_second_call_waits_for_the_first_that_is_in_flight(client: Client) -> None:
    """Two at once run once, and both get the result."""
    results: list[int] = []

    async def call() -> None:
        results.append(await client.call(slow_refund, KEY, Refund(amount=Decimal(1)), idempotency_key="k", timeout=20))

    async with anyio.create_task_group() as calls:
        for _ in range(5):
            calls.start_soon(call)

    assert results == [1] * 5
    assert await client.call(runs, KEY) == 1


async def test_a_conflict_with_a_call_in_flight_is_told_at_once(client: Client) -> None:
    """Other arguments are refused before the first call has ended."""
    first = await client.send(slow_refund, KEY, Refund(amount=Decimal(1)), idempotency_key="k")
    await first.accepted(timeout=10)

    with pytest.raises(IdempotencyConflict) as conflict:
        await client.call(slow_refund, KEY, Refund(amount=Decimal(2)), idempotency_key="k", timeout=10)

    assert "amount" in str(conflict.value.fields)
    assert await first.result(timeout=10) == 1


async def test_the_verdict_says_that_it_was_replayed_and_when_it_first_came(client: Client) -> None:
    """A send with a known key is accepted as a replay of the first."""
    first = await client.send(refund, KEY, Refund(amount=Decimal(1)), idempotency_key="k")
    assert not (await first.accepted(timeout=10)).replayed
    assert await first.result(timeout=10) == 1

    second = await client.send(refund, KEY, Refund(amount=Decimal(1)), idempotency_key="k")
    verdict = await second.accepted(timeout=10)

    assert verdict.replayed
    assert verdict.first_at is not None
    assert await second.result(timeout=10) == 1


async def test_a_key_outlives_the_result(client: Client, namespace: str) -> None:
    """After the result's retention a retry is told how the call had ended, and is not run again."""
    handle = await client.send(refund, KEY, Refund(amount=Decimal(1)), idempotency_key="k")
    assert await handle.result(timeout=10) == 1
    space = PartitionSpace(namespace, "Till", partition_of(KEY, 16))
    raw = bytes.fromhex(handle.id.rsplit(".", 1)[1])
    assert await client.store.call("DEL", space.result(raw)) == 1

    with pytest.raises(ResultExpired, match="completed"):
        await client.call(refund, KEY, Refund(amount=Decimal(1)), idempotency_key="k", timeout=10)
    assert await client.call(runs, KEY) == 1


async def test_keys_are_scoped_to_the_object(client: Client) -> None:
    """The same key at another tenant or object is another key."""
    for number, key in enumerate(("acme/o-1", "acme/o-2", "other/o-1")):
        assert await client.call(refund, key, Refund(amount=Decimal(number)), idempotency_key="k") == 1
