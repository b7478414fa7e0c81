"""Shelves that keep and return large values, and what the store has of them."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgpack

from keylane import (
    BlockingSharedContext,
    Handle,
    ObjectContext,
    RetryPolicy,
    Runtime,
    Settings,
    SharedContext,
    VirtualObject,
)
from keylane.journal.blob_cache import BlobCache
from keylane.journal.key import partition_of
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.standing import Status
from keylane.runtime.partition import Partition
from tests.objects_catalogue import opened
from tests.plain import plain

KEY = "acme/o-1"
LARGE = 100_000
MEGABYTE = 1 << 20
#: As much as fits into a value, more or less.
ARTIFACT = 1_000_000
ONCE = RetryPolicy(first=timedelta(milliseconds=1), attempts=1)
IMPATIENT = Settings(drain_limit_seconds=0.1)
AFTER_RETENTION = timedelta(hours=25)
shelf = VirtualObject("Shelf", owner="tests", partitions=2)


@shelf.handler
async def put(ctx: ObjectContext, value: bytes) -> None:
    ctx.set("value", value)


@shelf.handler
async def drop(ctx: ObjectContext) -> None:
    ctx.clear_all()


@shelf.handler
async def take(ctx: ObjectContext) -> bytes:
    return await ctx.get("value", bytes, b"")


@shelf.shared
async def look(ctx: SharedContext) -> bytes:
    return await ctx.get("value", bytes, b"")


@shelf.shared
def look_from_a_thread(ctx: BlockingSharedContext) -> bytes:
    return ctx.get("value", bytes, b"")


@shelf.handler
async def echo(ctx: ObjectContext, value: bytes) -> bytes:
    return value


@shelf.handler
async def touch(ctx: ObjectContext, number: int) -> int:
    ctx.set("number", number)
    return number


@shelf.handler
async def same_in_steps(ctx: ObjectContext, steps: int) -> int:
    """Make one artifact and hand it from step to step."""
    artifact = await ctx.run("make", _make)
    for number in range(steps):
        ctx.set("artifact", artifact)
        artifact = await ctx.run(f"pass {number}", _same, artifact)
        await ctx.get("artifact", bytes)
    return len(artifact)


def _make() -> bytes:
    return bytes(range(250)) * (ARTIFACT // 250)


def _same(artifact: bytes) -> bytes:
    return artifact


@shelf.handler
async def waits_with_a_large_step(ctx: ObjectContext, gate: str) -> int:
    first = await ctx.run("make", _make)
    before = await ctx.get("value", bytes, b"")
    await ctx.run("wait", opened, gate)
    return len(first) + len(before) + len(await ctx.get("value", bytes, b""))


@shelf.handler
async def waits_with_a_large_argument(ctx: ObjectContext, gate_and_value: tuple[str, bytes]) -> int:
    await ctx.run("wait", opened, gate_and_value[0])
    return len(gate_and_value[1])


@shelf.handler(retry=ONCE)
async def fails_while_closed(ctx: ObjectContext, gate_and_value: tuple[str, bytes]) -> int:
    before = await ctx.get("value", bytes, b"")
    made = await ctx.run("make", _make)
    if not Path(gate_and_value[0]).exists():
        raise ValueError("the gate is closed")
    return len(before) + len(made) + len(gate_and_value[1])


@shelf.handler(retry=ONCE)
async def swallows(ctx: ObjectContext) -> None:
    try:
        value = await ctx.get("value", bytes, b"")
    except BaseException:  # noqa: BLE001, as some users' code does
        value = b""
    ctx.set("value", value + b"!")


@shelf.handler
async def many_of_middling_size(ctx: ObjectContext, count: int) -> None:
    for number in range(count):
        ctx.set(f"m{number}", os.urandom(10_000))


@shelf.handler
async def one_of_middling_size(ctx: ObjectContext, number: int) -> None:
    ctx.set(f"m{number}", os.urandom(10_000))


@shelf.handler
async def read_all_of_them(ctx: ObjectContext) -> int:
    total = 0
    for name in await ctx.state_keys():
        # Each of them is read once, and goes into the next record.
        total += len(await ctx.get(name, bytes, b""))
    await ctx.run("after reading", _make)
    return total


patient = VirtualObject("Patient", owner="tests", partitions=2, on_paused="skip")
patient_fails = patient.handler(retry=ONCE)(fails_while_closed.function)
patient_put = patient.handler(put.function)


def space_of(runtime: Runtime, type_name: str = "Shelf", key: str = KEY) -> PartitionSpace:
    return PartitionSpace(runtime.namespace, type_name, partition_of(key, 2))


def partition_at(runtime: Runtime, key: str = KEY) -> Partition:
    space = space_of(runtime, key=key)
    return next(each for each in runtime.worker.partitions if each.space == space)


def blobs(runtime: Runtime, type_name: str = "Shelf", key: str = KEY) -> dict[bytes, bytes]:
    return plain(runtime.store_url, "HGETALL", space_of(runtime, type_name, key).blobs(key))


def forget_what_is_at_hand(runtime: Runtime) -> None:
    """Let every large value be read from the store again."""
    runtime.client.store.blob_cache = BlobCache()


async def has_steps(handle: Handle[Any], steps: int) -> bool:
    told = await handle.describe()
    return told.status in (Status.RUNNING, Status.QUEUED) and told.accepted_at is not None and len(told.steps) == steps


@shelf.handler
async def returns_forged(ctx: ObjectContext) -> object:
    return msgpack.ExtType(64, bytes(20))


@shelf.handler
async def fill(ctx: ObjectContext, count: int) -> None:
    for number in range(count):
        ctx.set(f"v{number}", os.urandom(MEGABYTE - 100))
