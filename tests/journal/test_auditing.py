"""What a comparison of our ledger with a receiver's books comes to, operation by operation."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from decimal import Decimal
from typing import Any

import pytest

from keylane.journal.agenda import AgendaItem, AgendaKind
from keylane.journal.audit_reading import LedgerUnreadable, read_ours
from keylane.journal.auditing import BookRow, OurEffect, Span, Verdict, amount_in, compare
from keylane.journal.codec import pack
from keylane.journal.effects import EffectState
from keylane.journal.ledger import EventKind
from keylane.journal.ledger_reading import spaces_of
from keylane.journal.store import Store
from keylane.journal.types_registry import register_types

from .ledgers import START_MS, effect, event, put_effect, put_event, put_on

pytestmark = pytest.mark.anyio


def ours(operation_id: str, state: EffectState = EffectState.SUCCEEDED, **fields: Any) -> OurEffect:
    """Return what our ledger says of an operation."""
    told: dict[str, Any] = {"type_name": "Order", "key": "acme/o-1", "operation": operation_id, "effect": "refund"}
    told |= {"at_ms": START_MS, **fields}
    return OurEffect(operation_id=operation_id, state=state, **told)


@pytest.mark.parametrize(
    ("mine", "rows", "verdict"),
    [
        (ours("a"), 1, None),
        (ours("a"), 0, Verdict.OURS_ONLY),
        (None, 1, Verdict.THEIRS_ONLY),
        (ours("a", EffectState.REJECTED), 1, Verdict.THEIRS_ONLY),
        (ours("a", EffectState.NOT_SENT), 1, Verdict.THEIRS_ONLY),
        (ours("a", EffectState.REJECTED), 0, None),
        (ours("a"), 2, Verdict.DUPLICATE),
        (None, 2, Verdict.DUPLICATE),
        (ours("a", EffectState.UNKNOWN), 2, Verdict.DUPLICATE),
        (ours("a", EffectState.UNKNOWN), 1, Verdict.UNRESOLVED),
        (ours("a", EffectState.UNRESOLVED), 0, Verdict.UNRESOLVED),
        (ours("a", EffectState.INTENDED), 0, Verdict.UNRESOLVED),
    ],
)
def test_each_operation_gets_the_verdict_that_both_sides_make(
    mine: OurEffect | None, rows: int, verdict: Verdict | None
) -> None:
    """Only what is in both, once and done, matches; what people may have to look into is a finding."""
    audit = compare([mine] if mine else [], [BookRow("a", line) for line in range(2, 2 + rows)])
    assert [each.verdict for each in audit.findings] == ([] if verdict is None else [verdict])
    assert audit.is_clean() is (verdict is None)
    assert audit.matched == int(mine is not None and mine.state is EffectState.SUCCEEDED and rows == 1)


def test_amounts_have_to_agree_exactly() -> None:
    """40.0 is 40.00, and a cent is a difference; an amount that is not known is one too."""
    mine = [ours("a", amount=Decimal("40.0")), ours("b", amount=Decimal("40.00")), ours("c")]
    theirs = [BookRow("a", 2, Decimal("40.00")), BookRow("b", 3, Decimal("40.01")), BookRow("c", 4, Decimal(1))]
    audit = compare(mine, theirs, with_amounts=True)
    assert (audit.matched, audit.matched_amount) == (1, Decimal("40.00"))
    assert [each.operation_id for each in audit.of(Verdict.DIFFERENT)] == ["b", "c"]


def test_what_lies_outside_of_the_time_is_no_finding() -> None:
    """Ours of another time still explain their rows; rows of another time are not asked for."""
    span = Span(START_MS, START_MS + 10)
    mine = [ours("before", at_ms=START_MS - 1), ours("late", at_ms=START_MS + 10), ours("at its edge")]
    theirs = [BookRow("late", 2, at_ms=START_MS + 9), BookRow("old", 3, at_ms=START_MS - 1), BookRow("at its edge", 4)]
    audit = compare(mine, theirs, span)
    assert audit.findings == ()
    assert audit.matched == 2
    assert [each.verdict for each in compare([], theirs, span).findings] == [Verdict.THEIRS_ONLY] * 2


def test_effects_with_people_may_be_allowed_until_their_time() -> None:
    """One in the queue whose deadline lies ahead is allowed where that was asked for, and no other finding."""
    queued = compare([ours("a", EffectState.UNRESOLVED, due_ms=START_MS + 5)], [])
    assert not queued.is_clean()
    assert queued.is_clean(allows_queued=True, now_ms=START_MS)
    assert not queued.is_clean(allows_queued=True, now_ms=START_MS + 5)
    assert not compare([ours("a", EffectState.UNKNOWN)], []).is_clean(allows_queued=True, now_ms=START_MS)
    assert not compare([ours("a")], []).is_clean(allows_queued=True, now_ms=START_MS)


@pytest.mark.parametrize("value", [1.5, True, "40.00", Decimal("NaN"), None])
def test_an_amount_is_exact_or_none(value: object) -> None:
    """A float, text, or what is no number is never compared as money."""
    with pytest.raises(ValueError, match="our field"):
        amount_in({"amount": value}, "amount")


def test_an_amount_may_lie_inside_another_field() -> None:
    """The path names it with dots."""
    assert amount_in({"order": {"total": 4000}}, "order.total") == Decimal(4000)
    with pytest.raises(ValueError, match=r"no field 'order\.sum'"):
        amount_in({"order": {"total": 4000}}, "order.sum")


@pytest.fixture
async def store(store_url: str, namespace: str) -> AsyncGenerator[Store]:
    """Give an open store whose namespace has an object type."""
    async with Store(store_url, namespace=namespace) as store:
        await register_types(store, {"Order": 4}, {"Order": "refunds-oncall"})
        yield store


def qualify(type_name: str, key: str, operation: str) -> str:
    """Return an operation id as a receiver may see it."""
    return f"{type_name}.{key}.{operation}"


async def _read(store: Store, amount_field: str | None = None) -> dict[str, OurEffect]:
    spaces = await spaces_of(store)
    return {each.operation_id: each async for each in read_ours(store, spaces, "payments", qualify, amount_field)}


async def test_our_side_is_every_effect_that_ledger_or_agenda_name(store: Store) -> None:
    """An entry says where its effect stands; the ledger says it of what is forgotten; other receivers are left out."""
    space = (await spaces_of(store))[2]
    paid = effect("paid", {"amount": Decimal("40.00")})
    await put_effect(store, space, "acme/o-1", paid)
    await put_event(store, space.ledger, event("acme/o-1", "paid", EventKind.UNKNOWN))
    await put_event(store, space.ledger, event("acme/o-1", "forgotten", EventKind.INTENDED))
    await put_event(store, space.ledger, event("acme/o-1", "mail", EventKind.SUCCEEDED, receiver="mail"))
    await put_event(store, space.ledger, event("acme/o-1", "forgotten", EventKind.FOUND, START_MS + 7))
    other = await put_effect(store, space, "acme/o-1", effect("parcel", receiver="parcels"))
    await put_on(store, space.agenda, other, START_MS)
    old = await put_effect(store, space, "acme/o-2", effect("old", {}, EffectState.UNRESOLVED))
    await put_on(store, space.agenda, old, START_MS)
    await put_on(store, space.queue, old, START_MS + 9)
    await put_effect(store, space, "acme/o-3", effect("settled long ago", {}))
    await put_on(store, space.agenda, AgendaItem(AgendaKind.OLD_EFFECT, "acme/o-3", "settled long ago"), START_MS)
    read = await _read(store, "amount")
    assert {each: told.state for each, told in read.items()} == {
        "Order.acme/o-1.paid": EffectState.SUCCEEDED,
        "Order.acme/o-1.forgotten": EffectState.SUCCEEDED,
        "Order.acme/o-2.old": EffectState.UNRESOLVED,
        "Order.acme/o-3.settled long ago": EffectState.SUCCEEDED,
    }
    assert read["Order.acme/o-1.paid"].amount == Decimal("40.00")
    assert read["Order.acme/o-1.forgotten"].at_ms == START_MS + 7
    assert read["Order.acme/o-1.forgotten"].amount_problem
    assert read["Order.acme/o-2.old"].due_ms == START_MS + 9
    assert "no field 'amount'" in read["Order.acme/o-2.old"].amount_problem


async def test_a_ledger_that_can_not_be_read_is_never_called_clean(store: Store) -> None:
    """An event or an effect that this code can't read ends the comparison, instead of being passed over."""
    space = (await spaces_of(store))[0]
    await put_event(store, space.ledger, event("acme/o-1", "paid", EventKind.SUCCEEDED))
    await store.call("HSET", space.effects("acme/o-1"), "paid", pack("garbage"))
    with pytest.raises(LedgerUnreadable, match="'paid' of Order acme/o-1"):
        await _read(store)
    await store.call("HDEL", space.effects("acme/o-1"), "paid")
    assert len(await _read(store)) == 1
    await store.call("XADD", space.ledger, "*", "e", b"garbage")
    with pytest.raises(LedgerUnreadable, match="ledger of Order:0"):
        await _read(store)
