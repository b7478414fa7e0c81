"""Random sequences of what people, handlers and crashes do to proposals, against what must hold in the end.

No effect without one unexpired, matching, unused approval; never two effects on one approval; and the sum of all
refunds is never above the order. `KEYLANE_SEQUENCES_SEED` runs one world again, `KEYLANE_SEQUENCES` says how many.
"""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import anyio
import anyio.lowlevel
import pytest

from keylane import (
    Approval,
    ApprovalDeclined,
    ApprovalExpired,
    ApprovalUnfit,
    Client,
    Decided,
    DecisionVerdict,
    Deduplicates,
    EffectRejected,
    Handle,
    InvocationCancelled,
    KeylaneError,
    ObjectContext,
    Proposal,
    ProposalStatus,
    Receiver,
    Runtime,
    Settings,
    Superseded,
    VirtualObject,
)
from keylane.journal.background import Background
from keylane.runtime.virtual_time import Subject, VirtualTime
from tests.runtime.fake_bank import Bank, Receipt, Terms

pytestmark = pytest.mark.anyio

#: Sequences run side by side in one world, each on an object of its own; crashes and the time are for all of them.
SIDE_BY_SIDE: Final = 20
ACTIONS_EACH: Final = 12
IN_CI: Final = 200
#: Sequences in each part of the night, and parts: several processes can share them.
NIGHTLY: Final = 1_000
PARTS: Final = 10
TOTAL: Final = 100
#: One that waits with its lane held keeps those behind it from proposing, so the end may take many expiries.
ENDS_WITHIN: Final = 60
PEOPLE: Final = ("ann", "bob", "cy")
NOBODY: Final = "eve"

bank = Bank(is_deduplicating=True)
#: Who may not approve at the moment.
dismissed: set[str] = set()

payments = Receiver(
    "payments", owner="payments-oncall", deduplicates=Deduplicates(timedelta(hours=300)),
    in_flight=timedelta(seconds=20),
)  # fmt: skip


