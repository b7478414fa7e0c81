"""What is kept of objects, damaged by hand: large values and histories, and the indexes that let them go."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from keylane import ObjectContext, Runtime, VirtualObject
from keylane.journal.doctor import partition_checks
from keylane.journal.key import new_invocation_id
from keylane.journal.repair_order import RepairOrder
from keylane.testing import shift_clock
from tests.runtime.ward import KEY, OWNER, Ward, add, gate_of, hold, settings

pytestmark = pytest.mark.anyio

holder = VirtualObject("Job", owner=OWNER, partitions=1, state={"large": bytes})


@holder.handler
async def keep(ctx: ObjectContext) -> None:
    """Keep something large."""
    ctx.set("large", b"x" * 4096)


@holder.handler
async def drop(ctx: ObjectContext) -> None:
    """Keep it no more."""
    ctx.clear("large")


def where(ward: Ward) -> dict[str, Any]:
    fast = settings(blob_threshold_bytes=1024)
    return {"store": ward.url, "namespace": ward.store.namespace, "durability": "server", "settings": fast}


async def test_a_large_value_that_is_gone_is_named(ward: Ward) -> None:
    """Nobody can make it again; who needs it is paused."""
    async with Runtime([holder], **where(ward)) as runtime:
        await runtime.client.call(keep, KEY)
        assert await ward.kinds() == []
        (digest,) = await ward.redis("HKEYS", ward.space.blobs(KEY))
        await ward.redis("HDEL", ward.space.blobs(KEY), digest)

        report = await ward.sweep()
        assert [finding.kind.value for finding in report.findings] == ["large-value-missing"]
        assert digest.hex() in report.findings[0].cause
        assert report.findings[0].repair is None


async def test_a_large_value_that_the_index_does_not_name_is_entered(ward: Ward) -> None:
    """No sweep would ever find it."""
    async with Runtime([holder], **where(ward)) as runtime:
        await runtime.client.call(keep, KEY)
        before = await ward.redis("ZRANGE", ward.space.blob_index, 0, -1)
        await ward.redis("DEL", ward.space.blob_index)

        assert await ward.kinds() == ["large-value-never-expires"]
        await ward.repaired()
        assert await ward.redis("ZRANGE", ward.space.blob_index, 0, -1) == before


async def test_what_can_not_be_read_beside_one_lane_keeps_the_large_values_of_its_object_alone(ward: Ward) -> None:
    """What has left that lane may need them; those of others are deleted after their retention."""
    other = "acme/o-2"
    async with Runtime([holder], **where(ward)) as runtime:
        for key in (KEY, other):
            await runtime.client.call(keep, key)
            await runtime.client.call(drop, key)
        await ward.redis("SET", ward.space.set_aside(KEY), "foreign")
        await shift_clock(runtime, timedelta(days=2))
        await runtime.worker._blob_sweep.sweep()

        assert not await ward.redis("EXISTS", ward.space.blobs(other))
        assert await ward.redis("EXISTS", ward.space.blobs(KEY))
        await ward.redis("DEL", ward.space.set_aside(KEY))
        await shift_clock(runtime, timedelta(days=2))
        await runtime.worker._blob_sweep.sweep()
        assert not await ward.redis("EXISTS", ward.space.blobs(KEY))


async def test_one_thing_that_can_not_be_read_keeps_no_other_from_being_put_right(ward: Ward) -> None:
    """It is left as it is, and said to be."""
    foreign, orphaned = new_invocation_id(), new_invocation_id()
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY)
        await ward.redis("SET", ward.space.invocation(foreign), "foreign")
        await ward.redis("ZADD", ward.space.due, 1 << 50, foreign, 1 << 50, orphaned)
        (partition,) = runtime.worker.partitions
        did = await runtime.worker._mending._carry_out(partition, "", RepairOrder("ada", due=(foreign, orphaned)))

        assert await ward.redis("ZRANGE", ward.space.due, 0, -1) == [foreign]
        assert did[0].startswith("left something as it is")


async def test_a_history_that_is_long_overdue_is_named(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner lives and does not come to it: here it was told of no such time."""
    monkeypatch.setattr(partition_checks, "STUCK_MS", 0)
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY)
        (partition,) = runtime.worker.partitions
        partition.histories_due_ms = 1 << 62
        await ward.redis("ZADD", ward.space.history, 1, KEY)
        assert await ward.kinds() == ["history-overdue"]


async def test_what_the_owner_hash_says_of_the_history_is_shown(ward: Ward) -> None:
    """Which history it is, on which server, and whether some of it was lost."""
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY)
        await ward.redis("HSET", ward.space.owner, "losses", 2)
        report = await ward.sweep()

    (told,) = report.partitions
    assert {"history", "server", "losses"} <= told.owner.keys()
    assert report.findings == ()
    assert any("has lost the end of its history 2 times" in notice for notice in report.notices)


async def test_every_structure_of_a_healthy_partition_is_known(ward: Ward) -> None:
    """Bases of numbers, the key that waits for replicas write, and what parked invocations refer to."""
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY)
        tag = ward.space.tag
        await ward.redis("HSET", ward.space.bases, "Job.0", "0:0")
        await ward.redis("SET", ward.space.witness, "", "PX", 60_000)
        await ward.redis("SADD", ward.space.set_aside(KEY), b"i" * 16)
        assert await ward.kinds() == []
        await ward.redis("SET", tag + b":p:" + b"acme/other", "x")
        assert await ward.kinds() == ["wrong-type"]


async def test_a_state_that_can_not_be_read_is_named_while_work_waits_for_it(ward: Ward, tmp_path: Path) -> None:
    """Nothing of its lane goes on; once the entry is gone, its owner reads it again by itself."""
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        await runtime.client.call(add, KEY)
        held = await runtime.client.send(hold, KEY, str(gate))
        await ward.began(held)
    entry = await ward.redis("XADD", ward.space.object(KEY), "*", "d", b"\xc1")
    gate.touch()
    async with ward.worker() as runtime:
        (finding,) = (await ward.sweep()).findings
        assert finding.kind.value == "state-unreadable"
        assert finding.place.key == KEY
        assert entry.decode() in finding.cause

        await ward.redis("XDEL", ward.space.object(KEY), entry)
        assert await runtime.client.attach(held.id).result(timeout=20) == "went on"
        assert await ward.kinds() == []
