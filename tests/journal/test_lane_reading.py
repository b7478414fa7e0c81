"""Reading a lane from a real store: its state, in pieces where it is long, and its open invocations."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.journal.codec import Undecodable
from keylane.journal.command_records import StepCompleted
from keylane.journal.errors import StoreUnavailable, WrongKeyType
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.lane_reading import (
    FIRST_RECORDS,
    RECORDS_AT_ONCE,
    STREAMS_AT_ONCE,
    LaneContents,
    OpenInvocation,
    ask,
    read_invocations,
    read_lane,
    read_runnable,
    read_state,
)
from keylane.journal.record_bytes import encode
from keylane.journal.records import Accepted, Record
from keylane.journal.snapshots import FIRST_READ_ENTRIES, ObjectState, encode_values
from keylane.journal.store import Store
from keylane.journal.topology import Submit
from tests.faults.harness import StoreServer, eventually
from tests.plain import plain

KEY = "acme/o-1"
PIECE = FIRST_READ_ENTRIES * 8
IDS = [bytes([65 + number]) * 16 for number in range(3)]

#: An entry of an object's stream, as fields and values.
Fields = tuple[bytes, ...]
OTHER: Fields = (b"f", b"finished")


def delta(**values: bytes | None) -> Fields:
    """Return an entry with a state change."""
    return (*OTHER, b"d", encode_values(values))


def snapshot(**values: bytes) -> Fields:
    """Return an entry with all of the state."""
    return (*OTHER, b"s", encode_values(values))


def accepted(raw_id: bytes) -> Accepted:
    return Accepted(raw_id, "refund", 1, KEY, b"\x01", None, None)


@dataclass
class Reads:
    """A store whose reads are noted, as the words that were sent."""

    store: Store
    sent: list[tuple[Any, ...]]

    @property
    def asked(self) -> list[int]:
        """How many entries each read of a stream asked for at most."""
        return [int(words[-1]) for words in self.sent if words[0] == "XREVRANGE"]


@pytest.fixture
async def store(each_store_url: str, namespace: str) -> AsyncIterator[Store]:
    async with Store(each_store_url, namespace=namespace) as store:
        yield store


@pytest.fixture
def space(store: Store) -> PartitionSpace:
    return store.space("Order", 3)


@pytest.fixture
def reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> Reads:
    sent: list[tuple[Any, ...]] = []
    submit_beside = store.topology.submit_beside

    def noting(commands: Sequence[tuple[Any, ...]]) -> Submit:
        submit = submit_beside(commands)

        def note(words: tuple[Any, ...], done: Any) -> None:
            sent.append(words)
            submit(words, done)

        return note

    monkeypatch.setattr(store.topology, "submit_beside", noting)
    return Reads(store, sent)


async def write(store: Store, space: PartitionSpace, history: list[Fields]) -> None:
    """Write an object's stream, oldest entry first, in one turn."""
    stream = space.object(KEY)
    await ask(store, [("XADD", stream, "*", *fields) for fields in history], [stream] * len(history))


async def begin(store: Store, space: PartitionSpace, raw_id: bytes, *records: Record | bytes) -> None:
    """Write an invocation into its lane, with records or with bytes that are none, a second apart."""
    await store.call("RPUSH", space.lane(KEY), raw_id)
    for second, record in enumerate(records, start=1):
        data = record if isinstance(record, bytes) else encode(record)
        await store.call("XADD", space.invocation(raw_id), f"{second}000-0", "r", data)


@pytest.mark.anyio
async def test_an_object_that_nobody_has_called_is_empty(store: Store, space: PartitionSpace) -> None:
    """It has no state and nothing open."""
    assert await read_lane(store, space, KEY) == LaneContents(ObjectState({}), [])


@pytest.mark.anyio
async def test_open_invocations_are_read_in_the_order_of_the_lane(store: Store, space: PartitionSpace) -> None:
    """With their records, and the time at which each began; the state beside them."""
    step = StepCompleted(0, "read order", b"\x01")
    await write(store, space, [snapshot(a=b"1"), delta(b=b"2")])
    await begin(store, space, IDS[1], accepted(IDS[1]), step)
    await begin(store, space, IDS[0], accepted(IDS[0]))
    await store.call("RPUSH", space.lane(KEY), IDS[2])

    assert await read_lane(store, space, KEY) == LaneContents(
        ObjectState({"a": b"1", "b": b"2"}, 1),
        [
            OpenInvocation(IDS[1], [accepted(IDS[1]), step], begun_ms=1_000, last_ms=2_000),
            OpenInvocation(IDS[0], [accepted(IDS[0])], begun_ms=1_000, last_ms=1_000),
            OpenInvocation(IDS[2], []),
        ],
    )


