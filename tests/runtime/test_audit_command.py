"""`keylane audit`, as its users run it: the exit code is the verdict."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from keylane.journal.effects import EffectState
from keylane.journal.ledger import EventKind
from keylane.journal.ledger_reading import spaces_of
from keylane.journal.receivers_registry import ReceiverCard, register_receivers
from keylane.journal.store import Store
from keylane.journal.types_registry import register_types
from keylane.runtime.cli.auditing import Books, read_books
from keylane.runtime.cli.shell import WrongUse
from tests.journal.ledgers import START_MS, effect, event, put_effect, put_event, put_on
from tests.runtime.shell_command import Done, run

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"


@pytest.fixture
async def store(store_url: str, namespace: str) -> AsyncGenerator[Store]:
    """Give an open store whose namespace has an object type and a receiver."""
    async with Store(store_url, namespace=namespace) as store:
        await register_types(store, {"Order": 2}, {"Order": "refunds-oncall"})
        await register_receivers(store, [ReceiverCard("payments", "payments-oncall")])
        yield store


async def _paid(store: Store, operation: str, amount: str, state: EffectState = EffectState.SUCCEEDED) -> None:
    space = (await spaces_of(store))[1]
    entry = effect(operation, {"amount": Decimal(amount)}, state)
    item = await put_effect(store, space, KEY, entry)
    kind = EventKind.SUCCEEDED if state is EffectState.SUCCEEDED else EventKind.QUEUED
    await put_event(store, space.ledger, event(KEY, operation, kind, START_MS + len(operation)))
    if state is EffectState.UNRESOLVED:
        await put_on(store, space.queue, item, 10 * START_MS)


async def _audit(store: Store, store_url: str, path: Path, *more: str) -> Done:
    words = ("audit", "--receiver", "payments", "--against", str(path), "--json", *more)
    command = partial(run, *words, "--store", store_url, "--namespace", store.namespace)
    return await anyio.to_thread.run_sync(command)


def _id(store: Store, operation: str) -> str:
    return f"{store.namespace}.Order.{KEY}.{operation}"


async def test_books_that_agree_are_clean(store: Store, store_url: str, tmp_path: Path) -> None:
    """Each operation under the id that the receiver sees, with its amount in cents: exit code 0."""
    await _paid(store, "a", "40.00")
    await _paid(store, "bb", "2.5")
    books = tmp_path / "books.csv"
    books.write_text(f"id,cents,kind\n{_id(store, 'a')},4000,refund\n{_id(store, 'bb')},250,refund\nfee-1,30,fee\n")
    amounts = ("--amount-column", "cents", "--amount-field", "amount", "--scale", "2")
    done = await _audit(store, store_url, books, "--id-column", "id", "--only", "kind=refund", *amounts)
    assert (done.code, done.json["is_clean"], done.json["matched"]) == (0, True, 2)
    assert Decimal(done.json["matched_amount"]) == Decimal("42.50")


async def test_each_disagreement_is_named(store: Store, store_url: str, tmp_path: Path) -> None:
    """What only one side has, what is there twice, what has another amount, and what is in question: exit code 1."""
    await _paid(store, "a", "40.00")
    await _paid(store, "bb", "2.50")
    await _paid(store, "ccc", "1.00")
    await _paid(store, "dddd", "9.00", EffectState.UNRESOLVED)
    rows = [(_id(store, "bb"), "2.49"), (_id(store, "ccc"), "1.00"), (_id(store, "ccc"), "1.00"), ("foreign", "7")]
    books = tmp_path / "books.csv"
    books.write_text("\n".join(["operation_id,amount", *(f"{name},{amount}" for name, amount in rows)]) + "\n")
    done = await _audit(store, store_url, books, "--amount-column", "amount", "--amount-field", "amount")
    told = done.json
    assert done.code == 1
    assert [each["operation_id"] for each in told["ours_only"]] == [_id(store, "a")]
    assert [each["operation_id"] for each in told["different"]] == [_id(store, "bb")]
    assert [[row["line"] for row in each["theirs"]] for each in told["duplicate"]] == [[3, 4]]
    assert [each["operation_id"] for each in told["theirs_only"]] == ["foreign"]
    assert [each["ours"]["state"] for each in told["unresolved"]] == ["unresolved"]
    assert told["unresolved"][0]["theirs"] == []


async def test_what_lies_with_people_may_be_allowed(store: Store, store_url: str, tmp_path: Path) -> None:
    """An effect in the queue is a finding, unless it is said that its owner has time left."""
    await _paid(store, "a", "40.00", EffectState.UNRESOLVED)
    books = tmp_path / "books.csv"
    books.write_text("operation_id\n")
    assert (await _audit(store, store_url, books)).code == 1
    assert (await _audit(store, store_url, books, "--allow-queued")).code == 0


async def test_books_that_can_not_be_read_are_no_verdict(store: Store, store_url: str, tmp_path: Path) -> None:
    """A missing column, an amount that is none and an unknown receiver are wrong use, with what was found instead."""
    books = tmp_path / "books.csv"
    books.write_text('operation_id,amount\na,"1.000,50"\n')
    with pytest.raises(WrongUse, match="its columns are operation_id, amount"):
        list(read_books(Books(books, id_column="id")))
    with pytest.raises(WrongUse, match="line 2"):
        list(read_books(Books(books, amount_column="amount")))
    with pytest.raises(WrongUse, match="in which zone"):
        list(read_books(Books(_written(tmp_path, "operation_id,at\na,2026-03-01T12:00:00\n"), time_column="at")))
    with pytest.raises(WrongUse, match="unexpected end of data"):
        list(read_books(Books(_written(tmp_path, 'operation_id\n"a\nb\n'))))
    with pytest.raises(WrongUse, match="line 3: it has more values"):
        list(read_books(Books(_written(tmp_path, "operation_id,amount\na,1,\nb,1,50\n"), amount_column="amount")))
    with pytest.raises(WrongUse, match="several columns 'amount'"):
        list(read_books(Books(_written(tmp_path, "operation_id,amount,amount\na,1,2\n"), amount_column="amount")))
    with pytest.raises(WrongUse, match="column=value"):
        list(read_books(Books(books, only=["amount"])))
    done = await _audit(store, store_url, books, "--receiver", "banks")
    assert (done.code, "there are payments" in done.err) == (2, True)


@pytest.mark.parametrize("text", [f"40.{'0' * 40}1", f"1{'0' * 40}.5", "1E+999999999", "1E-999999999"])
def test_an_amount_of_the_books_is_exact_whatever_its_size(tmp_path: Path, text: str) -> None:
    """It is neither rounded to what we have nor too large to be compared."""
    books = _written(tmp_path, f"operation_id,amount\na,{text}\n")
    (plain,) = read_books(Books(books, amount_column="amount"))
    (scaled,) = read_books(Books(books, amount_column="amount", scale=2))
    assert plain.amount == Decimal(text)
    assert scaled.amount not in (None, plain.amount)
    assert plain.amount not in (Decimal(40), Decimal(f"1{'0' * 40}"))


def _written(folder: Path, text: str) -> Path:
    path = folder / "other.csv"
    path.write_text(text)
    return path


async def test_a_span_may_begin_and_end_with_the_calendar(store: Store, store_url: str, tmp_path: Path) -> None:
    """The first and the last moment of all are times, in each zone."""
    books = tmp_path / "books.csv"
    books.write_text("operation_id\n")
    span = ("--from", "0001-01-01T00:00:00+14:00", "--to", "9999-12-31T23:59:59-14:00")

    done = await _audit(store, store_url, books, *span)

    assert (done.code, done.err) == (0, "")


async def test_a_span_that_ends_before_it_begins_is_wrong_use(store: Store, store_url: str, tmp_path: Path) -> None:
    """All that is known would lie outside, and books that differ would be called clean."""
    await _paid(store, "a", "40.00")
    books = tmp_path / "books.csv"
    books.write_text("operation_id\n")
    late, early = datetime.fromtimestamp(START_MS / 1000 + 60, UTC), datetime.fromtimestamp(START_MS / 1000 - 60, UTC)

    done = await _audit(store, store_url, books, "--from", late.isoformat(), "--to", early.isoformat())

    assert (done.code, "--from has to lie before --to" in done.err) == (2, True)
