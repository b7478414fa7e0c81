"""Each structure damaged by hand: one sweep of the doctor names it, a repair restores it, and work goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, cast

import anyio
import pytest
import redis

from keylane import Client, Fenced, ObjectContext, RetryableError, RetryPolicy, Runtime, StoreUnavailable, VirtualObject
from keylane.journal import operations
from keylane.journal.batch import Commit
from keylane.journal.codec import pack, unpack
from keylane.journal.doctor import invocation_checks, partition_checks, queue_checks
from keylane.journal.doctor.repairing import repair
from keylane.journal.inbox import submit
from keylane.journal.key import format_id, new_invocation_id, parse_id
from keylane.journal.outcomes import IdempotencyEntry, Succeeded, decode_outcome
from keylane.journal.records import Accepted
from keylane.journal.repair_order import RepairOrder
from keylane.journal.requests import Request, RequestKind
from keylane.journal.tenure import Tenure
from keylane.runtime.in_hand import InHand
from keylane.runtime.lane_mending import LaneMending
from keylane.testing import shift_clock
from tests.faults.harness import StoreServer, eventually, eventually_answers
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
    park,
    retry_soon,
    settings,
)

pytestmark = pytest.mark.anyio

PASSED = timedelta(seconds=PAUSE_SECONDS + 1)


@pytest.fixture
async def ward(store_url: str, namespace: str) -> AsyncIterator[Ward]:
    async with opened(store_url, namespace) as ward:
        yield ward


async def test_nothing_is_found_where_nothing_is_wrong(ward: Ward, tmp_path: Path) -> None:
    """With work of every kind: ended, waiting for an attempt, paused, and queued behind it."""
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY, idempotency_key="one")
        await ward.waits(await runtime.client.send(fail_once, "acme/waits", str(tmp_path / "trail")))
        paused = await runtime.client.send(park, "acme/paused")
        await ward.is_paused(runtime, paused)
        await ward.began(await runtime.client.send(add, "acme/paused"))

        report = await ward.sweep()

    assert report.findings == ()
    assert report.is_healthy
    assert dict(report.looked.open) == {"waiting": 1, "paused": 1, "queued": 1}
    assert report.looked.is_whole


async def test_a_deleted_due_time_is_named_and_entered_again(ward: Ward, tmp_path: Path) -> None:
    """At the time that the records name; then the attempt runs."""
    async with ward.worker() as runtime:
        handle = await runtime.client.send(fail_once, KEY, str(tmp_path / "trail"))
        raw_id = await ward.waits(handle)
        before = float(await ward.redis("ZSCORE", ward.space.due, raw_id))
        await ward.redis("ZREM", ward.space.due, raw_id)

        assert await ward.kinds() == ["due-time-missing"]
        assert await ward.repaired()
        assert abs(float(await ward.redis("ZSCORE", ward.space.due, raw_id)) - before) < 1000
        await shift_clock(runtime, PASSED)
        assert await handle.result(timeout=10) == "went on"


async def test_an_attempt_that_never_began_is_doubtful_and_its_owner_is_asked(
    ward: Ward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its time has passed, the store can't tell it from one that runs; a repair lets its owner tell."""
    monkeypatch.setattr(invocation_checks, "DOUBTFUL_MS", 0)
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        handle = await runtime.client.send(fail_once, KEY, str(tmp_path / "trail"))
        raw_id = await ward.waits(handle)
        await ward.redis("ZREM", ward.space.due, raw_id)
        await shift_clock(runtime, PASSED)

        report = await ward.sweep()
        assert report.is_healthy
        assert [each.invocation for each in report.doubtful] == [handle.id]
        await repair(ward.store, report, "a test")
        assert await handle.result(timeout=10) == "went on"

        # One that does run is left alone.
        running = await runtime.client.send(hold, "acme/runs", str(gate))
        await ward.began(running)
        assert await repair(ward.store, await ward.sweep(), "a test") == []
        gate.touch()
        await running.result(timeout=10)


