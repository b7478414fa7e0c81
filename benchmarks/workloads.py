"""What is measured: the messages, the shapes of load, and the targets that they are held against."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from pydantic import BaseModel


class Add(BaseModel):
    """The argument of every measured handler."""

    n: int
    note: str = "x"


class Count(BaseModel):
    """Its result: the count after the addition."""

    count: int


STEPS = 3


async def charge() -> dict[str, int]:
    """Stand for the work of a step; it takes no time, so that only the journal is measured."""
    return {"amount": 40, "fee": 1}


async def pay(operation_id: str, request: Add) -> dict[str, int]:
    """Stand for a receiver that answers at once, so that only what is written before and after it is measured."""
    del operation_id
    return {"amount": request.n, "fee": 1}


class Handler(StrEnum):
    """Which handler a workload calls."""

    ADD = "add"
    ADD_IN_STEPS = "add_in_steps"
    REFUND = "refund"


class Figure(StrEnum):
    """Which figure of a sample is compared."""

    RATE = "rate"
    P50 = "p50"


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on a figure, or on the engine's figure divided by the floor's.

    Args:
        figure: What is compared: a rate has to reach the bound, a time has to stay below it.
        bound: The number.
        unit: What the number counts.
    """

    figure: Figure
    bound: float
    unit: str

    def is_met(self, value: float) -> bool:
        """Say whether a measured value is good enough."""
        return value >= self.bound if self.figure is Figure.RATE else value <= self.bound

    def __str__(self) -> str:
        """Return the bound as the table shows it."""
        return f"{'≥' if self.figure is Figure.RATE else '≤'} {self.bound:,g} {self.unit}"


@dataclass(frozen=True, slots=True)
class Workload:
    """One shape of load.

    Args:
        name: What the command line calls it.
        title: What the table calls it.
        handler: What is called.
        callers: How many calls are under way at any time.
        invocations: Calls in one sample, of all callers together.
        keys: How many keys they go to; None gives every call a key that was never used before.
        target: The bound on the ratio to the floor.
    """

    name: str
    title: str
    handler: Handler
    callers: int
    invocations: int
    keys: int | None
    target: Target

    def keys_of(self, caller: int, sample: int) -> list[str]:
        """Return the keys that one caller calls in one sample, in order."""
        share = self.invocations // self.callers
        if self.keys is None:
            return [f"acme/{self.name}-{sample}-{caller}-{call}" for call in range(share)]
        return [f"acme/{self.name}-{(caller * 7919 + call * 104_729) % self.keys}" for call in range(share)]

    def with_invocations(self, invocations: int) -> Workload:
        """Return the same load with another number of calls."""
        return replace(self, invocations=invocations)

    def shortened(self, divisor: int) -> Workload:
        """Return the same load with fewer calls, and enough to find every caller at work."""
        return self.with_invocations(max(self.invocations // divisor, self.callers * 10))


WORKLOADS = (
    Workload(
        name="add",
        title="add, 1,000 keys, 64 callers",
        handler=Handler.ADD,
        callers=64,
        invocations=16_000,
        keys=1_000,
        target=Target(Figure.RATE, 0.75, "× floor"),
    ),
    Workload(
        name="hot",
        title="add, one hot key, 64 callers",
        handler=Handler.ADD,
        callers=64,
        invocations=16_000,
        keys=1,
        target=Target(Figure.RATE, 0.6, "× floor"),
    ),
    Workload(
        name="steps",
        title="three steps, distinct keys, 64 callers",
        handler=Handler.ADD_IN_STEPS,
        callers=64,
        invocations=4_800,
        keys=None,
        target=Target(Figure.RATE, 0.6, "× floor"),
    ),
    Workload(
        name="refund",
        title="refund: one effect, distinct keys, 64 callers",
        handler=Handler.REFUND,
        callers=64,
        invocations=3_200,
        keys=None,
        target=Target(Figure.RATE, 0.3, "× floor"),
    ),
    Workload(
        name="single",
        title="add, 1,000 keys, one caller: p50",
        handler=Handler.ADD,
        callers=1,
        invocations=1_200,
        keys=1_000,
        target=Target(Figure.P50, 1.5, "× floor"),
    ),
)

SHARED_READ = Workload(
    name="read",
    title="shared get of one integer, 64 callers",
    handler=Handler.ADD,
    callers=64,
    invocations=32_000,
    keys=1_000,
    target=Target(Figure.RATE, 50_000, "/s"),
)

OTHER_PROCESS = Workload(
    name="remote",
    title="add from another process, 64 in flight",
    handler=Handler.ADD,
    callers=64,
    invocations=4_000,
    keys=1_000,
    target=Target(Figure.RATE, 5_000, "/s"),
)

START = Target(Figure.P50, 0.8, "s")
