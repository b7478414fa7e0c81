"""What a killed worker costs: `python -m benchmarks.takeover`.

A worker is killed with thousands of invocations in hand, and another one that stands by takes over. The clock starts at
the kill; what is done is read from the store, where it is durable. A second part starts a killed lone worker again, and
stops the clock when a caller has its answer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import redis
from rich.console import Console
from rich.table import Table

from keylane import Client
from keylane.journal.embedded import EmbeddedStore
from keylane.journal.key import partition_of

from .harness import Spread, WrongResult, spread
from .takeover_worker import NAMESPACE

PARTITIONS = 16
SENDERS = 64
POLL_SECONDS = 0.005
#: Longer than anything here takes.
LIMIT_SECONDS = 600.0


class Child:
    """A worker process and what it says.

    Args:
        store: The store's URL.
        options: Its further arguments.
        module: What it runs.
        temporary: Its folder for temporary files; one of its own has others take it for a worker of another machine.
    """

    def __init__(
        self, store: str, *options: str, module: str = "benchmarks.takeover_worker", temporary: Path | None = None
    ) -> None:
        self.begun = time.monotonic()
        environment = {**os.environ, **({} if temporary is None else {"TMPDIR": str(temporary)})}
        command = [sys.executable, "-m", module, store, *options]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    async def said(self, fact: str) -> Any:
        """Wait until it says a fact, and return it."""
        return await anyio.to_thread.run_sync(self._read, fact)

    def _read(self, fact: str) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            facts = json.loads(line)
            if fact in facts:
                return facts[fact]
        raise WrongResult(f"the worker ended before it said {fact!r}")

    def go_on(self) -> None:
        """Have one that stands by begin to host."""
        self.tell("")

    def tell(self, line: str) -> None:
        """Write a line that it reads."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL it, and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def child(store: str, *options: str, temporary: Path | None = None) -> Generator[Child]:
    """Run a worker process that is killed at the end."""
    process = Child(store, *options, temporary=temporary)
    try:
        yield process
    finally:
        process.kill()


@dataclass(frozen=True, slots=True)
class Bench:
    """An empty store and a way to look into it.

    Args:
        url: The store.
        raw: Plain commands.
        client: A client outside of all workers.
        folder: For files of the measurement.
    """

    url: str
    raw: Any
    client: Client
    folder: Path

    @property
    def open_lanes(self) -> int:
        """How many lanes have work that is not done."""
        return sum(self.raw.scard(f"{{{NAMESPACE}:Job:{number}}}:run") for number in range(PARTITIONS))

    async def until_open(self, wanted: range) -> float:
        """Wait until so many lanes have work, and return when that was."""
        with anyio.fail_after(LIMIT_SECONDS):
            while self.open_lanes not in wanted:
                await anyio.sleep(POLL_SECONDS)
        return time.monotonic()

    async def ping_everywhere(self) -> float:
        """Call one object of each partition at once, and return when the last one has answered."""
        async with anyio.create_task_group() as calls:
            for key in one_key_each():
                calls.start_soon(lambda key=key: self.client.call("Job", key, "ping", timeout=LIMIT_SECONDS))
        return time.monotonic()


def one_key_each() -> Iterator[str]:
    """Return a key of each partition."""
    missing = set(range(PARTITIONS))
    for number in range(100_000):
        partition = partition_of(f"acme/ping-{number}", PARTITIONS)
        if partition in missing:
            missing.discard(partition)
            yield f"acme/ping-{number}"
        if not missing:
            return


