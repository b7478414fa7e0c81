from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from keylane.journal.keyspace import PartitionSpace
from keylane.journal.leases import Leases, Renewal, Renewed, TenureLost, acquire, observe, release, sync_leases
from keylane.journal.store import Store
from keylane.journal.tenure import Acquired, Observation, Tenure, lease_clock
from keylane.runtime.lease_thread import MARGIN, HeldLease, LeaseThread
from keylane.runtime.liveness import LeaseWatch, Verdict
from tests.faults.harness import StoreServer, eventually, eventually_answers

pytestmark = pytest.mark.anyio

LEASE = 0.9
RENEWAL = 0.1


@pytest.fixture
async def store(store_url: str, namespace: str) -> AsyncIterator[Store]:
    async with Store(store_url, namespace=namespace) as opened:
        yield opened


@pytest.fixture
def space(store: Store) -> PartitionSpace:
    return store.space("Order", 0)


async def look(store: Store, space: PartitionSpace) -> Observation:
    (seen,) = (await observe(store, [space])).seen
    assert isinstance(seen, Observation)
    return seen


async def took(store: Store, space: PartitionSpace, worker: str = "w1") -> Acquired:
    seen = await look(store, space)
    acquired = await acquire(store, space, seen, partitions=16, worker=worker, machine="", lease_seconds=1.0)
    assert acquired is not None
    return acquired


def ignore(lease: HeldLease) -> None:
    del lease


def lease_thread(
    leases: Leases, *, on_fenced: Callable[[HeldLease], None] = ignore, stuck_after_seconds: float = 30.0
) -> LeaseThread:
    return LeaseThread(
        leases,
        lease_seconds=LEASE,
        renewal_seconds=RENEWAL,
        stuck_after_seconds=stuck_after_seconds,
        on_fenced=on_fenced,
    )


@asynccontextmanager
async def holding(
    store: Store, space: PartitionSpace, *, stuck_after_seconds: float = 30.0
) -> AsyncGenerator[tuple[HeldLease, list[HeldLease]]]:
    """Hold a partition by a thread, and give its lease with the list of what was reported as fenced."""
    fenced: list[HeldLease] = []
    acquired = await took(store, space)
    leases = sync_leases(store, timeout_seconds=LEASE / 3)
    async with lease_thread(leases, on_fenced=fenced.append, stuck_after_seconds=stuck_after_seconds) as thread:
        yield thread.hold(space, acquired.tenure, sent_at=acquired.sent_at), fenced


async def test_a_held_lease_is_renewed_until_it_is_given_up(store: Store, space: PartitionSpace) -> None:
    """The counter rises by itself; when the thread has ended nothing is valid that is not renewed any more."""
    async with holding(store, space) as (lease, _):
        first = lease.valid_until

        async def is_renewed() -> bool:
            return (await look(store, space)).lease >= 3 and lease.valid_until > first

        await eventually_answers(is_renewed, "three renewals")
        assert lease.is_valid()

    counter = (await look(store, space)).lease
    await eventually(lambda: not lease.is_valid(), "the lease to lapse", seconds=LEASE + 1)
    assert (await look(store, space)).lease == counter


async def test_a_blocked_event_loop_does_not_cost_the_lease(
    store: Store, space: PartitionSpace, caplog: pytest.LogCaptureFixture
) -> None:
    """Renewal has a thread of its own, and the log names the line that blocks."""
    async with holding(store, space) as (lease, fenced):
        time.sleep(2 * LEASE)  # noqa: ASYNC251 # blocking the loop is what this is about

        assert lease.is_valid()
        assert fenced == []

    warnings = [record.getMessage() for record in caplog.records if record.name == "keylane.loop"]
    assert len(warnings) == 1
    assert f"{Path(__file__).name}:" in warnings[0]
    assert "test_a_blocked_event_loop_does_not_cost_the_lease" in warnings[0]


