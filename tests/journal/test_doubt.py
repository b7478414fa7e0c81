"""What an acquisition finds out about the end of a history: whole, lost, or in doubt, and what it writes down of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import redis.exceptions

from keylane.journal.doubt import DoubtSpan, Remembered, Verdict
from keylane.journal.errors import InternalError, StoreUnavailable, WrongKeyType
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.leases import acquire, observe, release
from keylane.journal.node import Node
from keylane.journal.restored import declare_restored, missing
from keylane.journal.server_identity import IdentityWatch, ServerIdentity, identity_of, node_at, shared_host
from keylane.journal.tenure import Acquired, Observation
from keylane.journal.urls import Host, parse_store_url
from tests.journal.owning import Owner, WiredStore, opened

pytestmark = pytest.mark.anyio

NOW_MS = int(time.time() * 1000)
STARTED_MS = NOW_MS - 5_000
REACH_MS = 60_000
NODE, OTHER_NODE = "8" * 16, "9" * 16
FIRST = ServerIdentity("a" * 16, "b" * 16, "", STARTED_MS - 1_000_000, NODE)
RESTARTED = ServerIdentity("c" * 16, "d" * 16, "", STARTED_MS, NODE)
PROMOTED = ServerIdentity("e" * 16, "f" * 16, FIRST.replication_id, STARTED_MS, OTHER_NODE)
PROMOTED_LATER = ServerIdentity("1" * 16, "2" * 16, PROMOTED.replication_id, STARTED_MS, NODE)
ELSEWHERE = replace(RESTARTED, node=OTHER_NODE)


@pytest.fixture
async def store(each_store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WiredStore]:
    async def stay(ask: object, host: object) -> bool:
        del ask, host
        return False

    async with opened(each_store_url, namespace) as store:
        identity = node_of(store).identity
        identity.identity = FIRST
        # The server is who these tests say.
        monkeypatch.setattr(identity, "greet", stay)
        yield store


def node_of(store: WiredStore) -> Node:
    """Return the node that has the partition of these tests."""
    return store.topology.node_of(store.space("Order", 0).owner)


async def ask_for(
    store: WiredStore, *, may_lose: bool = False, remembered: Remembered | None = None
) -> Acquired | None:
    """Try to get the partition of these tests, as it is seen, from whoever has it."""
    space = store.space("Order", 0)
    (seen,) = (await observe(store, [space])).seen
    assert isinstance(seen, Observation)
    return await acquire(
        store,
        space,
        seen,
        partitions=1,
        worker="w",
        machine="m",
        lease_seconds=1,
        restart_may_lose=may_lose,
        reach_seconds=REACH_MS / 1000,
        remembered=remembered,
    )


async def take(
    store: WiredStore, *, may_lose: bool = False, remembered: Remembered | None = None
) -> tuple[Owner, Acquired]:
    acquired = await ask_for(store, may_lose=may_lose, remembered=remembered)
    assert acquired is not None
    return Owner(store, store.space("Order", 0), acquired.tenure), acquired


def memory_of(owner: Owner) -> Remembered:
    return Remembered(owner.tenure.epoch, owner.tenure.token, owner.writer.applied_number)


async def test_the_first_acquisition_begins_a_history_and_the_next_ones_go_on_with_it(store: WiredStore) -> None:
    """For as long as nothing is known or suspected to be lost."""
    owner, first = await take(store)
    _, second = await take(store, may_lose=True, remembered=memory_of(owner))

    assert first.history == f"1-{owner.tenure.token[:4].hex()}"
    assert second.history == first.history
    assert (first.verdict, second.verdict) == (Verdict.WHOLE, Verdict.WHOLE)
    assert (first.doubt, second.doubt) == (None, None)
    assert await store.call("HGET", owner.space.owner, "server") == str(FIRST).encode()


@pytest.mark.parametrize(
    ("identity", "may_lose", "verdict"),
    [
        pytest.param(FIRST, True, Verdict.WHOLE, id="the same server"),
        pytest.param(RESTARTED, False, Verdict.WHOLE, id="restarted with fsync"),
        pytest.param(RESTARTED, True, Verdict.DOUBT, id="restarted without fsync"),
        pytest.param(PROMOTED, False, Verdict.DOUBT, id="a replica was promoted, which no fsync helps against"),
        pytest.param(PROMOTED_LATER, False, Verdict.DOUBT, id="and another one after it, before anybody owned it"),
        pytest.param(ELSEWHERE, False, Verdict.DOUBT, id="and was restarted, so that only its node tells of it"),
        pytest.param(replace(RESTARTED, node=""), False, Verdict.WHOLE, id="restarted, and nothing tells its node"),
        pytest.param(replace(FIRST, node=OTHER_NODE), True, Verdict.WHOLE, id="the same run at another address"),
    ],
)
async def test_a_history_of_somebody_else_is_in_doubt_when_the_server_may_know_less(
    store: WiredStore, identity: ServerIdentity, verdict: Verdict, *, may_lose: bool
) -> None:
    """Nobody is there to compare. The span begins before the restart and the last record, and ends after now."""
    owner, first = await take(store, may_lose=may_lose)
    owner.append("word")
    await owner.answered()
    last_ms = await owner.field("time")
    node_of(store).identity.identity = identity
    _, second = await take(store, may_lose=may_lose)

    assert second.verdict is verdict
    assert (second.history != first.history) is (verdict is Verdict.DOUBT)
    if verdict is Verdict.WHOLE:
        assert second.doubt is None
        return
    assert second.doubt is not None
    assert second.doubt.from_ms == min(last_ms, STARTED_MS - REACH_MS)
    assert second.doubt.until_ms == second.now_ms + REACH_MS
    assert await owner.store.call("HGET", owner.space.owner, "losses") is None


@pytest.mark.parametrize(
    ("identity", "may_lose", "verdict"),
    [
        pytest.param(ELSEWHERE, False, Verdict.WHOLE, id="restarted with fsync"),
        pytest.param(ELSEWHERE, True, Verdict.DOUBT, id="restarted without fsync"),
        pytest.param(PROMOTED, False, Verdict.DOUBT, id="promoted"),
        pytest.param(replace(FIRST, node=OTHER_NODE), True, Verdict.WHOLE, id="the same run"),
    ],
)
async def test_where_no_node_was_written_down_none_is_compared(
    store: WiredStore, identity: ServerIdentity, verdict: Verdict, *, may_lose: bool
) -> None:
    """By a release that did not know it, or of a server that does not tell it."""
    owner, _ = await take(store)
    await store.call("HSET", owner.space.owner, "server", f"{FIRST.run_id}/{FIRST.replication_id}")
    node_of(store).identity.identity = identity
    _, second = await take(store, may_lose=may_lose)

    assert second.verdict is verdict
    assert await store.call("HGET", owner.space.owner, "server") == str(identity).encode()


@pytest.mark.parametrize("identity", [RESTARTED, ELSEWHERE], ids=["the same node", "another node"])
@pytest.mark.parametrize("may_lose", [False, True])
async def test_a_history_that_is_as_long_as_its_owner_knows_goes_on(
    store: WiredStore, identity: ServerIdentity, *, may_lose: bool
) -> None:
    """On another server, too: what was confirmed is there, so nothing of it is in doubt."""
    owner, first = await take(store, may_lose=may_lose)
    owner.append("word")
    await owner.answered()
    node_of(store).identity.identity = identity
    _, second = await take(store, may_lose=may_lose, remembered=memory_of(owner))

    assert (second.verdict, second.doubt, second.history) == (Verdict.WHOLE, None, first.history)


async def test_a_history_that_another_one_may_have_gone_on_with_is_in_doubt_on_a_promoted_server(
    store: WiredStore,
) -> None:
    """It is as long as this owner knows, and what the owner after it has written may be missing as a whole."""
    owner, _ = await take(store)
    owner.append("word")
    await owner.answered()
    node_of(store).identity.identity = PROMOTED
    _, second = await take(store, remembered=replace(memory_of(owner), is_newest=False))

    assert second.verdict is Verdict.DOUBT


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(["HSET", "batch", 1, "serial", 1], id="a batch"),
        pytest.param(["HSET", "token", "other"], id="the tenure, whose number another one got"),
        pytest.param(["HSET", "epoch", 0], id="the acquisition"),
        pytest.param(None, id="everything"),
    ],
)
async def test_a_history_that_is_shorter_than_its_owner_knows_is_lost(
    store: WiredStore, lose: list[object] | None
) -> None:
    """Also under fsync, on the same server: that is a fact. It is counted, and another history begins."""
    owner, first = await take(store)
    for word in ("one", "two"):
        owner.append(word)
        await owner.answered()
    if lose is None:
        await store.call("DEL", owner.space.owner)
    else:
        verb, *fields = lose
        await store.call(verb, owner.space.owner, *fields)
    _, second = await take(store, remembered=memory_of(owner))
    found = 1 if lose is not None and "batch" in lose else 0 if lose is None else 2

    assert second.verdict is Verdict.LOST
    assert second.history != first.history
    # Only of the very first history may it be said that no message was sent before it.
    assert not second.history.startswith("1-")
    assert second.doubt is not None
    assert second.doubt.reaches(second.now_ms)
    assert await store.call("HGET", owner.space.owner, "losses") == b"1"
    assert (await store.call("HGET", owner.space.owner, "lost")).endswith(b":2:%d" % found)


async def test_what_another_worker_has_taken_over_meanwhile_is_not_compared(store: WiredStore) -> None:
    """It has judged the history itself, and goes on from it."""
    owner, _ = await take(store)
    owner.append("word")
    await owner.answered()
    remembered = memory_of(owner)
    await take(store)
    _, third = await take(store, remembered=remembered)

    assert third.verdict is Verdict.WHOLE


async def test_a_partition_that_was_handed_over_is_compared_like_any_other(store: WiredStore) -> None:
    """Its token is gone with the hand-over, which is no loss."""
    owner, _ = await take(store)
    owner.append("word")
    await owner.answered()
    await release(store, owner.space, owner.tenure)
    _, second = await take(store, remembered=memory_of(owner))

    assert second.verdict is Verdict.WHOLE


async def test_doubts_add_up(store: WiredStore) -> None:
    """A second loss does not make the first one forgotten: work of that time may be open still."""
    owner, _ = await take(store)
    await store.call("HSET", owner.space.owner, "doubt_from", 1_000, "doubt_until", 2_000)
    node_of(store).identity.identity = PROMOTED
    _, second = await take(store)

    assert second.doubt is not None
    assert second.doubt.from_ms == 1_000
    assert second.doubt.until_ms > NOW_MS


async def test_an_acquisition_asked_for_again_answers_the_same_doubt(store: WiredStore) -> None:
    """Its answer was lost: what it found out must not be."""
    owner, _ = await take(store)
    space = owner.space
    identity = (str(PROMOTED), PROMOTED.former_replication_id, PROMOTED.started_ms, 0, REACH_MS, "", b"", 0, 0, 3_000)
    words = (1, owner.tenure.epoch, 0, b"t" * 16, "w", "m", *identity)
    answer = await store.fcall("acquire", [space.owner], words)
    before = await owner.everything()
    again = await store.fcall("acquire", [space.owner], words)

    assert answer[-1] == b"doubt"
    assert [*again[:1], *again[2:]] == [*answer[:1], *answer[2:]]
    assert await owner.everything() == before


async def test_restored_data_are_in_doubt_and_their_owner_is_fenced(store: WiredStore) -> None:
    """Whoever held the partition has another history in memory; the next tenure knows of the doubt."""
    owner, first = await take(store)
    owner.append("word")
    await owner.answered()
    (declared,) = await declare_restored(store, {"Order": 1}, NOW_MS - 3_600_000, REACH_MS)
    owner.append("late")
    await owner.answered()
    _, second = await take(store)

    assert [*owner.errors] == ["late"]
    assert declared.space == owner.space
    assert declared.span.from_ms == NOW_MS - 3_600_000
    # What is in its inbox is taken in only now, however long after the declaration that is.
    assert second.doubt == DoubtSpan(declared.span.from_ms, second.now_ms + REACH_MS)
    assert second.history == declared.history != first.history
    # Only of the very first history may it be said that no message was sent before it.
    assert second.history.startswith("2-")
    assert second.verdict is Verdict.WHOLE
    _, third = await take(store)
    assert third.doubt == second.doubt


async def test_a_partition_of_which_a_copy_has_nothing_is_in_doubt(store: WiredStore) -> None:
    """It looks like one that nobody has used yet, and what was done in it can't be told."""
    (declared,) = await declare_restored(store, {"Order": 1}, NOW_MS - 3_600_000, REACH_MS)
    _, first = await take(store)

    assert first.doubt == DoubtSpan(declared.span.from_ms, first.now_ms + REACH_MS)
    # Messages may have been sent before it.
    assert first.history == declared.history
    assert first.history.startswith("2-")
    assert first.tenure.epoch == 2


