"""Effects whose records are lost with the end of a history, or with a copy: what was done is not done again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import anyio.to_thread
import pytest

from keylane import App, Client, ObjectContext, Receiver, Runtime, Settings, VirtualObject
from keylane.journal.restored import declare_restored
from keylane.journal.types_registry import read_types

from .aof import aof_bytes, cut_aof
from .harness import StoreServer, eventually_answers

pytestmark = pytest.mark.anyio

KEY = "acme/one"
SETTINGS = Settings(
    lease_seconds=0.6,
    renewal_seconds=0.15,
    sweep_seconds=0.2,
    partitions=1,
    send_within_seconds=0.3,
    doubt_seconds=30.0,
)


@dataclass
class Books:
    """What the receiver has done, and how much of the store's file there was before the newest attempt at it."""

    calls: int = 0
    paid: int = 0
    kept_bytes: int = 0


def paying(server: StoreServer, books: Books) -> App:
    """Return an object whose receiver loses the first call and can be asked."""

    async def look(operation_id: str, amount: int) -> str | None:
        del operation_id, amount
        return f"r-{books.paid}" if books.paid else None

    async def may_pay(amount: int) -> int:
        books.kept_bytes = await anyio.to_thread.run_sync(aof_bytes, server)
        return amount

    receiver = Receiver(
        "payments",
        owner="tests",
        lookup=look,
        absent_means="not_done",
        late_calls="impossible",
        in_flight=timedelta(seconds=0.2),
    )

    @receiver.effect("pay", recheck=may_pay, timeout=timedelta(seconds=0.2))
    async def pay(operation_id: str, amount: int) -> str:
        del operation_id, amount
        books.calls += 1
        if books.calls == 1:
            raise ConnectionError("no answer")
        books.paid += 1
        return f"r-{books.paid}"

    order = VirtualObject("Order", owner="tests", effects=[pay])

    @order.handler
    async def refund(ctx: ObjectContext, amount: int) -> str:
        return await ctx.effect(pay, operation_id="refund", params=amount)

    return App([order])


async def test_an_attempt_that_may_be_lost_is_looked_for_before_another_one() -> None:
    """That nothing was done counted before it, and led to it."""
    with StoreServer(None, "--appendfsync", "everysec") as server:
        books = Books()
        app = paying(server, books)
        async with Runtime(app, store=server.url, durability="server", settings=SETTINGS) as runtime:
            handle = await runtime.client.send("Order", KEY, "refund", 5)
            assert await handle.result(timeout=20) == "r-1"
            runtime.worker.die()
        server.kill()
        assert cut_aof(server, books.kept_bytes) > 0
        server.start()

        async with Runtime(app, store=server.url, durability="server", settings=SETTINGS) as runtime:
            assert await runtime.client.attach(handle.id).result(timeout=20) == "r-1"

    assert books.paid == 1


async def test_what_a_copy_has_in_its_inbox_may_have_been_done_since(own_server: StoreServer) -> None:
    """Also where workers start long after the copy was declared: from their start on it is in doubt, too."""
    paid: list[str] = []
    receiver = Receiver("payments", owner="tests")

    @receiver.effect("pay")
    async def pay(operation_id: str, amount: int) -> str:
        paid.append(operation_id)
        return f"r-{len(paid)}-{amount}"

    order = VirtualObject("Order", owner="tests", effects=[pay])

    @order.handler
    async def refund(ctx: ObjectContext, amount: int) -> str:
        return await ctx.effect(pay, operation_id="refund", params=amount)

    async with Runtime([order], store=own_server.url, settings=SETTINGS):
        pass
    async with Client(own_server.url) as client:
        handle = await client.send("Order", KEY, "refund", 5)
    kept_bytes = aof_bytes(own_server)
    async with Runtime([order], store=own_server.url, settings=SETTINGS) as runtime:
        assert await runtime.client.attach(handle.id).result(timeout=20) == "r-1-5"
        runtime.worker.die()
    own_server.kill()
    assert cut_aof(own_server, kept_bytes) > 0
    own_server.start()
    async with Client(own_server.url) as client:
        since_ms = int(datetime.now(UTC).timestamp() * 1000) - 3_600_000
        # With no margin, the declared span is over at once.
        await declare_restored(client.store, await read_types(client.store), since_ms, margin_ms=0)

    async with Runtime([order], store=own_server.url, settings=SETTINGS) as runtime:

        async def is_with_people() -> bool:
            return bool(await runtime.client.reconcile_list()) or len(paid) > 1

        await eventually_answers(is_with_people, "it is settled by people")
    assert len(paid) == 1