async def test_a_dropped_lease_is_named_and_given_back(ward: Ward) -> None:
    """Without it no worker can take the partition over from an owner who is gone."""
    await ward.abandoned()
    await ward.redis("HDEL", ward.space.owner, "lease")
    async with ward.worker() as runtime:
        handle = await runtime.client.send(add, KEY)
        report = await ward.sweep()
        assert [finding.kind.value for finding in report.findings] == [
            "owner-broken",
            "partition-without-owner",
        ]
        assert "stood still" in report.findings[1].cause

        done = await repair(ward.store, report, "a test")

        assert done[0].did == ("gave its owner hash back: lease",)
        assert await handle.result(timeout=10) == 1
        assert await ward.kinds() == []


@pytest.mark.parametrize("field", ["batch", "serial", "token"])
async def test_a_tenure_that_has_lost_its_numbers_ends_and_the_partition_is_owned_anew(ward: Ward, field: str) -> None:
    """Its owner's next write is refused, and no write is applied twice or out of order."""
    async with ward.worker() as runtime:
        assert await runtime.client.call(add, KEY) == 1
        await ward.redis("HDEL", ward.space.owner, field)
        report = await ward.sweep()
        kinds = [finding.kind.value for finding in report.findings]
        # Without its token an owner is fenced at its next renewal, and the next one may be there already.
        assert kinds == ["owner-broken"] or (field == "token" and kinds == [])
        await repair(ward.store, report, "a test")

        assert await runtime.client.call(add, KEY, timeout=10) == 2
        # To its owner the store has lost writes that it had confirmed, which stays said for a while.
        assert await ward.kinds() in ([], ["work-in-doubt"])


async def test_an_epoch_that_is_no_number_is_repaired_and_keeps_nobody_from_the_other_partitions(ward: Ward) -> None:
    """Who wants to own it can't say whether it moved on."""
    await ward.abandoned()
    await ward.redis("HSET", ward.space.owner, "epoch", "many")
    async with ward.worker() as runtime:
        report = await ward.sweep()
        assert [finding.kind.value for finding in report.findings] == ["owner-broken"]
        await repair(ward.store, report, "a test")
        assert await runtime.client.call(add, KEY, timeout=10) == 1
        assert await ward.kinds() == []


async def test_a_lost_lane_is_written_anew_from_its_owners_memory(ward: Ward, tmp_path: Path) -> None:
    """While what is in it goes on running."""
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        first = await runtime.client.send(hold, KEY, str(gate))
        second = await runtime.client.send(add, KEY)
        ids = [await ward.began(first), await ward.began(second)]
        await ward.redis("DEL", ward.space.lane(KEY))
        await ward.redis("SREM", ward.space.runnable, KEY)

        assert await ward.kinds() == ["invocation-without-lane", "invocation-without-lane"]
        assert await ward.repaired()
        assert await ward.redis("LRANGE", ward.space.lane(KEY), 0, -1) == ids
        assert await ward.redis("SISMEMBER", ward.space.runnable, KEY) == 1
        gate.touch()
        assert await second.result(timeout=10) == 1
        assert await ward.kinds() == []


async def orphaned(ward: Ward, *gates: Path) -> list[Any]:
    """Leave invocations open without an owner, and take their lane away."""
    async with ward.worker() as runtime:
        handles = [await runtime.client.send(hold, KEY, str(gate)) for gate in gates]
        for handle in handles:
            await ward.began(handle)
    await ward.redis("DEL", ward.space.lane(KEY))
    await ward.redis("SREM", ward.space.runnable, KEY)
    return handles


