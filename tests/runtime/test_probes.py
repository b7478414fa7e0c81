"""Circles of independent invocations are found: one call of a circle is refused, and the others go on."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keylane import Client, Handle, Runtime
from keylane.journal.batch import Commit
from keylane.journal.errors import KeylaneError
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.probes import Edge, Probe
from keylane.journal.standing import Status
from keylane.runtime import probes as probes_module
from keylane.runtime.endings import accept_in_order
from keylane.runtime.invocation import Invocation
from keylane.runtime.lane import Lane
from keylane.runtime.probes import TOGETHER_SECONDS, UNTAKEN_MAX, Probes
from keylane.runtime.withdrawal import refuse_queued
from tests.circles_catalogue import follow, node, other, visits
from tests.faults.harness import eventually, eventually_answers
from tests.objects_catalogue import marks

pytestmark = pytest.mark.anyio

#: Promised are two seconds; a machine that does other things meanwhile may be late, but a circle that no probe finds
#: is there until somebody looks into it.
FOUND_SECONDS = 8.0
Plan = list[Any]
NOTHING: Plan = []


@dataclass
class Held:
    """Invocations that hold their lanes until a file exists, and then go on."""

    handles: list[Handle[Any]]
    trail: Path
    gate: Path

    async def all_begun(self) -> None:
        await eventually(lambda: len(marks(self.trail)) >= len(self.handles), "all hold their lanes")

    async def results(self, seconds: float = 20.0) -> list[list[str]]:
        """Let them go on, and return the circles that each has met."""
        self.gate.touch()
        return [await handle.result(timeout=seconds) for handle in self.handles]


async def hold(client: Client, folder: Path, plans: dict[str, Plan], *, type_name: str = "Node") -> Held:
    """Have objects hold their lanes, each with a plan for what follows."""
    trail, gate = folder / "trail", folder / "gate"
    handler = {"Node": "follow", "Other": "follow_too"}[type_name]
    wait = [["mark", str(trail)], ["gate", str(gate)]]
    handles = [await client.send(type_name, f"acme/{key}", handler, [*wait, *plan]) for key, plan in plans.items()]
    held = Held(handles, trail, gate)
    await held.all_begun()
    return held


def record_sent(monkeypatch: pytest.MonkeyPatch) -> list[Probe]:
    """Have probes kept instead of sent."""
    sent: list[Probe] = []

    def keep(self: Probes, probe: Probe) -> None:
        del self
        sent.append(probe)

    monkeypatch.setattr(Probes, "_forward", keep)
    return sent


def circle(size: int, hops: int = 1) -> dict[str, Plan]:
    """Return plans by which each object calls the next one, by way of others that only pass the call on."""
    plans: dict[str, Plan] = {}
    for number in range(size):
        plan: Plan = []
        for key in [str((number + 1) % size), *(f"{number}-{hop}" for hop in range(hops - 1))]:
            plan = [["Node", key, plan]]
        plans[str(number)] = plan
    return plans


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime([node], store=store_url, namespace=namespace) as runtime:
        yield runtime


async def check_is_free(client: Client, keys: Sequence[str]) -> None:
    """Make sure that nothing is open in lanes, and that something can run in them."""
    for key in keys:
        assert await client.call(follow, f"acme/{key}", NOTHING, timeout=5) == []
        assert (await client.inspect("Node", f"acme/{key}")).lane.open == ()


def only_circle(results: list[list[str]]) -> list[str]:
    """Return the path of the only circle that was met."""
    (path,) = [path for paths in results for path in paths]
    names = path.split(" → ")
    assert names[0] == names[-1]
    assert len(set(names)) == len(names) - 1
    return names[1:]


@pytest.mark.parametrize(("size", "hops"), [(2, 1), (3, 1), (7, 1), (2, 3)])
async def test_one_call_of_a_circle_is_refused_and_the_others_go_on(
    runtime: Runtime, tmp_path: Path, size: int, hops: int
) -> None:
    """X holds A and calls B, Y holds B and calls A; longer ones too, and by way of objects that pass a call on."""
    held = await hold(runtime.client, tmp_path, circle(size, hops))
    began = time.monotonic()
    results = await held.results()

    assert time.monotonic() - began < FOUND_SECONDS
    assert len(only_circle(results)) == size * hops
    await check_is_free(runtime.client, [str(number) for number in range(size)])


async def test_what_waits_behind_a_refused_call_keeps_its_place(runtime: Runtime, tmp_path: Path) -> None:
    """And what leads into a circle without being part of it waits, and is not refused."""
    outside: dict[str, Plan] = {"3": [["Node", "0", []]], "4": [["Node", "3", []]]}
    results = await (await hold(runtime.client, tmp_path, circle(2) | outside)).results()

    assert sorted(only_circle(results)) == ["Node.follow at acme/0", "Node.follow at acme/1"]
    assert results[2:] == [[], []]


async def test_a_circle_of_two_workers_is_found(runtime: Runtime, tmp_path: Path) -> None:
    """The probe goes by way of inboxes where the next lane is another worker's."""
    async with Runtime([other], store=runtime.store_url, namespace=runtime.namespace) as second:
        first = await hold(runtime.client, tmp_path, {"a": [["Other", "b", []]], "c": [["Node", "a", []]]})
        held = await hold(second.client, tmp_path, {"b": [["Node", "c", []]]}, type_name="Other")
        began = time.monotonic()
        results = [*await held.results(), *await first.results()]

        assert time.monotonic() - began < FOUND_SECONDS
        names = only_circle(results)
        assert sorted(names) == ["Node.follow at acme/a", "Node.follow at acme/c", "Other.follow_too at acme/b"]