@pytest.mark.anyio
async def test_a_record_that_can_not_be_read_is_named_and_what_came_before_it_is_kept(
    store: Store, space: PartitionSpace
) -> None:
    """By its entry; and the others of the lane are read as ever."""
    await begin(store, space, IDS[0], accepted(IDS[0]), b"\xc1", StepCompleted(0, "step", b"\x01"))
    await begin(store, space, IDS[1], b"garbage")
    await store.call("XADD", space.invocation(IDS[2]), "7-0", "other", "field")
    await begin(store, space, IDS[2])

    first, second, third = (await read_lane(store, space, KEY)).open

    assert (first.records, first.begun_ms) == ([accepted(IDS[0])], 1_000)
    assert (second.records, third.records) == ([], [])
    for found, entry in ((first, "2000-0"), (second, "1000-0"), (third, "7-0")):
        assert found.undecodable is not None
        assert found.undecodable.startswith(f"entry {entry}: ")


@pytest.mark.anyio
async def test_a_state_that_can_not_be_read_names_its_entry(store: Store, space: PartitionSpace) -> None:
    """So that a person finds it."""
    await write(store, space, [delta(a=b"1")])
    entry = await store.call("XADD", space.object(KEY), "*", "d", b"\xc1")

    with pytest.raises(Undecodable, match=f"entry {entry.decode()}: "):
        await read_state(store, space, KEY)


@pytest.mark.anyio
@pytest.mark.parametrize("where", ["object", "lane", "invocation"])
async def test_a_foreign_key_is_named_and_left_alone(
    store: Store, space: PartitionSpace, each_store_url: str, where: str
) -> None:
    """In the place of the object's stream, of the lane's list, or of a history."""
    await begin(store, space, IDS[0], accepted(IDS[0]))
    key = {"object": space.object(KEY), "lane": space.lane(KEY), "invocation": space.invocation(IDS[0])}[where]
    await store.call("SET", key, "foreign")

    with pytest.raises(WrongKeyType) as caught:
        await read_lane(store, space, KEY)

    assert caught.value.key == key.decode()
    assert plain(each_store_url, "GET", key) == b"foreign"


@pytest.mark.anyio
async def test_a_short_lane_is_read_in_one_turn(reads: Reads, space: PartitionSpace) -> None:
    """State, list and what was set aside together; nothing more where nothing is open."""
    await write(reads.store, space, [delta(a=b"1")] * 3)
    reads.sent.clear()

    assert (await read_lane(reads.store, space, KEY)).state.values == {"a": b"1"}

    assert [words[0] for words in reads.sent] == ["XREVRANGE", "LRANGE", "SMEMBERS"]


