"""Every function on a node of a cluster: keys of one slot, each declared, or the call is refused."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import redis

from keylane.journal.batch import Batch, Commit, build_batch
from keylane.journal.embedded import bundled_binary
from keylane.journal.inbox import START, read_after, submit
from keylane.journal.key import new_invocation_id
from keylane.journal.keyspace import PartitionSpace, registry_key
from keylane.journal.leases import Renewed, acquire, announce, observe, release, sync_leases, withdraw
from keylane.journal.library import VERBS, Library, library
from keylane.journal.outbox import Arrived, Consignment, Delivery, deliver
from keylane.journal.recall import Recalled, recall
from keylane.journal.requests import Request, RequestKind
from keylane.journal.restored import declare_restored
from keylane.journal.store import Store
from keylane.journal.tenure import VACANT, Announcement, Tenure
from tests.faults.harness import NeverHappenedError, StoreServer, eventually
from tests.journal.every_operation import (
    DAY,
    KEY,
    SHORT,
    changes_known,
    changes_used,
    every_commit,
    letters_known,
    letters_used,
)
from tests.journal.owning import read_due

pytestmark = pytest.mark.anyio

SLOTS = 16_384
#: The bus of a node listens 10,000 above its port; both lie below the ports that systems give out by themselves.
PORTS = range(12_000, 22_000)
TRIES = 5


class Node(StoreServer):
    """A cluster of one node, which holds every slot."""

    def __init__(self, binary: str | None) -> None:
        self.port = random.choice(PORTS)
        bound = ("--port", str(self.port), "--bind", "127.0.0.1", "--protected-mode", "no")
        super().__init__(binary, *bound, "--cluster-enabled", "yes", "--cluster-config-file", "nodes")

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"redis://127.0.0.1:{self.port}"


@pytest.fixture(scope="module", params=["valkey", pytest.param("redis", marks=pytest.mark.second_store)])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    binary = str(bundled_binary()) if request.param == "valkey" else shutil.which("redis-server")
    node = started(binary, TRIES)
    try:
        node.ask("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
        yield node
    finally:
        node.__exit__(None, None, None)


def started(binary: str | None, tries: int) -> Node:
    """Start a node on a port that nobody has, which shows only when it has been taken."""
    node = Node(binary)
    try:
        node.start()
    except NeverHappenedError:
        node.__exit__(None, None, None)
        if tries == 1:
            raise
        return started(binary, tries - 1)
    return node


@pytest.fixture
async def store(node: Node, namespace: str) -> AsyncIterator[Store]:
    await eventually(lambda: b"cluster_state:ok" in node.ask("CLUSTER", "INFO"), "the node serves every slot")
    async with Store(node.url, namespace=namespace) as store:
        yield store


async def took(store: Store, number: int = 0) -> tuple[PartitionSpace, Tenure]:
    space = store.space("Order", number)
    acquired = await acquire(store, space, VACANT, partitions=4, worker="w", machine="m", lease_seconds=1)
    assert acquired is not None
    return space, acquired.tenure


def test_the_commits_of_these_tests_are_of_every_kind() -> None:
    """Every operation that a batch may hold, and every change that the journal offers, is among them."""
    assert letters_used(PartitionSpace("n", "Order", 0)) == letters_known()
    assert changes_used() == changes_known()


Exercise = Callable[[Store], Awaitable[None]]


async def acquire_and_release(store: Store) -> None:
    space, tenure = await took(store)
    assert await release(store, space, tenure)


async def look_at_owners(store: Store) -> None:
    spaces = [store.space("Order", number) for number in range(4)]
    assert (await observe(store, spaces)).seen == (VACANT,) * 4


async def keep_leases(store: Store) -> None:
    held = [await took(store, number) for number in range(4)]
    leases = sync_leases(store, timeout_seconds=5)
    assert leases.renew(held) == [Renewed(1)] * 4
    leases.close()


async def come_and_go(store: Store) -> None:
    announcement = Announcement(1, ("Order",), "m", store.library.name, draining=False)
    assert (await announce(store, "w", announcement)).announcements.keys() == {"w"}
    await withdraw(store, "w")


async def ask_something(store: Store) -> None:
    request = Request(RequestKind.SEND, new_invocation_id(), "refund", "acme/o-1", b"\x01")
    entry = await submit(store, store.space("Order", 0), request)
    assert await read_after(store, store.space("Order", 0), START, 2) == [(entry, request.encode())]


async def look_for_due(store: Store) -> None:
    space, _ = await took(store)
    assert (await read_due(store, space, 10)).ids == []


async def look_up_a_key(store: Store) -> None:
    space, _ = await took(store)
    found: list[Recalled | Exception] = []
    recall(store, space, [DAY, DAY - 1], b"d" * 16, found.append)
    await eventually(lambda: found, "the key is looked up")
    assert isinstance(found[0], Recalled)


async def look_through(store: Store) -> None:
    space, _ = await took(store)
    names = [space.owner, space.inbox, space.object("acme/o-1")]
    assert await store.fcall("survey", names, [], read_only=True) == [b"hash", -1, 0, b"none", -2, 0, b"none", -2, 0]


async def look_closely(store: Store) -> None:
    space, _ = await took(store)
    fixed = [space.owner, space.due, space.runnable, space.lane(KEY), space.set_aside(KEY)]
    keys = [*fixed, space.invocation(SHORT), space.result(SHORT)]
    answer = await store.fcall("examine", keys, [KEY, SHORT], read_only=True)
    assert answer[1:] == [0, 0, b"", -1, -2, b"", 0, b"", b""]


async def mend_an_owner(store: Store) -> None:
    space, _ = await took(store)
    await store.call("HDEL", space.owner, "lease")
    assert await store.fcall("mend", [space.owner], [4]) == [b"lease"]
    assert await store.fcall("mend", [space.owner], [4]) == []


async def commit_everything(store: Store) -> None:
    writers = [store.writer(*await took(store, number)) for number in range(4)]
    ended: list[BaseException | None] = []
    for writer in writers:
        for operations in every_commit(writer.space):
            writer.commit(Commit(operations, lambda _, error: ended.append(error)))
    await eventually(lambda: all(writer.is_idle for writer in writers), "every commit is answered")
    assert ended
    assert [error for error in ended if error is not None] == []


async def witness_something(store: Store) -> None:
    space = store.space("Order", 0)
    assert await store.fcall("witness", [space.witness], []) == 1


async def declare(store: Store) -> None:
    spaces = [(await took(store, number))[0] for number in range(4)]
    declared = await declare_restored(store, {"Order": 4}, since_ms=1, margin_ms=1)
    assert [each.space for each in declared] == spaces


async def deliver_something(store: Store) -> None:
    space = store.space("Order", 0)
    delivered: list[Delivery] = []
    for number, again in enumerate(([], [b"i" * 16]), start=1):
        consignment = Consignment("Stock.2", "1-abcdef01", number, [b"message"], None, again)
        deliver(store, space, consignment, delivered.append)
    await eventually(lambda: len(delivered) == 2, "the messages are delivered")
    assert delivered == [Arrived(0, 1), Arrived(1, 2)]


EXERCISES: dict[str, Exercise] = {
    "acquire": acquire_and_release,
    "release": acquire_and_release,
    "observe": look_at_owners,
    "renew": keep_leases,
    "announce": come_and_go,
    "withdraw": come_and_go,
    "submit": ask_something,
    "due": look_for_due,
    "recall": look_up_a_key,
    "commit": commit_everything,
    "witness": witness_something,
    "survey": look_through,
    "examine": look_closely,
    "mend": mend_an_owner,
    "restored": declare,
    "deliver": deliver_something,
}


def test_every_function_has_an_exercise() -> None:
    """One that is added later is not forgotten here."""
    assert EXERCISES.keys() == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
async def test_every_function_keeps_to_the_slot_of_its_keys(store: Store, verb: str) -> None:
    """Also where the partitions of one type lie in several slots."""
    await EXERCISES[verb](store)


def planted(line: str, *, instead_of: str) -> Library:
    """Return the library with another line in it, under a name of its own."""
    whole = library()
    assert whole.code.count(instead_of) == 1
    weak = whole.name.replace("keylane_", "keylane_0")
    code = whole.code.replace(instead_of, line)
    return dataclasses.replace(whole, name=weak, prefix=f"{weak}_", code=code.replace(whole.name, weak))


def planted_first(verb: str, line: str) -> Library:
    """Return the library with a line at the begin of a function."""
    head = f"local function {verb}(keys{'' if verb in {'observe', 'survey', 'witness'} else ', argv'})\n"
    return planted(f"{head}  {line}\n", instead_of=head)


@contextmanager
def loaded(node: Node, weak: Library) -> Generator[Library]:
    node.ask("FUNCTION", "LOAD", weak.code)
    try:
        yield weak
    finally:
        node.ask("FUNCTION", "DELETE", weak.name)


@pytest.mark.parametrize("verb", VERBS)
async def test_a_function_that_touches_another_tag_is_refused(store: Store, node: Node, verb: str) -> None:
    """The server finds it out at the first command: what keeps to its slot here does so by itself."""
    with (
        loaded(node, planted_first(verb, "redis.call('EXISTS', '{elsewhere}:key')")) as weak,
        pytest.raises(redis.ResponseError, match="hash to the same slot"),
    ):
        await store.call("FCALL", weak.function(verb), 1, store.space("Order", 0).owner)


@pytest.mark.parametrize(
    ("sound", "weak"),
    [
        ("redis.call('SPUBLISH', keys[5], argv[i + 1])", "redis.call('SPUBLISH', '{elsewhere}:out', argv[i + 1])"),
        ("redis.call('XADD', keys[6],", "redis.call('XADD', '{elsewhere}:bad',"),
        ("redis.call('SET', keys[tonumber(argv[i + 1])],", "redis.call('SET', 'result',"),
    ],
    ids=["channel", "stream", "result"],
)
async def test_a_commit_that_touches_another_tag_fails_its_exercise(
    node: Node, namespace: str, monkeypatch: pytest.MonkeyPatch, sound: str, weak: str
) -> None:
    """With one key of one operation wrong, the same commits are not accepted."""
    monkeypatch.setattr("keylane.journal.store.library", lambda: planted(weak, instead_of=sound))
    async with Store(node.url, namespace=namespace) as store:
        with pytest.raises(AssertionError):
            await commit_everything(store)
        node.ask("FUNCTION", "DELETE", store.library.name)


@pytest.fixture
def declared_only(node: Node) -> Iterator[Callable[..., Any]]:
    """Give a function that makes a call as a user who may touch the keys that the call declares, and no other."""
    client = cast("Any", redis.Redis)(port=node.port, username="declared", password="only", protocol=2)

    def call(*words: Any) -> Any:
        keys = [key if isinstance(key, bytes) else str(key).encode() for key in words[3 : 3 + words[2]]]
        rules = [b"~" + key for key in keys] + [b"&" + key for key in keys]
        node.ask("ACL", "SETUSER", "declared", "reset", "on", ">only", "+@all", *rules)
        return client.execute_command(*words)

    yield call
    client.close()
    node.ask("ACL", "DELUSER", "declared")


async def test_every_function_declares_every_key_that_it_touches(
    store: Store, declared_only: Callable[..., Any]
) -> None:
    """As a user who has no right to any other key, each of them does what it is for."""
    space, registry = store.space("Order", 0), registry_key(store.namespace)
    submission = [space.owner, space.inbox, space.inbox_channel, space.result(SHORT), space.invocation(SHORT)]
    delivery = [space.owner, space.inbox, space.marks, space.inbox_channel, *submission[-2:]]
    lane = [space.owner, space.due, space.runnable, space.lane(KEY), space.set_aside(KEY)]
    token = b"t" * 16

    answers = {
        verb: declared_only(*store.words(verb, keys), *arguments)
        for verb, keys, arguments in [
            ("observe", [space.owner], []),
            ("acquire", [space.owner], [4, "", 0, token, "w", "m", *[""] * 9, 3_000]),
            ("renew", [space.owner], [1, token]),
            ("announce", [registry], ["w", b"words"]),
            ("withdraw", [registry], ["w", ""]),
            ("submit", submission, [10, b"request"]),
            ("due", [space.owner, space.due], [10]),
            ("recall", [space.owner, space.idempotency(DAY), space.idempotency(DAY - 1)], [b"d" * 16]),
            ("commit", *only_keys_and_arguments(batches(store, space, Tenure(1, token))[0])),
            ("survey", [space.owner, space.object(KEY)], []),
            ("examine", [*lane, *submission[3:][::-1]], [KEY, SHORT]),
            ("mend", [space.owner], [4]),
            ("deliver", delivery, ["Stock.2", "1-abcdef01", 1, "", 5, b"message"]),
            ("release", [space.owner], [1, token]),
            ("witness", [space.witness], []),
            ("restored", [space.owner], [1, 1, b"rand", 4]),
        ]
    }

    assert answers.keys() == set(VERBS)
    assert (answers["observe"][0], answers["acquire"][0], answers["renew"]) == (None, 1, 1)
    assert (answers["survey"][0], answers["examine"][1], answers["mend"]) == (b"hash", 0, [])
    assert (answers["announce"], answers["withdraw"], answers["release"]) == ([b"w", b"words"], 1, 1)


async def test_every_commit_declares_every_key_that_it_touches(store: Store, declared_only: Callable[..., Any]) -> None:
    """Each kind of change in a batch of its own, so that no other one declares a key for it."""
    space, tenure = await took(store)

    for batch in batches(store, space, tenure):
        assert isinstance(declared_only(*batch.words), int)


@pytest.mark.parametrize("verb", VERBS)
async def test_a_function_that_touches_a_key_of_its_tag_without_declaring_it_is_refused(
    store: Store, node: Node, declared_only: Callable[..., Any], verb: str
) -> None:
    """Its slot is the right one, so only the rights find it out."""
    line = "redis.call('EXISTS', keys[1] .. ':more')"
    with (
        loaded(node, planted_first(verb, line)) as weak,
        pytest.raises(redis.ResponseError, match=r"(?i)no permissions? to access a key|can't access at least one"),
    ):
        declared_only("FCALL", weak.function(verb), 1, store.space("Order", 0).owner)


def batches(store: Store, space: PartitionSpace, tenure: Tenure) -> list[Batch]:
    """Return a batch for each kind of commit."""
    function = store.library.function("commit")
    return [
        build_batch(function, space, tenure, number, number, number - 1, [Commit(operations, _ignore)])
        for number, operations in enumerate(every_commit(space), start=1)
    ]


def only_keys_and_arguments(batch: Batch) -> tuple[list[bytes], list[Any]]:
    count = batch.words[2]
    return list(batch.words[3 : 3 + count]), list(batch.words[3 + count :])


def _ignore(now_ms: int, error: BaseException | None) -> None:
    del now_ms, error
