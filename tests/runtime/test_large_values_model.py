"""Random lives of an object with large values and a plain model of it: nothing needed is missing, nothing stays."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, TypeAlias

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keylane import Client, ObjectContext, Runtime, Settings, VirtualObject
from keylane.journal.blob_cache import BlobCache
from keylane.journal.blobs import digest_of
from keylane.journal.codec import pack
from keylane.journal.key import partition_of
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.store import Store
from keylane.testing import shift_clock

RETENTION = timedelta(hours=24)
PARTITIONS = 2
NAMES = ("a", "b")
#: Each is drawn by its letter.
VALUES = {letter: letter.encode() * 3_000 for letter in "xyz"}
#: Small, so that values are large; and snapshots often, so that state comes out of them as well.
SMALL = Settings(blob_threshold_bytes=1_024, snapshot_every_deltas=3, partitions=PARTITIONS)

chest = VirtualObject("Chest", owner="tests", partitions=PARTITIONS)


@chest.handler
async def put(ctx: ObjectContext, name_and_value: tuple[str, bytes]) -> None:
    ctx.set(*name_and_value)


@chest.handler
async def clear(ctx: ObjectContext, name: str) -> None:
    ctx.clear(name)


@chest.handler
async def move(ctx: ObjectContext, names: tuple[str, str]) -> bytes:
    """Read one value and write it under another name, with a step in between."""
    value = await ctx.get(names[0], bytes, b"")
    same = await ctx.run("hand over", _same, value)
    ctx.set(names[1], same)
    return same


def _same(value: bytes) -> bytes:
    return value


@chest.handler
async def everything(ctx: ObjectContext) -> dict[str, bytes]:
    return {name: await ctx.get(name, bytes, b"") for name in await ctx.state_keys()}


Action: TypeAlias = tuple[Literal["put", "clear", "move", "shift", "sweep", "forget", "restart"], str, str, str, int]
actions = st.tuples(
    st.sampled_from(["put", "put", "clear", "move", "shift", "sweep", "sweep", "forget", "restart"]),
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.sampled_from(sorted(VALUES)),
    st.sampled_from([1, 13, 23, 25]),
)


@dataclass
class Life:
    """What an object holds, and when its values were last referred to, in hours of its own."""

    state: dict[str, bytes] = field(default_factory=dict[str, bytes])
    referred: dict[bytes, int] = field(default_factory=dict[bytes, int])
    hour: int = 0

    def refer(self, *values: bytes) -> None:
        """Note that values are referred to now."""
        self.referred.update((value, self.hour) for value in values if len(value) > SMALL.blob_threshold_bytes)

    def set(self, name: str, value: bytes | None) -> None:
        """Write or clear a value; what it stood for is in the history from now on."""
        self.refer(self.state.pop(name, b""))
        if value is not None:
            self.state[name] = value
            self.refer(value)

    @property
    def wanted(self) -> set[bytes]:
        """Values that must be in the store."""
        recent = {value for value, hour in self.referred.items() if self.hour - hour < RETENTION.total_seconds() / 3600}
        return recent | {value for value in self.state.values() if value}


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.lists(actions, min_size=3, max_size=14))
def test_no_value_that_is_needed_is_missing_and_none_stays_that_is_not(
    portal: BlockingPortal, store_url: str, drawn: list[Action]
) -> None:
    """Writes, clears, steps, time, sweeps, owners that come and go, in any order."""
    portal.call(live, store_url, new_namespace(), drawn)


def new_namespace() -> str:
    return f"life-{secrets.token_hex(6)}"


async def live(store_url: str, namespace: str, drawn: list[Action]) -> None:
    """Live a life and its model, and compare them at its end and after all retention."""
    life, key = Life(), "acme/c-1"
    done = 0
    while True:
        async with Runtime(chest, store=store_url, namespace=namespace, settings=SMALL) as runtime:
            for action in drawn[done:]:
                done += 1
                if action[0] == "restart":
                    break
                await act(runtime, life, action, key)
                kept = await stored(runtime.client.store, key)
                assert {digest_of(pack(each)) for each in life.wanted} <= kept.keys()
            else:
                await all_is_there_and_nothing_else(runtime, life, key)
                return


async def act(runtime: Runtime, life: Life, action: Action, key: str) -> None:
    """Do one thing, in the store and in the model."""
    kind, name, other, letter, hours = action
    value = VALUES[letter]
    client: Client = runtime.client
    match kind:
        case "put":
            await client.call(put, key, (name, value))
            life.set(name, value)
            life.refer(value)
        case "clear":
            await client.call(clear, key, name)
            life.set(name, None)
        case "move":
            moved = await client.call(move, key, (name, other))
            assert moved == life.state.get(name, b"")
            life.refer(moved)
            life.set(other, moved)
        case "shift":
            await shift_clock(runtime, timedelta(hours=hours))
            life.hour += hours
        case "sweep":
            await runtime.worker._blob_sweep.sweep()
        case _:
            client.store.blob_cache = BlobCache()


async def all_is_there_and_nothing_else(runtime: Runtime, life: Life, key: str) -> None:
    """Compare the state, then let all retention pass and compare what is kept."""
    runtime.client.store.blob_cache = BlobCache()
    assert await runtime.client.call(everything, key) == life.state
    for _ in range(2):
        await shift_clock(runtime, RETENTION + timedelta(hours=1))
        await runtime.worker._blob_sweep.sweep()
    in_state = {digest_of(pack(value)) for value in life.state.values() if value}
    assert (await stored(runtime.client.store, key)).keys() == in_state
    space = PartitionSpace(runtime.namespace, "Chest", partition_of(key, PARTITIONS))
    assert await runtime.client.store.call("ZCARD", space.blob_index) == len(in_state)


async def stored(store: Store, key: str) -> dict[bytes, bytes]:
    """Return the large values of the object, each of which is what its digest says."""
    space = PartitionSpace(store.namespace, "Chest", partition_of(key, PARTITIONS))
    flat: list[bytes] = await store.call("HGETALL", space.blobs(key))
    kept = dict(zip(flat[::2], flat[1::2], strict=True))
    assert all(digest_of(packed) == digest for digest, packed in kept.items())
    return kept
