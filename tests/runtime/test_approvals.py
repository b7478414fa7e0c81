"""Proposals and approvals: bound to what was proposed, decided once, told to those who wait, by those who may."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal, cast

import pytest
from pydantic import BaseModel

from keylane import (
    AlreadyDecided,
    Approval,
    ApprovalDeclined,
    ApprovalExpired,
    ApprovalUnfit,
    BlockingClient,
    BlockingObjectContext,
    Client,
    Decided,
    DecisionVerdict,
    IdempotencyConflict,
    InvalidInput,
    InvalidKey,
    InvocationPaused,
    KeylaneError,
    NotPermitted,
    ObjectContext,
    PayloadTooLarge,
    Proposal,
    RetryPolicy,
    Runtime,
    Settings,
    Superseded,
    SupersededBy,
    UnknownTarget,
    VirtualObject,
)
from keylane.objects.proposing import digest_of
from keylane.testing import Harness, harness

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
TWO_DAYS = timedelta(hours=48)
ONCE = RetryPolicy(attempts=1)
#: Who may approve in `guarded`; a name in `failing` breaks the question.
allowed: set[str] = set()
failing: set[str] = set()
asked: list[tuple[str, str]] = []


class Address(BaseModel):
    """Where a parcel goes."""

    street: str
    number: int


async def may_approve(approver: str, proposal: Proposal) -> bool:
    asked.append((approver, proposal.id))
    if approver in failing:
        raise ConnectionError("the directory is away")
    return approver in allowed


order = VirtualObject("Order", owner="refunds-oncall", state={"proposal": Proposal, "approval": Approval}, retry=ONCE)
guarded = VirtualObject("Guarded", owner="refunds-oncall", may_approve=may_approve, state={"proposal": Proposal})


@pytest.fixture(autouse=True)
def _nobody_asked_yet() -> None:
    allowed.clear()
    failing.clear()
    asked.clear()


async def told(waiting: Awaitable[Approval]) -> str:
    """Return what became of a wait for a decision."""
    try:
        approval = await waiting
    except (ApprovalDeclined, ApprovalExpired, ApprovalUnfit, Superseded) as error:
        return f"{type(error).__name__}: {error}"
    return f"approved by {', '.join(approval.approved_by)}"


@order.handler
async def refund(ctx: ObjectContext, amount: Decimal) -> str:
    """Propose a refund, and wait for the decision in a lane that others may use."""
    proposal = await ctx.propose(
        action="refund", amount=amount, recipient="ada", expires_in=TWO_DAYS, notes={"why": "it was broken"}
    )
    ctx.set("proposal", proposal)
    return await told(ctx.approval(proposal, release_lane=True))


@order.handler
def refund_blocking(ctx: BlockingObjectContext, amount: Decimal) -> list[str]:
    proposal = ctx.propose(action="refund", amount=amount, recipient="ada", expires_in=3600)
    return list(ctx.approval(proposal).approved_by)


@order.handler
async def only_propose(ctx: ObjectContext, how: Literal["alone", "beside"]) -> str:
    """Propose something in the place of what was proposed before, or beside it."""
    proposal = await ctx.propose(
        action="refund", amount=Decimal(1), expires_in=TWO_DAYS, concurrent=how == "beside"
    )  # fmt: skip
    ctx.set("proposal", proposal)
    return proposal.id


@order.handler
async def wait(ctx: ObjectContext) -> str:
    """Wait for the decision on what another invocation has proposed."""
    proposal = await ctx.get("proposal", Proposal)
    assert proposal is not None
    return await told(ctx.approval(proposal, release_lane=True))


@order.handler
async def wait_in_branches(ctx: ObjectContext) -> list[str]:
    proposal = await ctx.propose(action="refund", amount=Decimal(1))
    return list(await ctx.gather(told(ctx.approval(proposal)), told(ctx.approval(proposal))))


@order.handler
async def wait_for_a_day(ctx: ObjectContext) -> list[str]:
    """Let a race with a sleep give the wait up, and wait again afterwards."""
    proposal = await ctx.propose(action="refund", amount=Decimal(1))
    first, _ = await ctx.select(approval=ctx.approval(proposal), day=ctx.sleep(timedelta(days=1)))
    return [first, await told(ctx.approval(proposal))]


@order.handler
async def supersede_own(ctx: ObjectContext) -> list[str]:
    """Propose anew in one branch while another waits for the decision on what was proposed first."""
    first = await ctx.propose(action="refund", amount=Decimal(1))

    async def amend() -> str:
        await ctx.sleep(60)
        return (await ctx.propose(action="refund", amount=Decimal(2))).id

    return list(await ctx.gather(told(ctx.approval(first)), amend()))


@order.handler
async def alter(ctx: ObjectContext, field: str) -> str:
    """Wait for the decision on a proposal in which something was changed."""
    proposal = await ctx.propose(action="refund", amount=Decimal(40), notes={"why": "x"})
    match field:
        case "amount":
            proposal = replace(proposal, fields={"amount": Decimal(4000)})
        case "notes":
            proposal = replace(proposal, notes={"why": "another reason"})
        case "digest":
            fields = {"amount": Decimal(4000)}
            proposal = replace(proposal, fields=fields, digest=digest_of("refund", 1, fields).hex())
        case _:
            proposal = replace(proposal, id="Order/acme/o-2#refund.1")
    return await told(ctx.approval(proposal))


@order.handler
async def keep_approval(ctx: ObjectContext) -> str:
    """Keep proposal and approval in the state, as plain values of their types."""
    address = Address(street="Elm", number=3)
    proposal = await ctx.propose(action="send", to=address, amount=Decimal("1.50"), lines=[1, 2], on=True)
    approval = await ctx.approval(proposal)
    ctx.set("approval", approval)
    assert proposal["to"] == {"street": "Elm", "number": 3}
    assert approval.fields == proposal.fields
    return approval.proposal_id


@order.handler
async def two_actions(ctx: ObjectContext) -> list[str]:
    ids = [await ctx.propose(action=action, amount=1) for action in ("refund", "refund", "gift", "refund")]
    return [each.id for each in ids]


@order.handler
async def propose_badly(ctx: ObjectContext, how: str) -> None:
    match how:
        case "name":
            await ctx.propose(action="not a name", amount=1)
        case "quorum":
            await ctx.propose(action="refund", quorum=0, amount=1)
        case "notes":
            await ctx.propose(action="refund", notes=cast("dict[str, Any]", "broken"), amount=1)
        case "nothing":
            await ctx.propose(action="refund", notes={"amount": 1})
        case "value":
            await ctx.propose(action="refund", what=object)
        case "size":
            await ctx.propose(action="refund", text="x" * 70_000)
        case _:
            for _ in range(201):
                await ctx.propose(action="refund", concurrent=True, amount=1)


@guarded.handler
async def ask(ctx: ObjectContext, quorum: int) -> str:
    proposal = await ctx.propose(action="refund", amount=Decimal(1), quorum=quorum, expires_in=TWO_DAYS)
    ctx.set("proposal", proposal)
    return await told(ctx.approval(proposal))


async def proposed(h: Harness, type_name: str = "Order", key: str = KEY) -> str:
    """Return the id of the newest proposal of an object, once everything waits."""
    await h.settled()
    return (await h.client.approvals(type_name, key))[-1].id


def standing(verdict: DecisionVerdict) -> str:
    """Return where a proposal stands after a decision that counts."""
    assert isinstance(verdict, Decided), verdict
    return verdict.standing


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


async def test_only_those_decide_who_may(store_url: str) -> None:
    """The type's own function is asked at each decision; without it nothing counts."""
    async with harness(guarded, store=store_url) as h:
        handle = await h.send(ask, KEY, 1)
        name = await proposed(h, "Guarded")

        assert await h.client.approve(name, by="eve") == NotPermitted("eve may not approve this")
        assert await h.client.decline(name, by="eve", reason="no") == NotPermitted("eve may not approve this")
        assert await h.client.delegate(name, by="eve", to="bob") == NotPermitted("eve may not approve this")
        allowed.add("bob")
        assert standing(await h.client.approve(name, by="bob")) == "approved"
        assert await h.client.revoke(name, by="eve", reason="no") == NotPermitted("eve may not approve this")
        assert await handle.result(timeout=10) == "approved by bob"
        assert ("bob", name) in asked


