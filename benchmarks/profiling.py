"""Where the time of a workload goes: `python -m benchmarks.profiling add`.

By default the stack is sampled each millisecond of processor time, which slows nothing down and so keeps the shares
true; `--exact` counts every call with cProfile, which makes small functions look dearer than they are. Both show own
time: what a function spends outside the Python functions that it calls.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import anyio
from rich.console import Console
from rich.table import Table

from keylane.journal.embedded import EmbeddedStore

from .floor import adding as floor_adding
from .floor import open_floor
from .harness import Sample, Subject
from .workloads import WORKLOADS, Workload

SAMPLE_SECONDS = 0.001
STANDARD_LIBRARY = f"python{sys.version_info[0]}.{sys.version_info[1]}"

#: A folder of a path, what goes in front of what lies below it, and how many names make a module of it.
_ROOTS = (
    ("site-packages", "", 1),
    ("benchmarks", "benchmarks.", 1),
    ("keylane", "keylane.", 2),
    (STANDARD_LIBRARY, "", 1),
)


@dataclass(frozen=True, slots=True)
class Place:
    """A function in a file."""

    file: str
    function: str

    @property
    def module(self) -> str:
        """The module as a reader names it; other people's packages are one each."""
        parts = Path(self.file).with_suffix("").parts
        for root, prefix, depth in _ROOTS:
            if root in parts:
                below = parts[len(parts) - parts[::-1].index(root) :]
                return prefix + ".".join(below[:depth])
        return "built-in"


#: Own time by place, in any unit.
Times = Counter[Place]


@contextmanager
def sampled(times: Times) -> Generator[None]:
    """Count the place in which each millisecond of processor time is spent."""

    def note(_: int, frame: FrameType | None) -> None:
        if frame is not None:
            times[Place(frame.f_code.co_filename, frame.f_code.co_qualname)] += 1

    before = signal.signal(signal.SIGPROF, note)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def counted(times: Times) -> Generator[None]:
    """Measure every call."""
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        yield
    finally:
        profiler.disable()
        stats = pstats.Stats(profiler).get_stats_profile().func_profiles
        for function, entry in stats.items():
            times[Place(entry.file_name, function)] += round(entry.tottime * 1e6)


@asynccontextmanager
async def opened(subject: str, store_url: str, workload: Workload) -> AsyncGenerator[Subject]:
    """Open floor or engine.

    Args:
        subject: "floor" or "engine".
        store_url: Of a running server.
        workload: What it will be asked to do.
    """
    if subject == "floor":
        async with open_floor(store_url) as floor:
            yield Subject(floor_adding(floor, workload.handler))
        return
    # The floor can be profiled without the engine being imported.
    from .engine import adding, open_runtime  # noqa: PLC0415

    async with open_runtime(store_url) as runtime:
        yield Subject(adding(runtime.client, workload.handler))


async def profile(subject: str, workload: Workload, *, exact: bool) -> tuple[Sample, Times]:
    """Run a workload once to warm up and once under the profiler.

    Args:
        subject: "floor" or "engine".
        workload: What it is asked to do.
        exact: Whether every call is measured.
    """
    times: Times = Counter()
    with tempfile.TemporaryDirectory(prefix="keylane-profile-") as folder:
        async with EmbeddedStore(folder) as store, opened(subject, store.url, workload) as opened_subject:
            await opened_subject.sample(workload)
            with counted(times) if exact else sampled(times):
                return await opened_subject.sample(workload), times


def print_profile(sample: Sample, times: Times, top: int) -> None:
    """Print own time by module and by function, in microseconds of processor time per call.

    Args:
        sample: What the run measured.
        times: Where its time went.
        top: How many functions.
    """
    share = sample.cpu_us / max(times.total(), 1)
    modules: Counter[str] = Counter()
    for place, time in times.items():
        modules[place.module] += time
    console = Console()
    console.print(f"{sample.rate:,.0f}/s, p50 {sample.p50:.2f} ms, {sample.cpu_us:.1f} µs of processor time per call")
    table = Table("module", "own µs per call", "share")
    for module, time in modules.most_common(top):
        table.add_row(module, f"{time * share:.2f}", f"{time / times.total():.1%}")
    console.print(table)
    table = Table("function", "own µs per call", "share")
    for place, time in times.most_common(top):
        table.add_row(f"{place.module}: {place.function}", f"{time * share:.2f}", f"{time / times.total():.1%}")
    console.print(table)


def main() -> None:
    """Profile and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiling", description="Shows where the time goes.")
    parser.add_argument("workload", choices=[workload.name for workload in WORKLOADS])
    parser.add_argument("--floor", action="store_true", help="profile the bare commit path instead of the engine")
    parser.add_argument("--exact", action="store_true", help="measure every call with cProfile")
    parser.add_argument("--invocations", type=int, help="how many calls are profiled")
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--uvloop", action="store_true")
    options = parser.parse_args()
    workload = next(workload for workload in WORKLOADS if workload.name == options.workload)
    workload = workload.with_invocations(options.invocations or workload.invocations * 5)

    async def run() -> tuple[Sample, Times]:
        return await profile("floor" if options.floor else "engine", workload, exact=options.exact)

    print_profile(*anyio.run(run, backend_options={"use_uvloop": options.uvloop}), options.top)


if __name__ == "__main__":
    main()
