"""A deployment whose structures tests damage by hand, and the checkup that has to find it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio

from keylane import App, Handle, ObjectContext, RetryableError, RetryPolicy, Runtime, SharedContext, VirtualObject
from keylane.journal.doctor.checkup import Plan, check_up
from keylane.journal.doctor.repairing import repair
from keylane.journal.doctor.report import Repaired, Report
from keylane.journal.key import new_invocation_id, parse_id
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.leases import acquire
from keylane.journal.requests import Request, RequestKind
from keylane.journal.store import Store
from keylane.journal.tenure import VACANT
from keylane.objects.settings import Settings
from tests.faults.harness import eventually_answers

LEASE_SECONDS = 0.6
OWNER = "ward-oncall"
KEY = "acme/o-1"
#: The object that others wait for.
CALLED = "acme/called"
#: The pause before a second attempt that no test waits for in real time.
PAUSE_SECONDS = 600.0

job = VirtualObject("Job", owner=OWNER, partitions=1, state={"done": int})


@job.handler
async def add(ctx: ObjectContext) -> int:
    """End at once."""
    done = await ctx.get("done", int, 0) + 1
    ctx.set("done", done)
    return done


@job.handler
async def fail_once(ctx: ObjectContext, trail: str) -> str:
    """Fail at the first attempt, and say when the next one is to be."""
    if not Path(trail).exists():
        Path(trail).touch()
        raise RetryableError("not yet", retry_after=PAUSE_SECONDS)
    return "went on"


@job.handler
async def retry_soon(ctx: ObjectContext, gate: str) -> str:
    """Fail, with a short pause, until a file exists."""
    if not Path(gate).exists():
        raise RetryableError("not yet", retry_after=0.05)
    return "went on"


@job.handler
async def hold(ctx: ObjectContext, gate: str) -> str:
    """Hold the lane until a file exists."""
    while not Path(gate).exists():
        await anyio.sleep(0.01)
    return "went on"


@job.shared
async def look(ctx: SharedContext, gate: str) -> str:
    """Take its time, until a file exists."""
    while not Path(gate).exists():
        await anyio.sleep(0.01)
    return "seen"


@job.handler(retry=RetryPolicy(first=timedelta(milliseconds=1), attempts=1))
async def park(ctx: ObjectContext) -> None:
    """Be paused at once."""
    raise ValueError("it never works")


@job.handler
async def nap(ctx: ObjectContext, seconds: float) -> str:
    """Sleep once."""
    await ctx.sleep(timedelta(seconds=seconds))
    return "awake"


@job.handler
async def step_aside(ctx: ObjectContext, seconds: float) -> str:
    """Sleep once, while others have the lane."""
    await ctx.sleep(timedelta(seconds=seconds), release_lane=True)
    return "awake"


@job.handler
async def ask_for(ctx: ObjectContext, gate: str) -> str:
    """Wait for another object, which waits for a file."""
    return await ctx.call(hold, CALLED, gate)


@job.handler(retry=RetryPolicy(first=timedelta(milliseconds=1), attempts=1))
async def ask_once(ctx: ObjectContext, gate: str) -> str:
    """Wait for another object for a moment, and be paused over it until a second file exists."""
    if not Path(f"{gate}.mended").exists():
        with anyio.move_on_after(0.05):
            await ctx.call(hold, CALLED, gate)
        raise ValueError("not in time")
    return await ctx.call(hold, CALLED, gate)


@job.handler
async def listen(ctx: ObjectContext, seconds: float | None) -> str:
    """Wait for a signal, perhaps for a while only."""
    return await ctx.signal("go", str, timeout=seconds)


@job.handler
async def expect(ctx: ObjectContext) -> str:
    """Wait for the completion of an awakeable, which stands at place 0."""
    return await (await ctx.awakeable(str))


app = App([job])


def settings(**more: Any) -> Settings:
    fast = {"lease_seconds": LEASE_SECONDS, "renewal_seconds": 0.15, "sweep_seconds": 0.2, "drain_limit_seconds": 0.2}
    # Messages that have arrived stay in their outbox for as long as a loss may reach back.
    fast["doubt_seconds"] = 0.05
    return Settings(**{**fast, **more})


@dataclass
class Ward:
    """A namespace, looked at and touched by hand."""

    url: str
    store: Store

    @property
    def space(self) -> PartitionSpace:
        """The one partition."""
        return self.store.space("Job", 0)

    @asynccontextmanager
    async def worker(self, **more: Any) -> AsyncGenerator[Runtime]:
        """Run a worker in this process."""
        async with Runtime(
            app, store=self.url, namespace=self.store.namespace, settings=settings(**more), durability="server"
        ) as runtime:
            yield runtime

    async def redis(self, *words: Any) -> Any:
        """Do something to the store by hand."""
        return await self.store.call(*words)

    async def sweep(self, **plan: Any) -> Report:
        """Look at the namespace once."""
        return await check_up(self.store, Plan(LEASE_SECONDS, "server", **plan))

    async def kinds(self) -> list[str]:
        """Return the kinds of damage that one sweep names, in the order of the kinds."""
        return [finding.kind.value for finding in (await self.sweep()).findings]

    async def repaired(self) -> list[Repaired]:
        """Have repaired what one sweep names, and make sure that the next one names nothing."""
        done = await repair(self.store, await self.sweep(), "a test")
        left = (await self.sweep()).findings
        assert left == (), left
        return done

    async def began(self, handle: Handle[Any]) -> bytes:
        """Wait until an invocation has records; returns its raw id."""
        raw_id = parse_id(handle.id).raw
        stream = self.space.invocation(raw_id)

        async def is_there() -> object:
            return await self.redis("EXISTS", stream)

        await eventually_answers(is_there, "it is taken in")
        return raw_id

    async def waits(self, handle: Handle[Any]) -> bytes:
        """Wait until an invocation has a due time; returns its raw id."""
        raw_id = parse_id(handle.id).raw

        async def is_due() -> object:
            return await self.redis("ZSCORE", self.space.due, raw_id)

        await eventually_answers(is_due, "it has a due time")
        return raw_id

    async def is_paused(self, runtime: Runtime, handle: Handle[Any]) -> None:
        """Wait until an invocation is paused."""

        async def paused() -> bool:
            return (await runtime.client.describe(handle.id)).status == "paused"

        await eventually_answers(paused, "it is paused")

    async def abandoned(self) -> None:
        """Give the partition an owner who is never heard of again."""
        await self.redis("HSET", f"{{{self.store.namespace}}}:types", "Job", 1)
        await self.redis("HSET", f"{{{self.store.namespace}}}:owners", "Job", OWNER)
        acquired = await acquire(
            self.store, self.space, VACANT, partitions=1, worker="gone", machine="", lease_seconds=1
        )
        assert acquired is not None


def a_send(handler: str, *, raw_id: bytes | None = None) -> Request:
    """Return a request for the one object."""
    return Request(RequestKind.SEND, raw_id or new_invocation_id(), handler, KEY, None)


@asynccontextmanager
async def opened(url: str, namespace: str) -> AsyncGenerator[Ward]:
    """Open a ward."""
    async with Store(url, namespace=namespace) as store:
        yield Ward(url, store)


def gate_of(folder: Path) -> Path:
    """Return a path at which no file is."""
    return folder / f"gate-{os.urandom(4).hex()}"


async def orphaned(ward: Ward, *gates: Path) -> list[Any]:
    """Leave invocations open without an owner, and take their lane away."""
    async with ward.worker() as runtime:
        handles = [await runtime.client.send(hold, KEY, str(gate)) for gate in gates]
        for handle in handles:
            await ward.began(handle)
    await ward.redis("DEL", ward.space.lane(KEY))
    await ward.redis("SREM", ward.space.runnable, KEY)
    return handles
