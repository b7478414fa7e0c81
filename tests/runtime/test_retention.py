"""What is kept of idle objects and of ended invocations once their retention has passed."""

from __future__ import annotations

import asyncio
import itertools
import typing
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from keylane import (
    CallError,
    IdempotencyConflict,
    InvalidInput,
    InvocationFailed,
    InvocationPaused,
    ObjectContext,
    RetryPolicy,
    Runtime,
    SharedContext,
    TerminalError,
    UnknownHandler,
    VirtualObject,
)
from keylane.journal import operations
from keylane.journal.batch import Commit
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.object_description import What
from keylane.journal.operations import StateChange
from keylane.journal.outcomes import Outcome, Refused, Rejected, Replayed, Stopped, Succeeded
from keylane.journal.records import Finished
from keylane.runtime import retention
from keylane.runtime.partition import Partition
from keylane.runtime.retention import Retention
from keylane.testing import shift_clock
from tests.faults.harness import eventually, eventually_answers
from tests.plain import plain

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
AFTER_RETENTION = timedelta(hours=25)
AFTER_TOMBSTONES = timedelta(days=32)
ONCE = RetryPolicy(first=timedelta(milliseconds=1), attempts=1)
#: So few partitions that every key shares one.
clerk = VirtualObject("Clerk", owner="tests", partitions=1, state={"count": int, "text": str}, retry=ONCE)
aside = VirtualObject("Aside", owner="tests", partitions=1, state={"count": int}, retry=ONCE, on_paused="skip")
gates: dict[str, asyncio.Event] = {}


@clerk.handler
async def count(ctx: ObjectContext) -> int:
    value = await ctx.get("count", int, 0) + 1
    ctx.set("count", value)
    return value


@clerk.handler
async def forget(ctx: ObjectContext) -> None:
    ctx.clear_all()


@clerk.handler
async def refuse(ctx: ObjectContext) -> None:
    raise TerminalError("no")


@clerk.handler
async def take(ctx: ObjectContext, number: int) -> int:
    return number


@clerk.handler
async def count_in_steps(ctx: ObjectContext) -> int:
    async def step() -> int:
        return 1

    value = await ctx.get("count", int, 0) + await ctx.run("one", step)
    ctx.set("count", value)
    return value


@clerk.handler
async def refuse_after_a_step(ctx: ObjectContext) -> None:
    async def step() -> int:
        return 1

    await ctx.run("one", step)
    raise TerminalError("no")


@clerk.handler
async def stumble(ctx: ObjectContext) -> int:
    if str(ctx.key) not in gates:
        raise ValueError("not yet")
    return await count.function(ctx)


@clerk.handler
async def linger(ctx: ObjectContext) -> str:
    return await ctx.signal("go on", str)


@clerk.shared
async def read(ctx: SharedContext) -> int:
    return await ctx.get("count", int, 0)


@aside.handler
async def stumble_aside(ctx: ObjectContext) -> int:
    if str(ctx.key) not in gates:
        raise ValueError("not yet")
    return 1


@aside.handler
async def count_on(ctx: ObjectContext) -> int:
    return await count.function(ctx)


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime([clerk, aside], store=store_url, namespace=namespace) as runtime:
        yield runtime


def space_of(runtime: Runtime) -> PartitionSpace:
    return runtime.client.store.space("Clerk", 0)


def clerks(runtime: Runtime) -> Partition:
    """Return the one partition of the clerks."""
    return next(each for each in runtime.worker.partitions if each.space.type_name == "Clerk")


def histories(runtime: Runtime) -> Retention:
    return runtime.worker._retention  # pyright: ignore[reportPrivateUsage]


async def pass_by(runtime: Runtime, by: timedelta) -> None:
    """Let time pass, and everything that it makes due be done."""
    await shift_clock(runtime, by)
    await histories(runtime).sweep()


def entries(url: str, runtime: Runtime, key: str = KEY) -> list[list[bytes]]:
    """Return the names of the fields of each entry of an object's stream."""
    return [list(fields) for _, fields in plain(url, "XRANGE", space_of(runtime).object(key), "-", "+")]


