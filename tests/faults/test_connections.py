"""How many connections a worker has does not depend on what it does, and nobody waits for a free one."""

from __future__ import annotations

from pathlib import Path

import pytest

from keylane import Client

from .harness import StoreServer, eventually
from .worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

HANDLERS = 500


def connections(server: StoreServer) -> int:
    return len(server.ask("CLIENT", "LIST").splitlines())


async def test_five_hundred_handlers_at_once_use_the_connections_of_one(
    own_server: StoreServer, namespace: str, tmp_path: Path
) -> None:
    """Commits, single calls, messages and leases have a connection each, whoever needs them."""
    gate = tmp_path / "gate"
    async with Client(own_server.url, namespace=namespace) as client:
        with WorkerProcess(own_server.url, namespace, settings={"lane_slots": HANDLERS}) as worker:
            await worker.ready()
            assert await client.call("Counter", "acme/one", "add", 1, timeout=10) == 1
            [owner, *_] = own_server.keys("*:Counter:0}:owner")
            await eventually(lambda: int(own_server.ask("HGET", owner, "lease")) > 0, "the leases are renewed")
            idle = connections(own_server)
            handles = [
                await client.send("Counter", f"acme/{number}", "add_and_hold", str(gate)) for number in range(HANDLERS)
            ]
            running = "*}:run"
            await eventually(
                lambda: sum(own_server.ask("SCARD", key) for key in own_server.keys(running)) == HANDLERS,
                "all of them have begun",
            )
            # One that was closed a moment ago may be listed still.
            await eventually(lambda: connections(own_server) == idle, "there are no more connections than before")
            gate.touch()
            assert [await handle.result(timeout=20) for handle in handles] == [1] * HANDLERS