@asynccontextmanager
async def opened() -> AsyncGenerator[Bench]:
    with tempfile.TemporaryDirectory(prefix="keylane-takeover-") as folder:
        async with EmbeddedStore(f"{folder}/store") as store, Client(store.url, namespace=NAMESPACE) as client:
            connect: Any = redis.Redis
            with connect.from_url(store.url) as raw:
                yield Bench(store.url, raw, client, Path(folder))


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Seconds from a kill.

    Args:
        first: Until the first of what had been open was done.
        last: Until all of it was.
    """

    first: float
    last: float


async def take_over_runnable(count: int, *, is_elsewhere: bool) -> TakeOver:
    """Kill a worker that has so many invocations in hand, each of its own object, and have another finish them."""
    async with opened() as bench:
        gate = bench.folder / "gate"
        temporary = bench.folder / "elsewhere" if is_elsewhere else None
        if temporary is not None:
            temporary.mkdir()
        with child(bench.url) as dying, child(bench.url, "--standby", temporary=temporary) as other:
            await dying.said("opened")
            await other.said("imported")
            await send_all(bench.client, count, str(gate))
            await bench.until_open(range(count, count + 1))
            dying.kill()
            killed = time.monotonic()
            gate.touch()
            other.go_on()
            first = await bench.until_open(range(count))
            last = await bench.until_open(range(1))
    return TakeOver(first - killed, last - killed)


async def send_all(client: Client, count: int, gate: str) -> None:
    numbers = iter(range(count))

    async def send() -> None:
        for number in numbers:
            await client.send("Job", f"acme/{number}", "work", gate)

    async with anyio.create_task_group() as senders:
        for _ in range(SENDERS):
            senders.start_soon(send)


async def take_over_parked(count: int, rounds: int, how: str = "--park") -> list[float]:
    """Have so many invocations parked, then kill worker after worker, and see how soon the next answers everywhere.

    Args:
        count: How many there are.
        rounds: How many workers are killed.
        how: What the first worker is told: to have them paused (`--park`) or asleep (`--sleep`).
    """
    seconds: list[float] = []
    async with opened() as bench:
        holder = Child(bench.url, how, str(count))
        await holder.said("parked")
        for _ in range(rounds):
            successor = Child(bench.url, "--standby")
            await successor.said("imported")
            holder.kill()
            killed = time.monotonic()
            successor.go_on()
            seconds.append(await bench.ping_everywhere() - killed)
            holder = successor
        holder.kill()
    return seconds


@dataclass(frozen=True, slots=True)
class Restart:
    """A killed lone worker that is started again, in seconds since its start.

    Args:
        imported: Until the library was imported.
        answered: Until a caller that had called meanwhile had its answer.
    """

    imported: float
    answered: float


async def restart_lone_worker(rounds: int) -> list[Restart]:
    """Kill a lone worker and start it again on the same machine."""
    found: list[Restart] = []
    async with opened() as bench:
        worker = Child(bench.url)
        await worker.said("opened")
        for _ in range(rounds):
            await bench.client.call("Job", "acme/ping", "ping", timeout=LIMIT_SECONDS)
            worker.kill()
            worker = Child(bench.url)
            await bench.client.call("Job", "acme/ping", "ping", timeout=LIMIT_SECONDS)
            answered = time.monotonic()
            found.append(Restart(await worker.said("imported") - worker.begun, answered - worker.begun))
        worker.kill()
    return found


async def measure(runnable: int, parked: int, rounds: int) -> Table:
    """Measure everything, and return the table."""
    table = Table("a killed worker", "seconds", caption=f"median (lowest–highest) of {rounds}")
    for is_elsewhere in (False, True):
        runs = [await take_over_runnable(runnable, is_elsewhere=is_elsewhere) for _ in range(rounds)]
        where = "another machine, which waits for the lease" if is_elsewhere else "the same machine"
        table.add_row(f"{runnable:,} runnable, taken over from {where}: first done", shown([r.first for r in runs]))
        table.add_row("    all done", shown([run.last for run in runs]))
    for count in (0, parked):
        seconds = await take_over_parked(count, rounds)
        table.add_row(f"{count:,} parked: every partition answers", shown(seconds))
    restarts = await restart_lone_worker(rounds)
    table.add_row("started again: imported", shown([each.imported for each in restarts]))
    table.add_row("    first request answered", shown([each.answered for each in restarts]))
    return table


def shown(seconds: list[float]) -> str:
    value: Spread = spread(seconds)
    return f"{value.median:.3f} ({value.low:.3f}–{value.high:.3f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.takeover", description=__doc__)
    parser.add_argument("--runnable", type=int, default=10_000)
    parser.add_argument("--parked", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    Console(width=120).print(anyio.run(measure, given.runnable, given.parked, given.rounds))


if __name__ == "__main__":
    main()
