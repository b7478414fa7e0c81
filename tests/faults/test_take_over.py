"""Take-overs that go wrong in the middle: a store that restarts, a taker that stands still, a blocked owner."""

from __future__ import annotations

import itertools
import signal
import time
from pathlib import Path

import anyio
import pytest

from keylane import Client, InvocationPaused
from tests.objects_catalogue import Blocking, block_once, get, marks, runs, three_slow_steps

from .fault_points import Action, Fault, Moment
from .harness import StoreServer, eventually, quickest
from .test_kill import POINTS
from .worker_process import FAST, WorkerProcess

pytestmark = pytest.mark.anyio

KEY = "acme/one"
LEASE_SECONDS = float(str(FAST["lease_seconds"]))
FREE_SECONDS = LEASE_SECONDS + 1
#: Short enough that a blocked event loop costs the lease within a test.
SOON_STUCK = {"stuck_after_seconds": 1.0}


async def test_a_store_that_restarts_during_a_take_over_strands_nothing(
    own_server: StoreServer, namespace: str, tmp_path: Path
) -> None:
    """Killed 0.2 s after the owner, in the middle of the recovery of 250 invocations, and started again: all end."""
    trails = [tmp_path / f"trail-{number}" for number in range(250)]
    async with Client(own_server.url, namespace=namespace) as client:
        with WorkerProcess(own_server.url, namespace) as first:
            await first.ready()
            handles = [
                await client.send(three_slow_steps, f"acme/{number % 125}", str(path))
                for number, path in enumerate(trails)
            ]
            with WorkerProcess(own_server.url, namespace) as second:
                await second.ready()
                first.kill()
                await anyio.sleep(0.2)
                own_server.kill()
                own_server.start()
                results = [await handle.result(timeout=30) for handle in handles]

                assert second.returncode is None

    for path, result in zip(trails, results, strict=True):
        assert set(result) <= {token for _, token in marks(path)}
        assert len(set(result)) == 3


@pytest.mark.parametrize("moment", Moment)
async def test_a_taker_that_stands_still_while_another_takes_over_runs_nothing(
    shared_server: StoreServer, namespace: str, trail: Path, moment: Moment
) -> None:
    """It stands before its first acquisition, or behind it; what it knew of the work there was is of no use then."""
    stop = Fault(Action.STOP, moment, 1, "acquire")
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, faults="kill:after:2") as dying:
            await dying.ready()
            handle = await client.send("Steps", KEY, "three_steps", str(trail))
            assert await dying.ended() == -signal.SIGKILL
        with WorkerProcess(shared_server.url, namespace, faults=str(stop)) as stopped:
            await eventually(lambda: stopped.is_stopped, "the taker stands still")
            with WorkerProcess(shared_server.url, namespace) as other:
                await other.ready()
                done = await handle.result(timeout=10)
                ran = marks(trail)

                stopped.go_on()
                await stopped.ready()
                assert await client.call("Counter", KEY, "add", 1, timeout=10) == 1
                assert await client.call("Steps", KEY, "done", timeout=10) == done

    assert marks(trail) == ran
    assert len(done) == 3


async def test_an_owner_whose_event_loop_is_blocked_past_its_lease_completes_nothing(
    shared_server: StoreServer, namespace: str, trail: Path, tmp_path: Path
) -> None:
    """A handler blocks without await: another worker runs it meanwhile, and the first one's completion is refused."""
    gate = tmp_path / "gate"
    request = Blocking(str(trail), str(gate))
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, settings=SOON_STUCK) as blocked:
            await blocked.ready()
            handle = await client.send(block_once, KEY, request)
            await eventually(lambda: marks(trail), "the handler blocks the loop")
            with WorkerProcess(shared_server.url, namespace, settings=SOON_STUCK) as other:
                await other.ready()
                assert await handle.result(timeout=20) == [other.pid]
                gate.touch()
                await eventually(lambda: "another owner" in blocked.stderr, "the first one is back")
                kept = await client.call(runs, KEY, timeout=10)
                again = await client.call(block_once, KEY, request, timeout=10)

    assert kept == [other.pid]
    assert again in ([other.pid, other.pid], [other.pid, blocked.pid])
    assert "block_once" in blocked.stderr


@pytest.mark.parametrize(
    "point",
    [pytest.param(point, id=str(point), marks=[] if number in {1, 4, 9} else [pytest.mark.nightly])
     for number, point in enumerate(POINTS)],
)  # fmt: skip
async def test_a_lane_is_free_within_a_lease_and_a_second_of_its_holders_death(
    shared_server: StoreServer, namespace: str, tmp_path: Path, point: Fault
) -> None:
    """Killed at any await of a handler: the next exclusive call of the key goes on, also where only the lease tells."""
    rounds = itertools.count()

    async def freed() -> float:
        number = next(rounds)
        folder = tmp_path / str(number)
        folder.mkdir()
        return await seconds_until_free(shared_server, f"{namespace}-{number}", folder, point)

    assert await quickest(FREE_SECONDS, freed) < FREE_SECONDS