async def test_a_stuck_event_loop_lets_its_leases_lapse_and_gets_them_back(
    store: Store, space: PartitionSpace, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that can't work must not keep others from it; if none came, it may go on, however late."""
    async with holding(store, space, stuck_after_seconds=0.3) as (lease, fenced):
        time.sleep(3 * LEASE)  # noqa: ASYNC251 # blocking the loop is what this is about

        assert not lease.is_valid()
        await eventually(lease.is_valid, "the late renewal")
        assert fenced == []

    assert [record for record in caplog.records if record.levelno == logging.ERROR]


async def test_a_lease_that_another_got_is_reported_in_the_event_loop(store: Store, space: PartitionSpace) -> None:
    """The report comes once, from the loop's own thread, and the lease is over by then."""
    reported: list[tuple[HeldLease, int, bool]] = []

    def on_fenced(lease: HeldLease) -> None:
        reported.append((lease, threading.get_ident(), lease.is_valid()))

    acquired = await took(store, space)
    async with lease_thread(sync_leases(store, timeout_seconds=LEASE), on_fenced=on_fenced) as thread:
        lease = thread.hold(space, acquired.tenure, sent_at=acquired.sent_at)
        await store.call("HSET", space.owner, "epoch", acquired.tenure.epoch + 1)

        await eventually(lambda: reported, "the report")
        await anyio.to_thread.run_sync(time.sleep, 2 * RENEWAL)

    assert reported == [(lease, threading.get_ident(), False)]


async def test_a_lease_that_was_handed_over_is_not_reported(store: Store, space: PartitionSpace) -> None:
    """What the loop gave up itself is no news to it, and no longer valid from then on."""
    fenced: list[HeldLease] = []
    first, other = await took(store, space), await took(store, store.space("Order", 1))
    async with lease_thread(sync_leases(store, timeout_seconds=LEASE), on_fenced=fenced.append) as thread:
        lease = thread.hold(space, first.tenure, sent_at=first.sent_at)
        marker = thread.hold(store.space("Order", 1), other.tenure, sent_at=other.sent_at)

        thread.drop(lease)
        thread.drop(lease)
        assert not lease.is_valid()
        assert await release(store, space, first.tenure)
        await took(store, space, worker="w2")
        since = marker.valid_until
        await eventually(lambda: marker.valid_until > since, "a renewal after the hand-over")

    assert fenced == []


class LeasesDouble(Leases):
    """Answers as it is told, and does what the test wants done while a renewal is on the way."""

    def __init__(self, answer: Renewal, on_the_way: Callable[[], None] = lambda: None) -> None:
        self.answer = answer
        self.on_the_way = on_the_way
        self.sent: list[float] = []
        self.turns: list[int] = []

    def renew(self, held: Sequence[tuple[PartitionSpace, Tenure]]) -> list[Renewal]:
        sent_at = lease_clock()
        if held:
            self.on_the_way()
        answers = [self.answer] * len(held)
        self.sent.append(sent_at)
        self.turns.append(len(held))
        return answers

    def close(self) -> None:
        pass


NOWHERE = PartitionSpace("none", "Order", 0)


async def test_a_lease_counts_from_before_its_renewal_was_sent() -> None:
    """A slow answer does not lengthen the lease: the store may have heard of it at once."""
    leases = LeasesDouble(Renewed(1), on_the_way=lambda: time.sleep(0.3))
    async with lease_thread(leases) as thread:
        begun = lease_clock()
        lease = thread.hold(NOWHERE, Tenure(1, b"t"), sent_at=begun)
        assert lease.valid_until == pytest.approx(begun + LEASE * (1 - MARGIN))

        await eventually(lambda: lease.valid_until > begun + LEASE, "a renewal")
        sent_at = [at for at, held in zip(leases.sent, leases.turns, strict=True) if held][-1]

    assert lease.valid_until <= sent_at + LEASE * (1 - MARGIN)


@pytest.mark.parametrize("answer", [Renewed(2), TenureLost("FENCED")])
async def test_what_is_dropped_while_its_renewal_is_on_the_way_stays_dropped(answer: Renewal) -> None:
    """The late answer neither revives the lease nor is it reported."""
    fenced: list[HeldLease] = []
    held: list[HeldLease] = []
    leases = LeasesDouble(answer, on_the_way=lambda: thread.drop(held[0]))
    thread = lease_thread(leases, on_fenced=fenced.append)
    async with thread:
        held.append(thread.hold(NOWHERE, Tenure(1, b"t"), sent_at=lease_clock()))
        await eventually(lambda: 1 in leases.turns, "the renewal")
        turns = len(leases.turns)
        await eventually(lambda: len(leases.turns) > turns, "the turn after it")

    assert not held[0].is_valid()
    assert fenced == []


async def test_a_lease_that_begins_late_is_renewed_at_once() -> None:
    """When the acquisition took most of the lease, the next turn may be too late."""
    leases = LeasesDouble(Renewed(1))
    slow = LeaseThread(leases, lease_seconds=60, renewal_seconds=20, stuck_after_seconds=30, on_fenced=ignore)
    async with slow as thread:
        await eventually(lambda: leases.turns == [0], "the first turn")

        lease = thread.hold(NOWHERE, Tenure(1, b"t"), sent_at=lease_clock() - 50)

        await eventually(lambda: leases.turns == [0, 1], "a turn out of turn", seconds=2)
        await eventually(lambda: lease.valid_until > lease_clock() + 40, "the renewal")


async def test_a_surprise_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    """One unforeseen exception must not cost every lease of the worker."""
    surprises = [ValueError("unforeseen")]

    def on_the_way() -> None:
        if surprises:
            raise surprises.pop()

    leases = LeasesDouble(Renewed(1), on_the_way)
    async with lease_thread(leases) as thread:
        thread.hold(NOWHERE, Tenure(1, b"t"), sent_at=lease_clock())
        await eventually(lambda: 1 in leases.turns, "a renewal after the surprise")

    assert "unforeseen" in caplog.text


async def test_a_store_that_does_not_answer_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """The lease lapses, the thread tries on, says so once, and the unchanged tenure goes on when the store does."""
    with StoreServer() as server:
        async with Store(server.url, namespace="n") as store:
            space = store.space("Order", 0)
            with caplog.at_level(logging.INFO, "keylane.lease"):
                async with holding(store, space) as (lease, fenced):
                    server.stop()
                    await eventually(lambda: not lease.is_valid(), "the lapse", seconds=3 * LEASE)
                    server.go_on()
                    await eventually(lease.is_valid, "the late renewal")
                    assert fenced == []

                    server.kill()
                    await eventually(lambda: not lease.is_valid(), "the second lapse", seconds=3 * LEASE)
                    server.start()
                    await eventually(lease.is_valid, "the renewal after the restart")

    said = [record.getMessage() for record in caplog.records if record.name == "keylane.lease"]
    assert sum("can't be renewed" in each for each in said) == 2
    assert sum("renewed again" in each for each in said) == 2


async def test_the_thread_ends_in_time_while_the_store_does_not_answer() -> None:
    """A shutdown does not wait for an answer that does not come."""
    with StoreServer() as server:
        async with Store(server.url, namespace="n") as store:
            acquired = await took(store, store.space("Order", 0))
            thread = lease_thread(sync_leases(store, timeout_seconds=30.0))
            async with thread:
                lease = thread.hold(store.space("Order", 0), acquired.tenure, sent_at=acquired.sent_at)
                await eventually(lambda: lease.valid_until > acquired.sent_at + LEASE, "a renewal")
                server.stop()
                await eventually(lambda: not lease.is_valid(), "the lapse", seconds=3 * LEASE)
                began = time.monotonic()

            # The answer would be waited for three times as long.
            assert time.monotonic() - began < 10
            assert not [each for each in threading.enumerate() if each.name == "keylane-leases"]
            server.go_on()


CHILD = Path(__file__).with_name("lease_holder_main.py")


@asynccontextmanager
async def lease_holder(store_url: str, namespace: str) -> AsyncGenerator[subprocess.Popen[str]]:
    """Run a process that holds partition 0 of Order and prints what becomes of its lease."""
    with started(store_url, namespace) as child:
        try:
            assert await said(child) == "valid"
            yield child
        finally:
            child.kill()


def started(store_url: str, namespace: str) -> subprocess.Popen[str]:
    words = [sys.executable, str(CHILD), store_url, namespace, str(LEASE), str(RENEWAL)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


async def asked(child: subprocess.Popen[str]) -> str:
    child.send_signal(signal.SIGUSR1)
    return await said(child)


async def said(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return (await anyio.to_thread.run_sync(child.stdout.readline)).strip()


async def expired(store: Store, space: PartitionSpace) -> Observation:
    """Poll as a would-be owner does, until the lease has expired."""
    watch = LeaseWatch(LEASE)
    while True:
        poll = await observe(store, [space])
        (seen,) = poll.seen
        assert isinstance(seen, Observation)
        if watch.poll(seen, sent_at=poll.sent_at, answered_at=poll.answered_at) is Verdict.EXPIRED:
            return seen
        await anyio.sleep(LEASE / 10)


async def test_a_paused_owner_finds_itself_fenced(
    store: Store, store_url: str, namespace: str, space: PartitionSpace
) -> None:
    """SIGSTOP past the lease, another takes over, SIGCONT: the first reports the loss and renews nothing."""
    async with lease_holder(store_url, namespace) as child:
        child.send_signal(signal.SIGSTOP)
        seen = await expired(store, space)
        taken = await acquire(store, space, seen, partitions=16, worker="w2", machine="", lease_seconds=1.0)
        assert taken is not None

        child.send_signal(signal.SIGCONT)

        assert await said(child) == "fenced"
        assert await asked(child) == "lapsed"
        assert (await look(store, space)).lease == 0
        assert (await look(store, space)).epoch == taken.tenure.epoch


async def test_a_paused_owner_whom_nobody_followed_goes_on(
    store: Store, store_url: str, namespace: str, space: PartitionSpace
) -> None:
    """The lease lapsed during the pause, and the tenure that nobody ended is renewed late."""
    async with lease_holder(store_url, namespace) as child:
        child.send_signal(signal.SIGSTOP)
        seen = await expired(store, space)

        child.send_signal(signal.SIGCONT)

        words: list[str] = []

        async def is_valid() -> bool:
            words.append(await asked(child))
            return words[-1] == "valid"

        await eventually_answers(is_valid, "the late renewal")
        assert "fenced" not in words
        late = await acquire(store, space, seen, partitions=16, worker="w2", machine="", lease_seconds=1.0)
        assert late is None, "a verdict from before the late renewal takes nothing"
