import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from examples.refund_order.payments.ledger import Ledger, OperationReused, Promise, Settled
from examples.refund_order.payments.money import from_minor, to_minor
from examples.refund_order.payments.wire import Receipt, RefundTerms, Rejection

Terms = Callable[..., RefundTerms]


class Clock(Protocol):
    def advance(self, by: timedelta) -> None: ...


def accept(operation_id: str, terms: RefundTerms) -> None:
    """Judge nothing."""


def reject(operation_id: str, terms: RefundTerms) -> Rejection:
    return Rejection(operation_id=operation_id, reason="order_unknown", message="no such order")


@given(st.integers(min_value=1, max_value=10**12))
def test_minor_units_survive_the_way_to_an_amount_and_back(minor: int) -> None:
    """No amount is rounded on its way into the ledger or out of it."""
    assert to_minor(from_minor(minor)) == minor


def test_an_amount_below_the_minor_unit_is_refused() -> None:
    """A third decimal is an error, not rounded."""
    with pytest.raises(ValueError, match="more than 2 decimals"):
        to_minor(Decimal("0.001"))


def test_a_float_is_no_amount() -> None:
    """A binary float is refused with the form to write instead."""
    with pytest.raises(ValidationError, match="write an amount as a string"):
        RefundTerms.model_validate({"order": "acme/o-1", "recipient": "c", "amount": 40.1})


def test_the_same_operation_gets_the_same_receipt(ledger: Ledger, terms: Terms) -> None:
    """A repetition moves no money, and its answer is the first one, to the last field."""
    first = ledger.settle("refund-1", terms(), accept)

    again = ledger.settle("refund-1", terms("40.0"), reject)

    assert again == Settled(first.answer, replayed=True)
    assert len(ledger.entries()) == 1


def test_another_operation_is_another_refund(ledger: Ledger, terms: Terms) -> None:
    """Equal terms under two operation ids are two movements of money."""
    ledger.settle("refund-1", terms(), accept)
    ledger.settle("refund-2", terms(), accept)

    assert [entry.operation_id for entry in ledger.entries()] == ["refund-1", "refund-2"]


def test_other_terms_are_refused_and_named(ledger: Ledger, terms: Terms) -> None:
    """The same operation with other terms moves nothing, and the error names what differs."""
    ledger.settle("refund-1", terms("40.00"), accept)

    with pytest.raises(OperationReused) as caught:
        ledger.settle("refund-1", terms("41.00", recipient="customer-8"), accept)

    assert caught.value.fields == ("recipient", "amount")
    assert [entry.terms for entry in ledger.entries()] == [terms("40.00")]


def test_a_rejection_is_final_for_its_operation(ledger: Ledger, terms: Terms) -> None:
    """A rejection leaves no ledger entry, and the same operation is not judged again."""
    first = ledger.settle("refund-1", terms(), reject)

    again = ledger.settle("refund-1", terms(), accept)

    assert isinstance(first.answer, Rejection)
    assert again == Settled(first.answer, replayed=True)
    assert ledger.entries() == ()


def test_an_operation_is_forgotten_after_its_retention(ledger: Ledger, terms: Terms, clock: Clock) -> None:
    """Up to its retention an operation is known; afterwards the same id moves money again."""
    ledger.settle("refund-1", terms(), accept)
    clock.advance(timedelta(hours=23, minutes=59))
    assert ledger.settle("refund-1", terms(), accept).replayed

    clock.advance(timedelta(minutes=1))

    assert not ledger.settle("refund-1", terms(), accept).replayed
    assert len(ledger.entries()) == 2


def test_a_receipt_is_found_after_its_operation_was_forgotten(ledger: Ledger, terms: Terms, clock: Clock) -> None:
    """The look-up of a refund reads the ledger, which is kept; the look-up of a rejection ends with its retention."""
    paid = ledger.settle("refund-1", terms(), accept).answer
    rejected = ledger.settle("refund-2", terms(), reject).answer
    assert ledger.find("refund-2") == rejected

    clock.advance(timedelta(days=30))

    assert ledger.find("refund-1") == paid
    assert ledger.find("refund-2") is None


