from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import redis

from keylane.journal.doctor.facts import Sign
from keylane.journal.doctor.watching import Watch
from keylane.journal.errors import SchemaMismatch, StoreUnavailable, WrongKeyType
from keylane.journal.keyspace import SCHEMA_VERSION, PartitionSpace, registry_key
from keylane.journal.leases import (
    NotRenewed,
    Renewed,
    SyncLeases,
    TenureLost,
    acquire,
    announce,
    observe,
    release,
    sync_leases,
    withdraw,
    withdraw_dead,
)
from keylane.journal.library import library
from keylane.journal.store import Refusal, Store
from keylane.journal.tenure import (
    VACANT,
    Acquired,
    Announcement,
    Observation,
    Tenure,
    decode_announcement,
    encode_announcement,
    lease_clock,
)

pytestmark = pytest.mark.anyio

PARTITIONS = 16


@pytest.fixture
async def store(each_store_url: str, namespace: str) -> AsyncIterator[Store]:
    async with Store(each_store_url, namespace=namespace) as opened:
        yield opened


@pytest.fixture
def space(store: Store) -> PartitionSpace:
    return store.space("Order", 3)


async def take(
    store: Store, space: PartitionSpace, seen: Observation, *, worker: str = "w1", partitions: int = PARTITIONS
) -> Acquired | None:
    return await acquire(store, space, seen, partitions=partitions, worker=worker, machine="m", lease_seconds=3.0)


async def took(store: Store, space: PartitionSpace, *, worker: str = "w1") -> Acquired:
    """Acquire what is there to be acquired, as one who saw it just now."""
    acquired = await take(store, space, await look(store, space), worker=worker)
    assert acquired is not None
    return acquired


async def look(store: Store, space: PartitionSpace) -> Observation:
    (seen,) = (await observe(store, [space])).seen
    assert isinstance(seen, Observation)
    return seen


async def owner_hash(store: Store, space: PartitionSpace) -> dict[bytes, bytes]:
    flat: list[bytes] = await store.call("HGETALL", space.owner)
    return dict(zip(flat[::2], flat[1::2], strict=True))


async def test_the_first_acquisition_of_a_partition_begins_epoch_one(store: Store, space: PartitionSpace) -> None:
    """The schema and the partition count are written with the first tenure, whose lease counts from its sending."""
    before = lease_clock()

    acquired = await take(store, space, VACANT)

    assert acquired is not None
    assert acquired.tenure.epoch == 1
    assert len(acquired.tenure.token) == 16
    assert before <= acquired.sent_at <= lease_clock()
    assert (acquired.last_batch, acquired.last_serial) == (0, 0)
    held = await owner_hash(store, space)
    assert held[b"schema"] == SCHEMA_VERSION.encode()
    assert held[b"partitions"] == b"16"
    assert held[b"batch"] == b"0"


async def test_the_partition_time_of_an_acquisition_is_the_servers(store: Store, space: PartitionSpace) -> None:
    """A tenure begins knowing the partition's time, which the test clock shifts and the last write holds up."""
    await store.call("HSET", space.owner, "offset", 1_000_000_000)
    seconds, _ = await store.call("TIME")

    acquired = await take(store, space, VACANT)

    assert acquired is not None
    assert acquired.now_ms // 1000 - (int(seconds) + 1_000_000) in {0, 1}


async def test_only_one_of_two_who_saw_the_same_gets_a_partition(store: Store, space: PartitionSpace) -> None:
    """An acquisition on a stale observation is refused and changes nothing."""
    assert await take(store, space, VACANT, worker="w1") is not None
    held = await owner_hash(store, space)

    assert await take(store, space, VACANT, worker="w2") is None
    assert await owner_hash(store, space) == held


async def test_a_renewal_after_the_observation_saves_the_holder(store: Store, space: PartitionSpace) -> None:
    """A would-be owner whose verdict is older than the holder's last renewal comes too late."""
    held = await took(store, space)
    seen = await look(store, space)
    with_renewal = sync_leases(store, timeout_seconds=1.0)

    assert with_renewal.renew([(space, held.tenure)]) == [Renewed(1)]
    assert await take(store, space, seen, worker="w2") is None

    with_renewal.close()


