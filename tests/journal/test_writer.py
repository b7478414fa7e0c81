"""Group commit against a real store: numbers, answers given again, refusals of one lane, and turns on the wire."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import redis

from keylane.journal import operations
from keylane.journal import writer as writer_module
from keylane.journal.batch import Batch, Commit, Operation, build_batch
from keylane.journal.command_records import StepCompleted
from keylane.journal.errors import Fenced, StoreError, WrongKeyType
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.outcomes import IdempotencyEntry
from keylane.journal.records import Accepted, Completed
from keylane.journal.tenure import Tenure
from keylane.journal.writer import OPERATIONS_PER_BATCH, TURNS_IN_FLIGHT, PartitionWriter
from tests.faults.harness import StoreServer, eventually
from tests.journal.every_operation import every_commit
from tests.journal.owning import Numbers, Owner, WiredStore, next_batch, opened, took

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000
ID = b"0123456789abcdef"
RING = 16


@pytest.fixture
async def wired(each_store_url: str, namespace: str) -> AsyncIterator[WiredStore]:
    async with opened(each_store_url, namespace) as store:
        yield store


@pytest.fixture
async def owner(wired: WiredStore) -> Owner:
    return await took(wired)


def by_hand(
    owner: Owner, number: int, serial: int, built_on: int, word: str = "word", tenure: Tenure | None = None
) -> Batch:
    """Return a batch as a writer would build it."""
    commit = Commit([(b"a", owner.space.object("acme/a"), 2, b"w", word.encode())], _ignore)
    function = owner.store.library.function("commit")
    return build_batch(function, owner.space, tenure or owner.tenure, number, serial, built_on, [commit])


def _ignore(now_ms: int, error: BaseException | None) -> None:
    del now_ms, error


async def send(owner: Owner, batch: Batch) -> Any:
    """Send a batch past any writer, and return the answer or the refusal."""
    try:
        return await owner.store.call(*batch.words)
    except redis.ResponseError as refused:
        return str(refused)


async def test_batches_are_numbered_without_gaps(store_url: str, namespace: str) -> None:
    """From 1 on, whatever the turns in which commits are made."""
    numbers = Numbers()
    async with opened(store_url, namespace, numbers) as store:
        owner = await took(store)
        for count in (1, 3, 50, 2):
            for number in range(count):
                owner.append(f"{count}.{number}")
            await owner.answered()
        assert await owner.words() == [f"{count}.{number}" for count in (1, 3, 50, 2) for number in range(count)]
        assert await owner.field("batch") == len(numbers.sent)

    assert numbers.sent == [("Order:0", number) for number in range(1, len(numbers.sent) + 1)]
    assert len(numbers.sent) >= 4


async def test_a_batch_is_bounded_by_its_operations(owner: Owner) -> None:
    """A commit of many operations takes as long as many commits; one that is larger than the bound goes by itself."""
    words = [(b"a", owner.space.object("acme/a"), 2, b"w", b"word")]
    writer = PartitionWriter(owner.space, owner.tenure, owner.store.committer)
    sizes = [OPERATIONS_PER_BATCH // 2] * 20 + [OPERATIONS_PER_BATCH + 1] + [1] * (OPERATIONS_PER_BATCH + 10)
    for size in sizes:
        writer.queued.append(Commit(words * size, _ignore))

    batches: list[list[int]] = []
    while writer.queued:
        (batch,) = writer.next_batches("commit")
        writer.unanswered.clear()
        batches.append([len(commit.operations) for commit in batch.commits])

    assert [size for batch in batches for size in batch] == sizes
    assert all(sum(batch) <= OPERATIONS_PER_BATCH or len(batch) == 1 for batch in batches)
    assert max(map(len, batches)) == OPERATIONS_PER_BATCH


async def test_the_time_of_an_answer_is_told_ahead_of_those_who_wait_for_it(owner: Owner) -> None:
    """Once for a batch, so that what goes on with a commit knows the partition's time at which it was applied."""
    told: list[str] = []
    owner.writer.on_time = lambda now_ms: told.append(f"time {now_ms}")

    def done(now_ms: int, error: BaseException | None) -> None:
        told.append(f"commit {now_ms} {error}")

    for _ in range(2):
        owner.writer.commit(Commit([(b"a", owner.space.object("acme/a"), 2, b"w", b"word")], done))
    await owner.answered()

    (now_ms,) = {each.split()[1] for each in told}
    assert told == [f"time {now_ms}", *[f"commit {now_ms} None"] * 2]


