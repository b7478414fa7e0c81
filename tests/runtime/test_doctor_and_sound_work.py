"""What the doctor and its repairs leave as it is: work that is sound, however it looks for a moment."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from keylane import Client, Fenced, ObjectContext, RetryableError, RetryPolicy, Runtime, VirtualObject
from keylane.journal import operations
from keylane.journal.batch import Commit
from keylane.journal.codec import pack, unpack
from keylane.journal.doctor import partition_checks, queue_checks
from keylane.journal.doctor.repairing import repair
from keylane.journal.inbox import submit
from keylane.journal.key import format_id, new_invocation_id, parse_id
from keylane.journal.outcomes import IdempotencyEntry, Succeeded, decode_outcome
from keylane.journal.records import Accepted
from keylane.journal.repair_order import RepairOrder
from keylane.journal.requests import Request, RequestKind
from keylane.journal.tenure import Tenure
from keylane.runtime.acceptances import Acceptances
from keylane.runtime.in_hand import InHand
from keylane.runtime.lane_mending import LaneMending
from keylane.testing import shift_clock
from tests.faults.harness import eventually, eventually_answers
from tests.runtime.ward import (
    KEY,
    OWNER,
    PAUSE_SECONDS,
    Ward,
    a_send,
    add,
    fail_once,
    gate_of,
    hold,
    look,
    opened,
    orphaned,
    retry_soon,
    settings,
)

pytestmark = pytest.mark.anyio

PASSED = timedelta(seconds=PAUSE_SECONDS + 1)


async def test_a_repair_of_what_is_sound_does_nothing(ward: Ward, tmp_path: Path) -> None:
    """An order may come late, or be made of old findings."""
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        handle = await runtime.client.send(retry_soon, KEY, str(gate))
        raw_id = await ward.waits(handle)
        await ward.redis("ZADD", ward.space.due, 9e15, new_invocation_id())
        old = await ward.sweep()
        await repair(ward.store, old, "a test")
        again = await repair(ward.store, old, "a test")

        assert [each.did for each in again] == [()]
        assert await ward.redis("LRANGE", ward.space.lane(KEY), 0, -1) == [raw_id]
        gate.touch()
        assert await handle.result(timeout=10) == "went on"


async def test_what_began_a_moment_ago_is_not_taken_for_an_orphan(
    ward: Ward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been taken in and have ended while its lane was looked at; an older one can't have."""
    gate = gate_of(tmp_path)
    (orphan,) = await orphaned(ward, gate)
    monkeypatch.setattr("keylane.runtime.lane_mending.YOUNG_MS", 60_000)
    async with ward.worker():
        assert await repair(ward.store, await ward.sweep(), "a test") != []
        assert await ward.redis("EXISTS", ward.space.lane(KEY)) == 0

        monkeypatch.setattr("keylane.runtime.lane_mending.YOUNG_MS", 0)
        await ward.repaired()
        assert await ward.redis("LRANGE", ward.space.lane(KEY), 0, -1) == [parse_id(orphan.id).raw]
        gate.touch()


async def test_an_end_while_an_idempotency_key_is_looked_at_is_no_damage(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is read once more, after its invocation was seen to have ended."""
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY, idempotency_key="one")
        (day,) = await ward.redis("KEYS", ward.space.tag + b":k:*")
        digest, ended = await ward.redis("HGETALL", day)
        entry = IdempotencyEntry.decode(ended)
        opened_entry = IdempotencyEntry(entry.invocation, entry.fingerprint, entry.raw_digest, "?", 1).encode()
        await ward.redis("HSET", day, digest, opened_entry)
        look = queue_checks._over

        async def ends_meanwhile(*arguments: Any) -> list[bytes]:
            await ward.redis("HSET", day, digest, ended)
            return await look(*arguments)

        monkeypatch.setattr(queue_checks, "_over", ends_meanwhile)
        assert await ward.kinds() == []


def a_type(on_paused: Literal["hold", "skip"], failing: Path) -> VirtualObject:
    """Return a type whose handler waits for a file, and is paused behind one of them."""
    made = VirtualObject("Job", owner=OWNER, partitions=1, on_paused=on_paused)

    @made.handler(retry=RetryPolicy(first=timedelta(milliseconds=1), attempts=1))
    async def wait_for(ctx: ObjectContext, path: str) -> None:  # pyright: ignore[reportUnusedFunction]
        while not Path(path).exists():
            await anyio.sleep(0.01)
        if path == str(failing):
            raise ValueError("it never works")

    return made


async def test_what_a_type_lets_pass_leaves_its_lane_runnable(ward: Ward, tmp_path: Path) -> None:
    """Its holder was parked while the type still held its lanes; those behind it are work for the next owner."""
    failing, gate = gate_of(tmp_path), gate_of(tmp_path)
    where: dict[str, Any] = {"store": ward.url, "namespace": ward.store.namespace, "durability": "server"}
    async with Runtime([a_type("hold", failing)], settings=settings(), **where) as runtime:
        first = await runtime.client.send("Job", KEY, "wait_for", str(failing))
        await ward.began(first)
        behind = await ward.began(await runtime.client.send("Job", KEY, "wait_for", str(gate)))
        failing.touch()
        await ward.is_paused(runtime, first)

    async with Runtime([a_type("skip", failing)], settings=settings(), **where) as runtime:
        # Whatever brings the lane into memory lets its holder pass.
        await runtime.client.send("Job", KEY, "wait_for", str(gate))

        async def has_passed() -> bool:
            return (await ward.redis("LINDEX", ward.space.lane(KEY), 0)) == behind

        await eventually_answers(has_passed, "the parked one has left the lane")
        # The next call has made the lane runnable as well, which is not what it is about.
        assert await ward.kinds() == []
        gate.touch()


async def test_a_worker_that_is_fenced_in_the_middle_of_a_repair_goes_on(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order lies in the inbox for whoever owns the partition then."""
    real, failures = LaneMending.mend, [Fenced()]

    async def fenced_once(*arguments: Any) -> list[str]:
        if failures:
            raise failures.pop()
        return await real(*arguments)

    monkeypatch.setattr(LaneMending, "mend", fenced_once)
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY)
        await ward.redis("SADD", ward.space.runnable, "acme/empty")
        monkeypatch.setattr("keylane.journal.doctor.repairing.ANSWER_SECONDS", 0.3)
        assert [each.waits for each in await repair(ward.store, await ward.sweep(), "a test")] == [True]
        assert await runtime.client.call(add, KEY) == 2

    async def is_mended() -> bool:
        return not await ward.redis("EXISTS", ward.space.runnable)

    async with ward.worker():
        await eventually_answers(is_mended, "the next owner has done it")