async def test_an_unchanged_lease_lets_the_next_owner_in(store: Store, space: PartitionSpace) -> None:
    """The next tenure starts its batches and its lease anew and learns how far the one before came."""
    first = await took(store, space)
    await store.fcall("commit", await commit_keys(space), (first.tenure.epoch, first.tenure.token, 1, 7, 0, ""))
    assert (await owner_hash(store, space))[b"a1"].startswith(b"1:7:")

    second = await took(store, space, worker="w2")

    assert second.tenure.epoch == 2
    assert second.tenure.token != first.tenure.token
    assert (second.last_batch, second.last_serial) == (1, 7)
    held = await owner_hash(store, space)
    assert (held[b"batch"], held[b"serial"], held[b"lease"], held[b"worker"]) == (b"0", b"0", b"0", b"w2")
    assert b"a1" not in held


async def commit_keys(space: PartitionSpace) -> list[bytes]:
    return [space.owner, space.due, space.runnable, space.inbox, space.answer_channel, space.undecodable]


async def test_a_released_partition_is_taken_without_waiting(store: Store, space: PartitionSpace) -> None:
    """After a hand-over the counter of the tenure before does not matter."""
    first = await took(store, space)
    seen = await look(store, space)
    leases = sync_leases(store, timeout_seconds=1.0)
    leases.renew([(space, first.tenure)])
    leases.close()

    assert await release(store, space, first.tenure)
    assert (await look(store, space)).released
    second = await take(store, space, seen, worker="w2")

    assert second is not None
    assert second.tenure.epoch == 2
    assert not (await look(store, space)).released


async def test_a_lost_answer_to_an_acquisition_is_asked_for_again(
    store: Store, space: PartitionSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who got the partition without hearing of it gets the same tenure and does not wait for its own lease."""
    lost_at: list[float] = []
    monkeypatch.setattr(store, "fcall", losing_the_first_answer(store.fcall, lost_at))

    acquired = await take(store, space, VACANT)

    assert acquired is not None
    assert acquired.tenure.epoch == 1
    assert acquired.sent_at < lost_at[0], "the lease counts from the words that may have been applied"
    assert (await owner_hash(store, space))[b"token"] == acquired.tenure.token


Fcall = Callable[..., Awaitable[Any]]


def losing_the_first_answer(fcall: Fcall, lost_at: list[float]) -> Fcall:
    async def losing(verb: str, keys: Sequence[bytes], args: Sequence[Any], *, read_only: bool = False) -> Any:
        answer = await fcall(verb, keys, args, read_only=read_only)
        if not lost_at:
            lost_at.append(lease_clock())
            raise StoreUnavailable("redis://here", "the connection was cut")
        return answer

    return losing


async def test_an_acquisition_that_gets_no_answer_gives_up(
    store: Store, space: PartitionSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost answer is not asked for longer than the caller's patience."""

    async def unanswered(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("redis://here", "the connection was cut")

    monkeypatch.setattr(store, "fcall", unanswered)

    with pytest.raises(StoreUnavailable):
        await acquire(store, space, VACANT, partitions=16, worker="w1", machine="", lease_seconds=0.1)


@pytest.mark.parametrize(("name", "value"), [("schema", "0"), ("partitions", "32")])
async def test_other_settings_than_those_written_are_refused(
    store: Store, space: PartitionSpace, name: str, value: str
) -> None:
    """A partition of another schema or partition count is named with both values and left alone."""
    await took(store, space)
    await store.call("HSET", space.owner, name, value)
    held = await owner_hash(store, space)

    with pytest.raises(SchemaMismatch, match="Order:3") as refused:
        await take(store, space, await look(store, space))

    assert value in refused.value.found
    assert refused.value.expected == f"{SCHEMA_VERSION}/{PARTITIONS}"
    assert await owner_hash(store, space) == held


async def test_a_foreign_hash_in_the_place_of_the_owner_is_left_alone(store: Store, space: PartitionSpace) -> None:
    """A hash that was there before Keylane is not taken for a partition without owner."""
    await store.call("HSET", space.owner, "colour", "blue")

    with pytest.raises(WrongKeyType, match=r"Order:3\}:owner"):
        await take(store, space, VACANT)

    assert await owner_hash(store, space) == {b"colour": b"blue"}


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        ("acquire", (16, "", 0, b"t", "w", "m")),
        ("renew", (1, b"t")),
        ("release", (1, b"t")),
        ("observe", ()),
        ("announce", ("w", b"a")),
        ("withdraw", ("w", b"")),
    ],
)
async def test_a_key_of_another_type_is_named_and_left_alone(
    store: Store, space: PartitionSpace, verb: str, args: tuple[Any, ...]
) -> None:
    """No function of ownership touches a key that is no hash."""
    await store.call("SET", space.owner, "somebody else's")

    with pytest.raises(Refusal, match=r"WRONGKEYTYPE .*Order:3\}:owner"):
        await store.fcall(verb, [space.owner], args)

    assert await store.call("GET", space.owner) == b"somebody else's"


