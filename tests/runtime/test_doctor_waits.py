"""What waits for its time or for another object, damaged by hand: one sweep names it, and a repair lets it go on."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from keylane import Client, Handle, Runtime
from keylane.journal.command_records import CallCompleted, WaitCompleted
from keylane.journal.doctor.repairing import repair
from keylane.journal.key import parse_id
from keylane.journal.noted import noted
from keylane.runtime import lane_mending
from keylane.testing import shift_clock
from tests.faults.harness import eventually_answers
from tests.runtime.ward import (
    CALLED,
    KEY,
    PAUSE_SECONDS,
    Ward,
    add,
    ask_for,
    ask_once,
    expect,
    gate_of,
    listen,
    nap,
    settings,
    step_aside,
)

pytestmark = pytest.mark.anyio

PASSED = timedelta(seconds=PAUSE_SECONDS + 1)


async def due_ms(ward: Ward, raw_id: bytes) -> float:
    score = await ward.redis("ZSCORE", ward.space.due, raw_id)
    assert score is not None
    return float(score)


@pytest.mark.parametrize("is_resident", [True, False])
async def test_the_lost_due_time_of_a_sleep_is_named_and_entered_again(ward: Ward, *, is_resident: bool) -> None:
    """Whether its handler waits in memory or in the journal alone."""
    async with ward.worker(waiting_residency_seconds=30.0 if is_resident else 0.05, resident_lanes=1) as runtime:
        handle = await runtime.client.send(nap, KEY, PAUSE_SECONDS)
        raw_id = await ward.waits(handle)
        before = await due_ms(ward, raw_id)
        assert await ward.kinds() == []
        await ward.redis("ZREM", ward.space.due, raw_id)

        report = await ward.sweep()
        assert [finding.kind.value for finding in report.findings] == ["due-time-missing"]
        assert "is to wake in" in report.findings[0].cause
        await ward.repaired()
        assert abs(await due_ms(ward, raw_id) - before) < 1000
        await shift_clock(runtime, PASSED)
        assert await handle.result(timeout=10) == "awake"


async def test_the_lost_due_time_of_one_that_has_left_its_lane_is_named_and_entered_again(ward: Ward) -> None:
    """It has no place in its lane, and sleeps all the same."""
    async with ward.worker() as runtime:
        handle = await runtime.client.send(step_aside, KEY, PAUSE_SECONDS)
        raw_id = await ward.waits(handle)
        before = await due_ms(ward, raw_id)
        await ward.redis("ZREM", ward.space.due, raw_id)

        assert await ward.kinds() == ["due-time-missing"]
        await ward.repaired()
        assert abs(await due_ms(ward, raw_id) - before) < 1000
        await shift_clock(runtime, PASSED)
        assert await handle.result(timeout=10) == "awake"


async def test_the_lost_due_time_of_a_sleep_is_named_also_when_others_wait_behind_it(ward: Ward) -> None:
    """They make the lane runnable, which wakes nobody while its owner lives."""
    async with ward.worker() as runtime:
        handle = await runtime.client.send(nap, KEY, PAUSE_SECONDS)
        raw_id = await ward.waits(handle)
        behind = await runtime.client.send(add, KEY)
        await ward.began(behind)
        assert await ward.kinds() == []
        await ward.redis("ZREM", ward.space.due, raw_id)

        assert await ward.kinds() == ["due-time-missing"]
        await ward.repaired()
        await shift_clock(runtime, PASSED)
        assert await behind.result(timeout=10) == 1


async def test_the_lost_due_time_of_what_is_to_begin_later_is_named_and_entered_again(ward: Ward) -> None:
    """It gets no place in its lane before its time."""
    async with ward.worker() as runtime:
        handle = await runtime.client.send(add, KEY, delay=timedelta(seconds=PAUSE_SECONDS))
        raw_id = await ward.waits(handle)
        before = await due_ms(ward, raw_id)
        await ward.redis("ZREM", ward.space.due, raw_id)

        report = await ward.sweep()
        assert [finding.kind.value for finding in report.findings] == ["due-time-missing"]
        assert "is to begin in" in report.findings[0].cause
        done = await ward.repaired()
        assert "which is to begin later" in done[0].did[0]
        assert abs(await due_ms(ward, raw_id) - before) < 1000
        assert await ward.redis("EXISTS", ward.space.lane(KEY)) == 0
        await shift_clock(runtime, PASSED)
        assert await handle.result(timeout=10) == 1


async def test_a_repair_of_a_lane_leaves_what_is_to_begin_later_out_of_it(ward: Ward, tmp_path: Path) -> None:
    """Whoever names it in an order."""
    async with ward.worker() as runtime:
        raw_id = await ward.waits(await runtime.client.send(add, KEY, delay=timedelta(seconds=PAUSE_SECONDS)))
        (partition,) = runtime.worker.partitions
        assert await runtime.worker._mending._lanes.mend(partition, KEY, [raw_id]) == []
        assert await ward.redis("EXISTS", ward.space.lane(KEY)) == 0


async def calling(ward: Ward, runtime: Runtime, gate: Path) -> tuple[Handle[str], bytes]:
    """Have an object wait for another one, which has begun."""
    handle = await runtime.client.send(ask_for, KEY, str(gate))

    async def has_begun() -> bool:
        return await ward.redis("LLEN", ward.space.lane(CALLED)) == 1

    await eventually_answers(has_begun, "the called one has begun")
    return handle, parse_id(handle.id).raw


async def test_a_lane_whose_holder_waits_for_another_object_is_not_runnable_and_healthy(
    ward: Ward, tmp_path: Path
) -> None:
    """The reply brings it into memory, at whichever owner."""
    gate = gate_of(tmp_path)
    async with ward.worker(waiting_residency_seconds=0.05) as runtime:
        handle, _ = await calling(ward, runtime, gate)
        assert await ward.redis("SISMEMBER", ward.space.runnable, KEY) == 0
        report = await ward.sweep()
        assert report.findings == ()
        assert [lane.key for lane in report.held_lanes] == [KEY]
        assert "waits for the reply" in report.held_lanes[0].why
    async with ward.worker() as runtime:
        assert await ward.kinds() == []
        gate.touch()
        assert await runtime.client.attach(handle.id).result(timeout=10) == "went on"
        assert await ward.kinds() == []


async def test_a_lost_lane_of_one_that_waits_for_another_object_is_named_and_written_anew(
    ward: Ward, tmp_path: Path
) -> None:
    """Not as a runnable one: its holder still waits."""
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        handle, raw_id = await calling(ward, runtime, gate)
        await ward.redis("DEL", ward.space.lane(KEY))

        assert await ward.kinds() == ["invocation-without-lane"]
        await ward.repaired()
        assert await ward.redis("LRANGE", ward.space.lane(KEY), 0, -1) == [raw_id]
        assert await ward.redis("SISMEMBER", ward.space.runnable, KEY) == 0
        gate.touch()
        assert await handle.result(timeout=10) == "went on"
        assert await ward.kinds() == []


@pytest.mark.counts_runs
async def test_what_was_resumed_over_an_open_call_stands_still_and_is_healthy(ward: Ward, tmp_path: Path) -> None:
    """Its newest record says that it is queued, and an older one for what it waits."""
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        handle = await runtime.client.send(ask_once, KEY, str(gate))
        await ward.is_paused(runtime, handle)
        Path(f"{gate}.mended").touch()
        await runtime.client.resume(handle.id, reason="a test", by="a test")

        async def stands_still() -> bool:
            return await ward.redis("SISMEMBER", ward.space.runnable, KEY) == 0

        await eventually_answers(stands_still, "it waits again")
        assert await ward.kinds() == []
        assert await repair(ward.store, await ward.sweep(), "a test") == []
        gate.touch()
        assert await handle.result(timeout=10) == "went on"


@pytest.mark.parametrize("is_known", [True, False])
async def test_one_that_has_left_its_lane_and_that_its_object_does_not_name_is_found_again(
    ward: Ward, monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    """Its owner may have it in memory still; the next one has not, and would let its time pass."""
    monkeypatch.setattr(lane_mending, "YOUNG_MS", 0)
    async with ward.worker() as runtime:
        handle = await runtime.client.send(step_aside, KEY, PAUSE_SECONDS)
        raw_id = await ward.waits(handle)
        if is_known:
            await lost_aside(ward, handle)
            assert await ward.redis("SMEMBERS", ward.space.set_aside(KEY)) == [raw_id]
    if not is_known:
        await ward.redis("DEL", ward.space.set_aside(KEY))
    async with ward.worker() as runtime:
        if not is_known:
            await runtime.client.call(add, KEY)
            await lost_aside(ward, handle)
        await shift_clock(runtime, PASSED)
        async with Client(ward.url, namespace=ward.store.namespace, settings=settings()) as client:
            assert await client.attach(handle.id).result(timeout=10) == "awake"


async def lost_aside(ward: Ward, handle: Handle[str]) -> None:
    """Take away what names an invocation beside its lane, and have it repaired."""
    await ward.redis("DEL", ward.space.set_aside(KEY))
    report = await ward.sweep()
    assert [(each.kind.value, each.place.invocation) for each in report.findings] == [
        ("invocation-without-lane", handle.id)
    ]
    assert "left its lane" in report.findings[0].cause
    assert await ward.repaired()


async def test_what_is_paused_stays_so_when_what_it_waits_for_comes(ward: Ward, tmp_path: Path) -> None:
    """Its newest record is the end of its wait then, and it goes on only when somebody resumes it."""
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        client = runtime.client
        asks, _ = await calling(ward, runtime, gate)
        listens, expects = await client.send(listen, "acme/listens", None), await client.send(expect, "acme/expects")
        handles: list[Handle[str]] = [asks, listens, expects]
        for handle in handles:
            await ward.began(handle)
            await client.pause(handle.id, reason="a test", by="a test")
        for handle in handles:
            await ward.is_paused(runtime, handle)
        gate.touch()
        await listens.signal("go", "went on")
        await client.resolve_awakeable(f"{expects.id}.0", "went on")

        async def have_come() -> bool:
            streams = [ward.space.invocation(parse_id(handle.id).raw) for handle in handles]
            newest = [await ward.redis("XREVRANGE", stream, "+", "-", "COUNT", 1) for stream in streams]
            return all(isinstance(noted(entries[0]).record, CallCompleted | WaitCompleted) for entries in newest)

        await eventually_answers(have_come, "what they wait for has come")
        report = await ward.sweep()

        assert report.findings == ()
        assert dict(report.looked.open) == {"paused": 3}
        assert {each.holder: each.status for each in report.held_lanes} == {each.id: "paused" for each in handles}
        for key in (KEY, "acme/listens", "acme/expects"):
            holder = (await client.inspect("Job", key)).lane.holder
            assert holder is not None
            assert holder.why.startswith("paused (operator)")
        for handle in handles:
            await client.resume(handle.id, reason="a test", by="a test")
            assert await handle.result(timeout=10) == "went on"
