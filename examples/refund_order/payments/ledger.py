"""The ledger of the payment service: which money moved, and which operation ids are still known.

Two tables in one SQLite file. `refunds` is the ledger, one row for each movement of money, kept for ever.
`operations` remembers each operation id with the terms it stood for and the answer it got, until its
retention has passed. Both rows of a refund are written in one transaction, so there is no moment at which
money has moved and the id is unknown, and no reservation that a crash could leave behind.

What the memory of operations is good for is what the service promises just now (`Promise`): one that does not
deduplicate moves money without having looked.

Concurrent duplicates: the transaction begins by taking SQLite's write lock. The first one decides; each
other one waits for the lock (milliseconds, as nothing slow happens inside), finds the row of the first
and gives the same answer. This holds for threads of one process and for several processes on one file.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from .money import from_minor, to_minor
from .wire import ANSWER, LedgerEntry, Receipt, RefundTerms, Rejection

_SCHEMA = """
CREATE TABLE IF NOT EXISTS refunds (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    operation_id TEXT NOT NULL,
    order_key TEXT NOT NULL,
    recipient TEXT NOT NULL,
    amount_minor INTEGER NOT NULL CHECK (amount_minor > 0),
    committed_at_ms INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS refunds_by_operation ON refunds (operation_id);
CREATE TABLE IF NOT EXISTS operations (
    operation_id TEXT PRIMARY KEY,
    terms TEXT NOT NULL,
    answer TEXT NOT NULL,
    decided_at_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS operations_by_age ON operations (decided_at_ms);
"""

_FORGOTTEN_AT_ONCE_MAX = 100
_FOR_EVER_MS = 2**62

Row = tuple[int, str, str, str, int, int]


class OperationReused(Exception):
    """The operation id is known, and stands for other terms.

    Attributes:
        fields: The names of the terms that differ.
    """

    def __init__(self, operation_id: str, fields: tuple[str, ...]) -> None:
        super().__init__(f"operation {operation_id!r} is known with other values of: {', '.join(fields)}")
        self.operation_id = operation_id
        self.fields = fields


@dataclass(frozen=True, slots=True)
class Settled:
    """An answer, and whether it was given before."""

    answer: Receipt | Rejection
    replayed: bool


@dataclass(frozen=True, slots=True)
class Promise:
    """The contract under which a request is handled.

    Args:
        deduplicates: Whether an operation id moves money once.
        retention_ms: For how long an operation id is known; None for that of the ledger.
        lookup_lag_ms: How long after it was decided an operation is found.
        lookup_retention_ms: For how long it is found; None for ever.
    """

    deduplicates: bool = True
    retention_ms: int | None = None
    lookup_lag_ms: int = 0
    lookup_retention_ms: int | None = None


PROMISED = Promise()


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Ledger:
    """One SQLite file with write-ahead log and an fsync for each commit.

    Args:
        path: The file; it is made when it is missing.
        retention: How long an operation id is remembered. Afterwards the same id moves money again, which is
            why a caller may re-send only while it is shorter ago than this.
        now_ms: The clock, in milliseconds since 1970.
    """

    def __init__(
        self,
        path: Path,
        *,
        retention: timedelta = timedelta(hours=24),
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._retention_ms = retention // timedelta(milliseconds=1)
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def settle(
        self,
        operation_id: str,
        terms: RefundTerms,
        judge: Callable[[str, RefundTerms], Rejection | None],
        promise: Promise = PROMISED,
    ) -> Settled:
        """Give the answer of an operation: the one that is known, or a new one, durable before this returns.

        Args:
            operation_id: What the caller calls this refund, each time that it sends it.
            terms: The parameters.
            judge: Says no to a new operation; it must be quick, as it runs under the write lock.
            promise: The contract; where it says so, the id is taken again and the money moves again.

        Raises:
            OperationReused: The id is known with other terms.
        """
        with self._transaction():
            now_ms = self._now_ms()
            known_since_ms = now_ms - (self._retention_ms if promise.retention_ms is None else promise.retention_ms)
            self._forget(now_ms - self._retention_ms)
            known = self._known(operation_id, known_since_ms) if promise.deduplicates else None
            if known is not None:
                known_terms, answer = known
                _require_same(operation_id, known_terms, terms)
                return Settled(answer, replayed=True)
            answer = judge(operation_id, terms) or self._move_money(operation_id, terms, now_ms)
            self._remember(operation_id, terms, answer, now_ms)
            return Settled(answer, replayed=False)

    def find(self, operation_id: str, promise: Promise = PROMISED) -> Receipt | Rejection | None:
        """Look an operation up.

        A receipt is found for as long as the contract says, since the ledger is kept; a rejection until the retention
        of the ledger has passed, too. None means: never arrived, not yet committed, not yet found, or forgotten.
        """
        with self._lock:
            now_ms = self._now_ms()
            until_ms = now_ms - promise.lookup_lag_ms
            since_ms = 0 if promise.lookup_retention_ms is None else now_ms - promise.lookup_retention_ms + 1
            row: Row | None = self._database.execute(
                "SELECT * FROM refunds WHERE operation_id = ? AND committed_at_ms BETWEEN ? AND ? ORDER BY id DESC",
                (operation_id, since_ms, until_ms),
            ).fetchone()
            if row is not None:
                return Receipt.model_validate(_entry(row).model_dump())
            known = self._known(operation_id, max(now_ms - self._retention_ms, since_ms - 1), until_ms)
        # A receipt that is not in the range above is not found by way of its operation either.
        return known[1] if known is not None and isinstance(known[1], Rejection) else None

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Read the ledger, oldest first."""
        with self._lock:
            rows: list[Row] = self._database.execute("SELECT * FROM refunds ORDER BY id").fetchall()
        return tuple(_entry(row) for row in rows)

    @contextmanager
    def _transaction(self) -> Generator[None]:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")

    def _forget(self, before_ms: int) -> None:
        """Delete some ids whose retention has passed; a bounded number, so that no caller pays for a backlog."""
        self._database.execute(
            "DELETE FROM operations WHERE operation_id IN"
            " (SELECT operation_id FROM operations WHERE decided_at_ms <= ? LIMIT ?)",
            (before_ms, _FORGOTTEN_AT_ONCE_MAX),
        )

    def _known(
        self, operation_id: str, after_ms: int, until_ms: int | None = None
    ) -> tuple[RefundTerms, Receipt | Rejection] | None:
        row: tuple[str, str] | None = self._database.execute(
            "SELECT terms, answer FROM operations WHERE operation_id = ? AND decided_at_ms > ? AND decided_at_ms <= ?",
            (operation_id, after_ms, _FOR_EVER_MS if until_ms is None else until_ms),
        ).fetchone()
        if row is None:
            return None
        return RefundTerms.model_validate_json(row[0]), ANSWER.validate_json(row[1])

    def _remember(self, operation_id: str, terms: RefundTerms, answer: Receipt | Rejection, now_ms: int) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO operations (operation_id, terms, answer, decided_at_ms) VALUES (?, ?, ?, ?)",
            (operation_id, terms.model_dump_json(), answer.model_dump_json(), now_ms),
        )

    def _move_money(self, operation_id: str, terms: RefundTerms, now_ms: int) -> Receipt:
        row: Row = self._database.execute(
            "INSERT INTO refunds (operation_id, order_key, recipient, amount_minor, committed_at_ms)"
            " VALUES (?, ?, ?, ?, ?) RETURNING *",
            (operation_id, terms.order, terms.recipient, to_minor(terms.amount), now_ms),
        ).fetchone()
        return Receipt.model_validate(_entry(row).model_dump())


def _entry(row: Row) -> LedgerEntry:
    number, operation_id, order, recipient, amount_minor, committed_at_ms = row
    return LedgerEntry(
        receipt=f"R{number:06d}",
        operation_id=operation_id,
        terms=RefundTerms(order=order, recipient=recipient, amount=from_minor(amount_minor)),
        committed_at=datetime.fromtimestamp(committed_at_ms / 1000, tz=UTC),
    )


def _require_same(operation_id: str, known: RefundTerms, asked: RefundTerms) -> None:
    differing = tuple(name for name in RefundTerms.model_fields if getattr(known, name) != getattr(asked, name))
    if differing:
        raise OperationReused(operation_id, differing)
