from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from examples.refund_order.demo.audit import EXCEEDS_ORDER, Books, faults
from examples.refund_order.demo.workload import Answered, Ask, make_workload
from examples.refund_order.models import Order, OrderStatus
from examples.refund_order.payments.wire import LedgerEntry, Receipt, RefundTerms

KEY = "acme/o-1"
ASKS = (Ask("first", KEY, Decimal("60.00")), Ask("second", KEY, Decimal("70.00")))
AT = datetime(2026, 1, 2, tzinfo=UTC)


def receipt(number: int, amount: str, operation: int) -> Receipt:
    terms = RefundTerms(order=KEY, recipient="customer-1", amount=Decimal(amount))
    return Receipt(receipt=f"R{number}", operation_id=f"{KEY}/refund-{operation}", terms=terms, committed_at=AT)


def entry(of: Receipt) -> LedgerEntry:
    return LedgerEntry.model_validate(of.model_dump(exclude={"outcome"}))


FIRST = receipt(1, "60.00", 1)
ANSWERS = (Answered(ASKS[0], 0.0, 1.0, FIRST), Answered(ASKS[1], 0.0, 2.0, EXCEEDS_ORDER))
RIGHT = Books(
    orders=[Order(key=KEY, customer="customer-1", amount=Decimal("100.00"))],
    asks=ASKS,
    answers=ANSWERS,
    statuses={KEY: OrderStatus.of(KEY, [FIRST])},
    ledger=[entry(FIRST)],
)


def test_right_books_have_no_fault() -> None:
    """One refund done, one refused, one ledger entry: nothing to report."""
    assert faults(RIGHT) == []
    assert (RIGHT.duplicates, RIGHT.refusals[EXCEEDS_ORDER]) == (0, 1)


@pytest.mark.parametrize(
    ("books", "expected"),
    [
        (replace(RIGHT, answers=ANSWERS[:1]), "second was answered 0 times"),
        (replace(RIGHT, ledger=[]), "told but not in the ledger: R1"),
        (replace(RIGHT, ledger=[entry(FIRST), entry(receipt(2, "1.00", 2))]), "in the ledger but not told: R2"),
        (replace(RIGHT, ledger=[entry(FIRST), entry(receipt(2, "60.00", 1))]), "in the ledger but not told: R2"),
        (replace(RIGHT, ledger=[entry(receipt(1, "160.00", 1))]), "160.00 went out for acme/o-1, which cost 100.00"),
        (replace(RIGHT, statuses={KEY: OrderStatus.of(KEY, [])}), "acme/o-1 says that 0 were refunded"),
        (
            replace(RIGHT, answers=(ANSWERS[0], replace(ANSWERS[1], ask=Ask("second", KEY, Decimal("40.00"))))),
            "second over 40.00 was refused although 40.00 of acme/o-1 were left",
        ),
    ],
)
def test_each_fault_is_named(books: Books, expected: str) -> None:
    """Whatever is wrong in the books is reported with the order or refund that it is about."""
    assert any(expected in fault for fault in faults(books))


@pytest.mark.parametrize("operation", [1, 2])
def test_a_second_movement_of_money_is_a_duplicate_under_any_id(operation: int) -> None:
    """Sent again with the same operation id or with a new one: it is counted."""
    books = replace(RIGHT, ledger=[entry(FIRST), entry(receipt(2, "60.00", operation))])

    assert books.duplicates == 1


def test_the_workload_depends_on_its_seed_alone() -> None:
    """The same seed asks for the same refunds; contested orders are asked for more than they cost."""
    workload = make_workload(orders=50, contested=10, seed=3)

    assert workload == make_workload(orders=50, contested=10, seed=3)
    assert workload != make_workload(orders=50, contested=10, seed=4)
    amounts = {order.key: order.amount for order in workload.orders}
    contested = [asks for asks in workload.asks_by_order if len(asks) > 1]
    assert len(contested) == 10
    assert all(sum(ask.amount for ask in asks) > amounts[asks[0].key] for asks in contested)
