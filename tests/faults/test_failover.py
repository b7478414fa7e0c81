"""A primary is killed under load, in a cluster and behind sentinels; a slot moves; nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Literal

import anyio
import anyio.to_thread
import pytest
import redis

from keylane import Client, Replicated, Runtime, Settings, StoreUnavailable
from keylane.journal.key import partition_of
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.refusals import SLOT_IS_MOVING
from keylane.journal.slots import slot_of
from tests.objects_catalogue import app

from .adding import Adding, adding
from .harness import eventually, eventually_aside
from .topologies import SERVICE, ClusterServers, NetworkServer, SentinelServers

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]

SETTINGS = Settings(lease_seconds=0.9, renewal_seconds=0.2, sweep_seconds=0.2, drain_limit_seconds=2, partitions=16)
Servers = ClusterServers | SentinelServers
KEYS = [f"acme/{number}" for number in range(8)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterServers]:
    with ClusterServers() as servers:
        yield servers


@pytest.fixture(scope="module")
def watched() -> Iterator[SentinelServers]:
    with SentinelServers() as servers:
        yield servers


@asynccontextmanager
async def loaded(
    servers: Servers, namespace: str, durability: Literal["fsync"] | Replicated
) -> AsyncGenerator[tuple[Runtime, Client, list[Adding]]]:
    """Host counters on settled servers, and raise them from here and from a client that goes through inboxes."""
    await settled(servers)
    url = servers.url
    async with (
        Runtime(app, store=url, namespace=namespace, durability=durability, settings=SETTINGS) as runtime,
        Client(url, namespace=namespace, settings=SETTINGS) as client,
        adding(runtime.client, client, keys=KEYS) as loads,
    ):
        for load in loads:
            await load.goes_on()
        yield runtime, client, loads


def space_of(key: str, namespace: str) -> PartitionSpace:
    return PartitionSpace(namespace, "Counter", partition_of(key, SETTINGS.partitions))


def said(loads: list[Adding]) -> str:
    return " | ".join(
        f"{load.count} calls, longest pause {max(load.longest_pause.values()):.2f} s, {dict(load.troubles)}"
        for load in loads
    )


async def settled(servers: Servers) -> None:
    """Wait until what a test before has done to the servers is over."""
    await eventually_aside(servers.is_settled, "the servers are settled", seconds=30)


async def promoted(server: NetworkServer, servers: Servers) -> None:
    """Wait until another server has taken the place of one that was killed."""
    others = [each for each in servers.servers if each is not server]
    before = 2 if isinstance(servers, ClusterServers) else 0
    await eventually_aside(lambda: sum(each.is_primary for each in others) > before, "a replica rises", seconds=20)


async def came_back(server: NetworkServer, servers: Servers) -> None:
    """Start a server that was killed, and wait until it follows its former replica."""
    # Sentinels would tell a server that comes back as a primary only after ten seconds that it is none any more.
    follow = () if isinstance(servers, ClusterServers) else ("--replicaof", f"127.0.0.1 {servers.primary.port}")
    await anyio.to_thread.run_sync(server.start, *follow)
    await eventually_aside(lambda: server.follows, "the former primary is a replica", seconds=30)
    await eventually_aside(
        lambda: {each.replicas for each in servers.servers if each.is_primary} == {1}, "it has one", seconds=30
    )


@pytest.fixture(params=["cluster", "sentinel"])
def servers(request: pytest.FixtureRequest) -> Servers:
    """Give a cluster, then a primary and a replica that sentinels watch."""
    return request.getfixturevalue("cluster" if request.param == "cluster" else "watched")


async def fail_over(servers: Servers, namespace: str, loads: list[Adding]) -> None:
    """Kill the primary of the first counter, and bring it back as a replica."""
    victim = servers.primary_of(space_of(loads[0].keys[0], namespace).owner)
    victim.kill()
    await promoted(victim, servers)
    await came_back(victim, servers)
    for load in loads:
        await load.goes_on()


async def read_all(servers: Servers, namespace: str, loads: list[Adding]) -> list[dict[str, int]]:
    """Read the counters by a worker that has seen nothing of what happened."""
    async with Runtime(app, store=servers.url, namespace=namespace, settings=SETTINGS) as runtime:
        return [await load.values(runtime.client) for load in loads]


async def test_nothing_acknowledged_is_lost_when_a_replica_has_to_have_it(servers: Servers, namespace: str) -> None:
    """With `Replicated(1)`, what was acknowledged before the primary was killed is there once its replica has risen."""
    async with loaded(servers, namespace, Replicated(1)) as (_, _, loads):
        await fail_over(servers, namespace, loads)

    for load, values in zip(loads, await read_all(servers, namespace, loads), strict=True):
        assert load.lost_or_doubled(values) == {}, said(loads)
        assert load.troubles.keys() <= {"store-unavailable", "call-timeout"}


async def test_everything_goes_on_after_a_failover_that_may_have_lost_a_tail(servers: Servers, namespace: str) -> None:
    """Without waiting for replicas a tail may be gone; no counter stands still, none has more than was asked for."""
    async with loaded(servers, namespace, "fsync") as (_, _, loads):
        await fail_over(servers, namespace, loads)

    for load, values in zip(loads, await read_all(servers, namespace, loads), strict=True):
        lost = {key: len(load.acknowledged[key]) - values[key] for key in load.keys}
        # How a lost tail is noticed and told of is another matter; here no more may be there than was acknowledged.
        assert all(count >= 0 for count in lost.values()), f"{lost} {said(loads)}"


async def test_partitions_of_other_nodes_do_not_notice_a_failover(cluster: ClusterServers, namespace: str) -> None:
    """Their leases are kept, their calls answered, while one node is away."""
    async with loaded(cluster, namespace, "fsync") as (runtime, _, loads):
        victim = cluster.primary_of(space_of(loads[0].keys[0], namespace).owner)
        epochs = {str(partition.space): partition.tenure.epoch for partition in runtime.worker.partitions}
        slots = {number for first, last in cluster.slots_of(victim) for number in range(first, last + 1)}
        elsewhere = {
            str(partition.space)
            for partition in runtime.worker.partitions
            if slot_of(partition.space.owner) not in slots
        }
        away = {key for load in loads for key in load.keys if slot_of(space_of(key, namespace).owner) in slots}
        for load in loads:
            load.longest_pause.clear()
        victim.kill()
        await promoted(victim, cluster)
        for load in loads:
            await load.goes_on(*(key for key in load.keys if key not in away), seconds=2)
        pauses = {key: pause for load in loads for key, pause in load.longest_pause.items() if key not in away}
        kept = {
            str(partition.space): partition.tenure.epoch
            for partition in runtime.worker.partitions
            if str(partition.space) in elsewhere
        }
        await came_back(victim, cluster)
        for load in loads:
            await load.goes_on()

    assert 0 < len(elsewhere) < len(epochs)
    assert pauses
    assert away
    assert max(pauses.values()) < SETTINGS.lease_seconds, said(loads)
    assert kept == {name: epochs[name] for name in elsewhere}


@pytest.mark.slow
async def test_a_planned_failover_writes_nothing_to_the_demoted_primary(
    watched: SentinelServers, namespace: str
) -> None:
    """The sentinels move the service while both servers live: the former primary is left, and nothing is lost."""
    async with loaded(watched, namespace, Replicated(1)) as (_, _, loads):
        before = watched.primary
        await eventually_aside(lambda: _fails_over(watched), "the sentinels agree to move the service", seconds=30)
        await eventually_aside(lambda: before.follows and watched.primary.replicas == 1, "it has moved", seconds=30)
        for load in loads:
            await load.goes_on()

    for load, values in zip(loads, await read_all(watched, namespace, loads), strict=True):
        assert load.lost_or_doubled(values) == {}, said(loads)


def _fails_over(watched: SentinelServers) -> bool:
    try:
        return bool(watched.ask_sentinel(0, "SENTINEL", "FAILOVER", SERVICE) == b"OK")
    except redis.ResponseError:
        # Until it has seen the replica for long enough.
        return False


@pytest.mark.parametrize("is_atomic", [False, True], ids=["key by key", "at once"])
async def test_a_slot_that_moves_under_load_stands_still_and_goes_on(
    cluster: ClusterServers, namespace: str, *, is_atomic: bool
) -> None:
    """Nothing is lost or doubled; while its keys lie on two nodes, callers are told what they wait for."""
    async with loaded(cluster, namespace, "fsync") as (runtime, _, loads):
        key = loads[0].keys[0]
        space = space_of(key, namespace)
        slot, source = slot_of(space.owner), cluster.primary_of(space.owner)
        target = cluster.other_primary(source)
        if is_atomic:
            cluster.move_at_once(slot, source, target)
        else:
            cluster.begin_move(slot, source, target)
            await eventually(lambda: runtime.client.store.why_waiting(space) == SLOT_IS_MOVING, "it stands still")
            cluster.move_keys(slot, source, target, count=3)
            with pytest.raises(StoreUnavailable, match="being moved to another node"):
                await runtime.client.call("Counter", key, "add", 0, timeout=0.3)
            cluster.move_keys(slot, source, target)
            cluster.end_move(slot, target)
        await eventually_aside(lambda: cluster.has(target, slot), "the slot has moved")
        for load in loads:
            await load.goes_on()
        assert runtime.client.store.why_waiting(space) is None

    for load, values in zip(loads, await read_all(cluster, namespace, loads), strict=True):
        assert load.lost_or_doubled(values) == {}, said(loads)