def index(url: str, runtime: Runtime) -> list[bytes]:
    return plain(url, "ZRANGE", space_of(runtime).history, 0, -1)


async def test_an_idle_object_shrinks_to_one_snapshot(runtime: Runtime, store_url: str) -> None:
    """After the retention and not before it; its state is what it was, and it is in no index any more."""
    for _ in range(40):
        await runtime.client.call(count, KEY)
    await pass_by(runtime, timedelta(hours=23))
    assert len(entries(store_url, runtime)) == 40
    assert index(store_url, runtime) == [KEY.encode()]

    await pass_by(runtime, timedelta(hours=2))

    assert entries(store_url, runtime) == [[b"s"]]
    assert index(store_url, runtime) == []
    assert await runtime.client.call(read, KEY) == 40
    assert await runtime.client.call(count, KEY) == 41


async def test_an_object_that_is_not_in_memory_shrinks_and_does_not_come_into_it(
    store_url: str, namespace: str
) -> None:
    """The next owner reads what it shrinks and keeps nothing of it."""
    async with Runtime([clerk], store=store_url, namespace=namespace) as first:
        for number in range(200):
            await first.client.call(count, f"acme/o-{number}")
        for _ in range(100):
            await first.client.call(count, "acme/o-0")
    async with Runtime([clerk], store=store_url, namespace=namespace) as second:
        await pass_by(second, AFTER_RETENTION)

        assert all(entries(store_url, second, f"acme/o-{number}") == [[b"s"]] for number in range(200))
        assert index(store_url, second) == []
        assert clerks(second).lanes == {}
        assert not clerks(second).shrinking
        assert await second.client.call(count, "acme/o-0") == 102


async def test_nothing_stays_of_an_idle_object_without_state(runtime: Runtime, store_url: str) -> None:
    """Its stream is gone, whether it never had any state or has none left."""
    with pytest.raises(InvocationFailed):
        await runtime.client.call(refuse, KEY)
    await runtime.client.call(count, "acme/o-2")
    await runtime.client.call(forget, "acme/o-2")

    await pass_by(runtime, AFTER_RETENTION)

    assert plain(store_url, "KEYS", space_of(runtime).object("*").decode()) == []
    assert index(store_url, runtime) == []


async def test_an_object_that_was_used_since_is_looked_at_again_later(runtime: Runtime, store_url: str) -> None:
    """A retention after its last use, and it is entered once for all uses in between."""
    await runtime.client.call(count, KEY)
    await shift_clock(runtime, timedelta(hours=20))
    await runtime.client.call(count, KEY)

    await pass_by(runtime, timedelta(hours=5))
    assert len(entries(store_url, runtime)) == 2
    await pass_by(runtime, timedelta(hours=18))
    assert len(entries(store_url, runtime)) == 2

    await pass_by(runtime, timedelta(hours=2))
    assert entries(store_url, runtime) == [[b"s"]]
    await runtime.client.call(count, KEY)
    assert index(store_url, runtime) == [KEY.encode()]


