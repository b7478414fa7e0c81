"""A checkup of a cluster in trouble: what can't be read is named and left alone, all else is judged and repaired."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count

import anyio
import anyio.to_thread
import pytest

from keylane import Client, ObjectContext, Runtime, SharedContext, StoreUnavailable, VirtualObject
from keylane.journal.doctor import delivering
from keylane.journal.doctor.checkup import Plan, check_up
from keylane.journal.doctor.findings import Kind
from keylane.journal.doctor.repairing import repair
from keylane.journal.doctor.report import Report
from keylane.journal.doctor.server import read_servers
from keylane.journal.doctor.walking import Progress
from keylane.journal.key import new_invocation_id, partition_of
from keylane.journal.keyspace import PartitionSpace, types_key
from keylane.journal.promise import read_facts_by_node
from keylane.journal.slots import slot_of
from keylane.journal.store import Store
from tests.runtime.shell_command import Done, run

from .harness import eventually, eventually_answers
from .network_server import NetworkServer
from .test_failover import SETTINGS
from .topologies import ClusterServers

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]

PARTITIONS = 16
#: A key for each partition, and another one that nobody calls again: an owner mends the lanes that it works on.
KEYS = {partition_of(f"acme/{number}", PARTITIONS): f"acme/{number}" for number in range(200)}
DAMAGED = {partition_of(f"acme/d{number}", PARTITIONS): f"acme/d{number}" for number in range(200)}

stop = VirtualObject("Stop", owner="line-oncall", partitions=PARTITIONS)
#: Another type, of which the same keys are in other slots.
depot = VirtualObject("Depot", owner="line-oncall", partitions=PARTITIONS)


@stop.handler
async def pass_by(ctx: ObjectContext) -> str:
    """End at once."""
    ctx.set("passed", value=True)
    return f"passed {ctx.key}"


@stop.handler
async def go_to(ctx: ObjectContext, key: str) -> str:
    """Wait for another object."""
    return await ctx.call(pass_by, key)


@depot.shared
async def is_open(ctx: SharedContext) -> bool:
    """End at once."""
    del ctx
    return True


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterServers]:
    with ClusterServers(replicas=0) as servers:
        yield servers


@dataclass
class Line:
    """A namespace with a worker, and a partition of it that is about to be in trouble."""

    cluster: ClusterServers
    client: Client
    store: Store
    away: PartitionSpace

    @property
    def others(self) -> list[PartitionSpace]:
        """The partitions that stay, of both types, those of stops first."""
        return [space for space in self._all if space != self.away]

    @property
    def _all(self) -> list[PartitionSpace]:
        return [self.store.space(name, number) for name in ("Stop", "Depot") for number in range(PARTITIONS)]

    def on(self, server: NetworkServer) -> set[str]:
        """Return the names of the partitions that a server has."""
        return {str(space) for space in self._all if self.cluster.primary_of(space.owner) is server}

    async def damage(self, space: PartitionSpace) -> None:
        """Have a lane name an invocation that there is not."""
        await self.store.call("RPUSH", space.lane(DAMAGED[space.number]), new_invocation_id())

    @asynccontextmanager
    async def moving(self) -> AsyncGenerator[None]:
        """Be in the middle of a move, from the first keys that have gone on."""
        slot, source = slot_of(self.away.owner), self.cluster.primary_of(self.away.owner)
        target = self.cluster.other_primary(source)
        await anyio.to_thread.run_sync(self.cluster.begin_move, slot, source, target)
        try:
            self.cluster.move_keys(slot, source, target, count=2)
            yield
        finally:
            self.cluster.move_keys(slot, source, target)
            self.cluster.end_move(slot, target)

    async def look(self, progress: Progress | None = None) -> Report:
        """Look at the namespace once."""
        return await check_up(self.store, Plan(SETTINGS.lease_seconds, "server", progress=progress))

    async def shell(self, *words: str) -> Done:
        """Run a command of the shell."""
        where = ("--store", self.cluster.url, "--namespace", self.store.namespace)
        return await anyio.to_thread.run_sync(partial(run, *words, *where))


@asynccontextmanager
async def running(cluster: ClusterServers, namespace: str) -> AsyncGenerator[Line]:
    """Run a worker, each stop having been passed once."""
    url = cluster.url
    async with (
        Runtime([stop, depot], store=url, namespace=namespace, settings=SETTINGS, durability="server"),
        Client(url, namespace=namespace, settings=SETTINGS) as client,
        Store(url, namespace=namespace, answer_timeout_seconds=1) as store,
    ):
        for key in (*KEYS.values(), *DAMAGED.values()):
            await client.call("Stop", key, "pass_by", timeout=10)
        yield Line(cluster, client, store, store.space("Stop", 3))


def places_of(report: Report, kind: Kind) -> set[str]:
    """Return what the findings of a kind are about."""
    return {str(each.place) for each in report.findings if each.kind is kind}


async def test_a_partition_on_the_move_is_named_and_all_others_are_repaired(
    cluster: ClusterServers, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is judged, nor what is sent to it or called there; once it has arrived it is judged like any."""
    monkeypatch.setattr(delivering, "STUCK_SECONDS", 0.5)
    async with running(cluster, namespace) as line:
        away, other, caller = line.away, *line.others[:2]
        await line.damage(away)
        async with line.moving():
            await line.damage(other)
            called = await line.client.send("Stop", KEYS[caller.number], "go_to", KEYS[away.number])
            await eventually_answers(lambda: line.store.call("HEXISTS", caller.sent, away.name), "the call is sent")
            report = await line.look()
            assert {each.kind for each in report.findings} == {Kind.PARTITION_UNREADABLE, Kind.LANE_ENTRY_ORPHANED}
            assert places_of(report, Kind.PARTITION_UNREADABLE) == {str(away)}
            assert not report.looked.is_whole
            (repaired,) = await repair(line.store, report, "a test")
            assert repaired.did
            assert repaired.where == f"Stop {DAMAGED[other.number]}"
            assert {each.kind for each in (await line.look()).findings} == {Kind.PARTITION_UNREADABLE}
            command = await line.shell("doctor", "--repair")
            assert command.code == 1
            assert f"Stop:{away.number}\n    it can't be read now: its slot is being moved" in command.out
        assert await called.result(timeout=10) == f"passed {KEYS[away.number]}"
        report = await line.look()
        assert [each.kind for each in report.findings] == [Kind.LANE_ENTRY_ORPHANED]
        assert report.findings[0].place.partition == away.number


