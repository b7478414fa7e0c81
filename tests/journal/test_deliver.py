"""The function that delivers messages, against a plain model: each message once, in order, whatever arrives when."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keylane.journal.keyspace import PartitionSpace
from keylane.journal.library import Library, library
from keylane.journal.outbox import Arrived, Consignment, Delivery, Missing, Stale, Undelivered, deliver
from keylane.journal.store import Store

SOURCE = "Order.1"
RETIRED = 4
HISTORIES = ("1-aaaaaaaa", "2-bbbbbbbb", "3-cccccccc", "4-dddddddd", "5-eeeeeeee", "6-ffffffff")
KNOWN, UNKNOWN = b"k" * 16, b"u" * 16


@dataclass
class Receiver:
    """What a partition has taken from one source."""

    history: str | None = None
    mark: int = 0
    retired: list[str] = field(default_factory=list[str])
    inbox: list[bytes] = field(default_factory=list[bytes])

    def take(self, sent: Consignment) -> Delivery:
        """Take what follows, and answer as the function is to answer."""
        if sent.history in self.retired:
            return Stale()
        mark = self.mark if sent.history == self.history else 0
        if sent.first > mark + 1 and sent.gap != mark:
            return Missing(mark)
        taken = max(mark, sent.first - 1)
        for position, message in enumerate(sent.messages):
            number = sent.first + position
            if number != taken + 1:
                continue
            taken = number
            if not sent.again or sent.again[position] != KNOWN:
                self.inbox.append(message)
        if taken > mark:
            self._begin(sent.history)
            self.mark = taken
        return Arrived(mark, taken)

    def _begin(self, history: str) -> None:
        if history == self.history:
            return
        if self.history is not None:
            self.retired = [self.history, *self.retired][:RETIRED]
        self.history = history


@st.composite
def consignments(draw: st.DrawFn) -> Consignment:
    """Draw a delivery: of a few histories, with numbers that repeat, overlap and leave gaps."""
    history = draw(st.sampled_from(HISTORIES))
    first = draw(st.integers(1, 6))
    count = draw(st.integers(0, 4))
    messages = [f"{history}:{first + place}".encode() for place in range(count)]
    again: list[bytes | None] = []
    if draw(st.booleans()):
        again = draw(st.lists(st.sampled_from([None, KNOWN, UNKNOWN]), min_size=count, max_size=count))
    return Consignment(SOURCE, history, first, messages, draw(st.none() | st.integers(0, 5)), again)


async def sent(store: Store, space: PartitionSpace, consignment: Consignment) -> Delivery:
    """Deliver and return what became of it."""
    answer: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
    deliver(store, space, consignment, answer.set_result)
    return await answer


async def inbox(store: Store, space: PartitionSpace) -> list[bytes]:
    """Return the messages in an inbox, in order."""
    return [fields[1] for _, fields in await store.call("XRANGE", space.inbox, "-", "+")]


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
        portal.wrap_async_context_manager(Store(store_url, namespace="deliver")) as store,
    ):
        yield OpenStore(portal, store, itertools.count())


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.lists(consignments(), min_size=1, max_size=25))
def test_what_is_delivered_is_what_the_model_takes(open_store: OpenStore, drawn: list[Consignment]) -> None:
    """Duplicates, gaps, copies of former histories and messages that are known: answer by answer, and the inbox."""
    number = next(open_store.numbers)
    expected, found = open_store.portal.call(run, open_store.store, number, drawn)

    assert found == expected


async def run(store: Store, number: int, drawn: list[Consignment]) -> tuple[object, object]:
    """Deliver to a new partition and to a model, and return what either has come to."""
    space, model = store.space("Stock", number), Receiver()
    await store.call("SET", space.result(KNOWN), "outcome")
    expected = [model.take(each) for each in drawn]
    found = [await sent(store, space, each) for each in drawn]
    return (expected, model.inbox), (found, await inbox(store, space))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), max_size=30))
def test_whatever_is_sent_again_each_message_is_taken_once_in_order(
    open_store: OpenStore, cuts: list[tuple[int, int]]
) -> None:
    """A sender that sends pieces of its outbox any number of times, and then what is missing, leaves all of them."""
    number = next(open_store.numbers)

    assert open_store.portal.call(run_pieces, open_store.store, number, cuts) == list(range(1, 21))


async def run_pieces(store: Store, number: int, cuts: list[tuple[int, int]]) -> list[int]:
    space = store.space("Stock", number)
    outbox = [b"%d" % each for each in range(1, 21)]
    taken = 0
    for start, length in cuts:
        piece = Consignment(SOURCE, HISTORIES[0], start + 1, outbox[start : start + length])
        match await sent(store, space, piece):
            case Arrived(after=after):
                taken = after
            case Missing(taken=mark):
                assert mark == taken
            case other:
                raise AssertionError(other)
    await sent(store, space, Consignment(SOURCE, HISTORIES[0], taken + 1, outbox[taken:]))
    return [int(each) for each in await inbox(store, space)]


@pytest.fixture
async def store(each_store_url: str, namespace: str) -> AsyncIterator[Store]:
    async with Store(each_store_url, namespace=namespace) as store:
        yield store


def consignment(first: int, *messages: bytes, history: str = HISTORIES[0], source: str = SOURCE) -> Consignment:
    return Consignment(source, history, first, messages)


@pytest.mark.anyio
async def test_a_retired_history_is_refused_until_four_others_have_followed_it(store: Store) -> None:
    """A message of an owner that has long been replaced is late; what is kept of former histories is bounded."""
    space = store.space("Stock", 0)
    for history in HISTORIES[:5]:
        assert await sent(store, space, consignment(1, b"m", history=history)) == Arrived(0, 1)
        assert await sent(store, space, consignment(1, b"m", history=HISTORIES[0])) in (Arrived(1, 1), Stale())

    assert await sent(store, space, consignment(2, b"m", history=HISTORIES[0])) == Stale()
    await sent(store, space, consignment(1, b"m", history=HISTORIES[5]))
    kept = await store.call("HGET", space.marks, SOURCE)
    assert kept.count(b"-") == 1 + RETIRED
    assert HISTORIES[0].encode() not in kept


@pytest.mark.anyio
async def test_sources_are_counted_by_themselves(store: Store) -> None:
    """The numbers of one partition say nothing about those of another."""
    space = store.space("Stock", 0)

    assert await sent(store, space, consignment(1, b"a", b"b")) == Arrived(0, 2)
    assert await sent(store, space, consignment(1, b"c", source="Order.2")) == Arrived(0, 1)
    assert await inbox(store, space) == [b"a", b"b", b"c"]


@pytest.mark.anyio
@pytest.mark.one_server
async def test_one_hint_tells_of_a_whole_delivery(store: Store) -> None:
    """The owner reads once; a delivery without anything new is no news."""
    space = store.space("Stock", 0)
    connection = store.new_connection()
    await connection.connect()
    await connection.send_packed_command(_packed("SSUBSCRIBE", space.inbox_channel))
    await connection.read_response()
    await sent(store, space, consignment(1, b"a", b"b"))
    await sent(store, space, consignment(1, b"a", b"b"))
    await sent(store, space, consignment(3, b"c"))

    heard = [(await connection.read_response(disable_decoding=True))[2] for _ in range(2)]
    await connection.disconnect()
    entries = [name for name, _ in await store.call("XRANGE", space.inbox, "-", "+")]
    assert heard == [entries[1], entries[2]]


def _packed(*words: str | bytes) -> bytes:
    parts = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


@pytest.mark.anyio
@pytest.mark.parametrize("key", ["owner", "inbox", "marks"])
async def test_a_foreign_key_is_named_and_nothing_is_taken(store: Store, key: str) -> None:
    """Whatever stands in the way is left alone, and so is the rest."""
    space = store.space("Stock", 0)
    name: bytes = getattr(space, key)
    await store.call("SET", name, "foreign")

    answer = await sent(store, space, consignment(1, b"a"))

    assert isinstance(answer, Undelivered)
    assert answer.is_refused
    assert name.decode() in answer.why
    assert await store.call("KEYS", space.tag + b"*") == [name]


@pytest.mark.anyio
async def test_a_partition_of_another_release_is_left_alone(store: Store) -> None:
    """Its schema may mean something else."""
    space = store.space("Stock", 0)
    await store.call("HSET", space.owner, "schema", "99")

    answer = await sent(store, space, consignment(1, b"a"))

    assert isinstance(answer, Undelivered)
    assert "SCHEMA" in answer.why


def changed(sound: str, weak: str) -> Library:
    """Return the library with one condition replaced, under a name of its own."""
    whole = library()
    assert whole.code.count(sound) == 1
    name = whole.name.replace("keylane_", "keylane_0")
    code = whole.code.replace(sound, weak).replace(whole.name, name)
    return dataclasses.replace(whole, name=name, prefix=f"{name}_", code=code)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("sound", "weak"),
    [
        ("if number == mark + 1 then", "if true then"),
        ("if is_retired(retired, argv[2]) then", "if false then"),
        ("if at == 0 or redis.call('EXISTS', keys[at], keys[at + 1]) == 0 then", "if true then"),
        ("if argv[4] ~= int(mark) then return refuse('GAP', int(mark)) end", ""),
    ],
    ids=["the number", "the history", "the id", "the gap"],
)
async def test_without_a_safeguard_messages_are_doubled_or_lost(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, sound: str, weak: str
) -> None:
    """A safeguard that nobody would miss is no safeguard: each of them makes the model and the store differ."""
    monkeypatch.setattr("keylane.journal.store.library", lambda: changed(sound, weak))
    again = Consignment(SOURCE, HISTORIES[1], 2, [b"known"], None, [KNOWN])
    deliveries = [
        consignment(1, b"a", b"b"),
        consignment(1, b"a", b"b", b"c"),
        consignment(5, b"e"),
        consignment(1, b"x", history=HISTORIES[1]),
        again,
        consignment(4, b"d"),
    ]
    async with Store(store_url, namespace=namespace) as store:
        expected, found = await run(store, 0, deliveries)
        await store.call("FUNCTION", "DELETE", store.library.name)

    assert found != expected


@pytest.mark.anyio
@pytest.mark.quiet
async def test_a_delivery_of_the_largest_kind_stays_below_five_milliseconds(store: Store) -> None:
    """The server serves nobody else meanwhile."""
    space = store.space("Stock", 0)
    await store.call("SLOWLOG", "RESET")
    before = await store.call("CONFIG", "GET", "slowlog-log-slower-than")
    await store.call("CONFIG", "SET", "slowlog-log-slower-than", "5000")
    for call in range(20):
        first = 1 + call * 128
        again = [bytes([call, place]) * 8 for place in range(128)]
        await sent(store, space, Consignment(SOURCE, HISTORIES[0], first, [b"m" * 200] * 128, None, again))

    slow = [entry for entry in await store.call("SLOWLOG", "GET", "100") if b"deliver" in b" ".join(entry[3])]
    await store.call("CONFIG", "SET", "slowlog-log-slower-than", before[1])
    # A machine with much else to do may hold up a call or two in the middle.
    assert len(slow) <= 2
