"""Compares what callers were told and what the orders say with what the receivers' books have.

`keylane audit` compares the engine's own ledger with the same books; this one believes nothing that the engine says.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from ..models import Order, Refund, RefundState
from ..payments.wire import LedgerEntry
from .workload import Answered, Ask

EXCEEDS_ORDER = "exceeds-order"


@dataclass(frozen=True, slots=True)
class Books:
    """Everything that is compared.

    Args:
        orders: The orders.
        asks: What was asked for.
        answers: What callers were told.
        histories: What each order says of its refunds.
        entries: Every movement of money at any receiver.
        queued: Refunds that lie with people, as order and number.
    """

    orders: Sequence[Order]
    asks: Sequence[Ask]
    answers: Sequence[Answered]
    histories: Mapping[str, Sequence[Refund]]
    entries: Sequence[LedgerEntry]
    queued: frozenset[tuple[str, int]] = frozenset()

    @property
    def refunds(self) -> list[Refund]:
        return [refund for history in self.histories.values() for refund in history]

    @property
    def done(self) -> list[Refund]:
        """The refunds of which the orders say that they were paid."""
        return [refund for refund in self.refunds if refund.state is RefundState.REFUNDED]

    @property
    def refusals(self) -> Counter[str]:
        """How many refunds were refused with which code."""
        return Counter(answer.outcome for answer in self.answers if isinstance(answer.outcome, str))

    @property
    def untold(self) -> list[str]:
        """Movements of money beyond one for each refund that was paid, under whatever operation id."""
        told = Counter(_line_of(refund) for refund in self.done)
        return list((Counter(_line(entry) for entry in self.entries) - told).elements())

    @property
    def unbooked(self) -> list[str]:
        """Refunds that were paid, as the orders say, and that no books have."""
        booked = Counter(_line(entry) for entry in self.entries)
        return list((Counter(_line_of(refund) for refund in self.done) - booked).elements())

    @property
    def paid(self) -> dict[str, Decimal]:
        """How much money moved for each order, by the books."""
        sums: defaultdict[str, Decimal] = defaultdict(Decimal)
        for entry in self.entries:
            sums[entry.terms.order] += entry.terms.amount
        return dict(sums)


def faults(books: Books) -> list[str]:
    """Name everything that is not exactly right; an empty list means that the books agree."""
    return [
        *_unanswered(books),
        *_mismatches(books),
        *_undecided(books),
        *_overpaid(books),
        *_wrong_answers(books),
        *_wrong_refusals(books),
    ]


def _unanswered(books: Books) -> Iterable[str]:
    answered = Counter(answer.ask for answer in books.answers)
    return (f"{ask.name} was answered {answered[ask]} times" for ask in books.asks if answered[ask] != 1)


def _mismatches(books: Books) -> Iterable[str]:
    """Each refund that was paid has exactly one entry, and each entry is of one such refund."""
    yield from (f"lost: said to be paid, and in no books: {line}" for line in books.unbooked)
    yield from (f"paid twice, or for nobody: {line}" for line in books.untold)


def _undecided(books: Books) -> Iterable[str]:
    for refund in books.refunds:
        is_queued = (refund.terms.order, refund.number) in books.queued
        if (refund.state is RefundState.SENDING) != is_queued:
            where = "in" if is_queued else "not in"
            yield f"refund {refund.number} of {refund.terms.order} is {refund.state}, and {where} the queue"


def _overpaid(books: Books) -> Iterable[str]:
    amounts = {order.key: order.amount for order in books.orders}
    for key, paid in books.paid.items():
        if paid > amounts.get(key, Decimal(0)):
            yield f"{paid} went out for {key}, which cost {amounts.get(key, 'nothing: it does not exist')}"


def _wrong_answers(books: Books) -> Iterable[str]:
    """What a caller was told is what the order says."""
    for answer in books.answers:
        if isinstance(answer.outcome, Refund) and answer.outcome not in books.histories[answer.ask.key]:
            yield f"{answer.ask.name} was told that it is {answer.outcome.state}, and the order says something else"


def _wrong_refusals(books: Books) -> Iterable[str]:
    """A refund that was refused as too much must not fit beside what was paid in the end."""
    amounts = {order.key: order.amount for order in books.orders}
    for answer in books.answers:
        ask = answer.ask
        left = amounts[ask.key] - books.paid.get(ask.key, Decimal(0))
        if answer.outcome == EXCEEDS_ORDER and ask.amount <= left:
            yield f"{ask.name} over {ask.amount} was refused although {left} of {ask.key} were left"


def _line(entry: LedgerEntry) -> str:
    return f"{entry.receipt} {entry.operation_id} {entry.terms.amount}"


def _line_of(refund: Refund) -> str:
    receipt = refund.receipt
    return (
        f"{refund.terms.order} has no receipt"
        if receipt is None
        else (f"{receipt.number} {receipt.operation_id} {receipt.amount}")
    )