async def test_an_orphaned_lane_is_taken_up_by_an_owner_that_never_saw_it(
    ward: Ward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of intake, ahead of what came later."""
    monkeypatch.setattr("keylane.runtime.lane_mending.YOUNG_MS", 0)
    gate, later = gate_of(tmp_path), gate_of(tmp_path)
    first, second = await orphaned(ward, gate, gate)
    async with ward.worker() as runtime:
        newcomer = await runtime.client.send(hold, KEY, str(later))
        raw_id = await ward.began(newcomer)
        assert await ward.kinds() == ["invocation-without-lane", "invocation-without-lane"]
        done = await ward.repaired()

        ids = [parse_id(handle.id).raw for handle in (first, second)]
        # What runs stays where it is.
        assert await ward.redis("LRANGE", ward.space.lane(KEY), 0, -1) == [raw_id, *ids]
        assert sum("took" in sentence for each in done for sentence in each.did) == 2
        gate.touch()
        later.touch()
        for handle in (first, second):
            assert await runtime.client.attach(handle.id).result(timeout=10) == "went on"
        assert await ward.kinds() == []


async def test_a_lane_that_is_not_runnable_is_named_and_its_work_goes_on(ward: Ward, tmp_path: Path) -> None:
    """A new owner reads the runnable lanes only."""
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        handle = await runtime.client.send(hold, KEY, str(gate))
        await ward.began(handle)
    await ward.redis("SREM", ward.space.runnable, KEY)
    gate.touch()
    async with ward.worker() as runtime:
        assert await ward.kinds() == ["lane-not-runnable"]
        await ward.repaired()
        assert await runtime.client.attach(handle.id).result(timeout=10) == "went on"


async def test_a_runnable_lane_without_work_is_taken_out(ward: Ward) -> None:
    """Each owner would read it for nothing."""
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY)
        await ward.redis("SADD", ward.space.runnable, "acme/empty")

        assert await ward.kinds() == ["runnable-without-work"]
        await ward.repaired()
        assert await ward.redis("EXISTS", ward.space.runnable) == 0


@pytest.mark.parametrize("times", [1, 2])
async def test_entries_of_a_lane_that_stand_for_nothing_are_taken_out(ward: Ward, tmp_path: Path, times: int) -> None:
    """Those of invocations that are gone, and second ones of invocations that are open."""
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        handle = await runtime.client.send(hold, KEY, str(gate))
        raw_id = await ward.began(handle)
        stray = new_invocation_id() if times == 1 else raw_id
        await ward.redis("RPUSH", ward.space.lane(KEY), stray)

        assert await ward.kinds() == ["lane-entry-orphaned" if times == 1 else "lane-entry-repeated"]
        await ward.repaired()
        assert await ward.redis("LRANGE", ward.space.lane(KEY), 0, -1) == [raw_id]
        gate.touch()
        assert await handle.result(timeout=10) == "went on"


async def test_an_owner_that_reads_a_lane_takes_out_what_has_ended(ward: Ward) -> None:
    """Such an entry would stand in the way of all behind it."""
    async with ward.worker() as runtime:
        ended = await runtime.client.send(add, "acme/other")
        await ended.result(timeout=10)
    await ward.redis("RPUSH", ward.space.lane(KEY), parse_id(ended.id).raw, new_invocation_id())
    await ward.redis("SADD", ward.space.runnable, KEY)
    async with ward.worker() as runtime:
        assert await runtime.client.call(add, KEY, timeout=10) == 1
        assert await ward.kinds() == []


async def test_a_due_time_of_nobody_is_taken_out(ward: Ward) -> None:
    """However far it is away."""
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY)
        await ward.redis("ZADD", ward.space.due, 9e15, new_invocation_id())

        assert await ward.kinds() == ["due-time-orphaned"]
        await ward.repaired()
        assert await ward.redis("EXISTS", ward.space.due) == 0


async def test_a_request_that_lies_in_the_inbox_twice_is_named_and_runs_once(ward: Ward) -> None:
    """Nobody owns the partition; its next owner takes it in once, and what was asked for is done by then."""
    await ward.redis("HSET", f"{{{ward.store.namespace}}}:types", "Job", 1)
    request = a_send("add")
    for _ in range(2):
        await ward.redis("XADD", ward.space.inbox, "*", "m", request.encode())

    report = await ward.sweep()
    done = await repair(ward.store, report, "a test")

    assert [finding.kind.value for finding in report.findings] == [
        "inbox-entry-repeated",
        "partition-without-owner",
        "type-without-worker",
    ]
    assert [each.waits for each in done] == [True]
    async with ward.worker() as runtime:
        invocation = format_id("Job", 0, request.invocation)
        assert await runtime.client.attach(invocation).result(timeout=10) == 1
        assert await runtime.client.call(add, KEY) == 2
        assert await ward.kinds() == []


@pytest.mark.one_server  # it writes beside the store's own connections
async def test_a_request_that_a_live_owner_has_passed_over_is_named_and_taken_in(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would lie there until the next owner comes."""
    monkeypatch.setattr(partition_checks, "STUCK_MS", 0)
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY)
        (partition,) = runtime.worker.partitions
        request = a_send("add")
        # Not a turn of the loop passes in between, so that its owner has no chance to see it.
        client = cast("Any", redis.Redis).from_url(ward.store.url)
        partition.inbox.cursor = client.execute_command("XADD", ward.space.inbox, "*", "m", request.encode())
        client.close()

        assert await ward.kinds() == ["inbox-entry-stuck"]
        done = await ward.repaired()

        assert "passed over" in done[0].did[0]
        invocation = format_id("Job", 0, request.invocation)
        assert await runtime.client.attach(invocation).result(timeout=10) == 2


