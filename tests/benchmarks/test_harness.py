"""The benchmarks' own arithmetic: pairs, spreads, verdicts, and the check that every call was counted once."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks import metering
from benchmarks.harness import Subject, WrongResult, compare, read, spread
from benchmarks.profiling import Place
from benchmarks.workloads import Figure, Handler, Target, Workload

pytestmark = pytest.mark.anyio

SMALL = Workload("small", "small", Handler.ADD, 4, 40, 8, Target(Figure.RATE, 0.5, "× floor"))


class Memory:
    """Counts in memory, and forgets every so many calls if told."""

    def __init__(self, forget_every: int = 0) -> None:
        self.counts: Counter[str] = Counter()
        self.calls = 0
        self.forget_every = forget_every

    async def add(self, key: str) -> int:
        self.calls += 1
        if not self.forget_every or self.calls % self.forget_every:
            self.counts[key] += 1
        return self.counts[key]


async def test_both_subjects_make_the_same_calls_and_the_ratio_is_taken_pair_by_pair() -> None:
    """A row has as many samples of the floor as of the engine, for the same keys."""
    floor, engine = Memory(), Memory()

    row = await compare(SMALL, Subject(floor.add), Subject(engine.add), rounds=3)

    assert floor.counts == engine.counts
    assert len(row.floor) == len(row.engine) == 3
    ratios = [engine.rate / floor.rate for floor, engine in zip(row.floor, row.engine, strict=True)]
    assert row.value == spread(ratios)


async def test_a_call_that_is_not_counted_ends_the_run() -> None:
    """Figures of an engine that loses work are never shown."""
    subject = Subject(Memory(forget_every=7).add)

    with pytest.raises(WrongResult, match="40 calls were counted as 35"):
        await subject.sample(SMALL)


async def test_a_workload_without_a_number_of_keys_never_uses_a_key_twice() -> None:
    """Distinct keys stay distinct over callers and samples."""
    distinct = Workload("d", "d", Handler.ADD_IN_STEPS, 4, 40, None, Target(Figure.RATE, 0.5, "× floor"))

    keys = [key for sample in range(3) for caller in range(4) for key in distinct.keys_of(caller, sample)]

    assert len(keys) == len(set(keys)) == 120


async def test_a_read_of_another_value_ends_the_run() -> None:
    """Reads are checked like writes."""

    async def always_two(_: str) -> int:
        return 2

    with pytest.raises(WrongResult, match="where 1 was written"):
        await read(always_two, SMALL, rounds=1)


def test_a_rate_must_reach_its_bound_and_a_time_must_stay_below() -> None:
    """The verdict goes the right way round for both kinds of figure."""
    assert Target(Figure.RATE, 0.75, "× floor").is_met(0.8)
    assert not Target(Figure.RATE, 0.75, "× floor").is_met(0.7)
    assert Target(Figure.P50, 1.5, "× floor").is_met(1.4)
    assert not Target(Figure.P50, 1.5, "× floor").is_met(1.6)


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("/home/a/keylane/.venv/lib/python3.12/site-packages/redis/asyncio/client.py", "redis"),
        ("/home/a/keylane/src/keylane/runtime/lane.py", "keylane.runtime.lane"),
        ("/home/a/keylane/benchmarks/floor.py", "benchmarks.floor"),
        ("~", "built-in"),
    ],
)
def test_a_profile_names_modules_as_readers_do(file: str, module: str) -> None:
    """Other people's packages are one line each, the library's own modules one each."""
    assert Place(file, "f").module == module


async def test_being_measurable_costs_a_short_invocation_few_calls() -> None:
    """While nobody measures: once when it begins and once when it has ended, and less than once in a batch."""
    cost = await metering.measure()

    assert cost.calls == {"began": 1.0, "ended": 1.0}
    assert cost.batches <= 1
