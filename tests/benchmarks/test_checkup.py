"""A checkup of many invocations: what it costs the server and us stays bounded, however many there are."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks import checkup
from keylane.journal.doctor.examining import IDS_MAX, Question, examine
from keylane.journal.doctor.findings import KEPT_MAX
from keylane.journal.doctor.names import parse
from keylane.journal.doctor.scanning import SURVEY_KEYS, survey
from keylane.journal.embedded import EmbeddedStore
from keylane.journal.key import new_invocation_id
from keylane.journal.store import Store

pytestmark = pytest.mark.anyio

INVOCATIONS = 20_000
SLOWEST_MS = 5.0


@pytest.fixture
async def store(tmp_path: Path, namespace: str) -> AsyncIterator[Store]:
    """Give a server of its own: what others do there would be in its figures."""
    async with EmbeddedStore(tmp_path) as server, Store(server.url, namespace=namespace) as store:
        yield store


async def test_many_invocations_take_bounded_work(store: Store) -> None:
    """Every key is looked at, no call takes long, and the number of calls grows with the keys and no faster."""
    await checkup.fill(store, INVOCATIONS)

    run = await checkup.measure(store)

    looked = run.report.looked
    assert looked.is_whole
    each = math.ceil(INVOCATIONS / checkup.PARTITIONS / checkup.OPEN_EVERY)
    paused = math.ceil(each / checkup.LANE_LENGTH)
    wanted = {"queued": (each - paused) * checkup.PARTITIONS, "paused": paused * checkup.PARTITIONS}
    assert dict(looked.open) == wanted
    assert looked.keys > 2 * INVOCATIONS
    assert run.commands < 8 * looked.keys
    assert dict(run.report.kinds) == {"partition-without-owner": 16, "type-without-worker": 1}
    assert len(run.report.held_lanes) == 50


async def test_the_largest_calls_of_the_doctor_stay_short(store: Store) -> None:
    """The server serves nobody else meanwhile: a page of names, and as many invocations of a full lane as one call has.

    The server's log measures by the clock on the wall, so the machine's other work is in it; the quietest call counts.
    """
    space, key = store.space(checkup.TYPE, 0), "acme/full"
    ids = [new_invocation_id() for _ in range(1_000)]
    await store.call("RPUSH", space.lane(key), *ids)
    for raw_id in ids[-IDS_MAX:]:
        await store.call("XADD", space.invocation(raw_id), "*", "r", bytes(1_000))
    names = [parse(store.namespace, space.invocation(raw_id)) for raw_id in ids[-SURVEY_KEYS:]]
    await store.call("CONFIG", "SET", "slowlog-log-slower-than", 0, "slowlog-max-len", 100_000)

    for ask in (
        lambda: survey(store, [name for name in names if name is not None]),
        lambda: examine(store, [Question(space, key, tuple(ids[-IDS_MAX:]))]),
    ):
        await store.call("SLOWLOG", "RESET")
        for _ in range(20):
            await ask()
        calls = [entry[2] for entry in await store.call("SLOWLOG", "GET", -1) if entry[3][0] == b"FCALL_RO"]
        assert len(calls) == 20
        assert min(calls) < SLOWEST_MS * 1000


async def test_much_damage_is_counted_and_not_kept(store: Store) -> None:
    """The report says how much of it is not listed."""
    await checkup.fill(store, 6_000)
    async for page in _streams(store):
        for lane in page:
            await store.call("DEL", lane)

    report = (await checkup.measure(store)).report

    listed = sum(finding.kind == "invocation-without-lane" for finding in report.findings)
    assert listed == KEPT_MAX
    assert report.left_out["invocation-without-lane"] > 0
    assert report.kinds["invocation-without-lane"] == listed + report.left_out["invocation-without-lane"]


async def _streams(store: Store) -> AsyncIterator[list[bytes]]:
    cursor = b"0"
    while True:
        cursor, page = await store.call("SCAN", cursor, "MATCH", "*:q:*", "COUNT", 500)
        yield page
        if cursor == b"0":
            return
