"""A primary is killed under load, in a cluster and behind sentinels; a slot moves; nothing acknowledged is lost."""

from __future__ import annotations

import logging
from collections import Counter as Multiset
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal

import anyio
import anyio.to_thread
import pytest
import redis

from keylane import CallTimeout, Client, Replicated, Runtime, Settings, StoreUnavailable
from keylane.journal.cluster import Cluster
from keylane.journal.key import partition_of
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.refusals import SLOT_IS_MOVING
from keylane.journal.server_identity import KEPT_DIGITS
from keylane.journal.slots import slot_of
from keylane.journal.store import Store
from tests.objects_catalogue import app

from .adding import AT_ONCE, Adding, adding
from .harness import eventually, eventually_answers, eventually_aside
from .network_server import NetworkServer
from .topologies import SERVICE, ClusterServers, SentinelServers
from .worker_process import WorkerProcess

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
    """End what a test before has done to the servers, and wait until it is over."""
    await anyio.to_thread.run_sync(servers.heal)
    await eventually_aside(servers.is_settled, "the servers are settled", seconds=30)


async def promoted(server: NetworkServer, servers: Servers) -> None:
    """Wait until another server has taken the place of one that was killed."""
    others = [each for each in servers.servers if each is not server]
    before = 2 if isinstance(servers, ClusterServers) else 0
    await eventually_aside(lambda: sum(each.is_primary for each in others) > before, "a replica rises", seconds=20)


async def came_back(server: NetworkServer, servers: Servers) -> None:
    """Start a server that was killed, and wait until it follows its former replica."""
    await anyio.to_thread.run_sync(servers.start_as_replica, server)
    await eventually_aside(lambda: server.follows, "the former primary is a replica", seconds=30)
    await eventually_aside(
        lambda: {each.replicas for each in servers.servers if each.is_primary} == {1}, "it has one", seconds=30
    )


# Each failover of sentinels takes some ten seconds, as their own timers have it: that is for the long form.
@pytest.fixture(params=["cluster", pytest.param("sentinel", marks=pytest.mark.nightly)])
def servers(request: pytest.FixtureRequest) -> Servers:
    """Give a cluster, then a primary and a replica that sentinels watch."""
    return request.getfixturevalue("cluster" if request.param == "cluster" else "watched")


def victim_of(servers: Servers, namespace: str, loads: list[Adding]) -> NetworkServer:
    """Return the primary of the first counter."""
    return servers.primary_of(space_of(loads[0].keys[0], namespace).owner)


def of_victim(servers: Servers, victim: NetworkServer, namespace: str, load: Adding) -> list[str]:
    """Return the counters that lie on a primary."""
    return [key for key in load.keys if servers.primary_of(space_of(key, namespace).owner) is victim]


async def replace(victim: NetworkServer, servers: Servers, loads: list[Adding]) -> None:
    """Kill a primary, and bring it back as a replica of the one that was its own."""
    victim.kill()
    await promoted(victim, servers)
    servers.heal_replication()
    await came_back(victim, servers)
    for load in loads:
        await load.goes_on()


async def read_all(servers: Servers, namespace: str, loads: list[Adding]) -> list[dict[str, int]]:
    """Read the counters by a worker that has seen nothing of what happened."""
    async with Runtime(app, store=servers.url, namespace=namespace, settings=SETTINGS) as runtime:
        return [await load.values(runtime.client) for load in loads]


async def read_all_asked_again(servers: Servers, namespace: str, loads: list[Adding]) -> list[dict[str, int]]:
    """The same after each call was made once more under its id: then each counts once, unless one was made twice."""
    async with Runtime(app, store=servers.url, namespace=namespace, settings=SETTINGS) as runtime:
        for load in loads:
            await load.ask_again(runtime.client)
    return await read_all(servers, namespace, loads)


def joined(values: list[dict[str, int]]) -> dict[str, int]:
    return {key: value for each in values for key, value in each.items()}


@pytest.mark.parametrize("is_behind", [False, True], ids=["up to date", "cut off before"])
async def test_nothing_acknowledged_is_lost_when_a_replica_has_to_have_it(
    servers: Servers, namespace: str, *, is_behind: bool
) -> None:
    """With `Replicated(1)`, what was acknowledged before the primary was killed is there once its replica has risen.

    What the replica did not get any more was told to nobody.
    """
    async with loaded(servers, namespace, Replicated(1)) as (runtime, _, loads):
        victim = victim_of(servers, namespace, loads)
        if is_behind:
            await anyio.to_thread.run_sync(servers.cut_replication, victim)
            space = space_of(loads[0].keys[0], namespace)
            await eventually(lambda: runtime.client.store.why_waiting(space), "it waits for a replica")
        await replace(victim, servers, loads)

    for load, values in zip(loads, await read_all(servers, namespace, loads), strict=True):
        assert load.lost_or_doubled(values) == {}, said(loads)
        assert load.troubles.keys() <= {"store-unavailable", "call-timeout"}