@payments.effect("refund", timeout=timedelta(seconds=5))
async def send_refund(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


async def may_approve(approver: str, proposal: Proposal) -> bool:
    del proposal
    return approver in PEOPLE and approver not in dismissed


order = VirtualObject(
    "Order", owner="tests", effects=[send_refund], may_approve=may_approve,
    state={"proposal": Proposal, "approval": Approval, "promised": int},
)  # fmt: skip


@order.handler
async def refund(ctx: ObjectContext, terms: dict[str, Any]) -> str:
    """Propose a refund, wait for the decision, and pay."""
    proposal = await ctx.propose(
        action="refund", amount=terms["amount"], expires_in=terms["seconds"], quorum=terms["quorum"],
        concurrent=terms["concurrent"],
    )  # fmt: skip
    ctx.set("proposal", proposal)
    return await paid(ctx, ctx.approval(proposal, release_lane=terms["release"]), f"refund-{proposal.version}")


@order.handler
async def join(ctx: ObjectContext, operation: str) -> str:
    """Wait for the decision on the newest proposal, and pay for it under an operation id of one's own."""
    proposal = await ctx.get("proposal", Proposal)
    return "none" if proposal is None else await paid(ctx, ctx.approval(proposal, release_lane=True), operation)


@order.handler
async def use_again(ctx: ObjectContext, operation: str) -> str:
    """Use the approval that was kept last, whoever has used it before."""
    approval = await ctx.get("approval", Approval)
    return "none" if approval is None else await pay(ctx, approval, approval.fields["amount"], operation)


@order.handler
async def use_for_more(ctx: ObjectContext, operation: str) -> str:
    """Use it for another amount."""
    approval = await ctx.get("approval", Approval)
    return "none" if approval is None else await pay(ctx, approval, approval.fields["amount"] + 1, operation)


@order.handler
async def use_in_branches(ctx: ObjectContext, operation: str) -> str:
    approval = await ctx.get("approval", Approval)
    if approval is None:
        return "none"
    amount = approval.fields["amount"]
    ways = [pay(ctx, approval, amount, f"{operation}-{number}") for number in range(2)]
    return " ".join(await ctx.gather(*ways))


async def paid(ctx: ObjectContext, waiting: Awaitable[Approval], operation: str) -> str:
    """Pay once what is waited for is approved."""
    try:
        approval = await waiting
    except (ApprovalDeclined, ApprovalExpired, Superseded, ApprovalUnfit) as error:
        return error.code
    ctx.set("approval", approval)
    return await pay(ctx, approval, approval.fields["amount"], operation)


async def pay(ctx: ObjectContext, approval: Approval, amount: int, operation: str) -> str:
    """Promise an amount, unless that is more than the order has left, and pay it."""
    promised = await ctx.get("promised", int, 0)
    if promised + amount > TOTAL:
        return "too much"
    ctx.set("promised", promised + amount)
    try:
        receipt = await ctx.effect(
            send_refund, operation_id=operation, params=Terms(amount=amount), approval=approval
        )  # fmt: skip
    except (EffectRejected, ApprovalUnfit) as error:
        ctx.set("promised", await ctx.get("promised", int, 0) - amount)
        return error.code
    return f"paid {receipt.amount}"


class World:
    """A namespace with one worker that may die, and a client that outlives it."""

    def __init__(self, store_url: str, namespace: str, dice: random.Random) -> None:
        self.dice = dice
        self._store_url = store_url
        self._namespace = namespace
        self._stack = AsyncExitStack()
        self.keys = [f"acme/o-{number}" for number in range(SIDE_BY_SIDE)]
        self.handles: list[tuple[str, Handle[str]]] = []
        #: From when on who may not approve.
        self.dismissals: list[tuple[datetime, frozenset[str]]] = []
        self.verdicts: dict[str, DecisionVerdict] = {}
        self.count = 0
        self.crashes = 0

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        self._runtime = await self._begun()
        client = Client(self._store_url, namespace=self._namespace, settings=self._runtime.settings)
        self.client = await self._stack.enter_async_context(client)
        self._tasks = await self._stack.enter_async_context(Background())
        self.subject = Subject(self._runtime.worker, self.client)
        self.time = VirtualTime(self.subject)
        return self

    async def _begun(self) -> Runtime:
        settings = Settings(
            partitions=2, retry_attempts=1_000, result_retention_seconds=400 * 86_400, tombstone_retention_days=400,
            ledger_retention_days=400,
        )  # fmt: skip
        runtime = Runtime(order, store=self._store_url, namespace=self._namespace, settings=settings)
        await runtime.__aenter__()
        return runtime

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._runtime.__aexit__(None, None, None)
            await self._stack.aclose()

    async def crash(self) -> None:
        """Kill the worker somewhere in the middle of whatever it does, and have another one take over."""
        for _ in range(self.dice.randrange(40)):
            await anyio.lowlevel.checkpoint()
        self.crashes += 1
        with anyio.CancelScope(shield=True):
            self._runtime.worker.die()
            await self._runtime.__aexit__(None, None, None)
            self._runtime = await self._begun()
        self.subject.replace(self._runtime.worker)

    def name(self, what: str) -> str:
        """Return a name that nothing else has."""
        self.count += 1
        return f"{what}-{self.count}"

    async def send(self, handler: Any, key: str, argument: Any) -> None:
        """Begin something."""
        self.handles.append((key, await self.client.send(handler, key, argument)))

    async def any_proposal(self, key: str) -> str:
        """Return a proposal of an object: as a rule the newest, else any version, also one that there is not."""
        found = [each.proposal.version for each in await self.client.approvals("Order", key)]
        newest = max(found, default=1)
        version = newest if self.dice.random() < 0.8 else self.dice.randint(1, newest + 1)
        return f"Order/{key}#refund.{version}"

    async def decide(self, act: str, key: str) -> None:
        """Decide something, perhaps twice, perhaps with a crash in between."""
        dice, name, message = self.dice, await self.any_proposal(key), self.name("m")
        by = dice.choice((*PEOPLE, *PEOPLE, NOBODY))
        more: dict[str, Any] = {"by": by, "message_id": message, "timeout": 30}
        if act == "delegate":
            more["to"] = dice.choice((*PEOPLE, NOBODY))
        else:
            more["reason"] = "so it is"
            if dice.random() < 0.15:
                more["on_behalf_of"] = dice.choice(PEOPLE)
        decide: Callable[..., Awaitable[DecisionVerdict]] = getattr(self.client, act)
        times = 2 if dice.random() < 0.2 else 1
        verdicts: list[DecisionVerdict] = []

        async def once() -> None:
            verdicts.append(await decide(name, **more))

        async with anyio.create_task_group() as tasks:
            for _ in range(times):
                tasks.start_soon(once)
            if dice.random() < 0.04:
                tasks.start_soon(self.crash)
        assert all(each == verdicts[0] for each in verdicts), (act, name, verdicts)
        assert not (isinstance(verdicts[0], Decided) and by == NOBODY and "on_behalf_of" not in more), (act, name)
        self.verdicts[message] = verdicts[0]

    async def dismiss(self) -> None:
        """Let somebody approve no more, or again; nothing is under way meanwhile, so that it is clear when."""
        await self.time.settled(30)
        await self.time.advance(timedelta(seconds=1))
        who = self.dice.choice(PEOPLE)
        dismissed.symmetric_difference_update({who})
        self.dismissals.append((self.time.now, frozenset(dismissed)))
        await self.time.advance(timedelta(seconds=1))

    async def act(self) -> None:
        """Do one of the things that may happen."""
        dice, key = self.dice, self.dice.choice(self.keys)
        bank.whims.extend(dice.choices(("pay", "lose the answer", "lose the request", "refuse"), (12, 2, 2, 1)))
        match dice.choices(
            ("propose", "join", "again", "approve", "decline", "revoke", "delegate", "time", "end", "crash", "dismiss"),
            (16, 5, 10, 44, 3, 4, 5, 3, 3, 2, 2),
        )[0]:
            case "propose":
                await self.propose(key)
            case "join":
                await self.send(join, key, self.name("join"))
            case "again":
                handler = dice.choice((use_again, use_for_more, use_in_branches))
                await self.send(handler, key, self.name("again"))
            case "time":
                await self.time.advance(timedelta(hours=dice.choice((1, 1, 1, 5, 30))))
            case "end" if self.handles:
                self._end(dice.choice(self.handles)[1].id)
            case "crash":
                await self.crash()
            case "dismiss":
                await self.dismiss()
            case "approve" | "decline" | "revoke" | "delegate" as act:
                await self.decide(act, key)
            case _:
                pass
        if dice.random() < 0.6:
            await self.time.settled(30)

    async def propose(self, key: str) -> None:
        """Have a refund proposed, which is paid once it is approved."""
        await self.send(refund, key, self._terms())

    def _terms(self) -> dict[str, Any]:
        dice = self.dice
        return {
            "amount": dice.choice((10, 40, 60)), "seconds": dice.choice((3600, 72_000, 172_800)),
            "quorum": dice.choice((1, 1, 1, 2)), "concurrent": dice.random() < 0.25, "release": dice.random() < 0.85,
        }  # fmt: skip

    def _end(self, invocation_id: str) -> None:
        """Cancel or kill something; the report of it may need more than this to come about."""
        how = self.client.cancel if self.dice.random() < 0.5 else self.client.kill
        self._tasks.start_soon(partial(how, invocation_id, by="ops", reason="dice"))

    async def end(self) -> None:
        """Let all of it come to its end: what is open expires, and what is unknown is settled."""
        bank.whims.clear()
        for _ in range(ENDS_WITHIN):
            await self.time.settled(30)
            await self.time.advance(timedelta(hours=49))
            if not await self.client.approvals():
                break
        # What is not known yet is settled some time after the last of them.
        await self.time.advance(timedelta(hours=49))
        await self.time.settled(30)

    async def check(self) -> None:
        """Compare the receiver's books with what was approved."""
        for key, handle in self.handles:
            try:
                await handle.result(timeout=20)
            except InvocationCancelled:
                continue
            except KeylaneError as error:
                error.add_note(f"{key}: {await self.client.approvals('Order', key)}")
                raise
        for key in self.keys:
            self._check_one(key, await self.client.approvals("Order", key))

    def _check_one(self, key: str, proposals: list[ProposalStatus]) -> None:
        head = f"{self._namespace}.Order.{key}."
        sent = {each.removeprefix(head) for each in bank.sent if each.startswith(head)}
        paid = {each.removeprefix(head): done for each, done in bank.books.items() if each.startswith(head)}
        used = [each for each in proposals if each.operation_id]
        by_operation = {each.operation_id: each for each in used}
        assert len(by_operation) == len(used), f"{key}: one effect on two approvals: {used}"
        assert sent <= set(by_operation), f"{key}: sent without an approval: {sent - set(by_operation)}"
        for operation, receipts in paid.items():
            assert len(receipts) == 1, f"{key}: {operation} was paid {len(receipts)} times"
            assert receipts[0].amount == by_operation[operation].proposal["amount"], (
                f"{key}: {operation}, another amount"
            )
        for each in used:
            self._check_used(each)
        total = sum(receipt.amount for receipts in paid.values() for receipt in receipts)
        assert total <= TOTAL, f"{key}: {total} were paid for an order of {TOTAL}"

    def _check_used(self, used: ProposalStatus) -> None:
        """Check that what was used had been approved, by enough people who might, and in time."""
        events = [each for each in used.history if each.what == "consumed"]
        assert len(events) == 1, used
        assert used.standing == "consumed", used
        at, approvers = events[0].at, [each.approver for each in used.decisions if each.approves]
        people = {each.by for each in used.decisions}
        assert len(set(approvers)) >= used.quorum, used
        assert len(people) >= used.quorum, used
        assert all(each.approves for each in used.decisions), used
        assert used.proposal.expires_at is not None
        assert at < used.proposal.expires_at, used
        gone = next((who for since, who in reversed(self.dismissals) if since <= at), frozenset[str]())
        assert not gone & set(approvers), f"{used}: {gone} might not approve when it was used"
        assert set(approvers) <= set(PEOPLE), used


async def run_world(store_url: str, seed: int) -> tuple[int, int, int]:
    """Run one world; returns how many effects there were, how many decisions counted, and how often a worker died."""
    bank.empty()
    dismissed.clear()
    dice = random.Random(seed)
    async with World(store_url, f"sequences-{seed}-{dice.getrandbits(16)}", dice) as world:
        for key in world.keys:
            await world.propose(key)
        for _ in range(SIDE_BY_SIDE * ACTIONS_EACH):
            await world.act()
        await world.end()
        await world.check()
        counted = sum(isinstance(each, Decided) for each in world.verdicts.values())
        return len(bank.books), counted, world.crashes


async def run_worlds(store_url: str, sequences: int) -> None:
    """Run worlds until there were so many sequences; the seed of one that fails is in the error."""
    chosen = os.environ.get("KEYLANE_SEQUENCES_SEED")
    sequences = int(os.environ.get("KEYLANE_SEQUENCES", sequences))
    first = random.SystemRandom().getrandbits(32)
    seeds = [int(chosen)] if chosen else [first + number for number in range(sequences // SIDE_BY_SIDE)]
    effects = decided = crashed = 0
    for seed in seeds:
        try:
            told = await run_world(store_url, seed)
        except BaseException as error:
            error.add_note(f"KEYLANE_SEQUENCES_SEED={seed}")
            raise
        effects, decided, crashed = effects + told[0], decided + told[1], crashed + told[2]
    print(f"{len(seeds)} worlds from seed {seeds[0]}: {effects} effects, {decided} decisions, {crashed} crashes")  # noqa: T201
    assert effects
    assert decided


@pytest.mark.slow
async def test_no_sequence_does_what_was_not_approved(store_url: str) -> None:
    """A few hundred sequences, from another seed each time."""
    await run_worlds(store_url, IN_CI)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
async def test_ten_thousand_sequences_do_nothing_that_was_not_approved(store_url: str, part: int) -> None:
    """The same, often enough to meet what is rare."""
    del part
    await run_worlds(store_url, NIGHTLY)
