"""Proposals in time: they expire by the partition's time, people are told ahead, once, and old ones are forgotten."""

from __future__ import annotations

import time
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from keylane import (
    ApprovalDeclined,
    ApprovalExpired,
    Decided,
    Expired,
    ObjectContext,
    Proposal,
    Superseded,
    UnknownTarget,
    VirtualObject,
)
from keylane.journal.ledger import EventKind
from keylane.journal.ledger_reading import read_alerts, read_ledger, spaces_of
from keylane.testing import Harness, crashes, harness

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
TWO_DAYS = timedelta(hours=48)

order = VirtualObject("Order", owner="refunds-oncall", state={"proposal": Proposal})


@order.handler
async def refund(ctx: ObjectContext, seconds: float) -> str:
    """Propose a refund, and say how long it took until it was decided, and how."""
    began = await ctx.time()
    proposal = await ctx.propose(action="refund", amount=Decimal(40), expires_in=seconds)
    ctx.set("proposal", proposal)
    try:
        await ctx.approval(proposal, release_lane=True)
        how = "approved"
    except (ApprovalExpired, ApprovalDeclined, Superseded) as error:
        how = error.code
    return f"{how} after {(await ctx.time() - began) // timedelta(hours=1)} h"


@order.handler
async def wait(ctx: ObjectContext) -> str:
    proposal = await ctx.get("proposal", Proposal)
    assert proposal is not None
    try:
        await ctx.approval(proposal, release_lane=True)
    except ApprovalExpired as error:
        return error.code
    return "approved"


@order.handler
async def propose_only(ctx: ObjectContext, seconds: float) -> str:
    proposal = await ctx.propose(action="refund", amount=Decimal(40), expires_in=seconds or None, concurrent=True)
    ctx.set("proposal", proposal)
    return proposal.id


@order.handler
async def propose_and_forget(ctx: ObjectContext) -> str:
    return (await ctx.propose(action="refund", amount=Decimal(40), expires_in=60)).id


async def proposed(h: Harness) -> str:
    """Return the id of the newest proposal of the object, once everything waits."""
    await h.settled()
    return (await h.client.approvals("Order", KEY))[-1].id


async def kinds(h: Harness) -> list[EventKind]:
    """Return what the ledgers of the namespace say, in order."""
    spaces = await spaces_of(h.client.store)
    return [
        each.event.happened.kind async for page in read_ledger(h.client.store, spaces) for each in page if each.event
    ]


async def alerts(h: Harness) -> list[str]:
    """Return the alerts of the namespace, in words."""
    spaces = await spaces_of(h.client.store)
    found: list[str] = []
    async for page in read_alerts(h.client.store, spaces):
        for each in page:
            assert each.event is not None
            event = each.event
            found.append(f"{event.owner}: {event.key} {event.subject} {event.happened.kind}: {event.happened.detail}")
    return found


async def test_two_days_pass_in_no_time_and_the_handler_is_told(store_url: str) -> None:
    """Nobody decides, so the wait ends with the time of the proposal, by the partition's clock."""
    began = time.monotonic()
    async with harness(order, store=store_url) as h:
        answer = await h.call(refund, KEY, TWO_DAYS.total_seconds(), timeout=30)

        assert answer == "approval-expired after 48 h"
        assert await kinds(h) == [EventKind.PROPOSED, EventKind.OVERDUE, EventKind.EXPIRED]
    assert time.monotonic() - began < 20


async def test_a_decision_that_comes_too_late_is_told_so(store_url: str) -> None:
    """Each act on an expired proposal gets the same verdict, whatever it would have been."""
    async with harness(order, store=store_url) as h:
        name = await h.call(propose_only, KEY, 60)
        await h.advance(timedelta(seconds=61))
        client = h.client

        first = await client.approve(name, by="bob")
        status = await client.approval_status(name)
        assert status is not None
        assert first == Expired(status.proposal.expires_at)
        assert await client.decline(name, by="bob", reason="no") == first
        assert await client.revoke(name, by="bob", reason="no") == first
        assert await client.delegate(name, by="bob", to="ann") == first


async def test_an_approval_expires_too_and_who_waits_for_it_afterwards_is_told(store_url: str) -> None:
    """An approval that was not used in its time is none any more."""
    async with harness(order, store=store_url) as h:
        name = await h.call(propose_only, KEY, 3600)
        assert isinstance(await h.client.approve(name, by="bob"), Decided)
        assert await h.call(wait, KEY) == "approved"
        await h.advance(timedelta(hours=1))

        assert await h.call(wait, KEY) == "approval-expired"
        assert isinstance(await h.client.revoke(name, by="bob", reason="no"), Expired)


