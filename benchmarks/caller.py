"""A process that only calls: `python -m benchmarks.caller STORE_URL` prints its samples as JSON.

The owner is the process that starts it.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

import anyio

from keylane import Client

from .engine import NAMESPACE, adding
from .harness import Sample, Subject
from .workloads import OTHER_PROCESS, Workload

TIMEOUT_SECONDS = 120


async def measure_elsewhere(store_url: str, workload: Workload, rounds: int, *, use_uvloop: bool) -> list[Sample]:
    """Measure the calls of a process of their own.

    Args:
        store_url: Of a server on which this process, or another, hosts the counter.
        workload: How many calls.
        rounds: How many samples.
        use_uvloop: Whether the caller runs on uvloop.
    """
    options = ["--invocations", str(workload.invocations), "--rounds", str(rounds)]
    command = [sys.executable, "-m", "benchmarks.caller", store_url, *options, *(["--uvloop"] if use_uvloop else [])]
    with anyio.fail_after(TIMEOUT_SECONDS):
        ended = await anyio.run_process(command, stderr=None)
    return [Sample(**sample) for sample in json.loads(ended.stdout)]


async def _measure(store_url: str, workload: Workload, rounds: int) -> list[Sample]:
    async with Client(store_url, namespace=NAMESPACE) as client:
        subject = Subject(adding(client, workload.handler))
        await subject.sample(workload.shortened(4))
        return [await subject.sample(workload) for _ in range(rounds)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.caller", description="Calls a counter that runs elsewhere."
    )
    parser.add_argument("store_url")
    parser.add_argument("--invocations", type=int, default=OTHER_PROCESS.invocations)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--uvloop", action="store_true")
    options = parser.parse_args()
    workload = OTHER_PROCESS.with_invocations(options.invocations)
    samples = anyio.run(
        _measure, options.store_url, workload, options.rounds, backend_options={"use_uvloop": options.uvloop}
    )
    print(json.dumps([asdict(sample) for sample in samples]))


if __name__ == "__main__":
    main()
