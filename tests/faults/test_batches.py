"""Numbered batches under a store and a connection that misbehave: applied once, in order, or not at all."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import redis

from keylane.journal.batch import Batch, Commit
from keylane.journal.errors import Fenced, WrongKeyType
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.leases import acquire, observe
from keylane.journal.store import Store
from keylane.journal.tenure import VACANT, Acquired, Observation
from keylane.journal.writer import PartitionWriter

from .harness import StoreServer, eventually
from .proxy import Proxy

pytestmark = pytest.mark.anyio


@dataclass
class Owner:
    """The owner of one partition, who appends words to the streams of objects."""

    server: StoreServer
    store: Store
    writer: PartitionWriter
    done: dict[str, BaseException | None] = field(default_factory=dict[str, BaseException | None])

    def append(self, word: str, lane: str = "acme/a", *, stream: bytes | None = None) -> None:
        """Queue a commit that appends a word to the stream of a lane's object, or to another one."""

        def note(now: int, error: BaseException | None) -> None:
            del now
            assert word not in self.done, f"{word} was answered twice"
            self.done[word] = error

        target = stream or self.writer.space.object(lane)
        self.writer.commit(Commit([(b"a", target, 2, b"w", word.encode())], note, lane))

    def words(self, lane: str = "acme/a") -> list[str]:
        """Return what an object's stream holds."""
        entries = self.server.ask("XRANGE", self.writer.space.object(lane), "-", "+")
        return [word.decode() for _, (_, word) in entries]

    async def answered(self, *words: str) -> None:
        """Wait until each of these commits was answered."""
        await eventually(lambda: self.done.keys() >= set(words), f"an answer to {words}")

    @property
    def last_batch(self) -> int:
        """The number of the last batch applied, as the store has it."""
        return int(self.server.ask("HGET", self.writer.space.owner, "batch"))


def ignore(now: int, error: BaseException | None) -> None:
    del now, error


@asynccontextmanager
async def owning(
    server: StoreServer, url: str, namespace: str, *, answer_timeout_seconds: float = 5.0
) -> AsyncGenerator[Owner]:
    async with Store(url, namespace=namespace, answer_timeout_seconds=answer_timeout_seconds) as store:
        space = store.space("Order", 0)
        acquired = await take(store, space, VACANT)
        assert acquired is not None
        yield Owner(server, store, store.writer(space, acquired.tenure))


async def take(store: Store, space: PartitionSpace, seen: Observation) -> Acquired | None:
    return await acquire(store, space, seen, partitions=1, worker="worker", machine="machine", lease_seconds=1)


async def two_in_flight(owner: Owner) -> None:
    """Append `one` and `two` in batches of their own, the second sent while the first is unanswered."""
    before = owner.writer.number
    owner.append("one")
    await eventually(lambda: owner.writer.number == before + 1, "the first batch is sent")
    owner.append("two")
    await eventually(lambda: owner.writer.number == before + 2, "the second batch is sent")


@pytest.fixture
async def owner(shared_server: StoreServer, proxy: Proxy, namespace: str) -> AsyncIterator[Owner]:
    async with owning(shared_server, proxy.url, namespace) as owner:
        # The proxy knows the connection of the commits by the first of them.
        owner.append("zero")
        await owner.answered("zero")
        yield owner


async def test_two_applied_batches_whose_answers_are_lost_are_not_applied_again(owner: Owner, proxy: Proxy) -> None:
    """The store had both when the connection was cut: sent again, they are answered and write nothing."""
    proxy.hold_replies(only="commit")
    await two_in_flight(owner)
    await eventually(lambda: proxy.calls["commit"] == 3, "the store has both")

    assert proxy.cut(only="commit") == 1
    proxy.heal()
    await owner.answered("one", "two")

    assert owner.done == {"zero": None, "one": None, "two": None}
    assert owner.words() == ["zero", "one", "two"]
    assert owner.last_batch == 3


async def test_two_batches_that_never_arrived_are_applied_once_in_order(owner: Owner, proxy: Proxy) -> None:
    """The store had neither when the connection was cut: both are sent again, the lower number first."""
    proxy.stall(only="commit")
    await two_in_flight(owner)

    proxy.cut(only="commit")
    proxy.heal()
    await owner.answered("one", "two")

    assert owner.words() == ["zero", "one", "two"]
    assert owner.last_batch == 3


