"""Each counter's history, as all its callers saw it, is that of one counter; and with a safeguard out, it is not.

The three aimed scenarios drive the engine into the corner that one safeguard is for. They pass with it, and the checker
finds the history wrong without it: that is what shows that the checker, and the random run, can see such a thing.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from keylane import Client
from keylane.journal.key import partition_of
from keylane.journal.keyspace import PartitionSpace

from .harness import StoreServer, eventually
from .linearizability import calls_of, is_linearizable
from .mutants import Mutant
from .proxy import Proxy
from .recorded_calls import Recorder
from .soak_checker import by_key, check_all
from .soak_faults import Deployment, Load
from .soak_history import HistoryFile, Kind
from .test_soak import histories
from .worker_process import PuppetProcess

pytestmark = pytest.mark.anyio

KEY = "acme/one"
SPACE_PARTITIONS = 16
#: The commit that an owner is stopped before: late enough that its successor can write as many batches.
STOPPED_AT = 6
#: Longer than a commit takes, for an answer that must not come.
NO_ANSWER_SECONDS = 0.5


@pytest.mark.slow
async def test_counters_under_kills_and_pauses_are_linearizable(tmp_path: Path, namespace: str) -> None:
    """Twenty keys, callers in workers and beside them, SIGKILL and SIGSTOP past the lease: one legal order for each."""
    only = ("kill", "stop")
    async with Deployment(tmp_path, "kills and pauses", namespace, Load(), only=only) as deployment:
        await deployment.faults.run(8, pause_seconds=0.4)
        assert deployment.unexpected_ends == []
        await deployment.finish()
        await eventually(lambda: deployment.is_finished, "every call has an answer", seconds=30)
        operations = histories(deployment)
        async with Client(deployment.server.url, namespace=namespace) as client:
            counters = by_key(operations, Kind.ADD, Kind.READ)
            finals = {key: await client.call("Counter", key, "get", timeout=10) for key in counters}

    assert check_all(operations) == []
    assert set(deployment.faults.counts) == {*only}
    assert len(counters) == 20
    wrong = [key for key, each in counters.items() if not is_linearizable(calls_of(each), final=finals[key])]
    assert wrong == []


@dataclass(frozen=True, slots=True)
class Corner:
    """A place to drive an engine into.

    Args:
        server: The store.
        proxy: What the first worker is behind.
        namespace: The test's namespace.
        folder: Where histories are kept.
        mutant: What the workers lack.
        outside: Calls that go through the inbox.
    """

    server: StoreServer
    proxy: Proxy
    namespace: str
    folder: Path
    mutant: Mutant
    outside: Recorder

    def worker(self, url: str, faults: str = "") -> PuppetProcess:
        """Start a worker."""
        history = self.folder / f"history-{time.monotonic_ns()}"
        return PuppetProcess(url, self.namespace, history, mutant=self.mutant, faults=faults)

    @property
    def is_linearizable(self) -> bool:
        """Whether everything that was seen can be."""
        files = [HistoryFile(path) for path in self.folder.glob("history-*")]
        return is_linearizable(calls_of(each for file in files for each in file.read()))

    @property
    def batches(self) -> int:
        """How many batches the tenure of the key's partition has written."""
        space = PartitionSpace(self.namespace, "Counter", partition_of(KEY, SPACE_PARTITIONS))
        return int(self.server.ask("HGET", space.owner, "batch"))


async def answers(worker: PuppetProcess, count: int) -> None:
    """Have a worker add one after the other, each answered before the next."""
    for _ in range(count):
        before = worker.answered
        worker.call(Kind.ADD, KEY)
        await eventually(lambda before=before: worker.answered > before, "an answer")


async def a_stopped_owner_goes_on(corner: Corner) -> None:
    """An owner stands still before a commit, another one writes as many batches, and the first one goes on."""
    with corner.worker(corner.server.url, f"stop:before:{STOPPED_AT}") as stopped:
        await stopped.ready()
        while not stopped.is_stopped:
            asked = stopped.answered
            stopped.call(Kind.ADD, KEY)
            await eventually(lambda asked=asked: stopped.is_stopped or stopped.answered > asked, "an answer or a stop")
        written = corner.batches
        with corner.worker(corner.server.url) as other:
            await other.ready()
            await corner.outside.add(KEY)
            # A read through the inbox is one batch. With as many of them as the first owner has written, the next one
            # of either is the same number, and nothing but the fence tells them apart.
            while corner.batches < written:
                await corner.outside.read(KEY)
            asked = stopped.answered
            stopped.go_on()
            await eventually(lambda: stopped.answered > asked, "the answer of the first owner")


async def bytes_arrive_late(corner: Corner) -> None:
    """The bytes of a commit are long on their way: it was sent again and much built on it when the store reads them."""
    with corner.worker(corner.proxy.url) as worker:
        await worker.ready()
        await answers(worker, 2)
        corner.proxy.keep_back(only="commit")
        await answers(worker, 3)
        assert corner.proxy.keeps == 1
        corner.proxy.deliver_late()
        worker.kill()
    with corner.worker(corner.server.url) as other:
        await other.ready()
        await corner.outside.add(KEY)


async def the_owner_dies_before_its_commit_arrives(corner: Corner) -> None:
    """A commit is on its way for long, and its owner is killed before the store has it."""
    with corner.worker(corner.proxy.url) as worker:
        await worker.ready()
        await answers(worker, 1)
        corner.proxy.stall(only="commit")
        held = corner.proxy.held
        worker.call(Kind.ADD, KEY)
        await eventually(lambda: corner.proxy.held > held, "the commit is on its way")
        with anyio.move_on_after(NO_ANSWER_SECONDS):
            await eventually(lambda: worker.answered > 1, "an answer")
        worker.kill()
        corner.proxy.cut()
        corner.proxy.heal()
    with corner.worker(corner.server.url) as other:
        await other.ready()
        await corner.outside.add(KEY)


Scenario = Callable[[Corner], Awaitable[None]]
SCENARIOS: dict[Mutant, Scenario] = {
    Mutant.FENCE: a_stopped_owner_goes_on,
    Mutant.NUMBER: bytes_arrive_late,
    Mutant.GATE: the_owner_dies_before_its_commit_arrives,
}


@asynccontextmanager
async def corner_of(
    server: StoreServer, proxy: Proxy, namespace: str, folder: Path, mutant: Mutant
) -> AsyncGenerator[Corner]:
    async with Client(server.url, namespace=namespace) as client:
        recorder = Recorder(client, HistoryFile(folder / "history-outside"), "outside")
        yield Corner(server, proxy, namespace, folder, mutant, recorder)


@pytest.mark.parametrize("safeguard", SCENARIOS)
async def test_in_the_corner_that_a_safeguard_is_for_the_history_is_linearizable(
    shared_server: StoreServer, proxy: Proxy, namespace: str, tmp_path: Path, safeguard: Mutant
) -> None:
    """With every safeguard in its place, what was seen can be."""
    async with corner_of(shared_server, proxy, namespace, tmp_path, Mutant.NONE) as corner:
        await SCENARIOS[safeguard](corner)

    assert corner.is_linearizable


@pytest.mark.parametrize("safeguard", SCENARIOS)
async def test_with_a_safeguard_taken_out_the_checker_finds_the_history_wrong(
    shared_server: StoreServer, proxy: Proxy, namespace: str, tmp_path: Path, safeguard: Mutant
) -> None:
    """Without the fence, without the batch number, and with the output gate open."""
    async with corner_of(shared_server, proxy, namespace, tmp_path, safeguard) as corner:
        await SCENARIOS[safeguard](corner)

    assert not corner.is_linearizable
