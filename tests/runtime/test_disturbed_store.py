"""A worker whose store is not as it left it: somebody else's keys in its place, or confirmed writes that are gone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from keylane import KeylaneError, Runtime, Settings, StoreUnavailable
from keylane.journal.doctor.checkup import Plan, check_up
from keylane.journal.due import Due, Indexed, read_all_due
from keylane.journal.key import new_invocation_id, parse_id, partition_of
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.store import Store
from keylane.runtime import agenda
from keylane.runtime.partition import Phase
from tests.faults.harness import eventually
from tests.objects_catalogue import add, add_and_hold, app, counter, get
from tests.plain import plain

pytestmark = pytest.mark.anyio

KEY, OTHER = "acme/o-1", "acme/o-2"
#: A partition that is given up is taken again when its lease has run out.
BRISK = Settings(lease_seconds=0.6, renewal_seconds=0.1, sweep_seconds=0.1, drain_limit_seconds=0.5)


@pytest.fixture
def space(namespace: str) -> PartitionSpace:
    assert partition_of(KEY, BRISK.partitions) != partition_of(OTHER, BRISK.partitions)
    return PartitionSpace(namespace, counter.name, partition_of(KEY, BRISK.partitions))


async def test_a_foreign_key_in_the_place_of_due_times_stops_nobody(
    store_url: str, namespace: str, space: PartitionSpace, caplog: pytest.LogCaptureFixture
) -> None:
    """The partition says what it can't read, and calls that need no due time are answered, in it and elsewhere."""
    plain(store_url, "SET", space.due, "foreign")
    async with Runtime(app, store=store_url, namespace=namespace, settings=BRISK) as runtime:
        await eventually(lambda: space.due.decode() in caplog.text, "it is said")
        for key in (KEY, OTHER):
            assert await runtime.client.call(add, key, 1, timeout=10) == 1

    assert next(record.levelno for record in caplog.records if space.due.decode() in record.message) == logging.ERROR
    assert plain(store_url, "GET", space.due) == b"foreign"


async def test_a_foreign_key_in_the_place_of_records_keeps_nobody_else_from_beginning(
    store_url: str, namespace: str, space: PartitionSpace
) -> None:
    """What fell due together with it begins in time; it begins itself once the key is gone."""
    keys = [f"acme/{number}" for number in range(100)]
    keys = [key for key in keys if partition_of(key, BRISK.partitions) == space.number][:5]
    async with Runtime(app, store=store_url, namespace=namespace, settings=BRISK) as runtime:
        handles = [await runtime.client.send(add, key, 1, delay=0.5) for key in keys]
        stream = space.invocation(parse_id(handles[1].id).raw)
        await eventually(lambda: plain(store_url, "EXISTS", stream), "it is taken in")
        plain(store_url, "RENAME", stream, stream + b":away")
        plain(store_url, "SET", stream, "foreign")

        for handle in (handles[0], *handles[2:]):
            assert await handle.result(timeout=10) == 1
        plain(store_url, "RENAME", stream + b":away", stream)
        assert await handles[1].result(timeout=10) == 1


async def test_what_names_nothing_in_an_index_keeps_nothing_else_in_it(
    store_url: str, namespace: str, space: PartitionSpace
) -> None:
    """It is taken out, and histories are shrunk and large values deleted as ever, in all partitions."""
    plain(store_url, "ZADD", space.history, 1, b"\xff", 1, "no key")
    plain(store_url, "ZADD", space.blob_index, 1, b"\xff", 1, "no key", 1, b"no key\0" + bytes(16))
    async with Runtime(app, store=store_url, namespace=namespace, settings=BRISK) as runtime:
        await runtime.worker.shrink_histories()
        await runtime.worker._blob_sweep.sweep()
        for index in (space.history, space.blob_index):
            await eventually(lambda index=index: not plain(store_url, "EXISTS", index), "it is empty")


