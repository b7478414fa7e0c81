"""Many processes at one key, and the same without a single pub/sub message."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import pytest

from keylane import Client

from .harness import StoreServer
from .worker_process import CallerProcess, WorkerProcess

pytestmark = pytest.mark.anyio

KEY = "acme/one"
PROCESSES = 4
TIMES = 50


@pytest.mark.parametrize("faults", ["", "drop"], ids=["with messages", "every message dropped"])
async def test_200_increments_from_four_processes_are_exactly_200(
    shared_server: StoreServer, namespace: str, faults: str
) -> None:
    """Two processes that host the object and two that only call it, all at once: no increment is lost or doubled."""
    call = ("Counter", KEY, "add", 1)
    with contextlib.ExitStack() as processes:
        callers = [
            processes.enter_context(
                CallerProcess(
                    shared_server.url, namespace, call, times=TIMES, hosts=number < 2, faults=faults, timeout_seconds=15
                )
            )
            for number in range(PROCESSES)
        ]
        worker = processes.enter_context(WorkerProcess(shared_server.url, namespace, faults=faults))
        for process in (*callers, worker):
            await process.ready()

        for caller in callers:
            caller.start()
        answers = [await caller.answers() for caller in callers]
        async with Client(shared_server.url, namespace=namespace) as client:
            value = await client.call("Counter", KEY, "get", timeout=10)

    assert sorted(answer for each in answers for answer in each) == list(range(1, PROCESSES * TIMES + 1))
    assert value == PROCESSES * TIMES


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_increments_go_on_when_their_worker_dies(shared_server: StoreServer, namespace: str, moment: str) -> None:
    """The owner is killed at its first commit and two others join: exactly as many increments as answers."""
    call = ("Counter", KEY, "add", 1)
    with (
        CallerProcess(shared_server.url, namespace, call, times=100, timeout_seconds=15) as caller,
        WorkerProcess(shared_server.url, namespace, faults=f"kill:{moment}:1") as dying,
    ):
        await caller.ready()
        await dying.ready()
        caller.start()
        assert await dying.ended() == -signal.SIGKILL
        with (
            WorkerProcess(shared_server.url, namespace) as second,
            WorkerProcess(shared_server.url, namespace) as third,
        ):
            await second.ready()
            await third.ready()
            answers = await caller.answers()

    assert sorted(answers) == list(range(1, 101))


async def test_with_every_message_dropped_all_work_ends(
    shared_server: StoreServer, namespace: str, tmp_path: Path
) -> None:
    """Hints are only hints: worker and client find requests and answers by looking, within a few sweeps."""
    with (
        CallerProcess(shared_server.url, namespace, ("Counter", KEY, "add", 1), times=20, faults="drop") as caller,
        WorkerProcess(shared_server.url, namespace, faults="drop") as worker,
    ):
        await caller.ready()
        await worker.ready()
        async with Client(shared_server.url, namespace=namespace) as client:
            handles = [
                await client.send("Steps", f"acme/{number}", "three_steps", str(tmp_path / f"trail-{number}"))
                for number in range(10)
            ]
            caller.start()
            started = time.monotonic()
            for handle in handles:
                assert len(await handle.result(timeout=10)) == 3
            answers = await caller.answers()
            took_seconds = time.monotonic() - started

    assert sorted(answers) == list(range(1, 21))
    assert took_seconds < 20