async def test_a_batch_that_comes_again_is_answered_as_before_and_writes_nothing(owner: Owner) -> None:
    """For as long as the ring holds its answer; after that it is turned away."""
    first = by_hand(owner, 1, 1, 0)
    answer = await send(owner, first)
    for number in range(2, RING + 1):
        assert isinstance(await send(owner, by_hand(owner, number, number, number - 1)), int)
    before = await owner.everything()

    assert isinstance(answer, int)
    assert await send(owner, first) == answer
    assert await owner.everything() == before

    await send(owner, by_hand(owner, RING + 1, RING + 1, RING))
    before = await owner.everything()
    assert (await send(owner, first)).startswith("FENCED")
    assert await owner.everything() == before


@pytest.mark.parametrize(
    ("number", "serial", "built_on", "answer"),
    [
        pytest.param(4, 4, 3, "GAP 2", id="a number is missing"),
        pytest.param(3, 4, 3, "GAP 2", id="built on a batch that was never applied"),
        pytest.param(3, 3, 0, "GAP 2", id="built on nothing"),
        pytest.param(2, 5, 1, "FENCED", id="another content under an applied number"),
        pytest.param(1, 5, 0, "FENCED", id="another content under an older number"),
    ],
)
async def test_a_batch_that_does_not_follow_the_last_one_is_turned_away(
    owner: Owner, number: int, serial: int, built_on: int, answer: str
) -> None:
    """It writes nothing, and the one that does follow is applied after it."""
    await send(owner, by_hand(owner, 1, 1, 0, "one"))
    await send(owner, by_hand(owner, 2, 2, 1, "two"))
    before = await owner.everything()

    assert (await send(owner, by_hand(owner, number, serial, built_on, "wrong"))).startswith(answer)

    assert await owner.everything() == before
    assert isinstance(await send(owner, by_hand(owner, 3, 3, 2, "three")), int)
    assert await owner.words() == ["one", "two", "three"]


async def test_a_batch_of_another_tenure_is_fenced(owner: Owner) -> None:
    """Epoch and token both count: two histories of a partition may share an epoch."""
    epoch, token = owner.tenure.epoch, owner.tenure.token
    before = await owner.everything()

    for other in (Tenure(epoch + 1, token), Tenure(epoch - 1, token), Tenure(epoch, b"x" * 16), Tenure(epoch, b"")):
        assert (await send(owner, by_hand(owner, 1, 1, 0, tenure=other))).startswith("FENCED")

    assert await owner.everything() == before


async def test_a_fenced_writer_answers_everything_and_sends_nothing_more(owner: Owner) -> None:
    """What is queued, on the wire, or comes later: none of it was written, and each is told so once."""
    await took(owner.store)
    before = await owner.everything()

    for number in range(100):
        owner.append(f"word {number}")
    await owner.answered()
    owner.append("later")

    assert owner.errors == {**{f"word {number}": Fenced for number in range(100)}, "later": Fenced}
    assert await owner.everything() == before


async def test_a_batch_of_another_schema_is_refused(owner: Owner) -> None:
    """A partition that another release has written is left alone."""
    await owner.store.call("HSET", owner.space.owner, "schema", "0")

    assert await send(owner, by_hand(owner, 1, 1, 0)) == "SCHEMA 0"
    assert await owner.words() == []


