"""A checkup of a store with many invocations: `python -m benchmarks.checkup --invocations 1000000`.

The invocations are written by the journal's own commits, as an owner would have left them. Of four three have ended,
two of those with records of their own; the fourth is open, paused at the head of a lane or queued behind such a one.
Nobody owns the partitions any more, which is all that the doctor has to find. It looks from a process of its own, whose
memory tells how much of the store it keeps.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console

from keylane.journal import operations
from keylane.journal.batch import Commit, Operation
from keylane.journal.codec import pack
from keylane.journal.doctor.checkup import Plan, check_up
from keylane.journal.doctor.report import Report
from keylane.journal.embedded import EmbeddedStore
from keylane.journal.key import new_invocation_id
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.leases import acquire
from keylane.journal.outcomes import IdempotencyEntry, Succeeded, encode_outcome
from keylane.journal.records import Accepted, Completed, Finished, Paused, PauseReason
from keylane.journal.store import Store
from keylane.journal.tenure import VACANT
from keylane.journal.types_registry import register_types
from keylane.journal.writer import OPERATIONS_PER_BATCH

from .machine import OtherLoad, facts

TYPE = "Order"
PARTITIONS = 16
HOUR_MS = 3_600_000
#: Of so many invocations one is open.
OPEN_EVERY = 4
#: So many wait in a lane, its paused holder included.
LANE_LENGTH = 10
#: Commits that may be queued: enough to keep the server busy, and few enough to hold in memory.
QUEUED_MAX = 12 * OPERATIONS_PER_BATCH
LEASE_SECONDS = 0.5

ANSWER = encode_outcome(Succeeded(pack(1)))


@dataclass(frozen=True, slots=True)
class Measured:
    """What a checkup took.

    Args:
        report: What it said.
        seconds: How long it took.
        commands: How many commands the server ran for it.
        slowest_ms: The slowest of them that the server's log has, 0.0 where none took a millisecond.
        memory_growth_mb: By how much the process grew at its peak.
    """

    report: Report
    seconds: float
    commands: int
    slowest_ms: float
    memory_growth_mb: float


async def fill(store: Store, invocations: int) -> None:
    """Write invocations of every kind."""
    await register_types(store, {TYPE: PARTITIONS}, {TYPE: "bench"})
    writers = [await _writer(store, number) for number in range(PARTITIONS)]
    for number in range(invocations):
        writer = writers[number % PARTITIONS]
        writer.commit(Commit(list(_of(writer.space, number // PARTITIONS)), _ignore))
        if len(writer.queued) >= QUEUED_MAX // PARTITIONS:
            while writer.queued:
                await asyncio.sleep(0)
    while not all(writer.is_idle for writer in writers):
        await anyio.sleep(0.01)


async def _writer(store: Store, number: int) -> Any:
    space = store.space(TYPE, number)
    acquired = await acquire(store, space, VACANT, partitions=PARTITIONS, worker="bench", machine="", lease_seconds=5)
    assert acquired is not None
    return store.writer(space, acquired.tenure)


def _of(space: PartitionSpace, number: int) -> Iterator[Operation]:
    """Return what one invocation leaves."""
    raw_id = new_invocation_id()
    if number % OPEN_EVERY:
        yield from _ended(space, raw_id, number)
    else:
        yield from _open(space, raw_id, number // OPEN_EVERY)


def _ended(space: PartitionSpace, raw_id: bytes, number: int) -> Iterator[Operation]:
    key = f"acme/o-{number % 10_007}"
    yield operations.finish_short(space, key, Finished(raw_id, "add", 1, pack(1), "c"), None)
    yield operations.result(space, raw_id, ANSWER, HOUR_MS)
    if number % 2:
        accepted = Accepted(raw_id, "add", 1, key, pack(1))
        yield operations.record(space, raw_id, accepted)
        yield from operations.finish_long(space, key, raw_id, Completed(), HOUR_MS)[:2]
    if number % 10 == 1:
        entry = IdempotencyEntry(raw_id, bytes(8), bytes(8), "c", 1)
        yield operations.remember(space, 20_000, raw_id, entry)
        yield operations.forget_day(space, 20_000, HOUR_MS)


def _open(space: PartitionSpace, raw_id: bytes, number: int) -> Iterator[Operation]:
    key = f"acme/p-{number // LANE_LENGTH}"
    yield from operations.accept(space, Accepted(raw_id, "add", 1, key, pack(1)))
    if number % LANE_LENGTH == 0:
        yield operations.record(space, raw_id, Paused(PauseReason.RETRIES_SPENT, "the bench has parked it"))
        yield from operations.park(key, raw_id)


async def measure(store: Store) -> Measured:
    """Run a checkup and measure it."""
    await store.call("CONFIG", "SET", "slowlog-log-slower-than", 1_000, "slowlog-max-len", 10_000)
    await store.call("SLOWLOG", "RESET")
    before, grown = await _commands(store), _peak_mb()
    began = time.monotonic()
    report = await check_up(store, Plan(LEASE_SECONDS, "server"))
    seconds = time.monotonic() - began
    slow: list[Any] = await store.call("SLOWLOG", "GET", -1)
    slowest_us = max((entry[2] for entry in slow), default=0)
    commands = await _commands(store) - before
    return Measured(report, seconds, commands, slowest_us / 1000, _peak_mb() - grown)


async def _commands(store: Store) -> int:
    info: bytes = await store.call("INFO", "stats")
    lines = dict(line.split(b":", 1) for line in info.splitlines() if b":" in line)
    return int(lines[b"total_commands_processed"])


def _peak_mb() -> float:
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    # The peak that the system hands to a child begins with that of its parent.
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / (1 << 10)


def _ignore(now_ms: int, error: BaseException | None) -> None:
    del now_ms
    assert error is None


async def _look(store_url: str) -> None:
    async with Store(store_url, namespace="bench") as store:
        took = await measure(store)
    looked = took.report.looked
    out = Console()
    out.print(f"{looked.keys:,} keys looked at, {sum(looked.open.values()):,} open invocations judged")
    out.print(f"{took.seconds:.1f} s, {took.seconds / looked.keys * 1e6:.1f} µs a key, {took.commands:,} commands")
    out.print(f"slowest command {took.slowest_ms:.2f} ms")
    out.print(f"the process of the doctor grew by {took.memory_growth_mb:.1f} MB")
    out.print(f"findings: {dict(took.report.kinds)}")


async def _run(invocations: int) -> None:
    out, load = Console(), OtherLoad()
    with tempfile.TemporaryDirectory(prefix="keylane-checkup-") as folder:
        async with EmbeddedStore(folder) as server:
            for name, fact in (await facts(server.url)).items():
                out.print(f"{name}: {fact}")
            began = time.monotonic()
            async with Store(server.url, namespace="bench") as store:
                await fill(store, invocations)
            out.print(f"{invocations:,} invocations written in {time.monotonic() - began:.1f} s")
            await anyio.run_process([sys.executable, "-m", "benchmarks.checkup", "--store", server.url], stdout=None)
    out.print(str(load))


def main() -> None:
    """Print what a checkup of many invocations takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--invocations", type=int, default=1_000_000)
    parser.add_argument("--store", help="Look at this one, which has been filled, instead of filling one.")
    options = parser.parse_args()
    if options.store:
        anyio.run(_look, options.store)
    else:
        anyio.run(_run, options.invocations)


if __name__ == "__main__":
    main()
