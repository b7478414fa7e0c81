"""Three steps in each checkpoint mode: `python -m benchmarks.checkpoints`.

The modes are measured in turn in one process, so that a noisy machine moves all of them alike. A step takes no time, so
that only the journal is measured.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence

import anyio
from rich.console import Console
from rich.table import Table

from keylane import App, Client, ObjectContext, Runtime, VirtualObject
from keylane.journal.embedded import EmbeddedStore
from keylane.objects.handler import CHECKPOINTS, Handler
from keylane.runtime import collector

from .harness import Call, Sample, Subject, spread
from .profiling import server_use
from .workloads import STEPS, WORKLOADS, Add, Count, Workload, charge

CALLERS = (64, 1)
INVOCATIONS = {64: 4_800, 1: 400}

counter = VirtualObject("Counter", owner="benchmarks")


async def add_in_steps(ctx: ObjectContext, request: Add) -> Count:
    """Add to the key's count after three steps."""
    for _ in range(STEPS):
        await ctx.run("charge", charge)
    count = await ctx.get("count", int, 0) + request.n
    ctx.set("count", count)
    return Count(count=count)


HANDLERS: dict[str, Handler[Add, Count]] = {
    mode: counter.handler(name=mode, checkpoint=mode)(add_in_steps) for mode in CHECKPOINTS
}


def adding(client: Client, mode: str) -> Call:
    """Return the call that adds one to a key."""
    called = HANDLERS[mode]

    async def call(key: str) -> int:
        return (await client.call(called, f"{key}-{mode}", Add(n=1))).count

    return call


async def measure(rounds: int) -> list[tuple[str, int, list[Sample], float]]:
    """Measure each mode with many callers and with one.

    Returns:
        The mode, how many callers, the samples, and the function calls of an invocation.
    """
    steps = next(workload for workload in WORKLOADS if workload.name == "steps")
    rows: list[tuple[str, int, list[Sample], float]] = []
    with tempfile.TemporaryDirectory(prefix="keylane-bench-") as folder:
        async with (
            EmbeddedStore(folder) as store,
            Runtime(App([counter]), store=store.url, namespace="checkpoints") as runtime,
        ):
            for callers in CALLERS:
                workload = _with(steps, callers)
                subjects: dict[str, Subject] = {mode: Subject(adding(runtime.client, mode)) for mode in CHECKPOINTS}
                samples: dict[str, list[Sample]] = {mode: [] for mode in CHECKPOINTS}
                functions: dict[str, float] = dict.fromkeys(subjects, 0.0)
                for number in range(rounds + 1):
                    for mode, subject in subjects.items():
                        before = await server_use(store.url)
                        sample = await subject.sample(workload)
                        if number:
                            samples[mode].append(sample)
                            used = (await server_use(store.url)).since(before, workload.invocations)
                            functions[mode] += used.functions / rounds
                rows += [(mode, callers, samples[mode], functions[mode]) for mode in CHECKPOINTS]
    return rows


def _with(workload: Workload, callers: int) -> Workload:
    return Workload(
        name=f"{workload.name}-{callers}",
        title=workload.title,
        handler=workload.handler,
        callers=callers,
        invocations=INVOCATIONS[callers],
        keys=None,
        target=workload.target,
    )


def print_table(rows: Sequence[tuple[str, int, list[Sample], float]]) -> None:
    """Print medians and spreads."""
    table = Table("three steps", "callers", "calls/s", "p50 ms", "CPU µs per call", "function calls per call")
    for mode, callers, samples, functions in rows:
        figures = [
            spread([getattr(sample, name) for sample in samples]) for name in ("rate", "p50", "cpu_us")
        ]  # fmt: skip
        shown = [f"{each.median:,.1f} ({each.low:,.1f}–{each.high:,.1f})" for each in figures]
        table.add_row(mode, str(callers), *shown, f"{functions:.2f}")
    Console().print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoints", description="What each mode costs.")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    collector.relax()
    print_table(anyio.run(measure, options.rounds))


if __name__ == "__main__":
    main()