FOREIGN: dict[str, Callable[[PartitionSpace], tuple[bytes, list[Operation]]]] = {
    "object": lambda space: (space.object("acme/b"), []),
    "history": lambda space: (
        space.invocation(ID),
        operations.accept(space, Accepted(ID, "refund", 1, "acme/b", b"", None, None)),
    ),
    "history that has begun": lambda space: (
        space.invocation(ID),
        [operations.record(space, ID, StepCompleted(0, "step", b"\x01"))],
    ),
    "history that ends": lambda space: (
        space.invocation(ID),
        operations.finish_long(space, "acme/b", ID, Completed(), HOUR_MS),
    ),
    "lane": lambda space: (space.lane("acme/b"), [operations.rejoin_lane(space, "acme/b", ID)]),
    "keys of a day": lambda space: (
        space.idempotency(9),
        [operations.remember(space, 9, b"d" * 16, IdempotencyEntry(ID, b"f" * 8, b"r" * 8, "?", 1))],
    ),
    "due": lambda space: (space.due, [operations.schedule(ID, HOUR_MS)]),
    "runnable": lambda space: (space.runnable, [operations.unpark("acme/b")]),
    "inbox": lambda space: (space.inbox, [operations.settle_entry(b"1-1")]),
    "undecodable": lambda space: (space.undecodable, [operations.keep_undecodable(b"bytes")]),
}


@pytest.mark.parametrize("where", FOREIGN)
async def test_a_foreign_key_costs_the_commits_of_its_lane_and_no_others(
    wired: WiredStore, owner: Owner, where: str
) -> None:
    """Refused are the commit that needs the key and those queued after it on its lane, also in later batches."""
    key, writes = FOREIGN[where](owner.space)
    await owner.store.call("SET", key, "foreign")
    result = operations.result(owner.space, ID, b"outcome", HOUR_MS)

    wire = wired.commit_wire(owner.space)
    wire.answers.clear()
    owner.append("a1")
    owner.append("c1", "acme/c")
    owner.append("b1", "acme/b", result, *writes)
    owner.append("a2")
    await next_batch(owner)
    owner.append("b2", "acme/b")
    owner.append("a3")
    await next_batch(owner)
    owner.append("c2", "acme/c")
    owner.append("b3", "acme/b")
    wire.answers.set()
    await owner.answered()

    assert owner.errors == {"b1": WrongKeyType, "b2": WrongKeyType, "b3": WrongKeyType}
    assert await owner.words("acme/a") == ["a1", "a2", "a3"]
    assert await owner.words("acme/c") == ["c1", "c2"]
    assert await owner.store.call("GET", key) == b"foreign"
    await owner.store.call("DEL", key)
    left = await owner.store.call("KEYS", owner.space.tag + b"*")
    assert set(left) == {owner.space.owner, owner.space.object("acme/a"), owner.space.object("acme/c")}


async def test_a_lane_may_write_again_once_the_foreign_key_is_gone(owner: Owner) -> None:
    """A refusal is about the commits, not about the lane."""
    await owner.store.call("SET", owner.space.object("acme/a"), "foreign")
    owner.append("refused")
    await owner.answered()

    await owner.store.call("DEL", owner.space.object("acme/a"))
    owner.append("written")
    await owner.answered()

    assert owner.errors == {"refused": WrongKeyType}
    assert await owner.words() == ["written"]


async def test_two_foreign_keys_cost_two_lanes(owner: Owner) -> None:
    """The one that is found later does not bring back what the first one refused."""
    for lane in ("acme/a", "acme/b"):
        await owner.store.call("SET", owner.space.object(lane), "foreign")
    for number in range(3):
        for lane in ("acme/a", "acme/b", "acme/c"):
            owner.append(f"{lane} {number}", lane)
    await owner.answered()

    assert len(owner.errors) == 6
    assert await owner.words("acme/c") == [f"acme/c {number}" for number in range(3)]


