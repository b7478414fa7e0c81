"""Large values: written once for each object, read back wherever they are used, kept as long as they are needed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgpack
import pytest

from keylane import (
    BlockingSharedContext,
    CallError,
    Client,
    Handle,
    InvalidInput,
    InvalidOutput,
    InvocationPaused,
    ObjectContext,
    RetryPolicy,
    Runtime,
    Settings,
    SharedContext,
    ValueLost,
    VirtualObject,
)
from keylane.journal import operations
from keylane.journal.batch import Commit
from keylane.journal.blob_cache import BlobCache
from keylane.journal.blobs import digest_of, is_reference, member_of, parts_of, reference_to
from keylane.journal.codec import pack
from keylane.journal.key import Key, new_invocation_id, partition_of
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.requests import Request, RequestKind
from keylane.journal.snapshots import decode_values
from keylane.journal.standing import Status
from keylane.runtime.partition import Partition
from keylane.testing import shift_clock
from tests.faults.harness import eventually, eventually_answers
from tests.objects_catalogue import opened
from tests.plain import plain

pytestmark = pytest.mark.anyio

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


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime([shelf, patient], store=store_url, namespace=namespace) as runtime:
        yield runtime


@pytest.fixture
async def outside(runtime: Runtime) -> AsyncIterator[Client]:
    async with Client(runtime.store_url, namespace=runtime.namespace) as client:
        yield client


def space_of(runtime: Runtime, type_name: str = "Shelf", key: str = KEY) -> PartitionSpace:
    return PartitionSpace(runtime.namespace, type_name, partition_of(key, 2))


def partition_at(runtime: Runtime, key: str = KEY) -> Partition:
    space = space_of(runtime, key=key)
    return next(each for each in runtime.worker.partitions if each.space == space)


def blobs(runtime: Runtime, type_name: str = "Shelf", key: str = KEY) -> dict[bytes, bytes]:
    return plain(runtime.store_url, "HGETALL", space_of(runtime, type_name, key).blobs(key))


def entries_of(runtime: Runtime, stream: bytes) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in plain(runtime.store_url, "XRANGE", stream, "-", "+")]


def index(runtime: Runtime, type_name: str = "Shelf") -> list[bytes]:
    found: list[bytes] = []
    for number in range(2):
        space = PartitionSpace(runtime.namespace, type_name, number)
        found.extend(plain(runtime.store_url, "ZRANGE", space.blob_index, 0, -1))
    return found


def forget_what_is_at_hand(runtime: Runtime) -> None:
    """Let every large value be read from the store again."""
    runtime.client.store.blob_cache = BlobCache()


def bytes_sent(runtime: Runtime) -> int:
    """Return how many bytes the store has been sent in all."""
    return int(plain(runtime.store_url, "INFO", "stats")["total_net_input_bytes"])


def memory(runtime: Runtime) -> int:
    keys = plain(runtime.store_url, "KEYS", f"{{{runtime.namespace}:*")
    return sum(plain(runtime.store_url, "MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys)


@pytest.mark.parametrize("size", [1_000, 16_384 - 8, 16_384, LARGE, MEGABYTE - 16])
async def test_a_value_of_any_size_comes_back_from_every_place(runtime: Runtime, outside: Client, size: int) -> None:
    """As argument, result and state; in this process and in another; at hand and from the store."""
    value = os.urandom(size)
    for client in (runtime.client, outside):
        assert await client.call(echo, KEY, value) == value
        await client.call(put, KEY, value)
        for forgetful in (False, True):
            if forgetful:
                forget_what_is_at_hand(runtime)
            assert await client.call(take, KEY) == value
            assert await client.call(look, KEY) == value
            assert await client.call(look_from_a_thread, KEY) == value
            assert await client.call("Shelf", KEY, "take") == value


async def test_a_new_owner_reads_large_values(store_url: str, namespace: str) -> None:
    """State lies in the store by reference, and its bytes beside it."""
    value = os.urandom(LARGE)
    async with Runtime(shelf, store=store_url, namespace=namespace) as first:
        await first.client.call(put, KEY, value)
    async with Runtime(shelf, store=store_url, namespace=namespace) as second:
        assert await second.client.call(take, KEY) == value
        assert await second.client.call(look, KEY) == value
        lane = partition_at(second).lanes[KEY]
        assert all(is_reference(packed) for packed in lane.queued.values())


async def test_a_reader_without_the_partition_reads_large_values(runtime: Runtime, outside: Client) -> None:
    """A shared handler that is served from the store, because the lease is in doubt, finds them too."""
    value = os.urandom(LARGE)
    await runtime.client.call(put, KEY, value)
    forget_what_is_at_hand(runtime)
    partition_at(runtime).hold_lease(lambda: False)

    assert await outside.call(look, KEY) == value


async def test_one_artifact_in_forty_steps_costs_about_as_much_as_one(runtime: Runtime) -> None:
    """Its bytes are written once, however often steps return it, state holds it and handlers read it."""
    before, sent_before = memory(runtime), bytes_sent(runtime)

    assert await runtime.client.call(same_in_steps, KEY, 40) == ARTIFACT

    assert len(blobs(runtime)) == 1
    assert bytes_sent(runtime) - sent_before < 1.25 * ARTIFACT
    assert memory(runtime) - before < 1.25 * ARTIFACT


async def test_a_large_state_value_is_not_written_again_by_snapshots(runtime: Runtime) -> None:
    """A hundred deltas and three snapshots later the object's stream is small."""
    value = os.urandom(MEGABYTE - 16)
    await runtime.client.call(put, KEY, value)
    for number in range(100):
        await runtime.client.call(touch, KEY, number)

    entries = entries_of(runtime, space_of(runtime).object(KEY))
    assert any(b"s" in fields for fields in entries)
    assert sum(len(word) for fields in entries for word in fields.values()) < 30_000
    forget_what_is_at_hand(runtime)
    assert await runtime.client.call(take, KEY) == value