async def test_a_tenure_that_is_unchanged_is_renewed_however_late(store: Store, space: PartitionSpace) -> None:
    """Renewal asks who holds the partition and not when it was renewed last."""
    held = await took(store, space)
    await store.call("HSET", space.owner, "offset", 3_600_000)
    leases = sync_leases(store, timeout_seconds=1.0)

    assert leases.renew([(space, held.tenure)]) == [Renewed(1)]
    assert leases.renew([(space, held.tenure)]) == [Renewed(2)]
    assert (await look(store, space)).lease == 2

    leases.close()


async def test_one_lost_tenure_does_not_cost_the_others_of_the_turn(store: Store) -> None:
    """Each tenure of a turn is judged by itself: other epoch, other token, foreign key, and one that holds."""
    spaces = [store.space("Order", number) for number in range(4)]
    tenures = [(await took(store, each)).tenure for each in spaces]
    await took(store, spaces[0], worker="w2")
    await store.call("SET", spaces[2].owner, "somebody else's")
    tenures[1] = replace(tenures[1], token=b"another token of 16")
    leases = sync_leases(store, timeout_seconds=1.0)

    renewals = leases.renew(list(zip(spaces, tenures, strict=True)))

    assert isinstance(renewals[0], TenureLost)
    assert isinstance(renewals[1], TenureLost)
    assert isinstance(renewals[2], NotRenewed)
    assert renewals[3] == Renewed(1)
    leases.close()


async def test_renewal_loads_the_functions_that_a_server_lost(store: Store, space: PartitionSpace) -> None:
    """Functions that went missing cost no lease, even while the event loop can't load them."""
    held = await took(store, space)
    await store.call("FUNCTION", "DELETE", store.library.name)
    leases = sync_leases(store, timeout_seconds=1.0)

    assert leases.renew([(space, held.tenure)]) == [Renewed(1)]

    leases.close()


async def test_observation_loads_the_functions_that_a_server_lost(store: Store, space: PartitionSpace) -> None:
    """Functions that went missing are loaded by whoever notices."""
    await took(store, space)
    await store.call("FUNCTION", "DELETE", store.library.name)

    assert (await look(store, space)).epoch == 1


def test_renewal_without_a_store_says_so_for_each_tenure() -> None:
    """No answer is no verdict: the tenures may hold or not."""
    with socket.create_server(("127.0.0.1", 0)) as refusing:
        port = refusing.getsockname()[1]
    leases = SyncLeases(redis.Redis(port=port, socket_timeout=0.2), library())
    space = PartitionSpace("none", "Order", 0)

    renewals = leases.renew([(space, Tenure(1, b"t")), (space, Tenure(2, b"t"))])

    assert [type(renewal) for renewal in renewals] == [NotRenewed, NotRenewed]
    assert leases.renew([]) == []
    leases.close()


async def test_after_a_hand_over_nothing_of_the_tenure_is_accepted(store: Store, space: PartitionSpace) -> None:
    """A batch or a renewal that was still on the wire at the hand-over is fenced."""
    held = await took(store, space)
    assert await release(store, space, held.tenure)
    leases = sync_leases(store, timeout_seconds=1.0)

    (renewal,) = leases.renew([(space, held.tenure)])
    with pytest.raises(Refusal, match="FENCED"):
        await store.fcall("commit", await commit_keys(space), (held.tenure.epoch, held.tenure.token, 1, 1, ""))

    assert isinstance(renewal, TenureLost)
    assert (await look(store, space)).lease == 0
    leases.close()


async def test_a_hand_over_may_be_asked_for_again(store: Store, space: PartitionSpace) -> None:
    """A lost answer to a release is asked for again; a tenure that is over releases nothing."""
    first = await took(store, space)

    assert await release(store, space, first.tenure)
    assert await release(store, space, first.tenure)

    second = await took(store, space, worker="w2")
    assert not await release(store, space, first.tenure)
    assert not await release(store, space, replace(second.tenure, token=b"another"))
    assert not (await look(store, space)).released