async def test_an_inbox_that_is_read_again_does_not_take_its_own_order_for_another(ward: Ward) -> None:
    """The order lies in it until it has been carried out."""
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY)
        order = RepairOrder("a test", reads_inbox=True)
        request = Request(RequestKind.REPAIR, new_invocation_id(), "", "", order.encode())
        await submit(ward.store, ward.space, request)

        async def is_answered() -> object:
            return await ward.redis("GET", ward.space.result(request.invocation))

        await eventually_answers(is_answered, "the order is carried out")
        outcome = decode_outcome(await ward.redis("GET", ward.space.result(request.invocation)))
        assert isinstance(outcome, Succeeded)
        assert unpack(outcome.result) == []
        assert await ward.redis("XLEN", ward.space.inbox) == 0


async def test_a_lane_that_waits_for_a_due_time_need_not_be_runnable(ward: Ward, tmp_path: Path) -> None:
    """Its due time brings it to its next owner."""
    async with ward.worker() as runtime:
        handle = await runtime.client.send(fail_once, KEY, str(tmp_path / "trail"))
        await ward.waits(handle)
        await ward.redis("SREM", ward.space.runnable, KEY)
        assert await ward.kinds() == []
    async with ward.worker() as runtime:
        await shift_clock(runtime, PASSED)
        assert await runtime.client.attach(handle.id).result(timeout=10) == "went on"


async def test_what_loses_its_records_while_it_waits_in_a_lane_is_taken_out(ward: Ward, tmp_path: Path) -> None:
    """Out of its owner's memory too, and those behind it go on."""
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        first = await runtime.client.send(hold, KEY, str(gate))
        lost = await ward.began(await runtime.client.send(hold, KEY, str(gate_of(tmp_path))))
        last = await runtime.client.send(add, KEY)
        kept = [await ward.began(first), await ward.began(last)]
        await ward.redis("DEL", ward.space.invocation(lost))

        assert await ward.kinds() == ["lane-entry-orphaned"]
        await ward.repaired()
        assert await ward.redis("LRANGE", ward.space.lane(KEY), 0, -1) == kept
        gate.touch()
        assert await last.result(timeout=10) == 1


async def test_a_call_of_a_shared_handler_may_lie_in_the_inbox_for_long(
    ward: Ward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken out when its handler has ended."""
    monkeypatch.setattr(partition_checks, "STUCK_MS", 0)
    gate = gate_of(tmp_path)
    async with (
        ward.worker() as runtime,
        Client(ward.url, namespace=ward.store.namespace) as client,
        anyio.create_task_group() as tasks,
    ):
        await runtime.client.call(add, KEY)
        tasks.start_soon(client.call, look, KEY, str(gate))

        async def is_there() -> object:
            return await ward.redis("XLEN", ward.space.inbox)

        await eventually_answers(is_there, "the request is there")
        assert await ward.kinds() == []
        gate.touch()


async def test_a_namespace_may_have_any_character(ward: Ward) -> None:
    """Also those that stand for others in a pattern."""
    async with opened(ward.url, f"{ward.store.namespace}*[x]?\\") as other, other.worker() as runtime:
        await runtime.client.call(add, KEY)
        await other.redis("SET", other.space.tag + b":more", "x")

        assert await other.kinds() == ["foreign-key"]
        assert (await other.sweep(type_name="Job")).looked.keys > 1


def has_too_much(hand: InHand, count: int) -> bool:
    del hand, count
    return True


async def test_an_inbox_is_read_again_no_further_than_it_was_read(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an owner has not come to, because it has much in hand, is not refused for that."""
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY)
        (partition,) = runtime.worker.partitions
        monkeypatch.setattr(InHand, "reaches", has_too_much)
        request = a_send("add")
        await submit(ward.store, ward.space, request)

        assert await runtime.worker._inboxes.read_again(partition) == []
        assert await ward.redis("XLEN", ward.space.inbox) == 1
        monkeypatch.undo()
        assert await runtime.client.attach(format_id("Job", 0, request.invocation)).result(timeout=10) == 2


