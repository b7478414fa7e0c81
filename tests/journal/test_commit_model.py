"""What commits leave in the store is what a plain model of them says, however they are cut into turns and batches."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, cast

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keylane.journal.batch import FIXED, KEYED, Commit, Operation
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.leases import acquire
from keylane.journal.store import Store
from keylane.journal.tenure import VACANT
from tests.faults.harness import eventually
from tests.journal.commit_model import Contents, Model, read

HOUR_MS = 3_600_000
LONG_FROM_NOW_MS = 4_000_000_000_000
LANES = ("acme/a", "acme/b")
IDS = (b"i" * 16, bytes(range(16)), b"\r\n\xff" + bytes(13))
ENTRIES = (b"1-0", b"2-0", b"3-0")
#: Any will do: only operations are compared here, and they carry names of this one.
SPACE = PartitionSpace("model", "Order", 0)

lanes, ids = st.sampled_from(LANES), st.sampled_from(IDS)
words = st.binary(max_size=4)
streams = st.one_of(lanes.map(SPACE.object), ids.map(SPACE.invocation))
days = st.integers(1, 2).map(SPACE.idempotency)
hashes = st.one_of(days, lanes.map(SPACE.blobs), lanes.map(SPACE.signals))


def with_lane(letter: bytes) -> st.SearchStrategy[Operation]:
    """Return an operation on a lane's list."""
    return st.tuples(lanes, ids).map(lambda drawn: (letter, SPACE.lane(drawn[0]), drawn[1], drawn[0]))


def restored(lane: str, held: list[bytes], is_runnable: bool) -> Operation:  # noqa: FBT001, hypothesis draws it
    """Return what writes a lane's list anew."""
    return (b"r", SPACE.lane(lane), len(held), *held, b"1" if held and is_runnable else b"0", lane)


def appended(drawn: tuple[bytes, list[tuple[bytes, bytes]]]) -> Operation:
    """Return what appends an entry of some fields."""
    key, fields = drawn
    return (b"a", key, 2 * len(fields), *itertools.chain.from_iterable(fields))


outboxes = st.sampled_from(["Order.1", "Stock.2"]).map(SPACE.outbox)

OPERATIONS: dict[bytes, st.SearchStrategy[Operation]] = {
    b"a": st.tuples(streams, st.lists(st.tuples(words, words), min_size=1, max_size=3)).map(appended),
    b"s": st.tuples(st.just(b"s"), ids.map(SPACE.result), words, st.just(HOUR_MS)),
    b"e": st.tuples(st.just(b"e"), st.one_of(ids.map(SPACE.invocation), days), st.just(HOUR_MS)),
    b"h": st.tuples(st.just(b"h"), hashes, words, words),
    b"x": st.tuples(st.just(b"x"), outboxes, words),
    b"y": st.tuples(st.just(b"y"), outboxes, st.integers(0, 4)),
    b"t": st.tuples(st.just(b"t"), lanes.map(SPACE.object), st.sampled_from([0, HOUR_MS])),
    b"k": lanes.map(lambda lane: (b"k", SPACE.object(lane))),
    b"n": st.tuples(st.just(b"n"), st.just(SPACE.history), st.integers(0, HOUR_MS), lanes),
    b"o": st.tuples(st.just(b"o"), st.just(SPACE.history), lanes),
    b"q": with_lane(b"q"),
    b"f": with_lane(b"f"),
    b"u": with_lane(b"u"),
    b"w": st.tuples(st.just(b"w"), lanes),
    b"l": st.tuples(st.just(b"l"), lanes),
    b"r": st.builds(restored, lanes, st.lists(ids, unique=True, max_size=4), st.booleans()),
    b"d": st.tuples(st.just(b"d"), ids, st.integers(0, HOUR_MS)),
    b"c": st.tuples(st.just(b"c"), ids),
    b"i": st.tuples(st.just(b"i"), st.sampled_from(ENTRIES)),
    b"b": st.tuples(st.just(b"b"), words),
    b"p": st.tuples(st.just(b"p"), words),
    b"j": st.tuples(st.just(b"j"), st.just(SPACE.blob_index), st.sampled_from([0, HOUR_MS]), words),
    b"z": st.tuples(st.just(b"z"), st.just(SPACE.blob_index), words, st.sampled_from([0, LONG_FROM_NOW_MS])),
    b"g": st.tuples(st.just(b"g"), lanes.map(SPACE.blobs), words),
    b"G": st.tuples(st.just(b"G"), lanes.map(SPACE.signals), words),
    b"m": st.tuples(st.just(b"m"), lanes.map(SPACE.set_aside), ids),
    b"v": st.tuples(st.just(b"v"), lanes.map(SPACE.set_aside), ids),
}