async def test_one_large_value_in_two_objects_is_kept_by_each(runtime: Runtime) -> None:
    """What one of them does with it is nothing to the other."""
    value = os.urandom(LARGE)
    await runtime.client.call(put, KEY, value)
    await runtime.client.call(put, "acme/o-2", value)

    await runtime.client.call(drop, KEY)
    await shift_clock(runtime, AFTER_RETENTION)
    await runtime.worker._blob_sweep.sweep()

    assert blobs(runtime) == {}
    forget_what_is_at_hand(runtime)
    assert await runtime.client.call(take, "acme/o-2") == value


async def test_a_snapshot_of_many_values_of_middling_size_is_small(runtime: Runtime) -> None:
    """None of them is above the threshold; together they would be written again by every snapshot."""
    for number in range(100):
        await runtime.client.call(one_of_middling_size, KEY, number)

    snapshots = [fields[b"s"] for fields in entries_of(runtime, space_of(runtime).object(KEY)) if b"s" in fields]
    assert snapshots
    assert all(len(snapshot) < 64_000 for snapshot in snapshots)
    forget_what_is_at_hand(runtime)
    assert await runtime.client.call(read_all_of_them, KEY) == 1_000_000


async def test_a_record_that_carries_many_reads_is_small(runtime: Runtime) -> None:
    """What a handler has read since the last record goes into the next one, by reference where it is much."""
    for number in range(30):
        await runtime.client.call(one_of_middling_size, KEY, number)
    assert blobs(runtime) == {}

    handle = await runtime.client.send(read_all_of_them, KEY)
    assert await handle.result(timeout=20) == 300_000

    raw_id = bytes.fromhex(handle.id.rpartition(".")[2])
    records = entries_of(runtime, space_of(runtime).invocation(raw_id))
    assert max(len(fields[b"r"]) for fields in records) < 64_000


async def test_an_invocation_with_large_records_goes_on_at_a_new_owner(
    store_url: str, namespace: str, tmp_path: Path
) -> None:
    """Its argument, its step results and the state that it had read are found by their references."""
    gate = tmp_path / "gate"
    value = os.urandom(LARGE)
    async with Runtime(shelf, store=store_url, namespace=namespace, settings=IMPATIENT) as first:
        await first.client.call(put, KEY, value)
        step = await first.client.send(waits_with_a_large_step, KEY, str(gate))
        argument = await first.client.send(waits_with_a_large_argument, "acme/o-2", (str(gate), value))
        for handle, steps in ((step, 1), (argument, 0)):
            await eventually_answers(lambda h=handle, s=steps: _has_steps(h, s), "it waits in its last step")
    async with Runtime(shelf, store=store_url, namespace=namespace) as second:
        await shift_clock(second, AFTER_RETENTION)
        await second.worker._blob_sweep.sweep()
        assert len(blobs(second)) == 2
        assert len(blobs(second, key="acme/o-2")) == 1
        gate.touch()
        assert await second.client.attach(step.id, int).result(timeout=20) == ARTIFACT + 2 * LARGE
        assert await second.client.attach(argument.id, int).result(timeout=20) == LARGE


