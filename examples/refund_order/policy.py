"""The policy check: it stands for a call of a language model, slow, and billed each time it is asked.

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

from keylane import ModelAnswer

from .models import Decision, Order, RefundRequest

#: The model that is asked; here nobody is.
MODEL = "policy-stand-in"
PRICE_OF_A_QUESTION = Decimal("0.002")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS questions (
    id INTEGER PRIMARY KEY,
    order_key TEXT NOT NULL,
    process_id INTEGER NOT NULL,
    asked_at_ms INTEGER NOT NULL
)
"""


@dataclass(frozen=True, slots=True)
class Question:
    """One time that the policy check was asked: about which order, and by which process."""

    order: str
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

    def write(self, order: str) -> None:
        """Note that this process asks about a refund of an order."""
        row = (order, os.getpid(), time.time_ns() // 1_000_000)
        with closing(sqlite3.connect(self._path, timeout=30)) as database, database:
            database.execute(_SCHEMA)
            database.execute("INSERT INTO questions (order_key, process_id, asked_at_ms) VALUES (?, ?, ?)", row)

    def questions(self) -> list[Question]:
        """Read all questions in the order in which they were asked."""
        with closing(sqlite3.connect(self._path)) as database:
            rows: list[tuple[str, int]] = database.execute(
                "SELECT order_key, process_id FROM questions ORDER BY id"
            ).fetchall()
        return [Question(order, process_id) for order, process_id in rows]


class PolicyCheck:
    """The check itself.

    Args:
        log: Where questions are counted.
        latency_ms: How long an answer takes.
        approval_above: Refunds above this amount have to be approved.
        two_approvals_above: Those above this one by two people.
    """

    def __init__(
        self, log: PolicyLog, *, latency_ms: int, approval_above: Decimal, two_approvals_above: Decimal
    ) -> None:
        self._log = log
        self._latency_ms = latency_ms
        self._approval_above = approval_above
        self._two_approvals_above = two_approvals_above

    async def ask(self, placed: Order, request: RefundRequest) -> ModelAnswer[Decision]:
        """Decide on one refund, and say what that has cost."""
        await anyio.to_thread.run_sync(self._log.write, placed.key)
        await anyio.sleep(self._latency_ms / 1000)
        question = f"{placed.model_dump_json()} {request.model_dump_json()}"
        decision = self._decide(placed, request)
        return ModelAnswer(
            decision,
            model=MODEL,
            input_tokens=len(question.split()),
            output_tokens=len(decision.reason.split()),
            cost=PRICE_OF_A_QUESTION,
        )

    def _decide(self, placed: Order, request: RefundRequest) -> Decision:
        if "chargeback" in request.reason.lower():
            return Decision(allowed=False, reason="who charges back is paid by the bank, not by us as well")
        approvals = (request.amount > self._approval_above) + (request.amount > self._two_approvals_above)
        return Decision(allowed=True, reason=f"within the policy for {placed.customer}", approvals=approvals)
