"""A store that is away for a while: clear errors for callers, patience without heat for workers, and no lost work."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest

from keylane import CallTimeout, Client, Runtime, Settings, StoreUnavailable
from keylane.runtime.inbox_reader import InboxReader
from keylane.runtime.partition import Partition
from tests.objects_catalogue import app, get, marks, three_slow_steps

from .harness import StoreServer, eventually, quickest
from .proxy import Proxy
from .worker_process import FAST, CallerProcess, WorkerProcess

pytestmark = pytest.mark.anyio

KEY = "acme/one"
OUTAGE_SECONDS = 4.0
#: A call that may take half a second has ended by then.
LATE_SECONDS = 1.5


async def test_callers_get_a_clear_error_after_their_timeout(
    shared_server: StoreServer, proxy: Proxy, namespace: str
) -> None:
    """While the store refuses connections, a call ends with the error that says so, when its time is up."""
    async with Client(proxy.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace) as worker:
            await worker.ready()
            assert await client.call("Counter", KEY, "add", 1, timeout=10) == 1

            proxy.refuse()

            async def failed() -> float:
                started = time.monotonic()
                with pytest.raises((CallTimeout, StoreUnavailable)):
                    await client.call("Counter", KEY, "add", 1, timeout=0.5, idempotency_key="one more")
                return time.monotonic() - started

            took_seconds = await quickest(LATE_SECONDS, failed)

            proxy.heal()
            value = await client.call("Counter", KEY, "get", timeout=10)

    assert took_seconds < LATE_SECONDS
    assert value in {1, 2}


async def test_a_first_call_gets_its_error_after_its_timeout_too(proxy: Proxy, namespace: str) -> None:
    """A client that knows nothing of the namespace yet does not wait longer than it was told to."""
    async with Client(proxy.url, namespace=namespace) as client:
        proxy.refuse()

        async def failed() -> float:
            started = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await client.call("Counter", KEY, "add", 1, timeout=0.5)
            return time.monotonic() - started

        took_seconds = await quickest(LATE_SECONDS, failed)
        proxy.heal()

    assert took_seconds < LATE_SECONDS


async def test_a_first_call_survives_a_cut_connection(shared_server: StoreServer, proxy: Proxy, namespace: str) -> None:
    """The connection is cut while the client learns where the key lives: it asks again, and the call goes through."""
    answers: list[int] = []

    async def call(client: Client) -> None:
        answers.append(await client.call("Counter", KEY, "add", 1, timeout=10))

    async with Client(proxy.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace) as worker:
            await worker.ready()
            async with anyio.create_task_group() as calls:
                proxy.stall()
                held = proxy.held
                calls.start_soon(call, client)
                await eventually(lambda: proxy.held > held, "the question is on its way")
                proxy.cut()
                proxy.heal()

    assert answers == [1]


async def test_a_store_that_hangs_is_a_timeout_and_not_an_endless_wait(own_server: StoreServer, namespace: str) -> None:
    """SIGSTOP of the server, for longer than a lease: the caller's timeout holds, and the owner goes on afterwards."""
    async with Client(own_server.url, namespace=namespace) as client:
        with WorkerProcess(own_server.url, namespace) as worker:
            await worker.ready()
            assert await client.call("Counter", KEY, "add", 1, timeout=10) == 1

            own_server.stop()
            started = time.monotonic()
            with pytest.raises((CallTimeout, StoreUnavailable)):
                await client.call("Counter", KEY, "add", 1, timeout=1)
            took_seconds = time.monotonic() - started
            own_server.go_on()

            assert await client.call("Counter", KEY, "add", 10, timeout=10) in {11, 12}

    assert took_seconds < 2


