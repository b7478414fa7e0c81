"""SIGKILL at each commit of an invocation that is cancelled, and kills while workers crash: what was asked is done."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from keylane import CancelReport, Client, Handle, Runtime
from keylane.journal.command_records import CancelDelivered
from keylane.journal.records import Cancelled
from keylane.testing import shift_clock
from tests.cancel_catalogue import app
from tests.faults.test_kill import records_of
from tests.objects_catalogue import marks

from .fault_points import Action, Fault, Moment
from .harness import StoreServer, eventually, eventually_answers
from .worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

APP = "tests.cancel_catalogue:app"
#: Acceptance, the step, the sleep, the cancel, the clean-up, the begin of undoing, the undo, the end.
COMMITS = 8
POINTS = [Fault(Action.KILL, moment, number) for number in range(1, COMMITS + 1) for moment in Moment]


async def is_waiting(handle: Handle[Any]) -> bool:
    return (await handle.describe()).status == "waiting"


@pytest.mark.parametrize("point", POINTS, ids=str)
async def test_an_acknowledged_cancel_is_processed_whatever_dies_meanwhile(
    shared_server: StoreServer, namespace: str, trail: Path, point: Fault
) -> None:
    """The handler is told once, cleans up, what it did is undone, and whoever asked gets the report (K2)."""
    reports: list[CancelReport] = []
    async with Client(shared_server.url, namespace=namespace) as client, anyio.create_task_group() as tasks:
        handle: Handle[Any] | None = None

        async def cancel(handle: Handle[Any]) -> None:
            reports.append(await handle.cancel(by="ada", reason="twice", timeout=30))

        with WorkerProcess(shared_server.url, namespace, app=APP, faults=str(point)) as first:
            await first.ready()
            handle = await client.send("Sleeper", "acme/one", "nap", str(trail))

            async def waits_or_is_dead() -> bool:
                return first.returncode is not None or await is_waiting(handle)

            await eventually_answers(waits_or_is_dead, "it waits, or its worker is dead")
            # It may wait durably, and its worker die the moment after: the cancel is on its way then.
            was_asked = first.returncode is None
            if was_asked:
                tasks.start_soon(cancel, handle)
            assert await first.ended() == -signal.SIGKILL, first.stderr
        with WorkerProcess(shared_server.url, namespace, app=APP) as second:
            await second.ready()
            if not was_asked:
                await eventually_answers(lambda: is_waiting(handle), "it waits")
                tasks.start_soon(cancel, handle)
            await eventually(lambda: reports, "the report is there", seconds=30)

    assert reports[0].outcome == "cancelled"
    assert reports[0].undone == ("booking",)
    records = records_of(shared_server, namespace)
    assert sum(isinstance(each, CancelDelivered) for each in records) == 1
    assert isinstance(records[-1], Cancelled)
    words = [word for word, _ in marks(trail)]
    unrecorded = {2: "book", 5: "clean", 7: "undo"}.get(point.number) if point.moment is Moment.BEFORE else None
    assert {word: words.count(word) for word in words} == {
        word: 2 if word == unrecorded else 1 for word in ("book", "clean", "undo")
    }


@asynccontextmanager
async def second_worker(url: str, namespace: str) -> AsyncGenerator[None]:
    with WorkerProcess(url, namespace, app=APP) as worker:
        await worker.ready()
        yield


async def test_what_is_killed_is_not_attempted_again_whatever_dies_meanwhile(
    shared_server: StoreServer, namespace: str, trail: Path
) -> None:
    """Invocations that are tried again every few milliseconds: from their kill on no attempt begins (B2)."""
    killed: list[str] = []
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(shared_server.url, namespace=namespace))
        with WorkerProcess(shared_server.url, namespace, app=APP) as first:
            await first.ready()
            handles = [await client.send("Sleeper", f"acme/{n}", "fails_for_ever", str(trail)) for n in range(100)]
            await eventually(lambda: len(marks(trail)) > 200, "all of them are under way")

            async def kill(handle: Handle[Any]) -> None:
                report = await client.kill(handle.id, by="ops", reason="poison", timeout=30)
                assert report.outcome == "killed"
                killed.append(handle.id)

            async with anyio.create_task_group() as tasks:
                for handle in handles:
                    tasks.start_soon(kill, handle)
                await eventually(lambda: killed, "the first of them are dead")
                first.kill()
                await stack.enter_async_context(second_worker(shared_server.url, namespace))
        count = len(marks(trail))
        assert len(killed) == 100
    # Whatever could still become due does so now.
    async with Runtime(app, store=shared_server.url, namespace=namespace) as runtime:
        await shift_clock(runtime, timedelta(hours=1))
        for number in range(100):
            assert await runtime.client.call("Sleeper", f"acme/{number}", "touch", timeout=10) == "touched"
    assert len(marks(trail)) == count
