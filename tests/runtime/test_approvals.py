"""Proposals and approvals: bound to what was proposed, decided once, told to those who wait, by those who may."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from keylane import (
    InvocationPaused,
    KeylaneError,
    PayloadTooLarge,
    SupersededBy,
)
from keylane.testing import harness
from tests.runtime.guarded_orders import (
    KEY,
    alter,
    begin_afresh,
    keep_approval,
    only_propose,
    order,
    propose_badly,
    proposed,
    refund,
    refund_blocking,
    standing,
    supersede_own,
    two_actions,
    wait,
    wait_for_a_day,
    wait_in_branches,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _nobody_asked_yet() -> None:
    begin_afresh()


async def test_who_waits_for_a_decision_goes_on_when_it_is_made(store_url: str) -> None:
    """An approval reaches the handler that waits for it, and tells who has given it."""
    async with harness(order, store=store_url) as h:
        handle = await h.send(refund, KEY, Decimal("40.00"))
        name = await proposed(h)

        assert name == f"Order/{KEY}#refund.1"
        assert standing(await h.client.approve(name, by="bob", reason="seen it")) == "approved"
        assert await handle.result(timeout=10) == "approved by bob"


async def test_a_decline_tells_the_handler_who_and_why(store_url: str) -> None:
    """One who declines is enough, and the handler gets their name and reason."""
    async with harness(order, store=store_url) as h:
        handle = await h.send(refund, KEY, Decimal(40))
        name = await proposed(h)

        assert standing(await h.client.decline(name, by="bob", reason="too much")) == "declined"
        assert await handle.result(timeout=10) == f"ApprovalDeclined: bob declined {name}: too much"


async def test_a_plain_function_proposes_and_waits_too(store_url: str) -> None:
    """The thread is given up during the wait, and the function replayed after it."""
    async with harness(order, store=store_url) as h:
        handle = await h.send(refund_blocking, KEY, Decimal(40))
        name = await proposed(h)

        await h.client.approve(name, by="bob")
        assert await handle.result(timeout=10) == ["bob"]


async def test_others_use_the_lane_while_a_released_wait_lasts_and_may_wait_for_the_same(store_url: str) -> None:
    """Any invocation of the object may wait for a decision, and all of them are told."""
    async with harness(order, store=store_url) as h:
        first = await h.send(refund, KEY, Decimal(40))
        name = await proposed(h)
        others = [await h.send(wait, KEY) for _ in range(3)]
        await h.settled()
        status = await h.client.approval_status(name)
        assert status is not None
        assert status.waiting == 4

        await h.client.approve(name, by="bob")
        assert [await each.result(timeout=10) for each in (first, *others)] == ["approved by bob"] * 4
        late = await h.call(wait, KEY, timeout=10)
        assert late == "approved by bob"
        status = await h.client.approval_status(name)
        assert status is not None
        assert status.waiting == 0


@pytest.mark.parametrize("end", ["approved", "superseded"])
async def test_all_who_wait_are_told_at_once(store_url: str, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """The agenda is for what a crash leaves: nobody has to wait until what it has for those not yet told falls due."""
    monkeypatch.setattr("keylane.runtime.proposal_changes.TELL_AGAIN_MS", 86_400_000)
    async with harness(order, store=store_url, auto_advance=False) as h:
        waiting = [await h.send(refund, KEY, Decimal(40))]
        name = await proposed(h)
        waiting += [await h.send(wait, KEY) for _ in range(3)]
        await h.settled()
        if end == "approved":
            await h.client.approve(name, by="bob")
        else:
            await h.call(only_propose, KEY, "alone", timeout=10)

        said = [await each.result(timeout=10) for each in waiting]
        assert len(said) == 4
        assert all(each.lower().startswith(end) for each in said), said


async def test_several_branches_wait_for_one_decision(store_url: str) -> None:
    """Each of them is told."""
    async with harness(order, store=store_url) as h:
        handle = await h.send(wait_in_branches, KEY)
        await h.client.approve(await proposed(h), by="bob")

        assert await handle.result(timeout=10) == ["approved by bob"] * 2


async def test_a_wait_that_has_lost_a_race_leaves_the_decision_for_the_next(store_url: str) -> None:
    """A decision is kept with its proposal, so a wait that was given up takes nothing away."""
    async with harness(order, store=store_url) as h:
        handle = await h.send(wait_for_a_day, KEY)
        name = await proposed(h)
        await h.advance(timedelta(days=1))
        await h.settled()
        await h.client.approve(name, by="bob")

        assert await handle.result(timeout=10) == ["day", "approved by bob"]


async def test_versions_count_per_object_and_action(store_url: str) -> None:
    """Two invocations count on, another action and another object have numbers of their own."""
    async with harness(order, store=store_url) as h:
        ids = await h.call(two_actions, KEY)
        assert [each.partition("#")[2] for each in ids] == ["refund.1", "refund.2", "gift.1", "refund.3"]
        assert (await h.call(two_actions, KEY))[-1] == f"Order/{KEY}#refund.6"
        assert (await h.call(two_actions, "acme/o-2"))[0] == "Order/acme/o-2#refund.1"


async def test_a_newer_proposal_takes_the_place_of_older_ones_of_its_action(store_url: str) -> None:
    """Who waits for the old one is told, and who decides on it is told which one to decide on."""
    async with harness(order, store=store_url) as h:
        first = await h.send(refund, KEY, Decimal(40))
        name = await proposed(h)
        newer = await h.call(only_propose, KEY, "alone")

        assert (await first.result(timeout=10)).startswith("Superseded: superseded by version 2 of 'refund'")
        assert await h.client.approve(name, by="bob") == SupersededBy(2)
        assert standing(await h.client.approve(newer, by="bob")) == "approved"


async def test_an_approval_that_was_not_used_is_superseded_too(store_url: str) -> None:
    """What is out of date may not be done, however well it was approved."""
    async with harness(order, store=store_url) as h:
        name = await h.call(only_propose, KEY, "alone")
        await h.client.approve(name, by="bob")
        await h.call(only_propose, KEY, "alone")

        status = await h.client.approval_status(name)
        assert status is not None
        assert status.standing == "superseded"
        assert await h.client.revoke(name, by="bob", reason="late") == SupersededBy(2)


async def test_concurrent_proposals_stand_beside_each_other(store_url: str) -> None:
    """They neither take the place of others nor lose theirs."""
    async with harness(order, store=store_url) as h:
        names = [await h.call(only_propose, KEY, how) for how in ("beside", "beside", "alone", "beside")]
        found = await h.client.approvals("Order", KEY)

        assert [each.standing for each in found] == ["open"] * 4
        assert [each.id for each in found] == names
        for name in names:
            assert standing(await h.client.approve(name, by="bob")) == "approved"


async def test_a_branch_that_proposes_anew_ends_the_wait_of_another(store_url: str) -> None:
    """What a handler does to its own proposal is told to its branches as to everybody."""
    async with harness(order, store=store_url) as h:
        first, newer = await h.call(supersede_own, KEY, timeout=20)

        assert first.startswith("Superseded: ")
        assert newer == f"Order/{KEY}#refund.2"


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("amount", "it was altered since it was proposed"),
        ("digest", "this object has proposed no such thing"),
        ("id", "it is no proposal of this object"),
    ],
)
async def test_what_was_altered_is_no_proposal_any_more(store_url: str, field: str, said: str) -> None:
    """A changed field, another proposal's digest and another object's id are refused before anybody is asked."""
    async with harness(order, store=store_url) as h:
        answer = await h.call(alter, KEY, field, timeout=10)

        assert answer.startswith("ApprovalUnfit: ")
        assert said in answer


async def test_a_changed_note_does_not_void_a_proposal(store_url: str) -> None:
    """The decision is not bound to notes."""
    async with harness(order, store=store_url) as h:
        handle = await h.send(alter, KEY, "notes")
        await h.client.approve(await proposed(h), by="bob")

        assert await handle.result(timeout=10) == "approved by bob"


async def test_values_come_back_as_plain_data_and_fit_into_the_state(store_url: str) -> None:
    """A model becomes a dict, a Decimal stays one, and a proposal or an approval from the state is the same."""
    async with harness(order, store=store_url) as h:
        handle = await h.send(keep_approval, KEY)
        name = await proposed(h)
        status = await h.client.approval_status(name)
        assert status is not None
        assert status.proposal.fields["amount"] == Decimal("1.50")
        await h.client.approve(name, by="bob")

        assert await handle.result(timeout=10) == name


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ("name", InvocationPaused, "invalid input at action: it is the name of an effect"),
        ("quorum", InvocationPaused, "invalid input at quorum: it is a number from 1 to 32"),
        ("notes", InvocationPaused, "invalid input at notes: they are names with values, as in {'why': …}, not str"),
        ("nothing", InvocationPaused, "invalid input at fields: an approval of nothing in particular limits nothing"),
        ("value", InvocationPaused, "invalid input at field what"),
        ("size", PayloadTooLarge, "the proposal has 70,"),
        ("many", PayloadTooLarge, "the open proposals has 201 proposals"),
    ],
)
async def test_what_can_not_be_proposed_is_refused(
    store_url: str, how: str, error: type[KeylaneError], said: str
) -> None:
    """An action that names no effect, a quorum that nobody reaches, nothing to decide on, too much or too many."""
    async with harness(order, store=store_url) as h:
        with pytest.raises(error) as caught:
            await h.call(propose_badly, KEY, how, timeout=20)
        assert said in str(caught.value)
