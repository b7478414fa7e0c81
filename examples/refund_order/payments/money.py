"""Amounts of money: exact decimals on the wire, whole minor units in the ledger."""

from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field

MINOR_UNIT_DIGITS = 2


def _refuse_float(value: object) -> object:
    """Refuse a binary float, which holds 0.1 as something else."""
    if isinstance(value, float):
        raise ValueError('write an amount as a string such as "40.00": a float is not exact')  # noqa: TRY004 - pydantic reports ValueError only
    return value


Amount = Annotated[
    Decimal, BeforeValidator(_refuse_float), Field(gt=0, max_digits=12, decimal_places=MINOR_UNIT_DIGITS)
]
"""An amount above zero in the one currency of the service, with two decimals."""


def to_minor(amount: Decimal) -> int:
    """Turn an amount into whole minor units.

    Raises:
        ValueError: The amount has more decimals than the currency.
    """
    minor = amount.scaleb(MINOR_UNIT_DIGITS)
    if minor != minor.to_integral_value():
        raise ValueError(f"{amount} has more than {MINOR_UNIT_DIGITS} decimals")
    return int(minor)


def from_minor(minor: int) -> Decimal:
    """Turn whole minor units into an amount, always with two decimals."""
    return Decimal(minor).scaleb(-MINOR_UNIT_DIGITS)
