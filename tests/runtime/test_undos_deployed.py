"""New code and what is being undone: no undo that the journal names is left out, or done in another order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import (
    App,
    InvocationFailed,
    InvocationPaused,
    ObjectContext,
    RetryPolicy,
    Runtime,
    TerminalError,
    VirtualObject,
)
from keylane.journal.key import parse_id
from keylane.journal.open_journals import read_journal
from keylane.runtime.rehearsal import Fit, Rehearsal

pytestmark = pytest.mark.anyio

ONCE = RetryPolicy(first=timedelta(milliseconds=1), attempts=1)
Way = Callable[[ObjectContext], Awaitable[Any]]
trail: list[str] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def _afresh() -> None:
    trail.clear()
    broken.clear()


async def book(what: str) -> None:
    trail.append(f"book {what}")


async def unbook(what: str) -> None:
    if what in broken:
        raise OSError("unreachable")
    trail.append(f"unbook {what}")


def trip(way: Way) -> VirtualObject:
    """Return a type whose handler does what it is given."""
    made = VirtualObject("Trip", owner="tests", partitions=1)

    @made.handler
    async def plan(ctx: ObjectContext) -> Any:  # pyright: ignore[reportUnusedFunction]
        return await way(ctx)

    return made


def booking(*names: str, undone: tuple[str, ...] | None = None) -> Way:
    """Return a handler that books some things, registers how some are undone, and fails."""

    async def way(ctx: ObjectContext) -> None:
        for name in names if undone is None else undone:
            ctx.compensate(name, unbook, name, retry=ONCE)
        for name in names:
            await ctx.run(f"book {name}", book, name)
        raise TerminalError("no visa", code="no-visa")

    return way


async def ends_at_once(ctx: ObjectContext) -> None:
    """Come to nothing of what the journal has."""


async def fails_at_once(ctx: ObjectContext) -> None:
    raise TerminalError("no passport")


as_it_was = booking("flight", "hotel")


async def being_undone(store_url: str, namespace: str) -> str:
    """Have an invocation parked in the middle of its undos, and return its id."""
    broken.add("hotel")
    async with Runtime([trip(as_it_was)], store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send("Trip", "acme/t", "plan")
        with pytest.raises(InvocationPaused, match="undo hotel"):
            await handle.result(timeout=10)
    broken.clear()
    return handle.id


@pytest.mark.parametrize(
    ("way", "fit", "words"),
    [
        (booking("flight", "hotel", undone=()), Fit.DIVERGES, "undo 1 of 2, 'flight', the code now registers nothing"),
        (booking("flight", "hotel", undone=("flight",)), Fit.DIVERGES, "undo 2 of 2, 'hotel', the code now registers"),
        (booking("flight", "hotel", undone=("hotel", "flight")), Fit.DIVERGES, "'flight', the code now registers 'hot"),
        (booking("train", "hotel", undone=("flight", "hotel")), Fit.DIVERGES, "now asks for step 0 'book train'"),
        (ends_at_once, Fit.ENDS_EARLY, "undo 1 of 2, 'flight', the code now registers nothing"),
        (fails_at_once, Fit.RAISES, "undo 1 of 2, 'flight', the code now registers nothing"),
    ],
    ids=["no undo", "one undo less", "another order", "another step", "an early end", "an early failure"],
)
async def test_code_that_would_leave_an_undo_out_parks_and_undoes_nothing(
    store_url: str, namespace: str, way: Way, fit: Fit, words: str
) -> None:
    """The deploy check says so before, and code that fits undoes all of it afterwards."""
    invocation_id = await being_undone(store_url, namespace)
    async with Runtime([trip(way)], store=store_url, namespace=namespace) as runtime:
        journal, _ = await read_journal(runtime.client.store, parse_id(invocation_id))
        assert (await Rehearsal(App([trip(as_it_was)])).of(journal)).fit is Fit.FITS
        assert (await Rehearsal(App([trip(way)])).of(journal)).fit is fit
        await runtime.client.resume(invocation_id, reason="reachable again", by="tests", timeout=10)
        handle = runtime.client.attach(invocation_id)

        async def is_parked() -> bool:
            told = await handle.describe()
            return told.pause is not None and told.pause.reason == "diverged"

        with anyio.fail_after(10):
            while not await is_parked():
                await anyio.lowlevel.checkpoint()
        with pytest.raises(InvocationPaused) as caught:
            await handle.result(timeout=10)
        assert words in str(caught.value)
    assert trail == ["book flight", "book hotel"]

    async with Runtime([trip(as_it_was)], store=store_url, namespace=namespace) as runtime:
        await runtime.client.resume(invocation_id, reason="took it back", by="tests", timeout=10)
        with pytest.raises(InvocationFailed, match="no visa"):
            await runtime.client.attach(invocation_id).result(timeout=10)
    assert trail == ["book flight", "book hotel", "unbook hotel", "unbook flight"]
