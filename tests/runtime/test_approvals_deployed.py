"""New code and open approvals: what people decide on is what the code goes on to do, or the deploy check says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from keylane import App, ObjectContext, VirtualObject
from keylane.journal.exported import Journal, journals_in, lines_of
from keylane.journal.key import parse_id
from keylane.journal.open_journals import read_journal
from keylane.runtime.deploy_check import Verdict
from keylane.runtime.rehearsal import Fit, Rehearsal, Rehearsed
from keylane.testing import harness

pytestmark = pytest.mark.anyio

Way = Callable[[ObjectContext], Awaitable[Any]]


def desk(way: Way) -> VirtualObject:
    """Return a type whose handler does what it is given."""
    made = VirtualObject("Desk", owner="tests")

    @made.handler
    async def work(ctx: ObjectContext) -> Any:  # pyright: ignore[reportUnusedFunction]
        return await way(ctx)

    return made


async def refund_40(ctx: ObjectContext) -> str:
    """What ran when the journals were written: the first of two proposals is decided on."""
    await ctx.propose(action="gift", amount=1, concurrent=True)
    proposal = await ctx.propose(action="refund", amount=40, currency="EUR", expires_in=timedelta(days=2))
    return (await ctx.approval(proposal)).proposal_id


async def noted_otherwise(ctx: ObjectContext) -> str:
    await ctx.propose(action="gift", amount=1, concurrent=True)
    proposal = await ctx.propose(action="refund", currency="EUR", amount=40, expires_in=3600, notes={"why": "new"})
    return (await ctx.approval(proposal)).proposal_id


async def refund_35(ctx: ObjectContext) -> str:
    await ctx.propose(action="gift", amount=1, concurrent=True)
    proposal = await ctx.propose(action="refund", amount=35, currency="EUR", expires_in=timedelta(days=2))
    return (await ctx.approval(proposal)).proposal_id


async def one_field_more(ctx: ObjectContext) -> str:
    await ctx.propose(action="gift", amount=1, concurrent=True)
    proposal = await ctx.propose(action="refund", amount=40, currency="EUR", to="ada", expires_in=timedelta(days=2))
    return (await ctx.approval(proposal)).proposal_id


async def of_the_gift(ctx: ObjectContext) -> str:
    gift = await ctx.propose(action="gift", amount=1, concurrent=True)
    await ctx.propose(action="refund", amount=40, currency="EUR", expires_in=timedelta(days=2))
    return (await ctx.approval(gift)).proposal_id


async def of_another_action(ctx: ObjectContext) -> str:
    await ctx.propose(action="gift", amount=1, concurrent=True)
    proposal = await ctx.propose(action="payout", amount=40, currency="EUR")
    return (await ctx.approval(proposal)).proposal_id


@pytest.fixture
async def journal(store_url: str) -> Journal:
    """Give the journal of an invocation that waits for a decision."""
    async with harness(desk(refund_40), store=store_url) as h:
        handle = await h.send("Desk", "acme/d", "work")
        await h.settled()
        read, written = await read_journal(h.client.store, parse_id(handle.id))
        (again,) = journals_in(lines_of(read, written))
        return again


async def rehearsed(journal: Journal, way: Way) -> Rehearsed:
    """Hold code against a journal."""
    return await Rehearsal(App([desk(way)])).of(journal)


@pytest.mark.parametrize("way", [refund_40, noted_otherwise])
async def test_what_a_decision_is_not_bound_to_may_change(journal: Journal, way: Way) -> None:
    """Notes, times and the order of fields are no part of what people decide on."""
    result = await rehearsed(journal, way)

    assert (result.fit, result.is_breaking) == (Fit.FITS, False)


@pytest.mark.parametrize(("way", "field"), [(refund_35, "amount"), (one_field_more, "to")])
async def test_an_approval_that_would_mean_something_else_is_told_of(journal: Journal, way: Way, field: str) -> None:
    """The check names the proposal, the fields that the code would bind otherwise, and the line."""
    result = await rehearsed(journal, way)

    assert result.fit is Fit.APPROVAL_CHANGES
    assert result.is_breaking
    assert result.recorded == "command 1, proposal 'refund', version 1"
    assert result.attempted == f"another {field}"
    assert "Desk/acme/d#refund.1" in result.detail
    assert __file__ in result.line
    verdict = Verdict()
    verdict.note(result)
    assert not verdict.may_deploy


@pytest.mark.parametrize(
    ("way", "recorded", "attempted"),
    [
        (of_the_gift, "decision on 'refund', version 1", "decision on 'gift', version 1"),
        (of_another_action, "proposal 'refund', version 1", "proposal 'payout'"),
    ],
)
async def test_code_that_waits_for_another_decision_diverges(
    journal: Journal, way: Way, recorded: str, attempted: str
) -> None:
    """The invocation would be parked, and the check says what it waits for and what the code asks for."""
    result = await rehearsed(journal, way)

    assert result.fit is Fit.DIVERGES
    assert recorded in result.recorded
    assert attempted in result.attempted
