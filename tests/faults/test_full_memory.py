"""A store whose memory is full: new work is refused, running work parks in place, and everything goes on by itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from keylane import App, Client, Handle, ObjectContext, Runtime, StoreFull, VirtualObject
from keylane.objects.settings import Settings
from tests.objects_catalogue import (
    Gates,
    add,
    app,
    get,
    mark,
    marks,
    never_works,
    opened,
    step_between_gates,
    three_slow_steps,
)

from .harness import StoreServer, eventually, eventually_answers
from .memory_filler import Filler
from .worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

KEY = "acme/one"
FAST = Settings(lease_seconds=0.6, renewal_seconds=0.15, sweep_seconds=0.2)


@asynccontextmanager
async def hosting(server: StoreServer, namespace: str) -> AsyncGenerator[Runtime]:
    async with Runtime(app, store=server.url, namespace=namespace, settings=FAST) as runtime:
        yield runtime


@pytest.fixture
async def runtime(own_server: StoreServer, namespace: str) -> AsyncIterator[Runtime]:
    async with hosting(own_server, namespace) as runtime:
        yield runtime


@pytest.fixture
async def remote(own_server: StoreServer, runtime: Runtime, namespace: str) -> AsyncIterator[Client]:
    del runtime
    async with Client(own_server.url, namespace=namespace, settings=FAST) as client:
        yield client


async def known(client: Client, *, full: bool) -> None:
    """Wait until a process has seen how its store stands."""
    await eventually(lambda: all(each.memory.is_full is full for each in client.store.nodes), f"full: {full}")


async def test_new_work_is_refused_with_a_clear_error_and_reads_go_on(
    runtime: Runtime, remote: Client, own_server: StoreServer
) -> None:
    """In the owner's process and elsewhere, with the handler's types and by its name."""
    client = runtime.client
    assert await client.call(add, KEY, 1, timeout=10) == 1
    filler = Filler(own_server)
    filler.fill()
    await known(client, full=True)
    await known(remote, full=True)

    for caller in (client, remote):
        with pytest.raises(StoreFull, match=r"10\d%"):
            await caller.call(add, KEY, 1, timeout=10)
        with pytest.raises(StoreFull):
            await caller.call("Counter", KEY, "add", 1, timeout=10)
        with pytest.raises(StoreFull):
            await caller.send(add, KEY, 1)
        assert await caller.call(get, KEY, timeout=10) == 1

    filler.empty()
    await known(client, full=False)
    await known(remote, full=False)
    assert await remote.call(add, KEY, 1, timeout=10) == 2
    assert await client.call(add, KEY, 1, timeout=10) == 3


async def test_intake_stops_before_memory_is_full_and_begins_again_only_well_below(
    runtime: Runtime, remote: Client, own_server: StoreServer
) -> None:
    """At 90 % of maxmemory the server would still take everything; work that was begun needs the rest."""
    client = runtime.client
    filler = Filler(own_server)
    filler.fill_to(0.93)
    await known(client, full=True)
    await known(remote, full=True)
    with pytest.raises(StoreFull):
        await client.call(add, KEY, 1, timeout=10)
    with pytest.raises(StoreFull):
        await remote.call("Counter", KEY, "add", 1, timeout=10)
    assert await remote.call("Counter", KEY, "get", timeout=10) == 0

    watch = client.store.nodes[0].memory
    own_server.ask("CONFIG", "SET", "maxmemory", int(filler.used_bytes / 0.88))
    await watch.look()
    assert watch.is_full
    own_server.ask("CONFIG", "SET", "maxmemory", int(filler.used_bytes / 0.8))
    await known(client, full=False)
    assert await client.call(add, KEY, 1, timeout=10) == 1


async def test_running_work_parks_before_its_next_step_visibly_and_goes_on_by_itself(
    runtime: Runtime, remote: Client, own_server: StoreServer, trail: Path, tmp_path: Path
) -> None:
    """No step is started; `describe` and `inspect` say why; with room the same run goes on, each step done once."""
    gate = tmp_path / "gate"
    handle = await runtime.client.send(step_between_gates, KEY, Gates(str(trail), str(gate)))
    await eventually(lambda: len(marks(trail)) == 1, "the first step has run")
    filler = Filler(own_server)
    filler.fill()
    await known(runtime.client, full=True)
    await known(remote, full=True)
    gate.touch()
    await eventually(lambda: waiting_steps(runtime) == 1, "the second step waits")

    told = await remote.describe(handle.id)
    seen = await remote.inspect("Steps", KEY)

    assert "next step waits until there is room" in told.note
    assert "of the store's memory are in use" in told.note
    assert seen.lane.holder is not None
    assert "no step is started" in seen.lane.holder.why
    assert len(marks(trail)) == 1

    filler.empty()
    result = await handle.result(timeout=10)
    assert result.split() == [token for _, token in marks(trail)]
    assert len(marks(trail)) == 2


def waiting_steps(runtime: Runtime) -> int:
    return sum(len(partition.sleepers) for partition in runtime.worker.partitions)


async def test_a_resumption_gets_through(
    runtime: Runtime, remote: Client, own_server: StoreServer, trail: Path
) -> None:
    """What was taken in before is let go on from outside; here it fails again, and is parked again."""
    handle = await remote.send(never_works, KEY, str(trail))
    await eventually_answers(lambda: is_paused(remote, handle.id), "it is paused")
    attempts = len(marks(trail))
    filler = Filler(own_server)
    filler.fill()
    await known(runtime.client, full=True)
    await known(remote, full=True)

    await remote.resume(handle.id, reason="try again", by="test", timeout=10)
    await eventually(lambda: len(marks(trail)) == 2 * attempts, "it was tried again")
    await eventually_answers(lambda: is_paused(remote, handle.id), "it is paused again")


async def is_paused(client: Client, invocation_id: str) -> bool:
    return (await client.describe(invocation_id)).pause is not None


async def test_requests_that_came_before_wait_in_their_order(
    runtime: Runtime, remote: Client, own_server: StoreServer, trail: Path
) -> None:
    """Sends that the inbox took just before the store was full are done afterwards, each once and in their order."""
    filler = Filler(own_server)
    for node in (*runtime.client.store.nodes, *remote.store.nodes):
        # As between two looks: the owner knows, the sender does not.
        node.memory.note_refusal()
    for node in remote.store.nodes:
        node.memory.is_full = False
    words = [f"word {number}" for number in range(20)]
    handles = [await remote.send("Steps", KEY, "one_step", str(trail)) for _ in words]
    filler.fill()
    await known(runtime.client, full=True)
    assert marks(trail) == []

    filler.empty()
    tokens = [await handle.result(timeout=20) for handle in handles]
    assert [token for _, token in marks(trail)] == tokens


async def test_a_call_that_the_store_refuses_itself_leaves_nothing_behind(
    runtime: Runtime, own_server: StoreServer
) -> None:
    """Where memory fills up between two looks, the commit is refused, and its caller is told so."""
    client = runtime.client
    own_server.ask("CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(StoreFull):
        await client.call(add, KEY, 1, timeout=10)
    assert own_server.keys(f"{{{runtime.namespace}:*:[oqirk]:*") == []

    own_server.ask("CONFIG", "SET", "maxmemory", 0)
    await known(client, full=False)
    assert await client.call(add, KEY, 1, timeout=10) == 1


async def test_requests_that_the_store_refuses_itself_stay_in_the_inbox_in_their_order(
    runtime: Runtime, remote: Client, own_server: StoreServer, trail: Path
) -> None:
    """They are taken in when there is room, each once, and nothing that comes later goes ahead of them."""
    handles = [await remote.send("Steps", KEY, "one_step", str(trail)) for _ in range(3)]
    # At once, before the owner has taken all of them in.
    own_server.ask("CONFIG", "SET", "maxmemory", 1)
    await eventually(lambda: put_back(runtime), "their commit was refused")
    left = inboxes(own_server, runtime.namespace)
    assert len(marks(trail)) + left <= len(handles)

    room = runtime.client.store.nodes[0].memory.room()
    own_server.ask("CONFIG", "SET", "maxmemory", 0)
    await room
    # Before the owner has read its inbox again.
    last = await runtime.client.call("Steps", KEY, "one_step", str(trail), timeout=10)

    tokens = [await handle.result(timeout=10) for handle in handles]
    assert [token for _, token in marks(trail)] == [*tokens, last]
    await eventually(lambda: not put_back(runtime), "the inbox is read")


gated = VirtualObject("Gated", owner="tests")


async def mark_and_wait(trail: str, gate: str) -> str:
    """Leave a mark, then wait until a file exists."""
    token = mark(trail, "step")
    await opened(gate)
    return token


@gated.handler
async def hold_in_a_step(ctx: ObjectContext, request: Gates) -> str:
    """Run one step that takes as long as the test wants."""
    return await ctx.run("hold", mark_and_wait, request.trail, request.gate)


async def test_a_step_under_way_is_recorded_and_its_invocation_ends(
    own_server: StoreServer, namespace: str, trail: Path, tmp_path: Path
) -> None:
    """The outcome of what has happened outside is written, whatever the memory says."""
    gates = Gates(str(trail), str(tmp_path / "gate"))
    async with Runtime(App([gated]), store=own_server.url, namespace=namespace, settings=FAST) as runtime:
        handle = await runtime.client.send(hold_in_a_step, KEY, gates)
        await eventually(lambda: marks(trail), "the step runs")
        Filler(own_server).fill()
        await known(runtime.client, full=True)
        Path(gates.gate).touch()

        assert [await handle.result(timeout=10)] == [token for _, token in marks(trail)]


async def test_a_step_is_not_run_again_because_those_behind_it_are_refused(
    own_server: StoreServer, namespace: str, trail: Path, tmp_path: Path
) -> None:
    """What runs in a lane is not built on what waits there: it goes on, and its outcome is recorded."""
    gates = Gates(str(trail), str(tmp_path / "gate"))
    async with Runtime(App([gated]), store=own_server.url, namespace=namespace, settings=FAST) as runtime:
        handle = await runtime.client.send(hold_in_a_step, KEY, gates)
        await eventually(lambda: marks(trail), "the step runs")
        own_server.ask("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StoreFull):
            await runtime.client.call(hold_in_a_step, KEY, gates, timeout=10)
        Path(gates.gate).touch()

        assert [await handle.result(timeout=10)] == [token for _, token in marks(trail)]


def put_back(runtime: Runtime) -> bool:
    return any(partition.inbox.behind for partition in runtime.worker.partitions)


async def test_a_take_over_at_full_memory_works(own_server: StoreServer, namespace: str, trail: Path) -> None:
    """The worker dies while memory is full: another one starts, takes over, and ends the work when there is room."""
    async with Client(own_server.url, namespace=namespace, settings=FAST) as client:
        with WorkerProcess(own_server.url, namespace) as worker:
            await worker.ready()
            assert await client.call(add, KEY, 1, timeout=10) == 1
            gate = trail.with_suffix(".gate")
            handle = await client.send(step_between_gates, KEY, Gates(str(trail), str(gate)))
            await eventually(lambda: len(marks(trail)) == 1, "the first step has run")
            filler = Filler(own_server)
            filler.fill()
            worker.kill()
        gate.touch()
        with WorkerProcess(own_server.url, namespace) as successor:
            await successor.ready()
            await known(client, full=True)
            assert await client.call(get, KEY, timeout=10) == 1
            with pytest.raises(StoreFull):
                await client.call(add, KEY, 1, timeout=10)
            assert len(marks(trail)) == 1

            filler.empty()
            assert len((await handle.result(timeout=10)).split()) == 2
            await known(client, full=False)
            assert await client.call(add, KEY, 1, timeout=10) == 2
        assert len(marks(trail)) == 2


async def test_nothing_is_half_written_while_memory_fills_and_empties_under_load(
    runtime: Runtime, remote: Client, own_server: StoreServer, tmp_path: Path
) -> None:
    """Every call that was answered counts once, every one that was refused does not, and nothing is left behind."""
    answered: dict[str, int] = {}
    refusals = 0
    handles: list[tuple[Path, Handle[list[str]]]] = []
    is_over = anyio.Event()

    async def call(client: Client, key: str) -> None:
        nonlocal refusals
        while not is_over.is_set():
            try:
                await client.call(add, key, 1, timeout=20)
                answered[key] = answered.get(key, 0) + 1
            except StoreFull:
                refusals += 1
                await anyio.sleep(0.01)

    async def send(key: str) -> None:
        nonlocal refusals
        number = 0
        while not is_over.is_set():
            try:
                trail = tmp_path / f"{key.replace('/', '-')}-{number}"
                handles.append((trail, await remote.send(three_slow_steps, key, str(trail))))
                number += 1
            except StoreFull:
                refusals += 1
            await anyio.sleep(0.01)

    filler = Filler(own_server, 24 << 20)
    async with anyio.create_task_group() as load:
        for number in range(8):
            load.start_soon(call, runtime.client if number % 2 else remote, f"acme/{number}")
        for number in range(4):
            load.start_soon(send, f"acme/s{number}")
        for _ in range(3):
            await anyio.sleep(0.3)
            filler.fill()
            await known(runtime.client, full=True)
            await anyio.sleep(0.5)
            filler.empty()
            await known(runtime.client, full=False)
        is_over.set()
    own_server.ask("CONFIG", "SET", "maxmemory", 0)

    assert refusals > 0
    for key, count in answered.items():
        assert await remote.call(get, key, timeout=10) == count
    for trail, handle in handles:
        assert len(await handle.result(timeout=20)) == 3
        assert [word for word, _ in marks(trail)] == ["first", "second", "third"]
    left = [key for key in own_server.keys(f"{{{runtime.namespace}:*") if b"}:q:" in key or b"}:run" in key]
    assert left == []
    await eventually(lambda: not inboxes(own_server, runtime.namespace), "the inboxes are empty")


def inboxes(server: StoreServer, namespace: str) -> int:
    return sum(server.ask("XLEN", key) for key in server.keys(f"{{{namespace}:*}}:inbox"))
