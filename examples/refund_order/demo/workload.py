"""Which refunds the crowd asks for, the same ones for the same seed, and what came of each."""

import random
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal

from ..models import Order, Refund
from ..orders import sample_orders

CENT = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class Ask:
    """One refund that is asked for; its name is the idempotency key of the call."""

    name: str
    key: str
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Answered:
    """A refund that was asked for and what came of it: how it ended, or the code of the refusal."""

    ask: Ask
    at_s: float
    outcome: Refund | str


@dataclass(frozen=True, slots=True)
class Workload:
    """The orders, and for each the refunds that are asked for at the same moment."""

    orders: tuple[Order, ...]
    asks_by_order: tuple[tuple[Ask, ...], ...]

    @property
    def asks(self) -> tuple[Ask, ...]:
        return tuple(ask for asks in self.asks_by_order for ask in asks)


def make_workload(*, orders: int, contested: int, seed: int) -> Workload:
    """Make up orders and refunds.

    Args:
        orders: How many orders there are.
        contested: For how many of them two or three refunds are asked at once, more together than the order.
        seed: Decides everything.
    """
    placed = sample_orders(orders, seed=seed)
    draw = random.Random(seed)
    chosen = set(draw.sample(range(orders), contested))
    asks = [
        _contested(order, draw) if number in chosen else _single(order, draw) for number, order in enumerate(placed)
    ]
    draw.shuffle(asks)
    return Workload(tuple(placed), tuple(asks))


def _single(order: Order, draw: random.Random) -> tuple[Ask, ...]:
    """Ask once, for the whole order or a part of it."""
    return (_ask(order, 0, Decimal(draw.choice((25, 50, 100))) / 100),)


def _contested(order: Order, draw: random.Random) -> tuple[Ask, ...]:
    """Ask two or three times at once: one of two fits, or two of three."""
    shares = draw.choice(((60, 70), (80, 80), (45, 50, 45), (100, 30, 60)))
    return tuple(_ask(order, number, Decimal(share) / 100) for number, share in enumerate(shares))


def _ask(order: Order, number: int, share: Decimal) -> Ask:
    amount = (order.amount * share).quantize(CENT, rounding=ROUND_DOWN)
    return Ask(name=f"ticket-{order.key}-{number}", key=order.key, amount=amount)
