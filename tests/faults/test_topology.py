"""A store in a cluster and behind sentinels, failovers apart: routing, hints, leases, functions, acknowledgements."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from keylane import (
    Client,
    Replicated,
    Runtime,
    SchemaMismatch,
    Settings,
    StoreUnavailable,
    UnsafeStore,
    VirtualObject,
)
from keylane.journal.cluster import Cluster
from keylane.journal.inbox import KNOWN, submit
from keylane.journal.key import new_invocation_id
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.leases import Renewed, observe, sync_leases
from keylane.journal.requests import Request, RequestKind
from keylane.journal.slots import SLOTS, slot_of
from keylane.journal.store import Store
from keylane.journal.subscription import Listening
from keylane.journal.tenure import VACANT, Observation, Tenure, lease_clock
from keylane.journal.types_registry import read_types
from tests.journal.owning import Owner, took
from tests.objects_catalogue import app

from .harness import eventually, eventually_aside
from .network_server import NetworkServer
from .test_failover import SETTINGS
from .topologies import ClusterServers, SentinelServers

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterServers]:
    with ClusterServers(replicas=0) as servers:
        yield servers


@pytest.fixture
async def store(cluster: ClusterServers, namespace: str) -> AsyncIterator[Store]:
    async with Store(cluster.url, namespace=namespace) as store:
        yield store


def spaces_by_server(cluster: ClusterServers, store: Store) -> dict[NetworkServer, PartitionSpace]:
    """Return a partition on each primary."""
    found: dict[NetworkServer, PartitionSpace] = {}
    for number in range(64):
        space = store.space("Order", number)
        found.setdefault(cluster.primary_of(space.owner), space)
    assert len(found) == 3
    return found


async def move(cluster: ClusterServers, space: PartitionSpace, target: NetworkServer) -> None:
    """Move the slot of a partition to another primary, key by key."""
    slot, source = slot_of(space.owner), cluster.primary_of(space.owner)

    def do() -> None:
        cluster.begin_move(slot, source, target)
        cluster.move_keys(slot, source, target)
        cluster.end_move(slot, target)

    await anyio.to_thread.run_sync(do)


async def test_commands_find_the_node_of_their_key(cluster: ClusterServers, store: Store) -> None:
    """Single ones, many in one turn, and functions."""
    for server, space in spaces_by_server(cluster, store).items():
        assert await store.call("SET", space.result(b"x"), server.place) is not None
        assert server.ask("GET", space.result(b"x")) == server.place.encode()
    spaces = [store.space("Order", number) for number in range(16)]
    assert (await observe(store, spaces)).seen == (VACANT,) * 16
    assert len(store.nodes) == 3


async def test_one_living_node_of_the_url_is_enough(cluster: ClusterServers, namespace: str) -> None:
    """The others are learned from it."""
    url = f"redis+cluster://127.0.0.1:1,{cluster.servers[1].place}"
    async with Store(url, namespace=namespace) as store:
        assert {node.host.port for node in store.nodes if node.host} == {server.port for server in cluster.servers}


async def test_no_living_node_of_the_url_is_said_in_time(namespace: str) -> None:
    """The start does not hang, and the message names what was tried."""
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"), anyio.fail_after(10):
        async with Store("redis+cluster://127.0.0.1:1", namespace=namespace):
            pass


async def test_functions_that_one_node_has_lost_are_loaded_there(cluster: ClusterServers, store: Store) -> None:
    """Calls and commits alike find out, load them on that node, and go on."""
    owners = [await took(store, space.number) for space in spaces_by_server(cluster, store).values()]
    for server in cluster.servers:
        server.ask("FUNCTION", "FLUSH")

    for number, owner in enumerate(owners):
        owner.append(f"word-{number}")
        await owner.answered()
        assert owner.errors == {}
    for server in cluster.servers:
        server.ask("FUNCTION", "FLUSH")
    poll = await observe(store, [owner.space for owner in owners])
    assert [isinstance(seen, Observation) and seen.epoch for seen in poll.seen] == [1, 1, 1]


async def test_a_writer_follows_its_slot_in_order(cluster: ClusterServers, store: Store) -> None:
    """Batches that the former node refused go to the next one, each once and in the order of their commits."""
    owner = await took(store, 0)
    words: list[str] = []

    async def write(count: int) -> None:
        for _ in range(count):
            words.append(f"{len(words)}")
            owner.append(words[-1])
            await anyio.lowlevel.checkpoint()

    async def write_on() -> None:
        while True:
            await write(1)
            await anyio.sleep(0.001)

    await write(50)
    target = cluster.other_primary(cluster.primary_of(owner.space.owner))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write_on)
        await move(cluster, owner.space, target)
        tasks.cancel_scope.cancel()
    await write(50)
    await owner.answered()

    assert await owner.words() == words
    assert owner.errors == {}
    assert target.ask("EXISTS", owner.space.owner) == 1


async def test_a_map_that_is_old_is_put_right_by_the_nodes(cluster: ClusterServers, store: Store) -> None:
    """A command that the wrong node refuses goes where that node points."""
    topology = store.topology
    assert isinstance(topology, Cluster)
    space = store.space("Order", 0)
    wrong = next(node for node in topology.nodes if node is not topology.node_of(space.owner))
    topology._slots[slot_of(space.owner)] = wrong

    assert await store.call("SET", space.result(b"x"), "1") is not None
    assert topology.node_of(space.owner) is not wrong


class Heard:
    """A subscription, with what it was told."""

    def __init__(self, store: Store) -> None:
        self.messages: list[tuple[bytes, bytes]] = []
        self.gaps = 0
        self.subscription: Listening = store.new_subscription(on_message=self.take, on_gap=self.count)

    def take(self, channel: bytes, payload: bytes) -> None:
        self.messages.append((channel, payload))

    def count(self) -> None:
        self.gaps += 1


@asynccontextmanager
async def hearing(store: Store) -> AsyncGenerator[Heard]:
    heard = Heard(store)
    async with anyio.create_task_group() as tasks:
        await tasks.start(heard.subscription.run)
        yield heard
        tasks.cancel_scope.cancel()


async def test_channels_of_all_nodes_are_heard(cluster: ClusterServers, store: Store) -> None:
    """Each over a connection to the node that has it."""
    spaces = list(spaces_by_server(cluster, store).values())
    async with hearing(store) as heard:
        for space in spaces:
            assert await heard.subscription.subscribed(space.inbox_channel, 5)
        for space in spaces:
            await store.call("SPUBLISH", space.inbox_channel, "news")

        await eventually(lambda: len(heard.messages) == 3, "three messages")
    assert {channel for channel, _ in heard.messages} == {space.inbox_channel for space in spaces}


async def test_a_channel_follows_its_slot(cluster: ClusterServers, store: Store) -> None:
    """What may have been missed is told of as a gap, and then messages arrive from the other node."""
    space = store.space("Order", 0)
    async with hearing(store) as heard:
        assert await heard.subscription.subscribed(space.inbox_channel, 5)
        gaps = heard.gaps
        target = cluster.other_primary(cluster.primary_of(space.owner))
        await move(cluster, space, target)

        await eventually(
            lambda: heard.subscription.is_subscribed(space.inbox_channel) and heard.gaps > gaps, "it moves"
        )
        await eventually_aside(lambda: target.ask("SPUBLISH", space.inbox_channel, "news") == 1, "it is heard there")
        await eventually(lambda: heard.messages, "the message")


async def test_a_silent_node_does_not_cost_the_leases_of_others(cluster: ClusterServers, store: Store) -> None:
    """Each node has a connection and a thread of its own; the renewals of the others are not even late."""
    by_server = spaces_by_server(cluster, store)
    owners: dict[NetworkServer, Owner] = {
        server: await took(store, space.number) for server, space in by_server.items()
    }
    held = [(owner.space, owner.tenure) for owner in owners.values()]
    leases = sync_leases(store, timeout_seconds=0.5)
    try:
        assert await anyio.to_thread.run_sync(leases.renew, held) == [Renewed(1)] * 3
        silent = next(iter(owners))
        silent.stop()
        try:
            taken: list[float] = []
            for turn in (2, 3, 4):
                began = time.monotonic()
                renewals = await anyio.to_thread.run_sync(leases.renew, held)
                taken.append(time.monotonic() - began)
                assert renewals[1:] == [Renewed(turn)] * 2
                assert renewals[0] != Renewed(turn)
            # The silent one is waited for once; a busy machine is late in one turn, and not in each.
            assert min(taken) < 0.8
        finally:
            silent.go_on()

        async def is_renewed() -> bool:
            renewals = await anyio.to_thread.run_sync(leases.renew, held)
            return all(isinstance(renewal, Renewed) for renewal in renewals)

        deadline = lease_clock() + 10
        while not await is_renewed():
            assert lease_clock() < deadline
    finally:
        leases.close()


async def test_a_lease_follows_its_slot_while_the_loop_knows_nothing_of_it(
    cluster: ClusterServers, store: Store
) -> None:
    """Half-way, after it, and with a map that stays behind: the thread finds the way by itself."""
    owner = await took(store, 0)
    held = [(owner.space, owner.tenure)]
    slot, source = slot_of(owner.space.owner), cluster.primary_of(owner.space.owner)
    target = cluster.other_primary(source)
    leases = sync_leases(store, timeout_seconds=2)
    try:
        assert leases.renew(held) == [Renewed(1)]
        cluster.begin_move(slot, source, target)
        assert leases.renew(held) == [Renewed(2)]
        cluster.move_keys(slot, source, target)
        assert leases.renew(held) == [Renewed(3)]
        cluster.end_move(slot, target)
        # This test does not let the loop run in between, so its map is the old one.
        assert leases.renew(held) == [Renewed(4)]
        assert leases.renew([(owner.space, Tenure(9, b"x" * 16))]) != [Renewed(5)]
    finally:
        leases.close()


async def test_a_type_gets_eight_partitions_for_each_primary(cluster: ClusterServers, namespace: str) -> None:
    """Unless a number is set; and what the namespace has stays as it is."""
    one = VirtualObject("One", owner="tests")
    async with Runtime([one], store=cluster.url, namespace=namespace) as runtime:
        assert await read_types(runtime.client.store) == {"One": 24}
        assert len(runtime.worker.partitions) == 24
    with pytest.raises(SchemaMismatch):
        async with Runtime([one], store=cluster.url, namespace=namespace, settings=Settings(partitions=16)):
            pass


async def test_every_slot_of_the_map_has_a_node(store: Store) -> None:
    """The map is whole."""
    topology = store.topology
    assert isinstance(topology, Cluster)
    assert all(topology.host_of(slot) is not None for slot in range(SLOTS))


@pytest.fixture(scope="module")
def watched() -> Iterator[SentinelServers]:
    with SentinelServers() as servers:
        yield servers


async def test_wait_on_a_connection_that_wrote_nothing_means_nothing(watched: SentinelServers) -> None:
    """Why a call that was applied before is followed by a write: without one, WAIT answers at once, replica or not."""
    primary = watched.primary
    replica = next(server for server in watched.servers if server is not primary)
    await eventually_aside(lambda: primary.replicas == 1, "the replica follows")
    replica.stop()
    try:
        primary.ask("SET", "written", "elsewhere")
        # Over a connection of its own, which has written nothing.
        assert primary.ask("WAIT", 1, 300) == 1
    finally:
        replica.go_on()


async def test_a_batch_that_is_sent_again_waits_for_replicas_again(watched: SentinelServers, namespace: str) -> None:
    """It was applied over a connection that is gone; what a replica has of it, the next connection has to find out."""
    await eventually_aside(watched.is_settled, "the servers are settled", seconds=30)
    primary = watched.primary
    replica = next(server for server in watched.servers if server is not primary)
    async with Store(watched.url, namespace=namespace, replicas=1) as store:
        await store.nodes[0].sends.wait_up(5)
        owner = await took(store, 0)
        replica.stop()
        try:
            owner.append("one")
            await eventually_aside(lambda: primary.ask("HGET", owner.space.owner, "batch") == b"1", "it is applied")
            primary.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            # Until the next connection waits for the replica, or has been told that there is nothing to wait for.
            await eventually_aside(
                lambda: owner.ended or b"cmd=wait" in primary.ask("CLIENT", "LIST"), "it was sent again"
            )
            assert not owner.ended
            await eventually(lambda: "only 0 of" in (store.why_waiting(owner.space) or ""), "those who wait are told")
            assert not owner.ended
        finally:
            replica.go_on()
        await owner.answered()
        assert owner.errors == {}
        assert await owner.words() == ["one"]


async def test_a_request_that_is_known_is_acknowledged_only_once_replicas_have_it(
    watched: SentinelServers, namespace: str
) -> None:
    """The store answers such a one without a write, so WAIT alone would say nothing about it."""
    await eventually_aside(watched.is_settled, "the servers are settled", seconds=30)
    replica = next(server for server in watched.servers if not server.is_primary)
    async with Store(watched.url, namespace=namespace, replicas=1) as store:
        await store.nodes[0].sends.wait_up(5)
        space = store.space("Order", 0)
        request = Request(RequestKind.SEND, new_invocation_id(), "refund", "acme/o-1", b"")
        replica.stop()
        try:
            await store.call("SET", space.result(request.invocation), "outcome")
            with pytest.raises(StoreUnavailable, match="only 0 of the 1 replicas"):
                await submit(store, space, request, limit_seconds=0.5)
        finally:
            replica.go_on()
        assert await submit(store, space, request, limit_seconds=10) == KNOWN


async def test_nothing_is_acknowledged_that_too_few_replicas_have(watched: SentinelServers, namespace: str) -> None:
    """While the replica keeps silent no call, send or result is answered; callers are told why, and it goes on."""
    await eventually_aside(watched.is_settled, "the servers are settled", seconds=30)
    replica = next(server for server in watched.servers if not server.is_primary)
    async with (
        Runtime(app, store=watched.url, namespace=namespace, durability=Replicated(1), settings=SETTINGS) as runtime,
        Client(watched.url, namespace=namespace, settings=SETTINGS) as client,
    ):
        assert await runtime.client.call("Counter", "acme/1", "add", 1, timeout=10) == 1
        assert await client.call("Counter", "acme/1", "add", 1, timeout=10) == 2
        assert await client.call("Counter", "acme/2", "add", 1, timeout=10) == 1
        replica.stop()
        try:
            await _refused_for_want_of_replicas(runtime.client)
            await _refused_for_want_of_replicas(client)
            # Nor is it shown to anybody; a read of what is on the replica needs no answer of it.
            assert await runtime.client.call("Counter", "acme/2", "get", timeout=10) == 1
            with pytest.raises(StoreUnavailable, match="only 0 of the 1 replicas"):
                await runtime.client.call("Counter", "acme/1", "get", timeout=10)
        finally:
            replica.go_on()
        await eventually_aside(watched.is_settled, "the servers are settled", seconds=30)
        assert await runtime.client.call("Counter", "acme/1", "add", 0, timeout=20) == 4
        assert await client.call("Counter", "acme/1", "add", 1, timeout=20) == 5


async def _refused_for_want_of_replicas(client: Client) -> None:
    with pytest.raises(StoreUnavailable, match="only 0 of the 1 replicas"):
        await client.call("Counter", "acme/1", "add", 1, timeout=1)


async def test_a_send_returns_once_a_replica_has_it(watched: SentinelServers, namespace: str) -> None:
    """Also without a worker; while no replica answers, it does not return."""
    await eventually_aside(watched.is_settled, "the servers are settled", seconds=30)
    replica = next(server for server in watched.servers if not server.is_primary)
    async with Runtime(app, store=watched.url, namespace=namespace, durability=Replicated(1), settings=SETTINGS):
        pass
    async with Client(watched.url, namespace=namespace, settings=SETTINGS) as client:
        handle = await client.send("Counter", "acme/1", "add", 1)
        assert replica.ask("XLEN", _inbox(client, handle.id)) == 1
        replica.stop()
        try:
            with anyio.move_on_after(1) as limit:
                await client.send("Counter", "acme/1", "add", 1)
            assert limit.cancelled_caught
        finally:
            replica.go_on()


def _inbox(client: Client, invocation_id: str) -> bytes:
    described: Any = client.attach(invocation_id)
    return client.space_of(described._invocation).inbox


async def test_a_start_is_refused_where_replicas_are_too_few(watched: SentinelServers, namespace: str) -> None:
    """And the promise is not made."""
    await eventually_aside(watched.is_settled, "the servers are settled", seconds=30)
    with pytest.raises(UnsafeStore, match=r"Replicated\(2\)"):
        async with Runtime(app, store=watched.url, namespace=namespace, durability=Replicated(2)):
            pass
