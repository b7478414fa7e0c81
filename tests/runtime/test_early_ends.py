"""New code that ends ahead of what its journal has: that is no end of the invocation, whatever it ends with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from keylane import (
    App,
    InvocationPaused,
    ObjectContext,
    Receiver,
    RetryPolicy,
    Runtime,
    TerminalError,
    VirtualObject,
)
from keylane.journal.key import parse_id
from keylane.journal.open_journals import read_journal
from keylane.runtime.rehearsal import Fit, Rehearsal
from keylane.testing import shift_clock
from tests.faults.harness import eventually_answers

pytestmark = pytest.mark.anyio

Way = Callable[[ObjectContext], Awaitable[Any]]
trail: list[str] = []


@pytest.fixture(autouse=True)
def _afresh() -> None:
    trail.clear()


class Receipt(BaseModel):
    """What a later version of the code takes for what the first one has recorded."""

    number: int


async def charge() -> int:
    trail.append("charge")
    return 7


async def charge_by_receipt() -> Receipt:
    raise AssertionError("a step that is recorded ran again")


async def refund() -> None:
    trail.append("refund")


def desk(way: Way) -> VirtualObject:
    """Return a type whose handler does what it is given."""
    made = VirtualObject("Desk", owner="tests", partitions=1)

    @made.handler
    async def work(ctx: ObjectContext) -> Any:  # pyright: ignore[reportUnusedFunction]
        ctx.compensate("charge", refund)
        return await way(ctx)

    return made


async def as_it_was(ctx: ObjectContext) -> str:
    number = await ctx.run("charge", charge)
    return f"{number} {await ctx.signal('go', str)}"


async def ends(ctx: ObjectContext) -> None:
    await ctx.run("charge", charge)


async def fails(ctx: ObjectContext) -> None:
    raise TerminalError("not any more")


async def takes_another_type(ctx: ObjectContext) -> str:
    receipt = await ctx.run("charge", charge_by_receipt)
    return f"{receipt.number} {await ctx.signal('go', str)}"


async def in_a_branch(ctx: ObjectContext) -> str:
    number, word = await ctx.gather(ctx.run("charge", charge), ctx.signal("go", str))
    return f"{number} {word}"


async def fails_in_a_branch(ctx: ObjectContext) -> None:
    await ctx.gather(fails(ctx), ctx.signal("go", str))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (as_it_was, ends, "the code now ends ahead of that"),
        (as_it_was, fails, "recorded step 0 'charge', the code now raises TerminalError: not any more ahead of that"),
        (
            as_it_was,
            takes_another_type,
            "recorded result of step 'charge', which this code can't read: invalid output at",
        ),
        (in_a_branch, ends, "the code now asks for step 0 'charge'"),
        (in_a_branch, fails_in_a_branch, "the code now raises TerminalError: not any more ahead of that"),
    ],
    ids=["returns", "fails", "another type", "without branches", "in a branch"],
)
async def test_code_that_ends_ahead_of_its_journal_parks_and_undoes_nothing(
    store_url: str, namespace: str, before: Way, after: Way, words: str
) -> None:
    """What has been done stays done; code that fits goes on from there, and the deploy check says all this before."""
    async with Runtime([desk(before)], store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send("Desk", "acme/d", "work")

        async def has_charged() -> bool:
            told = await handle.describe()
            return bool(trail) and told.status == "waiting" and told.waits_for is not None

        await eventually_answers(has_charged, "the charge")
    async with Runtime([desk(after)], store=store_url, namespace=namespace) as runtime:
        journal, _ = await read_journal(runtime.client.store, parse_id(handle.id))
        assert (await Rehearsal(App([desk(before)])).of(journal)).fit is Fit.FITS
        assert (await Rehearsal(App([desk(after)])).of(journal)).is_breaking
        await runtime.client.attach(handle.id).signal("go", "on")
        with pytest.raises(InvocationPaused) as caught:
            await runtime.client.attach(handle.id).result(timeout=10)
        assert caught.value.reason == "diverged"
        assert words in str(caught.value)
    async with Runtime([desk(before)], store=store_url, namespace=namespace) as runtime:
        await runtime.client.resume(handle.id, reason="took it back", by="tests", timeout=10)
        assert await runtime.client.attach(handle.id, str).result(timeout=10) == "7 on"
    assert trail == ["charge"]


def shop(*, is_new: bool) -> VirtualObject:
    """Return a type whose newer code takes another receipt of its effect, and another result of its step."""
    form: Any = Receipt if is_new else int

    async def find(operation_id: str, params: int) -> Any:
        return None

    async def send(operation_id: str, params: int) -> Any:
        trail.append("sent")
        return params

    async def charged() -> Any:
        return await charge()

    find.__annotations__["return"] = form | None
    send.__annotations__["return"] = charged.__annotations__["return"] = form
    payments = Receiver("payments", owner="tests", lookup=find)
    pay = payments.effect("pay")(send)
    later = RetryPolicy(first=timedelta(hours=1), cap=timedelta(hours=1), attempts=3)
    made = VirtualObject("Shop", owner="tests", partitions=1, effects=[pay], retry=later)

    @made.handler
    async def buy(ctx: ObjectContext) -> str:  # pyright: ignore[reportUnusedFunction]
        ctx.compensate("charge", refund)
        return str(await ctx.effect(pay, operation_id="p-1", params=7))

    @made.handler
    async def stumble(ctx: ObjectContext) -> str:  # pyright: ignore[reportUnusedFunction]
        ctx.compensate("charge", refund)
        result = await ctx.run("charge", charged)
        if ctx.attempt == 1:
            raise OSError("once more")
        return str(result)

    return made


async def test_a_receipt_that_new_code_can_not_read_parks_who_asks_for_it(store_url: str, namespace: str) -> None:
    """The effect was done, so that its receipt is no reason to fail, and to undo."""
    async with Runtime([shop(is_new=False)], store=store_url, namespace=namespace) as runtime:
        assert await runtime.client.call("Shop", "acme/s", "buy", timeout=10) == "7"
    async with Runtime([shop(is_new=True)], store=store_url, namespace=namespace) as runtime:
        with pytest.raises(InvocationPaused, match="recorded receipt of 'p-1', which this code can't read") as caught:
            await runtime.client.call("Shop", "acme/s", "buy", timeout=10)
    invocation_id = caught.value.invocation_id or ""
    async with Runtime([shop(is_new=False)], store=store_url, namespace=namespace) as runtime:
        await runtime.client.resume(invocation_id, reason="took it back", by="tests", timeout=10)
        assert await runtime.client.attach(invocation_id, str).result(timeout=10) == "7"
    assert trail == ["sent"]


async def test_a_result_at_the_end_of_a_journal_that_new_code_can_not_read_parks(
    store_url: str, namespace: str
) -> None:
    """Nothing recorded lies ahead of it, and it is the code all the same."""
    async with Runtime([shop(is_new=False)], store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send("Shop", "acme/s", "stumble")

        async def has_stumbled() -> bool:
            return (await handle.describe()).error is not None

        await eventually_answers(has_stumbled, "the first attempt")
        journal, _ = await read_journal(runtime.client.store, parse_id(handle.id))
        assert (await Rehearsal(App([shop(is_new=False)])).of(journal)).fit is Fit.FITS
        assert (await Rehearsal(App([shop(is_new=True)])).of(journal)).fit is Fit.DIVERGES
    async with Runtime([shop(is_new=True)], store=store_url, namespace=namespace) as runtime:
        await shift_clock(runtime, timedelta(hours=2))
        with pytest.raises(InvocationPaused, match="recorded result of step 'charge', which this code can't read"):
            await runtime.client.attach(handle.id).result(timeout=10)
    assert trail == ["charge"]
