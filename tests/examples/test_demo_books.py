from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from examples.refund_order.demo.books import EXCEEDS_ORDER, Books, faults
from examples.refund_order.demo.workload import Answered, Ask, make_workload
from examples.refund_order.models import Order, PaidBy, Receipt, Refund, RefundState, RefundTerms
from examples.refund_order.payments import wire

KEY = "acme/o-1"
ASKS = (Ask("first", KEY, Decimal("60.00")), Ask("second", KEY, Decimal("70.00")))
AT = datetime(2026, 1, 2, tzinfo=UTC)


def paid(number: int, amount: str) -> Refund:
    receipt = Receipt(number=f"R{number}", operation_id=f"{KEY}/refund-{number}", amount=Decimal(amount), at=AT)
    terms = RefundTerms(order=KEY, recipient="customer-1", amount=Decimal(amount))
    return Refund(number=number, terms=terms, paid_by=PaidBy.CARD, state=RefundState.REFUNDED, receipt=receipt)


def entry(receipt: str, operation: int, amount: str) -> wire.LedgerEntry:
    terms = wire.RefundTerms(order=KEY, recipient="customer-1", amount=Decimal(amount))
    return wire.LedgerEntry(
        receipt=receipt, operation_id=f"{KEY}/refund-{operation}", terms=terms, committed_at=AT
    )  # fmt: skip


FIRST, ENTRY = paid(1, "60.00"), entry("R1", 1, "60.00")
ANSWERS = (Answered(ASKS[0], 1.0, FIRST), Answered(ASKS[1], 2.0, EXCEEDS_ORDER))
OPEN = FIRST.but(number=2, state=RefundState.SENDING, receipt=None)
RIGHT = Books(
    orders=[Order(key=KEY, customer="customer-1", amount=Decimal("100.00"))],
    asks=ASKS,
    answers=ANSWERS,
    histories={KEY: [FIRST]},
    entries=[ENTRY],
)


def test_right_books_have_no_fault() -> None:
    """One refund paid, one refused, one entry: nothing to report."""
    assert faults(RIGHT) == []
    assert RIGHT.refusals[EXCEEDS_ORDER] == 1


def test_what_is_open_has_to_be_in_the_queue() -> None:
    """A refund that is not decided is no fault where people have it."""
    assert faults(replace(RIGHT, histories={KEY: [FIRST, OPEN]}, queued=frozenset({(KEY, 2)}))) == []


@pytest.mark.parametrize(
    ("books", "expected"),
    [
        (replace(RIGHT, answers=ANSWERS[:1]), "second was answered 0 times"),
        (replace(RIGHT, entries=[]), f"lost: said to be paid, and in no books: R1 {KEY}/refund-1 60.00"),
        (replace(RIGHT, entries=[ENTRY, entry("R2", 2, "1.00")]), "paid twice, or for nobody: R2"),
        (replace(RIGHT, entries=[ENTRY, entry("R2", 1, "60.00")]), "paid twice, or for nobody: R2"),
        (replace(RIGHT, entries=[ENTRY, ENTRY]), "paid twice, or for nobody: R1"),
        (replace(RIGHT, entries=[entry("R1", 1, "160.00")]), "160.00 went out for acme/o-1, which cost 100.00"),
        (replace(RIGHT, histories={KEY: [FIRST, OPEN]}), "refund 2 of acme/o-1 is sending, and not in the queue"),
        (replace(RIGHT, queued=frozenset({(KEY, 1)})), "refund 1 of acme/o-1 is refunded, and in the queue"),
        (
            replace(RIGHT, answers=(replace(ANSWERS[0], outcome=FIRST.but(note="x")), ANSWERS[1])),
            "first was told that it is refunded, and the order says something else",
        ),
        (
            replace(RIGHT, answers=(ANSWERS[0], replace(ANSWERS[1], ask=Ask("second", KEY, Decimal("40.00"))))),
            "second over 40.00 was refused although 40.00 of acme/o-1 were left",
        ),
    ],
)
def test_each_fault_is_named(books: Books, expected: str) -> None:
    """Whatever is wrong in the books is reported with the order or refund that it is about."""
    assert any(expected in fault for fault in faults(books))


def test_the_crowd_depends_on_its_seed_alone() -> None:
    """The same seed asks for the same refunds; contested orders are asked for more than they cost."""
    workload = make_workload(orders=50, contested=10, seed=3)

    assert workload == make_workload(orders=50, contested=10, seed=3)
    assert workload != make_workload(orders=50, contested=10, seed=4)
    amounts = {order.key: order.amount for order in workload.orders}
    contested = [asks for asks in workload.asks_by_order if len(asks) > 1]
    assert len(contested) == 10
    assert all(sum(ask.amount for ask in asks) > amounts[asks[0].key] for asks in contested)
