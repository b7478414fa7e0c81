"""Who may decide on a proposal, with whose authority, how often, and what is kept of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from keylane import (
    AlreadyDecided,
    BlockingClient,
    Client,
    IdempotencyConflict,
    InvalidInput,
    InvalidKey,
    NotPermitted,
    ObjectContext,
    PayloadTooLarge,
    Proposal,
    Runtime,
    Settings,
    SupersededBy,
    UnknownTarget,
    VirtualObject,
)
from keylane.testing import harness
from tests.runtime.guarded_orders import (
    KEY,
    allowed,
    ask,
    asked,
    begin_afresh,
    failing,
    guarded,
    only_propose,
    order,
    proposed,
    standing,
    wait,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _nobody_asked_yet() -> None:
    begin_afresh()


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