async def test_of_two_batches_the_one_that_never_arrived_follows_the_one_that_did(owner: Owner, proxy: Proxy) -> None:
    """The store had the first only: it is answered from memory, and the second is applied after it."""
    proxy.hold_replies(only="commit")
    owner.append("one")
    await eventually(lambda: proxy.calls["commit"] == 2, "the store has the first")
    proxy.stall(only="commit")
    owner.append("two")
    await eventually(lambda: owner.writer.number == 3, "the second batch is sent")

    proxy.cut(only="commit")
    proxy.heal()
    await owner.answered("one", "two")

    assert owner.words() == ["zero", "one", "two"]
    assert owner.last_batch == 3


async def test_a_connection_cut_at_any_byte_of_two_answers_loses_and_doubles_nothing(
    owner: Owner, proxy: Proxy
) -> None:
    """Wherever in the answers to two batches the connection ends, both end up applied once, in order."""
    expected = ["zero"]
    for reply_bytes in range(33):
        proxy.hold_replies(only="commit")
        calls, cuts = proxy.calls["commit"], proxy.cuts
        words = [f"one-{reply_bytes}", f"two-{reply_bytes}"]
        number = owner.writer.number
        for count, word in enumerate(words, start=1):
            owner.append(word)
            await eventually(lambda sent=number + count: owner.writer.number == sent, f"{word} is sent")
        await eventually(lambda sent=calls + 2: proxy.calls["commit"] >= sent, "the store has both")

        proxy.cut_after(reply_bytes, only="commit")
        proxy.let_replies_pass()
        await owner.answered(*words)
        proxy.heal()

        expected += words
        assert owner.words() == expected
        assert proxy.cuts == cuts + (reply_bytes < 32)
    assert owner.last_batch == len(expected)


async def test_batches_without_an_answer_are_sent_again_after_the_answer_timeout(
    shared_server: StoreServer, proxy: Proxy, namespace: str
) -> None:
    """A connection that stays open and swallows the answers is given up."""
    async with owning(shared_server, proxy.url, namespace, answer_timeout_seconds=0.2) as owner:
        owner.append("zero")
        await owner.answered("zero")
        proxy.drop_replies(only="commit")
        await two_in_flight(owner)
        await eventually(lambda: proxy.calls["commit"] >= 5, "both were sent again")
        proxy.heal()
        await owner.answered("one", "two")

        assert owner.words() == ["zero", "one", "two"]


async def test_what_is_built_on_a_refused_batch_is_not_applied(owner: Owner, proxy: Proxy) -> None:
    """A foreign key under one object's name stops that object's commits in both batches, and nobody else's."""
    owner.server.ask("SET", owner.writer.space.object("acme/b"), "foreign")
    proxy.stall(only="commit")
    owner.append("refused", "acme/b")
    owner.append("one")
    await eventually(lambda: owner.writer.number == 2, "the first batch is sent")
    owner.append("built on it", "acme/b")
    owner.append("two")
    await eventually(lambda: owner.writer.number == 3, "the second batch is sent")

    proxy.heal()
    await owner.answered("refused", "one", "built on it", "two")

    assert isinstance(owner.done["refused"], WrongKeyType)
    assert isinstance(owner.done["built on it"], WrongKeyType)
    assert owner.done["one"] is None
    assert owner.done["two"] is None
    assert owner.words() == ["zero", "one", "two"]
    assert owner.server.ask("GET", owner.writer.space.object("acme/b")) == b"foreign"


async def test_a_foreign_key_whose_name_is_no_text_stops_nobody_else(owner: Owner) -> None:
    """The name of an invocation's stream holds raw bytes; the lane that it belongs to is found all the same."""
    stream = owner.writer.space.invocation(b"\r\n" + bytes(range(242, 256)))
    owner.server.ask("SET", stream, "foreign")

    owner.append("refused", "acme/b", stream=stream)
    owner.append("one")
    await owner.answered("refused", "one")

    assert isinstance(owner.done["refused"], WrongKeyType)
    assert owner.done["one"] is None
    assert owner.words() == ["zero", "one"]
    assert owner.server.ask("GET", stream) == b"foreign"