async def test_an_idempotency_key_that_can_not_be_read_stops_no_lane(
    store_url: str, namespace: str, space: PartitionSpace, tmp_path: Path
) -> None:
    """The next owner goes on with what was called under it."""
    gate = tmp_path / "gate"
    async with Runtime(app, store=store_url, namespace=namespace, settings=BRISK) as runtime:
        held = await runtime.client.send(add_and_hold, KEY, str(gate), idempotency_key="one")
        await held.accepted(timeout=10)
    (claims,) = plain(store_url, "KEYS", space.tag.replace(b"{", b"\\{") + b":k:*")
    for digest in plain(store_url, "HKEYS", claims):
        plain(store_url, "HSET", claims, digest, "junk")
    gate.touch()

    async with Runtime(app, store=store_url, namespace=namespace, settings=BRISK) as runtime:
        assert await runtime.client.attach(held.id).result(timeout=10) == 1
        assert await runtime.client.call(add, KEY, 1, timeout=10) == 2


async def test_a_due_time_without_end_is_looked_at_like_any_other(
    store_url: str, namespace: str, space: PartitionSpace
) -> None:
    """The doctor reads it as one that lies very far ahead."""
    async with Runtime(app, store=store_url, namespace=namespace, settings=BRISK) as runtime:
        assert await runtime.client.call(add, KEY, 1, timeout=10) == 1
        plain(store_url, "ZADD", space.due, "inf", new_invocation_id(), "-inf", new_invocation_id())
        report = await check_up(runtime.client.store, Plan(BRISK.lease_seconds))
        assert report.looked.is_whole
        assert "due-time-orphaned" in [finding.kind.value for finding in report.findings]


async def test_agendas_that_no_server_answers_for_are_asked_for_again_and_are_no_alarm(
    store_url: str, namespace: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each partition's is away with its server; what else a worker says of that is enough."""
    asked: list[int] = []

    async def away_at_first(
        store: Store, spaces: Sequence[PartitionSpace], limit: int, what: Indexed
    ) -> list[Due | KeylaneError]:
        asked.append(len(spaces))
        if len(asked) == 1:
            return [StoreUnavailable(store_url, "connection refused") for _ in spaces]
        return await read_all_due(store, spaces, limit, what)

    monkeypatch.setattr(agenda, "read_all_due", away_at_first)
    caplog.set_level(logging.INFO)
    async with Runtime(app, store=store_url, namespace=namespace, settings=BRISK):
        await eventually(lambda: sum(asked[1:]) >= asked[0] if asked else False, "it is asked again")

    assert "its agenda is not readable now: connection refused" in caplog.text
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_an_owner_whose_confirmed_writes_are_gone_begins_anew_from_what_there_is(
    store_url: str, namespace: str, space: PartitionSpace, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a crash of a server that syncs late: what callers see then is what the store holds, not what was."""
    async with Runtime(app, store=store_url, namespace=namespace, settings=BRISK) as runtime:
        assert [await runtime.client.call(add, KEY, 1) for _ in range(3)] == [1, 2, 3]
        lose_the_last_batch(store_url, space)

        assert await runtime.client.call(add, KEY, 1, timeout=10) == 3
        assert await runtime.client.call(get, KEY, timeout=10) == 3
        assert await runtime.client.call(add, OTHER, 1, timeout=10) == 1

    assert "the store has lost writes" in caplog.text


async def test_an_owner_serves_no_reads_once_it_knows_that_writes_are_gone(
    store_url: str, namespace: str, space: PartitionSpace
) -> None:
    """Also where it learns it from a commit that belongs to no lane: its memory is ahead of the store."""
    async with Runtime(app, store=store_url, namespace=namespace, settings=BRISK) as runtime:
        assert [await runtime.client.call(add, KEY, 1) for _ in range(3)] == [1, 2, 3]
        lose_the_last_batch(store_url, space)
        (partition,) = [each for each in runtime.worker.partitions if each.space.tag == space.tag]

        partition.forget_due(b"0123456789abcdef")
        await eventually(lambda: partition.writer.lost is not None, "the store is found to have lost writes")

        assert await runtime.client.call(get, KEY, timeout=10) == 2
        await eventually(lambda: partition.phase is Phase.LOST, "the partition is given up")
        assert await runtime.client.call(add, KEY, 1, timeout=10) == 3


def lose_the_last_batch(url: str, space: PartitionSpace) -> None:
    """Take back the last batch of a partition, which wrote one entry of the object's stream."""
    ((newest, _),) = plain(url, "XREVRANGE", space.object(KEY), "+", "-", "COUNT", 1)
    plain(url, "XDEL", space.object(KEY), newest)
    for name in ("batch", "serial"):
        plain(url, "HINCRBY", space.owner, name, -1)
