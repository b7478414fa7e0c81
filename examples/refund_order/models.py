"""What travels between callers, the order object, and the systems around it."""

from decimal import Decimal
from enum import StrEnum
from typing import Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from keylane import Proposal

from .payments.money import Amount

NOTHING = Decimal(0)


class Model(BaseModel):
    """The base of all of them: unchangeable, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PaidBy(StrEnum):
    """How an order was paid, and so by whom it is refunded."""

    CARD = "card"
    TRANSFER = "transfer"
    STRIPE = "stripe"


class Order(Model):
    """An order as the order store knows it.

    Args:
        key: `tenant/order`, as for the virtual object.
        customer: Who gets the money back.
        amount: What was paid.
        paid_by: How.
        payment: What the payment is called by whoever took it, where that is needed to refund it.
    """

    key: str
    customer: str
    amount: Amount
    paid_by: PaidBy = PaidBy.CARD
    payment: str = ""


class RefundRequest(Model):
    """What a caller asks for."""

    amount: Amount
    reason: str = ""


class AmendRequest(Model):
    """Another amount for a refund that is waiting for approval."""

    number: int
    amount: Amount


class Decision(Model):
    """The answer of the policy check.

    Args:
        allowed: Whether there may be such a refund at all.
        reason: Why, as the customer can be told.
        approvals: How many people have to approve it.
    """

    allowed: bool
    reason: str
    approvals: int = 0


class RefundTerms(Model):
    """What is asked of a receiver: the parameters that an operation id stands for."""

    order: str
    recipient: str
    amount: Amount
    payment: str = ""


class Receipt(Model):
    """That the money has moved, as the receiver says.

    Args:
        number: What the receiver calls it.
        operation_id: What it was asked under.
        amount: How much.
        at: When, by the receiver's clock.
    """

    number: str
    operation_id: str
    amount: Amount
    at: AwareDatetime


class RefundState(StrEnum):
    """Where a refund stands."""

    PROPOSED = "proposed"
    SENDING = "sending"
    REFUNDED = "refunded"
    DECLINED = "declined"
    EXPIRED = "expired"
    REJECTED = "rejected"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"


#: The states in which a refund takes a part of the order: it was paid, or may be yet.
TAKEN = frozenset({RefundState.PROPOSED, RefundState.SENDING, RefundState.REFUNDED})
#: Those in which it is not decided yet.
OPEN = frozenset({RefundState.PROPOSED, RefundState.SENDING})


class Refund(Model):
    """One refund of an order, from its beginning to its end.

    Args:
        number: It is the order's first, second, … refund; the operation id is made of it.
        terms: What is asked of the receiver.
        paid_by: Which receiver that is.
        reason: Why it was asked for.
        state: Where it stands.
        proposal: What people decide on; None where nobody has to.
        invocation: The id of the invocation that carries it out.
        note: Why it ended as it did.
        receipt: That the money has moved.
    """

    number: int
    terms: RefundTerms
    paid_by: PaidBy
    reason: str = ""
    state: RefundState = RefundState.SENDING
    proposal: Proposal | None = None
    invocation: str = ""
    note: str = ""
    receipt: Receipt | None = None

    @property
    def amount(self) -> Decimal:
        return self.terms.amount

    def but(self, **changes: object) -> Self:
        """Return it with some fields changed."""
        return self.model_copy(update=changes)


class Book(Model):
    """All refunds of one order: the state of the order object."""

    refunds: tuple[Refund, ...] = Field(default=())

    @property
    def taken(self) -> Decimal:
        """How much of the order is paid back, or may be yet."""
        return sum((each.amount for each in self.refunds if each.state in TAKEN), NOTHING)

    @property
    def refunded(self) -> Decimal:
        """How much of the order is paid back for certain."""
        return sum((each.amount for each in self.refunds if each.state is RefundState.REFUNDED), NOTHING)

    @property
    def proposed(self) -> Refund | None:
        """The refund that waits for approval."""
        return next((each for each in self.refunds if each.state is RefundState.PROPOSED), None)

    @property
    def next_number(self) -> int:
        return len(self.refunds) + 1

    def find(self, number: int) -> Refund | None:
        """Return the refund of a number."""
        return next((each for each in self.refunds if each.number == number), None)

    def put(self, refund: Refund) -> Self:
        """Return the book with a refund added, or as it is now."""
        others = (each for each in self.refunds if each.number != refund.number)
        refunds = sorted((*others, refund), key=lambda each: each.number)
        return self.model_copy(update={"refunds": tuple(refunds)})


class OrderStatus(Model):
    """What has become of an order.

    Args:
        key: The order.
        refunded: How much is paid back.
        pending: How much may be yet.
        open: The refunds that are not decided.
    """

    key: str
    refunded: Decimal
    pending: Decimal
    open: tuple[Refund, ...]

    @classmethod
    def of(cls, key: str, book: Book) -> Self:
        refunds = tuple(each for each in book.refunds if each.state in OPEN)
        return cls(key=key, refunded=book.refunded, pending=book.taken - book.refunded, open=refunds)