async def test_what_would_be_kept_for_ever_gets_its_retention(ward: Ward, tmp_path: Path) -> None:
    """Results, the records of what has ended, and the idempotency keys of a day."""
    async with ward.worker() as runtime:
        trail = tmp_path / "trail"
        trail.touch()
        gate = gate_of(tmp_path)
        handle = await runtime.client.send(hold, KEY, str(gate), idempotency_key="one")
        raw_id = await ward.began(handle)
        gate.touch()
        await handle.result(timeout=10)
        (day,) = await ward.redis("KEYS", ward.space.tag + b":k:*")
        kept = [ward.space.invocation(raw_id), ward.space.result(raw_id), day]
        for key in kept:
            assert await ward.redis("PERSIST", key) == 1

        assert await ward.kinds() == [
            "invocation-never-expires",
            "result-never-expires",
            "idempotency-never-expires",
        ]
        await ward.repaired()
        assert [await ward.redis("PTTL", key) > 0 for key in kept] == [True] * 3


async def test_an_idempotency_key_that_missed_the_end_is_told_of_it(ward: Ward) -> None:
    """Its second call is answered as the first one was."""
    async with ward.worker() as runtime:
        assert await runtime.client.call(add, KEY, idempotency_key="one") == 1
        (day,) = await ward.redis("KEYS", ward.space.tag + b":k:*")
        digest, data = await ward.redis("HGETALL", day)
        mark = IdempotencyEntry.decode(data)
        undone = IdempotencyEntry(mark.invocation, mark.fingerprint, mark.raw_digest, "?", mark.accepted_at_ms)
        await ward.redis("HSET", day, digest, undone.encode())

        assert await ward.kinds() == ["idempotency-unsettled"]
        await ward.repaired()
        assert await ward.redis("HGET", day, digest) == data
        assert await runtime.client.call(add, KEY, idempotency_key="one") == 1


async def test_what_has_no_safe_repair_is_named_with_a_remedy(ward: Ward) -> None:
    """Undecodable requests, foreign keys and wrong types, garbage in a hash: nothing of it is touched."""
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY, idempotency_key="one")
        await ward.redis("XADD", ward.space.inbox, "*", "m", b"\xc1")
        tag = ward.space.tag
        await ward.redis("SET", tag + b":more", "x")
        await ward.redis("SET", tag + b":o:acme/list", "x")
        (day,) = await ward.redis("KEYS", tag + b":k:*")
        await ward.redis("HSET", day, b"d" * 16, "garbage")

        async def is_aside() -> object:
            return await ward.redis("XLEN", ward.space.undecodable)

        await eventually_answers(is_aside, "the garbage is put aside")
        report = await ward.sweep()

        assert [finding.kind.value for finding in report.findings] == [
            "undecodable-kept",
            "idempotency-unreadable",
            "wrong-type",
            "foreign-key",
        ]
        assert all(finding.remedy for finding in report.findings)
        assert await repair(ward.store, report, "a test") == []