async def test_orphans_of_one_millisecond_keep_the_order_of_their_objects_history(
    ward: Ward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their ids were made by their callers and say nothing of it."""
    monkeypatch.setattr("keylane.runtime.lane_mending.YOUNG_MS", 0)
    gate, ids = gate_of(tmp_path), [b"\xff" * 16, b"\x7f" * 16, b"\x01" * 16]
    await ward.abandoned()
    writes = [
        operation
        for raw_id in ids
        for operation in operations.accept(ward.space, Accepted(raw_id, "hold", 1, KEY, pack(str(gate))))
    ]
    epoch, token = await ward.redis("HMGET", ward.space.owner, "epoch", "token")
    writer = ward.store.writer(ward.space, Tenure(int(epoch), token))
    told: list[BaseException | None] = []
    writer.commit(Commit(writes, lambda _, error: told.append(error)))
    await eventually(lambda: told, "they are written")
    assert told == [None]
    await ward.redis("DEL", ward.space.lane(KEY), ward.space.runnable)
    async with ward.worker() as runtime:
        # Its answer says that the partition has a new owner.
        await runtime.client.call(add, "acme/other", timeout=10)
        await ward.repaired()

        assert await ward.redis("LRANGE", ward.space.lane(KEY), 0, -1) == ids
        gate.touch()


async def test_a_lane_keeps_its_order_in_the_store_whenever_what_is_in_it_is_taken_in(
    ward: Ward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduled call may come to the end while one before it is not yet taken in; another owner keeps the order."""

    def never(_: Acceptances) -> None:
        """Leave it to the one who asks for it."""

    monkeypatch.setattr(Acceptances, "accept_late_ones", never)
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(runtime.client.call, hold, KEY, str(gate))
        (partition,) = runtime.worker.partitions
        await eventually(lambda: partition.lane(KEY).running, "the first one runs")
        scheduled = await runtime.client.send(add, KEY, delay=timedelta(milliseconds=1))
        raw_id = parse_id(scheduled.id).raw

        async def is_released() -> bool:
            return await ward.redis("LRANGE", ward.space.lane(KEY), 0, -1) == [raw_id]

        await eventually_answers(is_released, "the scheduled one is in the lane")
        first = partition.lane(KEY).queue[0]
        await runtime.worker._acceptances.accept_now(partition, first.raw_id)

        assert await ward.redis("LRANGE", ward.space.lane(KEY), 0, -1) == [first.raw_id, raw_id]
        assert await ward.kinds() == []
        gate.touch()
        assert await scheduled.result(timeout=10) == 1


async def test_what_is_resumed_goes_on_behind_what_has_begun(ward: Ward, tmp_path: Path) -> None:
    """An invocation between two attempts holds its lane: another one in the middle of it would see half of its work."""
    gate = gate_of(tmp_path)
    where: dict[str, Any] = {"store": ward.url, "namespace": ward.store.namespace, "durability": "server"}
    made = VirtualObject("Job", owner=OWNER, partitions=1, on_paused="skip")

    @made.handler(retry=RetryPolicy(first=timedelta(milliseconds=1), attempts=1))
    async def park_once(ctx: ObjectContext) -> None:  # pyright: ignore[reportUnusedFunction]
        raise ValueError("it never works")

    @made.handler
    async def retry(ctx: ObjectContext) -> str:  # pyright: ignore[reportUnusedFunction]
        if not gate.exists():
            raise RetryableError("not yet", retry_after=PAUSE_SECONDS)
        return "went on"

    async with Runtime([made], settings=settings(), **where) as runtime:
        parked = await runtime.client.send("Job", KEY, "park_once")
        await ward.is_paused(runtime, parked)
        retrying = await runtime.client.send("Job", KEY, "retry")
        raw_id = await ward.waits(retrying)
        await runtime.client.resume(parked.id, reason="a test", by="a test")

        assert await ward.redis("LRANGE", ward.space.lane(KEY), 0, -1) == [raw_id, parse_id(parked.id).raw]
        assert await ward.kinds() == []
        gate.touch()
        await shift_clock(runtime, PASSED)
        assert await retrying.result(timeout=10) == "went on"
