"""Bytes that nobody can read: the one invocation that they belong to is parked, everything else goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from keylane import Client, InternalError, InvocationPaused
from tests.objects_catalogue import marks

from .harness import StoreServer, eventually
from .worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

KEY = "acme/one"
GARBAGE = b"\xc1 not a record"


async def test_an_undecodable_record_parks_that_invocation_only(
    shared_server: StoreServer, namespace: str, trail: Path
) -> None:
    """The invocation is paused with its raw bytes kept, its caller is told, and other keys are served."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, faults="kill:after:2") as first:
            await first.ready()
            handle = await client.send("Steps", KEY, "three_steps", str(trail))
            assert await first.ended() == -signal.SIGKILL
        [stream] = [key for key in shared_server.keys(f"{{{namespace}:*") if b"}:i:" in key]
        shared_server.ask("XADD", stream, "*", "r", GARBAGE)

        with WorkerProcess(shared_server.url, namespace) as second:
            await second.ready()
            with pytest.raises(InvocationPaused) as paused:
                await handle.result(timeout=10)
            assert len(await client.call("Steps", "acme/two", "three_steps", str(trail), timeout=10)) == 3
            entries = shared_server.ask("XRANGE", stream, "-", "+")

            assert paused.value.reason == "undecodable"
            assert paused.value.owner == "catalogue"
            assert [b"r", GARBAGE] in [fields for _, fields in entries]
            assert len([word for word, _ in marks(trail) if word == "first"]) == 2
            assert second.returncode is None


async def test_undecodable_state_parks_that_object_only(shared_server: StoreServer, namespace: str) -> None:
    """An object whose state can't be read refuses its calls with an error; other objects are served."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace) as first:
            await first.ready()
            assert await client.call("Counter", KEY, "add", 1, timeout=10) == 1
            first.terminate()
            assert await first.ended() == 0, first.stderr
        [stream] = [key for key in shared_server.keys(f"{{{namespace}:*") if b"}:o:" in key]
        shared_server.ask("XADD", stream, "*", "d", GARBAGE)

        with WorkerProcess(shared_server.url, namespace) as second:
            await second.ready()
            with pytest.raises(InternalError, match="can't be read"):
                await client.call("Counter", KEY, "add", 1, timeout=10)
            assert await client.call("Counter", "acme/two", "add", 1, timeout=10) == 1
            assert shared_server.ask("XLEN", stream) == 2
            assert second.returncode is None


async def test_an_undecodable_request_is_kept_aside(shared_server: StoreServer, namespace: str) -> None:
    """An inbox entry that nobody can read is taken out of the way with its bytes kept; those behind it are served."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace) as worker:
            await worker.ready()
            assert await client.call("Counter", KEY, "add", 1, timeout=10) == 1
            [stream] = [key for key in shared_server.keys(f"{{{namespace}:*") if b"}:o:" in key]
            tag = stream.partition(b"}")[0] + b"}"
            shared_server.ask("XADD", tag + b":inbox", "*", "m", GARBAGE)

            assert await client.call("Counter", KEY, "add", 1, timeout=10) == 2
            await eventually(lambda: shared_server.ask("XLEN", tag + b":bad") == 1, "it is kept aside")
            [(_, fields)] = shared_server.ask("XRANGE", tag + b":bad", "-", "+")

            assert GARBAGE in fields
            assert shared_server.ask("XLEN", tag + b":inbox") == 0
            assert worker.returncode is None


async def test_code_that_disagrees_with_its_journal_parks_that_invocation_only(
    shared_server: StoreServer, namespace: str, trail: Path
) -> None:
    """A step with another name than the recorded one: paused as diverged at once, and no step runs again."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, faults="kill:after:2") as first:
            await first.ready()
            handle = await client.send("Steps", KEY, "non_deterministic", str(trail))
            assert await first.ended() == -signal.SIGKILL
        with WorkerProcess(shared_server.url, namespace) as second:
            await second.ready()
            with pytest.raises(InvocationPaused) as paused:
                await handle.result(timeout=10)
            assert len(await client.call("Steps", "acme/two", "three_steps", str(trail), timeout=10)) == 3

    assert paused.value.reason == "diverged"
    assert f"step of {first.pid}" in paused.value.detail
    assert f"step of {second.pid}" in paused.value.detail
    assert [word for word, _ in marks(trail)].count("first") == 2
