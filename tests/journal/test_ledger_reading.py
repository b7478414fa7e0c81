"""What anybody may read of effects and proposals, in pages, whatever lies there."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

import pytest

from keylane.journal.agenda import AgendaItem, AgendaKind
from keylane.journal.docket_reading import read_docket
from keylane.journal.effects import EffectState
from keylane.journal.errors import UnknownObject, WrongKeyType
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.ledger import EventKind
from keylane.journal.ledger_reading import (
    ENTRIES_AT_ONCE,
    EVENTS_AT_ONCE,
    MEMBERS_AT_ONCE,
    read_alerts,
    read_ledger,
    read_proposed,
    read_queue,
    spaces_of,
)
from keylane.journal.store import Store
from keylane.journal.types_registry import register_types

from .ledgers import START_MS, effect, event, proposal, put_effect, put_event, put_on, put_proposal

pytestmark = pytest.mark.anyio

T = TypeVar("T")


@pytest.fixture
async def store(store_url: str, namespace: str) -> AsyncGenerator[Store]:
    """Give an open store whose namespace has two object types."""
    async with Store(store_url, namespace=namespace) as store:
        await register_types(store, {"Order": 8, "Customer": 2}, {"Order": "refunds-oncall", "Customer": "crm"})
        yield store


async def _all(pages: AsyncIterator[list[T]]) -> tuple[list[T], int]:
    """Return what pages hold, and the size of the largest."""
    found: list[T] = []
    largest = 0
    async for page in pages:
        found.extend(page)
        largest = max(largest, len(page))
    return found, largest


async def test_a_queue_is_read_over_all_partitions_of_all_types(store: Store) -> None:
    """Each effect comes with its deadline and its entry, wherever its partition lies."""
    spaces = await spaces_of(store)
    assert len(spaces) == 10
    for number, space in enumerate(spaces):
        item = await put_effect(store, space, f"acme/o-{number}", effect("refund-1", state=EffectState.UNRESOLVED))
        await put_on(store, space.queue, item, START_MS + number)
    found, _ = await _all(read_queue(store, spaces))
    assert sorted(each.due_ms for each in found) == [START_MS + number for number in range(10)]
    assert all(each.entry is not None and each.entry.state is EffectState.UNRESOLVED for each in found)
    assert {each.space.type_name for each in found} == {"Order", "Customer"}


async def test_a_long_queue_is_read_in_pages(store: Store) -> None:
    """No turn reads more than a page of entries, and none of them is left out."""
    (space, *_) = await spaces_of(store, "Order")
    count = MEMBERS_AT_ONCE * 2 + 7
    for number in range(count):
        item = await put_effect(store, space, f"acme/o-{number % 9}", effect(f"refund-{number}"))
        await put_on(store, space.queue, item, START_MS)
    found, largest = await _all(read_queue(store, [space]))
    assert {each.item.name for each in found} == {f"refund-{number}" for number in range(count)}
    assert largest <= ENTRIES_AT_ONCE


async def test_what_is_gone_or_unreadable_is_told(store: Store) -> None:
    """A member whose effect is gone, and an effect that can't be read, are told with the reason."""
    (space, *_) = await spaces_of(store, "Order")
    await put_on(store, space.queue, AgendaItem(AgendaKind.EFFECT, "acme/o-1", "gone"), START_MS)
    await put_on(store, space.queue, AgendaItem(AgendaKind.EFFECT, "acme/o-1", "garbage"), START_MS)
    await store.call("HSET", space.effects("acme/o-1"), "garbage", b"\xc1")
    await store.call("ZADD", space.queue, 1, b"garbage")
    found, _ = await _all(read_queue(store, [space]))
    problems = {each.item.name: each.problem for each in found}
    assert problems["gone"] == "it is not there any more"
    assert problems["garbage"]
    assert all(each.entry is None for each in found)


async def test_open_proposals_are_read_with_their_expiry(store: Store) -> None:
    """A proposal of the agenda's other kind is not taken for an effect, nor the other way round."""
    (space, *_) = await spaces_of(store, "Order")
    item = await put_proposal(store, space, "acme/o-1", proposal(version=3))
    await put_on(store, space.proposed, item, START_MS + 5)
    await put_on(store, space.proposed, AgendaItem(AgendaKind.EFFECT, "acme/o-1", "refund-1"), START_MS)
    (only,), _ = await _all(read_proposed(store, [space]))
    assert (only.item.name, only.due_ms) == ("refund.3", START_MS + 5)
    assert only.entry is not None
    assert only.entry.version == 3


async def test_a_ledger_is_read_page_by_page(store: Store) -> None:
    """All of it, and in order."""
    spaces = await spaces_of(store, "Order")
    count = EVENTS_AT_ONCE + 10
    for number in range(count):
        told = event("acme/o-1", f"refund-{number}", EventKind.SUCCEEDED, START_MS + number)
        await put_event(store, spaces[0].ledger, told)
    await put_event(store, spaces[1].ledger, event("acme/o-2", "other", EventKind.UNKNOWN, START_MS + 3))
    found, largest = await _all(read_ledger(store, spaces))
    first = [each for each in found if each.space == spaces[0]]
    assert [each.at_ms for each in first] == list(range(START_MS, START_MS + count))
    assert len(found) == len(first) + 1
    assert largest <= EVENTS_AT_ONCE + 1
    assert all(each.event is not None for each in found)


async def test_alerts_go_on_behind_the_last_one_read(store: Store) -> None:
    """Who remembers the last entry of each partition hears of each alert once."""
    spaces = await spaces_of(store, "Order")
    await put_event(store, spaces[0].alerts, event("acme/o-1", "refund-1", EventKind.OVERDUE))
    first, _ = await _all(read_alerts(store, spaces))
    after = {each.space: each.entry_id for each in first}
    await put_event(store, spaces[0].alerts, event("acme/o-1", "refund-2", EventKind.OVERDUE, START_MS + 1))
    await put_event(store, spaces[3].alerts, event("acme/o-3", "refund-3", EventKind.OVERDUE, START_MS - 1))
    later, _ = await _all(read_alerts(store, spaces, after))
    subjects = [each.event.subject for each in later if each.event is not None]
    assert sorted(subjects) == ["refund-2", "refund-3"]


async def test_a_docket_holds_all_that_can_be_read_of_an_object(store: Store) -> None:
    """Effects and proposals come in the order in which they began; what can't be read is named."""
    (space, *_) = await spaces_of(store, "Order")
    await put_effect(store, space, "acme/o-1", effect("later", first_ms=START_MS + 1))
    await put_effect(store, space, "acme/o-1", effect("earlier"))
    await put_proposal(store, space, "acme/o-1", proposal(version=2))
    await store.call("HSET", space.effects("acme/o-1"), "bad", b"\xc1")
    docket = await read_docket(store, space, "acme/o-1")
    assert [each.operation for each in docket.effects] == ["earlier", "later"]
    assert [each.version for each in docket.proposals] == [2]
    assert len(docket.problems) == 1
    assert docket.problems[0].startswith("bad: ")
    assert await read_docket(store, space, "acme/other") == type(docket)()


async def test_what_is_not_there_is_named(store: Store, namespace: str) -> None:
    """A type that the namespace lacks, and a foreign key in a ledger's place, are errors that name them."""
    with pytest.raises(UnknownObject):
        await spaces_of(store, "Parcel")
    space = PartitionSpace(namespace, "Order", 0)
    await store.call("SET", space.ledger, "foreign")
    with pytest.raises(WrongKeyType):
        await _all(read_ledger(store, [space]))
