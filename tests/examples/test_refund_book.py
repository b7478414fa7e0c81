from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from examples.refund_order.models import TAKEN, Book, OrderStatus, PaidBy, Refund, RefundState, RefundTerms

AMOUNTS = st.decimals(min_value="0.01", max_value="999.99", places=2)
TERMS = RefundTerms(order="acme/o-1", recipient="customer-7", amount=Decimal("10.00"))
REFUND = Refund(number=1, terms=TERMS, paid_by=PaidBy.CARD)


def entered(*refunds: tuple[Decimal, RefundState]) -> Book:
    """Enter refunds into a new book, one after the other."""
    book = Book()
    for amount, state in refunds:
        terms = TERMS.model_copy(update={"amount": amount})
        book = book.put(REFUND.but(number=book.next_number, terms=terms, state=state))
    return book


@given(st.lists(st.tuples(AMOUNTS, st.sampled_from(RefundState)), max_size=8))
def test_a_book_takes_what_is_paid_and_what_may_be_yet(refunds: list[tuple[Decimal, RefundState]]) -> None:
    """What came to nothing takes nothing; the status parts the rest into what is certain and what is not."""
    book = entered(*refunds)

    taken = sum((amount for amount, state in refunds if state in TAKEN), Decimal(0))
    told = OrderStatus.of("acme/o-1", book)
    assert (book.taken, told.refunded + told.pending) == (taken, taken)
    assert [each.number for each in book.refunds] == list(range(1, len(refunds) + 1))
    assert all(each.state in {RefundState.PROPOSED, RefundState.SENDING} for each in told.open)


def test_a_refund_is_entered_in_its_place() -> None:
    """What is put again under its number takes the place of what was there, and no number is given twice."""
    book = entered(*[(Decimal(1), RefundState.PROPOSED)] * 3)
    second = book.find(2)
    assert second is not None

    changed = book.put(second.but(state=RefundState.DECLINED))

    assert [each.state for each in changed.refunds] == ["proposed", "declined", "proposed"]
    assert (changed.next_number, changed.find(9)) == (4, None)
