"""The clock of a namespace, put forward: each of its partitions, what expires by the server's clock, and no more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from keylane.journal import clock
from keylane.journal.clock import shift_clock
from keylane.journal.errors import SchemaMismatch, WrongKeyType
from keylane.journal.keyspace import registry_key
from keylane.journal.leases import acquire
from keylane.journal.store import Store
from keylane.journal.tenure import VACANT, Acquired
from keylane.journal.types_registry import register_types
from tests.journal.owning import read_due

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
HOUR_MS = 3_600_000
ID = b"0123456789abcdef"


@pytest.fixture
async def store(each_store_url: str, namespace: str) -> AsyncIterator[Store]:
    async with Store(each_store_url, namespace=namespace) as store:
        await register_types(store, {"Order": 3}, {"Order": "tests"})
        await register_types(store, {"Till": 2}, {"Till": "tests"})
        yield store


async def took(store: Store, type_name: str = "Order", number: int = 0, partitions: int = 3) -> Acquired:
    space = store.space(type_name, number)
    acquired = await acquire(store, space, VACANT, partitions=partitions, worker="w", machine="m", lease_seconds=1)
    assert acquired is not None
    return acquired


async def server_ms(store: Store) -> int:
    seconds, microseconds = await store.call("TIME")
    return int(seconds) * 1_000 + int(microseconds) // 1_000


async def left_ms(store: Store, key: bytes) -> int:
    return await store.call("PTTL", key)


def about(expected_ms: float) -> Any:
    """Return what equals a time that a slow machine reads a little later."""
    return pytest.approx(expected_ms, abs=20_000)


async def test_every_partition_of_every_type_is_shifted(store: Store) -> None:
    """Also those that nobody has owned yet, and as often as it is asked for."""
    owned_before = await took(store, "Order", 2)

    await shift_clock(store, HOUR)
    await shift_clock(store, 2 * HOUR)

    assert owned_before.now_ms == about(await server_ms(store))
    for type_name, partitions in (("Order", 3), ("Till", 2)):
        for number in range(partitions):
            space = store.space(type_name, number)
            assert await store.call("HGET", space.owner, "offset") == b"%d" % (3 * HOUR_MS)
    assert (await took(store, "Till", 1, 2)).now_ms == about(await server_ms(store) + 3 * HOUR_MS)


async def test_what_is_due_by_the_shifted_clock_is_due(store: Store) -> None:
    """And an answer about due times says what time it is."""
    space = store.space("Order", 0)
    await took(store)
    await store.call("ZADD", space.due, await server_ms(store) + HOUR_MS, ID)

    before = await read_due(store, space, 10)
    await shift_clock(store, HOUR)
    after = await read_due(store, space, 10)

    assert (before.ids, after.ids) == ([], [ID])
    assert (before.next_in_ms, after.next_in_ms) == (about(HOUR_MS), None)
    assert after.now_ms - before.now_ms == about(HOUR_MS)


async def test_what_expires_does_so_as_much_sooner(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be gone by then is gone, and what does not expire stays; page after page."""
    monkeypatch.setattr(clock, "KEYS_AT_ONCE", 10)
    spaces = [store.space("Order", 0), store.space("Till", 1)]
    for space in spaces:
        for number in range(40):
            await store.call("SET", space.result(b"%016d" % number), b"outcome", "PX", (number + 1) * HOUR_MS)
        await store.call("SET", space.result(ID), b"outcome")

    await shift_clock(store, 20 * HOUR + HOUR / 2)

    for space in spaces:
        left = [await left_ms(store, space.result(b"%016d" % number)) for number in range(40)]
        assert left[:20] == [-2] * 20
        assert left[20:] == [about((number + 1) * HOUR_MS - 20.5 * HOUR_MS) for number in range(20, 40)]
        assert await left_ms(store, space.result(ID)) == -1


@pytest.mark.parametrize("other", ["{name}-2", "{name}:Order", "x{name}", "?" * 17])
async def test_other_namespaces_and_foreign_keys_are_left_alone(
    store: Store, each_store_url: str, namespace: str, other: str
) -> None:
    """Also where their names begin alike, and where a name has the form of a pattern."""
    neighbour = Store(each_store_url, namespace=other.format(name=namespace)).space("Order", 0)
    strangers = [b"{%s:Order:9}:r:1" % namespace.encode(), b"{%s:Other:0}:r:1" % namespace.encode()]
    theirs = [neighbour.result(ID), registry_key(namespace), b"%s:Order:0" % namespace.encode(), *strangers]
    for key in theirs:
        await store.call("SET", key, b"theirs", "PX", 2 * HOUR_MS)
    await store.call("SET", neighbour.owner, b"0", "PX", 2 * HOUR_MS)

    await shift_clock(store, HOUR)

    assert [await left_ms(store, key) for key in theirs] == [about(2 * HOUR_MS)] * len(theirs)
    assert await store.call("GET", neighbour.owner) == b"0"
    for key in (neighbour.owner, *theirs):
        await store.call("DEL", key)


async def test_a_namespace_that_looks_like_a_pattern_is_taken_as_it_is(each_store_url: str, namespace: str) -> None:
    """Its own keys are found, and those that it would match are not."""
    mine, other = f"{namespace}[a]*?\\", f"{namespace}a"
    async with Store(each_store_url, namespace=mine) as store:
        await register_types(store, {"Order": 1}, {"Order": "tests"})
        own, foreign = store.space("Order", 0), Store(each_store_url, namespace=other).space("Order", 0)
        for space in (own, foreign):
            await store.call("SET", space.result(ID), b"outcome", "PX", 2 * HOUR_MS)

        await shift_clock(store, HOUR)

        assert await left_ms(store, own.result(ID)) == about(HOUR_MS)
        assert await left_ms(store, foreign.result(ID)) == about(2 * HOUR_MS)


async def test_time_is_not_put_back(store: Store) -> None:
    """Nothing is changed by the attempt."""
    with pytest.raises(ValueError, match="never goes back"):
        await shift_clock(store, -HOUR)

    assert await store.call("HGET", store.space("Order", 0).owner, "offset") is None


async def test_a_foreign_owner_is_named(store: Store) -> None:
    """It is left alone."""
    owner = store.space("Order", 1).owner
    await store.call("SET", owner, "foreign")

    with pytest.raises(WrongKeyType, match="Order:1"):
        await shift_clock(store, HOUR)

    assert await store.call("GET", owner) == b"foreign"


@pytest.mark.parametrize("where", ["owner", "due"])
async def test_due_times_in_the_place_of_which_something_foreign_stands_are_an_error_of_the_tree(
    store: Store, where: str
) -> None:
    """Whoever asks can name the key, and goes on."""
    space = store.space("Order", 0)
    await took(store)
    key = getattr(space, where)
    await store.call("SET", key, "foreign")

    with pytest.raises(WrongKeyType) as caught:
        await read_due(store, space, 10)

    assert caught.value.key == key.decode()
    assert await store.call("GET", key) == b"foreign"


async def test_due_times_of_another_schema_are_an_error_of_the_tree(store: Store) -> None:
    """As for every other function."""
    space = store.space("Order", 0)
    await took(store)
    await store.call("HSET", space.owner, "schema", "0")

    with pytest.raises(SchemaMismatch, match="Order:0"):
        await read_due(store, space, 10)
