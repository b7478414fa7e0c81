"""A connection cut behind each byte that comes back, with several batches on their way: all is there once, in order."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import pytest

from keylane import Client, Runtime, Settings
from keylane.journal import committer, link, operations
from keylane.journal.batch import Commit, Operation
from keylane.journal.committer import Committer
from keylane.journal.errors import WrongKeyType
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.leases import acquire
from keylane.journal.store import Store
from keylane.journal.tenure import VACANT
from keylane.journal.writer import TURNS_IN_FLIGHT, PartitionWriter
from tests.journal.commit_model import Model, read
from tests.journal.every_operation import every_commit
from tests.objects_catalogue import add, app, get, marks, three_steps

from .harness import eventually
from .proxy import Proxy

pytestmark = pytest.mark.anyio

BRISK = Settings(lease_seconds=3, renewal_seconds=0.2, sweep_seconds=0.1)
PARTITIONS = 3
#: A partition's time in milliseconds, as the store says it to an applied batch: `:1767225600000`.
REPLY_BYTES = 16
WRONG = "acme/wrong"
#: The one that `every_commit` begins.
HISTORY = "1-abcdef01"
#: Of an entry in the inbox, which stays there.
ENTRY_MS = 5


@pytest.fixture(autouse=True)
def _back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of connections are cut: none is waited for longer than it takes."""
    monkeypatch.setattr(link, "RECONNECT_FIRST_SECONDS", 0.001)
    monkeypatch.setattr(committer, "RESEND_FIRST_SECONDS", 0.001)


@dataclass
class Written:
    """One partition's writer, with what became of its commits.

    Args:
        space: The partition.
        writer: Its writer.
        ended: The commits in the order of their ends.
    """

    space: PartitionSpace
    writer: PartitionWriter
    ended: list[tuple[list[Operation], int, BaseException | None]] = field(
        default_factory=list[tuple[list[Operation], int, BaseException | None]]
    )

    def commit(self, writes: list[Operation], lane: str) -> None:
        """Queue a commit."""
        self.writer.commit(Commit(writes, partial(self._note, writes), lane))

    def _note(self, writes: list[Operation], now_ms: int, error: BaseException | None) -> None:
        self.ended.append((writes, now_ms, error))

    @property
    def model(self) -> Model:
        """What the partition must hold: everything that was said to be applied, in that order."""
        model = Model(self.space, history=self.writer.numbering.history)
        model.contents.streams[self.space.inbox] = [(ENTRY_MS, [b"m", b"request"])]
        for writes, now_ms, error in self.ended:
            if error is None:
                model.apply(writes, now_ms)
        return model


async def take(store: Store, number: int) -> Written:
    space = store.space("Order", number)
    acquired = await acquire(store, space, VACANT, partitions=16_384, worker="w", machine="m", lease_seconds=1)
    assert acquired is not None
    await store.call("XADD", space.inbox, ENTRY_MS, "m", "request")
    partition_writer = store.writer(space, acquired.tenure)
    partition_writer.numbering.history = HISTORY
    return Written(space, partition_writer)


async def in_flight(store: Store, proxy: Proxy, numbers: itertools.count[int]) -> list[Written]:
    """Have a turn of batches sent on each of several partitions, and another before the first is answered.

    All operations that there are stand in each batch, and what one lane of the first partition writes is refused.
    """
    partitions = [await take(store, next(numbers)) for _ in range(PARTITIONS)]
    foreign = partitions[0].space.object(WRONG)
    await store.call("SET", foreign, "foreign")
    proxy.hold_replies(only="commit")
    before = proxy.calls["commit"]
    for turn in range(1, TURNS_IN_FLIGHT + 1):
        for each in partitions:
            each.commit(list(itertools.chain.from_iterable(every_commit(each.space))), "acme/every")
            if each is partitions[0]:
                each.commit([(b"a", foreign, 2, b"w", b"never")], WRONG)
            each.commit([operations.unpark(f"acme/{turn}")], f"acme/{turn}")
        sent = before + turn * PARTITIONS
        await eventually(lambda sent=sent: proxy.calls["commit"] >= sent, "the store has the batches")
    return partitions


@asynccontextmanager
async def opened(proxy: Proxy, namespace: str) -> AsyncGenerator[Store]:
    """Open a store whose connection of commits the proxy knows."""
    async with Store(proxy.url, namespace=namespace) as store:
        first = await take(store, 16_000)
        first.commit([operations.unpark("acme/first")], "acme/first")
        await eventually(lambda: first.ended, "the first commit")
        yield store