async def seconds_until_free(server: StoreServer, namespace: str, folder: Path, point: Fault) -> float:
    """Have one of two workers die at a point, and return how long calls of its keys take from then on."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    async with Client(server.url, namespace=namespace) as client:
        with (
            WorkerProcess(server.url, namespace, faults=str(point)) as dying,
            WorkerProcess(server.url, namespace, temporary=elsewhere) as other,
        ):
            await dying.ready()
            await other.ready()
            number = 0
            while dying.returncode is None:
                # Whichever of the two owns the key: the one that dies gets its share.
                number += 1
                await client.send("Steps", f"acme/{number}", "three_steps", str(folder / f"trail-{number}"))
                await anyio.sleep(0.01)
            died = time.monotonic()
            for each in range(max(number - 2, 1), number + 1):
                await client.call("Steps", f"acme/{each}", "one_step", str(folder / "trail"), timeout=10)
            took_seconds = time.monotonic() - died
    assert dying.returncode == -signal.SIGKILL
    return took_seconds


async def test_readers_are_answered_while_a_handler_keeps_its_worker_busy(
    shared_server: StoreServer, namespace: str, trail: Path, tmp_path: Path
) -> None:
    """`describe`, `inspect` and a listing of the lane ask the store and not the worker that does nothing else."""
    gate = tmp_path / "gate"
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace) as worker:
            await worker.ready()
            queued = await client.send(block_once, KEY, Blocking(str(trail), str(gate)))
            await eventually(lambda: marks(trail), "the handler blocks the loop")
            behind = await client.send(block_once, KEY, Blocking(str(trail), str(gate)))

            with anyio.fail_after(10):
                first = await client.describe(queued.id)
                second = await client.describe(behind.id)
                lane = (await client.inspect("Slow", KEY)).lane
            gate.touch()

            assert await behind.result(timeout=10) == [worker.pid, worker.pid]

    assert not {first.status, second.status} & {"completed", "failed"}
    assert [*lane.open, *lane.waiting]


async def test_connections_for_messages_that_are_killed_again_and_again_stall_nothing(
    own_server: StoreServer, namespace: str
) -> None:
    """CLIENT KILL TYPE pubsub in a loop: what no hint tells is found by looking."""
    killed = 0
    answers: list[int] = []

    async def call_on(client: Client) -> None:
        for _ in range(30):
            answers.append(await client.call("Counter", KEY, "add", 1, timeout=10))  # noqa: PERF401

    async with Client(own_server.url, namespace=namespace) as client:
        with WorkerProcess(own_server.url, namespace) as worker:
            await worker.ready()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call_on, client)
                while len(answers) < 30:
                    killed += own_server.ask("CLIENT", "KILL", "TYPE", "pubsub")
                    await anyio.sleep(0.02)
            assert await client.call(get, KEY, timeout=10) == 30

    assert answers == list(range(1, 31))
    assert killed > 2


@pytest.mark.quiet
async def test_a_killed_lone_worker_serves_soon_after_it_is_started_again(
    shared_server: StoreServer, namespace: str
) -> None:
    """On its own machine nobody waits for the lease of the dead; `benchmarks.takeover` says how long a start takes."""
    settings = {"lease_seconds": 20, "renewal_seconds": 5}
    took: list[float] = []
    async with Client(shared_server.url, namespace=namespace) as client:
        worker = WorkerProcess(shared_server.url, namespace, settings=settings)
        await worker.ready()
        for number in range(1, 4):
            assert await client.call("Counter", KEY, "add", 1, timeout=10) == number
            worker.kill()
            begun = time.monotonic()
            worker = WorkerProcess(shared_server.url, namespace, settings=settings)
            assert await client.call("Counter", KEY, "get", timeout=15) == number
            took.append(time.monotonic() - begun)
        worker.kill()

    # A lease is four times the limit, so that a slow machine can't be taken for a worker that waits for one.
    assert min(took) < 5, took


async def test_paused_work_costs_the_next_owner_nothing(
    shared_server: StoreServer, namespace: str, tmp_path: Path
) -> None:
    """Five hundred parked invocations and one that can go on: after the kill the one goes on, the others stay."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace) as first:
            await first.ready()

            async def park(number: int) -> None:
                with pytest.raises(InvocationPaused):
                    await client.call(
                        "Trouble", f"acme/{number}", "never_works", str(tmp_path / f"trail-{number}"), timeout=20
                    )

            async with anyio.create_task_group() as tasks:
                for number in range(500):
                    tasks.start_soon(park, number)
            gate = tmp_path / "gate"
            handle = await client.send("Slow", KEY, "hold", str(gate))
            await handle.accepted(timeout=10)
            first.kill()
        runnable = [key for key in shared_server.keys(f"{{{namespace}:*}}:run") if shared_server.ask("SCARD", key)]
        with WorkerProcess(shared_server.url, namespace) as second:
            await second.ready()
            gate.touch()
            assert await handle.result(timeout=10) == KEY
            assert (await client.inspect("Trouble", "acme/7")).lane.open[0].status == "paused"

    assert len(runnable) == 1
    assert len(marks(tmp_path / "trail-7")) == 2