async def _has_steps(handle: Handle[Any], steps: int) -> bool:
    told = await handle.describe()
    return told.status in (Status.RUNNING, Status.QUEUED) and told.accepted_at is not None and len(told.steps) == steps


async def test_the_fields_that_differ_are_named_for_large_arguments_too(
    store_url: str, namespace: str, tmp_path: Path
) -> None:
    """The first arguments are looked at in the store, also by an owner that has only a reference to them."""
    gate = tmp_path / "gate"
    async with Runtime(shelf, store=store_url, namespace=namespace, settings=IMPATIENT) as first:
        handle = await first.client.send(
            waits_with_a_large_argument, KEY, (str(gate), b"x" * LARGE), idempotency_key="k"
        )
        await handle.accepted(timeout=10)
        await eventually_answers(lambda: _has_steps(handle, 0), "it is taken in")
    async with Runtime(shelf, store=store_url, namespace=namespace) as second:
        for _ in range(2):
            with pytest.raises(CallError, match=r"differ in gate_and_value\[1\]"):
                await second.client.call(
                    waits_with_a_large_argument, KEY, (str(gate), b"y" * LARGE), idempotency_key="k", timeout=10
                )
            gate.touch()
            await second.client.attach(handle.id, int).result(timeout=10)


# What is kept, and for how long.


async def test_a_large_value_in_state_stays_for_ever(runtime: Runtime) -> None:
    """Whatever time passes, and however often it is swept."""
    value = os.urandom(LARGE)
    await runtime.client.call(put, KEY, value)
    for _ in range(4):
        await shift_clock(runtime, AFTER_RETENTION)
        await runtime.worker._blob_sweep.sweep()

    forget_what_is_at_hand(runtime)
    assert await runtime.client.call(take, KEY) == value


async def test_a_large_value_is_kept_for_the_retention_and_then_gone(runtime: Runtime, outside: Client) -> None:
    """Argument, result and former state: within the retention a retry finds the result, after it nothing is left."""
    value, other = os.urandom(LARGE), os.urandom(LARGE)
    await runtime.client.call(put, KEY, value)
    await shift_clock(runtime, timedelta(hours=30))
    await runtime.worker._blob_sweep.sweep()
    await runtime.client.call(drop, KEY)
    assert await runtime.client.call(echo, KEY, other, idempotency_key="k") == other

    await shift_clock(runtime, timedelta(hours=23))
    await runtime.worker._blob_sweep.sweep()
    assert set(blobs(runtime).values()) == {pack(value), pack(other)}
    assert await outside.call(echo, KEY, other, idempotency_key="k") == other

    await shift_clock(runtime, timedelta(hours=2))
    await runtime.worker._blob_sweep.sweep()
    assert blobs(runtime) == {}
    assert index(runtime) == []


async def test_a_large_value_is_kept_for_the_retention_after_it_was_overwritten(runtime: Runtime) -> None:
    """However long it was state before: until then it is part of the history."""
    await runtime.client.call(put, KEY, os.urandom(LARGE))
    await shift_clock(runtime, timedelta(hours=20))
    await runtime.client.call(put, KEY, b"small")

    await shift_clock(runtime, timedelta(hours=20))
    await runtime.worker._blob_sweep.sweep()

    assert len(blobs(runtime)) == 1


async def test_what_is_used_again_is_kept_again(runtime: Runtime) -> None:
    """A value whose retention has almost passed gets all of it once more."""
    value = os.urandom(LARGE)
    await runtime.client.call(echo, KEY, value)
    await shift_clock(runtime, timedelta(hours=23))
    handle = await runtime.client.send(echo, KEY, value)
    await handle.result(timeout=10)
    await shift_clock(runtime, timedelta(hours=23))
    await runtime.worker._blob_sweep.sweep()

    forget_what_is_at_hand(runtime)
    assert await handle.result(timeout=10) == value