async def test_where_it_can_not_be_said_who_may_the_answer_is_no(store_url: str) -> None:
    """A function that raises lets nobody pass, and is asked again with the next decision."""
    async with harness(guarded, store=store_url) as h:
        await h.send(ask, KEY, 1)
        name = await proposed(h, "Guarded")
        allowed.add("bob")
        failing.add("bob")

        verdict = await h.client.approve(name, by="bob")
        assert isinstance(verdict, NotPermitted)
        assert "ConnectionError" in verdict.why
        failing.clear()
        assert standing(await h.client.approve(name, by="bob")) == "approved"


async def test_where_the_answer_takes_too_long_it_is_no(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that never answers keeps a decision for a bounded time, and lets nobody pass."""
    monkeypatch.setattr("keylane.runtime.authority.AUTHORITY_SECONDS", 0.1)

    async def never(approver: str, proposal: Proposal) -> bool:
        del approver, proposal
        await asyncio.Event().wait()
        return True

    silent = VirtualObject("Silent", owner="tests", may_approve=never, partitions=1)

    @silent.handler
    async def propose(ctx: ObjectContext) -> str:
        return (await ctx.propose(action="refund", amount=1)).id

    async with harness(silent, store=store_url) as h:
        name = await h.call(propose, KEY)
        verdict = await h.client.approve(name, by="bob", timeout=10)
        assert verdict == NotPermitted("whether bob may approve it can't be said: may_approve took over 0.1 s")


async def test_a_slow_question_keeps_no_other_object_waiting(store_url: str) -> None:
    """Decisions for other objects, and calls to this one, go on while the function takes its time."""
    entered, may_go_on = asyncio.Event(), asyncio.Event()

    async def slow(approver: str, proposal: Proposal) -> bool:
        del approver
        if proposal.id.endswith("slow#refund.1"):
            entered.set()
            await may_go_on.wait()
        return True

    slowly = VirtualObject("Slowly", owner="tests", may_approve=slow, partitions=1)

    @slowly.handler
    async def propose(ctx: ObjectContext) -> str:
        return (await ctx.propose(action="refund", amount=1)).id

    async with harness(slowly, store=store_url) as h:
        late, other = await h.call(propose, "acme/slow"), await h.call(propose, "acme/other")
        deciding = asyncio.create_task(h.client.approve(late, by="bob"))
        behind = asyncio.create_task(h.client.decline(late, by="ann", reason="no"))
        await entered.wait()

        assert standing(await h.client.approve(other, by="bob", timeout=10)) == "approved"
        assert await h.call(propose, "acme/third", timeout=10)
        assert not deciding.done()
        may_go_on.set()
        assert standing(await deciding) == "approved"
        assert isinstance(await behind, AlreadyDecided)


async def test_what_changed_while_the_question_was_asked_counts(store_url: str) -> None:
    """A proposal that was superseded meanwhile is not approved, whoever may approve it."""
    entered, may_go_on = asyncio.Event(), asyncio.Event()

    async def slow(approver: str, proposal: Proposal) -> bool:
        del approver, proposal
        entered.set()
        await may_go_on.wait()
        return True

    slowly = VirtualObject("Slowly", owner="tests", may_approve=slow, partitions=1)

    @slowly.handler
    async def propose(ctx: ObjectContext) -> str:
        return (await ctx.propose(action="refund", amount=1)).id

    async with harness(slowly, store=store_url) as h:
        first = await h.call(propose, KEY)
        deciding = asyncio.create_task(h.client.approve(first, by="bob"))
        await entered.wait()
        await h.call(propose, KEY)
        may_go_on.set()

        assert await deciding == SupersededBy(2)


async def test_a_quorum_is_of_different_people(store_url: str) -> None:
    """Who has approved once adds nothing by approving again, for themselves or for somebody else."""
    async with harness(guarded, store=store_url) as h:
        allowed.update({"ann", "bob", "cy"})
        handle = await h.send(ask, KEY, 2)
        name = await proposed(h, "Guarded")
        await h.client.delegate(name, by="cy", to="ann")

        assert standing(await h.client.approve(name, by="ann")) == "open"
        assert isinstance(await h.client.approve(name, by="ann"), AlreadyDecided)
        assert isinstance(await h.client.approve(name, by="ann", on_behalf_of="cy"), NotPermitted)
        assert standing(await h.client.approve(name, by="bob")) == "approved"
        assert await handle.result(timeout=10) == "approved by ann, bob"


async def test_one_with_two_votes_is_one(store_url: str) -> None:
    """Who has approved for somebody else can't approve for themselves as well."""
    async with harness(guarded, store=store_url) as h:
        allowed.update({"ann", "cy"})
        await h.send(ask, KEY, 2)
        name = await proposed(h, "Guarded")
        await h.client.delegate(name, by="cy", to="ann")

        assert standing(await h.client.approve(name, by="ann", on_behalf_of="cy")) == "open"
        assert isinstance(await h.client.approve(name, by="ann"), NotPermitted)


async def test_a_delegate_decides_with_the_authority_of_who_delegates(store_url: str) -> None:
    """The function is asked about the one whose decision it is, then and there; without a delegation nothing counts."""
    async with harness(guarded, store=store_url) as h:
        allowed.add("ann")
        handle = await h.send(ask, KEY, 1)
        name = await proposed(h, "Guarded")

        refused = await h.client.approve(name, by="temp", on_behalf_of="ann")
        assert refused == NotPermitted("ann has not delegated this to temp")
        assert standing(await h.client.delegate(name, by="ann", to="temp")) == "open"
        assert await h.client.approve(name, by="temp") == NotPermitted("temp may not approve this")
        allowed.clear()
        assert isinstance(await h.client.approve(name, by="temp", on_behalf_of="ann"), NotPermitted)
        allowed.add("ann")
        assert standing(await h.client.approve(name, by="temp", on_behalf_of="ann")) == "approved"
        assert await handle.result(timeout=10) == "approved by ann"
        status = await h.client.approval_status(name)
        assert status is not None
        assert [(each.approver, each.by) for each in status.decisions] == [("ann", "temp")]


async def test_an_approval_is_taken_back_until_it_is_used(store_url: str) -> None:
    """Who waits afterwards is told; before the quorum is full one takes back one's own and no one else's."""
    async with harness([order, guarded], store=store_url) as h:
        name = await h.call(only_propose, KEY, "alone")
        await h.client.approve(name, by="bob")
        assert standing(await h.client.revoke(name, by="ann", reason="a fraud")) == "revoked"
        assert await h.call(wait, KEY) == f"ApprovalDeclined: ann declined {name}: taken back: a fraud"
        again = await h.client.approve(name, by="bob")
        assert isinstance(again, AlreadyDecided)
        assert again.by == "ann"

        allowed.update({"ann", "bob", "cy"})
        await h.send(ask, KEY, 2)
        other = await proposed(h, "Guarded")
        await h.client.approve(other, by="bob")
        assert isinstance(await h.client.revoke(other, by="ann", reason="no"), NotPermitted)
        assert standing(await h.client.revoke(other, by="bob", reason="no")) == "open"
        await h.client.approve(other, by="cy")
        assert standing(await h.client.approve(other, by="bob")) == "approved"


async def test_the_same_message_again_gets_the_first_verdict(store_url: str) -> None:
    """A retried approval is answered as the first time; another decision under its id is refused."""
    async with harness(order, store=store_url) as h:
        name = await h.call(only_propose, KEY, "alone")
        first = await h.client.approve(name, by="bob", message_id="m-1")
        await h.client.revoke(name, by="bob", reason="no")

        assert await h.client.approve(name, by="bob", message_id="m-1") == first
        with pytest.raises(IdempotencyConflict):
            await h.client.decline(name, by="bob", reason="no", message_id="m-1")
        assert isinstance(await h.client.approve(name, by="bob", message_id="m-2"), AlreadyDecided)


async def test_what_nobody_has_proposed_is_unknown(store_url: str) -> None:
    """A version that there is not, an object without proposals, and a type that nobody hosts; no id is an error."""
    async with harness(order, store=store_url) as h:
        await h.call(only_propose, KEY, "alone")

        for unknown in (f"Order/{KEY}#refund.7", "Order/acme/o-9#refund.1", f"Nothing/{KEY}#refund.1"):
            assert await h.client.approve(unknown, by="bob") == UnknownTarget()
            assert await h.client.approval_status(unknown) is None
        for nothing in (
            "refund.1",
            f"Order/{KEY}#refund",
            f"Order/{KEY}#refund.0",
            f"Order/{KEY}#refund.{'9' * 20}",
            "",
        ):
            with pytest.raises(InvalidKey):
                await h.client.approve(nothing, by="bob")


async def test_somebody_has_to_answer_for_a_decision(store_url: str) -> None:
    """An empty name, one that is too long, and a reason beyond all bounds are refused before anything is sent."""
    async with harness(order, store=store_url) as h:
        name = await h.call(only_propose, KEY, "alone")

        with pytest.raises(InvalidInput):
            await h.client.approve(name, by=" ")
        with pytest.raises(PayloadTooLarge):
            await h.client.approve(name, by="x" * 300)
        with pytest.raises(PayloadTooLarge):
            await h.client.approve(name, by="bob", reason="x" * 5_000)


async def test_everything_that_was_said_stands_in_the_history(store_url: str) -> None:
    """Who did what, when and why, in order; an attempt that did not count is in the ledger alone."""
    async with harness(guarded, store=store_url) as h:
        allowed.update({"ann", "bob"})
        await h.send(ask, KEY, 2)
        name = await proposed(h, "Guarded")
        await h.client.approve(name, by="eve")
        await h.client.approve(name, by="ann", reason="seen")
        await h.client.delegate(name, by="bob", to="temp", reason="on leave")
        await h.client.approve(name, by="temp", on_behalf_of="bob")
        await h.client.revoke(name, by="ann", reason="wrong")

        status = await h.client.approval_status(name)
        assert status is not None
        assert [(each.what, each.by, each.detail) for each in status.history] == [
            ("proposed", "", "2 have to approve"),
            ("approved", "ann", "seen"),
            ("delegated", "bob", "to temp: on leave"),
            ("approved", "temp", "for bob"),
            ("revoked", "ann", "wrong"),
        ]
        assert status.standing == "revoked"


async def test_the_list_has_what_waits_for_a_decision_and_what_expires_first_at_the_top(store_url: str) -> None:
    """Of all types, of one, and of one object, of which all are listed."""
    async with harness([order, guarded], store=store_url) as h:
        allowed.add("bob")
        await h.send(ask, "acme/g-1", 1)
        await h.settled()
        await h.advance(timedelta(hours=1))
        ids = [await h.call(only_propose, key, "beside") for key in ("acme/o-1", "acme/o-2", "acme/o-1")]
        await h.client.approve(ids[0], by="bob")

        everything = [each.id for each in await h.client.approvals()]
        assert everything[0] == "Guarded/acme/g-1#refund.1"
        assert sorted(everything[1:]) == sorted(ids[1:])
        assert {each.id for each in await h.client.approvals(order)} == set(ids[1:])
        of_one = await h.client.approvals("Order", "acme/o-1")
        assert [(each.id, each.standing) for each in of_one] == [(ids[0], "approved"), (ids[2], "open")]


async def test_a_blocking_client_decides_too(store_url: str) -> None:
    """All that `Client` does about proposals, without await."""
    async with harness(order, store=store_url) as h:
        names = [await h.call(only_propose, KEY, "beside") for _ in range(3)]

        def decide() -> list[Any]:
            with BlockingClient(h.runtime.store_url, namespace=h.namespace) as client:
                assert [each.id for each in client.approvals("Order")] == names
                said = [
                    client.delegate(names[0], by="ann", to="bob"),
                    client.approve(names[0], by="bob", on_behalf_of="ann"),
                    client.revoke(names[0], by="ann", reason="no"),
                    client.decline(names[1], by="ann", reason="no"),
                ]
                assert client.approval_status(names[2]) is not None
                return said

        verdicts = await asyncio.to_thread(decide)
        assert [standing(each) for each in verdicts] == ["open", "approved", "revoked", "declined"]


async def test_a_decision_waits_in_the_inbox_while_there_is_no_owner(store_url: str, namespace: str) -> None:
    """It is durable before anybody takes it in, and counts once there is an owner."""
    settings = Settings(partitions=2)
    async with Runtime(order, store=store_url, namespace=namespace, settings=settings) as runtime:
        await runtime.client.call(only_propose, KEY, "alone")
        handle = await runtime.client.send(wait, KEY)
        while not (await runtime.client.approvals("Order", KEY))[0].waiting:
            await handle.accepted(timeout=10)
    async with Client(store_url, namespace=namespace) as client:
        deciding = asyncio.create_task(client.approve(f"Order/{KEY}#refund.1", by="bob", timeout=20))
        async with Runtime(order, store=store_url, namespace=namespace, settings=settings):
            assert standing(await deciding) == "approved"
            assert await client.attach(handle.id, str).result(timeout=10) == "approved by bob"
