"""A store that is away for a while: clear errors for callers, patience without heat for workers, and no lost work."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest

from keylane import CallTimeout, Client, StoreUnavailable

from .harness import StoreServer
from .proxy import Proxy
from .worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

KEY = "acme/one"
OUTAGE_SECONDS = 4.0


async def test_callers_get_a_clear_error_after_their_timeout(
    shared_server: StoreServer, proxy: Proxy, namespace: str
) -> None:
    """While the store refuses connections, a call ends with the error that says so, when its time is up."""
    async with Client(proxy.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace) as worker:
            await worker.ready()
            assert await client.call("Counter", KEY, "add", 1, timeout=10) == 1

            proxy.refuse()
            started = time.monotonic()
            with pytest.raises((CallTimeout, StoreUnavailable)):
                await client.call("Counter", KEY, "add", 1, timeout=0.5)
            took_seconds = time.monotonic() - started

            proxy.heal()
            value = await client.call("Counter", KEY, "get", timeout=10)

    assert took_seconds < 1.5
    assert value in {1, 2}


async def test_a_store_that_hangs_is_a_timeout_and_not_an_endless_wait(own_server: StoreServer, namespace: str) -> None:
    """SIGSTOP of the server: the connection stays open, the caller's timeout holds."""
    async with Client(own_server.url, namespace=namespace) as client:
        with WorkerProcess(own_server.url, namespace) as worker:
            await worker.ready()
            assert await client.call("Counter", KEY, "add", 1, timeout=10) == 1

            own_server.stop()
            started = time.monotonic()
            with pytest.raises((CallTimeout, StoreUnavailable)):
                await client.call("Counter", KEY, "add", 1, timeout=0.5)
            took_seconds = time.monotonic() - started
            own_server.go_on()

            assert await client.call("Counter", KEY, "add", 10, timeout=10) in {11, 12}

    assert took_seconds < 1.5


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
