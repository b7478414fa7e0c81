"""An operation id that was reserved is free again once its effect, and the receiver, have forgotten it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Literal

import anyio
import pytest

from keylane import (
    App,
    Deduplicates,
    EffectConflict,
    InvocationFailed,
    ObjectContext,
    Receiver,
    Runtime,
    Settings,
    VirtualObject,
)
from keylane.journal.agenda import AgendaItem, AgendaKind
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.surroundings import look
from keylane.objects.reservations import RELEASE, RESERVATIONS, reservation_key
from keylane.runtime.reservation_releases import BUSY_MS
from keylane.testing import Harness, harness, shift_clock
from tests.runtime.fake_bank import Bank, Receipt, Terms

pytestmark = pytest.mark.anyio

bank = Bank()
LEDGER = timedelta(days=2)
#: Longer than the ledger is kept.
KNOWN = timedelta(days=5)
SOON = 20.0
A_WHILE = timedelta(hours=1)


def order_at(on_paused: Literal["hold", "skip"] = "hold", **promises: Any) -> VirtualObject:
    """Return an object type that pays at a receiver with these promises."""
    desk = Receiver("desk", owner="desk-oncall", ids="verbatim", in_flight=timedelta(seconds=1), **promises)

    @desk.effect("pay", timeout=timedelta(milliseconds=300))
    async def pay_out(operation_id: str, terms: Terms) -> Receipt:
        return await bank.pay(operation_id, terms)

    order = VirtualObject("Order", owner="tests", effects=[pay_out], on_paused=on_paused)

    @order.handler
    async def pay(ctx: ObjectContext, operation_id: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return (await ctx.effect(pay_out, operation_id=operation_id, params=Terms(amount=7))).id

    @order.handler
    async def wait(ctx: ObjectContext) -> None:  # pyright: ignore[reportUnusedFunction]
        await ctx.signal("go", str)

    @order.handler
    async def wait_aside(ctx: ObjectContext) -> None:  # pyright: ignore[reportUnusedFunction]
        async with ctx.release_lane():
            await ctx.signal("go", str)

    @order.handler
    async def let_go(ctx: ObjectContext, operation_id: str) -> None:  # pyright: ignore[reportUnusedFunction]
        await ctx.call(RESERVATIONS, reservation_key("desk", operation_id), RELEASE, f"Order {ctx.key}")

    return order


@asynccontextmanager
async def deployment(**promises: Any) -> AsyncGenerator[Harness]:
    bank.empty()
    settings = Settings(ledger_retention_days=LEDGER.days)
    async with harness(App(order_at(**promises), settings=settings)) as made:
        yield made


async def is_free(h: Harness, operation_id: str, key: str) -> bool:
    """Return whether another object gets an operation id."""
    try:
        await h.call("Order", key, "pay", operation_id)
    except InvocationFailed as error:
        if error.code != EffectConflict.code:
            raise
        return False
    return True


async def becomes_free(h: Harness, operation_id: str, key: str) -> None:
    """Wait until another object gets an operation id: nobody waits for what lets go of it."""
    with anyio.fail_after(SOON):
        while not await is_free(h, operation_id, key):
            await anyio.lowlevel.checkpoint()


async def test_an_id_is_free_after_the_receivers_windows_and_not_before() -> None:
    """The ledger forgets earlier; until the receiver has too, it would take the other's for a repetition."""
    async with deployment(deduplicates=Deduplicates(KNOWN)) as h:
        await h.call("Order", "acme/o-1", "pay", "INV-1")

        await h.advance(KNOWN - A_WHILE)
        assert not await is_free(h, "INV-1", "globex/o-2")

        await h.advance(2 * A_WHILE)
        await becomes_free(h, "INV-1", "globex/o-3")
        assert bank.sent["INV-1"] == 2
        assert not await is_free(h, "INV-1", "acme/o-1"), "it is another object's now"


async def test_an_id_is_never_free_that_the_receiver_finds_for_ever() -> None:
    """A look-up for another object would find what was done for this one."""
    async with deployment(lookup=bank.find) as h:
        await h.call("Order", "acme/o-1", "pay", "INV-1")
        await h.advance(timedelta(days=1000))
        assert not await is_free(h, "INV-1", "globex/o-2")


async def test_an_id_is_free_after_what_is_found_is_forgotten() -> None:
    """As the receiver's look-up says how long that is."""
    async with deployment(lookup=bank.find, lookup_retention=KNOWN) as h:
        await h.call("Order", "acme/o-1", "pay", "INV-1")
        await h.advance(KNOWN - A_WHILE)
        assert not await is_free(h, "INV-1", "globex/o-2")
        await h.advance(2 * A_WHILE)
        await becomes_free(h, "INV-1", "globex/o-3")