def paired(drawn: list[Operation]) -> list[Operation]:
    """Put before each deletion that depends on a member's having been taken out what takes it out."""
    made: list[Operation] = []
    for operation in drawn:
        if operation[0] == b"g":
            made.append((b"z", SPACE.blob_index, operation[2], LONG_FROM_NOW_MS))
        made.append(operation)
    return made


commits = st.lists(st.one_of(*OPERATIONS.values()), min_size=1, max_size=6).map(paired)
#: Commits that are made in one turn of the loop, and whether an answer is waited for before the next one.
turns = st.lists(st.tuples(st.lists(commits, min_size=1, max_size=4), st.booleans()), min_size=1, max_size=6)


#: A commit, and what became of it.
Ended: TypeAlias = tuple[list[Operation], int, BaseException | None]


def test_every_operation_is_drawn() -> None:
    """One that is added later is not forgotten here."""
    assert OPERATIONS.keys() == {*KEYED, *FIXED, b"p"}


@dataclass
class OpenStore:
    """A store in a thread of its own, where hypothesis can use it, and partitions that nobody has written to."""

    portal: BlockingPortal
    store: Store
    numbers: Iterator[int]


@pytest.fixture(scope="module")
def open_store(store_url: str) -> Iterator[OpenStore]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Store(store_url, namespace="model")) as store,
    ):
        yield OpenStore(portal, store, itertools.count())


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=turns)
def test_the_store_holds_what_the_model_says(
    open_store: OpenStore, drawn: list[tuple[list[list[Operation]], bool]]
) -> None:
    """Streams, results, hashes, lists, the runnable lanes and the due times, all of them, entry by entry."""
    portal, store = open_store.portal, open_store.store

    expected, found = portal.call(run, store, next(open_store.numbers), drawn)

    assert found == expected


async def run(store: Store, number: int, drawn: list[tuple[list[list[Operation]], bool]]) -> tuple[Contents, Contents]:
    """Apply commits to a new partition and to a model, and return what either has come to."""
    space = store.space("Order", number)
    model = Model(space)
    for entry in ENTRIES:
        await store.call("XADD", space.inbox, entry, "m", "request")
        model.contents.streams.setdefault(space.inbox, []).append((int(entry[:1]), [b"m", b"request"]))
    acquired = await acquire(store, space, VACANT, partitions=1, worker="w", machine="m", lease_seconds=1)
    assert acquired is not None
    writer = store.writer(space, acquired.tenure)
    ended: list[Ended] = []
    for made, waits in drawn:
        for operations in made:
            mine = [at_home(operation, space) for operation in operations]
            writer.commit(Commit(mine, partial(note, ended, mine)))
        if waits:
            await eventually(lambda: writer.is_idle, "the turn is answered")
        else:
            await asyncio.sleep(0)
    await eventually(lambda: writer.is_idle, "every commit is answered")
    for operations, now_ms, error in ended:
        assert error is None
        model.apply(operations, now_ms)
    return model.contents, await read(store, space)


def note(ended: list[Ended], operations: list[Operation], now_ms: int, error: BaseException | None) -> None:
    ended.append((operations, now_ms, error))


def at_home(operation: Operation, space: PartitionSpace) -> Operation:
    """Return an operation with the names of another partition."""
    if operation[0] not in KEYED:
        return operation
    key = cast("bytes", operation[1])
    return (operation[0], space.tag + key.removeprefix(SPACE.tag), *operation[2:])