async def test_cut_behind_any_byte_of_six_replies_each_partition_holds_what_the_model_says(
    proxy: Proxy, namespace: str
) -> None:
    """Two batches of each of three partitions, one of them refused: whichever replies get lost, and wherever in one."""
    numbers = itertools.count()
    async with opened(proxy, namespace) as store:
        reply_bytes, cuts = -1, -1
        while proxy.cuts > cuts:
            reply_bytes += 1
            cuts = proxy.cuts
            partitions = await in_flight(store, proxy, numbers)
            proxy.cut_after(reply_bytes, only="commit")
            proxy.let_replies_pass()
            for each in partitions:
                await eventually(lambda each=each: each.writer.is_idle, "every commit is answered")
            proxy.heal()
            for each in partitions:
                found = await read(store, each.space)
                found.results.pop(each.space.object(WRONG), None)
                assert found == each.model.contents, f"cut behind byte {reply_bytes}"
            refused = [type(error) for each in partitions for _, _, error in each.ended if error is not None]
            assert refused == [WrongKeyType] * TURNS_IN_FLIGHT

    assert reply_bytes >= TURNS_IN_FLIGHT * PARTITIONS * REPLY_BYTES


async def test_a_lost_connection_costs_one_pause_however_many_partitions_had_a_batch_on_it(
    proxy: Proxy, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one cut of a worker that holds a hundred partitions would keep all of them waiting for a second."""
    failures: list[int] = []
    back_off = Committer._back_off

    async def noted(committer: Committer) -> None:
        failures.append(committer._failures)
        await back_off(committer)

    monkeypatch.setattr(Committer, "_back_off", noted)
    async with opened(proxy, namespace) as store:
        failures.clear()
        partitions = [await take(store, number) for number in range(30)]
        proxy.hold_replies(only="commit")
        for each in partitions:
            each.commit([operations.unpark("acme/one")], "acme/one")
        await eventually(lambda: proxy.calls["commit"] > len(partitions), "the store has them")
        proxy.cut(only="commit")
        proxy.heal()
        for each in partitions:
            await eventually(lambda each=each: each.ended, "every commit is answered")

    assert 1 <= max(failures) <= TURNS_IN_FLIGHT


async def calls_in_flight(runtime: Runtime, client: Client, number: int, trail: Path) -> None:
    """Make calls of every way to several keys at once, and hold each answer against what it must be."""
    answers: dict[str, list[int]] = {}
    done: list[list[str]] = []

    async def count(caller: Client, key: str) -> None:
        answers.setdefault(key, []).append(await caller.call(add, key, 1, timeout=20))

    async def run_steps(caller: Client) -> None:
        done.append(await caller.call(three_steps, f"acme/s{number}", str(trail), timeout=20))

    keys = [f"acme/{number}-{key}" for key in range(3)]
    async with anyio.create_task_group() as tasks:
        for key, caller in itertools.product(keys, (runtime.client, client)):
            tasks.start_soon(count, caller, key)
            tasks.start_soon(count, caller, key)
        tasks.start_soon(run_steps, runtime.client)
    assert {key: sorted(each) for key, each in answers.items()} == {key: [1, 2, 3, 4] for key in keys}
    assert [await client.call(get, key, timeout=20) for key in keys] == [4] * len(keys)
    assert [[token for _, token in marks(trail)]] == done


async def cut_a_runtime(proxy: Proxy, namespace: str, folder: Path, cuts: int | None) -> int:
    """Cut what comes back to a worker and its callers behind so many of its bytes, or each; returns how many bytes."""
    async with (
        Runtime(app, store=proxy.url, namespace=namespace, settings=BRISK) as runtime,
        Client(proxy.url, namespace=namespace) as client,
    ):
        replied = proxy.replied
        await calls_in_flight(runtime, client, 0, folder / "trail-0")
        whole = proxy.replied - replied
        for number, reply_bytes in enumerate(range(0, whole, whole // (cuts or whole)), start=1):
            proxy.cut_after(reply_bytes)
            await calls_in_flight(runtime, client, number, folder / f"trail-{number}")
            proxy.heal()
    return whole


async def test_a_worker_and_its_callers_cut_behind_many_a_byte_lose_and_double_nothing(
    proxy: Proxy, namespace: str, tmp_path: Path
) -> None:
    """Whatever the connection is for: commits, intake, reads, leases, announcements."""
    await cut_a_runtime(proxy, namespace, tmp_path, 30)

    # Most runs have fewer bytes than the first, which reads every object, so some of the cuts do not come.
    assert proxy.cuts >= 8


@pytest.mark.nightly
async def test_a_worker_and_its_callers_cut_behind_any_byte_lose_and_double_nothing(
    proxy: Proxy, namespace: str, tmp_path: Path
) -> None:
    """The same behind each of some thousand bytes."""
    whole = await cut_a_runtime(proxy, namespace, tmp_path, None)

    assert proxy.cuts >= whole // 3
