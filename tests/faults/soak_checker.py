"""Decides whether what callers saw in a long run is a legal history, object by object.

All adds add one. So a counter's history is linearizable exactly when its answers can be put in the order of their
values, each value once, without putting a call before another that had its answer before the first was sent; what is
missing between the values must be explained by calls whose answer nobody has seen, each of them once.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from .soak_history import Kind, Operation

#: What the steps of a run write beside their marks, in order.
WORDS = ("first", "second", "third")


def by_key(operations: Iterable[Operation], *kinds: Kind) -> dict[str, list[Operation]]:
    """Return the calls of some kinds by their object."""
    chosen: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.kind in kinds:
            chosen[operation.key].append(operation)
    return dict(chosen)


def check_counter(operations: Sequence[Operation], final: int) -> list[str]:
    """Return what is wrong with one counter.

    Args:
        operations: All adds and reads of it.
        final: Its value after everything has ended.
    """
    answered = [each for each in operations if each.is_answered]
    adds = [each for each in answered if each.kind is Kind.ADD]
    unseen = [each for each in operations if each.may_have_run]
    wrong = [
        f"{each} is not between {lowest} and {final}"
        for each in answered
        if not (lowest := int(each.kind is Kind.ADD)) <= each.value <= final
    ]
    wrong += _doubled(adds)
    wrong += _overtaken(answered)
    missing = sorted(set(range(1, final + 1)) - {each.value for each in adds})
    return wrong + _unexplained(missing, unseen, answered)


def _doubled(adds: Sequence[Operation]) -> list[str]:
    counts = Counter(each.value for each in adds)
    return [f"{each} has the answer of another" for each in adds if counts[each.value] > 1]


class _Known:
    """The highest value that anybody had been answered by some time."""

    def __init__(self, answered: Iterable[Operation]) -> None:
        self._times: list[float] = []
        self._highest: list[Operation] = []
        for each in sorted(answered, key=lambda each: each.answered or 0.0):
            self._times.append(each.answered or 0.0)
            last = self._highest[-1] if self._highest else each
            self._highest.append(each if each.value >= last.value else last)

    def before(self, moment: float) -> Operation | None:
        """Return the answer with the highest value among those before a moment."""
        index = bisect.bisect_left(self._times, moment)
        return self._highest[index - 1] if index else None


def _overtaken(answered: Sequence[Operation]) -> list[str]:
    known = _Known(answered)
    wrong: list[str] = []
    for each in answered:
        before = known.before(each.sent)
        if before is None:
            continue
        if each.value < before.value or (each.kind is Kind.ADD and each.value == before.value):
            wrong.append(f"{each} goes back behind {before}, which had its answer before")
    return wrong


def _unexplained(missing: Sequence[int], unseen: Sequence[Operation], answered: Sequence[Operation]) -> list[str]:
    """Give each missing value to an unseen call that was not sent after a higher value was known."""
    known = _Known(answered)
    lowest: list[int] = []
    for each in unseen:
        before = known.before(each.sent)
        lowest.append(0 if before is None else before.value)
    lowest.sort()
    for number, value in enumerate(missing, start=1):
        if bisect.bisect_left(lowest, value) < number:
            return [f"{number} values up to {value} belong to no call that was answered, and too few others explain it"]
    return []


def check_steps(operations: Sequence[Operation], kept: Sequence[str], trail: Sequence[tuple[str, str]]) -> list[str]:
    """Return what is wrong with one object whose invocations add their three marks to its state.

    Args:
        operations: All runs of three steps on it.
        kept: The marks in its state after everything has ended.
        trail: What the steps have written: the word and the mark of each execution.
    """
    answered = [each for each in operations if each.is_answered]
    wrong: list[str] = []
    if len(set(kept)) != len(kept):
        wrong.append("a mark was recorded twice")
    written = {token: word for word, token in trail}
    words = [written.get(token) for token in kept]
    if words != [*WORDS] * (len(kept) // len(WORDS)):
        wrong.append(f"the recorded steps are not whole runs in their order: {words}")
    wrong += [f"{each} is no beginning of {kept}" for each in answered if each.value != kept[: len(each.value)]]
    lengths = sorted(len(each.value) for each in answered)
    wrong += [f"two runs have the same answer of {one} marks" for one, other in pairwise(lengths) if one == other]
    unseen = sum(each.may_have_run for each in operations)
    runs = len(kept) // len(WORDS)
    if not len(answered) <= runs <= len(answered) + unseen:
        wrong.append(f"{runs} runs are recorded, {len(answered)} were answered and {unseen} may have run")
    return wrong + _steps_overtaken(answered)


def _steps_overtaken(answered: Sequence[Operation]) -> list[str]:
    """Put the runs in the order of their answers; none may begin after a later one was answered."""
    wrong: list[str] = []
    earliest: Operation | None = None
    for each in sorted(answered, key=lambda each: -len(each.value)):
        if earliest is not None and earliest.answered is not None and earliest.answered < each.sent:
            wrong.append(f"{each} goes back behind {earliest}, which had its answer before")
        if earliest is None or (each.answered or 0.0) < (earliest.answered or 0.0):
            earliest = each
    return wrong


def check_flaky(operations: Sequence[Operation], final: int, executions: Mapping[str, int]) -> list[str]:
    """Return what is wrong with one object whose invocations fail twice, and count once when they come through.

    Args:
        operations: All such calls of it.
        final: How many its state has counted.
        executions: How often each of them ran, by its name.
    """
    answered = [each for each in operations if each.is_answered]
    unseen = sum(each.may_have_run for each in operations)
    wrong = [
        f"{each} says how often it ran, which was {executions.get(each.name, 0)} times"
        for each in answered
        if not 3 <= each.value <= executions.get(each.name, 0)
    ]
    if not len(answered) <= final <= len(answered) + unseen:
        wrong.append(f"{final} were counted, {len(answered)} were answered and {unseen} may have run")
    return wrong


def check_waits(operations: Iterable[Operation], count: int) -> list[str]:
    """Return the invocations that did not see each acknowledged message once, in the order in which they were sent."""
    return [str(each) for each in operations if each.is_answered and each.value != [*range(count)]]


def check_cancel(operation: Operation, words: Sequence[str]) -> list[str]:
    """Return what is wrong with an invocation that would have slept for an hour, and whose cancel was reported.

    Args:
        operation: It, with the outcome that was reported, and what was undone.
        words: What it has written: when it booked, when it cleaned up, and when that was undone.
    """
    if not operation.is_answered:
        return []
    outcome, undone = operation.value
    wrong = [] if outcome == "cancelled" else [f"{operation} was not cancelled"]
    if ("undo" in words) is not ("booking" in undone):
        wrong.append(f"{operation} does not report what was done: {words}")
    if "book" in words and "undo" not in words:
        wrong.append(f"{operation} was booked and never undone: {words}")
    if "clean" in words and "book" not in words[: words.index("clean")]:
        wrong.append(f"{operation} cleaned up what it never did: {words}")
    return wrong


def check_all(operations: Iterable[Operation]) -> list[str]:
    """Return the calls that ended in a way that none of them may, or that never ended though they had to."""
    return [str(each) for each in operations if each.failed is not None or each.is_open]
