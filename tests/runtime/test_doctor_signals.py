"""The checkup and waits for signals: what waits is healthy, what came early has a place, lost timeouts are found."""

from __future__ import annotations

from datetime import timedelta

import pytest

from keylane import WrongKeyType
from keylane.testing import shift_clock
from tests.faults.harness import eventually_answers
from tests.runtime.ward import KEY, PAUSE_SECONDS, Ward, expect, listen

pytestmark = pytest.mark.anyio

LATER = timedelta(seconds=PAUSE_SECONDS)


async def stands_still(ward: Ward) -> None:
    """Wait until the lane waits."""

    async def is_still() -> bool:
        there = await ward.redis("LLEN", ward.space.lane(KEY))
        return bool(there) and await ward.redis("SISMEMBER", ward.space.runnable, KEY) == 0

    await eventually_answers(is_still, "it waits")


async def test_what_waits_for_a_signal_or_a_completion_is_healthy(ward: Ward) -> None:
    """In memory and out of it, with signals of other names waiting beside it, and it is said what it waits for."""
    async with ward.worker(waiting_residency_seconds=0.05) as runtime:
        heard = await runtime.client.send(listen, KEY, None)
        await stands_still(ward)
        await heard.signal("other", "early")
        await runtime.client.signal_object("Job", KEY, "another", "early")
        report = await ward.sweep()
        assert report.findings == ()
        assert ["signal 'go'" in lane.why for lane in report.held_lanes] == [True]
        await heard.signal("go", "it")
        assert await heard.result(timeout=10) == "it"

        decided = await runtime.client.send(expect, KEY)
        await stands_still(ward)
        report = await ward.sweep()
        assert report.findings == ()
        assert [f"{decided.id}.0" in lane.why for lane in report.held_lanes] == [True]
        await runtime.client.resolve_awakeable(f"{decided.id}.0", "it")
        assert await decided.result(timeout=10) == "it"
        assert await ward.kinds() == []
    async with ward.worker():
        assert await ward.kinds() == []


async def test_a_signal_to_what_is_to_begin_later_hides_nothing_of_it(ward: Ward) -> None:
    """Its newest record is the signal's, and still it belongs into no lane before its time."""
    async with ward.worker() as runtime:
        handle = await runtime.client.send(listen, KEY, None, delay=LATER)
        raw_id = await ward.waits(handle)
        await handle.signal("go", "early")
        assert await ward.kinds() == []
        await ward.redis("ZREM", ward.space.due, raw_id)
        report = await ward.sweep()
        assert [finding.kind.value for finding in report.findings] == ["due-time-missing"]
        await ward.repaired()
        await shift_clock(runtime, LATER + timedelta(seconds=1))
        assert await handle.result(timeout=10) == "early"


@pytest.mark.parametrize("is_resident", [True, False])
async def test_the_lost_due_time_of_a_timeout_is_named_and_entered_again(ward: Ward, *, is_resident: bool) -> None:
    """Also where a signal of another name came after the wait had begun."""
    async with ward.worker(waiting_residency_seconds=30.0 if is_resident else 0.05, resident_lanes=1) as runtime:
        handle = await runtime.client.send(listen, KEY, PAUSE_SECONDS)
        raw_id = await ward.waits(handle)
        await handle.signal("other", "early")
        await ward.redis("ZREM", ward.space.due, raw_id)

        assert await ward.kinds() == ["due-time-missing"]
        await ward.repaired()
        await handle.signal("go", "it")
        assert await handle.result(timeout=10) == "it"
        assert await ward.kinds() == []


async def test_a_foreign_key_in_the_place_of_early_signals_is_named_and_not_touched(ward: Ward) -> None:
    """Senders are told; once it is gone, all goes on."""
    async with ward.worker() as runtime:
        await ward.redis("SET", ward.space.signals(KEY), "foreign")
        assert await ward.kinds() == ["wrong-type"]
        with pytest.raises(WrongKeyType):
            await runtime.client.signal_object("Job", KEY, "go", "it")
        await ward.redis("DEL", ward.space.signals(KEY))
        await runtime.client.signal_object("Job", KEY, "go", "it")
        assert await runtime.client.call(listen, KEY, None, timeout=10) == "it"
