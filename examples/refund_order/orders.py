"""The order store: which orders exist, whose they are, and what they cost."""

import random
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from decimal import Decimal
from pathlib import Path

from .models import Order, PaidBy
from .payments.money import from_minor, to_minor

_SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (
    key TEXT PRIMARY KEY,
    customer TEXT NOT NULL,
    amount_minor INTEGER NOT NULL CHECK (amount_minor > 0),
    paid_by TEXT NOT NULL,
    payment TEXT NOT NULL
) WITHOUT ROWID
"""


class OrderStore:
    """Orders in one SQLite file; a connection for each call, so threads and processes may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, orders: Iterable[Order]) -> None:
        """Write orders; one that exists is replaced."""
        rows = [
            (order.key, order.customer, to_minor(order.amount), order.paid_by.value, order.payment) for order in orders
        ]
        with closing(sqlite3.connect(self._path)) as database, database:
            database.execute(_SCHEMA)
            database.executemany("INSERT OR REPLACE INTO orders VALUES (?, ?, ?, ?, ?)", rows)

    def read(self, key: str) -> Order | None:
        """Read one order; None when there is none with this key."""
        with closing(sqlite3.connect(self._path)) as database:
            row: tuple[str, str, int, str, str] | None = database.execute(
                "SELECT * FROM orders WHERE key = ?", (key,)
            ).fetchone()
        if row is None:
            return None
        key, customer, amount_minor, paid_by, payment = row
        amount = from_minor(amount_minor)
        return Order(key=key, customer=customer, amount=amount, paid_by=PaidBy(paid_by), payment=payment)


def sample_orders(count: int, *, seed: int, tenant: str = "acme") -> list[Order]:
    """Make orders up: the same ones for the same seed, between 20 and 480 each."""
    draw = random.Random(seed)
    return [
        Order(
            key=f"{tenant}/o-{1001 + number}",
            customer=f"customer-{draw.randrange(100_000):05d}",
            amount=Decimal(draw.randrange(2_000, 48_000)).scaleb(-2),
        )
        for number in range(count)
    ]
