"""New code that ends ahead of what its journal has: that is no end of the invocation, whatever it ends with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from keylane import App, InvocationPaused, ObjectContext, Runtime, TerminalError, VirtualObject
from keylane.journal.key import parse_id
from keylane.journal.open_journals import read_journal
from keylane.runtime.rehearsal import Fit, Rehearsal
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
        (as_it_was, takes_another_type, "the code now raises InvalidOutput: invalid output at result of step charge"),
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
