"""SIGKILL before and after each commit of a worker: every invocation ends once, and recorded results are kept."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from keylane import Client
from keylane.journal.command_records import StepCompleted
from keylane.journal.record_bytes import decode
from keylane.journal.records import Completed
from keylane.journal.standing import Status
from keylane.journal.transitions import replay
from tests.objects_catalogue import app, counter, marks, three_steps

from .fault_points import Action, Fault, Moment
from .harness import StoreServer, eventually
from .worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

KEY = "acme/one"
#: Acceptance, three steps, the end.
COMMITS_OF_THREE_STEPS = 5
POINTS = [Fault(Action.KILL, moment, number) for number in range(1, COMMITS_OF_THREE_STEPS + 1) for moment in Moment]


def executions(trail: Path) -> dict[str, int]:
    """Return how often each step ran."""
    words = [word for word, _ in marks(trail)]
    return {word: words.count(word) for word in ("first", "second", "third")}


def records_of(server: StoreServer, namespace: str) -> list[Any]:
    """Return the records of the only invocation of a namespace that has a stream."""
    streams = [key for key in server.keys(f"{{{namespace}:*") if b"}:i:" in key]
    if not streams:
        return []
    [stream] = streams
    entries = server.ask("XRANGE", stream, "-", "+")
    return [decode(fields[fields.index(b"r") + 1]) for _, fields in entries]


@pytest.mark.parametrize("handler", ["three_steps", "three_blocking_steps"])
@pytest.mark.parametrize("point", POINTS, ids=str)
async def test_a_worker_killed_at_a_commit_of_three_steps_costs_no_recorded_result(
    shared_server: StoreServer, namespace: str, trail: Path, point: Fault, handler: str
) -> None:
    """The next worker ends the invocation with the results that were recorded; only an unrecorded step runs again."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, faults=str(point)) as first:
            await first.ready()
            handle = await client.send("Steps", KEY, handler, str(trail))
            assert await first.ended() == -signal.SIGKILL, first.stderr
        with WorkerProcess(shared_server.url, namespace) as second:
            await second.ready()
            result = await handle.result(timeout=10)
            kept = await client.call("Steps", KEY, "done", timeout=10)
            again = await handle.result(timeout=10)

    ran = executions(trail)
    unrecorded = {2: "first", 3: "second", 4: "third"}.get(point.number) if point.moment is Moment.BEFORE else None
    assert ran == {word: 2 if word == unrecorded else 1 for word in ran}, second.stderr
    assert [(word, token) for word, token in zip(ran, result, strict=True)] == [
        next(line for line in reversed(marks(trail)) if line[0] == word) for word in ran
    ]
    assert kept == again == result

    records = records_of(shared_server, namespace)
    standing = replay(records)
    assert standing.status is Status.COMPLETED
    assert sum(isinstance(record, Completed) for record in records) == 1
    assert [record.index for record in records if isinstance(record, StepCompleted)] == [0, 1, 2]


async def test_three_steps_have_no_commit_that_is_not_killed_at(
    shared_server: StoreServer, namespace: str, trail: Path
) -> None:
    """The numbers above are all that there are: a worker that would die at the next commit ends the handler."""
    faults = f"kill:before:{COMMITS_OF_THREE_STEPS + 1}"
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, faults=faults) as worker:
            await worker.ready()
            await client.call("Steps", KEY, "three_steps", str(trail), timeout=10)

            assert worker.returncode is None


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_worker_killed_at_the_only_commit_of_a_short_handler_adds_once(
    shared_server: StoreServer, namespace: str, moment: str
) -> None:
    """A handler without steps is a transaction: whether or not its commit got through, it counts once."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, faults=f"kill:{moment}:1") as first:
            await first.ready()
            handle = await client.send("Counter", KEY, "add", 1)
            assert await first.ended() == -signal.SIGKILL
        with WorkerProcess(shared_server.url, namespace) as second:
            await second.ready()

            assert await handle.result(timeout=10) == 1
            assert await client.call("Counter", KEY, "add", 10, timeout=10) == 11
            assert await client.call("Counter", KEY, "get", timeout=10) == 11


async def test_a_worker_killed_between_two_steps_costs_neither(
    shared_server: StoreServer, namespace: str, trail: Path, tmp_path: Path
) -> None:
    """SIGKILL while the handler waits for something of its own: the step before is not run again."""
    gate = tmp_path / "gate"
    gates = {"trail": str(trail), "gate": str(gate)}
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace) as first:
            await first.ready()
            handle = await client.send("Steps", KEY, "step_between_gates", gates)
            await eventually(lambda: len(records_of(shared_server, namespace)) == 2, "the first step is recorded")
            first.kill()
        gate.touch()
        with WorkerProcess(shared_server.url, namespace) as second:
            await second.ready()
            result = await handle.result(timeout=10)

    assert [word for word, _ in marks(trail)] == ["first", "second"]
    assert result == " ".join(token for _, token in marks(trail))


async def test_workers_killed_again_and_again_lose_and_double_nothing(
    shared_server: StoreServer, namespace: str, tmp_path: Path
) -> None:
    """Twenty invocations on five keys, with a worker that dies every few commits: each ends once, in order."""
    async with Client(shared_server.url, namespace=namespace) as client:
        keys = [f"acme/{number % 5}" for number in range(20)]
        trails = [tmp_path / f"trail-{number}" for number in range(20)]
        handles = [await client.send(three_steps, key, str(path)) for key, path in zip(keys, trails, strict=True)]
        for number in (3, 5, 8):
            with WorkerProcess(shared_server.url, namespace, faults=f"kill:after:{number}") as dying:
                assert await dying.ended(20) == -signal.SIGKILL, dying.stderr
        with WorkerProcess(shared_server.url, namespace) as last:
            await last.ready()
            results = [await handle.result(timeout=10) for handle in handles]
            kept = {key: await client.call("Steps", key, "done", timeout=10) for key in set(keys)}

    for path, result in zip(trails, results, strict=True):
        tokens = {token for _, token in marks(path)}
        assert set(result[-3:]) <= tokens
    for key, done in kept.items():
        in_order = [result for each, result in zip(keys, results, strict=True) if each == key]
        assert in_order == [done[: 3 * count] for count in range(1, 5)]


async def test_a_killed_workers_partitions_are_taken_over_within_the_lease(
    shared_server: StoreServer, namespace: str, tmp_path: Path
) -> None:
    """A lane whose holder died is free again soon: the next exclusive call need not wait for anybody's intervention."""
    gate = tmp_path / "gate"
    async with Client(shared_server.url, namespace=namespace) as client:
        with (
            WorkerProcess(shared_server.url, namespace) as first,
            WorkerProcess(shared_server.url, namespace) as second,
        ):
            await first.ready()
            await second.ready()
            handles = [await client.send("Slow", f"acme/{number}", "hold", str(gate)) for number in range(8)]
            gate.touch()
            for handle in handles:
                await handle.result(timeout=10)

            first.kill()

            for number in range(8):
                assert await client.call("Slow", f"acme/{number}", "hold", str(gate), timeout=5) == f"acme/{number}"


def test_the_catalogue_can_be_loaded_by_name() -> None:
    """What the children load is what these tests import."""
    assert counter.name in app.objects
