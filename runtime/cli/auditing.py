"""`audit`: our ledger of effects, compared with the books of a receiver; the exit code is the verdict."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import Any, Final

from ...journal.audit_reading import read_ours
from ...journal.auditing import Audit, BookRow, Compared, OurEffect, Span, Verdict, compare
from ...journal.ledger_reading import spaces_of
from ...journal.noted import moment as moment_of
from ...journal.receivers_registry import ReceiverCard, read_receivers
from ...journal.store import Store
from ...journal.surroundings import look
from ...objects.reconciliation import card_of, sent_as
from .hosting import load
from .output import Page, moment, shown, write_json
from .shell import ExitCode, Shell, WrongUse
from .values import to_json

#: Findings of one kind that people are shown; programs get all.
SHOWN_MAX: Final = 50
FORM: Final = "write it as 2026-03-01T12:00:00+01:00, or with Z for UTC"


@dataclass(frozen=True, slots=True)
class Books:
    """Where the books of a receiver are, and what their columns are called.

    Args:
        path: The CSV file, whose first line names the columns.
        id_column: The column with the operation ids.
        amount_column: The column with the amounts; None to compare none.
        time_column: The column that says when a row was booked; None if the books don't.
        only: Conditions `column=value`: rows that don't meet all of them are left out.
        scale: How many decimal places the amounts have that are written without a point; 2 for cents.
    """

    path: Path
    id_column: str = "operation_id"
    amount_column: str | None = None
    time_column: str | None = None
    only: Sequence[str] = ()
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Orders:
    """What the command line asks for.

    Args:
        receiver: The receiver.
        books: Its books.
        amount_field: The field of our parameters that holds the amount.
        since: The first moment that is compared; None from the beginning.
        until: The moment up to which is compared; None to the end.
        reference: The app that declares the receiver; without it, what its workers have written down counts.
        allows_queued: Whether effects are allowed that lie with people whose time has not passed.
    """

    receiver: str
    books: Books
    amount_field: str | None
    since: str | None
    until: str | None
    reference: str | None
    allows_queued: bool


async def audit(shell: Shell, orders: Orders) -> ExitCode:
    """Compare our ledger with the books, and print what that comes to."""
    if (orders.amount_field is None) != (orders.books.amount_column is None):
        raise WrongUse("--amount-column and --amount-field go together: name both, or neither")
    span = Span(_ms(orders.since, "--from"), _ms(orders.until, "--to"))
    if span.from_ms is not None and span.to_ms is not None and span.from_ms >= span.to_ms:
        raise WrongUse("--from has to lie before --to: as it is, nothing would be compared")
    rows = list(read_books(orders.books))
    async with Store(shell.store_url(), namespace=shell.namespace) as store:
        card = await _card(store, orders)
        qualify = partial(sent_as, card, shell.namespace)
        spaces = await spaces_of(store)
        ours = [each async for each in read_ours(store, spaces, orders.receiver, qualify, orders.amount_field)]
        now_ms = (await look(store, spaces[0], [], []))[0].now_ms if spaces else 0
    found = compare(ours, rows, span, with_amounts=orders.amount_field is not None)
    is_clean = found.is_clean(allows_queued=orders.allows_queued, now_ms=now_ms)
    if shell.is_json:
        write_json(_facts(orders.receiver, found, is_clean=is_clean))
    else:
        _print(Page(), orders.receiver, found, is_clean=is_clean)
    return ExitCode.DONE if is_clean else ExitCode.NO


async def _card(store: Store, orders: Orders) -> ReceiverCard:
    """Return what is known of the receiver: how it sees operation ids.

    Raises:
        WrongUse: Nobody has declared it.
    """
    if orders.reference is not None:
        declared = load(orders.reference).receivers.get(orders.receiver)
        if declared is None:
            raise WrongUse(f"{orders.reference} has no receiver {orders.receiver!r}")
        return card_of(declared, {})
    cards = await read_receivers(store)
    if orders.receiver not in cards:
        known = f"; there are {', '.join(sorted(cards))}" if cards else ""
        raise WrongUse(
            f"no worker of namespace {store.namespace!r} has declared a receiver {orders.receiver!r}{known}; "
            "--app names the code that does"
        )
    return cards[orders.receiver]


def read_books(books: Books) -> Iterator[BookRow]:
    """Return the rows of a receiver's books.

    Raises:
        WrongUse: The file can't be read, lacks a column, or holds an amount or a time that is none, a quote that
            nothing closes, or a line with more values than there are columns.
    """
    conditions = [_condition(each) for each in books.only]
    try:
        with books.path.open(encoding="utf-8-sig", newline="") as file:
            # What is read by guess would be compared by guess: a quote left open takes all the lines behind it.
            reader = csv.DictReader(file, strict=True)
            named = (books.id_column, books.amount_column, books.time_column, *(name for name, _ in conditions))
            for column in filter(None, named):
                if column not in (reader.fieldnames or ()):
                    there = ", ".join(reader.fieldnames or ()) or "none"
                    raise WrongUse(f"{books.path} has no column {column!r}; its columns are {there}")
                if list(reader.fieldnames or ()).count(column) > 1:
                    raise WrongUse(f"{books.path} has several columns {column!r}: leave one of them")
            for row in reader:
                if any(row.get(None) or ()):
                    raise WrongUse(f"{books.path}, line {reader.line_num}: it has more values than there are columns")
                if all(row[name] == value for name, value in conditions):
                    yield _row(books, row, reader.line_num)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise WrongUse(f"{books.path} can't be read: {error}") from error


def _condition(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise WrongUse(f"--only {text!r} is no condition: write it as column=value")
    return name, value


def _row(books: Books, row: dict[str, Any], line: int) -> BookRow:
    amount = None if books.amount_column is None else _amount(books, row, line)
    at = None if books.time_column is None else _ms(row[books.time_column], f"{books.path}, line {line}:")
    return BookRow((row[books.id_column] or "").strip(), line, amount, at)


def _amount(books: Books, row: dict[str, Any], line: int) -> Decimal:
    text = (row[books.amount_column or ""] or "").strip()
    with suppress(InvalidOperation):
        sign, digits, exponent = Decimal(text).as_tuple()
        if isinstance(exponent, int):
            # Moved by hand: arithmetic would round what has many digits, and refuse what is very large.
            return Decimal((sign, digits, exponent - books.scale))
    raise WrongUse(f"{books.path}, line {line}: {text!r} is no amount; write it with a point, and without others")


def _ms(text: str | None, what: str) -> int | None:
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise WrongUse(f"{what} {text!r} is no time: {FORM}") from None
    if at.tzinfo is None:
        raise WrongUse(f"{what} {text} does not say in which zone: {FORM}")
    # The first and the last day of the calendar can't be brought to another zone, but counted from here.
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _facts(receiver: str, found: Audit, *, is_clean: bool) -> dict[str, Any]:
    return {
        "receiver": receiver,
        "is_clean": is_clean,
        "matched": found.matched,
        "matched_amount": to_json(found.matched_amount),
        "not_done": found.others,
        **{_word(verdict): [_finding(each) for each in found.of(verdict)] for verdict in _FOUND},
    }


def _finding(each: Compared) -> dict[str, Any]:
    ours = each.ours
    told: dict[str, Any] = {"operation_id": each.operation_id, "ours": None}
    if ours is not None:
        told["ours"] = {
            "object_name": ours.type_name,
            "key": ours.key,
            "operation": ours.operation,
            "effect": ours.effect,
            "state": ours.state.value,
            "since": moment_of(ours.at_ms).isoformat(),
            "why": ours.why,
            "amount": to_json(ours.amount),
            "amount_problem": ours.amount_problem,
            "deadline": None if ours.due_ms is None else moment_of(ours.due_ms).isoformat(),
        }
    told["theirs"] = [{"line": row.line, "amount": to_json(row.amount)} for row in each.rows]
    return told


_FOUND: Final = (
    Verdict.DUPLICATE,
    Verdict.THEIRS_ONLY,
    Verdict.OURS_ONLY,
    Verdict.DIFFERENT,
    Verdict.UNRESOLVED,
)
_HEADS: Final = {
    Verdict.DUPLICATE: "duplicates: in their books more than once",
    Verdict.THEIRS_ONLY: "theirs only: in their books, and not done by our ledger",
    Verdict.OURS_ONLY: "ours only: done by our ledger, and not in their books",
    Verdict.DIFFERENT: "different: in both, and not the same amount",
    Verdict.UNRESOLVED: "unresolved: in question by our ledger",
}


def _word(verdict: Verdict) -> str:
    return verdict.value.replace(" ", "_")


def _print(out: Page, receiver: str, found: Audit, *, is_clean: bool) -> None:
    amount = "" if found.matched_amount is None else f", {found.matched_amount} in all"
    out.put(f"{receiver}: {'clean' if is_clean else 'not clean'}")
    out.put(f"  matched      {found.matched}{amount}")
    for verdict in _FOUND:
        out.put(f"  {verdict.value:<12} {len(found.of(verdict))}")
    if found.others:
        out.put(f"  not done     {found.others}, and not in their books")
    for verdict in _FOUND:
        findings = found.of(verdict)
        if findings:
            out.put(f"\n{_HEADS[verdict]}")
        for each in findings[:SHOWN_MAX]:
            out.put(shown(f"  {each.operation_id or '(no operation id)'}"))
            out.put(shown(f"    ours: {_ours(each.ours)}"))
            out.put(shown(f"    theirs: {_theirs(each.rows)}"))
        if len(findings) > SHOWN_MAX:
            out.put(f"  and {len(findings) - SHOWN_MAX} more; --json has all")


def _ours(ours: OurEffect | None) -> str:
    if ours is None:
        return "nothing"
    amount = ours.amount_problem if ours.amount is None else str(ours.amount)
    due = "" if ours.due_ms is None else f", with people until {moment(moment_of(ours.due_ms))}"
    told = [f"{ours.state.value} since {moment(moment_of(ours.at_ms))}{due}", amount, ours.why]
    return f"{ours.type_name} {ours.key} {ours.operation}, {'; '.join(filter(None, told))}"


def _theirs(rows: Sequence[BookRow]) -> str:
    told = [f"line {row.line}{'' if row.amount is None else f', {row.amount}'}" for row in rows]
    return "; ".join(told) or "nothing"
