"""What is kept of invocations of every outcome once their retention has passed."""

from __future__ import annotations

import asyncio
import itertools
import typing
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest

from keylane import (
    CallError,
    IdempotencyConflict,
    InvalidInput,
    InvocationFailed,
    InvocationPaused,
    Runtime,
    UnknownHandler,
)
from keylane.journal import operations
from keylane.journal.batch import Commit
from keylane.journal.operations import StateChange
from keylane.journal.outcomes import Outcome, Refused, Rejected, Replayed, Stopped, Succeeded
from keylane.journal.records import Finished
from keylane.testing import shift_clock
from tests.faults.harness import eventually, eventually_answers
from tests.plain import plain
from tests.runtime.clerks import (
    AFTER_RETENTION,
    KEY,
    aside,
    clerk,
    clerks,
    count,
    count_in_steps,
    entries,
    gates,
    linger,
    pass_by,
    read,
    refuse,
    refuse_after_a_step,
    space_of,
    stumble,
    take,
)

pytestmark = pytest.mark.anyio

AFTER_TOMBSTONES = timedelta(days=32)


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime([clerk, aside], store=store_url, namespace=namespace) as runtime:
        yield runtime


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
