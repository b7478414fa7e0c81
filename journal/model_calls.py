"""Calls of models as journals tell of them: what they took, and which of them may have been paid for in vain.

A call is recorded before it is made and again when it has been answered. So a call that has no end in the journal is
known to have begun: its answer came and was lost with the worker, or never came. When it is made again, the first may
have been billed all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Final

from .command_records import ModelCallBegun, ModelUsage, StepAttemptFailed, StepCompleted, StepFailed
from .fields import Layout, a_number, a_text, optional
from .place import Place
from .records import Record

#: How an attempt fails that has waited as long as it may: what it asked for may have been done.
_TIMEOUT: Final = "builtins.TimeoutError"


def fields_of_usage(usage: ModelUsage) -> tuple[object, ...]:
    """Return the fields of a usage, as they lie in a record."""
    cost = None if usage.cost is None else str(usage.cost)
    return (usage.model, usage.input_tokens, usage.output_tokens, cost, usage.currency, usage.lost)


def _usage(model: str, read: int, written: int, cost: str | None, currency: str, lost: int) -> ModelUsage:
    return ModelUsage(model, read, written, _decimal(cost), currency, lost)


def _decimal(text: str | None) -> Decimal | None:
    try:
        return None if text is None else Decimal(text)
    except InvalidOperation:
        # A sum of money that can't be read is one that is not known.
        return None


USAGE_LAYOUT: Final = Layout(_usage, (a_text, a_number, a_number, optional(a_text), a_text, a_number))


@dataclass(frozen=True, slots=True)
class ModelSpending:
    """What the model calls of an invocation took.

    Args:
        calls: Calls that began.
        answers: Those whose answer is recorded.
        input_tokens: Tokens that the answered ones were given.
        output_tokens: Tokens that they gave.
        cost: What they cost, by currency, as far as they said.
        unpriced: Answers that named no cost.
        maybe_billed_twice: Calls without a known end that were made again.
        unanswered: Calls without a known end that were not.
    """

    calls: int = 0
    answers: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])
    unpriced: int = 0
    maybe_billed_twice: int = 0
    unanswered: int = 0

    def __add__(self, other: ModelSpending) -> ModelSpending:
        """Return both together."""
        cost = dict(self.cost)
        for currency, amount in other.cost.items():
            cost[currency] = cost.get(currency, Decimal(0)) + amount
        return ModelSpending(
            self.calls + other.calls,
            self.answers + other.answers,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            cost,
            self.unpriced + other.unpriced,
            self.maybe_billed_twice + other.maybe_billed_twice,
            self.unanswered + other.unanswered,
        )

    def __str__(self) -> str:
        """Return it in words."""
        tokens = f"{self.input_tokens:,} tokens in, {self.output_tokens:,} out"
        costs = [f"{amount} {currency}" for currency, amount in sorted(self.cost.items())]
        if self.unpriced:
            costs.append(f"{self.unpriced} of unknown price")
        words = [f"{self.calls} calls", tokens, *costs]
        if self.maybe_billed_twice:
            words.append(f"{self.maybe_billed_twice} maybe billed twice")
        if self.unanswered:
            words.append(f"{self.unanswered} without an answer so far")
        return ", ".join(words)


NOTHING_SPENT: Final = ModelSpending()


def spending_of(records: Iterable[Record]) -> ModelSpending:
    """Return what the model calls took that records tell of.

    Args:
        records: Records of one invocation, oldest first.
    """
    calls = _Calls()
    spent = NOTHING_SPENT
    for record in records:
        calls.note(record)
        if isinstance(record, StepCompleted) and record.usage is not None:
            spent += _of_an_answer(record.usage)
    if not calls.begun:
        return spent
    open_ones = len(calls.open)
    lost = ModelSpending(
        calls=calls.begun, maybe_billed_twice=sum(calls.lost.values()) - open_ones, unanswered=open_ones
    )
    return spent + lost


def _of_an_answer(usage: ModelUsage) -> ModelSpending:
    cost = {} if usage.cost is None else {usage.currency: usage.cost}
    unpriced = int(usage.cost is None)
    return ModelSpending(0, 1, usage.input_tokens, usage.output_tokens, cost, unpriced)


def calls_before(records: Iterable[Record], place: Place) -> tuple[int, int, bool]:
    """Return how many calls a command has made before, how many of them have no known end, and whether the last has.

    Args:
        records: Records of its invocation, oldest first.
        place: The place of the command.
    """
    calls = _Calls()
    lost_before = 0
    for record in records:
        if isinstance(record, _ABOUT_CALLS) and record.index == place:
            lost_before = calls.lost.get(place, 0) if isinstance(record, ModelCallBegun) else lost_before
            calls.note(record)
    lost = calls.lost.get(place, 0)
    return calls.begun, lost, lost > lost_before


def of_models_in_words(record: ModelCallBegun | StepCompleted) -> str:
    """Return what a record tells of a call of a model, in words; nothing for a step that asked none."""
    if isinstance(record, ModelCallBegun):
        lost = f"; {record.lost} before it may have been billed too" if record.lost else ""
        return f"{record.model}, call {record.call}, prompt {record.digest.hex()}{lost}"
    usage = record.usage
    if usage is None:
        return ""
    cost = "of unknown price" if usage.cost is None else f"{usage.cost} {usage.currency}"
    lost = f"; {usage.lost} before it may have been billed too" if usage.lost else ""
    return f"{usage.model}, {usage.input_tokens:,} tokens in, {usage.output_tokens:,} out, {cost}{lost}"


class _Calls:
    """Which calls have begun, and which of them have no known end, by place."""

    def __init__(self) -> None:
        self.begun = 0
        self.open: set[Place] = set()
        #: Those that are open count too: nobody knows their end so far.
        self.lost: dict[Place, int] = {}

    def note(self, record: Record) -> None:
        match record:
            case ModelCallBegun():
                self.begun += 1
                self.open.add(record.index)
                self.lost[record.index] = self.lost.get(record.index, 0) + 1
            case StepAttemptFailed(error=failure) if failure.type_name == _TIMEOUT:
                # It stays lost: when it is made again it is another call.
                self.open.discard(record.index)
            case StepCompleted() | StepFailed() | StepAttemptFailed() if record.index in self.open:
                self.open.discard(record.index)
                self.lost[record.index] -= 1
            case _:
                pass


_ABOUT_CALLS: Final = (ModelCallBegun, StepAttemptFailed, StepCompleted, StepFailed)
