"""Compares what our ledger says of the effects at a receiver with that receiver's own books: pure, and exact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, cast

from .effects import IN_QUESTION, EffectState


class Verdict(StrEnum):
    """What the comparison of one operation comes to."""

    MATCHED = "matched"
    OURS_ONLY = "ours only"
    THEIRS_ONLY = "theirs only"
    DUPLICATE = "duplicate"
    DIFFERENT = "different"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class OurEffect:
    """What our ledger says of one operation.

    Args:
        operation_id: The operation id that the receiver sees.
        type_name: The object type.
        key: The object.
        operation: The operation id, as its handler wrote it.
        effect: Name of the effect.
        state: Where it stands.
        at_ms: Since when, by the partition's time.
        why: What is known of it, in words.
        amount: Its amount, where one is compared and our ledger has it.
        amount_problem: Why its amount can't be compared.
        due_ms: Until when people have to settle it, where it lies with them.
    """

    operation_id: str
    type_name: str
    key: str
    operation: str
    effect: str
    state: EffectState
    at_ms: int
    why: str = ""
    amount: Decimal | None = None
    amount_problem: str = ""
    due_ms: int | None = None

    @property
    def is_in_question(self) -> bool:
        """Whether the receiver may have done it, or may yet."""
        return self.state in IN_QUESTION


@dataclass(frozen=True, slots=True)
class BookRow:
    """A row of the receiver's books.

    Args:
        operation_id: The operation id that it names.
        line: The line in the file, counted from 1.
        amount: Its amount, where one is compared.
        at_ms: When it was booked, where the books say so.
    """

    operation_id: str
    line: int
    amount: Decimal | None = None
    at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """One operation, in our ledger and in their books.

    Args:
        verdict: What that comes to.
        operation_id: The operation id that the receiver sees.
        ours: What our ledger says, None where it knows nothing of it.
        rows: What their books say.
    """

    verdict: Verdict
    operation_id: str
    ours: OurEffect | None
    rows: tuple[BookRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Audit:
    """What a comparison has found.

    Args:
        matched: How many operations are in both, once and alike.
        matched_amount: The sum of their amounts, where amounts are compared.
        findings: All others, unresolved ones last.
        others: How many of ours are neither done nor in question: rejected, not sent, or blocked.
    """

    matched: int
    matched_amount: Decimal | None
    findings: tuple[Compared, ...]
    others: int = 0

    def of(self, verdict: Verdict) -> tuple[Compared, ...]:
        """Return the findings of one kind."""
        return tuple(each for each in self.findings if each.verdict is verdict)

    def is_clean(self, *, allows_queued: bool = False, now_ms: int = 0) -> bool:
        """Return whether nothing is left to look into.

        Args:
            allows_queued: Whether effects are allowed that lie with people whose time has not passed.
            now_ms: The time by which that is judged.
        """
        return all(allows_queued and _is_with_people(each, now_ms) for each in self.findings)


def _is_with_people(each: Compared, now_ms: int) -> bool:
    due_ms = None if each.ours is None else each.ours.due_ms
    return each.verdict is Verdict.UNRESOLVED and due_ms is not None and due_ms > now_ms


@dataclass(frozen=True, slots=True)
class Span:
    """The time that a comparison is about: from a moment up to another, which is no part of it; None leaves it open."""

    from_ms: int | None = None
    to_ms: int | None = None

    def has(self, at_ms: int | None) -> bool:
        """Return whether a moment is in it; one that is not known is."""
        if at_ms is None:
            return True
        return (self.from_ms is None or at_ms >= self.from_ms) and (self.to_ms is None or at_ms < self.to_ms)


_ORDER: Final[Mapping[Verdict, int]] = {
    verdict: rank
    for rank, verdict in enumerate(
        (Verdict.DUPLICATE, Verdict.THEIRS_ONLY, Verdict.OURS_ONLY, Verdict.DIFFERENT, Verdict.UNRESOLVED)
    )
}


@dataclass(slots=True)
class _Count:
    matched: int = 0
    amount: Decimal = Decimal(0)
    others: int = 0
    findings: list[Compared] = field(default_factory=list["Compared"])


def compare(
    ours: Iterable[OurEffect], theirs: Iterable[BookRow], span: Span | None = None, *, with_amounts: bool = False
) -> Audit:
    """Compare our ledger with their books.

    What lies outside of the span counts as known, and its absence on the other side is no finding.

    Args:
        ours: All that our ledger has of the receiver, of any time.
        theirs: The rows of their books.
        span: The time that is compared.
        with_amounts: Whether amounts have to agree.
    """
    span = span or Span()
    rows: dict[str, list[BookRow]] = {}
    for row in theirs:
        rows.setdefault(row.operation_id, []).append(row)
    count = _Count()
    for effect in ours:
        _judge(effect, tuple(rows.pop(effect.operation_id, ())), span, count, with_amounts=with_amounts)
    for operation_id, unknown in rows.items():
        _judge_foreign(operation_id, tuple(unknown), span, count)
    count.findings.sort(key=lambda each: (_ORDER[each.verdict], each.operation_id))
    return Audit(count.matched, count.amount if with_amounts else None, tuple(count.findings), count.others)


def _judge(ours: OurEffect, rows: tuple[BookRow, ...], span: Span, count: _Count, *, with_amounts: bool) -> None:
    if not span.has(ours.at_ms) and not any(span.has(row.at_ms) for row in rows):
        return
    verdict = _verdict(ours, rows, with_amounts=with_amounts)
    if verdict is None:
        count.others += 1
    elif verdict is Verdict.MATCHED:
        count.matched += 1
        count.amount += ours.amount or 0
    elif rows or span.has(ours.at_ms):
        count.findings.append(Compared(verdict, ours.operation_id, ours, rows))


def _verdict(ours: OurEffect, rows: Sequence[BookRow], *, with_amounts: bool) -> Verdict | None:
    """Return what an operation of ours comes to, None where it was not done and their books agree."""
    if len(rows) > 1:
        return Verdict.DUPLICATE
    if ours.is_in_question:
        return Verdict.UNRESOLVED
    if ours.state is not EffectState.SUCCEEDED:
        return Verdict.THEIRS_ONLY if rows else None
    if not rows:
        return Verdict.OURS_ONLY
    is_alike = not with_amounts or (ours.amount is not None and ours.amount == rows[0].amount)
    return Verdict.MATCHED if is_alike else Verdict.DIFFERENT


def _judge_foreign(operation_id: str, rows: tuple[BookRow, ...], span: Span, count: _Count) -> None:
    if any(span.has(row.at_ms) for row in rows):
        verdict = Verdict.DUPLICATE if operation_id and len(rows) > 1 else Verdict.THEIRS_ONLY
        count.findings.append(Compared(verdict, operation_id, None, rows))


#: Gives the operation id that the receiver sees of a type's name, a key, and an operation id as its handler wrote it.
Qualify = Callable[[str, str, str], str]


def amount_in(params: object, path: str) -> Decimal:
    """Return the amount that a field of decoded parameters holds.

    Args:
        params: The parameters.
        path: The field, with dots where it lies inside another.

    Raises:
        ValueError: There is none, or it is not exact; the message says which.
    """
    value: Any = params
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise ValueError(f"our parameters have no field {path!r}")
        value = cast("Mapping[str, Any]", value)[name]
    match value:
        case Decimal() if value.is_finite():
            return value
        case float():
            raise ValueError(f"our field {path!r} is a float, which is not exact: declare it as Decimal")
        case int() if not isinstance(value, bool):
            return Decimal(value)
        case _:
            raise ValueError(f"our field {path!r} is no number")