async def test_without_a_time_it_waits_for_as_long_as_it_takes(store_url: str) -> None:
    """Nothing expires that nobody gave a time."""
    async with harness(order, store=store_url) as h:
        name = await h.call(propose_only, KEY, 0)
        await h.advance(timedelta(days=365))

        assert isinstance(await h.client.approve(name, by="bob"), Decided)


async def test_people_are_told_once_when_a_tenth_of_the_time_is_left(store_url: str) -> None:
    """Not before, and not again, also where it was approved meanwhile and waits to be used."""
    async with harness(order, store=store_url) as h:
        handle = await h.send(refund, KEY, 36_000)
        name = await proposed(h)
        await h.advance(timedelta(hours=8, minutes=59))
        assert await alerts(h) == []
        await h.advance(timedelta(minutes=2))
        (alert,) = await alerts(h)
        assert alert.startswith(f"refunds-oncall: {KEY} refund.1 overdue: it waits for a decision, and expires in 3,")
        status = await h.client.approval_status(name)
        assert status is not None
        assert status.is_overdue

        await h.advance(timedelta(minutes=30))
        await h.client.approve(name, by="bob")
        assert await handle.result(timeout=10) == "approved after 9 h"
        await h.advance(timedelta(minutes=20))
        assert len(await alerts(h)) == 1


async def test_of_a_short_time_people_are_told_a_minute_ahead_or_not_at_all(store_url: str) -> None:
    """A minute is the least that helps; whoever proposes for less than that looks after it."""
    async with harness(order, store=store_url) as h:
        await h.call(propose_only, KEY, 300)
        await h.call(propose_only, KEY, 60)
        await h.advance(timedelta(seconds=239))
        assert await alerts(h) == []
        await h.advance(timedelta(seconds=2))
        (alert,) = await alerts(h)
        assert " refund.1 " in alert


async def test_an_approved_proposal_that_nobody_uses_is_told_of_as_well(store_url: str) -> None:
    """What is approved and not done is a handler that has stopped."""
    async with harness(order, store=store_url) as h:
        name = await h.call(propose_only, KEY, 36_000)
        await h.client.approve(name, by="bob")
        await h.advance(timedelta(hours=9, minutes=1))

        (alert,) = await alerts(h)
        assert "nobody has used the approval" in alert


async def test_closed_proposals_are_forgotten_after_their_retention_but_the_newest_of_a_living_object(
    store_url: str,
) -> None:
    """Versions go on: an operation id that is made of one never comes again while the object has anything."""
    async with harness(order, store=store_url) as h:
        names = [await h.call(propose_only, KEY, 60) for _ in range(3)]
        await h.advance(timedelta(days=89))
        assert len(await h.client.approvals("Order", KEY)) == 3
        await h.advance(timedelta(days=2))
        await h.settled()

        assert [each.id for each in await h.client.approvals("Order", KEY)] == names[-1:]
        assert await h.client.approve(names[0], by="bob") == UnknownTarget()
        assert isinstance(await h.client.approve(names[-1], by="bob"), Expired)
        assert (await h.call(propose_only, KEY, 60)).endswith("#refund.4")


async def test_of_an_object_that_has_nothing_else_nothing_is_kept(store_url: str) -> None:
    """After the retention no key of it is left."""
    async with harness(order, store=store_url) as h:
        await h.call(propose_and_forget, "acme/o-9")
        await h.advance(timedelta(days=200))
        await h.settled()

        assert await h.client.approvals("Order", "acme/o-9") == []
        pattern = f"{h.namespace}*acme/o-9*"
        assert await keys(h, pattern) == []


async def keys(h: Harness, pattern: str) -> list[Any]:
    """Return the keys of the store that a pattern fits."""
    return await h.client.store.call("KEYS", pattern.replace("{", "*"))


async def expire_with_two_waiting(h: Harness) -> list[str]:
    """Let a proposal expire for which two invocations wait."""
    first = await h.send(refund, KEY, 600)
    await h.settled()
    second = await h.send(wait, KEY)
    return [await each.result(timeout=20) for each in (first, second)]


@pytest.mark.slow
async def test_whatever_dies_all_who_wait_are_told_that_it_has_expired_and_people_once(store_url: str) -> None:
    """The end of the time, the alert before it and the ends of the waits survive the worker at each of its writes."""
    points = 0
    async for crash in crashes(order, expire_with_two_waiting, store=store_url):
        assert crash.result() == ["approval-expired after 0 h", "approval-expired"], crash.point
        points += 1
    assert points > 10