async def test_a_tail_that_a_failover_has_lost_is_noticed_and_nothing_is_served_from_it(
    servers: Servers, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Under load and with living owners: each partition of that primary begins anew from what the replica has."""
    caplog.set_level(logging.ERROR, "keylane.ownership")
    async with loaded(servers, namespace, "fsync") as (runtime, _, loads):
        victim = victim_of(servers, namespace, loads)
        hurt = {key for load in loads for key in of_victim(servers, victim, namespace, load)}
        histories = {each.space: each.history for each in runtime.worker.partitions}
        await anyio.to_thread.run_sync(servers.cut_replication, victim)
        for load in loads:
            # As many as are under way may lie in the inbox of the replica, and run again from there: one more does not.
            await load.goes_on(calls=AT_ONCE + 1)
        await replace(victim, servers, loads)
        changed = {each.space for each in runtime.worker.partitions if each.history != histories[each.space]}

    values = joined(await read_all(servers, namespace, loads))
    told = {key: numbers for load in loads for key, numbers in load.acknowledged.items()}
    assert {key for key in told if len(told[key]) > values[key]} == hurt, said(loads)
    for key, numbers in told.items():
        assert contradiction_of(numbers, values[key]) is None, f"{key}: {said(loads)}"
    again = joined(await read_all_asked_again(servers, namespace, loads))
    assert again == {key: len(numbers) for key, numbers in told.items()}, said(loads)
    spaces = {space_of(key, namespace) for key in hurt}
    assert spaces <= changed
    losses = {str(space): servers.ask("HGET", space.owner, "losses") for space in spaces}
    assert losses == dict.fromkeys(losses, b"1"), [
        (server.ask("ROLE"), {str(space): server.ask("HGETALL", space.owner) for space in spaces})
        for server in servers.servers
    ]
    for space in spaces:
        assert f"{space}: the store has lost the end of this history" in caplog.text
    for space in {space_of(key, namespace) for key in told} - spaces:
        assert servers.ask("HGET", space.owner, "losses") is None


def contradiction_of(told: list[int], value: int) -> str | None:
    """Return what contradicts that a counter went up to some number, fell back to a lower one, and went up from there.

    Args:
        told: What each acknowledged call was told.
        value: What the counter is at in the end.
    """
    counts = Multiset(told)
    top = max(counts)
    twice = sorted(number for number, count in counts.items() if count > 1)
    if sorted(counts) != list(range(1, top + 1)) or max(counts.values()) > 2:
        return f"{sorted(told)} has gaps, or the same more than twice"
    if twice and twice != list(range(twice[0], twice[-1] + 1)):
        return f"{twice} were told twice, which is no stretch that was lost"
    if value != top and twice[-1:] != [value]:
        return f"it is at {value}, after {sorted(told)}"
    return None


async def test_the_first_answer_after_a_lost_tail_is_what_the_replica_has(
    servers: Servers, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The owner has more in memory, and the caller has been told of it; neither counts any more."""
    caplog.set_level(logging.ERROR, "keylane.ownership")
    await settled(servers)
    space = space_of(KEYS[0], namespace)
    async with Runtime(app, store=servers.url, namespace=namespace, settings=SETTINGS) as runtime:
        for value in (1, 2):
            assert await runtime.client.call("Counter", KEYS[0], "add", 1, timeout=10) == value
        victim = servers.primary_of(space.owner)
        await eventually(lambda: victim.ask("WAIT", 1, 100) == 1, "the replica has it")
        servers.cut_replication(victim)
        assert await runtime.client.call("Counter", KEYS[0], "add", 1, timeout=10) == 3
        victim.kill()
        await promoted(victim, servers)

        assert await answer(runtime.client, "add", 10) == 12
        assert await answer(runtime.client, "get") == 2 + 10
        told = await runtime.client.inspect("Counter", KEYS[0])
        servers.heal_replication()
        await came_back(victim, servers)

    assert (told.owner.doubt_why, told.owner.losses) == ("lost", 1)
    assert f"{space}: the store has lost the end of this history" in caplog.text


@pytest.mark.parametrize("is_restarted", [False, True], ids=["the same run", "started anew"])
async def test_a_tail_that_was_lost_with_its_owner_is_suspected(
    servers: Servers, namespace: str, *, is_restarted: bool
) -> None:
    """Nobody is left who could compare: the next owner sees that a replica was promoted, and works in doubt.

    One that was started anew since does not know that any more, and is seen to be another node.
    """
    await settled(servers)
    space = space_of(KEYS[0], namespace)
    victim = servers.primary_of(space.owner)
    replica = servers.replica_of(victim)
    with WorkerProcess(servers.url, namespace, settings={"partitions": SETTINGS.partitions}) as worker:
        await worker.ready()
        async with Client(servers.url, namespace=namespace) as client:
            assert await client.call("Counter", KEYS[0], "add", 1, timeout=10) == 1
            await eventually(lambda: victim.ask("WAIT", 1, 100) == 1, "the replica has it")
            servers.cut_replication(victim)
            assert await client.call("Counter", KEYS[0], "add", 1, timeout=10) == 2
        worker.kill()
    victim.kill()
    await promoted(victim, servers)
    if is_restarted:
        replica.kill()
        await anyio.to_thread.run_sync(servers.start_as_primary, replica)

    url = servers.url
    async with Runtime(app, store=url, namespace=namespace, durability="fsync", settings=SETTINGS) as runtime:
        assert await answer(runtime.client, "get") == 1
        told = await runtime.client.inspect("Counter", KEYS[0])
        servers.heal_replication()
        await came_back(victim, servers)

    assert (told.owner.doubt_why, told.owner.losses) == ("doubt", 0)


async def answer(client: Client, handler: str, *arguments: int) -> int:
    """Call the first counter until it answers, under one id."""
    while True:
        try:
            key = None if handler == "get" else "once"
            return await client.call("Counter", KEYS[0], handler, *arguments, idempotency_key=key, timeout=5)
        except (CallTimeout, StoreUnavailable):
            await anyio.sleep(0.05)


@pytest.mark.quiet
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


async def test_a_primary_that_has_its_place_back_is_another_one(cluster: ClusterServers, namespace: str) -> None:
    """Over the same connection, too: between the two, others wrote elsewhere, and it may not have all of that."""
    await settled(cluster)
    async with Store(cluster.url, namespace=namespace) as store:
        space = space_of(KEYS[0], namespace)
        first = cluster.primary_of(space.owner)
        replica = cluster.replica_of(first)
        before = await store.identity_of(space)
        for risen, fallen in ((replica, first), (first, replica)):
            await eventually_aside(partial(takes_over, risen, fallen), "it is promoted by hand", seconds=20)
            await eventually_answers(partial(leads_to, store, space, risen), "commands go there")
        after = await store.identity_of(space)

    assert before is not None
    assert after is not None
    assert after.run_id == before.run_id
    assert after.replication_id != before.replication_id
    assert after.former_replication_id


def takes_over(risen: NetworkServer, fallen: NetworkServer) -> bool:
    """Promote a replica by hand until it is a primary that the other one follows."""
    if not risen.is_primary:
        risen.ask("CLUSTER", "FAILOVER", "TAKEOVER")
    return risen.is_primary and fallen.follows


async def leads_to(store: Store, space: PartitionSpace, server: NetworkServer) -> bool:
    """Return whether commands about a partition go to a server; those that did not have learned of it."""
    assert isinstance(store.topology, Cluster)
    await store.call("EXISTS", space.owner)
    host = store.topology.node_of(space.owner).host
    return host is not None and host.port == server.port


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


@pytest.mark.nightly
async def test_sentinels_do_not_take_a_primary_that_has_just_risen_for_dead(watched: SentinelServers) -> None:
    """What the tests here rest on: a former primary that is back at once stays a replica."""
    await settled(watched)
    victim, before = watched.primary, set(watched.said("+sdown master"))
    victim.kill()
    await promoted(victim, watched)
    await came_back(victim, watched)
    await settled(watched)

    told = set(watched.said("+sdown master")) - before
    assert told
    assert {int(line.split()[-1]) for line in told} == {victim.port}
    assert victim.follows


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
        node = cluster.id_of(target)[:KEPT_DIGITS]
        written = partial(target.ask, "HGET", space.owner, "server")
        await eventually_aside(
            lambda: written().decode().endswith(node), "its owner compares what arrived, and goes on"
        )

    for load, values in zip(loads, await read_all(cluster, namespace, loads), strict=True):
        assert load.lost_or_doubled(values) == {}, said(loads)
    assert target.ask("HGET", space.owner, "doubt") is None