async def test_a_partition_that_stops_under_way_is_not_judged_either(cluster: ClusterServers, namespace: str) -> None:
    """Single reads go on in it, so that nothing fails by itself; the checkup begins again without it."""
    async with running(cluster, namespace) as line:
        slot, source = slot_of(line.away.owner), cluster.primary_of(line.away.owner)
        target = cluster.other_primary(source)
        walked: list[int] = []

        def progress(looked: int, keys: int) -> None:
            walked.append(looked)
            if len(walked) == len(cluster.servers):
                cluster.begin_move(slot, source, target)

        try:
            report = await line.look(progress)
        finally:
            cluster.move_keys(slot, source, target)
            cluster.end_move(slot, target)
        assert [str(each.place) for each in report.findings] == [str(line.away)]
        assert report.findings[0].kind is Kind.PARTITION_UNREADABLE


def victim_of(cluster: ClusterServers, namespace: str) -> NetworkServer:
    """Return a primary that does not have the list of types."""
    return cluster.other_primary(cluster.primary_of(types_key(namespace)))


def parted(cluster: ClusterServers, namespace: str) -> str:
    """Return a namespace of which that one has a stop without its depot, and a depot without its stop."""

    def has(name: str, type_name: str, number: int) -> bool:
        owner = PartitionSpace(name, type_name, number).owner
        return cluster.primary_of(owner) is victim_of(cluster, name)

    def is_parted(name: str) -> bool:
        kinds = {(has(name, "Stop", number), has(name, "Depot", number)) for number in KEYS}
        return {(False, True), (True, False)} <= kinds

    return next(name for name in (f"{namespace}-{at}" for at in count()) if is_parted(name))


async def test_the_partitions_of_a_node_that_is_down_are_named(namespace: str) -> None:
    """Those of the other nodes are judged and repaired; what a node that hangs has is named as well."""
    with ClusterServers(replicas=0) as cluster:
        namespace = parted(cluster, namespace)
        async with running(cluster, namespace) as line:
            victim = victim_of(cluster, namespace)
            lost = line.on(victim)
            other = next(space for space in line.others if str(space) not in lost)
            await line.damage(other)
            victim.stop()
            try:
                assert places_of(await line.look(), Kind.PARTITION_UNREADABLE) == lost
            finally:
                victim.go_on()
            victim.kill()
            report = await line.look()
            assert places_of(report, Kind.PARTITION_UNREADABLE) == lost
            assert {each.kind for each in report.findings} == {Kind.PARTITION_UNREADABLE, Kind.LANE_ENTRY_ORPHANED}
            (repaired,) = await repair(line.store, report, "a test")
            assert repaired.did
            assert {each.kind for each in (await line.look()).findings} == {Kind.PARTITION_UNREADABLE}
            command = await line.shell("doctor")
            assert command.code == 1
            assert f"note: redis://{victim.place}/0 can't be reached" in command.out
            await explains_what_it_can(line, lost)


async def test_what_a_server_says_stays_its_own_where_another_is_lost_meanwhile(namespace: str) -> None:
    """The report of each tells its own memory, however many are left."""
    with ClusterServers(replicas=0) as cluster:
        limits = {f"redis://{server.place}/0": (1 + at) << 30 for at, server in enumerate(cluster.servers)}
        for server, limit in zip(cluster.servers, limits.values(), strict=True):
            server.ask("CONFIG", "SET", "maxmemory", limit)
        async with Store(cluster.url, namespace=namespace, answer_timeout_seconds=1) as store:
            facts = await read_facts_by_node(store)
            first = next(iter(facts))
            del limits[first.target]
            next(server for server in cluster.servers if server.place in first.target).kill()
            await eventually(lambda: not first.calls.is_up, "it is gone")

            reports = await read_servers(store, facts, "server", 0.9)

    assert {report.address: report.max_memory_bytes for report in reports.values()} == limits


async def explains_what_it_can(line: Line, lost: set[str]) -> None:
    """A key whose depot nobody can read has a story of its stop, which says so; the other way round there is none."""
    names = {key: (f"Stop:{number}" in lost, f"Depot:{number}" in lost) for number, key in KEYS.items()}
    told = next(key for key, are_lost in names.items() if are_lost == (False, True))
    story = await line.client.explain(told)
    assert story.object_name == "Stop"
    assert story.lines
    assert story.problems[0].startswith(f"whether Depot has an object {told}: ")
    hidden = next(key for key, are_lost in names.items() if are_lost == (True, False))
    with pytest.raises(StoreUnavailable, match=f"whether Stop has an object {hidden}"):
        await line.client.explain(hidden)


async def test_an_object_on_the_move_is_found_without_its_type(cluster: ClusterServers, namespace: str) -> None:
    """Its story reads one key at a time, and so does the search for it."""
    async with running(cluster, namespace) as line, line.moving():
        story = await line.client.explain(KEYS[line.away.number])
        assert (story.object_name, story.problems) == ("Stop", ())
        assert story.lines