@pytest.mark.anyio
@pytest.mark.parametrize("count", [FIRST_RECORDS - 1, FIRST_RECORDS, FIRST_RECORDS + RECORDS_AT_ONCE, 500])
async def test_many_records_are_read_a_page_at_a_time(reads: Reads, space: PartitionSpace, count: int) -> None:
    """All of them, in order, and no reply holds more than a page."""
    records: list[Record] = [accepted(IDS[0]), *(StepCompleted(index, "s", b"\x01") for index in range(count - 1))]
    await begin(reads.store, space, IDS[0], *records)
    reads.sent.clear()

    (found,) = await read_invocations(reads.store, space, [IDS[0]])

    assert found.records == records
    pages = [words for words in reads.sent if words[0] != "SMEMBERS"]
    assert all(words[0] == "XRANGE" and words[-1] <= RECORDS_AT_ONCE for words in pages)
    assert len(pages) == 1 + (max(count - FIRST_RECORDS, -1) // RECORDS_AT_ONCE + 1)


@pytest.mark.anyio
async def test_many_invocations_are_read_some_at_a_time(reads: Reads, space: PartitionSpace) -> None:
    """In their order, whatever the length of each."""
    ids = [number.to_bytes(16, "big") for number in range(STREAMS_AT_ONCE + 3)]
    for raw_id in ids:
        await begin(reads.store, space, raw_id, accepted(raw_id))
    turns: list[int] = []
    together = reads.store.together
    reads.store.together = lambda commands: (turns.append(len(commands)), together(commands))[1]  # pyright: ignore[reportAttributeAccessIssue]

    found = await read_invocations(reads.store, space, ids)

    assert [each.raw_id for each in found] == ids
    # Of each its records, and who else waits for it.
    assert turns == [2 * STREAMS_AT_ONCE, 2 * 3]


@pytest.mark.anyio
async def test_the_lanes_with_work_are_read_some_at_a_time(reads: Reads, space: PartitionSpace) -> None:
    """Each once, however many there are."""
    lanes = {f"acme/{number}" for number in range(2_500)}
    await reads.store.call("SADD", space.runnable, *lanes)
    reads.sent.clear()

    found = await read_runnable(reads.store, space)

    assert len(found) == len(lanes)
    assert set(found) == lanes
    assert len(reads.sent) >= 3


@pytest.mark.anyio
@pytest.mark.parametrize(
    "behind",
    [FIRST_READ_ENTRIES - 1, FIRST_READ_ENTRIES, FIRST_READ_ENTRIES + PIECE - 1, FIRST_READ_ENTRIES + PIECE, 1_000],
)
@pytest.mark.parametrize("base", [snapshot(old=b"0", a=b"0"), delta(old=b"0", a=b"0")], ids=["snapshot", "beginning"])
async def test_a_long_history_is_read_in_pieces(reads: Reads, space: PartitionSpace, base: Fields, behind: int) -> None:
    """Back to the newest snapshot, or to the beginning of the stream, however far behind it lies; and no further."""
    others = [delta(a=b"%d" % number) if number % 3 else OTHER for number in range(1, behind + 1)]
    before = [delta(never=b"seen")] * (2 * PIECE) if b"s" in base else []
    await write(reads.store, space, [*before, base, *others])
    reads.sent.clear()

    state = await read_state(reads.store, space, KEY)

    last = max(number for number in range(behind + 1) if number % 3 or not number)
    assert state.values == {"old": b"0", "a": b"%d" % last}
    pieces = 1 if behind < FIRST_READ_ENTRIES else 2 + (behind - FIRST_READ_ENTRIES) // PIECE
    assert reads.asked[:1] == [FIRST_READ_ENTRIES]
    assert set(reads.asked[1:]) <= {PIECE}
    # A stream that ends exactly with a piece is known to end only by asking on.
    assert pieces <= len(reads.asked) <= pieces + (base[2] == b"d")


@dataclass
class OpenStore:
    """A store in a thread of its own, where hypothesis can use it, and partitions that nobody has written to."""

    portal: BlockingPortal
    store: Store
    numbers: Iterator[int]


@pytest.fixture(scope="module")
def open_store(store_url: str) -> Iterator[OpenStore]:
    closed = Store(store_url, namespace=f"test-{secrets.token_hex(6)}")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(closed) as store:
        yield OpenStore(portal, store, itertools.count())


deltas = st.dictionaries(st.sampled_from("abc"), st.one_of(st.none(), st.binary(max_size=3)), max_size=2)
#: So many entries of a kind behind each other; long enough that some histories need more than one read.
runs = st.lists(
    st.tuples(st.sampled_from(["delta", "snapshot", "other"]), deltas, st.integers(1, FIRST_READ_ENTRIES)), max_size=8
)


@settings(max_examples=200)
@given(drawn=runs)
def test_what_is_read_is_what_a_dict_would_hold(
    open_store: OpenStore, drawn: list[tuple[str, dict[str, bytes | None], int]]
) -> None:
    """With any mixture of deltas, snapshots and entries without state, in one piece or in several."""
    expected: dict[str, bytes] = {}
    history: list[Fields] = []
    for kind, changed, count in drawn:
        for _ in range(count):
            state = expected | changed if kind != "other" else expected
            expected = {name: value for name, value in state.items() if value is not None}
            history.append({"delta": delta(**changed), "snapshot": snapshot(**expected), "other": OTHER}[kind])

    space = open_store.store.space("Order", next(open_store.numbers))
    open_store.portal.call(write, open_store.store, space, history)
    state = open_store.portal.call(read_state, open_store.store, space, KEY)

    assert state.values == expected


@pytest.mark.anyio
async def test_replies_come_in_the_order_of_the_questions(store: Store, space: PartitionSpace) -> None:
    """Many reads in one turn, each reply in its place; none for none."""
    keys = [b"%s:%d" % (space.tag, number) for number in range(100)]
    await ask(store, [("SET", key, number) for number, key in enumerate(keys)], keys)

    assert await ask(store, [("GET", key) for key in keys], keys) == [b"%d" % number for number in range(100)]
    assert await ask(store, [], []) == []
    assert await read_invocations(store, space, []) == []


@pytest.mark.anyio
async def test_a_store_that_is_away_is_unavailable(namespace: str) -> None:
    """A reading is whole or it raises: nothing is taken for empty because an answer did not come."""
    with StoreServer() as server:
        async with Store(server.url, namespace=namespace, answer_timeout_seconds=0.2) as store:
            space = store.space("Order", 0)
            await write(store, space, [delta(a=b"1")])
            server.kill()
            await eventually(lambda: not store.nodes[0].calls.is_up, "the connection is gone")

            with pytest.raises(StoreUnavailable):
                await read_lane(store, space, KEY)

            server.start()
            await store.wait_up(10)
            assert (await read_lane(store, space, KEY)).state.values == {"a": b"1"}