async def test_an_object_is_entered_once_and_not_with_each_commit(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by an owner that reads the object: what lies in its stream tells that it is in the index."""
    entered = Counter[str]()
    index_history = operations.index_history

    def noted(space: PartitionSpace, key_text: str, delay_ms: int) -> operations.Operation:
        entered[key_text] += 1
        return index_history(space, key_text, delay_ms)

    monkeypatch.setattr(operations, "index_history", noted)
    for _ in range(5):
        await runtime.client.call(count, KEY)
        await runtime.client.call(count_in_steps, KEY)
    partition = clerks(runtime)
    partition.evict(partition.lanes[KEY])
    for _ in range(5):
        await runtime.client.call(count, KEY)

    assert entered == {KEY: 1}


async def test_a_call_that_comes_while_its_object_is_shrunk_is_not_lost(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before the call is not written after it."""
    async with Runtime([clerk], store=store_url, namespace=namespace) as first:
        await first.client.call(count, KEY)
        await first.client.call(count, KEY)
    async with Runtime([clerk], store=store_url, namespace=namespace) as second:
        read_states = retention.read_states

        async def slowly(*arguments: typing.Any) -> typing.Any:
            states = await read_states(*arguments)
            assert await second.client.call(count, KEY) == 3
            partition = clerks(second)
            partition.evict(partition.lanes[KEY])
            return states

        monkeypatch.setattr(retention, "read_states", slowly)
        await shift_clock(second, AFTER_RETENTION)
        await histories(second).sweep()

        assert await second.client.call(read, KEY) == 3
        assert index(store_url, second) == [KEY.encode()]


async def test_history_that_is_written_while_its_object_is_looked_at_is_not_dropped(
    runtime: Runtime, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object in memory is shrunk only if nothing was written since it was found to be idle."""
    await runtime.client.call(count, KEY)
    read_last_writes = retention.read_last_writes

    async def slowly(*arguments: typing.Any) -> typing.Any:
        times = await read_last_writes(*arguments)
        await runtime.client.call(count, KEY)
        return times

    monkeypatch.setattr(retention, "read_last_writes", slowly)
    await shift_clock(runtime, AFTER_RETENTION)
    await histories(runtime).sweep()
    monkeypatch.setattr(retention, "read_last_writes", read_last_writes)

    assert len(entries(store_url, runtime)) == 2
    await pass_by(runtime, AFTER_RETENTION)
    assert entries(store_url, runtime) == [[b"s"]]


async def test_an_owner_that_reads_a_shrunk_object_enters_it_at_its_next_use(runtime: Runtime, store_url: str) -> None:
    """What lies in the store tells that it is in no index."""
    await runtime.client.call(count, KEY)
    await pass_by(runtime, AFTER_RETENTION)
    partition = clerks(runtime)
    partition.evict(partition.lanes[KEY])

    assert await runtime.client.call(read, KEY) == 1
    assert index(store_url, runtime) == []
    assert await runtime.client.call(count, KEY) == 2
    assert index(store_url, runtime) == [KEY.encode()]


async def test_an_object_that_is_called_while_it_is_shrunk_is_shrunk_again_later(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane that comes reads a history that is about to go, and must not think that the index knows of it."""
    async with Runtime([clerk], store=store_url, namespace=namespace) as first:
        await first.client.call(count, KEY)
        await first.client.call(count, KEY)
    async with Runtime([clerk], store=store_url, namespace=namespace) as second:
        shrink = operations.shrink
        called: list[asyncio.Task[int]] = []

        def and_called(
            space: PartitionSpace, key_text: str, values: dict[str, bytes], *_: Any
        ) -> list[operations.Operation]:
            # The lane is made in this turn, behind the commit and before it is applied.
            asyncio.get_running_loop().call_soon(clerks(second).lane, key_text)
            called.append(asyncio.ensure_future(second.client.call(count, KEY)))
            return shrink(space, key_text, values)

        monkeypatch.setattr(operations, "shrink", and_called)
        await shift_clock(second, AFTER_RETENTION)
        await histories(second).sweep()
        monkeypatch.setattr(operations, "shrink", shrink)

        assert await called[0] == 3
        assert index(store_url, second) == [KEY.encode()]
        await pass_by(second, AFTER_RETENTION)
        assert entries(store_url, second) == [[b"s"]]
        assert await second.client.call(read, KEY) == 3


async def test_a_paused_invocation_does_not_keep_the_history_of_its_object(runtime: Runtime, store_url: str) -> None:
    """Its own records lie elsewhere, and it goes on from them."""
    for _ in range(3):
        await runtime.client.call(count, KEY)
    with pytest.raises(InvocationPaused) as paused:
        await runtime.client.call(stumble, KEY)
    waiting = await runtime.client.send(count, KEY)
    await waiting.accepted(timeout=10)

    await pass_by(runtime, AFTER_RETENTION)

    assert entries(store_url, runtime) == [[b"s"]]
    gates[KEY] = asyncio.Event()
    assert paused.value.invocation_id is not None
    await runtime.client.resume(paused.value.invocation_id, by="tests", reason="the gate is open")
    assert await runtime.client.attach(paused.value.invocation_id, int).result(timeout=10) == 4
    assert await waiting.result(timeout=10) == 5
    del gates[KEY]


@pytest.mark.parametrize("is_resident", [True, False])
async def test_an_invocation_beside_its_lane_is_still_found_after_the_retention(
    runtime: Runtime, store_url: str, *, is_resident: bool
) -> None:
    """Nothing but the history of its object leads to it, so what is left of that names it until it ends."""
    client = runtime.client
    (partition,) = (each for each in runtime.worker.partitions if each.space.type_name == "Aside")
    await client.call(count_on, KEY)
    ids: list[str] = []
    for _ in range(2):
        with pytest.raises(InvocationPaused) as paused:
            await client.call(stumble_aside, KEY)
        ids.append(paused.value.invocation_id or "")
    for left in (ids, ids, ids[1:]):
        if not is_resident and KEY in partition.lanes:
            partition.evict(partition.lanes[KEY])
        await pass_by(runtime, AFTER_RETENTION)

        found = await client.inspect("Aside", KEY)
        assert [each.id for each in found.lane.parked] == left
        assert [event.what for event in found.timeline][:1] == [What.SHRUNK]
        assert plain(store_url, "XLEN", partition.space.object(KEY)) == 1
        await client.call(count_on, KEY)
        if left == ids and ids[0] not in gates and await client.call(count_on, KEY) > 4:
            gates[KEY] = asyncio.Event()
            await client.resume(ids[0], by="tests", reason="repaired")
            assert await client.attach(ids[0], int).result(timeout=10) == 1
            del gates[KEY]


async def test_what_can_not_be_read_is_left_alone_and_keeps_nobody_waiting(runtime: Runtime, store_url: str) -> None:
    """A foreign key and a state that is no state: both stay as they are, and others shrink."""
    for name in ("bad", "foreign", "good"):
        await runtime.client.call(count, f"acme/{name}")
    space, partition = space_of(runtime), clerks(runtime)
    for lane in list(partition.lanes.values()):
        partition.evict(lane)
    plain(store_url, "XADD", space.object("acme/bad"), "*", "d", b"\xc1")
    plain(store_url, "DEL", space.object("acme/foreign"))
    plain(store_url, "SET", space.object("acme/foreign"), "mine")

    await pass_by(runtime, AFTER_RETENTION * 2)

    assert entries(store_url, runtime, "acme/good") == [[b"s"]]
    assert len(entries(store_url, runtime, "acme/bad")) == 2
    assert plain(store_url, "GET", space.object("acme/foreign")) == b"mine"
    assert sorted(index(store_url, runtime)) == [b"acme/bad", b"acme/foreign"]


#: An ending of an invocation: brings it about, and is done once it is durable.
Ending = Callable[[Runtime, str], Awaitable[None]]


async def completed(runtime: Runtime, key: str) -> None:
    await runtime.client.call(count, key, idempotency_key="k")


async def completed_long(runtime: Runtime, key: str) -> None:
    await runtime.client.call(count_in_steps, key, idempotency_key="k")


async def failed(runtime: Runtime, key: str) -> None:
    with pytest.raises(InvocationFailed):
        await runtime.client.call(refuse, key, idempotency_key="k")


async def failed_long(runtime: Runtime, key: str) -> None:
    with pytest.raises(InvocationFailed):
        await runtime.client.call(refuse_after_a_step, key, idempotency_key="k")


async def sent(runtime: Runtime, key: str) -> None:
    handle = await runtime.client.send(count, key, idempotency_key="k")
    await handle.result(timeout=10)


async def replayed(runtime: Runtime, key: str) -> None:
    for _ in range(2):
        handle = await runtime.client.send(count, key, idempotency_key="k")
        await handle.result(timeout=10)


async def refused_key(runtime: Runtime, key: str) -> None:
    await runtime.client.call(take, key, 1, idempotency_key="k")
    handle = await runtime.client.send(take, key, 2, idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        await handle.result(timeout=10)


async def refused_argument(runtime: Runtime, key: str) -> None:
    handle = await runtime.client.send("Clerk", key, "take", "no number", idempotency_key="k")
    with pytest.raises((InvalidInput, InvocationFailed)):
        await handle.result(timeout=10)


async def refused_handler(runtime: Runtime, key: str) -> None:
    handle = await runtime.client.send("Clerk", key, "nonsense", idempotency_key="k")
    with pytest.raises(UnknownHandler):
        await handle.result(timeout=10)


async def refused_resumption(runtime: Runtime, key: str) -> None:
    handle = await runtime.client.send(count, key)
    await handle.result(timeout=10)
    with pytest.raises(CallError, match="not paused"):
        await runtime.client.resume(handle.id, by="tests", reason="why not")


async def resumed_and_ended(runtime: Runtime, key: str) -> None:
    with pytest.raises(InvocationPaused) as paused:
        await runtime.client.call(stumble, key, idempotency_key="k")
    gates[key] = asyncio.Event()
    assert paused.value.invocation_id is not None
    await runtime.client.resume(paused.value.invocation_id, by="tests", reason="the gate is open")
    await runtime.client.attach(paused.value.invocation_id, int).result(timeout=10)
    del gates[key]


async def signalled(runtime: Runtime, key: str) -> None:
    handle = await runtime.client.send(linger, key, idempotency_key="k")
    await handle.signal("go on", "now")
    await handle.result(timeout=10)


async def cancelled(runtime: Runtime, key: str) -> None:
    handle = await runtime.client.send(linger, key, idempotency_key="k")
    assert (await handle.cancel(timeout=10)).outcome == "cancelled"


async def cancelled_before_it_began(runtime: Runtime, key: str) -> None:
    handle = await runtime.client.send(count, key, idempotency_key="k", delay=AFTER_RETENTION * 10)
    assert (await handle.cancel(timeout=10)).outcome == "cancelled"


async def killed(runtime: Runtime, key: str) -> None:
    handle = await runtime.client.send(linger, key, idempotency_key="k")
    assert (await runtime.client.kill(handle.id, by="tests", reason="stuck", timeout=10)).outcome == "killed"


async def shared_through_the_inbox(runtime: Runtime, key: str) -> None:
    handle = await runtime.client.send(read, key)
    await handle.result(timeout=10)


async def undecodable_request(runtime: Runtime, key: str) -> None:
    store, space = runtime.client.store, space_of(runtime)
    await store.call("XADD", space.inbox, "*", "m", b"\xc1" + key.encode())
    await store.call("SPUBLISH", space.inbox_channel, "x")

    async def is_aside() -> bool:
        return await store.call("XLEN", space.undecodable) > 0

    await eventually_answers(is_aside, "it is kept aside")


#: For each kind of outcome that the journal has, the endings that leave it.
ENDINGS: dict[type, tuple[Ending, ...]] = {
    Succeeded: (
        completed,
        completed_long,
        sent,
        resumed_and_ended,
        signalled,
        shared_through_the_inbox,
        undecodable_request,
    ),
    Rejected: (failed, failed_long),
    Refused: (refused_key, refused_argument, refused_handler, refused_resumption),
    Replayed: (replayed,),
    Stopped: (cancelled, cancelled_before_it_began, killed),
}


def test_every_outcome_has_an_ending() -> None:
    """One that is added later is not forgotten here."""
    assert set(ENDINGS) == set(typing.get_args(Outcome))


def of_objects(store_url: str, runtime: Runtime) -> set[bytes]:
    """Return the keys of the partition but those that every partition has, by what follows the tag."""
    tag = space_of(runtime).tag
    left = {key.removeprefix(tag) for key in plain(store_url, "KEYS", f"{tag.decode()}*")}
    return left - {b":owner", b":inbox"}


@pytest.mark.parametrize(
    "ending", [each for several in ENDINGS.values() for each in several], ids=lambda each: each.__name__
)
async def test_after_the_retention_nothing_is_left_of_an_invocation_but_its_tombstone(
    runtime: Runtime, store_url: str, ending: Ending
) -> None:
    """However it ended: its object's state stays, its idempotency key is known for a while, and then nothing is."""
    await ending(runtime, KEY)
    partition = clerks(runtime)
    await eventually(lambda: partition.is_quiet, "everything is written")

    await pass_by(runtime, AFTER_RETENTION)
    left = of_objects(store_url, runtime)
    assert {name[:3] for name in left} <= {b":o:", b":k:", b":ba"}
    assert all(names == [b"s"] for names in entries(store_url, runtime))

    await pass_by(runtime, AFTER_TOMBSTONES)
    assert of_objects(store_url, runtime) <= {b":o:" + KEY.encode()}


async def test_undecodable_requests_are_kept_in_bounded_number_and_not_for_ever(
    runtime: Runtime, store_url: str
) -> None:
    """The newest ones stay for people to look at."""
    partition = clerks(runtime)
    for number in range(450):
        partition.writer.commit(Commit([operations.keep_undecodable(b"%d" % number)], lambda _, __: None))
    await eventually(lambda: partition.writer.is_idle, "all of them are written")

    kept = [fields[b"m"] for _, fields in plain(store_url, "XRANGE", space_of(runtime).undecodable, "-", "+")]
    assert kept == [b"%d" % number for number in range(250, 450)]
    await shift_clock(runtime, timedelta(days=31))
    assert plain(store_url, "EXISTS", space_of(runtime).undecodable) == 0


async def test_a_long_history_is_trimmed_by_bounded_work(runtime: Runtime, store_url: str) -> None:
    """A trim of very many entries is spread over several; each leaves whole what is younger than the retention."""
    partition, space = clerks(runtime), space_of(runtime)
    finished = Finished(b"i" * 16, "count", 1, None, "c")

    def write(count: int) -> None:
        change = StateChange({"count": b"\x01"})
        for _ in range(count):
            commit = [operations.finish_short(space, KEY, finished, change)]
            partition.writer.commit(Commit(commit, lambda _, __: None))

    async def trim() -> int:
        partition.writer.commit(Commit([operations.trim(space, KEY, 86_400_000)], lambda _, __: None))
        await eventually(lambda: partition.writer.is_idle, "it is trimmed")
        return plain(store_url, "XLEN", space.object(KEY))

    write(7_000)
    await eventually(lambda: partition.writer.is_idle, "it is written")
    await shift_clock(runtime, AFTER_RETENTION)
    write(100)
    lengths = [await trim() for _ in range(5)]

    assert 5_000 <= lengths[0] <= 5_200
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 100


async def test_the_trims_of_one_batch_together_are_of_bounded_work(runtime: Runtime, store_url: str) -> None:
    """Many long histories may be trimmed in the same call; what it leaves goes with the trims to come."""
    partition, space = clerks(runtime), space_of(runtime)
    finished = Finished(b"i" * 16, "count", 1, None, "c")
    keys = [f"acme/long-{number}" for number in range(4)]

    async def commit(each: Callable[[str], operations.Operation], times: int = 1) -> int:
        for _ in range(times):
            partition.writer.commit(Commit([each(key) for key in keys], lambda _, __: None))
        await eventually(lambda: partition.writer.is_idle, "it is written")
        return sum(plain(store_url, "XLEN", space.object(key)) for key in keys)

    written = await commit(lambda key: operations.finish_short(space, key, finished, StateChange({})), 1_500)
    await shift_clock(runtime, AFTER_RETENTION)
    lengths = [written] + [await commit(lambda key: operations.trim(space, key, 86_400_000)) for _ in range(5)]

    assert written == 6_000
    assert 1_500 < max(before - after for before, after in itertools.pairwise(lengths)) <= 2_000
    assert lengths[-1] == 0