async def test_a_refusal_whose_successor_lost_its_answer_still_stops_what_was_built_on_it(
    owner: Owner, proxy: Proxy
) -> None:
    """The first batch is refused, the connection is cut before the second one's answer: neither leaves a trace."""
    owner.server.ask("SET", owner.writer.space.object("acme/b"), "foreign")
    proxy.hold_replies(only="commit")
    owner.append("refused", "acme/b")
    await eventually(lambda: proxy.calls["commit"] == 2, "the store has the first")
    owner.append("built on it", "acme/b")
    owner.append("two")
    await eventually(lambda: proxy.calls["commit"] == 3, "the store has the second")

    refusal = f"-WRONGKEYTYPE 7 {owner.writer.space.object('acme/b').decode()}\r\n"
    proxy.cut_after(len(refusal), only="commit")
    proxy.let_replies_pass()
    await owner.answered("refused", "built on it", "two")

    assert isinstance(owner.done["refused"], WrongKeyType)
    assert isinstance(owner.done["built on it"], WrongKeyType)
    assert owner.words() == ["zero", "two"]


async def test_a_batch_built_on_a_refused_one_is_refused_however_late_it_arrives(owner: Owner) -> None:
    """Bytes of a cut connection that the store reads only after the refused number was used again are turned away."""
    store, space = owner.store, owner.writer.space
    function = store.library.function("commit")
    # A writer of its own, whose batches are sent by hand.
    writer = PartitionWriter(space, owner.writer.tenure, store.committer)
    writer.number = writer.serial = writer.applied_serial = owner.last_batch

    def batch(word: str, lane: str) -> Batch:
        writer.queued.append(Commit([(b"a", space.object(lane), 2, b"w", word.encode())], ignore, lane))
        return writer.next_batches(function)[0]

    refused = batch("refused", "acme/b")
    late = batch("built on it", "acme/b")
    writer.refuse(refused, redis.ResponseError("WRONGKEYTYPE 7 " + space.object("acme/b").decode()))
    again = batch("other", "acme/a")

    assert isinstance(await store.call(*again.words), int)
    with pytest.raises(redis.ResponseError, match="GAP"):
        await store.call(*late.words)
    assert owner.words("acme/b") == []
    assert owner.words() == ["zero", "other"]


async def test_a_writer_whose_tenure_has_ended_writes_nothing(owner: Owner) -> None:
    """After somebody else took the partition over, a queued commit is fenced and leaves no trace.

    Its number would be the next one of the new tenure, so nothing but the fence stands in its way.
    """
    owner.writer = owner.store.writer(owner.writer.space, owner.writer.tenure)
    [seen] = (await observe(owner.store, [owner.writer.space])).seen
    assert isinstance(seen, Observation)
    assert await take(owner.store, owner.writer.space, seen) is not None

    owner.append("late")
    await owner.answered("late")

    assert isinstance(owner.done["late"], Fenced)
    assert owner.words() == ["zero"]
    assert owner.last_batch == 0


async def test_a_server_without_our_functions_gets_them_again(own_server: StoreServer, namespace: str) -> None:
    """A flushed function library is loaded again and the batches follow."""
    async with owning(own_server, own_server.url, namespace) as owner:
        owner.append("zero")
        await owner.answered("zero")
        own_server.ask("FUNCTION", "FLUSH")
        for number in range(20):
            owner.append(f"word {number}")
        await owner.answered("word 19")

        assert owner.words() == ["zero", *(f"word {number}" for number in range(20))]


async def test_a_server_killed_with_batches_in_flight_has_each_once_after_its_restart(
    own_server: StoreServer, namespace: str
) -> None:
    """SIGKILL between two batches: what was synced is answered from the ring, the rest is applied."""
    async with owning(own_server, own_server.url, namespace) as owner:
        for number in range(5):
            owner.append(f"before {number}")
        await owner.answered("before 4")
        own_server.stop()
        await two_in_flight(owner)
        own_server.kill()
        own_server.start()
        owner.append("after")
        await owner.answered("one", "two", "after")

        assert owner.words() == [*(f"before {number}" for number in range(5)), "one", "two", "after"]
