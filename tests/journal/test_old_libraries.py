"""Function libraries of releases that nobody runs any more are deleted, a day after the last worker that used them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keylane import Runtime, VirtualObject
from keylane.journal.embedded import bundled_binary
from keylane.journal.old_libraries import LIBRARIES_KEY, UNUSED_MS, tend_libraries
from keylane.journal.store import Store
from keylane.runtime import ownership
from tests.faults.harness import StoreServer, eventually
from tests.faults.topologies import ClusterServers

pytestmark = pytest.mark.anyio

OLD, OLDER, FOREIGN = "keylane_00000000000a", "keylane_00000000000b", "keylane_mine"
thing = VirtualObject("Thing", owner="tests", partitions=1)


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """A server whose functions are this test's own."""
    with StoreServer(str(bundled_binary())) as server:
        yield server


def load(server: StoreServer, name: str) -> None:
    body = f"redis.register_function('{name}_f', function() return 1 end)"
    server.ask("FUNCTION", "LOAD", f"#!lua name={name}\n{body}")


def loaded(server: StoreServer) -> set[str]:
    return {
        dict(zip(each[::2], each[1::2], strict=True))[b"library_name"].decode()
        for each in server.ask("FUNCTION", "LIST")
    }


def now_ms(server: StoreServer) -> int:
    return int(server.ask("TIME")[0]) * 1000


async def test_a_library_that_was_not_used_for_a_day_is_deleted(server: StoreServer, namespace: str) -> None:
    """Others stay: those in use, one that is unused for less long, and those of other people."""
    async with Store(server.url, namespace=namespace) as store:
        for name in (OLD, OLDER, FOREIGN):
            load(server, name)
        server.ask("HSET", LIBRARIES_KEY, OLD, now_ms(server) - UNUSED_MS + 60_000)
        server.ask("HSET", LIBRARIES_KEY, OLDER, now_ms(server) - UNUSED_MS - 60_000)
        server.ask("HSET", LIBRARIES_KEY, store.library.name, now_ms(server) - 2 * UNUSED_MS)

        assert await tend_libraries(store, {store.library.name}) == [OLDER]

        assert loaded(server) == {store.library.name, OLD, FOREIGN}
        assert OLDER.encode() not in server.ask("HKEYS", LIBRARIES_KEY)


async def test_a_library_that_was_never_announced_gets_its_day(server: StoreServer, namespace: str) -> None:
    """It may be that of a worker that this one does not see, in another namespace."""
    async with Store(server.url, namespace=namespace) as store:
        load(server, OLD)

        assert await tend_libraries(store, {store.library.name}) == []
        assert await tend_libraries(store, {store.library.name}) == []

        assert OLD in loaded(server)
        assert abs(int(server.ask("HGET", LIBRARIES_KEY, OLD)) - now_ms(server)) < 60_000


async def test_what_live_workers_announce_counts_as_used(server: StoreServer, namespace: str) -> None:
    """Also when they are of another release than the one that looks."""
    async with Store(server.url, namespace=namespace) as store:
        load(server, OLD)
        server.ask("HSET", LIBRARIES_KEY, OLD, now_ms(server) - 2 * UNUSED_MS)

        assert await tend_libraries(store, {store.library.name, OLD}) == []

        assert OLD in loaded(server)


@pytest.mark.one_server
async def test_every_node_of_a_cluster_is_looked_after(namespace: str) -> None:
    """An old library may be on any of them, and goes from each; when it was used lies in one key for all."""
    with ClusterServers(replicas=0) as servers:
        async with Store(servers.url, namespace=namespace) as store:
            holder = servers.primary_of(LIBRARIES_KEY)
            others = [server for server in servers.primaries if server is not holder]
            for server in others:
                load(server, OLDER)
            load(others[0], OLD)
            servers.ask("HSET", LIBRARIES_KEY, OLDER, now_ms(holder) - 2 * UNUSED_MS)

            assert await tend_libraries(store, {store.library.name}) == [OLDER]

            assert [loaded(server) for server in servers.servers].count({store.library.name}) == 2
            assert loaded(others[0]) == {store.library.name, OLD}
            assert set(servers.ask("HKEYS", LIBRARIES_KEY)) == {store.library.name.encode(), OLD.encode()}


async def test_workers_do_it(server: StoreServer, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a while after their start on."""
    monkeypatch.setattr(ownership, "FIRST_LIBRARIES_SECONDS", 0.1)
    load(server, OLDER)
    server.ask("HSET", LIBRARIES_KEY, OLDER, now_ms(server) - 2 * UNUSED_MS)

    async with Runtime([thing], store=server.url, namespace=namespace):
        await eventually(lambda: OLDER not in loaded(server), "it is deleted")