async def test_the_partitions_time_is_the_servers_and_never_goes_back(owner: Owner) -> None:
    """A server whose clock is put back, or a shift that is taken back, stops time instead of turning it."""
    times: list[int] = []
    for shift in (0, 5_000, 1_000, 0):
        await owner.store.call("HSET", owner.space.owner, "offset", shift)
        word = f"at {len(times)}"
        owner.append(word)
        await owner.answered()
        times.append(owner.ended[word][0])

    assert times == sorted(times)
    assert abs(times[0] - time.time() * 1000) < 60_000
    assert 5_000 <= times[1] - times[0] < 60_000
    assert times[1] == times[2] == times[3] == await owner.field("time")
    assert [int(entry.partition(b"-")[0]) for entry, _ in await owner.entries()] == times


async def test_what_is_stored_for_later_is_counted_from_the_partitions_time(owner: Owner) -> None:
    """Due times are the partition's time and a delay, whatever clock the server has."""
    await owner.store.call("HSET", owner.space.owner, "offset", 10 * HOUR_MS)
    owner.append("later", "acme/a", operations.schedule(ID, HOUR_MS))
    await owner.answered()

    now_ms, _ = owner.ended["later"]
    assert int(await owner.store.call("ZSCORE", owner.space.due, ID)) == now_ms + HOUR_MS


