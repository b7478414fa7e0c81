"""The audit: compares what callers were told, what the objects say and what the ledger has."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from ..models import Order, OrderStatus, Receipt
from ..payments.wire import LedgerEntry
from .workload import Answered, Ask

EXCEEDS_ORDER = "exceeds-order"


@dataclass(frozen=True, slots=True)
class Books:
    """Everything that is compared."""

    orders: Sequence[Order]
    asks: Sequence[Ask]
    answers: Sequence[Answered]
    statuses: Mapping[str, OrderStatus]
    ledger: Sequence[LedgerEntry]

    @property
    def receipts(self) -> list[Receipt]:
        return [answer.outcome for answer in self.answers if isinstance(answer.outcome, Receipt)]

    @property
    def refusals(self) -> Counter[str]:
        """How many refunds were refused with which code."""
        return Counter(answer.outcome for answer in self.answers if isinstance(answer.outcome, str))

    @property
    def untold(self) -> list[str]:
        """Ledger entries that belong to no refund that was reported done."""
        told = Counter(_line(receipt) for receipt in self.receipts)
        return list((Counter(_line(entry) for entry in self.ledger) - told).elements())

    @property
    def unbooked(self) -> list[str]:
        """Refunds that were reported done and are not in the ledger."""
        booked = Counter(_line(entry) for entry in self.ledger)
        return list((Counter(_line(receipt) for receipt in self.receipts) - booked).elements())

    @property
    def duplicates(self) -> int:
        """Movements of money beyond one for each refund that was reported done, under whatever operation id."""
        return len(self.untold)

    @property
    def paid(self) -> dict[str, Decimal]:
        """How much money moved for each order, by the ledger."""
        sums: defaultdict[str, Decimal] = defaultdict(Decimal)
        for entry in self.ledger:
            sums[entry.terms.order] += entry.terms.amount
        return dict(sums)


def faults(books: Books) -> list[str]:
    """Name everything that is not exactly right; an empty list means that the books agree."""
    return [*_unanswered(books), *_mismatches(books), *_overpaid(books), *_wrong_states(books), *_wrong_refusals(books)]


def _unanswered(books: Books) -> Iterable[str]:
    answered = Counter(answer.ask for answer in books.answers)
    return (f"{ask.name} was answered {answered[ask]} times" for ask in books.asks if answered[ask] != 1)


def _mismatches(books: Books) -> Iterable[str]:
    """Each refund that was reported done has exactly one ledger entry, and each entry one such refund."""
    yield from (f"told but not in the ledger: {line}" for line in books.unbooked)
    yield from (f"in the ledger but not told: {line}" for line in books.untold)


def _overpaid(books: Books) -> Iterable[str]:
    amounts = {order.key: order.amount for order in books.orders}
    for key, paid in books.paid.items():
        if paid > amounts.get(key, Decimal(0)):
            yield f"{paid} went out for {key}, which cost {amounts.get(key, 'nothing: it does not exist')}"


def _wrong_states(books: Books) -> Iterable[str]:
    for order in books.orders:
        state, paid = books.statuses[order.key].refunded, books.paid.get(order.key, Decimal(0))
        if state != paid:
            yield f"{order.key} says that {state} were refunded, the ledger says {paid}"


def _wrong_refusals(books: Books) -> Iterable[str]:
    """A refund that was refused as too much must not fit beside what was paid in the end."""
    amounts = {order.key: order.amount for order in books.orders}
    for answer in books.answers:
        ask = answer.ask
        left = amounts[ask.key] - books.paid.get(ask.key, Decimal(0))
        if answer.outcome == EXCEEDS_ORDER and ask.amount <= left:
            yield f"{ask.name} over {ask.amount} was refused although {left} of {ask.key} were left"


def _line(entry: Receipt | LedgerEntry) -> str:
    return f"{entry.receipt} {entry.operation_id} {entry.terms.order} {entry.terms.amount}"