async def test_a_worker_without_a_store_waits_with_backoff_and_goes_on_by_itself(
    shared_server: StoreServer, proxy: Proxy, namespace: str, trail: Path
) -> None:
    """User and system time stay below 5 % of the outage, and work sent meanwhile is done when the store is back."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(proxy.url, namespace) as worker:
            await worker.ready()
            assert await client.call("Counter", KEY, "add", 1, timeout=10) == 1

            proxy.refuse()
            # The first moments go into noticing; the measure is of the waiting.
            await anyio.sleep(1)
            before_seconds = worker.cpu_seconds
            await anyio.sleep(OUTAGE_SECONDS)
            used_seconds = worker.cpu_seconds - before_seconds
            handle = await client.send("Steps", KEY, "three_steps", str(trail))
            proxy.heal()

            assert len(await handle.result(timeout=10)) == 3
            assert await client.call("Counter", KEY, "add", 1, timeout=10) == 2
            assert worker.returncode is None

    assert used_seconds < OUTAGE_SECONDS * 0.05


async def test_an_inbox_that_can_not_be_read_is_looked_at_more_and_more_rarely(
    own_server: StoreServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often sweeps look meanwhile: each failure is followed by one more try, and not by one for each sweep."""
    failed: dict[Partition, list[float]] = {}
    try_again = InboxReader._try_again  # pyright: ignore[reportPrivateUsage]

    def counted(self: InboxReader, partition: Partition, error: Exception) -> None:
        failed.setdefault(partition, []).append(time.monotonic())
        try_again(self, partition, error)

    monkeypatch.setattr(InboxReader, "_try_again", counted)
    settings = Settings(**{**FAST, "sweep_seconds": 0.05, "drain_limit_seconds": 0.1})
    async with Runtime(app, store=own_server.url, namespace=namespace, settings=settings):
        own_server.kill()
        await eventually(lambda: any(len(times) >= 5 for times in failed.values()), "it has been tried often")
        tries = [times[:5] for times in failed.values()]
        own_server.start()

    for times in tries:
        for wait, earlier, later in zip((0.2, 0.4, 0.8, 1.0), times, times[1:], strict=False):
            # Timers of the loop may be early by as much as its clock is exact.
            assert later - earlier > wait - 0.05


async def test_a_store_killed_in_the_middle_of_work_costs_nothing_that_was_answered(
    own_server: StoreServer, namespace: str
) -> None:
    """SIGKILL of the server and its restart: every call that was sent is answered, and counts once."""
    async with Client(own_server.url, namespace=namespace) as client:
        with WorkerProcess(own_server.url, namespace) as worker:
            await worker.ready()
            answers: list[int] = []
            handles = [await client.send("Counter", KEY, "add", 1) for _ in range(50)]
            answers.append(await handles[0].result(timeout=10))

            own_server.kill()
            await anyio.sleep(0.3)
            own_server.start()
            for handle in handles[1:]:
                answers.append(await handle.result(timeout=10))  # noqa: PERF401

            assert sorted(answers) == list(range(1, 51))
            assert await client.call("Counter", KEY, "get", timeout=10) == 50
            assert worker.returncode is None


async def test_connections_that_are_cut_again_and_again_lose_and_double_nothing(
    shared_server: StoreServer, proxy: Proxy, namespace: str, tmp_path: Path
) -> None:
    """Worker and caller lose every connection ten times in the middle of 200 increments and 20 runs of three steps."""
    trails = [tmp_path / f"trail-{number}" for number in range(20)]
    call = ("Counter", KEY, "add", 1)
    with (
        WorkerProcess(proxy.url, namespace) as worker,
        CallerProcess(proxy.url, namespace, call, times=200, timeout_seconds=20) as caller,
    ):
        await worker.ready()
        await caller.ready()
        async with Client(shared_server.url, namespace=namespace) as client:
            handles = [
                await client.send(three_slow_steps, f"acme/{number % 4}", str(path))
                for number, path in enumerate(trails)
            ]
            caller.start()
            for _ in range(10):
                commits = proxy.calls["commit"]
                with anyio.move_on_after(0.5):
                    await eventually(lambda sent=commits + 2: proxy.calls["commit"] >= sent, "two more commits")
                proxy.cut()
            results = [await handle.result(timeout=10) for handle in handles]
            answers = await caller.answers()
            value = await client.call(get, KEY, timeout=10)

    assert [answer for answer in answers if isinstance(answer, dict)] == []
    assert sorted(answers) == list(range(1, 201))
    assert value == 200
    assert proxy.cuts >= 20
    for path, result in zip(trails, results, strict=True):
        # A cut connection costs no step: its record waits in memory and is sent again.
        assert [token for _, token in marks(path)] == result
