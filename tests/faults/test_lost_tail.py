"""A store that has lost the end of what it had confirmed: noticed, reported, written down, and never served from."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from keylane import Client, Runtime, StoreUnavailable
from keylane.journal.key import partition_of
from keylane.journal.keyspace import PartitionSpace, durability_key, types_key
from keylane.journal.safety import ServerFacts
from keylane.objects.settings import Settings
from keylane.runtime import newcomers
from keylane.runtime.partition import Partition, Phase
from tests.objects_catalogue import add, app, both, get, set_both
from tests.runtime.shell_command import run

from .aof import aof_bytes, cut_aof
from .harness import StoreServer, eventually, eventually_answers
from .worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

KEY = "acme/one"
#: So many partitions, and so many keys in them, that each of two workers has some by chance.
PARTITIONS = 16
MANY_KEYS = [f"acme/{number}" for number in range(32)]
FAST = Settings(lease_seconds=0.6, renewal_seconds=0.15, sweep_seconds=0.2, partitions=PARTITIONS, doubt_seconds=30.0)


@pytest.fixture
def weak_server() -> Iterator[StoreServer]:
    """A server that syncs once a second."""
    with StoreServer(None, "--appendfsync", "everysec") as server:
        yield server


@asynccontextmanager
async def hosting(server: StoreServer, namespace: str) -> AsyncGenerator[Runtime]:
    async with Runtime(app, store=server.url, namespace=namespace, durability="server", settings=FAST) as runtime:
        yield runtime


@pytest.fixture
async def runtime(weak_server: StoreServer, namespace: str) -> AsyncIterator[Runtime]:
    async with hosting(weak_server, namespace) as runtime:
        yield runtime


def space_of(namespace: str, key: str = KEY) -> PartitionSpace:
    return PartitionSpace(namespace, "Counter", partition_of(key, PARTITIONS))


def field(server: StoreServer, namespace: str, name: str, key: str = KEY) -> str | None:
    value = server.ask("HGET", space_of(namespace, key).owner, name)
    return None if value is None else value.decode()


def partition(runtime: Runtime, key: str = KEY) -> Partition | None:
    """Return the partition of a key, once it is open."""
    space = space_of(runtime.namespace, key)
    held = [each for each in runtime.worker.partitions if each.space == space and each.phase is Phase.OPEN]
    return held[0] if held else None


def epoch(runtime: Runtime, key: str = KEY) -> int:
    held = partition(runtime, key)
    return 0 if held is None else held.tenure.epoch


async def lose_tail(runtime: Runtime, server: StoreServer) -> None:
    """Count to 3, and have the store forget 3."""
    for value in (1, 2):
        assert await runtime.client.call(add, KEY, 1, timeout=10) == value
    kept_bytes = aof_bytes(server)
    assert await runtime.client.call(add, KEY, 1, timeout=10) == 3
    assert aof_bytes(server) > kept_bytes + 100
    server.kill()
    assert cut_aof(server, kept_bytes + 100) > 0
    server.start()


async def test_a_living_owner_notices_what_is_lost_and_serves_nothing_of_it(
    runtime: Runtime, weak_server: StoreServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on from what the store has, in another history, with the span of the loss written down."""
    history = (partition(runtime) or pytest.fail("not owned")).history
    with caplog.at_level(logging.ERROR, "keylane.ownership"):
        await lose_tail(runtime, weak_server)
        await eventually(lambda: epoch(runtime) == 2, "the partition was acquired anew")
        held = partition(runtime)
        assert held is not None

        assert await runtime.client.call(get, KEY, timeout=10) == 2
        assert await runtime.client.call(add, KEY, 10, timeout=10) == 12
        await eventually(lambda: "the store has lost the end of this history" in caplog.text, "it is reported")

    assert "batch 3 was confirmed, and it has 2" in caplog.text
    assert held.history != history
    assert field(weak_server, namespace, "history") == held.history
    assert field(weak_server, namespace, "losses") == "1"
    assert held.in_doubt(held.now_ms())
    assert not held.in_doubt(held.now_ms() + 60_000)
    told = await runtime.client.inspect("Counter", KEY)
    assert (told.owner.doubt_why, told.owner.losses) == ("lost", 1)
    assert told.owner.doubt_from is not None
    assert told.owner.doubt_from < told.read_at