async def test_a_value_that_was_deleted_is_written_anew_when_it_comes_again(runtime: Runtime) -> None:
    """The owner knows what it has deleted."""
    value = os.urandom(LARGE)
    await runtime.client.call(put, KEY, value)
    await runtime.client.call(drop, KEY)
    await shift_clock(runtime, AFTER_RETENTION)
    await runtime.worker._blob_sweep.sweep()
    assert blobs(runtime) == {}

    await runtime.client.call(put, KEY, value)

    forget_what_is_at_hand(runtime)
    assert await runtime.client.call(take, KEY) == value


async def test_an_open_invocation_keeps_what_it_refers_to(runtime: Runtime, tmp_path: Path) -> None:
    """For as long as it is open, and for the retention after its end."""
    gate = tmp_path / "gate"
    await runtime.client.call(put, KEY, os.urandom(LARGE))
    handle = await runtime.client.send(waits_with_a_large_step, KEY, str(gate))
    await eventually_answers(lambda: _has_steps(handle, 1), "it waits in its second step")

    for _ in range(3):
        await shift_clock(runtime, AFTER_RETENTION)
        await runtime.worker._blob_sweep.sweep()
    assert len(blobs(runtime)) == 2

    await shift_clock(runtime, timedelta(hours=20))
    gate.touch()
    assert await handle.result(timeout=10) == ARTIFACT + 2 * LARGE
    await runtime.client.call(drop, KEY)
    await shift_clock(runtime, timedelta(hours=23))
    await runtime.worker._blob_sweep.sweep()
    assert len(blobs(runtime)) == 2
    await shift_clock(runtime, timedelta(hours=2))
    await runtime.worker._blob_sweep.sweep()
    assert blobs(runtime) == {}


@pytest.mark.parametrize("is_new_owner", [False, True], ids=["its owner", "a new owner"])
async def test_a_parked_invocation_outside_of_its_lane_keeps_what_it_refers_to(
    store_url: str, namespace: str, tmp_path: Path, *, is_new_owner: bool
) -> None:
    """Also where no owner has it in memory: only its id is in the store, and its records are looked at there."""
    gate, value = tmp_path / "gate", os.urandom(LARGE)
    async with Runtime(patient, store=store_url, namespace=namespace) as first:
        await first.client.call(patient_put, KEY, value)
        with pytest.raises(InvocationPaused) as paused:
            await first.client.call(patient_fails, KEY, (str(gate), os.urandom(LARGE)), timeout=10)
        await first.client.call(patient_put, KEY, b"small")
        if not is_new_owner:
            await _goes_on_after_retention(first, paused.value.invocation_id or "", gate)
            return
    async with Runtime(patient, store=store_url, namespace=namespace) as second:
        await _goes_on_after_retention(second, paused.value.invocation_id or "", gate)


async def test_a_parked_invocation_in_its_lane_keeps_what_it_refers_to(
    store_url: str, namespace: str, tmp_path: Path
) -> None:
    """At a new owner, where nothing of it has run."""
    gate = tmp_path / "gate"
    async with Runtime(shelf, store=store_url, namespace=namespace) as first:
        await first.client.call(put, KEY, os.urandom(LARGE))
        with pytest.raises(InvocationPaused) as paused:
            await first.client.call(fails_while_closed, KEY, (str(gate), os.urandom(LARGE)), timeout=10)
    async with Runtime(shelf, store=store_url, namespace=namespace) as second:
        for _ in range(2):
            await shift_clock(second, AFTER_RETENTION)
            await second.worker._blob_sweep.sweep()
        gate.touch()
        invocation_id = paused.value.invocation_id or ""
        await second.client.resume(invocation_id, by="tests", reason="the gate is open", timeout=10)
        assert await second.client.attach(invocation_id, int).result(timeout=10) == 2 * LARGE + ARTIFACT


