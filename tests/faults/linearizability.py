"""Whether what the callers of one counter saw can have happened in some order that respects time.

The search is Wing and Gong's with Lowe's memory of what was tried: the calls are put in order one after the other, and
one that had its answer before another was sent stands before it. A call without an answer may stand anywhere behind
its sending, or nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .soak_history import Kind, Operation


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a counter.

    Args:
        sent: When it was sent.
        ended: When its answer came; infinity for a call whose fate nobody knows.
        amount: What it adds; 0 for a read.
        value: What it was answered, None where nobody knows.
    """

    sent: float
    ended: float
    amount: int
    value: int | None

    @property
    def is_known(self) -> bool:
        """Whether it was answered."""
        return self.value is not None


def calls_of(operations: Iterable[Operation]) -> list[Call]:
    """Return the calls of one counter that may have run, all of whose adds add one."""
    return [
        Call(each.sent, math.inf if each.answered is None else each.answered, int(each.kind is Kind.ADD), each.value)
        for each in operations
        if each.is_answered or each.may_have_run
    ]


def is_linearizable(calls: Sequence[Call], *, final: int | None = None) -> bool:
    """Return whether a counter that begins at 0 can have given these answers.

    Args:
        calls: What was seen of it.
        final: Its value after everything, where that is known.
    """
    if final is not None:
        end = 1 + max((each.sent if math.isinf(each.ended) else each.ended for each in calls), default=0.0)
        calls = [*calls, Call(end, end, 0, final)]
    search = _Search(calls)
    # A list and not recursion: a history is longer than Python's stack.
    steps = [iter([search.begun])]
    while steps:
        found = next(steps[-1], None)
        if found is None:
            steps.pop()
        elif search.is_whole(found):
            return True
        elif search.is_new(found):
            steps.append(search.steps(found))
    return False


@dataclass(frozen=True, slots=True)
class _Place:
    """How far an order has come.

    Args:
        first: The first of the answered calls that is missing in it; all before stand in it.
        beyond: A bit for each one from there on that stands in it, so that a long history makes no long numbers.
        lost: How many calls of each amount without an answer stand in it.
        value: What the counter holds then.
    """

    first: int
    beyond: int
    lost: tuple[int, ...]
    value: int


class _Search:
    """The orders that may be, place by place."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._known = sorted((each for each in calls if each.is_known), key=lambda each: each.sent)
        lost = sorted((each for each in calls if not each.is_known and each.amount), key=lambda each: each.sent)
        # Those of one amount can stand in for each other wherever both may stand, so the first one is taken first.
        self._amounts = sorted({each.amount for each in lost})
        self._lost = [[each for each in lost if each.amount == amount] for amount in self._amounts]
        self._seen: set[_Place] = set()
        self.begun = _Place(0, 0, (0,) * len(self._amounts), 0)

    def is_whole(self, place: _Place) -> bool:
        """Return whether every answered call stands in the order."""
        return place.first == len(self._known)

    def is_new(self, place: _Place) -> bool:
        """Return whether a place was not reached before, by whatever order."""
        before = len(self._seen)
        self._seen.add(place)
        return len(self._seen) > before

    def steps(self, place: _Place) -> Iterator[_Place]:
        """Return the places after one call more."""
        limit = math.inf
        candidates: list[tuple[int, Call]] = []
        for number in range(place.first, len(self._known)):
            call = self._known[number]
            if call.sent > limit:
                break
            if not place.beyond >> number - place.first & 1:
                candidates.append((number, call))
                limit = min(limit, call.ended)
        for number, call in candidates:
            if call.sent <= limit and place.value + call.amount == call.value:
                yield _with(place, number, call)
        yield from self._lost_steps(place, limit)

    def _lost_steps(self, place: _Place, limit: float) -> Iterator[_Place]:
        for kind, (amount, taken) in enumerate(zip(self._amounts, place.lost, strict=True)):
            waiting = self._lost[kind]
            if taken < len(waiting) and waiting[taken].sent <= limit:
                lost = (*place.lost[:kind], taken + 1, *place.lost[kind + 1 :])
                yield _Place(place.first, place.beyond, lost, place.value + amount)


def _with(place: _Place, number: int, call: Call) -> _Place:
    first, beyond = place.first, place.beyond | 1 << number - place.first
    while beyond & 1:
        first, beyond = first + 1, beyond >> 1
    return _Place(first, beyond, place.lost, place.value + call.amount)
