"""An owner of a partition that writes to a real store, and the wire between the two, which tests may watch and hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from keylane.journal.batch import Commit, Operation
from keylane.journal.due import Due, read_all_due
from keylane.journal.errors import KeylaneError
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.leases import acquire, observe
from keylane.journal.link import NOTHING_READ, Connection
from keylane.journal.observer import NoObserver
from keylane.journal.store import Store
from keylane.journal.tenure import Observation, Tenure
from keylane.journal.writer import PartitionWriter
from tests.faults.harness import eventually


class Numbers(NoObserver):
    """Notes the batches that are sent, as partition and number."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []

    def before_send(self, what: str, partition: str, number: int) -> None:
        """Note a batch."""
        if what == "commit":
            self.sent.append((partition, number))


class Wire:
    """A connection between a store and its server that counts the writes, and keeps answers back when told to."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.writes: list[bytes] = []
        self.answers = asyncio.Event()
        self.answers.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write_now(self, data: bytes) -> None:
        """Count a write, and make it."""
        self.writes.append(data)
        self._inner.write_now(data)

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """Read an answer, and hand it on once answers may pass."""
        reply = await self._inner.read_response(*args, **options)
        await self.answers.wait()
        return reply

    def read_now(self) -> Any:
        """Hand on an answer that was read already, unless they are kept back."""
        return self._inner.read_now() if self.answers.is_set() else NOTHING_READ

    @property
    def commits(self) -> list[int]:
        """How many batches each write carried."""
        return [data.count(b"_commit\r\n") for data in self.writes if b"_commit\r\n" in data]


class WiredStore(Store):
    """A store whose connections are `Wire`s."""

    def new_connection(self, address: Any = None) -> Connection:
        """Make a connection that is watched."""
        return cast("Connection", Wire(super().new_connection(address)))

    def commit_wire(self, space: PartitionSpace) -> Wire:
        """Return the connection that carries the commits of a partition at the moment."""
        return cast("Wire", self.topology.node_of(space.owner).commits._connection)


@dataclass
class Owner:
    """The owner of one partition, with what became of its commits."""

    store: Store
    space: PartitionSpace
    tenure: Tenure
    writer: PartitionWriter = field(init=False)
    ended: dict[str, tuple[int, BaseException | None]] = field(
        default_factory=dict[str, tuple[int, BaseException | None]]
    )

    def __post_init__(self) -> None:
        """Begin to write."""
        self.writer = self.store.writer(self.space, self.tenure)

    def append(self, word: str, lane: str = "acme/a", *more: Operation) -> None:
        """Queue a commit that appends a word to the stream of an object, and does more."""

        def note(now_ms: int, error: BaseException | None) -> None:
            assert word not in self.ended, f"{word} was answered twice"
            self.ended[word] = now_ms, error

        entry = (b"a", self.space.object(lane), 2, b"w", word.encode())
        self.writer.commit(Commit([entry, *more], note, lane))

    async def answered(self) -> None:
        """Wait until every commit is answered."""
        await eventually(lambda: self.writer.is_idle, "every commit is answered")

    async def words(self, lane: str = "acme/a") -> list[str]:
        """Return what an object's stream holds."""
        return [fields[1].decode() for _, fields in await self.entries(lane)]

    async def entries(self, lane: str = "acme/a") -> list[Any]:
        """Return the entries of an object's stream."""
        return await self.store.call("XRANGE", self.space.object(lane), "-", "+")

    async def field(self, name: str) -> int:
        """Return a number of the owner's hash."""
        return int(await self.store.call("HGET", self.space.owner, name))

    async def everything(self) -> dict[bytes, bytes]:
        """Return all keys of the partition, byte by byte."""
        keys = sorted(await self.store.call("KEYS", self.space.tag + b"*"))
        return {key: await self.store.call("DUMP", key) for key in keys}

    @property
    def errors(self) -> dict[str, type[BaseException]]:
        """The commits that were refused."""
        return {word: type(error) for word, (_, error) in self.ended.items() if error is not None}


async def took(store: Store, number: int = 0) -> Owner:
    space = store.space("Order", number)
    (seen,) = (await observe(store, [space])).seen
    assert isinstance(seen, Observation)
    acquired = await acquire(store, space, seen, partitions=64, worker="w", machine="m", lease_seconds=1)
    assert acquired is not None
    return Owner(store, space, acquired.tenure)


@asynccontextmanager
async def opened(url: str, namespace: str, observer: NoObserver | None = None) -> AsyncGenerator[WiredStore]:
    """Open a store, both of whose connections are up."""
    async with WiredStore(url, namespace=namespace, observer=observer) as store:
        await store.nodes[0].commits.wait_up(5)
        yield store


async def next_batch(owner: Owner) -> None:
    """Let what is queued go out, without waiting for an answer."""
    number = owner.writer.number
    while owner.writer.number == number:
        await asyncio.sleep(0)


async def read_due(store: Store, space: PartitionSpace, limit: int) -> Due:
    """Ask one partition what is due; an error is raised."""
    (due,) = await read_all_due(store, [space], limit)
    if isinstance(due, KeylaneError):
        raise due
    return due
