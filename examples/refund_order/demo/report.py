"""What the demo prints at the end."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from ..payments.wire import Statistics
from ..policy import Question
from .audit import Books
from .workload import Answered, Ask

FAULTS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Kill:
    """The moment at which a worker was killed, and what was open then.

    Args:
        worker: Its name.
        at_s: The moment, by the driver's monotonic clock.
        open: All refunds that were asked for and not answered.
        held: Those of them whose order the killed worker had in hand, by the log of the policy check.
    """

    worker: str
    at_s: float
    open: frozenset[Ask]
    held: frozenset[Ask]

    def waits_s(self, answers: Sequence[Answered], asks: frozenset[Ask]) -> list[float]:
        """Return how long after the kill each of these refunds was answered, in order."""
        return sorted(answer.answered_at_s - self.at_s for answer in answers if answer.ask in asks)


@dataclass(frozen=True, slots=True)
class Run:
    """All that is known about one run of the demo."""

    books: Books
    questions: Sequence[Question]
    statistics: Statistics
    kill: Kill
    took_s: float
    faults: Sequence[str]


def show(console: Console, run: Run) -> None:
    """Print the table and the verdict."""
    table = Table(title="Refunds", show_header=False, title_justify="left", min_width=64)
    table.add_column(justify="left")
    table.add_column(justify="right")
    for section in (_refunds(run), _ledger(run), _repeated(run), _kill(run)):
        for name, value in section:
            table.add_row(name, value)
        table.add_section()
    console.print(table)
    _verdict(console, run)


def _refunds(run: Run) -> list[tuple[str, str]]:
    refused = run.books.refusals
    return [
        (f"refunds asked for, on {len(run.books.orders)} orders", str(len(run.books.asks))),
        ("done", str(len(run.books.receipts))),
        ("refused", str(refused.total())),
        *((f"  {code}", str(count)) for code, count in sorted(refused.items())),
    ]


def _ledger(run: Run) -> list[tuple[str, str]]:
    return [
        ("ledger entries", str(len(run.books.ledger))),
        ("duplicates", str(run.books.duplicates)),
    ]


def _repeated(run: Run) -> list[tuple[str, str]]:
    asked = Counter(question.operation_id for question in run.questions)
    return [
        (f"policy checks asked, about {len(asked)} refunds", str(asked.total())),
        ("  asked again: no answer recorded at the kill", str(asked.total() - len(asked))),
        ("answers of the payment service lost on purpose", str(run.statistics.dropped)),
        ("requests to it that were sent again with the same id", str(run.statistics.sent_again)),
    ]


def _kill(run: Run) -> list[tuple[str, str]]:
    kill, answers = run.kill, run.books.answers
    return [
        (f"refunds open when {kill.worker} was killed", str(len(kill.open))),
        ("  first and last completion after the kill", _span(kill.waits_s(answers, kill.open))),
        (f"  of these in the hands of {kill.worker}", str(len(kill.held))),
        ("  first and last completion after the kill", _span(kill.waits_s(answers, kill.held))),
        ("whole run", f"{run.took_s:.1f} s"),
    ]


def _span(waits_s: Sequence[float]) -> str:
    return f"{waits_s[0]:.2f} s, {waits_s[-1]:.2f} s" if waits_s else "none"


def _verdict(console: Console, run: Run) -> None:
    if not run.faults:
        console.print("The books agree: what was reported done is in the ledger once, nothing else is.")
        return
    console.print(f"The books do not agree ({len(run.faults)} faults):", style="bold red")
    for fault in run.faults[:FAULTS_SHOWN]:
        console.print(f"  {fault}", soft_wrap=True, markup=False)
