"""What is open of effects and proposals whose code is gone: the doctor says so, and so does who shows an effect."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import Client, NotAllowed, ObjectContext, Proposal, Receiver, Runtime, VirtualObject
from keylane.journal.doctor.report import Report
from keylane.journal.effect_cases import EffectCase
from tests.runtime.fake_bank import Bank, Receipt, Terms
from tests.runtime.ward import KEY, OWNER, Ward, settings

pytestmark = pytest.mark.anyio

bank = Bank()
asked = Receiver("asked", owner="asked-oncall", lookup=bank.find, in_flight=timedelta(seconds=20))


@asked.effect("cheque", timeout=timedelta(milliseconds=300), on_unknown="ask")
async def send_cheque(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


async def only_ada(approver: str, proposal: Proposal) -> bool:
    del proposal
    return approver == "ada"


async def pay(ctx: ObjectContext, operation: str) -> str:
    return (await ctx.effect(send_cheque, operation_id=operation, params=Terms(amount=7))).id


async def ask(ctx: ObjectContext) -> str:
    return (await ctx.propose(action="cheque", amount=7)).id


def job(**declared: Any) -> VirtualObject:
    """Return the object type as a version of the code has it."""
    made = VirtualObject("Job", owner=OWNER, partitions=1, **declared)
    made.handler(pay)
    made.handler(ask)
    return made


def runtime_of(ward: Ward, *hosted: VirtualObject) -> Runtime:
    return Runtime(hosted, settings=settings(), store=ward.url, namespace=ward.store.namespace, durability="server")


async def left_open(ward: Ward) -> None:
    """Leave an effect that is settled, one that lies with people, and an open proposal."""
    bank.empty()
    async with runtime_of(ward, job(effects=[send_cheque], may_approve=only_ada)) as runtime:
        await runtime.client.call("Job", KEY, "pay", "done")
        await runtime.client.call("Job", "acme/o-2", "ask")
        bank.whims.append("lose the answer")
        await runtime.client.send("Job", KEY, "pay", "open")
        with anyio.fail_after(20):
            while not await runtime.client.reconcile_list():
                await anyio.lowlevel.checkpoint()


def told(report: Report) -> dict[str, tuple[str, str]]:
    """Return cause and remedy of each finding by its kind."""
    return {each.kind.value: (each.cause, each.remedy) for each in report.findings}


async def test_an_effect_that_the_code_has_lost_is_a_finding(ward: Ward) -> None:
    """Only one that is not settled; and it is none where the code has it again."""
    await left_open(ward)
    async with runtime_of(ward, job(may_approve=only_ada)):
        report = await ward.sweep()
    (finding,) = report.findings
    assert finding.kind.value == "effect-without-code"
    assert "asked.cheque open is unresolved" in finding.cause
    assert "has no asked.cheque" in finding.cause
    assert "host Job with asked.cheque among its effects" in finding.remedy
    assert "keylane reconcile show Job acme/o-1 open" in finding.remedy
    assert finding.repair is None

    async with runtime_of(ward, job(effects=[send_cheque], may_approve=only_ada)):
        assert (await ward.sweep()).findings == ()


async def test_a_proposal_that_nobody_guards_any_more_is_a_finding(ward: Ward) -> None:
    """It was made where the code says who may approve, and anybody may now."""
    await left_open(ward)
    async with runtime_of(ward, job(effects=[send_cheque])) as runtime:
        found = told(await ward.sweep())
        assert list(found) == ["proposal-unguarded"]
        cause, remedy = found["proposal-unguarded"]
        assert "cheque.1 is open" in cause
        assert "no may_approve" in cause
        assert "keylane approvals decline Job/acme/o-2#cheque.1" in remedy

        await runtime.client.call("Job", "acme/o-3", "ask")
        assert list(told(await ward.sweep())) == ["proposal-unguarded"], "made by code that asks nobody"
        await runtime.client.decline("Job/acme/o-2#cheque.1", by="ada", reason="not now")
        assert (await ward.sweep()).findings == ()


async def test_what_is_open_of_a_type_that_nobody_hosts_is_work(ward: Ward) -> None:
    """An open proposal has no invocation behind it, and waits for its owner all the same."""
    bank.empty()
    async with runtime_of(ward, job(effects=[send_cheque])) as runtime:
        await runtime.client.call("Job", KEY, "pay", "done")
    assert not told(await ward.sweep()), "what is settled needs nobody"
    async with runtime_of(ward, job(effects=[send_cheque])) as runtime:
        await runtime.client.call("Job", "acme/o-2", "ask")
    found = told(await ward.sweep())
    assert set(found) == {"partition-without-owner", "type-without-worker"}
    assert "1 effects and proposals that are not settled" in found["partition-without-owner"][0]


async def shown(ward: Ward) -> EffectCase:
    """Return the open effect as somebody sees it who has no code."""
    async with Client(ward.url, namespace=ward.store.namespace) as client:
        return await client.reconcile_show("Job", KEY, "open")


async def test_no_act_is_offered_that_the_owner_would_refuse(ward: Ward) -> None:
    """The receiver is known still, of another type's code; what needs this type's is not offered, and why is said."""
    await left_open(ward)
    other = VirtualObject("Till", owner=OWNER, partitions=1, effects=[send_cheque])
    async with runtime_of(ward, job(may_approve=only_ada), other) as runtime:
        case = await shown(ward)
        refused = await runtime.client.reconcile_lookup("Job", KEY, "open", by="ada", reason="look")

    assert isinstance(refused, NotAllowed)
    assert case.allowed == refused.allowed == ("hand-over",)
    assert case.forbidden["lookup"] == refused.why
    assert set(case.forbidden) == {"lookup", "succeeded", "not-done", "resend"}

    async with runtime_of(ward, job(effects=[send_cheque], may_approve=only_ada)):
        assert "lookup" in (await shown(ward)).allowed