async def test_a_pause_needs_somebody_by_name(ward: Ward) -> None:
    """Else nobody will ever resume it."""
    async with ward.worker() as runtime:
        await ward.is_paused(runtime, await runtime.client.send(park, KEY))
        await ward.redis("HDEL", f"{{{ward.store.namespace}}}:owners", "Job")
        assert await ward.kinds() == ["paused-without-owner"]
        assert (await ward.sweep()).held_lanes[0].in_charge is None
        await ward.redis("HSET", f"{{{ward.store.namespace}}}:owners", "Job", OWNER)
        assert await ward.kinds() == []


async def test_a_result_of_an_open_invocation_is_named(ward: Ward, tmp_path: Path) -> None:
    """Callers would believe it."""
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        raw_id = await ward.began(await runtime.client.send(hold, KEY, str(gate)))
        await ward.redis("SET", ward.space.result(raw_id), b"x", "PX", 60_000)
        assert await ward.kinds() == ["result-of-open-invocation"]
        gate.touch()


async def test_records_that_can_not_be_read_are_named_until_their_owner_has_parked_them(
    ward: Ward, tmp_path: Path
) -> None:
    """Parked, they have somebody who has to act."""
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        raw_id = await ward.began(await runtime.client.send(hold, KEY, str(gate)))
    await ward.redis("XADD", ward.space.invocation(raw_id), "*", "r", b"\xc1")
    kinds = await ward.kinds()
    assert kinds == ["invocation-unreadable", "partition-without-owner", "type-without-worker"]
    async with ward.worker() as runtime:
        await ward.is_paused(runtime, runtime.client.attach(format_id("Job", 0, raw_id)))
        assert await ward.kinds() == []


async def test_partitions_of_another_release_division_or_type_are_named(ward: Ward) -> None:
    """Nobody will own them."""
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY)
        namespace = ward.store.namespace
        await ward.redis("HSET", f"{{{namespace}:Job:7}}:owner", "schema", "1", "partitions", "8")
        await ward.redis("XADD", f"{{{namespace}:Lost:0}}:inbox", "*", "m", "x")
        assert await ward.kinds() == ["partition-unknown", "partition-unknown"]

    await ward.redis("HSET", ward.space.owner, "schema", "0")
    assert "schema-mismatch" in await ward.kinds()
    await ward.redis("HSET", ward.space.owner, "schema", "1", "partitions", "3")
    assert "schema-mismatch" in await ward.kinds()


async def test_work_without_a_worker_is_named_and_rest_without_one_is_not(ward: Ward) -> None:
    """A namespace that nobody hosts and nobody calls is as it should be."""
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY)
    resting = await ward.sweep()
    await ward.redis("XADD", ward.space.inbox, "*", "m", a_send("add").encode())

    assert resting.findings == ()
    assert any("no live worker hosts Job" in notice for notice in resting.notices)
    assert await ward.kinds() == ["partition-without-owner", "type-without-worker"]
    async with ward.worker():

        async def is_taken() -> bool:
            return await ward.kinds() == []

        await eventually_answers(is_taken, "the work is done")


async def test_a_held_lane_is_told_with_the_words_of_inspect(ward: Ward) -> None:
    """By what, since when, who waits behind it, and who is in charge."""
    async with ward.worker() as runtime:
        holder = await runtime.client.send(park, KEY)
        await ward.is_paused(runtime, holder)
        behind = [await runtime.client.send(add, KEY) for _ in range(3)]
        for handle in behind:
            await ward.began(handle)

        (held,) = (await ward.sweep()).held_lanes
        told = await runtime.client.inspect("Job", KEY)

    assert told.lane.holder is not None
    assert (held.holder, held.why) == (holder.id, told.lane.holder.why)
    assert (held.behind, list(held.first_behind)) == (3, [handle.id for handle in behind])
    assert (held.in_charge, held.status) == (OWNER, "paused")


async def test_the_busiest_object_is_told_with_its_share(ward: Ward) -> None:
    """Of what is kept of its type."""
    async with ward.worker() as runtime:
        for _ in range(150):
            await runtime.client.call(add, KEY)
        for other in range(50):
            await runtime.client.call(add, f"acme/{other}")
        (busy,) = (await ward.sweep()).busy_keys

    assert (busy.object_name, busy.key) == ("Job", KEY)
    assert 0.5 < busy.share < 0.9
    assert busy.per_second == 0