def test_without_deduplication_each_request_moves_money(ledger: Ledger, terms: Terms) -> None:
    """A service that does not deduplicate pays as often as it is asked, also with other terms."""
    promise = Promise(deduplicates=False)
    ledger.settle("refund-1", terms("40.00"), accept, promise)

    again = ledger.settle("refund-1", terms("41.00"), accept, promise)

    assert not again.replayed
    assert [entry.terms.amount for entry in ledger.entries()] == [Decimal("40.00"), Decimal("41.00")]


@pytest.mark.parametrize(("age_ms", "is_found"), [(499, False), (500, True), (1_999, True), (2_000, False)])
@pytest.mark.parametrize("judge", [accept, reject])
def test_an_operation_is_found_from_its_lag_to_its_retention(
    ledger: Ledger, terms: Terms, clock: Clock, age_ms: int, judge: Any, *, is_found: bool
) -> None:
    """A look-up sees nothing before the lag and nothing after the retention, of receipts and of rejections."""
    answer = ledger.settle("refund-1", terms(), judge).answer

    clock.advance(timedelta(milliseconds=age_ms))

    found = ledger.find("refund-1", Promise(lookup_lag_ms=500, lookup_retention_ms=2_000))
    assert found == (answer if is_found else None)


def test_a_shorter_retention_may_be_promised(ledger: Ledger, terms: Terms, clock: Clock) -> None:
    """What counts is the promise of the moment in which the second request comes."""
    ledger.settle("refund-1", terms(), accept)
    clock.advance(timedelta(seconds=1))

    assert ledger.settle("refund-1", terms(), accept, Promise(retention_ms=1_001)).replayed
    assert not ledger.settle("refund-1", terms(), accept, Promise(retention_ms=1_000)).replayed


def test_what_is_forgotten_leaves_the_file(tmp_path: Path, ledger: Ledger, terms: Terms, clock: Clock) -> None:
    """Operations whose retention has passed are deleted by later ones, a bounded number each time."""
    for number in range(150):
        ledger.settle(f"refund-{number}", terms(), reject)
    clock.advance(timedelta(days=2))

    left: list[int] = []
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as reader:
        for number in range(2):
            ledger.settle(f"later-{number}", terms(), reject)
            left += reader.execute("SELECT count(*) FROM operations").fetchone()

    assert left == [51, 2]


def test_a_ledger_is_read_back_from_its_file(tmp_path: Path, terms: Terms) -> None:
    """A new process on the same file knows the refunds and the operations of the one before."""
    before = Ledger(tmp_path / "books.sqlite")
    receipt = before.settle("refund-1", terms("12.34"), accept).answer
    before.close()

    after = Ledger(tmp_path / "books.sqlite")

    assert after.settle("refund-1", terms("12.34"), accept) == Settled(receipt, replayed=True)
    assert [entry.terms.amount for entry in after.entries()] == [Decimal("12.34")]
    after.close()


def test_a_judge_that_fails_leaves_the_ledger_as_it_was(ledger: Ledger, terms: Terms) -> None:
    """An error inside the transaction undoes it, and the next operation finds the lock free."""

    def fail(operation_id: str, terms: RefundTerms) -> None:
        raise LookupError(operation_id)

    with pytest.raises(LookupError):
        ledger.settle("refund-1", terms(), fail)

    assert not ledger.settle("refund-1", terms(), accept).replayed
    assert len(ledger.entries()) == 1


def test_two_ledgers_on_one_file_agree_on_concurrent_duplicates(tmp_path: Path, terms: Terms) -> None:
    """Of 40 duplicates through two connections one moves money, and all get its receipt."""
    ledgers = [Ledger(tmp_path / "books.sqlite") for _ in range(2)]
    start = threading.Barrier(8)

    def settle(number: int) -> list[Settled]:
        start.wait(timeout=10)
        return [ledgers[number % 2].settle("refund-1", terms(), accept) for _ in range(5)]

    with ThreadPoolExecutor(8) as pool:
        answers = [settled for batch in pool.map(settle, range(8)) for settled in batch]

    assert sum(not settled.replayed for settled in answers) == 1
    assert all(settled.answer == answers[0].answer for settled in answers)
    assert isinstance(answers[0].answer, Receipt)
    assert len(ledgers[0].entries()) == 1
    for ledger in ledgers:
        ledger.close()
