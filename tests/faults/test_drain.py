"""SIGTERM: a worker ends what runs, hands over what waits, and loses nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from keylane import Client
from tests.objects_catalogue import marks

from .harness import StoreServer, eventually
from .worker_process import CallerProcess, WorkerProcess

pytestmark = pytest.mark.anyio


async def test_a_drained_worker_loses_no_invocation_and_repeats_no_step(
    shared_server: StoreServer, namespace: str, tmp_path: Path
) -> None:
    """Terminated with work in hand and work in the queue: it ends well, and its successor finishes the rest."""
    trails = [tmp_path / f"trail-{number}" for number in range(40)]
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace) as first:
            await first.ready()
            handles = [
                await client.send("Steps", f"acme/{number % 8}", "three_slow_steps", str(path))
                for number, path in enumerate(trails)
            ]
            await eventually(lambda: any(path.exists() for path in trails), "some have begun")
            first.terminate()
            assert await first.ended() == 0, first.stderr
        with WorkerProcess(shared_server.url, namespace) as second:
            await second.ready()
            results = [await handle.result(timeout=10) for handle in handles]

    for path, result in zip(trails, results, strict=True):
        assert [word for word, _ in marks(path)] == ["first", "second", "third"]
        assert [token for _, token in marks(path)] == result
    processes = {token.split("-")[0] for result in results for token in result}
    assert processes == {str(first.pid), str(second.pid)}


async def test_a_handler_that_does_not_end_is_not_waited_for_beyond_the_drain_limit(
    shared_server: StoreServer, namespace: str, tmp_path: Path
) -> None:
    """The worker leaves at the limit, and the successor runs the handler again."""
    gate = tmp_path / "gate"
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, settings={"drain_limit_seconds": 0.5}) as first:
            await first.ready()
            handle = await client.send("Counter", "acme/one", "add_and_hold", str(gate))
            assert await handle.accepted(timeout=10) is not None
            started = time.monotonic()
            first.terminate()
            assert await first.ended() == 0, first.stderr
            took_seconds = time.monotonic() - started
        with WorkerProcess(shared_server.url, namespace) as second:
            await second.ready()
            gate.touch()

            assert await handle.result(timeout=10) == 1
            assert await client.call("Counter", "acme/one", "get", timeout=10) == 1

    # Without the limit it would take thirty seconds.
    assert took_seconds < 12


async def test_callers_do_not_notice_a_planned_hand_over(shared_server: StoreServer, namespace: str) -> None:
    """One worker leaves while another is there: each call is answered once, without an error."""
    call = ("Counter", "acme/one", "add", 1)
    with (
        CallerProcess(shared_server.url, namespace, call, times=100) as caller,
        WorkerProcess(shared_server.url, namespace) as leaving,
        WorkerProcess(shared_server.url, namespace) as staying,
    ):
        for process in (caller, leaving, staying):
            await process.ready()
        caller.start()
        leaving.terminate()
        answers = await caller.answers()
        assert await leaving.ended() == 0, leaving.stderr

    assert sorted(answers) == list(range(1, 101))


async def test_a_caller_inside_a_drained_worker_gets_its_answers(shared_server: StoreServer, namespace: str) -> None:
    """Calls that were made in the leaving process itself end with a result as well."""
    call = ("Counter", "acme/one", "add", 1)
    with (
        CallerProcess(shared_server.url, namespace, call, times=50, hosts=True) as leaving,
        WorkerProcess(shared_server.url, namespace) as staying,
    ):
        await leaving.ready()
        await staying.ready()
        leaving.start()

        assert sorted(await leaving.answers()) == list(range(1, 51))
