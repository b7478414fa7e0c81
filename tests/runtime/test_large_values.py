"""Large values: written once for each object, read back wherever they are used, kept as long as they are needed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgpack
import pytest

from keylane import (
    CallError,
    Client,
    InvalidInput,
    InvalidOutput,
    Runtime,
)
from keylane.journal.blobs import is_reference, member_of, parts_of, reference_to
from keylane.journal.codec import pack
from keylane.journal.key import Key, new_invocation_id
from keylane.journal.requests import Request, RequestKind
from keylane.journal.snapshots import decode_values
from keylane.testing import shift_clock
from tests.faults.harness import eventually_answers
from tests.plain import plain
from tests.runtime.shelves import (
    AFTER_RETENTION,
    ARTIFACT,
    IMPATIENT,
    KEY,
    LARGE,
    MEGABYTE,
    blobs,
    drop,
    echo,
    fill,
    forget_what_is_at_hand,
    has_steps,
    look,
    look_from_a_thread,
    one_of_middling_size,
    partition_at,
    patient,
    put,
    read_all_of_them,
    returns_forged,
    same_in_steps,
    shelf,
    space_of,
    take,
    touch,
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


def entries_of(runtime: Runtime, stream: bytes) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in plain(runtime.store_url, "XRANGE", stream, "-", "+")]


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
            await eventually_answers(lambda h=handle, s=steps: has_steps(h, s), "it waits in its last step")
    async with Runtime(shelf, store=store_url, namespace=namespace) as second:
        await shift_clock(second, AFTER_RETENTION)
        await second.worker._blob_sweep.sweep()
        assert len(blobs(second)) == 2
        assert len(blobs(second, key="acme/o-2")) == 1
        gate.touch()
        assert await second.client.attach(step.id, int).result(timeout=20) == ARTIFACT + 2 * LARGE
        assert await second.client.attach(argument.id, int).result(timeout=20) == LARGE


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
        await eventually_answers(lambda: has_steps(handle, 0), "it is taken in")
    async with Runtime(shelf, store=store_url, namespace=namespace) as second:
        for _ in range(2):
            with pytest.raises(CallError, match=r"differ in gate_and_value\[1\]"):
                await second.client.call(
                    waits_with_a_large_argument, KEY, (str(gate), b"y" * LARGE), idempotency_key="k", timeout=10
                )
            gate.touch()
            await second.client.attach(handle.id, int).result(timeout=10)


async def test_a_foreign_key_in_the_place_of_large_values_is_left_alone(runtime: Runtime) -> None:
    """The commit is refused, the caller is told, and other objects go on."""
    key = space_of(runtime).blobs(KEY)
    plain(runtime.store_url, "SET", key, "ours")

    with pytest.raises(Exception, match=r"did not write|refused"):
        await runtime.client.call(put, KEY, os.urandom(LARGE), timeout=20)

    assert plain(runtime.store_url, "GET", key) == b"ours"
    await runtime.client.call(put, "acme/o-2", os.urandom(LARGE), timeout=10)


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
