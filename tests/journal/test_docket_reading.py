"""How much is read of an object with very many effects: a page at a time, and nothing that was not asked for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from keylane import Client
from keylane.journal.docket_reading import DOCKET_MAX, ENTRIES_AT_ONCE, read_docket, read_effects_of
from keylane.journal.effects import EffectState
from keylane.journal.key import Key
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.reading import inspect
from keylane.journal.store import Store
from keylane.journal.types_registry import register_types
from keylane.runtime import docket as owners
from tests.runtime.shell_command import run

from .ledgers import START_MS, effect, proposal, put_effect, put_proposal

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
#: A server gives all that hashes to the places of a table that it passes, a few more than it was asked for.
LEEWAY = 2
#: More entries than one command brings to an owner.
PAGE_MAX = 512


class Reads:
    """What was read of hashes: the key, and how many entries came."""

    def __init__(self) -> None:
        self.scans: list[tuple[bytes, int]] = []
        self.turns = 0

    def note(self, commands: Sequence[tuple[Any, ...]], replies: Sequence[Any]) -> None:
        self.turns += 1
        for command, reply in zip(commands, replies, strict=True):
            if command[0] in ("HSCAN", "HGETALL"):
                flat = reply[1] if command[0] == "HSCAN" else reply
                self.scans.append((command[1], len(flat) // 2))

    def of(self, key: bytes) -> list[int]:
        """How many entries of a hash each command has brought."""
        return [count for name, count in self.scans if name == key]


@pytest.fixture
async def store(store_url: str, namespace: str) -> AsyncGenerator[Store]:
    """Give an open store whose namespace has an object type."""
    async with Store(store_url, namespace=namespace) as store:
        await register_types(store, {"Order": 1}, {"Order": "refunds-oncall"})
        yield store


@pytest.fixture
def space(namespace: str) -> PartitionSpace:
    return PartitionSpace(namespace, "Order", 0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Note what is read from now on."""
    seen, together = Reads(), Store.together

    async def noted(self: Store, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        replies = await together(self, commands)
        seen.note(commands, replies)
        return replies

    monkeypatch.setattr(Store, "together", noted)
    return seen


async def fill(store: Store, space: PartitionSpace, count: int) -> None:
    """Write so many settled effects of an object, and a proposal."""
    entries = [effect(f"refund-{number}", first_ms=START_MS + number) for number in range(count)]
    await store.call(
        "HSET", space.effects(KEY), *(word for each in entries for word in (each.operation, each.encode()))
    )
    await put_proposal(store, space, KEY, proposal())


async def test_an_owner_reads_all_of_a_docket_and_a_page_at_a_time(
    store: Store, space: PartitionSpace, reads: Reads
) -> None:
    """However many effects there are, no command brings more of them, and no turn of the loop decodes more."""
    await fill(store, space, 5_000)
    found = await owners.read_docket(store, space, KEY)
    assert set(found.effects) == {f"refund-{number}" for number in range(5_000)}
    assert set(found.proposals) == {"refund.1"}
    assert max(reads.of(space.effects(KEY))) <= PAGE_MAX
    assert len(reads.of(space.proposals(KEY))) == 1


async def test_an_owner_reads_a_small_docket_in_one_turn(store: Store, space: PartitionSpace, reads: Reads) -> None:
    """Pages cost nothing where there is one."""
    await fill(store, space, 20)
    found = await owners.read_docket(store, space, KEY)
    assert (len(found.effects), len(found.proposals), reads.turns) == (20, 1, 1)


async def test_who_asks_for_proposals_reads_no_effect(
    store: Store, space: PartitionSpace, store_url: str, namespace: str, reads: Reads
) -> None:
    """The approvals of an object are few, and its settled effects many."""
    await fill(store, space, 1_000)
    async with Client(store_url, namespace=namespace) as client:
        (only,) = await client.approvals("Order", KEY)
    assert only.id == f"Order/{KEY}#refund.1"
    assert reads.of(space.effects(KEY)) == []
    assert reads.of(space.proposals(KEY)) == [1]


async def test_who_asks_for_effects_reads_as_many_as_are_wanted(
    store: Store, space: PartitionSpace, store_url: str, namespace: str, reads: Reads
) -> None:
    """And none of the proposals."""
    await fill(store, space, 1_000)
    async with Client(store_url, namespace=namespace) as client:
        found = await client.effects("Order", KEY, limit=10)
    assert 10 <= len(found) == sum(reads.of(space.effects(KEY))) <= 10 * LEEWAY
    assert reads.of(space.proposals(KEY)) == []


async def test_a_story_reads_each_effect_once(
    store: Store, space: PartitionSpace, store_url: str, namespace: str, reads: Reads
) -> None:
    """What is not settled is told of the same reading."""
    await fill(store, space, 300)
    await put_effect(store, space, KEY, effect("open", state=EffectState.UNRESOLVED))
    async with Client(store_url, namespace=namespace) as client:
        story = await client.explain("Order", KEY)
    assert [each.is_uncertain for each in story.matters] == [True, False]
    assert sum(reads.of(space.effects(KEY))) == 301
    assert max(reads.of(space.effects(KEY))) <= ENTRIES_AT_ONCE * LEEWAY


async def test_what_is_told_of_an_object_says_where_not_all_was_looked_at(
    store: Store, space: PartitionSpace, reads: Reads
) -> None:
    """So nobody takes it for certain that nothing is open."""
    await fill(store, space, DOCKET_MAX * 2)
    cut = await inspect(store, space, Key.parse(KEY))
    assert cut.is_docket_cut
    assert DOCKET_MAX <= sum(reads.of(space.effects(KEY))) <= DOCKET_MAX + ENTRIES_AT_ONCE * LEEWAY
    await store.call("DEL", space.effects(KEY))
    await fill(store, space, 100)
    assert not (await inspect(store, space, Key.parse(KEY))).is_docket_cut


async def test_the_command_says_it_too(store: Store, space: PartitionSpace, store_url: str, namespace: str) -> None:
    """Below what it has seen that is open."""
    await fill(store, space, DOCKET_MAX * 2)
    told = run("inspect", "Order", KEY, "--store", store_url, "--namespace", namespace)
    assert "it has more effects or proposals than were looked at" in told.out


async def test_a_reading_that_reached_the_end_is_not_cut(store: Store, space: PartitionSpace) -> None:
    """Also where there are as many as are wanted."""
    await fill(store, space, 10)
    assert not (await read_effects_of(store, space, KEY, limit=10)).is_cut
    assert not (await read_docket(store, space, KEY)).is_cut
