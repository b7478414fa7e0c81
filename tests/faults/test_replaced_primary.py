"""A primary that the sentinels have replaced, and that lives: what it still takes in will be lost, so it is left."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, cast

import pytest
import redis.exceptions

from keylane import Client, Runtime, Settings
from keylane.journal import sentinel
from keylane.journal.connections import ask, connection_to
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.leases import acquire
from keylane.journal.link import Connection
from keylane.journal.renewals import Renewed, SentinelLeases, TenureLost
from keylane.journal.safety import parse_info
from keylane.journal.sentinel import NoPrimary, PrimaryWatch, SentinelConnection, sync_client_to_primary
from keylane.journal.server_identity import node_at
from keylane.journal.store import Store
from keylane.journal.tenure import VACANT, Tenure
from keylane.journal.urls import Access, Host, SentinelAddress, ServerAddress
from tests.objects_catalogue import app

from .harness import eventually_aside
from .network_server import NetworkServer
from .topologies import SentinelServers

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]

SETTINGS = Settings(lease_seconds=0.9, renewal_seconds=0.2, sweep_seconds=0.2, drain_limit_seconds=2, partitions=1)
SENTINELS = tuple(Host("sentinel", number) for number in range(3))
ADDRESS = SentinelAddress(SENTINELS, "keylane", Access())
TIMEOUT_SECONDS = 5.0


@pytest.fixture(scope="module")
def servers() -> Iterator[list[NetworkServer]]:
    """Give two servers that know nothing of each other, as after a replica of one has become the other."""
    with NetworkServer() as former, NetworkServer() as present:
        yield [former, present]


def address_of(server: NetworkServer) -> ServerAddress:
    return ServerAddress(Host("127.0.0.1", server.port), Access())


@pytest.fixture
def named(servers: list[NetworkServer], monkeypatch: pytest.MonkeyPatch) -> list[NetworkServer | None]:
    """Give what each sentinel names, to be changed; None for one that does not answer."""
    named: list[NetworkServer | None] = [servers[0]] * len(SENTINELS)

    async def asked(_: SentinelAddress, host: Host, problems: list[str]) -> ServerAddress | None:
        del problems
        server = named[host.port]
        return None if server is None else address_of(server)

    def sync_asked(sentinel: ServerAddress, *_: Any) -> ServerAddress:
        server = named[sentinel.host.port]
        if server is None:
            raise NoPrimary("no answer")
        return address_of(server)

    monkeypatch.setattr(sentinel, "_asked", asked)
    monkeypatch.setattr(sentinel, "_sync_ask", sync_asked)
    return named


async def test_connections_leave_it_once_most_sentinels_name_another(
    servers: list[NetworkServer], named: list[NetworkServer | None]
) -> None:
    """One sentinel may be behind the others, or the only one that answers; what leads to the present one stays."""
    watch = PrimaryWatch(ADDRESS, lambda: cast("Connection", SentinelConnection(ADDRESS, connection_to)))
    first: Any = watch.connection()
    await first.connect()
    for one in ([servers[1], servers[0], servers[0]], [servers[1], None, None]):
        named[:] = one
        await watch.look()
        assert await ask(first, "PING") == b"PONG"

    named[:] = [servers[1], servers[1], servers[0]]
    second: Any = watch.connection()
    await second.connect()
    await watch.look()

    with pytest.raises(redis.exceptions.ConnectionError):
        await ask(first, "PING")
    assert await ask(second, "PING") == b"PONG"
    for each in (first, second):
        await each.disconnect(nowait=True)


def test_the_lease_thread_believes_most_sentinels(
    servers: list[NetworkServer], named: list[NetworkServer | None]
) -> None:
    """Not the first one that answers, which may be the last to hear of it."""
    named[:] = [servers[0], servers[1], servers[1]]

    with sync_client_to_primary(ADDRESS, timeout_seconds=TIMEOUT_SECONDS) as client:
        assert client.connection_pool.connection_kwargs["port"] == servers[1].port


async def test_a_lease_is_not_lost_by_the_word_of_a_primary_that_was_replaced(
    servers: list[NetworkServer], named: list[NetworkServer | None], namespace: str
) -> None:
    """It knows nothing of who has acquired the partition since."""
    async with Store(servers[1].url, namespace=namespace) as store:
        space = store.space("Counter", 0)
        tenure = await acquired(store, space)
    leases = SentinelLeases(ADDRESS, store.library, TIMEOUT_SECONDS)
    try:
        assert isinstance(leases.renew([(space, tenure)])[0], TenureLost)
        named[:] = [servers[1]] * len(SENTINELS)

        assert isinstance(leases.renew([(space, tenure)])[0], Renewed)
        stranger = Tenure(tenure.epoch, secrets.token_bytes(16))
        assert isinstance(leases.renew([(space, stranger)])[0], TenureLost)
    finally:
        leases.close()


async def acquired(store: Store, space: PartitionSpace) -> Tenure:
    got = await acquire(
        store, space, VACANT, partitions=1, worker="w", machine="m", lease_seconds=TIMEOUT_SECONDS
    )  # fmt: skip
    assert got is not None
    return got.tenure


async def test_a_primary_that_stood_still_until_it_was_replaced_is_left_before_it_learns_of_it(namespace: str) -> None:
    """Calls go on at the one that has its place, from the owner's process and from another, and so do the leases."""
    with SentinelServers() as watched:
        former = watched.primary
        present = next(server for server in watched.servers if server is not former)
        async with (
            Runtime(app, store=watched.url, namespace=namespace, settings=SETTINGS) as runtime,
            Client(watched.url, namespace=namespace, settings=SETTINGS) as outside,
        ):
            await runtime.client.call("Counter", "acme/1", "add", 1, timeout=10)
            space = runtime.client.store.space("Counter", 0)
            await eventually_aside(lambda: present.ask("HGET", space.owner, "epoch") == b"1", "the replica knows of it")
            former.stop()
            await eventually_aside(lambda: watched.named == {present.port}, "it is replaced", seconds=20)
            former.go_on()
            stores = (runtime.client.store, outside.store)
            await eventually_aside(lambda: leads_to(present, *stores), "it is left", seconds=10)
            await eventually_aside(lambda: present.ask("HGET", space.owner, "epoch") == b"2", "it is owned anew")
            await eventually_aside(lambda: int(present.ask("HGET", space.owner, "lease")) > 1, "its lease is renewed")

            for client in (runtime.client, outside):
                await client.call("Counter", "acme/2", "add", 1, timeout=10)
            assert present.ask("HGET", space.owner, "epoch") == b"2"
            assert former.is_primary
            # What is written down of it is where the sentinels say that it is, which is so after its restart as well.
            nodes = {str(store.nodes[0].identity.identity).rpartition("/")[2] for store in stores}
            assert nodes == {node_at(Host("127.0.0.1", present.port))}


def leads_to(server: NetworkServer, *stores: Store) -> bool:
    run_id = parse_info(server.ask("INFO", "server"))["run_id"]
    seen = [store.nodes[0].identity.identity for store in stores]
    return all(each is not None and run_id.startswith(each.run_id) for each in seen)