async def test_doubt_after_a_lost_tail_is_told_while_it_lasts(ward: Ward) -> None:
    """The span stands in the partition's own time."""
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY)
        now_ms = int(await ward.redis("HGET", ward.space.owner, "time"))
        await ward.redis("HSET", ward.space.owner, "doubt_from", now_ms, "doubt_until", now_ms + 60_000)
        assert await ward.kinds() == ["work-in-doubt"]
        await shift_clock(runtime, timedelta(minutes=2))
        assert await ward.kinds() == []


async def test_a_server_whose_memory_is_nearly_full_is_named_with_the_part_that_is_used(namespace: str) -> None:
    """By the count and the limit that owners go by when they stop taking work in."""
    with StoreServer(None, "--maxmemory", "20mb") as server:
        async with opened(server.url, namespace) as ward:
            assert (await ward.sweep()).findings == ()
            report = await ward.sweep(memory_limit_ratio=0.01)

    assert [finding.kind.value for finding in report.findings] == ["store-nearly-full"]
    assert 0.01 < report.server.memory_ratio < 0.9
    assert f"{100 * report.server.memory_ratio:.0f} %" in report.findings[0].cause


async def test_a_server_whose_settings_break_the_promise_is_a_finding(namespace: str) -> None:
    """With the sentence that the runtime refuses to start with."""
    with StoreServer(None, "--maxmemory-policy", "allkeys-lru") as server:
        async with opened(server.url, namespace) as ward:
            report = await ward.sweep()

    assert [finding.kind.value for finding in report.findings] == ["store-unsafe"]
    assert "allkeys-lru" in report.findings[0].cause
    assert report.server.stream_cost.endswith("4.3 kB")


async def test_damage_on_any_server_of_a_cluster_is_named(ward: Ward) -> None:
    """The partitions lie on all of them, and each is walked over."""
    other = VirtualObject("Wide", owner=OWNER, partitions=8)

    @other.handler
    async def touch(ctx: ObjectContext) -> None:  # pyright: ignore[reportUnusedFunction]
        pass

    where: dict[str, Any] = {"store": ward.url, "namespace": ward.store.namespace, "durability": "server"}
    async with Runtime([other], settings=settings(), **where) as runtime:
        for number in range(40):
            await runtime.client.call("Wide", f"acme/{number}", "touch")
        for number in range(8):
            await ward.redis("SADD", ward.store.space("Wide", number).runnable, f"acme/empty-{number}")
        report = await ward.sweep()
        assert {finding.place.key for finding in report.findings} == {f"acme/empty-{n}" for n in range(8)}
        assert report.looked.keys >= 8 + 40
        assert len(report.servers) == len(ward.store.nodes)
        assert {server.address for server in report.servers} != {None} or len(report.servers) == 1
        await ward.repaired()


async def test_a_limit_is_kept_and_said(ward: Ward) -> None:
    """What nobody has looked at is not called healthy in silence."""
    async with ward.worker() as runtime:
        for number in range(40):
            await runtime.client.call(add, f"acme/{number}")
        report = await ward.sweep(limit=1)

    assert not report.looked.is_whole
    assert any("as it was told" in note for note in report.looked.notes)


async def test_one_type_can_be_looked_at_alone(ward: Ward) -> None:
    """Damage of others is none of its business."""
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY)
        await ward.redis("SET", f"{{{ward.store.namespace}:Other:0}}:more", "x")
        assert (await ward.sweep(type_name="Job")).findings == ()
        assert len((await ward.sweep()).findings) == 2


async def test_a_store_that_goes_away_is_an_error_and_no_finding(namespace: str) -> None:
    """Nothing is concluded from silence of the store."""
    with StoreServer() as server:
        async with opened(server.url, namespace) as ward:
            server.kill()
            with pytest.raises(StoreUnavailable):
                await ward.sweep()


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
    async with ward.worker():
        assert await ward.redis("EXISTS", ward.space.runnable) == 0


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
    monkeypatch.setattr("keylane.runtime.intake.ACCEPT_AFTER_SECONDS", 3600)
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
        await runtime.worker._intake.accept_now(partition, first.raw_id)

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
