"""The policy check: it stands for a call of a language model, slow and paid for each time it is asked.

Each question is written down before it is answered, as a bill would be. So one can count afterwards whether
a decision that was recorded was ever asked for again.
"""

import os
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import anyio
import anyio.to_thread

from .models import Decision, Order, RefundRequest

_SCHEMA = """
CREATE TABLE IF NOT EXISTS questions (
    id INTEGER PRIMARY KEY,
    operation_id TEXT NOT NULL,
    process_id INTEGER NOT NULL,
    asked_at_ms INTEGER NOT NULL
)
"""


@dataclass(frozen=True, slots=True)
class Question:
    """One time that the policy check was asked: about which refund, and by which process."""

    operation_id: str
    process_id: int


class PolicyLog:
    """The questions in one SQLite file, shared by all processes that ask."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def create(self) -> None:
        """Make the file, once, before several processes write to it."""
        with closing(sqlite3.connect(self._path)) as database:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute(_SCHEMA)

    def write(self, operation_id: str) -> None:
        """Note that this process asks about a refund."""
        row = (operation_id, os.getpid(), time.time_ns() // 1_000_000)
        with closing(sqlite3.connect(self._path, timeout=30)) as database, database:
            database.execute(_SCHEMA)
            database.execute("INSERT INTO questions (operation_id, process_id, asked_at_ms) VALUES (?, ?, ?)", row)

    def questions(self) -> list[Question]:
        """Read all questions in the order in which they were asked."""
        with closing(sqlite3.connect(self._path)) as database:
            rows: list[tuple[str, int]] = database.execute(
                "SELECT operation_id, process_id FROM questions ORDER BY id"
            ).fetchall()
        return [Question(operation_id, process_id) for operation_id, process_id in rows]


class PolicyCheck:
    """The check itself.

    Args:
        log: Where questions are counted.
        latency_ms: How long an answer takes.
        decided_by_people_above: Refunds above this amount are not allowed without a person.
    """

    def __init__(self, log: PolicyLog, *, latency_ms: int, decided_by_people_above: Decimal) -> None:
        self._log = log
        self._latency_ms = latency_ms
        self._limit = decided_by_people_above

    async def ask(self, operation_id: str, placed: Order, request: RefundRequest) -> Decision:
        """Decide on one refund."""
        await anyio.to_thread.run_sync(self._log.write, operation_id)
        await anyio.sleep(self._latency_ms / 1000)
        if request.amount > self._limit:
            return Decision(allowed=False, reason=f"refunds above {self._limit} are decided by people")
        return Decision(allowed=True, reason=f"within the policy for {placed.customer}")