async def _goes_on_after_retention(runtime: Runtime, invocation_id: str, gate: Path) -> None:
    for _ in range(2):
        await shift_clock(runtime, AFTER_RETENTION)
        await runtime.worker._blob_sweep.sweep()
    forget_what_is_at_hand(runtime)
    gate.touch()
    await runtime.client.resume(invocation_id, by="tests", reason="the gate is open", timeout=10)
    assert await runtime.client.attach(invocation_id, int).result(timeout=10) == 2 * LARGE + ARTIFACT

    for _ in range(2):
        await shift_clock(runtime, AFTER_RETENTION)
        await runtime.worker._blob_sweep.sweep()
    assert blobs(runtime, "Patient") == {}
    assert plain(runtime.store_url, "EXISTS", space_of(runtime, "Patient").set_aside(KEY)) == 0


async def test_a_reference_that_comes_while_the_sweep_decides_saves_the_value(runtime: Runtime) -> None:
    """The deletion is decided on what was read before, and is not done when the store knows of a later reference."""
    value = os.urandom(LARGE)
    await runtime.client.call(put, KEY, value)
    await runtime.client.call(drop, KEY)
    await shift_clock(runtime, AFTER_RETENTION)
    partition = partition_at(runtime)
    before_ms = partition.now_ms() - 3_600_000

    digest = digest_of(pack(value))
    partition.writer.commit(Commit([operations.touch_blob(partition.space, KEY, digest)], lambda _now, _error: None))
    deletion = operations.collect_blob(partition.space, KEY, digest, before_ms)
    partition.writer.commit(Commit(deletion, lambda _now, _error: None))
    await eventually(lambda: partition.writer.is_idle, "both are applied")

    assert len(blobs(runtime)) == 1


# What is missing or damaged is said, and nothing is written in its place.


@pytest.mark.parametrize("damage", ["missing", "damaged"])
async def test_a_lost_state_value_parks_whoever_needs_it(runtime: Runtime, damage: str) -> None:
    """Also a handler that swallows what comes out of its read; once it is restored, it goes on."""
    value = os.urandom(LARGE)
    await runtime.client.call(put, KEY, value)
    key, digest = space_of(runtime).blobs(KEY), digest_of(pack(value))
    if damage == "missing":
        plain(runtime.store_url, "HDEL", key, digest)
    else:
        plain(runtime.store_url, "HSET", key, digest, pack(value)[:-1] + b"?")
    forget_what_is_at_hand(runtime)

    with pytest.raises(ValueLost, match=f"state value is {damage}"):
        await runtime.client.call(look, KEY)
    with pytest.raises(InvocationPaused, match=f"value_lost.*state value is {damage}") as paused:
        await runtime.client.call(swallows, KEY, timeout=10)

    plain(runtime.store_url, "HSET", key, digest, pack(value))
    invocation_id = paused.value.invocation_id or ""
    await runtime.client.resume(invocation_id, by="tests", reason="restored", timeout=10)
    await runtime.client.attach(invocation_id).result(timeout=10)
    assert await runtime.client.call(take, KEY) == value + b"!"


async def test_a_lost_result_is_an_error_of_its_own(runtime: Runtime, outside: Client) -> None:
    """A caller in another process is told, at once, what is missing."""
    value = os.urandom(LARGE)
    handle = await outside.send(echo, KEY, value)
    await handle.result(timeout=10)
    plain(runtime.store_url, "DEL", space_of(runtime).blobs(KEY))

    with pytest.raises(ValueLost, match="result is missing"):
        await handle.result(timeout=10)


async def test_a_lost_argument_parks_its_invocation(store_url: str, namespace: str, tmp_path: Path) -> None:
    """A new owner has only the reference."""
    gate = tmp_path / "gate"
    async with Runtime(shelf, store=store_url, namespace=namespace, settings=IMPATIENT) as first:
        handle = await first.client.send(waits_with_a_large_argument, KEY, (str(gate), b"x" * LARGE))
        await handle.accepted(timeout=10)
        await eventually_answers(lambda: _has_steps(handle, 0), "it is taken in")
        plain(store_url, "DEL", space_of(first).blobs(KEY))
    gate.touch()
    async with Runtime(shelf, store=store_url, namespace=namespace) as second:
        with pytest.raises(InvocationPaused, match="argument is missing"):
            await second.client.attach(handle.id).result(timeout=10)


