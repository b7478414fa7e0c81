"""`keylane resolve`, `reject` and `signal`: the verdict is printed, and is the exit code."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import anyio
import pytest

from keylane import Client
from tests.runtime.shell_command import Command, run

pytestmark = pytest.mark.anyio

CATALOGUE = "tests.signals_catalogue:app"


@pytest.fixture(scope="module")
def where(store_url: str) -> Iterator[tuple[str, ...]]:
    """Options that find a deployment with a worker."""
    options = ("--store", store_url, "--namespace", f"test-{secrets.token_hex(6)}")
    with Command("worker", CATALOGUE, *options) as worker:
        anyio.run(worker.says, "ready ")
        yield options


async def test_the_shell_sends_signals_and_completes_awakeables(where: tuple[str, ...]) -> None:
    """Exit code 0 for what was accepted and 1 for everything else; with --json the verdict is an object."""
    async with Client(where[1], namespace=where[3]) as client:
        handle = await client.send("Waiter", "acme/1", "collect", 2)
        decided = await client.send("Waiter", "acme/2", "decide", 1)
        await decided.accepted(timeout=10)

        sent = run("signal", handle.id, "go", "1", "--by", "ana", "--message-id", "m", *where)
        assert (sent.code, sent.out.strip()) == (0, "accepted")
        again = run("signal", handle.id, "go", "1", "--message-id", "m", *where)
        assert again.code == 0
        assert again.out.startswith("accepted before, at ")
        to_object = run("signal", "Waiter", "go", "2", "--key", "acme/1", "--json", *where)
        assert to_object.json["verdict"] == "accepted"
        assert await handle.result(timeout=10) == [1, 2]

        won = run("resolve", f"{decided.id}.0", "7", "--by", "ana", *where)
        assert (won.code, won.out.strip()) == (0, "accepted")
        assert await decided.result(timeout=10) == [7]
        lost = run("reject", f"{decided.id}.0", "no", "--code", "late", "--json", *where)
        assert lost.code == 1
        assert lost.json["verdict"] == "already-completed"
        assert lost.json["by"] == "ana"
        keyless = run("signal", "Waiter", "go", "2", *where)
        assert (keyless.code, "with an object type, --key names the object" in keyless.err) == (2, True)
        late = run("signal", handle.id, "go", "3", *where)
        assert late.code == 1
        assert late.out.startswith("expired at ")
        unknown = run("resolve", f"Waiter.0.{'0' * 32}.0", "1", *where)
        assert (unknown.code, unknown.out.startswith("unknown: it was never given out")) == (1, True)