@pytest.mark.parametrize("fields", [["foreign", "1"], ["schema", "0", "epoch", "1"]])
async def test_what_is_not_ours_is_not_declared(store: WiredStore, fields: list[str]) -> None:
    """It is left alone."""
    space = store.space("Order", 0)
    await store.call("HSET", space.owner, *fields)
    before = await store.call("HGETALL", space.owner)

    with pytest.raises((WrongKeyType, InternalError)):
        await declare_restored(store, {"Order": 1}, NOW_MS - 3_600_000, REACH_MS)
    assert await store.call("HGETALL", space.owner) == before


async def test_what_is_missing_has_neither_record_nor_result(store: WiredStore) -> None:
    """That is how the invocations are named that a loss has taken."""
    owner, _ = await take(store)
    ids = [bytes([number]) * 16 for number in range(3)]
    await store.call("SET", owner.space.result(ids[0]), "result")
    await store.call("XADD", owner.space.invocation(ids[1]), "*", "r", "record")

    assert await missing(store, owner.space, ids) == [ids[2]]
    await store.call("DEL", owner.space.invocation(ids[1]))


def test_a_span_reaches_all_that_was_taken_in_before_its_end() -> None:
    """Also what was open when it began: what that did in it may be missing."""
    span = DoubtSpan(10, 20)
    assert [span.reaches(since_ms) for since_ms in (9, 10, 20, 21)] == [True, True, True, False]


