"""`keylane worker` and `keylane dev` as processes: how they begin, and how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import anyio
import pytest

from keylane.journal.endpoint import find_endpoint
from tests.faults.harness import StoreServer, eventually
from tests.objects_catalogue import marks
from tests.runtime.deployment import CATALOGUE, SHOP, Deployment
from tests.runtime.shell_command import Command, run

pytestmark = pytest.mark.anyio


@pytest.fixture
def deployment(store_url: str, namespace: str) -> Deployment:
    """A deployment of the test's own, without a worker."""
    return Deployment(store_url, namespace)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with an app."""
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


async def test_a_terminated_worker_ends_what_runs_and_loses_nothing(deployment: Deployment, tmp_path: Path) -> None:
    """What it has not begun is run by the next one, and no step twice."""
    trails = [tmp_path / f"trail-{number}" for number in range(6)]
    with deployment.worker() as first:
        await first.says("ready ")
        async with deployment.client() as client:
            sent = [
                await client.send("Steps", f"acme/{number % 2}", "three_slow_steps", str(path))
                for number, path in enumerate(trails)
            ]
        await eventually(lambda: any(path.exists() for path in trails), "some have begun")
        first.signal(signal.SIGTERM)
        assert await first.ended() == 0, first.said
    async with deployment.client() as client:
        with deployment.worker() as second:
            await second.says("ready ")
            results = [await client.attach(each.id).result(timeout=20) for each in sent]

    for path, result in zip(trails, results, strict=True):
        assert [word for word, _ in marks(path)] == ["first", "second", "third"]
        assert [token for _, token in marks(path)] == result[-3:]
    assert "draining" in first.said
    assert first.lines[-1] == "stopped"


@pytest.mark.parametrize("handler", ["sleep", "hold"])
async def test_no_handler_is_waited_for_longer_than_the_drain_limit(
    shop: Path, deployment: Deployment, handler: str
) -> None:
    """Neither one that awaits nor one that blocks a thread, which Python would wait for at its end."""
    began, env = shop / "began", {"KEYLANE_DRAIN_LIMIT_SECONDS": "0.5"}
    call = ("Order", "acme/one", "sleep") if handler == "sleep" else ("Slow", "acme/one", "hold")
    reference = "shop:app" if handler == "sleep" else CATALOGUE
    with Command("worker", reference, *deployment.where, cwd=shop, env=env) as worker:
        await worker.says("ready ")
        await deployment.begun(*call, str(began))
        started = time.monotonic()
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0, worker.said
        took_seconds = time.monotonic() - started

    assert took_seconds < 5


async def test_a_second_interrupt_ends_the_worker_at_once(deployment: Deployment, tmp_path: Path) -> None:
    """Without waiting for what runs; what is durable goes on elsewhere."""
    with deployment.worker() as worker:
        await worker.says("ready ")
        await deployment.begun("Slow", "acme/one", "hold", str(tmp_path / "gate"))
        worker.signal(signal.SIGINT)
        await worker.says("draining")
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGINT)

        assert await worker.ended(seconds=3) == 130


async def test_a_signal_while_a_worker_starts_ends_it(tmp_path: Path) -> None:
    """It has nothing to drain yet."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(15)
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        with Command("worker", CATALOGUE, "--store", url) as worker:
            connection, _ = await anyio.to_thread.run_sync(silent.accept)
            with connection:
                worker.signal(signal.SIGTERM)
                assert await worker.ended(seconds=3) == 0, worker.said

    assert "Traceback" not in worker.said


async def test_a_worker_says_ready_to_programs(deployment: Deployment) -> None:
    """As a JSON line on stdout, on a descriptor, and its log as JSON lines on stderr."""
    reading, writing = os.pipe()
    with (
        os.fdopen(reading, "rb") as pipe,
        Command(
            "worker", CATALOGUE, *deployment.where, "--json", "--ready-fd", str(writing), pass_fds=[writing]
        ) as worker,
    ):
        os.close(writing)
        assert await anyio.to_thread.run_sync(pipe.read) == b"ready\n"
        await worker.says('"event": "ready"')
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
    events = [json.loads(line) for line in worker.lines]

    assert [event["event"] for event in events] == ["ready", "draining", "stopped"]
    assert "Counter" in events[0]["objects"]
    assert "fsync always" in events[0]["promise"]
    assert all({"time", "level", "logger", "message"} <= json.loads(line).keys() for line in worker.errors)


async def test_dev_starts_a_store_that_the_other_commands_find(shop: Path) -> None:
    """It says where, what it promises and when it is ready, and stops the store at its end."""
    with Command("dev", "shop", cwd=shop) as dev:
        await dev.says("ready ")
        called = run("call", "Order", "acme/one", "double", "21", cwd=shop)
        await dev.says("doubling 21")
        dev.signal(signal.SIGINT)
        assert await dev.ended() == 0

    assert (called.code, called.out) == (0, "42\n")
    assert dev.lines[0].startswith("store    unix:///")
    assert "survives process and machine restart" in dev.lines[1]
    assert any("doubling 21 [acme/one Order." in line for line in dev.errors)
    assert find_endpoint(shop / ".keylane") is None


async def test_dev_takes_another_folder_and_ends_with_its_terminal(shop: Path) -> None:
    """Relative to where it stands, as do the others with `embedded:`; no store is left running when a window closes."""
    with Command("dev", "shop:app", "--path", "data", cwd=shop) as dev:
        await dev.says("ready ")
        found = run("call", "Order", "acme/one", "double", "21", "--store", "embedded:data", cwd=shop)
        lost = run("call", "Order", "acme/one", "double", "21", cwd=shop)
        dev.signal(signal.SIGHUP)
        assert await dev.ended() == 0

    assert found.out == "42\n"
    assert find_endpoint(shop / "data") is None
    assert lost.code == 3


async def test_an_unsafe_store_is_refused_with_the_reason_unless_told(tmp_path: Path) -> None:
    """The promise has to be one that the server can keep."""
    with StoreServer(None, "--appendfsync", "everysec") as server:
        refused = run("worker", CATALOGUE, "--store", server.url)
        with Command("worker", CATALOGUE, "--store", server.url, "--durability", "server") as worker:
            await worker.says("ready ")

    assert refused.code == 3
    assert "appendfsync is everysec" in refused.err
    assert "AOF fsync every second" in worker.said
