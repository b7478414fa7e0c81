"""What is kept of idle objects once their retention has passed."""

from __future__ import annotations

import asyncio
import typing
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from keylane import (
    InvocationFailed,
    InvocationPaused,
    Runtime,
)
from keylane.journal import operations
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.object_description import What
from keylane.runtime import retention
from keylane.testing import shift_clock
from tests.plain import plain
from tests.runtime.clerks import (
    AFTER_RETENTION,
    KEY,
    aside,
    clerk,
    clerks,
    count,
    count_in_steps,
    count_on,
    entries,
    forget,
    gates,
    histories,
    pass_by,
    read,
    refuse,
    space_of,
    stumble,
    stumble_aside,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime([clerk, aside], store=store_url, namespace=namespace) as runtime:
        yield runtime


def index(url: str, runtime: Runtime) -> list[bytes]:
    return plain(url, "ZRANGE", space_of(runtime).history, 0, -1)


async def test_an_idle_object_shrinks_to_one_snapshot(runtime: Runtime, store_url: str) -> None:
    """After the retention and not before it; its state is what it was, and it is in no index any more."""
    for _ in range(40):
        await runtime.client.call(count, KEY)
    await pass_by(runtime, timedelta(hours=23))
    assert len(entries(store_url, runtime)) == 40
    assert index(store_url, runtime) == [KEY.encode()]

    await pass_by(runtime, timedelta(hours=2))

    assert entries(store_url, runtime) == [[b"s"]]
    assert index(store_url, runtime) == []
    assert await runtime.client.call(read, KEY) == 40
    assert await runtime.client.call(count, KEY) == 41


async def test_an_object_that_is_not_in_memory_shrinks_and_does_not_come_into_it(
    store_url: str, namespace: str
) -> None:
    """The next owner reads what it shrinks and keeps nothing of it."""
    async with Runtime([clerk], store=store_url, namespace=namespace) as first:
        for number in range(200):
            await first.client.call(count, f"acme/o-{number}")
        for _ in range(100):
            await first.client.call(count, "acme/o-0")
    async with Runtime([clerk], store=store_url, namespace=namespace) as second:
        await pass_by(second, AFTER_RETENTION)

        assert all(entries(store_url, second, f"acme/o-{number}") == [[b"s"]] for number in range(200))
        assert index(store_url, second) == []
        assert clerks(second).lanes == {}
        assert not clerks(second).shrinking
        assert await second.client.call(count, "acme/o-0") == 102


async def test_nothing_stays_of_an_idle_object_without_state(runtime: Runtime, store_url: str) -> None:
    """Its stream is gone, whether it never had any state or has none left."""
    with pytest.raises(InvocationFailed):
        await runtime.client.call(refuse, KEY)
    await runtime.client.call(count, "acme/o-2")
    await runtime.client.call(forget, "acme/o-2")

    await pass_by(runtime, AFTER_RETENTION)

    assert plain(store_url, "KEYS", space_of(runtime).object("*").decode()) == []
    assert index(store_url, runtime) == []


async def test_an_object_that_was_used_since_is_looked_at_again_later(runtime: Runtime, store_url: str) -> None:
    """A retention after its last use, and it is entered once for all uses in between."""
    await runtime.client.call(count, KEY)
    await shift_clock(runtime, timedelta(hours=20))
    await runtime.client.call(count, KEY)

    await pass_by(runtime, timedelta(hours=5))
    assert len(entries(store_url, runtime)) == 2
    await pass_by(runtime, timedelta(hours=18))
    assert len(entries(store_url, runtime)) == 2

    await pass_by(runtime, timedelta(hours=2))
    assert entries(store_url, runtime) == [[b"s"]]
    await runtime.client.call(count, KEY)
    assert index(store_url, runtime) == [KEY.encode()]


async def test_an_object_is_entered_once_and_not_with_each_commit(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by an owner that reads the object: what lies in its stream tells that it is in the index."""
    entered = Counter[str]()
    index_history = operations.index_history

    def noted(space: PartitionSpace, key_text: str, delay_ms: int) -> operations.Operation:
        entered[key_text] += 1
        return index_history(space, key_text, delay_ms)

    monkeypatch.setattr(operations, "index_history", noted)
    for _ in range(5):
        await runtime.client.call(count, KEY)
        await runtime.client.call(count_in_steps, KEY)
    partition = clerks(runtime)
    partition.evict(partition.lanes[KEY])
    for _ in range(5):
        await runtime.client.call(count, KEY)

    assert entered == {KEY: 1}


async def test_a_call_that_comes_while_its_object_is_shrunk_is_not_lost(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before the call is not written after it."""
    async with Runtime([clerk], store=store_url, namespace=namespace) as first:
        await first.client.call(count, KEY)
        await first.client.call(count, KEY)
    async with Runtime([clerk], store=store_url, namespace=namespace) as second:
        read_states = retention.read_states

        async def slowly(*arguments: typing.Any) -> typing.Any:
            states = await read_states(*arguments)
            assert await second.client.call(count, KEY) == 3
            partition = clerks(second)
            partition.evict(partition.lanes[KEY])
            return states

        monkeypatch.setattr(retention, "read_states", slowly)
        await shift_clock(second, AFTER_RETENTION)
        await histories(second).sweep()

        assert await second.client.call(read, KEY) == 3
        assert index(store_url, second) == [KEY.encode()]


async def test_history_that_is_written_while_its_object_is_looked_at_is_not_dropped(
    runtime: Runtime, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object in memory is shrunk only if nothing was written since it was found to be idle."""
    await runtime.client.call(count, KEY)
    read_last_writes = retention.read_last_writes

    async def slowly(*arguments: typing.Any) -> typing.Any:
        times = await read_last_writes(*arguments)
        await runtime.client.call(count, KEY)
        return times

    monkeypatch.setattr(retention, "read_last_writes", slowly)
    await shift_clock(runtime, AFTER_RETENTION)
    await histories(runtime).sweep()
    monkeypatch.setattr(retention, "read_last_writes", read_last_writes)

    assert len(entries(store_url, runtime)) == 2
    await pass_by(runtime, AFTER_RETENTION)
    assert entries(store_url, runtime) == [[b"s"]]


async def test_an_owner_that_reads_a_shrunk_object_enters_it_at_its_next_use(runtime: Runtime, store_url: str) -> None:
    """What lies in the store tells that it is in no index."""
    await runtime.client.call(count, KEY)
    await pass_by(runtime, AFTER_RETENTION)
    partition = clerks(runtime)
    partition.evict(partition.lanes[KEY])

    assert await runtime.client.call(read, KEY) == 1
    assert index(store_url, runtime) == []
    assert await runtime.client.call(count, KEY) == 2
    assert index(store_url, runtime) == [KEY.encode()]


async def test_an_object_that_is_called_while_it_is_shrunk_is_shrunk_again_later(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane that comes reads a history that is about to go, and must not think that the index knows of it."""
    async with Runtime([clerk], store=store_url, namespace=namespace) as first:
        await first.client.call(count, KEY)
        await first.client.call(count, KEY)
    async with Runtime([clerk], store=store_url, namespace=namespace) as second:
        shrink = operations.shrink
        called: list[asyncio.Task[int]] = []

        def and_called(
            space: PartitionSpace, key_text: str, values: dict[str, bytes], *_: Any
        ) -> list[operations.Operation]:
            # The lane is made in this turn, behind the commit and before it is applied.
            asyncio.get_running_loop().call_soon(clerks(second).lane, key_text)
            called.append(asyncio.ensure_future(second.client.call(count, KEY)))
            return shrink(space, key_text, values)

        monkeypatch.setattr(operations, "shrink", and_called)
        await shift_clock(second, AFTER_RETENTION)
        await histories(second).sweep()
        monkeypatch.setattr(operations, "shrink", shrink)

        assert await called[0] == 3
        assert index(store_url, second) == [KEY.encode()]
        await pass_by(second, AFTER_RETENTION)
        assert entries(store_url, second) == [[b"s"]]
        assert await second.client.call(read, KEY) == 3


async def test_a_paused_invocation_does_not_keep_the_history_of_its_object(runtime: Runtime, store_url: str) -> None:
    """Its own records lie elsewhere, and it goes on from them."""
    for _ in range(3):
        await runtime.client.call(count, KEY)
    with pytest.raises(InvocationPaused) as paused:
        await runtime.client.call(stumble, KEY)
    waiting = await runtime.client.send(count, KEY)
    await waiting.accepted(timeout=10)

    await pass_by(runtime, AFTER_RETENTION)

    assert entries(store_url, runtime) == [[b"s"]]
    gates[KEY] = asyncio.Event()
    assert paused.value.invocation_id is not None
    await runtime.client.resume(paused.value.invocation_id, by="tests", reason="the gate is open")
    assert await runtime.client.attach(paused.value.invocation_id, int).result(timeout=10) == 4
    assert await waiting.result(timeout=10) == 5
    del gates[KEY]


@pytest.mark.parametrize("is_resident", [True, False])
async def test_an_invocation_beside_its_lane_is_still_found_after_the_retention(
    runtime: Runtime, store_url: str, *, is_resident: bool
) -> None:
    """Nothing but the history of its object leads to it, so what is left of that names it until it ends."""
    client = runtime.client
    (partition,) = (each for each in runtime.worker.partitions if each.space.type_name == "Aside")
    await client.call(count_on, KEY)
    ids: list[str] = []
    for _ in range(2):
        with pytest.raises(InvocationPaused) as paused:
            await client.call(stumble_aside, KEY)
        ids.append(paused.value.invocation_id or "")
    for left in (ids, ids, ids[1:]):
        if not is_resident and KEY in partition.lanes:
            partition.evict(partition.lanes[KEY])
        await pass_by(runtime, AFTER_RETENTION)

        found = await client.inspect("Aside", KEY)
        assert [each.id for each in found.lane.parked] == left
        assert [event.what for event in found.timeline][:1] == [What.SHRUNK]
        assert plain(store_url, "XLEN", partition.space.object(KEY)) == 1
        await client.call(count_on, KEY)
        if left == ids and ids[0] not in gates and await client.call(count_on, KEY) > 4:
            gates[KEY] = asyncio.Event()
            await client.resume(ids[0], by="tests", reason="repaired")
            assert await client.attach(ids[0], int).result(timeout=10) == 1
            del gates[KEY]


async def test_what_can_not_be_read_is_left_alone_and_keeps_nobody_waiting(runtime: Runtime, store_url: str) -> None:
    """A foreign key and a state that is no state: both stay as they are, and others shrink."""
    for name in ("bad", "foreign", "good"):
        await runtime.client.call(count, f"acme/{name}")
    space, partition = space_of(runtime), clerks(runtime)
    for lane in list(partition.lanes.values()):
        partition.evict(lane)
    plain(store_url, "XADD", space.object("acme/bad"), "*", "d", b"\xc1")
    plain(store_url, "DEL", space.object("acme/foreign"))
    plain(store_url, "SET", space.object("acme/foreign"), "mine")

    await pass_by(runtime, AFTER_RETENTION * 2)

    assert entries(store_url, runtime, "acme/good") == [[b"s"]]
    assert len(entries(store_url, runtime, "acme/bad")) == 2
    assert plain(store_url, "GET", space.object("acme/foreign")) == b"mine"
    assert sorted(index(store_url, runtime)) == [b"acme/bad", b"acme/foreign"]