@pytest.mark.parametrize("handler", ["wait", "wait_aside"])
async def test_what_an_owner_before_has_left_open_is_open(store_url: str, namespace: str, handler: str) -> None:
    """It is found in the store, in the lane or beside it, and does not run."""
    bank.empty()
    app = App(order_at(), settings=Settings(ledger_retention_days=LEDGER.days, partitions=1))
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        await runtime.client.call("Order", "acme/o-1", "pay", "INV-1")
        handle = await runtime.client.send("Order", "acme/o-1", handler)
        with anyio.fail_after(SOON):
            while not (await handle.describe()).waits_for:
                await anyio.lowlevel.checkpoint()
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        await shift_clock(runtime, LEDGER + A_WHILE)
        space, item = runtime.client.store.space("Order", 0), AgendaItem(AgendaKind.RESERVED, "acme/o-1", "desk INV-1")
        with anyio.fail_after(SOON):
            while not await is_put_off(runtime, space, item):
                await anyio.lowlevel.checkpoint()


async def is_put_off(runtime: Runtime, space: PartitionSpace, item: AgendaItem) -> bool:
    """Return whether it will be tried again later to let go of an operation id."""
    around, (due_ms,) = await look(
        runtime.client.store, space, [("ZSCORE", space.agenda, item.encode())], [space.agenda]
    )  # fmt: skip
    return due_ms is not None and float(due_ms) > around.now_ms + BUSY_MS / 2


async def test_an_id_that_is_used_again_meanwhile_is_not_let_go_of() -> None:
    """It is let go of when what has it now is forgotten."""
    async with deployment(deduplicates=Deduplicates(KNOWN)) as h:
        await h.call("Order", "acme/o-1", "pay", "INV-1")
        handle = await h.send("Order", "acme/o-1", "wait_aside")
        await h.advance(KNOWN + A_WHILE)
        await h.call("Order", "acme/o-1", "pay", "INV-1")
        assert bank.sent["INV-1"] == 2
        await handle.signal("go", "on")
        await handle.result()
        await h.advance(A_WHILE)
        assert not await is_free(h, "INV-1", "globex/o-2")
        await h.advance(KNOWN + A_WHILE)
        await becomes_free(h, "INV-1", "globex/o-3")


async def test_an_id_is_never_free_of_an_object_whose_paused_invocations_leave_its_lane() -> None:
    """They may have been told that the id is its own, and are found by their own ids only."""
    async with deployment(on_paused="skip") as h:
        await h.call("Order", "acme/o-1", "pay", "INV-1")
        await h.advance(timedelta(days=1000))
        assert not await h.client.effects("Order", "acme/o-1")
        assert not await is_free(h, "INV-1", "globex/o-2")


async def test_no_object_lets_go_of_what_is_anothers() -> None:
    """Also not by a message that comes late, or twice."""
    async with deployment() as h:
        await h.call("Order", "acme/o-1", "pay", "INV-1")
        await h.call("Order", "globex/o-2", "let_go", "INV-1")
        assert not await is_free(h, "INV-1", "globex/o-2")
        await h.call("Order", "acme/o-1", "let_go", "INV-1")
        assert await is_free(h, "INV-1", "globex/o-2")


@pytest.mark.parametrize("handler", ["wait", "wait_aside"])
async def test_an_id_is_kept_while_anything_of_its_object_is_open(handler: str) -> None:
    """What is open may have been told that the id is its own, and be about to use it."""
    async with deployment(deduplicates=Deduplicates(KNOWN)) as h:
        await h.call("Order", "acme/o-1", "pay", "INV-1")
        handle = await h.send("Order", "acme/o-1", handler)
        await h.advance(KNOWN + A_WHILE)
        assert not await is_free(h, "INV-1", "globex/o-2")

        await handle.signal("go", "on")
        await h.advance(A_WHILE)
        await becomes_free(h, "INV-1", "globex/o-3")


async def test_an_id_that_is_asked_for_again_stays_the_objects_own() -> None:
    """It is the same object's for as long as that uses it, also when its first effect is forgotten."""
    async with deployment(deduplicates=Deduplicates(KNOWN)) as h:
        await h.call("Order", "acme/o-1", "pay", "INV-1")
        await h.advance(KNOWN + A_WHILE)
        await h.call("Order", "acme/o-1", "pay", "INV-1")
        await h.advance(KNOWN - A_WHILE)
        assert not await is_free(h, "INV-1", "globex/o-2")
        await h.advance(2 * A_WHILE)
        await becomes_free(h, "INV-1", "globex/o-3")
