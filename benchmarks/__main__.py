"""The table: every target of the engine with what this machine measured."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.to_thread
from rich.console import Console

from keylane import Client, Runtime
from keylane.journal.embedded import EmbeddedStore
from keylane.runtime import collector

from . import engine, floor
from .caller import measure_elsewhere
from .harness import Row, Subject, absolute, compare, read
from .machine import OtherLoad, facts
from .report import as_json, print_table
from .start import measure_start
from .workloads import OTHER_PROCESS, SHARED_READ, WORKLOADS, Handler, Workload

#: Which commits a refund takes; the first is one with the intent where nothing is slow.
REFUND_COMMITS = "intent and outcome of its effect, its end, and its acceptance where that took more than 50 ms"
NAMES = (*(workload.name for workload in WORKLOADS), SHARED_READ.name, OTHER_PROCESS.name, "start")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for.

    Args:
        names: The rows to measure.
        rounds: Measured samples of each.
        divisor: By how much the samples are shorter than usual.
        use_uvloop: Whether everything runs on uvloop.
    """

    names: tuple[str, ...]
    rounds: int
    divisor: int
    use_uvloop: bool

    def sized(self, workload: Workload) -> Workload:
        """Return a workload of the length that is asked for."""
        return workload if self.divisor == 1 else workload.shortened(self.divisor)


@dataclass(frozen=True, slots=True)
class Bench:
    """What is measured, open on one server.

    Args:
        store_url: The server.
        floor: The bare commit path.
        runtime: The worker in this process.
    """

    store_url: str
    floor: floor.Floor
    runtime: Runtime

    @property
    def client(self) -> Client:
        """The client of the worker in this process."""
        return self.runtime.client

    async def ratio(self, workload: Workload, rounds: int) -> Row:
        """Measure floor and engine in turn."""
        bare = Subject(floor.adding(self.floor, workload.handler))
        return await compare(workload, bare, Subject(engine.adding(self.client, workload.handler)), rounds)

    async def shared_read(self, workload: Workload, rounds: int) -> Row:
        """Write 1 under each key, then read."""
        add_one = engine.adding(self.client, Handler.ADD)
        async with anyio.create_task_group() as tasks:
            for key in {key for caller in range(workload.callers) for key in workload.keys_of(caller, 0)}:
                tasks.start_soon(add_one, key)
        return await read(engine.reading(self.client), workload, rounds)


@asynccontextmanager
async def open_bench() -> AsyncGenerator[Bench]:
    """Start a server in a folder of its own, and floor and engine on it."""
    with tempfile.TemporaryDirectory(prefix="keylane-bench-") as folder:
        async with (
            EmbeddedStore(folder) as store,
            floor.open_floor(store.url) as bare,
            engine.open_runtime(store.url) as runtime,
        ):
            yield Bench(store.url, bare, runtime)


async def measure(options: Options) -> tuple[list[Row], dict[str, str]]:
    """Measure the rows that are asked for, one after the other."""
    rows: list[Row] = []
    progress = Console(stderr=True)
    others = OtherLoad()
    async with open_bench() as bench:
        described = await facts(bench.store_url)
        for name in options.names:
            if name != "start":
                progress.print(f"measuring {name} …")
                rows.append(await _measure_row(bench, name, options))
        if Handler.REFUND.value in options.names:
            count = engine.commits_each(bench.runtime, Handler.REFUND.value)
            described["commits"] = f"{count:g} for a refund: {REFUND_COMMITS}"
    if "start" in options.names:
        progress.print("measuring start …")
        rows.append((await anyio.to_thread.run_sync(measure_start, options.rounds))[0])
    return rows, described | {"noise": str(others)}


async def _measure_row(bench: Bench, name: str, options: Options) -> Row:
    if name == SHARED_READ.name:
        return await bench.shared_read(options.sized(SHARED_READ), options.rounds)
    if name == OTHER_PROCESS.name:
        workload = options.sized(OTHER_PROCESS)
        samples = await measure_elsewhere(bench.store_url, workload, options.rounds, use_uvloop=options.use_uvloop)
        return absolute(workload, samples)
    workload = next(workload for workload in WORKLOADS if workload.name == name)
    return await bench.ratio(options.sized(workload), options.rounds)


def main() -> int:
    """Measure, print, and say by the exit code whether a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed of the engine beside its targets.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"rows to measure: {', '.join(NAMES)}; default all")
    parser.add_argument("--rounds", type=int, help="samples of each row")
    parser.add_argument("--quick", action="store_true", help="shorter and fewer samples")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--uvloop", action="store_true", help="run on uvloop")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument(
        "--default-collector",
        action="store_true",
        help="leave Python's garbage collector as it is, instead of setting it as `keylane worker` does",
    )
    given = parser.parse_args()
    if unknown := set(given.names) - set(NAMES):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    options = Options(
        names=tuple(given.names) or NAMES,
        rounds=given.rounds or (3 if given.quick else 7),
        divisor=4 if given.quick else 1,
        use_uvloop=given.uvloop,
    )
    if not given.default_collector:
        collector.relax()
    rows, described = anyio.run(measure, options, backend_options={"use_uvloop": given.uvloop})
    if given.json:
        print(as_json(rows, described))
    else:
        print_table(rows, described)
    return int(given.strict and not all(row.is_met for row in rows))


if __name__ == "__main__":
    sys.exit(main())