def test_another_run_and_a_promotion_are_told_and_the_same_server_is_not() -> None:
    """Once for each change."""
    watch = IdentityWatch()
    told = [watch.saw(identity) for identity in (FIRST, FIRST, RESTARTED, RESTARTED, PROMOTED)]

    assert told == [False, False, True, False, True]


def test_a_server_that_does_not_say_who_it_is_has_no_identity() -> None:
    """Nothing is guessed."""
    assert identity_of({}) is None
    assert identity_of({"run_id": "a" * 40}) is None


async def test_every_connection_asks_who_answers(store: WiredStore) -> None:
    """By what the server itself says."""
    watch = IdentityWatch()
    await watch.greet(store.call)

    assert watch.identity is not None
    assert watch.identity.former_replication_id == ""
    assert watch.identity.started_ms <= time.time() * 1000
    # The run and its history, and behind them the node, where the server is one of a cluster.
    assert {len(part) for part in str(watch.identity).split("/")} == {16}


class Answers:
    """A server that says of itself what it is told to."""

    def __init__(self, run: str, mode: str, node: bytes | Exception = b"") -> None:
        self.info = f"run_id:{run * 40}\r\nredis_mode:{mode}\r\nmaster_replid:{'b' * 40}\r\n".encode()
        self.node = node
        self.asked: list[str] = []

    async def ask(self, *words: str) -> bytes:
        """Answer a command."""
        self.asked.append(words[0])
        if words[0] == "INFO":
            return self.info
        assert words == ("CLUSTER", "MYID")
        if isinstance(self.node, Exception):
            raise self.node
        return self.node


