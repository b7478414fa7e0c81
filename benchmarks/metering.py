"""What it costs to be measurable while nobody measures: `python -m benchmarks.metering`.

The engine tells its meters what happens, and by default nobody listens. How often it does so for a short invocation is
counted in real ones; what such a call costs is timed by itself, since it is far less than what two runs differ by.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import anyio

from keylane.journal.embedded import EmbeddedStore
from keylane.runtime.meters import NO_METERS, Counters, Meters

from . import engine
from .workloads import Handler

TARGET_US: Final = 1.0
INVOCATIONS: Final = 2_000
CALLERS: Final = 64
TIMED_CALLS: Final = 200_000
ROUNDS: Final = 7
#: What is asked about each batch: whether anybody wants it timed, when it is made and when it is answered.
QUESTIONS_PER_BATCH: Final = 2


@dataclass(frozen=True, slots=True)
class Cost:
    """What was counted and timed.

    Args:
        calls: Calls of the meters for one short invocation, by name.
        batches: Batches of the store for one.
        call_us: What one call takes that nobody listens to, in microseconds.
        question_us: What the question takes whether somebody listens.
        counting_us: What one call takes where somebody counts, the dearest of them.
    """

    calls: dict[str, float]
    batches: float
    call_us: float
    question_us: float
    counting_us: float

    @property
    def off_us(self) -> float:
        """What a short invocation pays with metrics off, in microseconds."""
        return sum(self.calls.values()) * self.call_us + self.batches * QUESTIONS_PER_BATCH * self.question_us

    @property
    def on_us(self) -> float:
        """What it pays at most with metrics on."""
        return (sum(self.calls.values()) + self.batches) * self.counting_us


class Tally:
    """Counts how often each method of the meters is called."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a method that counts itself."""

        def called(*_: Any, **__: Any) -> None:
            self.calls[name] += 1

        return called


async def measure() -> Cost:
    """Count the calls of real invocations, and time what each of them costs."""
    tally: Any = Tally()
    counted = 0

    def applied(_commits: int, _seconds: float) -> None:
        nonlocal counted
        counted += 1

    with tempfile.TemporaryDirectory(prefix="keylane-bench-") as folder:
        async with EmbeddedStore(folder) as store, engine.open_runtime(store.url) as runtime:
            add = engine.adding(runtime.client, Handler.ADD)
            await add("bench/warm")
            for partition in runtime.worker.partitions:
                partition.meters, partition.writer.on_applied = tally, applied

            async def caller(number: int) -> None:
                for call in range(INVOCATIONS // CALLERS):
                    await add(f"bench/{number}-{call % 8}")

            async with anyio.create_task_group() as tasks:
                for number in range(CALLERS):
                    tasks.start_soon(caller, number)
    made = INVOCATIONS // CALLERS * CALLERS
    calls = {name: count / made for name, count in tally.calls.items()}
    return Cost(calls, counted / made, _timed_call(NO_METERS), _timed_question(), _timed_counting())


def _timed(repeated: Callable[[int], None], bare: Callable[[int], None]) -> float:
    """Return the least that one turn takes over the bare loop, in microseconds: what is more was somebody else's."""
    best, least = float("inf"), float("inf")
    for _ in range(ROUNDS):
        best, least = min(best, _seconds(repeated)), min(least, _seconds(bare))
    return max(best - least, 0.0) / TIMED_CALLS * 1e6


def _seconds(run: Callable[[int], None]) -> float:
    begun = time.perf_counter()
    run(TIMED_CALLS)
    return time.perf_counter() - begun


def _bare(times: int) -> None:
    for _ in range(times):
        pass


class _Holder:
    """Stands for a partition, of which the engine asks the meters."""

    def __init__(self, meters: Meters) -> None:
        self.meters = meters
        self.on_applied = None


def _timed_call(meters: Meters) -> float:
    holder, invocation = _Holder(meters), Any

    def call(times: int) -> None:
        for _ in range(times):
            holder.meters.began(invocation)  # pyright: ignore[reportArgumentType]

    return _timed(call, _bare)


def _timed_question() -> float:
    holder = _Holder(NO_METERS)

    def ask(times: int) -> None:
        for _ in range(times):
            if holder.on_applied is not None:
                raise AssertionError

    return _timed(ask, _bare)


def _timed_counting() -> float:
    counters: Any = Counters()

    def count(times: int) -> None:
        for _ in range(times):
            counters.prevented(_PARTITION, "payments", "asked for again")

    return _timed(count, _bare)


class _Space:
    type_name = "Order"


class _Partition:
    space = _Space()


_PARTITION: Final = _Partition()


def main() -> int:
    """Measure and print; the exit code says whether the target was met."""
    argparse.ArgumentParser(prog="python -m benchmarks.metering", description=__doc__).parse_args()
    cost = anyio.run(measure)
    told = ", ".join(f"{name} {count:.2f}" for name, count in sorted(cost.calls.items()))
    print(f"calls of the meters for a short invocation   {told}")
    print(f"batches for one, at {CALLERS} callers             {cost.batches:.3f}")
    print(f"one call while nobody listens                {cost.call_us * 1e3:.0f} ns")
    print(f"metrics off, a short invocation pays         {cost.off_us:.3f} µs   (target: below {TARGET_US:g} µs)")
    print(f"metrics on, it pays about                    {cost.on_us:.2f} µs")
    return int(cost.off_us >= TARGET_US)


if __name__ == "__main__":
    sys.exit(main())
