"""Each structure damaged by hand: one sweep of the doctor names it, a repair restores it, and work goes on."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from keylane import ObjectContext, Runtime, StoreUnavailable, VirtualObject
from keylane.journal.doctor import invocation_checks, partition_checks
from keylane.journal.doctor.repairing import repair
from keylane.journal.key import format_id, new_invocation_id, parse_id
from keylane.journal.outcomes import IdempotencyEntry
from keylane.testing import shift_clock
from tests.faults.harness import StoreServer, eventually_answers
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
    opened,
    orphaned,
    park,
    settings,
)

pytestmark = pytest.mark.anyio

PASSED = timedelta(seconds=PAUSE_SECONDS + 1)


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
