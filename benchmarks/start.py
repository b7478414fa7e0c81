"""From the start of a process to its first answer: `python -m benchmarks.start`.

Each measurement is a process of its own that imports the library, starts the embedded store in an empty folder and a
worker on it, and makes one call. The clock starts before the process is made and stops when its answer is read.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from .harness import Row, Sample, Spread, WrongResult, spread
from .workloads import START

TIMEOUT_SECONDS = 30
_IMPORT_LINE = re.compile(r"import time:\s+(?P<own>\d+) \|\s+\d+ \|\s*(?P<module>\S+)")


@dataclass(frozen=True, slots=True)
class Start:
    """One start, in seconds since the process was made.

    Args:
        imported: Until the library was imported.
        opened: Until store and worker were up.
        answered: Until the first answer was read by the parent.
    """

    imported: float
    opened: float
    answered: float


def start_once() -> Start:
    """Start a process and wait for its first answer.

    Raises:
        WrongResult: It answered something else than the count of one call.
    """
    with tempfile.TemporaryDirectory(prefix="keylane-start-") as folder:
        begun = time.monotonic()
        with subprocess.Popen([*_command(folder)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            answered = time.monotonic()
            process.wait(TIMEOUT_SECONDS)
    if not line or (said := json.loads(line))["count"] != 1:
        raise WrongResult(f"the first answer was {line!r}")
    return Start(said["imported"] - begun, said["opened"] - begun, answered - begun)


def measure_start(rounds: int) -> tuple[Row, list[Start]]:
    """Measure starts, after one that fills the caches of files and byte code.

    Args:
        rounds: How many starts.
    """
    start_once()
    starts = [start_once() for _ in range(rounds)]
    value = spread([start.answered for start in starts])
    samples = tuple(Sample(1 / s.answered, s.answered * 1e3, s.answered * 1e3, 0.0) for s in starts)
    return Row("start", "process start to first answer", START, value, (), samples), starts


def import_times() -> Counter[str]:
    """Return the microseconds that importing takes by package; the library's own by its folders."""
    with tempfile.TemporaryDirectory(prefix="keylane-start-") as folder:
        command = _command(folder)
        command[1:1] = ["-X", "importtime"]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS).stderr
    times: Counter[str] = Counter()
    for line in _IMPORT_LINE.finditer(said):
        parts = line["module"].split(".")
        times[".".join(parts[: 2 if parts[0] == "keylane" else 1])] += int(line["own"])
    return times


def _command(folder: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.first_answer", folder]


def print_starts(starts: Sequence[Start]) -> None:
    """Print where the time of a start goes."""
    phases = {
        "interpreter and imports": [start.imported for start in starts],
        "store and worker": [start.opened - start.imported for start in starts],
        "first call": [start.answered - start.opened for start in starts],
        "together": [start.answered for start in starts],
    }
    table = Table("phase", "seconds", caption=f"median (lowest–highest) of {len(starts)} starts; target {START}")
    for phase, seconds in phases.items():
        table.add_row(phase, _shown(spread(seconds)))
    Console().print(table)


def _shown(value: Spread) -> str:
    return f"{value.median:.3f} ({value.low:.3f}–{value.high:.3f})"


def print_imports(top: int) -> None:
    """Print the packages whose import takes longest.

    Args:
        top: How many.
    """
    times = import_times()
    table = Table("package", "own ms", caption=f"of {times.total() / 1e3:.0f} ms, slowed by the measuring itself")
    for package, microseconds in times.most_common(top):
        table.add_row(package, f"{microseconds / 1e3:.1f}")
    Console().print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--imports", action="store_true", help="show what the imports cost instead")
    options = parser.parse_args()
    if options.imports:
        print_imports(25)
    else:
        print_starts(measure_start(options.rounds)[1])


if __name__ == "__main__":
    main()