async def test_a_node_is_known_by_what_outlives_its_restart() -> None:
    """In a cluster it says itself which one it is, elsewhere it is where its address leads: what is kept fits."""
    host = Host("10.0.0.5", 6379)
    refused = redis.exceptions.ResponseError("NOPERM")
    servers = {
        "2" * 16: Answers("a", "cluster", b"2" * 40),
        "": Answers("a", "cluster", refused),
        node_at(host): Answers("a", "standalone"),
    }
    for node, server in servers.items():
        watch = IdentityWatch()
        await watch.greet(server.ask, host)
        assert watch.identity is not None
        assert watch.identity.node == node
        assert len(str(watch.identity)) <= 64


async def test_a_run_is_asked_for_its_node_once() -> None:
    """It stays there: a look at it over a connection that has lasted need not know where that leads."""
    host = Host("db", 6379)
    member, alone = Answers("a", "cluster", b"2" * 40), Answers("b", "standalone")
    watch = IdentityWatch()
    seen: list[str] = []
    for server, where in ((member, host), (member, None), (alone, host), (member, None), (alone, None)):
        await watch.greet(server.ask, where)
        assert watch.identity is not None
        seen.append(watch.identity.node)

    assert seen == ["2" * 16, "2" * 16, node_at(host), "2" * 16, node_at(host)]
    assert member.asked == ["INFO", "CLUSTER", "INFO", "INFO"]