async def test_without_new_tenures_on_another_server_its_test_fails(
    weak_server: StoreServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that goes on from its memory is noticed."""
    monkeypatch.setattr(Partition, "is_on_its_server", go_on)
    async with hosting(weak_server, namespace) as runtime:
        await lose_tail(runtime, weak_server)
        await eventually_answers(lambda: answers(runtime), "the store is back")

        assert await runtime.client.call(get, KEY, timeout=10) == 3


def go_on(partition: Partition) -> bool:
    del partition
    return True


async def answers(runtime: Runtime) -> bool:
    try:
        return await runtime.client.store.call("PING") == b"PONG"
    except StoreUnavailable:
        return False


async def test_a_read_that_is_under_way_tells_nothing_that_is_lost(
    runtime: Runtime, weak_server: StoreServer, tmp_path: Path
) -> None:
    """It has begun on values that are gone when it ends: it runs again on what is left."""
    gate = tmp_path / "gate"
    answers: list[list[int]] = []

    async def read() -> None:
        answers.append(await runtime.client.call(both, KEY, str(gate), timeout=20))

    await runtime.client.call(set_both, KEY, 1, timeout=10)
    kept_bytes = aof_bytes(weak_server)
    await runtime.client.call(set_both, KEY, 2, timeout=10)
    async with anyio.create_task_group() as reads:
        reads.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        weak_server.kill()
        cut_aof(weak_server, kept_bytes)
        weak_server.start()
        await eventually(lambda: reacquired(runtime, "Pair"), "the partition was acquired anew")
        gate.touch()

    assert answers == [[1, 1]]


def reacquired(runtime: Runtime, type_name: str) -> bool:
    number = partition_of(KEY, PARTITIONS)
    held = [each for each in runtime.worker.partitions if (each.space.type_name, each.number) == (type_name, number)]
    return bool(held) and held[0].tenure.epoch == 2


async def test_lost_invocations_that_are_known_are_named(
    runtime: Runtime, weak_server: StoreServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that came through the inbox within the last minute are remembered."""
    async with Client(weak_server.url, namespace=namespace) as client:
        kept = await client.send(add, KEY, 1)
        await kept.result(timeout=10)
        kept_bytes = aof_bytes(weak_server)
        lost = await client.send(add, KEY, 1)
        await lost.result(timeout=10)
    weak_server.kill()
    cut_aof(weak_server, kept_bytes)
    with caplog.at_level(logging.ERROR, "keylane.ownership"):
        weak_server.start()
        await eventually(lambda: lost.id in caplog.text, "the lost one is named")

    assert kept.id not in caplog.text
    assert await runtime.client.call(get, KEY, timeout=10) == 1


async def test_a_restart_that_loses_nothing_costs_a_tenure_and_no_doubt(
    runtime: Runtime, weak_server: StoreServer, namespace: str
) -> None:
    """What its owner knows to be whole is not in doubt, whatever the server promises."""
    assert await runtime.client.call(add, KEY, 1, timeout=10) == 1
    weak_server.kill()
    weak_server.start()
    await eventually(lambda: epoch(runtime) == 2, "the partition was acquired anew")

    assert await runtime.client.call(add, KEY, 1, timeout=10) == 2
    assert field(weak_server, namespace, "doubt_from") is None
    assert field(weak_server, namespace, "losses") is None


async def test_an_owner_does_not_wait_for_its_own_lease(own_server: StoreServer, namespace: str) -> None:
    """A restart of the store costs a moment and not a lease, however long that is."""
    patient = Settings(lease_seconds=120.0, renewal_seconds=1.0, partitions=PARTITIONS)
    async with Runtime(app, store=own_server.url, namespace=namespace, settings=patient) as runtime:
        assert await runtime.client.call(add, KEY, 1, timeout=10) == 1
        own_server.kill()
        own_server.start()

        await eventually(lambda: epoch(runtime) == 2, "the partition was acquired anew", seconds=30)
        assert await runtime.client.call(add, KEY, 1, timeout=10) == 2


async def test_a_batch_that_does_not_follow_ends_the_history_too(
    runtime: Runtime, weak_server: StoreServer, namespace: str
) -> None:
    """Where nothing else has shown that the store has less, the next commit does."""
    for value in (1, 2, 3):
        assert await runtime.client.call(add, KEY, 1, timeout=10) == value
    stream = space_of(namespace).object(KEY)
    [(newest, _)] = weak_server.ask("XREVRANGE", stream, "+", "-", "COUNT", 1)
    weak_server.ask("XDEL", stream, newest)
    weak_server.ask("HSET", space_of(namespace).owner, "batch", 2, "serial", 2)

    assert await runtime.client.call(add, KEY, 10, timeout=10) == 12
    assert field(weak_server, namespace, "losses") == "1"
    assert epoch(runtime) == 2


async def test_with_a_dead_owner_the_lost_tail_is_suspected(weak_server: StoreServer, namespace: str) -> None:
    """Owner and tail are lost together: the next owner knows only that the server is another one."""
    settings = {"partitions": PARTITIONS, "doubt_seconds": 30}
    with WorkerProcess(weak_server.url, namespace, settings=settings, durability="server") as worker:
        await worker.ready()
        async with Client(weak_server.url, namespace=namespace) as client:
            assert await client.call(add, KEY, 1, timeout=10) == 1
            kept_bytes = aof_bytes(weak_server)
            assert await client.call(add, KEY, 1, timeout=10) == 2
        worker.kill()
    weak_server.kill()
    cut_aof(weak_server, kept_bytes)
    weak_server.start()

    async with hosting(weak_server, namespace) as runtime:
        await eventually(lambda: partition(runtime) is not None, "the partition is open")
        held = partition(runtime)
        assert held is not None
        assert await runtime.client.call(get, KEY, timeout=10) == 1
        assert held.in_doubt(held.now_ms())
        assert held.in_doubt(held.now_ms() - 25_000)
        told = await runtime.client.inspect("Counter", KEY)
        assert (told.owner.doubt_why, told.owner.losses) == ("doubt", 0)


async def test_what_a_dead_successor_may_have_written_is_in_doubt(weak_server: StoreServer, namespace: str) -> None:
    """It lost its whole tenure with it: the owner before it finds all that it knows of, which proves nothing."""
    async with hosting(weak_server, namespace) as former:
        for key in MANY_KEYS:
            assert await former.client.call(add, key, 1, timeout=10) == 1
        kept_bytes = aof_bytes(weak_server)
        async with hosting(weak_server, namespace) as successor:
            taken: list[str] = []

            def look() -> bool:
                taken[:] = [key for key in MANY_KEYS if partition(successor, key) is not None]
                return bool(taken)

            await eventually(look, "something is handed over", seconds=30)
            key = taken[0]
            assert await successor.client.call(add, key, 1, timeout=10) == 2
            successor.worker.die()
            weak_server.kill()
            cut_aof(weak_server, kept_bytes)
            weak_server.start()
            await eventually(lambda: partition(former, key) is not None, "it is taken back")

            assert await former.client.call(get, key, timeout=10) == 1
            told = await former.client.inspect("Counter", key)

    assert (told.owner.doubt_why, told.owner.losses) == ("doubt", 0)


async def test_a_server_that_keeps_less_than_the_one_before_is_told_of(
    own_server: StoreServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As a promoted replica may: its next restart may lose something, also for a worker that began before it."""
    caplog.set_level(logging.ERROR, "keylane.ownership")
    url = own_server.url
    async with (
        Runtime(app, store=url, namespace=namespace, settings=FAST) as survivor,
        Runtime(app, store=url, namespace=namespace, settings=FAST) as other,
    ):
        own_server.kill()
        own_server.start("--appendfsync", "everysec")
        await eventually(lambda: caplog.text.count("but appendfsync is everysec") >= 2, "both tell of it")
        await eventually(lambda: any(epoch(other, key) > 1 for key in MANY_KEYS), "the other one owns something")
        key = next(key for key in MANY_KEYS if epoch(other, key) > 1)
        assert await other.client.call(add, key, 1, timeout=10) == 1
        kept_bytes = aof_bytes(own_server)
        assert await other.client.call(add, key, 1, timeout=10) == 2
        other.worker.die()
        own_server.kill()
        cut_aof(own_server, kept_bytes)
        own_server.start("--appendfsync", "everysec")
        await eventually(lambda: partition(survivor, key) is not None, "it is taken over")

        told = await survivor.client.inspect("Counter", key)

    assert told.owner.doubt_why == "doubt"


async def test_what_another_server_keeps_is_asked_until_it_tells(
    own_server: StoreServer, namespace: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection may break again before it has told."""
    caplog.set_level(logging.INFO, "keylane.ownership")
    asked: list[str] = []
    ask = newcomers.read_facts

    async def breaks_once(call: Callable[..., Any]) -> ServerFacts:
        asked.append("facts")
        if len(asked) == 1:
            raise StoreUnavailable("the store", "its connection broke")
        return await ask(call)

    monkeypatch.setattr(newcomers, "read_facts", breaks_once)
    async with Runtime(app, store=own_server.url, namespace=namespace, settings=FAST):
        own_server.kill()
        own_server.start("--appendfsync", "everysec")
        await eventually(lambda: "but appendfsync is everysec" in caplog.text, "it is told")

    assert len(asked) == 2


async def test_another_server_that_comes_while_a_worker_closes_is_left_alone(
    own_server: StoreServer, namespace: str
) -> None:
    """The connections outlive the worker, and its tasks have ended by then."""
    async with Runtime(app, store=own_server.url, namespace=namespace, settings=FAST) as runtime:
        (node,) = runtime.worker.store.nodes
        before = node.identity.identity
        await runtime.worker.__aexit__(None, None, None)
        own_server.kill()
        own_server.start()

        await eventually(lambda: node.identity.identity != before and node.calls.is_up, "it is another one")


async def test_what_clients_have_to_know_is_written_again(weak_server: StoreServer, namespace: str) -> None:
    """Those that come after the loss wait for as many replicas as those before it."""
    kept_bytes = aof_bytes(weak_server)
    async with hosting(weak_server, namespace):
        weak_server.kill()
        assert cut_aof(weak_server, kept_bytes) > 0
        weak_server.start()

        await eventually(lambda: weak_server.ask("HGET", types_key(namespace), "Counter") is not None, "the types")
        await eventually(lambda: weak_server.ask("GET", durability_key(namespace)) == b"server", "the durability")


async def test_with_fsync_a_dead_owner_leaves_no_doubt(own_server: StoreServer, namespace: str) -> None:
    """What is confirmed is on the disk, so the restarted server has all of it."""
    with WorkerProcess(own_server.url, namespace, settings={"partitions": PARTITIONS}) as worker:
        await worker.ready()
        async with Client(own_server.url, namespace=namespace) as client:
            assert await client.call(add, KEY, 1, timeout=10) == 1
        worker.kill()
    own_server.kill()
    own_server.start()

    async with Runtime(app, store=own_server.url, namespace=namespace, settings=FAST) as runtime:
        assert await runtime.client.call(get, KEY, timeout=10) == 1
        await eventually(lambda: partition(runtime) is not None, "the partition is open")
        assert field(own_server, namespace, "doubt_from") is None


async def test_data_put_back_from_a_copy_are_declared_while_workers_run(
    runtime: Runtime, weak_server: StoreServer, namespace: str
) -> None:
    """Their owners let go of what they have in memory and begin anew, in doubt since the time of the copy."""
    assert await runtime.client.call(add, KEY, 1, timeout=10) == 1
    # As a copy would: behind the owner's back.
    stream = space_of(namespace).object(KEY)
    weak_server.ask("DEL", stream)
    assert await runtime.client.call(get, KEY, timeout=10) == 1
    since = datetime.now(UTC) - timedelta(hours=1)

    words = ("restored", "--from", since.isoformat(), "--store", weak_server.url, "--namespace", namespace)
    done = await anyio.to_thread.run_sync(run, *words)

    assert done.code == 0, done.err
    assert "in doubt since" in done.out
    await eventually(lambda: epoch(runtime) == 2, "the partition was acquired anew")
    held = partition(runtime)
    assert held is not None
    assert await runtime.client.call(get, KEY, timeout=10) == 0
    assert held.doubt is not None
    assert held.doubt.from_ms == int(since.timestamp() * 1000)
    # What was taken in before the copy was made may have gone on since.
    assert held.in_doubt(held.doubt.from_ms - 1)
    assert not held.in_doubt(held.doubt.until_ms + 1)
    told = await runtime.client.inspect("Counter", KEY)
    assert told.owner.doubt_why == "restored"
