"""Effects whose records are lost with the end of a history, or lie in none of a copy: what was done is not done again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import anyio.to_thread
import pytest

from keylane import App, ObjectContext, Receiver, Runtime, Settings, VirtualObject

from .aof import aof_bytes, cut_aof
from .harness import StoreServer

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
