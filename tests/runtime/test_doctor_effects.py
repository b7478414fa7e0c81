"""Effects, proposals and what names them, damaged by hand: the doctor says so, and owners put it right."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import pytest

from keylane import ObjectContext, Receiver, Runtime, VirtualObject
from keylane.journal.agenda import AgendaItem, AgendaKind
from keylane.journal.doctor.ranking import takes_most
from keylane.journal.doctor.report import BusyKey
from keylane.testing import shift_clock
from tests.runtime.fake_bank import Bank, Receipt, Terms
from tests.runtime.ward import KEY, OWNER, Ward, settings

pytestmark = pytest.mark.anyio

bank = Bank()
asked = Receiver(
    "asked", owner="asked-oncall", lookup=bank.find, in_flight=timedelta(seconds=20),
    reconcile_within=timedelta(hours=2),
)  # fmt: skip


@asked.effect("cheque", timeout=timedelta(milliseconds=300), on_unknown="ask")
async def send_cheque(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


payer = VirtualObject("Job", owner=OWNER, partitions=1, effects=[send_cheque])


@payer.handler
async def pay(ctx: ObjectContext, operation: str) -> str:
    return (await ctx.effect(send_cheque, operation_id=operation, params=Terms(amount=7))).id


@payer.handler
async def ask(ctx: ObjectContext, seconds: float) -> str:
    made = await ctx.propose(action="cheque", amount=7, expires_in=timedelta(seconds=seconds))
    return made.id


@asynccontextmanager
async def an_effect_with_people(ward: Ward) -> AsyncGenerator[Runtime]:
    """Host an object that has one effect behind it, and one that lies with people."""
    bank.empty()
    where = {"store": ward.url, "namespace": ward.store.namespace, "durability": "server"}
    async with Runtime([payer], settings=settings(), **where) as runtime:  # pyright: ignore[reportArgumentType]
        await runtime.client.call(pay, KEY, "done")
        bank.whims.append("lose the answer")
        await runtime.client.send(pay, KEY, "open")
        with anyio.fail_after(20):
            while not await runtime.client.reconcile_list():
                await anyio.lowlevel.checkpoint()
        yield runtime


def item(name: str, kind: AgendaKind = AgendaKind.EFFECT) -> bytes:
    """Return an effect or a proposal as indexes name it."""
    return AgendaItem(kind, KEY, name).encode()


async def test_effects_and_proposals_that_are_sound_are_no_finding(ward: Ward) -> None:
    """Done, with people, and open: all of their keys are known, and named where they have to be."""
    async with an_effect_with_people(ward) as runtime:
        await runtime.client.call(ask, "acme/o-2", 1800.0)
        report = await ward.sweep()
        assert report.findings == ()
        assert any("#cheque.1 waits for a decision, and expires in" in each for each in report.notices)


@pytest.mark.parametrize("index", ["agenda", "queue"])
async def test_an_effect_that_nobody_comes_back_to_is_named_again(ward: Ward, index: str) -> None:
    """Without its place on the agenda no deadline is noticed, without that in the queue nobody sees it."""
    async with an_effect_with_people(ward) as runtime:
        key = getattr(ward.space, index)
        before = await ward.redis("ZSCORE", key, item("open"))
        assert await ward.redis("ZREM", key, item("open")) == 1
        report = await ward.sweep()
        assert [each.kind.value for each in report.findings] == ["agenda-missing"]
        assert "open is unresolved" in report.findings[0].cause
        await ward.repaired()
        after = await ward.redis("ZSCORE", key, item("open"))
        assert abs(float(after) - float(before)) < 5_000
        assert len(await runtime.client.reconcile_list()) == 1


async def test_an_effect_that_is_kept_for_ever_is_named(ward: Ward) -> None:
    """One that is settled has to be forgotten some day."""
    async with an_effect_with_people(ward):
        assert await ward.redis("ZREM", ward.space.agenda, item("done", AgendaKind.OLD_EFFECT)) == 1
        assert await ward.kinds() == ["agenda-missing"]
        await ward.repaired()
        assert await ward.redis("ZSCORE", ward.space.agenda, item("done", AgendaKind.OLD_EFFECT)) is not None


async def test_what_names_nothing_is_taken_off(ward: Ward) -> None:
    """An item of the agenda whose entry is gone, and one of the queue whose effect is settled."""
    async with an_effect_with_people(ward):
        await ward.redis("ZADD", ward.space.agenda, 1 << 50, item("gone"))
        await ward.redis("ZADD", ward.space.queue, 1 << 50, item("done"))
        assert sorted(await ward.kinds()) == ["agenda-orphaned", "queue-entry-orphaned"]
        await ward.repaired()
        assert await ward.redis("ZSCORE", ward.space.agenda, item("gone")) is None
        assert await ward.redis("ZSCORE", ward.space.queue, item("done")) is None
        assert await ward.redis("ZSCORE", ward.space.queue, item("open")) is not None


async def test_a_proposal_that_nobody_comes_back_to_is_named_again(ward: Ward) -> None:
    """It would neither expire nor be shown to those who decide."""
    async with an_effect_with_people(ward) as runtime:
        await runtime.client.call(ask, "acme/o-2", 86_400.0)
        member = AgendaItem(AgendaKind.PROPOSAL, "acme/o-2", "cheque.1").encode()
        for index in (ward.space.agenda, ward.space.proposed):
            assert await ward.redis("ZREM", index, member) == 1
        assert await ward.kinds() == ["agenda-missing"]
        await ward.repaired()
        for index in (ward.space.agenda, ward.space.proposed):
            assert await ward.redis("ZSCORE", index, member) is not None


async def test_an_effect_that_people_should_have_settled_is_a_finding(ward: Ward) -> None:
    """With who has to, and the command that says how; nothing is repaired about it."""
    async with an_effect_with_people(ward) as runtime:
        await shift_clock(runtime, timedelta(hours=5))
        with anyio.fail_after(20):
            while not await runtime.client.alerts():
                await anyio.lowlevel.checkpoint()
        (finding,) = (await ward.sweep()).findings
        assert finding.kind.value == "effect-overdue"
        assert "3.0 h ago" in finding.cause
        assert "keylane reconcile show Job acme/o-1 open" in finding.remedy
        assert finding.repair is None


async def test_what_this_code_can_not_read_is_named(ward: Ward) -> None:
    """An effect of a later version, or garbage: what needs it does not go on."""
    async with an_effect_with_people(ward):
        await ward.redis("HSET", ward.space.effects("acme/o-9"), "odd", b"\xc1")
        assert await ward.kinds() == ["docket-unreadable"]


def test_a_key_that_takes_most_of_its_types_traffic_is_noticed() -> None:
    """Not where there is hardly any traffic, and not where it is spread."""
    busy = BusyKey("Order", "acme/all", 900, 0.9, None, 0)
    assert "acme/all takes 90%" in (takes_most(busy, Counter({"Order": 1_000})) or "")
    assert takes_most(busy, Counter({"Order": 999})) is None
    assert takes_most(BusyKey("Order", "acme/all", 500, 0.5, None, 0), Counter({"Order": 1_000})) is None