def test_an_address_that_is_spelled_in_another_way_is_the_same_node() -> None:
    """As far as that can be told from the words alone."""
    spellings = {
        "a name": ("db.example", "DB.Example."),
        "a number": ("fd00::5", "FD00:0:0::0005"),
    }
    for several in spellings.values():
        assert len({node_at(Host(name, 6379)) for name in several}) == 1
    assert len({node_at(Host(name, port)) for name in ("db", "db2", "10.0.0.5") for port in (6379, 6380)}) == 6


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("redis://db.example:7000", Host("db.example", 7000)),
        ("unix:///run/redis.sock", None),
        ("redis://localhost", None),
        ("redis://127.0.0.1:6379", None),
        ("redis://[::1]:6379", None),
        ("redis+sentinel://s1:26379/main", None),
        ("redis+cluster://c1:6379,c2:6379", None),
    ],
)
def test_a_place_that_every_machine_has_for_itself_names_no_node(url: str, host: Host | None) -> None:
    """One server at a socket and at a port is not taken for two; who the sentinels name, and nodes, are asked for."""
    assert shared_host(parse_store_url(url)) == host


@pytest.mark.parametrize("is_answered", [True, False], ids=["answered at once", "asked again after no answer"])
async def test_a_server_that_is_replaced_during_an_acquisition_is_compared_with_once_more(
    store: WiredStore, monkeypatch: pytest.MonkeyPatch, *, is_answered: bool
) -> None:
    """What the function was told of the former one is noted in the new one, so that tenure is given back at once."""
    await take(store)
    silences = [] if is_answered else [StoreUnavailable(store.url, "no answer")]
    servers = [FIRST, PROMOTED]

    async def identity_of(space: PartitionSpace) -> ServerIdentity:
        del space
        return servers.pop(0) if len(servers) > 1 else servers[0]

    async def settle(space: PartitionSpace) -> None:
        del space
        if silences:
            raise silences.pop()

    monkeypatch.setattr(store, "identity_of", identity_of)
    monkeypatch.setattr(store, "settle", settle)
    assert await ask_for(store) is None
    (seen,) = (await observe(store, [store.space("Order", 0)])).seen
    assert isinstance(seen, Observation)
    assert seen.released
    acquired = await ask_for(store)

    assert acquired is not None
    assert acquired.verdict is Verdict.DOUBT
