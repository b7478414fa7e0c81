"""What travels between callers, the order object, and the systems around it."""

from decimal import Decimal
from typing import Self

from pydantic import BaseModel, ConfigDict

from .payments.money import Amount
from .payments.wire import Answer, Receipt, RefundTerms, Rejection

__all__ = [
    "Amount",
    "Answer",
    "Decision",
    "Order",
    "OrderStatus",
    "Receipt",
    "RefundRequest",
    "RefundResult",
    "RefundTerms",
    "Rejection",
    "terms_of",
    "total",
]


class Model(BaseModel):
    """The base of all of them: unchangeable, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Order(Model):
    """An order as the order store knows it; `key` is `tenant/order`, as for the virtual object."""

    key: str
    customer: str
    amount: Amount


class RefundRequest(Model):
    """What a caller asks for."""

    amount: Amount
    reason: str = ""


class Decision(Model):
    """The answer of the policy check, with the reason that the customer can be told."""

    allowed: bool
    reason: str


class RefundResult(Model):
    """A refund that was carried out, and what of the order could still be refunded."""

    receipt: Receipt
    left: Decimal


class OrderStatus(Model):
    """What has been refunded of one order so far."""

    key: str
    refunded: Decimal
    receipts: tuple[Receipt, ...]

    @classmethod
    def of(cls, key: str, receipts: list[Receipt]) -> Self:
        return cls(key=key, refunded=total(receipts), receipts=tuple(receipts))


def total(receipts: list[Receipt]) -> Decimal:
    """Add up what was paid back."""
    return sum((receipt.terms.amount for receipt in receipts), Decimal(0))


def terms_of(placed: Order, request: RefundRequest) -> RefundTerms:
    """Say what the payment service is asked for: from the order as it was read, not from the request alone."""
    return RefundTerms(order=placed.key, recipient=placed.customer, amount=request.amount)