async def test_many_partitions_are_observed_in_one_turn(store: Store) -> None:
    """Each partition is answered in its place; one that can't be read does not hide the others."""
    vacant, held, foreign = spaces = [store.space("Order", number) for number in range(3)]
    await took(store, held, worker="w9")
    await store.call("SET", foreign.owner, "somebody else's")

    poll = await observe(store, spaces)

    assert poll.seen[0] == VACANT
    assert poll.seen[1] == Observation(1, 0, released=False, worker="w9", machine="m", lease_seconds=3.0)
    assert isinstance(poll.seen[2], WrongKeyType)
    assert poll.sent_at < poll.answered_at
    assert (await observe(store, [])).seen == ()
    assert vacant.number == 0


async def test_a_poll_without_an_answer_is_no_observation(store_url: str, namespace: str) -> None:
    """What can't be asked is not guessed: the whole poll counts for nothing."""
    never_opened = Store(store_url, namespace=namespace)

    with pytest.raises(StoreUnavailable):
        await observe(never_opened, [never_opened.space("Order", 0)])


async def test_workers_hear_of_each_other(store: Store) -> None:
    """An announcement is read by all, with those that were there before."""
    first = Announcement(1, ("Order", "Customer"), "m", "keylane_x", draining=False, lease_seconds=4.5)

    await announce(store, "w1", first)
    heard = (await announce(store, "w2", replace(first, counter=5, draining=True))).announcements

    assert decode_announcement(heard["w1"]) == first
    assert decode_announcement(heard["w2"]).draining
    await withdraw(store, "w1")
    assert set((await announce(store, "w2", first)).announcements) == {"w2"}


async def test_a_worker_that_announced_itself_again_is_not_withdrawn(store: Store) -> None:
    """A worker that was paused and comes back is not struck off on the word of one who saw it dead."""
    announcement = Announcement(1, ("Order",), "m", "keylane_x", draining=False)
    seen = (await announce(store, "w1", announcement)).announcements
    await announce(store, "w2", announcement)
    await announce(store, "w1", replace(announcement, counter=2))

    await withdraw_dead(store, [("w1", seen["w1"]), ("w2", encode_announcement(announcement))])
    await withdraw_dead(store, [])

    assert await store.call("HKEYS", registry_key(store.namespace)) == [b"w1"]


async def test_ownership_works_while_memory_is_full(store: Store, space: PartitionSpace) -> None:
    """A full store must not cost leases, nor keep a new owner from finishing what is open."""
    first = await took(store, space)
    leases = sync_leases(store, timeout_seconds=1.0)
    await store.call("CONFIG", "SET", "maxmemory", "1")
    try:
        assert leases.renew([(space, first.tenure)]) == [Renewed(1)]
        assert (await look(store, space)).lease == 1
        assert await release(store, space, first.tenure)
        assert (await took(store, space, worker="w2")).tenure.epoch == 2
        await announce(store, "w2", Announcement(1, ("Order",), "m", "keylane_x", draining=False))
        await withdraw(store, "w2")
    finally:
        await store.call("CONFIG", "SET", "maxmemory", "0")
        leases.close()


def test_an_announcement_of_a_later_release_is_read_as_far_as_it_is_known() -> None:
    """Fields that a later release adds at the end do not hide a worker."""
    written = encode_announcement(Announcement(1, ("Order",), "m", "keylane_x", draining=False))

    # An array of six becomes one of seven with a nil behind.
    longer = bytes([written[0] + 1]) + written[1:] + b"\xc0"

    assert decode_announcement(longer) == decode_announcement(written)


async def test_a_checkup_watches_a_silent_holder_for_its_own_lease_where_that_is_longer(store: Store) -> None:
    """It may be alive still, and raise its counter only as often as its lease asks for."""
    space = store.space("Order", 0)
    assert await acquire(store, space, VACANT, partitions=1, worker="w1", machine="m", lease_seconds=0.8)
    watch = Watch(store, [space], 0.1)

    began = lease_clock()
    await watch.run()

    assert lease_clock() - began > 0.8
    assert watch.health(space).sign is Sign.SILENT
