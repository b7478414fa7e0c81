"""What a crash costs in each checkpoint mode: the steps whose results were not written, and no others."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from keylane import Client
from keylane.journal.command_records import StepCompleted
from keylane.journal.record_bytes import decode
from tests.objects_catalogue import marks

from .checkpoint_objects import WORDS
from .fault_points import Action, Fault, Moment
from .harness import StoreServer, eventually
from .worker_process import WorkerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.counts_runs]

APP = "tests.faults.checkpoint_objects:app"
KEY = "acme/one"
MODES = ("sync", "async", "exit")
#: Acceptance, results before the message and with it, results after it, the end: fewer commits than that in some modes.
POINTS = [Fault(Action.KILL, moment, number) for number in range(1, 5) for moment in Moment]


def recorded(server: StoreServer, namespace: str) -> set[str]:
    """Return the steps whose results are in the store."""
    found: set[str] = set()
    for stream in server.keys(f"{{{namespace}:Modes:*"):
        if b"}:i:" in stream:
            entries: list[Any] = server.ask("XRANGE", stream, "-", "+")
            records = [decode(fields[fields.index(b"r") + 1]) for _, fields in entries]
            found |= {record.name for record in records if isinstance(record, StepCompleted)}
    return found


def ran(trail: Path) -> Counter[str]:
    """Return how often each step ran."""
    return Counter(word for word, _ in marks(trail))


def newest(trail: Path) -> list[str]:
    """Return what each step returned the last time that it ran."""
    tokens = dict(marks(trail))
    return [tokens[word] for word in WORDS]


@pytest.mark.parametrize("point", POINTS, ids=str)
@pytest.mark.parametrize("mode", MODES)
async def test_a_killed_worker_costs_the_steps_whose_results_were_not_written(
    shared_server: StoreServer, namespace: str, trail: Path, mode: str, point: Fault
) -> None:
    """They run once more, the others don't; the message between them leaves once, and what is kept is of one run."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, app=APP, faults=str(point)) as first:
            await first.ready()
            handle = await client.send("Modes", KEY, f"message_{mode}", str(trail))
            await eventually(
                lambda: first.returncode is not None or len(ran(trail)) == len(WORDS), "it is killed, or done"
            )
            first.kill()
        before, kept = ran(trail), recorded(shared_server, namespace)
        with WorkerProcess(shared_server.url, namespace, app=APP) as second:
            await second.ready()
            result = await handle.result(timeout=20)
            done = await client.call("Modes", KEY, "done", timeout=20)
            await eventually_told(client)

    lost = {word for word in before if word not in kept} if result_was_lost(trail, before) else set[str]()
    assert ran(trail) == Counter(WORDS) + Counter(lost)
    assert done == result == newest(trail)
    if mode == "sync":
        assert len(lost) <= 1
    if mode == "exit":
        # Up to the message everything is written with it, and what follows with the end.
        assert kept in (set(), set(WORDS[:3]), set(WORDS))


def result_was_lost(trail: Path, before: Counter[str]) -> bool:
    """Return whether anything ran again: an invocation that had ended leaves nothing to be run."""
    return ran(trail) != before or before.total() < len(WORDS)


async def eventually_told(client: Client) -> None:
    """Wait until the message has arrived, and see that it arrived once."""
    while await client.call("Counter", "acme/told", "get", timeout=20) == 0:
        pass
    assert await client.call("Counter", "acme/told", "get", timeout=20) == 1


@pytest.mark.parametrize(
    ("mode", "before_the_store_answers", "again_at_least", "again_at_most"),
    [
        pytest.param("sync", 3, 0, 1, id="sync: the step that is in flight"),
        pytest.param("async", 6, 1, 4, id="async: those whose commits are in flight"),
        pytest.param("exit", 6, 6, 6, id="exit: all of them since the last durable point"),
    ],
)
async def test_the_code_goes_on_ahead_of_its_records_as_far_as_its_mode_says(
    own_server: StoreServer,
    namespace: str,
    trail: Path,
    tmp_path: Path,
    mode: str,
    before_the_store_answers: int,
    again_at_least: int,
    again_at_most: int,
) -> None:
    """A store that stands still and a worker that is killed then: what runs again is what had gone on ahead."""
    gate = tmp_path / "gate"
    gates = {"trail": str(trail), "gate": str(gate)}
    settled = {"sync": 2, "async": 2, "exit": 0}[mode]
    async with Client(own_server.url, namespace=namespace) as client:
        with WorkerProcess(own_server.url, namespace, app=APP, settings={"lease_seconds": 5}) as first:
            await first.ready()
            handle = await client.send("Modes", KEY, f"gate_{mode}", gates)
            await eventually(lambda: len(ran(trail)) == 2, "two steps ran")
            await eventually(lambda: len(recorded(own_server, namespace)) == settled, "what is to be written is")
            own_server.stop()
            gate.touch()
            await eventually(lambda: len(ran(trail)) == before_the_store_answers, "it goes on as far as it may")
            first.send(signal.SIGKILL)
            assert await first.ended() == -signal.SIGKILL
            before = ran(trail)
            own_server.go_on()
        kept = recorded(own_server, namespace)
        with WorkerProcess(own_server.url, namespace, app=APP) as second:
            await second.ready()
            result = await handle.result(timeout=20)

    lost = set(before) - kept
    assert before == Counter(WORDS[:before_the_store_answers])
    assert again_at_least <= len(lost) <= again_at_most
    assert ran(trail) == Counter(WORDS) + Counter(lost)
    assert result == newest(trail)
