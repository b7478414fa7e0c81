"""Measuring: samples of floor and engine taken in turn in one process, and what their medians and spreads say.

A noisy machine moves both of a pair, so the ratio is taken pair by pair and its median is what counts. Every sample
checks that each call was counted once.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from .workloads import Figure, Target, Workload

#: Makes one call to a key and returns the number that the handler answered.
Call = Callable[[str], Coroutine[Any, Any, int]]


class WrongResult(Exception):
    """The counts do not add up to the calls that were made."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a workload.

    Args:
        rate: Calls per second, all callers together.
        p50: Median time of a call in milliseconds.
        p99: The time that one call of a hundred exceeds, in milliseconds.
        cpu_us: Processor time of this process per call in microseconds, callers included.
    """

    rate: float
    p50: float
    p99: float
    cpu_us: float

    def figure(self, figure: Figure) -> float:
        """Return the figure that a target is about."""
        return self.rate if figure is Figure.RATE else self.p50


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, lowest and highest of repeated measurements."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Args:
        name: The workload's name on the command line.
        title: The workload.
        target: What is asked.
        value: What was measured, in the target's unit.
        floor: Samples of the floor, where the target is a ratio to it.
        engine: Samples of the engine, as many.
    """

    name: str
    title: str
    target: Target
    value: Spread
    floor: tuple[Sample, ...]
    engine: tuple[Sample, ...]

    @property
    def is_met(self) -> bool:
        """Whether the median reaches the target."""
        return self.target.is_met(self.value.median)


class Subject:
    """Something that counts, with a tally of what it answered.

    Args:
        call: Adds one to a key and returns the key's count.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._counts: dict[str, int] = {}
        self._calls = 0
        self._samples = 0

    async def sample(self, workload: Workload) -> Sample:
        """Run a workload once.

        Raises:
            WrongResult: A call was lost or counted twice.
        """
        self._samples += 1
        shares = [workload.keys_of(caller, self._samples) for caller in range(workload.callers)]
        sample = await drive(self._call, shares, self._counts)
        self._calls += sum(map(len, shares))
        if sum(self._counts.values()) != self._calls:
            raise WrongResult(f"{workload.title}: {self._calls} calls were counted as {sum(self._counts.values())}")
        return sample


async def drive(call: Call, shares: Sequence[Sequence[str]], highest: dict[str, int]) -> Sample:
    """Make calls from as many callers as there are shares, each one call at a time.

    Args:
        call: The call.
        shares: The keys of each caller.
        highest: Gets the highest number that was answered for each key.
    """
    latencies: list[float] = []
    clock = time.perf_counter

    async def caller(keys: Sequence[str]) -> None:
        for key in keys:
            begun = clock()
            answer = await call(key)
            latencies.append(clock() - begun)
            if answer > highest.get(key, 0):
                highest[key] = answer

    gc.collect()
    cpu, begun = time.process_time(), clock()
    async with anyio.create_task_group() as tasks:
        for keys in shares:
            tasks.start_soon(caller, keys)
    return summarize(latencies, clock() - begun, time.process_time() - cpu)


def summarize(latencies: list[float], seconds: float, cpu_seconds: float) -> Sample:
    latencies.sort()
    calls = len(latencies)
    return Sample(
        rate=calls / seconds,
        p50=latencies[calls // 2] * 1e3,
        p99=latencies[calls * 99 // 100] * 1e3,
        cpu_us=cpu_seconds / calls * 1e6,
    )


async def compare(workload: Workload, floor: Subject, engine: Subject, rounds: int) -> Row:
    """Measure floor and engine in turn.

    Args:
        workload: What both do.
        floor: The bare commit path.
        engine: Keylane.
        rounds: How many pairs are measured, after one shorter pair to warm up.
    """
    for subject in (floor, engine):
        await subject.sample(workload.shortened(4))
    pairs: list[tuple[Sample, Sample]] = []
    for number in range(rounds):
        # Who goes first changes, so that a drift of the machine favours neither.
        if number % 2:
            engine_sample = await engine.sample(workload)
            pairs.append((await floor.sample(workload), engine_sample))
        else:
            pairs.append((await floor.sample(workload), await engine.sample(workload)))
    return _row(workload, pairs)


def _row(workload: Workload, pairs: Sequence[tuple[Sample, Sample]]) -> Row:
    figure = workload.target.figure
    return Row(
        name=workload.name,
        title=workload.title,
        target=workload.target,
        value=spread([engine.figure(figure) / floor.figure(figure) for floor, engine in pairs]),
        floor=tuple(floor for floor, _ in pairs),
        engine=tuple(engine for _, engine in pairs),
    )


def absolute(workload: Workload, samples: Sequence[Sample]) -> Row:
    """Hold samples of the engine against a target that is a plain number."""
    figure = workload.target.figure
    value = spread([sample.figure(figure) for sample in samples])
    return Row(workload.name, workload.title, workload.target, value, (), tuple(samples))


async def read(call: Call, workload: Workload, rounds: int) -> Row:
    """Measure reads of one integer.

    Args:
        call: Reads a key, which holds 1.
        workload: How many callers and reads.
        rounds: How many samples, after a shorter one to warm up.

    Raises:
        WrongResult: A read returned something else.
    """
    samples: list[Sample] = []
    for number in range(rounds + 1):
        load = workload.shortened(4) if number == 0 else workload
        seen: dict[str, int] = {}
        samples.append(await drive(call, [load.keys_of(caller, number) for caller in range(load.callers)], seen))
        if set(seen.values()) != {1}:
            raise WrongResult(f"{workload.title}: reads returned {sorted(set(seen.values()))[:5]} where 1 was written")
    return absolute(workload, samples[1:])
