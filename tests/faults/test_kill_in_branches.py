"""SIGKILL in the middle of branches: what was recorded of each is kept, and the rest is done once more."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from keylane import Client
from keylane.journal.command_records import CallCompleted, StepCompleted, TimerFired
from keylane.journal.place import path_of
from keylane.journal.record_bytes import decode
from keylane.journal.records import Completed, Record
from tests.killed_catalogue import done, helped, three_at_a_time
from tests.objects_catalogue import marks

from .fault_points import Action, Fault, Moment
from .harness import StoreServer
from .worker_process import WorkerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.counts_runs]

APP = "tests.killed_catalogue:app"
KEY = "acme/t"
#: Long for what takes a moment on a quiet machine.
READY_SECONDS = 60.0
#: No run of it ends with fewer.
COMMITS = 12
#: What is killed at each time; at the others, in the night.
EACH_TIME = {(3, Moment.AFTER), (5, Moment.BEFORE), (8, Moment.BEFORE), (10, Moment.AFTER)}
POINTS = [
    pytest.param(Fault(Action.KILL, moment, number), marks=() if (number, moment) in EACH_TIME else pytest.mark.nightly)
    for number in range(1, COMMITS + 1)
    for moment in Moment
]


def records_of(server: StoreServer, namespace: str) -> list[list[Record]]:
    """Return the records of each invocation of a namespace that has a stream."""
    streams = [key for key in server.keys(f"{{{namespace}:*") if b"}:i:" in key]
    return [
        [decode(fields[fields.index(b"r") + 1]) for _, fields in server.ask("XRANGE", stream, "-", "+")]
        for stream in streams
    ]


def steps_in(records: list[list[Record]]) -> set[str]:
    """Return the names of the steps whose results are recorded."""
    return {each.name for those in records for each in those if isinstance(each, StepCompleted)}


@pytest.mark.parametrize("point", POINTS, ids=str)
async def test_a_worker_killed_in_the_middle_of_branches_costs_no_recorded_result(
    shared_server: StoreServer, namespace: str, trail: Path, point: Fault
) -> None:
    """A step, a call and a sleep at a time: the next worker goes on with each from where it was."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, app=APP, faults=str(point)) as first:
            await first.ready(READY_SECONDS)
            handle = await client.send(three_at_a_time, KEY, str(trail))
            assert await first.ended(READY_SECONDS) == -signal.SIGKILL, first.stderr
        recorded = steps_in(records_of(shared_server, namespace))
        before = marks(trail)
        with WorkerProcess(shared_server.url, namespace, app=APP) as second:
            await second.ready(READY_SECONDS)
            result = await handle.result(timeout=READY_SECONDS)
            kept = await client.call(done, KEY, timeout=READY_SECONDS)
            asked = await client.call(helped, "acme/h", timeout=READY_SECONDS)

    anew = Counter(word for word, _ in marks(trail)[len(before) :])
    assert anew == Counter({"step", "help", "after"} - recorded), second.stderr
    last = dict(marks(trail))
    assert [result[0], result[1], result[3]] == [last["step"], last["help"], last["after"]]
    assert kept == result[:3]
    assert asked == 1
    [own] = [each for each in records_of(shared_server, namespace) if any(isinstance(one, TimerFired) for one in each)]
    ends = [each for each in own if isinstance(each, StepCompleted | CallCompleted | TimerFired | Completed)]
    assert Counter(type(each) for each in ends) == {StepCompleted: 2, CallCompleted: 1, TimerFired: 1, Completed: 1}
    assert len({path_of(each.index) for each in ends if not isinstance(each, Completed)}) == 4


async def test_a_worker_that_is_not_killed_makes_as_many_commits(
    shared_server: StoreServer, namespace: str, trail: Path
) -> None:
    """Else the points above would lie behind the end of it."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, app=APP, faults=f"kill:after:{COMMITS}") as worker:
            await worker.ready(READY_SECONDS)
            handle = await client.send(three_at_a_time, KEY, str(trail))
            assert await worker.ended(READY_SECONDS) == -signal.SIGKILL
        told = await client.describe(handle.id)
    assert told.status != "completed"