async def test_a_foreign_key_in_the_place_of_large_values_is_left_alone(runtime: Runtime) -> None:
    """The commit is refused, the caller is told, and other objects go on."""
    key = space_of(runtime).blobs(KEY)
    plain(runtime.store_url, "SET", key, "ours")

    with pytest.raises(Exception, match=r"did not write|refused"):
        await runtime.client.call(put, KEY, os.urandom(LARGE), timeout=20)

    assert plain(runtime.store_url, "GET", key) == b"ours"
    await runtime.client.call(put, "acme/o-2", os.urandom(LARGE), timeout=10)


# Nobody can write a reference by hand.


async def test_no_value_of_a_user_is_taken_for_a_reference(runtime: Runtime, outside: Client) -> None:
    """Neither one that a handler makes, nor one that a client sends, whatever wrote it."""
    forged = msgpack.ExtType(64, bytes(20))
    with pytest.raises(InvalidOutput, match="reserved"):
        await runtime.client.call(returns_forged, KEY)
    with pytest.raises(InvalidInput, match="reserved"):
        await outside.call("Shelf", KEY, "echo", forged)

    raw_id = new_invocation_id()
    request = Request(RequestKind.CALL, raw_id, "echo", KEY, reference_to(b"x" * LARGE, bytes(16)))
    space = space_of(runtime)
    plain(runtime.store_url, "XADD", space.inbox, "*", "m", request.encode())
    handle = outside.attach(f"Shelf.{space.number}.{raw_id.hex()}")
    with pytest.raises(InvalidInput, match="reserved"):
        await handle.result(timeout=10)
    assert await runtime.client.call(echo, KEY, b"goes on") == b"goes on"


@shelf.handler
async def returns_forged(ctx: ObjectContext) -> object:
    return msgpack.ExtType(64, bytes(20))


# What readers see.


async def test_inspect_and_describe_show_large_values_with_their_size(runtime: Runtime) -> None:
    """State comes with its bytes up to a limit, steps and results with their size."""
    value = os.urandom(LARGE)
    await runtime.client.call(put, KEY, value)
    handle = await runtime.client.send(same_in_steps, "acme/o-2", 2)
    await handle.result(timeout=10)
    large = await runtime.client.send(echo, KEY, value)
    await large.result(timeout=10)

    (shown,) = (await runtime.client.inspect("Shelf", KEY)).state
    assert (shown.packed, shown.size_bytes, shown.left_out) == (pack(value), len(pack(value)), None)
    steps = (await handle.describe()).steps
    assert [step.size_bytes for step in steps] == [ARTIFACT + 5] * 3
    result = (await large.describe()).result
    assert result is not None
    assert result.size_bytes == len(pack(value))


@shelf.handler
async def fill(ctx: ObjectContext, count: int) -> None:
    for number in range(count):
        ctx.set(f"v{number}", os.urandom(MEGABYTE - 100))


async def test_inspect_leaves_out_what_is_too_much_to_be_read_at_once(runtime: Runtime) -> None:
    """An object of 20 MB is described with 8 MB of it; the others are named, with their size."""
    await runtime.client.call(fill, KEY, 20)

    state = (await runtime.client.inspect("Shelf", KEY)).state

    assert len(state) == 20
    assert sum(value.left_out is None for value in state) == 8
    assert all(value.size_bytes > 1_000_000 for value in state)


async def test_a_commit_of_many_large_values_goes_out_in_small_calls(runtime: Runtime) -> None:
    """Twenty megabytes of state are twenty calls, and the last of them makes all of it visible."""
    await runtime.client.call(fill, KEY, 20)

    (entry,) = entries_of(runtime, space_of(runtime).object(KEY))
    values = decode_values(entry[b"d"])
    assert len(values) == 20
    assert all(value is not None and is_reference(value) for value in values.values())
    assert len(blobs(runtime)) == 20
    number = int(plain(runtime.store_url, "HGET", space_of(runtime).owner, "batch"))
    assert number >= 20


def test_the_key_of_an_index_entry_may_hold_a_nul() -> None:
    """The digest at its end has a fixed length, so nothing in the key can be taken for it."""
    key = str(Key("acme", "a\0b"))
    assert parts_of(member_of(key, bytes(16))) == (key, bytes(16))
