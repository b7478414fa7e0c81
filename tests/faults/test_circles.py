"""Circles of invocations that wait for each other across processes, also while these are killed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from keylane import Client, Handle
from tests.objects_catalogue import marks

from .harness import StoreServer, eventually, eventually_answers
from .worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

#: Promised are two seconds; a machine that does other things meanwhile may be late, but a circle that no probe finds
#: is there until somebody looks into it.
FOUND_SECONDS = 8.0
TYPES = {"Node": "follow", "Other": "follow_too"}
#: Each calls the next one, of three that two processes host in turn, and the last one the first.
RING = [("Node", "a"), ("Other", "b"), ("Node", "c"), ("Other", "d")]


async def hold_all(client: Client, folder: Path) -> list[Handle[list[str]]]:
    """Have the objects of the ring hold their lanes, until a file named `gate` exists."""
    trail, gate = folder / "trail", folder / "gate"
    handles: list[Handle[Any]] = []
    for place, (name, key) in enumerate(RING):
        following = RING[(place + 1) % len(RING)]
        plan: list[Any] = [["mark", str(trail)], ["gate", str(gate)], [*following, []]]
        handles.append(await client.send(name, f"acme/{key}", TYPES[name], plan))
    await eventually(lambda: len(marks(trail)) == len(RING), "all hold their lanes")
    return handles


async def all_wait(client: Client, handles: Sequence[Handle[Any]]) -> bool:
    return all([(await client.describe(handle.id)).status == "waiting" for handle in handles])


def only_circle(results: list[list[str]]) -> set[str]:
    (path,) = [path for paths in results for path in paths]
    return set(path.split(" → "))


async def test_a_circle_through_two_processes_is_found_and_costs_one_call(
    shared_server: StoreServer, namespace: str, tmp_path: Path
) -> None:
    """Four objects, of which each process hosts every other one."""
    url = shared_server.url
    async with Client(url, namespace=namespace) as client:
        with (
            WorkerProcess(url, namespace, app="tests.circles_catalogue:nodes") as first,
            WorkerProcess(url, namespace, app="tests.circles_catalogue:others") as second,
        ):
            await first.ready()
            await second.ready()
            handles = await hold_all(client, tmp_path)
            began = time.monotonic()
            (tmp_path / "gate").touch()
            results = [await handle.result(timeout=10) for handle in handles]

            assert time.monotonic() - began < FOUND_SECONDS
            assert only_circle(results) == {f"{name}.{TYPES[name]} at acme/{key}" for name, key in RING}
            for name, key in RING:
                assert await client.call(name, f"acme/{key}", TYPES[name], [], timeout=5) == []


async def test_a_circle_outlives_a_process_that_is_killed_in_it(
    shared_server: StoreServer, namespace: str, tmp_path: Path
) -> None:
    """One of the two has died when the last call comes: whoever takes over finds the circle from what is written."""
    url = shared_server.url
    async with Client(url, namespace=namespace) as client:
        with (
            WorkerProcess(url, namespace, app="tests.circles_catalogue:nodes") as first,
            WorkerProcess(url, namespace, app="tests.circles_catalogue:others") as second,
        ):
            await first.ready()
            await second.ready()
            handles = await hold_all(client, tmp_path)
            second.kill()
            (tmp_path / "gate").touch()
            await eventually_answers(lambda: all_wait(client, handles[::2]), "those of the living one wait")
            first.kill()
            with (
                WorkerProcess(url, namespace, app="tests.circles_catalogue:nodes"),
                WorkerProcess(url, namespace, app="tests.circles_catalogue:others") as fourth,
            ):
                await fourth.ready()
                began = time.monotonic()
                with anyio.fail_after(20):
                    results = [await handle.result() for handle in handles]
                assert time.monotonic() - began < 2 * FOUND_SECONDS
                assert len(only_circle(results)) == len(RING)
