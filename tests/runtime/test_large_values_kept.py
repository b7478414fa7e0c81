"""How long large values are kept, and what becomes of whoever needs one that was lost."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from keylane import (
    Client,
    InvocationPaused,
    Runtime,
    ValueLost,
)
from keylane.journal import operations
from keylane.journal.batch import Commit
from keylane.journal.blobs import digest_of
from keylane.journal.codec import pack
from keylane.journal.keyspace import PartitionSpace
from keylane.testing import shift_clock
from tests.faults.harness import eventually, eventually_answers
from tests.plain import plain
from tests.runtime.shelves import (
    AFTER_RETENTION,
    ARTIFACT,
    IMPATIENT,
    KEY,
    LARGE,
    blobs,
    drop,
    echo,
    fails_while_closed,
    forget_what_is_at_hand,
    has_steps,
    look,
    partition_at,
    patient,
    patient_fails,
    patient_put,
    put,
    shelf,
    space_of,
    swallows,
    take,
    waits_with_a_large_argument,
    waits_with_a_large_step,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime([shelf, patient], store=store_url, namespace=namespace) as runtime:
        yield runtime


@pytest.fixture
async def outside(runtime: Runtime) -> AsyncIterator[Client]:
    async with Client(runtime.store_url, namespace=runtime.namespace) as client:
        yield client


def index(runtime: Runtime, type_name: str = "Shelf") -> list[bytes]:
    found: list[bytes] = []
    for number in range(2):
        space = PartitionSpace(runtime.namespace, type_name, number)
        found.extend(plain(runtime.store_url, "ZRANGE", space.blob_index, 0, -1))
    return found


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
    await eventually_answers(lambda: has_steps(handle, 1), "it waits in its second step")

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
        await eventually_answers(lambda: has_steps(handle, 0), "it is taken in")
        plain(store_url, "DEL", space_of(first).blobs(KEY))
    gate.touch()
    async with Runtime(shelf, store=store_url, namespace=namespace) as second:
        with pytest.raises(InvocationPaused, match="argument is missing"):
            await second.client.attach(handle.id).result(timeout=10)
