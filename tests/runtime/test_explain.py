"""The story of an object: all of its invocations in plain sentences, what is uncertain, and what happens next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial

import anyio.to_thread
import pytest

from keylane import (
    App,
    CallError,
    Client,
    InvocationFailed,
    ObjectContext,
    Runtime,
    SharedContext,
    TerminalError,
    VirtualObject,
)
from keylane.journal.codec import pack
from keylane.journal.effects import EffectState, Waiter, encode_effect_outcome
from keylane.journal.key import parse_id
from keylane.journal.ledger import EventKind, Happened
from keylane.journal.outcomes import Succeeded
from keylane.journal.proposals import ProposalState
from keylane.journal.receivers_registry import read_receivers
from keylane.journal.store import Store
from keylane.journal.story import Story, Topic
from keylane.journal.story_words import lines_of_effect
from keylane.objects.receivers import Receiver
from tests.journal.ledgers import effect, event, proposal, put_effect, put_event, put_proposal
from tests.runtime.shell_command import run

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"


@dataclass
class Terms:
    """What is refunded."""

    amount: Decimal


async def find_refund(operation_id: str, terms: Terms) -> str | None:
    """Find nothing."""
    return None


payments = Receiver("payments", owner="payments-oncall", lookup=find_refund, runbook="ask the bank")


@payments.effect("refund")
async def send_refund(operation_id: str, terms: Terms) -> str:
    """Refund nothing."""
    return operation_id


order = VirtualObject("Order", owner="refunds-oncall", effects=[send_refund], partitions=2)
customer = VirtualObject("Customer", owner="crm", partitions=1)


@order.handler
async def refund(ctx: ObjectContext, amount: Decimal) -> str:
    """Check, note and wait."""
    await ctx.run("policy check", _policy, amount)
    ctx.set("refunded", amount)
    await ctx.signal("go on", str)
    return "refunded"


@order.handler
async def note(ctx: ObjectContext, text: str) -> None:
    """Write a value, and end at once."""
    ctx.set("note", text)


@order.handler
async def refuse(ctx: ObjectContext) -> None:
    """Fail behind a step."""
    await ctx.run("policy check", _policy, Decimal(1))
    raise TerminalError("no")


@order.shared
async def status(ctx: SharedContext) -> str:
    """Say nothing."""
    return ""


@customer.handler
async def greet(ctx: ObjectContext) -> None:
    """Leave a trace."""
    ctx.set("greeted", value=True)


def _policy(amount: Decimal) -> str:
    return f"{amount} is allowed"


def _texts(story: Story, topic: Topic) -> list[str]:
    return [each.text for each in story.lines if each.topic is topic]


async def test_a_story_goes_over_all_invocations_of_the_object(store_url: str, namespace: str) -> None:
    """Short and long ones: who asked with what, what steps gave, what the state got, how it ended, what is next."""
    async with Runtime(App([order]), store=store_url, namespace=namespace) as runtime:
        await runtime.client.call(note, KEY, "first")
        handle = await runtime.client.send(refund, KEY, Decimal("40.00"))
        async with Client(store_url, namespace=namespace) as client:
            while (await client.describe(handle.id)).waits_for is None:
                await anyio.lowlevel.checkpoint()
            story = await client.explain("Order", KEY)
            assert (await client.explain(KEY)).lines == story.lines
            assert [each.what for each in story.matters] == [f"refund {handle.id}"]
            assert "signal 'go on'" in story.matters[0].why
            assert story.matters[0].owner == "refunds-oncall"
            await handle.signal("go on", "now")
            await handle.result(timeout=10)
            story = await client.explain("Order", KEY)
            newest = await client.explain("Order", KEY, entries=1)
    # Its end alone is among what is shown, and it is told from its records, at their times.
    of_refund = [each for each in story.lines if each.invocation == handle.id and each.topic is not Topic.STATE]
    assert [each for each in newest.lines if each.topic is not Topic.STATE] == of_refund
    asked = _texts(story, Topic.ASKED)
    assert asked[0] == 'note("first") is asked for'
    assert asked[1].endswith('asks for refund("40.00")')
    assert _texts(story, Topic.STEP) == ["step 'policy check' gives \"40.00 is allowed\""]
    assert _texts(story, Topic.STATE) == ['state: note is "first"', 'state: refunded is "40.00"']
    assert _texts(story, Topic.ENDED) == ["note completed: null", 'refund completed: "refunded"']
    assert _texts(story, Topic.WAIT) == ["waits for the signal 'go on'"]
    assert _texts(story, Topic.ANSWER) == ['gets "now"']
    assert story.matters == ()
    assert story.in_charge == "refunds-oncall"
    assert [each.at for each in story.lines] == sorted(each.at for each in story.lines)


async def test_effects_and_proposals_are_told_with_what_is_uncertain(store_url: str, namespace: str) -> None:
    """Each thing that happened to them is a sentence; what is in question has a reason, a next thing and an owner."""
    async with Runtime(App([order]), store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(note, KEY, "first")
        await handle.result(timeout=10)
        invocation = parse_id(handle.id)
        async with Store(store_url, namespace=namespace) as store:
            space = store.space("Order", invocation.partition)
            at_ms = int((await runtime.client.inspect("Order", KEY)).read_at.timestamp() * 1000)
            life = [
                Happened(at_ms, EventKind.INTENDED, 1),
                Happened(at_ms + 1, EventKind.UNKNOWN, 1, "the connection was lost"),
                Happened(at_ms + 2, EventKind.ABSENT, 1),
                Happened(at_ms + 3, EventKind.QUEUED, 1, "nothing is found"),
            ]
            params = {"amount": Decimal("40.00")}
            open_one = effect(
                "refund-1", params, EffectState.UNRESOLVED, life=tuple(life), why="nothing is found", lookups=1,
                approval="refund.1", facts=pack("still allowed"), invocation=invocation.raw,
                reconcile_by_ms=at_ms + 3_600_000, since_ms=at_ms + 3,
            )  # fmt: skip
            seen = Happened(at_ms + 5, EventKind.MARKED_SUCCEEDED, 0, "seen at the bank", "ada")
            done = effect(
                "refund-2", params, life=(seen,),
                outcome=encode_effect_outcome(Succeeded(pack("r-77"))), invocation=invocation.raw,
            )  # fmt: skip
            await put_effect(store, space, KEY, open_one)
            await put_effect(store, space, KEY, done)
            decided = (
                Happened(at_ms - 2, EventKind.PROPOSED),
                Happened(at_ms - 1, EventKind.APPROVED, 0, "within the limit", "ana"),
            )
            await put_proposal(
                store, space, KEY, proposal(state=ProposalState.CONSUMED, bound=pack(params), life=decided)
            )  # fmt: skip
            await put_event(store, space.ledger, event(KEY, "refund-0", EventKind.SUCCEEDED, at_ms - 9))
            await put_event(store, space.ledger, event("acme/other", "refund-9", EventKind.SUCCEEDED, at_ms - 8))
            story = await runtime.client.explain("Order", KEY)
    told = [(each.topic, each.text, each.by) for each in story.lines]
    sent = f"{namespace}.Order.acme/o-1.refund-1"
    amount = '{"amount": "40.00"}'
    facts = '; facts checked before: "still allowed"'
    assert (Topic.PROPOSAL, f"proposes refund version 1: {amount}", "") in told
    assert (Topic.DECISION, "refund version 1 is approved: within the limit", "ana") in told
    asks = f"asks payments for refund as {sent}: {amount}, under approval refund.1{facts}"
    assert (Topic.EFFECT, asks, "") in told
    unknown = "refund 'refund-1': nobody knows whether it was done: the connection was lost"
    assert (Topic.UNCERTAIN, unknown, "") in told
    assert (Topic.PEOPLE, "refund 'refund-1' is put before payments-oncall: nothing is found", "") in told
    marked = "refund 'refund-2' is marked as done: seen at the bank; receipt \"r-77\""
    assert (Topic.PEOPLE, marked, "ada") in told
    # The docket has forgotten it; the ledger has not.
    assert (Topic.EFFECT, "refund 'refund-0' at payments is succeeded", "") in told
    assert not any("refund-9" in each[1] for each in told)
    (matter,) = story.matters
    assert matter.is_uncertain
    assert matter.what == f"refund 'refund-1' at payments: {amount}"
    assert matter.owner == "payments-oncall"
    assert matter.due is not None
    assert sent in matter.why


async def test_a_worker_writes_down_what_its_receivers_promise(store_url: str, namespace: str) -> None:
    """Who has no code knows the owner, the runbook and what each effect may count on."""
    async with (
        Runtime(App([order]), store=store_url, namespace=namespace),
        Store(store_url, namespace=namespace) as store,
    ):
        cards = await read_receivers(store)
    assert (cards["payments"].owner, cards["payments"].runbook) == ("payments-oncall", "ask the bank")
    assert cards["payments"].effects["refund"]["can_look_up"] is True
    assert cards["payments"].effects["refund"]["dedup_ms"] is None


async def test_a_type_that_is_not_named_is_found(store_url: str, namespace: str) -> None:
    """One type that has the key is meant; none, or several, are an error that names them."""
    async with Runtime(App([order, customer]), store=store_url, namespace=namespace) as runtime:
        await runtime.client.call(greet, KEY)
        assert (await runtime.client.explain(KEY)).object_name == "Customer"
        with pytest.raises(CallError, match="no object type has anything of acme/o-2"):
            await runtime.client.explain("acme/o-2")
        await runtime.client.call(note, KEY, "first")
        with pytest.raises(CallError, match="Customer, Order"):
            await runtime.client.explain(KEY)
        assert not (await runtime.client.explain("Order", "acme/o-2")).is_known


async def test_the_command_prints_the_story(store_url: str, namespace: str) -> None:
    """For people in sentences, and as JSON; exit code 1 when nothing is kept."""
    where = ("--store", store_url, "--namespace", namespace)
    async with Runtime(App([order]), store=store_url, namespace=namespace) as runtime:
        await runtime.client.call(note, KEY, "first")
        with pytest.raises(InvocationFailed):
            await runtime.client.call(refuse, KEY)
        shown = await anyio.to_thread.run_sync(partial(run, "explain", KEY, *where))
        told = await anyio.to_thread.run_sync(partial(run, "explain", "Order", KEY, "--json", *where))
        nothing = await anyio.to_thread.run_sync(partial(run, "explain", "Order", "acme/o-2", *where))
    assert shown.code == 0, shown.err
    assert 'note("first") is asked for' in shown.out
    assert "nothing: all of it has ended" in shown.out
    assert "somebody in the worker's process, or who does not wait for the answer, asks for refuse()" in shown.out
    assert "refuse failed: TerminalError: no" in shown.out
    # Both may have been asked for in one millisecond, of which what was asked stands first.
    (first,) = [each["invocation"] for each in told.json["lines"] if each["text"] == 'note("first") is asked for']
    topics = [each["topic"] for each in told.json["lines"] if each["invocation"] == first]
    assert topics == ["asked", "state", "ended"]
    assert (nothing.code, "nothing is kept of it" in nothing.out) == (1, True)


async def test_a_story_is_told_in_bounds(store_url: str, namespace: str) -> None:
    """A longer history than is asked for is cut at its old end, and said to be."""
    async with Runtime(App([order]), store=store_url, namespace=namespace) as runtime:
        for number in range(6):
            await runtime.client.call(note, KEY, f"n-{number}")
        story = await runtime.client.explain("Order", KEY, entries=2)
        assert story.is_cut
        assert _texts(story, Topic.ASKED) == ['note("n-4") is asked for', 'note("n-5") is asked for']
        assert not (await runtime.client.explain("Order", KEY)).is_cut


async def test_nothing_is_told_before_what_it_came_from(store_url: str, namespace: str) -> None:
    """The store's clock dates who asked, the partition's what was done: it may be behind by some milliseconds."""
    async with Runtime(App([order]), store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(note, KEY, "first")
        await handle.result(timeout=10)
        invocation = parse_id(handle.id)
        asked = (await runtime.client.explain("Order", KEY)).lines[0]
        at_ms = int(asked.at.timestamp() * 1000)
        life = (
            Happened(at_ms - 3, EventKind.INTENDED, 1),
            Happened(at_ms - 2, EventKind.UNKNOWN, 1, "the connection was lost"),
            Happened(at_ms - 1, EventKind.FOUND, 1),
        )
        async with Store(store_url, namespace=namespace) as store:
            outcome = encode_effect_outcome(Succeeded(pack("r-1")))
            done = effect("refund-1", life=life, outcome=outcome, invocation=invocation.raw)
            await put_effect(store, store.space("Order", invocation.partition), KEY, done)
        lines = (await runtime.client.explain("Order", KEY)).lines

    topics = [each.topic for each in lines if each.topic not in (Topic.STATE, Topic.ENDED)]
    assert topics == [Topic.ASKED, Topic.EFFECT, Topic.UNCERTAIN, Topic.ANSWER]
    assert [each.at for each in lines] == sorted(each.at for each in lines)


async def test_who_waits_for_people_does_not_go_on_by_itself(store_url: str, namespace: str) -> None:
    """An invocation whose effect people settle, or whose proposal they decide on, says what it goes on with."""
    async with Runtime(App([order]), store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(refund, KEY, Decimal(40))
        while (await runtime.client.describe(handle.id)).waits_for is None:
            await anyio.lowlevel.checkpoint()
        invocation = parse_id(handle.id)
        waiters = (Waiter(invocation.raw, 1),)
        async with Store(store_url, namespace=namespace) as store:
            space = store.space("Order", invocation.partition)
            by_itself = await runtime.client.explain("Order", KEY)
            await put_proposal(store, space, KEY, proposal(waiters=waiters))
            decided = await runtime.client.explain("Order", KEY)
            await put_proposal(store, space, KEY, proposal(state=ProposalState.APPROVED, waiters=waiters))
            in_question = effect(
                "refund-1", state=EffectState.UNRESOLVED, waiters=waiters, reconcile_by_ms=1, lookups=1
            )
            await put_effect(store, space, KEY, in_question)
            unsettled = await runtime.client.explain("Order", KEY)

    nexts = [[each.next for each in story.matters if each.what == f"refund {handle.id}"] for story in (
        by_itself, decided, unsettled,
    )]  # fmt: skip
    assert nexts[0] == ["it goes on by itself"]
    assert nexts[1] == ["it goes on when refund.1 is decided"]
    assert nexts[2] == ["it goes on when payments-oncall has settled 'refund-1'"]


async def test_a_namespace_that_nobody_works_in_is_said_to_be_one(store_url: str, namespace: str) -> None:
    """A name that is misspelt is not taken for an object type."""
    async with Client(store_url, namespace=namespace) as client:
        with pytest.raises(CallError, match="has no object types: no worker has run in it"):
            await client.explain(KEY)


@pytest.mark.parametrize("is_cut", [False, True])
def test_an_effect_is_put_before_whoever_it_was_handed_over_to(*, is_cut: bool) -> None:
    """Also where so much has happened since that the hand-over itself is no longer among what stands with it."""
    queued = Happened(1, EventKind.QUEUED, 1, "nothing is found")
    handed_over = Happened(2, EventKind.HANDED_OVER, 1, "to zoe: she knows the bank", "ada")
    life = (queued,) if is_cut else (queued, handed_over, replace(queued, at_ms=3))
    entry = effect("refund-1", state=EffectState.UNRESOLVED, life=life, assigned="zoe")
    said = [each.text for each in lines_of_effect(entry, "oncall", "id", "invocation")]
    before = [] if is_cut else ["refund 'refund-1' is put before oncall: nothing is found"]
    assert [each for each in said if "is put before" in each] == [
        *before,
        "refund 'refund-1' is put before zoe: nothing is found",
    ]
