"""Workers that are restarted one after the other under load: no call is lost or doubled, no partition is left alone."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from keylane import Client
from keylane.journal.keyspace import PartitionSpace
from tests.objects_catalogue import marks

from .harness import StoreServer
from .linearizability import calls_of, is_linearizable
from .owner_watch import OwnerWatch
from .recorded_calls import Recorder
from .soak_checker import by_key, check_counter
from .soak_history import HistoryFile, Kind
from .soak_journal import wrong_journals
from .worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

LEASE_SECONDS, RENEWAL_SECONDS = 3.0, 0.3
SETTINGS = {"lease_seconds": LEASE_SECONDS, "renewal_seconds": RENEWAL_SECONDS}
PARTITIONS = 16
KEYS = 20
#: Callers of the measurement, which call as fast as they are answered.
CALLERS = 24
MEASURED_SECONDS = 1.5
STEPS_EVERY_SECONDS = 0.1
#: So many calls may be without an answer at once.
WAITING_MAX = 200


@dataclass
class Deployment:
    """Two workers with the same arguments, each of which is replaced again and again.

    Args:
        server: The store.
        namespace: The test's namespace.
        workers: Those that run.
        processes: All that ever ran.
    """

    server: StoreServer
    namespace: str
    stack: contextlib.ExitStack
    workers: list[WorkerProcess] = field(default_factory=list[WorkerProcess])

    async def start(self) -> WorkerProcess:
        """Start a worker and wait until it hosts."""
        worker = self.stack.enter_context(WorkerProcess(self.server.url, self.namespace, settings=SETTINGS))
        await worker.ready()
        return worker

    async def stop(self, worker: WorkerProcess) -> None:
        """Let a worker drain and end."""
        worker.terminate()
        assert await worker.ended(20) == 0, worker.stderr

    async def restart(self, number: int) -> None:
        """Stop one of the two, then start it again."""
        await self.stop(self.workers[number % 2])
        self.workers[number % 2] = await self.start()

    async def overlap(self, number: int) -> None:
        """Start the next one first, then stop the one before."""
        old, self.workers[number % 2] = self.workers[number % 2], await self.start()
        await self.stop(old)


class Calls:
    """What is asked of the deployment all the time."""

    def __init__(self, client: Client, folder: Path) -> None:
        self._client = client
        self._folder = folder
        self._recorder = Recorder(client, HistoryFile(folder / "history"), "caller")
        self.trails: dict[Path, list[str]] = {}
        self.is_over = False
        self.made = 0
        self._waiting = 0

    async def add(self, number: int) -> None:
        """Add to one of the counters."""
        await self._recorder.add(f"acme/c{number % KEYS}")

    async def measure(self) -> float:
        """Call as fast as answers come, and return how many came per second."""
        until = time.monotonic() + MEASURED_SECONDS
        answered = 0

        async def caller(number: int) -> None:
            nonlocal answered
            while time.monotonic() < until:
                await self.add(number)
                answered += 1

        async with anyio.create_task_group() as callers:
            for number in range(CALLERS):
                callers.start_soon(caller, number)
        return answered / MEASURED_SECONDS

    async def go_on(self, rate: float) -> None:
        """Make so many calls per second until told to stop, as long as not too many are without an answer.

        A machine that has become slower than it was would drown in calls otherwise, and nothing else would be seen.
        """
        begun, due = time.monotonic(), 0
        async with anyio.create_task_group() as calls:
            while not self.is_over:
                wanted = int((time.monotonic() - begun) * rate)
                for number in range(due, wanted):
                    if self._waiting < WAITING_MAX:
                        self._waiting += 1
                        self.made += 1
                        calls.start_soon(self._counted, number)
                due = max(due, wanted)
                await anyio.sleep(0.005)

    async def _counted(self, number: int) -> None:
        await self.add(number)
        self._waiting -= 1

    async def run_steps(self) -> None:
        """Have invocations of three steps on their way all the time."""
        async with anyio.create_task_group() as calls:
            while not self.is_over:
                calls.start_soon(self._three_steps, len(self.trails))
                self.trails[self._folder / f"trail-{len(self.trails)}"] = []
                await anyio.sleep(STEPS_EVERY_SECONDS)

    async def _three_steps(self, number: int) -> None:
        path = self._folder / f"trail-{number}"
        handle = await self._client.send("Steps", f"acme/s{number % KEYS}", "three_slow_steps", str(path))
        self.trails[path] = await handle.result(timeout=20)


async def roll(
    server: StoreServer, namespace: str, folder: Path, times: int, how: Callable[[Deployment, int], Awaitable[None]]
) -> None:
    """Restart two workers so many times under half of what they can do, and check everything that was seen."""
    with contextlib.ExitStack() as stack:
        deployment = Deployment(server, namespace, stack)
        deployment.workers += [await deployment.start(), await deployment.start()]
        async with Client(server.url, namespace=namespace) as client:
            calls = Calls(client, folder)
            rate = await calls.measure()
            spaces = [PartitionSpace(namespace, name, n) for name in ("Counter", "Steps") for n in range(PARTITIONS)]
            begun = time.monotonic()
            with OwnerWatch(str(server.socket), spaces) as watch:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(calls.go_on, rate / 2)
                    tasks.start_soon(calls.run_steps)
                    for number in range(times):
                        await how(deployment, number)
                    calls.is_over = True
                longest, tenures = watch.longest, watch.tenures
            made = calls.made / (time.monotonic() - begun)
            await check(client, server, namespace, folder, calls)
    sys.stderr.write(
        f"\n{times} restarts at {made:,.0f} of {rate:,.0f} calls/s: {tenures} tenures of {len(spaces)} partitions, "
        f"the longest time without a sign of an owner was {longest:.2f} s (lease {LEASE_SECONDS:g} s)\n"
    )
    assert tenures >= len(spaces) + times
    # A sign is a new tenure or a renewal, which even an owner that does well gives only so often.
    assert longest < LEASE_SECONDS + RENEWAL_SECONDS


async def check(client: Client, server: StoreServer, namespace: str, folder: Path, calls: Calls) -> None:
    """Each add counted once, each step's result recorded once, each invocation ended once."""
    operations = HistoryFile(folder / "history").read()
    assert [str(each) for each in operations if not each.is_answered] == []
    for key, each in by_key(operations, Kind.ADD).items():
        final = await client.call("Counter", key, "get", timeout=10)
        assert check_counter(each, final) == []
        assert final == len(each)
        assert is_linearizable(calls_of(each), final=final)
    for path, result in calls.trails.items():
        ran = Counter(word for word, _ in marks(path))
        assert set(ran) == {"first", "second", "third"}
        assert set(result) <= {token for _, token in marks(path)}
        assert len(result) == len(set(result)) == 3
    assert wrong_journals(server, namespace) == []


@pytest.mark.quiet
async def test_workers_restarted_in_turn_lose_and_double_nothing(
    own_server: StoreServer, namespace: str, tmp_path: Path
) -> None:
    """The short form."""
    await roll(own_server, namespace, tmp_path, 4, Deployment.restart)


@pytest.mark.nightly
async def test_workers_restarted_twenty_times_in_turn_lose_and_double_nothing(
    own_server: StoreServer, namespace: str, tmp_path: Path
) -> None:
    """One of the two is away while the other carries what both had."""
    await roll(own_server, namespace, tmp_path, 20, Deployment.restart)


@pytest.mark.nightly
async def test_workers_that_overlap_a_hundred_times_strand_nothing(
    own_server: StoreServer, namespace: str, tmp_path: Path
) -> None:
    """The next one is there before the one before leaves, which must not take back what it has handed over."""
    await roll(own_server, namespace, tmp_path, 100, Deployment.overlap)
