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
from typing import Any

import anyio
from redis.asyncio import Redis
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
        return "generated code" if self.file.startswith("<") else "built-in"


def place_of(frame: FrameType) -> Place:
    """Return where a frame is; the generated methods of a dataclass are named after its class."""
    code = frame.f_code
    if code.co_filename == "<string>" and "self" in frame.f_locals:
        instance: object = frame.f_locals["self"]
        owner = type(instance)
        file = getattr(sys.modules.get(owner.__module__), "__file__", None) or code.co_filename
        return Place(file, f"{owner.__qualname__}.{code.co_name}")
    return Place(code.co_filename, code.co_qualname)


#: Own time by place, in any unit.
Times = Counter[Place]


@contextmanager
def sampled(times: Times) -> Generator[None]:
    """Count the place in which each millisecond of processor time is spent."""

    def note(_: int, frame: FrameType | None) -> None:
        if frame is not None:
            times[place_of(frame)] += 1

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


@dataclass(frozen=True, slots=True)
class Profile:
    """One run under the profiler.

    Args:
        sample: What it measured.
        times: Where this process spent its time.
        server: What the server did for each call.
    """

    sample: Sample
    times: Times
    server: ServerUse


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


@dataclass(frozen=True, slots=True)
class ServerUse:
    """What the server did, in total or per call.

    Args:
        cpu_us: Its processor time in microseconds, that of its fsync thread included.
        functions: Function calls that it ran.
        function_us: Microseconds that it spent in them.
    """

    cpu_us: float
    functions: float
    function_us: float

    def since(self, before: ServerUse, calls: int) -> ServerUse:
        """Return what was added, divided by the calls that were made."""
        return ServerUse(
            (self.cpu_us - before.cpu_us) / calls,
            (self.functions - before.functions) / calls,
            (self.function_us - before.function_us) / calls,
        )


async def server_use(store_url: str) -> ServerUse:
    """Ask the server what it did since its start."""
    client: Any = Redis
    async with client.from_url(store_url) as redis:
        cpu: dict[str, float] = await redis.info("cpu")
        commands: dict[str, dict[str, float]] = await redis.info("commandstats")
    run = commands.get("cmdstat_fcall", {"calls": 0, "usec": 0})
    return ServerUse((cpu["used_cpu_user"] + cpu["used_cpu_sys"]) * 1e6, run["calls"], run["usec"])


async def profile(subject: str, workload: Workload, *, exact: bool) -> Profile:
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
            before = await server_use(store.url)
            with counted(times) if exact else sampled(times):
                sample = await opened_subject.sample(workload)
            return Profile(sample, times, (await server_use(store.url)).since(before, workload.invocations))


def print_profile(profile: Profile, top: int) -> None:
    """Print own time by module and by function, in microseconds of processor time per call.

    Args:
        profile: A run.
        top: How many lines of each.
    """
    sample, server = profile.sample, profile.server
    modules: Counter[str] = Counter()
    for place, time in profile.times.items():
        modules[place.module] += time
    functions = Counter({f"{place.module}: {place.function}": time for place, time in profile.times.items()})
    console = Console()
    console.print(f"{sample.rate:,.0f}/s, p50 {sample.p50:.2f} ms, {sample.cpu_us:.1f} µs of processor time per call")
    console.print(
        f"server per call: {server.cpu_us:.1f} µs of processor time, "
        f"{server.functions:.2f} function calls of {server.function_us:.1f} µs together"
    )
    console.print(_table("module", modules, sample.cpu_us, top))
    console.print(_table("function", functions, sample.cpu_us, top))


def _table(heading: str, times: Counter[str], cpu_us: float, top: int) -> Table:
    table = Table(heading, "own µs per call", "share")
    total = max(times.total(), 1)
    for name, time in times.most_common(top):
        table.add_row(name, f"{time / total * cpu_us:.2f}", f"{time / total:.1%}")
    return table


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

    async def run() -> Profile:
        return await profile("floor" if options.floor else "engine", workload, exact=options.exact)

    print_profile(anyio.run(run, backend_options={"use_uvloop": options.uvloop}), options.top)


if __name__ == "__main__":
    main()