async def test_a_chain_that_ends_in_a_sleep_is_no_circle(runtime: Runtime, tmp_path: Path) -> None:
    """Whoever sleeps goes on by itself: those who wait for it are left alone, however long."""
    plans: dict[str, Plan] = {"0": [["Node", "1", []]], "1": [["sleep", 1.5], ["Node", "2", []]], "2": [["sleep", 1.2]]}
    assert await (await hold(runtime.client, tmp_path, plans)).results() == [[], [], []]


async def test_calls_that_meet_at_one_object_are_no_circle(runtime: Runtime, tmp_path: Path) -> None:
    """A diamond of independent invocations: the corner serves one after the other."""
    corner: Plan = ["Node", "9", [["sleep", 0.3]]]
    plans: dict[str, Plan] = {
        "0": [["Node", "1", []], corner],
        "1": [corner],
        "2": [corner, ["Node", "3", []]],
        "3": [corner],
    }
    assert await (await hold(runtime.client, tmp_path, plans)).results() == [[], [], [], []]


@pytest.mark.parametrize("lost", [1, 3])
async def test_a_circle_whose_probes_are_lost_is_found_by_the_sweep(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """They are not durable: what is lost is sent again, a sweep later."""
    forward, left = Probes._forward, [lost]  # pyright: ignore[reportPrivateUsage]

    def lose(self: Probes, probe: Probe) -> None:
        left[0] -= 1
        if left[0] < 0:
            forward(self, probe)

    monkeypatch.setattr(Probes, "_forward", lose)
    held = await hold(runtime.client, tmp_path, circle(2))
    began = time.monotonic()
    assert len(only_circle(await held.results())) == 2
    assert left[0] < 0
    assert time.monotonic() - began < FOUND_SECONDS + 2


async def test_a_circle_is_found_by_an_owner_that_has_come_since(
    store_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes that stand still are not read at a take-over; those in which calls wait are noted in the store."""
    with monkeypatch.context() as patched:
        patched.setattr(Probes, "_forward", forget)
        async with Runtime([node], store=store_url, namespace=namespace) as first:
            held = await hold(first.client, tmp_path, circle(3))
            held.gate.touch()
            await eventually_answers(lambda: all_wait(first.client, held.handles), "all wait for each other")
            await eventually_answers(lambda: are_noted(first, 3), "all lanes are noted")
    async with Runtime([node], store=store_url, namespace=namespace) as second:
        began = time.monotonic()
        results = [await second.client.attach(each.id, list[str]).result(timeout=10) for each in held.handles]
        assert len(only_circle(results)) == 3
        assert time.monotonic() - began < FOUND_SECONDS
        await eventually_answers(lambda: are_noted(second, 0), "nothing is left in the store", seconds=20)


def forget(self: Probes, probe: Probe) -> None:
    del self, probe


async def all_wait(client: Client, handles: Sequence[Handle[Any]]) -> bool:
    return all([(await client.describe(handle.id)).status == "waiting" for handle in handles])


async def are_noted(runtime: Runtime, count: int) -> bool:
    spaces = [partition.space for partition in runtime.worker.partitions]
    return sum([await runtime.client.store.call("SCARD", space.blocked) for space in spaces]) == count


def nobody_holds(space: PartitionSpace) -> None:
    del space


async def test_probes_for_an_owner_that_does_not_come_do_not_pile_up(runtime: Runtime) -> None:
    """So many lie in an inbox at most, as long as nobody takes them out."""
    async with Runtime([other], store=runtime.store_url, namespace=runtime.namespace):
        pass
    probes = Probes(runtime.client.store, nobody_holds)
    edge = Edge("Node", "acme/0", "follow", b"i" * 16, 0, "Other", 1, "acme/1", b"t" * 16)
    space = runtime.client.store.space("Other", 1)
    for _ in range(10):
        for _ in range(UNTAKEN_MAX // 2):
            probes._forward(Probe((edge,)))  # pyright: ignore[reportPrivateUsage]
        await runtime.client.store.call("XLEN", space.inbox)
    assert 0 < await runtime.client.store.call("XLEN", space.inbox) <= UNTAKEN_MAX


async def test_where_nothing_waits_no_probe_is_sent(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that don't wait behind a holder which waits for a call itself cost no probe, and leave no note."""
    sent = record_sent(monkeypatch)
    async with anyio.create_task_group() as tasks:
        for number in range(50):
            plan: Plan = [["Node", f"{number}-a", [["Node", f"{number}-b", []], ["Node", "shared", []]]]]
            tasks.start_soon(runtime.client.call, follow, f"acme/{number}", plan)

    assert await runtime.client.call(visits, "acme/shared") == 50
    assert sent == []
    assert await are_noted(runtime, 0)


async def test_calls_that_come_together_share_a_probe(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind one that waits for a call, a hundred calls in a moment cost a few probes and not a hundred."""
    sent = record_sent(monkeypatch)
    slow = await hold(runtime.client, tmp_path, {"slow": []})
    began = time.monotonic()
    to_slow: Plan = [["Node", "slow", []]]
    to_first: Plan = [["Node", "first", []]]
    first = await runtime.client.send(follow, "acme/first", to_slow)
    await eventually_answers(lambda: all_wait(runtime.client, [first]), "the first waits")
    handles = [await runtime.client.send(follow, f"acme/{n}", to_first) for n in range(100)]
    await eventually_answers(lambda: all_wait(runtime.client, handles), "all wait behind it")

    assert 1 <= len(sent) <= (time.monotonic() - began) / TOGETHER_SECONDS + 2
    await slow.results()
    assert [await handle.result(timeout=10) for handle in handles] == [[]] * 100


def fail(commit: Commit) -> None:
    commit.done(0, RuntimeError("refused by the test"))


def is_as_before(lane: Lane) -> bool:
    """Return whether a lane has its holder, and one that waits behind it."""
    statuses = [each.standing.status for each in lane.queue if each.standing is not None]
    return lane.loaded and not lane.refused and statuses == [Status.WAITING, Status.QUEUED]


async def test_a_call_that_the_store_keeps_in_its_lane_has_its_place_back(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the store refuses the commit nobody is told, it waits behind the holder as before, and is refused later."""
    held = await hold(runtime.client, tmp_path, circle(2))
    lanes: list[Lane] = []

    def refuse_in_vain(lane: Lane, invocation: Invocation, error: KeylaneError) -> None:
        lanes.append(lane)
        monkeypatch.setattr(Probes, "_forward", forget)
        accept_in_order(lane, invocation)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(lane.partition.writer, "commit", fail)
            refuse_queued(lane, invocation, error)
        monkeypatch.setattr(probes_module, "refuse_queued", refuse_queued)

    monkeypatch.setattr(probes_module, "refuse_queued", refuse_in_vain)
    forward = Probes._forward  # pyright: ignore[reportPrivateUsage]
    held.gate.touch()
    await eventually(lambda: bool(lanes) and is_as_before(lanes[0]), "the lane is read anew")
    monkeypatch.setattr(Probes, "_forward", forward)

    assert len(only_circle(await held.results())) == 2
    await check_is_free(runtime.client, ["0", "1"])


@dataclass
class Hosting:
    """A runtime in a thread of its own, where hypothesis can use it."""

    portal: BlockingPortal
    runtime: Runtime


@pytest.fixture(scope="module")
def hosting(store_url: str) -> Iterator[Hosting]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Runtime([node], store=store_url, namespace="probes")) as runtime,
    ):
        yield Hosting(portal, runtime)


def trees(depth: int, low: int = 0) -> st.SearchStrategy[Plan]:
    """Draw what a handler calls, so many hops deep; with `low`, only objects from there on, and ever higher ones."""
    if not depth or low > 6:
        return st.just([])
    return st.lists(st.integers(low, 6).flatmap(lambda number: calls(depth, number, low)), max_size=2)


def calls(depth: int, number: int, low: int) -> st.SearchStrategy[list[Any]]:
    further = trees(depth - 1, number + 1 if low else 0)
    return further.map(lambda plan: ["Node", str(number), plan])


any_roots = st.lists(st.tuples(st.integers(0, 6), trees(6)), min_size=2, max_size=6)
ordered_roots = st.lists(
    st.integers(1, 6).flatmap(lambda number: st.tuples(st.just(number), trees(6, number + 1))), min_size=2, max_size=8
)
quick = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@quick
@given(roots=any_roots)
def test_no_graphs_of_independent_calls_end_with_a_lane_held(hosting: Hosting, roots: list[tuple[int, Plan]]) -> None:
    """Up to six hops, all at once: every call ends soon, refused ones with a circle, and all lanes are free."""
    for path in hosting.portal.call(run_all, hosting.runtime, roots):
        names = path.split(" → ")
        assert names[-1] in names[:-1]


@quick
@given(roots=ordered_roots)
def test_calls_that_follow_an_order_of_the_objects_are_never_refused(
    hosting: Hosting, roots: list[tuple[int, Plan]]
) -> None:
    """Each calls only objects with a higher number: whatever waits for whom, there is no circle."""
    assert hosting.portal.call(run_all, hosting.runtime, roots) == []


async def run_all(runtime: Runtime, roots: list[tuple[int, Plan]]) -> list[str]:
    """Run plans at once, and return the circles that they met."""
    handles = [await runtime.client.send(follow, f"acme/{number}", plan) for number, plan in roots]
    results = [await handle.result(timeout=20) for handle in handles]
    await check_is_free(runtime.client, [str(number) for number in range(7)])
    return [path for paths in results for path in paths]


async def test_without_probes_a_circle_stands_still(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A safeguard that nobody would miss is no safeguard."""
    monkeypatch.setattr(Probes, "_forward", forget)
    held = await hold(runtime.client, tmp_path, circle(2))
    held.gate.touch()
    await eventually_answers(lambda: all_wait(runtime.client, held.handles), "both wait for each other")
    with suppress(TimeoutError), anyio.fail_after(2.5):
        await held.handles[0].result()
        pytest.fail("it ended")
    assert await all_wait(runtime.client, held.handles)