async def test_many_commits_are_split_into_batches_of_bounded_work(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call of the server holds up the others for long."""
    sizes: list[int] = []

    def build(*facts: Any) -> Batch:
        sizes.append(len(facts[6]))
        return build_batch(*facts)

    monkeypatch.setattr(writer_module, "build_batch", build)
    for number in range(1_000):
        owner.append(str(number))
    await owner.answered()

    assert sum(sizes) == 1_000
    assert max(sizes) == OPERATIONS_PER_BATCH
    assert await owner.words() == [str(number) for number in range(1_000)]
    assert await owner.field("batch") == len(sizes)


@pytest.mark.parametrize(
    ("weights", "sizes"),
    [
        pytest.param([400_000] * 6, [2, 2, 2], id="as many as fit"),
        pytest.param([0, 3_000_000, 0, 0, 500_000, 500_000, 500_000], [1, 1, 4, 1], id="a large one goes alone"),
        pytest.param([0] * 10, [10], id="those of usual size have no bound on their bytes"),
    ],
)
async def test_batches_are_bounded_by_their_bytes_too(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, weights: list[int], sizes: list[int]
) -> None:
    """Three hundred commits with a large value in each would be one call of three hundred megabytes."""
    made: list[int] = []

    def build(*facts: Any) -> Batch:
        made.append(len(facts[6]))
        return build_batch(*facts)

    monkeypatch.setattr(writer_module, "build_batch", build)
    for number, weight in enumerate(weights):
        operation = (b"a", owner.space.object("acme/a"), 2, b"w", str(number).encode())
        owner.writer.commit(Commit([operation], _ignore, weight=weight))
    await eventually(lambda: owner.writer.is_idle, "everything is answered")

    assert made == sizes
    assert await owner.words() == [str(number) for number in range(len(weights))]


@pytest.mark.one_server
async def test_commits_of_one_turn_go_out_in_one_write(wired: WiredStore) -> None:
    """Those of one partition in one batch, those of all partitions in one write."""
    owners = [await took(wired, number) for number in range(8)]
    wire = wired.commit_wire(owners[0].space)
    wire.writes.clear()

    for word in ("one", "two", "three"):
        for owner in owners:
            owner.append(word)
    await eventually(lambda: all(owner.writer.is_idle for owner in owners), "every commit is answered")

    assert wire.commits == [len(owners)]
    for owner in owners:
        assert await owner.words() == ["one", "two", "three"]
        assert await owner.field("batch") == 1


async def test_so_many_turns_are_on_the_wire_at_once_and_no_more(wired: WiredStore) -> None:
    """The next batch is sent while one is unanswered; what comes then waits, and goes together."""
    owner = await took(wired)
    wire = wired.commit_wire(owner.space)
    wire.answers.clear()
    wire.writes.clear()

    for number in range(TURNS_IN_FLIGHT):
        owner.append(f"sent {number}")
        await next_batch(owner)
    for number in range(5):
        owner.append(f"waiting {number}")
        await asyncio.sleep(0)
    sent = len(wire.commits)
    wire.answers.set()
    await owner.answered()

    assert sent == TURNS_IN_FLIGHT
    assert wire.commits == [1] * (TURNS_IN_FLIGHT + 1)
    assert await owner.words() == [*(f"sent {n}" for n in range(2)), *(f"waiting {n}" for n in range(5))]


@pytest.fixture
def own_server() -> Iterator[StoreServer]:
    """A server whose connections the test may cut."""
    with StoreServer() as server:
        yield server


async def test_batches_of_a_connection_that_is_cut_are_applied_once_in_order(
    own_server: StoreServer, namespace: str
) -> None:
    """Whether the server had them or not, each commit is there once and answered once."""
    async with opened(own_server.url, namespace) as store:
        owners = [await took(store, number) for number in range(3)]
        words = [f"{cut}.{number}" for cut in range(20) for number in range(6)]
        for position, word in enumerate(words):
            for owner in owners:
                owner.append(word)
            if position % 2:
                await asyncio.sleep(0)
            if position % 6 == 5:
                own_server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                await eventually(lambda: store.nodes[0].commits.is_up, "the connection is back")
        await eventually(lambda: all(owner.writer.is_idle for owner in owners), "every commit is answered")
        await store.wait_up(5)

        for owner in owners:
            assert await owner.words() == words
            assert list(owner.ended) == words
            assert owner.errors == {}
            assert await owner.field("batch") == owner.writer.number


async def test_answers_that_were_lost_with_the_connection_are_given_again(
    own_server: StoreServer, namespace: str
) -> None:
    """The server has applied two batches whose answers nobody has read when the connection goes."""
    async with opened(own_server.url, namespace) as store:
        owner = await took(store)
        wire = store.commit_wire(owner.space)
        wire.answers.clear()
        for word in ("one", "two"):
            owner.append(word)
            await next_batch(owner)
        await eventually(lambda: own_server.ask("HGET", owner.space.owner, "batch") == b"2", "both are applied")

        own_server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        wire.answers.set()
        owner.append("three")
        await owner.answered()
        await store.wait_up(5)

        assert await owner.words() == ["one", "two", "three"]
        assert owner.errors == {}
        assert await owner.field("batch") == 3


async def test_a_store_that_has_forgotten_what_it_confirmed_ends_the_tenure(
    own_server: StoreServer, namespace: str
) -> None:
    """The owner's memory is ahead of the store then: it stops and says why, instead of asking again for ever."""
    async with opened(own_server.url, namespace) as store:
        owner = await took(store)
        for word in ("one", "two", "three"):
            owner.append(word)
            await owner.answered()
        own_server.ask("HSET", owner.space.owner, "batch", 2, "serial", 2)

        owner.append("four")
        await owner.answered()
        owner.append("five")

        assert owner.errors == {"four": StoreError, "five": StoreError}
        assert "lost writes" in str(owner.ended["four"][1])
        assert await owner.words() == ["one", "two", "three"]


async def test_a_commit_of_every_kind_is_accepted(owner: Owner) -> None:
    """All of them in one batch, on both servers."""
    ended: list[BaseException | None] = []
    for each in every_commit(owner.space):
        owner.writer.commit(Commit(each, lambda _, error: ended.append(error)))
    await owner.answered()

    assert ended
    assert set(ended) == {None}
