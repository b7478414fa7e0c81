"""An owner that stands still past its lease: whatever it still sends is refused, and its callers get a true answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from keylane import Client
from tests.objects_catalogue import marks

from .harness import StoreServer, eventually, eventually_answers
from .worker_process import CallerProcess, WorkerProcess

pytestmark = pytest.mark.anyio

KEY = "acme/one"


def contents(server: StoreServer, namespace: str) -> dict[bytes, bytes]:
    """Return everything that is written about objects and invocations: what a fenced owner must not touch."""
    kinds = (b"}:o:", b"}:i:", b"}:r:", b"}:q:", b"}:k:")
    keys = [key for key in server.keys(f"{{{namespace}:*") if any(kind in key for kind in kinds)]
    return {key: server.ask("DUMP", key) for key in keys}


@pytest.mark.parametrize("number", [2, 3, 4, 5])
async def test_what_a_stopped_owner_still_sends_is_refused(
    shared_server: StoreServer, namespace: str, trail: Path, number: int
) -> None:
    """Stopped before a commit, overtaken, and continued: its commit changes nothing, its caller hears the truth."""
    call = ("Steps", KEY, "three_steps", str(trail))
    faults = f"stop:before:{number}"
    async with Client(shared_server.url, namespace=namespace) as client:
        with CallerProcess(shared_server.url, namespace, call, hosts=True, faults=faults) as stopped:
            await stopped.ready()
            stopped.start()
            await eventually(lambda: stopped.is_stopped, "the owner stands before its commit")
            with WorkerProcess(shared_server.url, namespace) as other:
                await other.ready()
                await eventually_answers(lambda: has_ended(client), "the other worker ends it")
                done = await client.call("Steps", KEY, "done", timeout=10)
                before = contents(shared_server, namespace)

                stopped.go_on()
                answers = await stopped.answers()
                after = contents(shared_server, namespace)

    assert answers == [done], stopped.stderr
    # The refusal of the commit and that of the lease are both on their way, and either may be the first.
    assert re.search(r"Steps[:.]\d+(: fenced| has another owner)", stopped.stderr), stopped.stderr
    assert after == before
    assert set(done) <= {token for _, token in marks(trail)}
    assert len(marks(trail)) == 4 if number < 5 else 3


async def has_ended(client: Client) -> bool:
    return len(await client.call("Steps", KEY, "done", timeout=10)) == 3


async def test_a_call_that_only_the_stopped_owner_knew_of_is_run_once(
    shared_server: StoreServer, namespace: str
) -> None:
    """Nothing of the call was durable when the owner stopped: after the fence it goes through the inbox, once."""
    call = ("Counter", KEY, "add", 1)
    async with Client(shared_server.url, namespace=namespace) as client:
        with CallerProcess(shared_server.url, namespace, call, hosts=True, faults="stop:before:1") as stopped:
            await stopped.ready()
            stopped.start()
            await eventually(lambda: stopped.is_stopped, "the owner stands before its commit")
            with WorkerProcess(shared_server.url, namespace) as other:
                await other.ready()
                assert await client.call("Counter", KEY, "add", 10, timeout=10) == 10

                stopped.go_on()

                assert await stopped.answers() == [11], stopped.stderr
                assert await client.call("Counter", KEY, "get", timeout=10) == 11


async def test_an_owner_stopped_after_its_commit_gives_the_answer_that_is_durable(
    shared_server: StoreServer, namespace: str
) -> None:
    """The commit got through and its answer was not seen: the call is found by its id and not run again."""
    call = ("Counter", KEY, "add", 1)
    async with Client(shared_server.url, namespace=namespace) as client:
        with CallerProcess(shared_server.url, namespace, call, hosts=True, faults="stop:after:1") as stopped:
            await stopped.ready()
            stopped.start()
            await eventually(lambda: stopped.is_stopped, "the owner stands behind its commit")
            with WorkerProcess(shared_server.url, namespace) as other:
                await other.ready()
                assert await client.call("Counter", KEY, "add", 10, timeout=10) == 11

                stopped.go_on()

                assert await stopped.answers() == [1], stopped.stderr
                assert await client.call("Counter", KEY, "get", timeout=10) == 11


@pytest.mark.parametrize("lease_seconds", [0.6, 6.0], ids=["the same lease", "a longer lease than the other one's"])
async def test_a_stopped_owner_reads_no_old_state_from_memory(
    shared_server: StoreServer, namespace: str, lease_seconds: float
) -> None:
    """Continued after another owner wrote, it does not even answer its own process with what it remembers."""
    call, settings = ("Counter", KEY, "get"), {"lease_seconds": lease_seconds}
    async with Client(shared_server.url, namespace=namespace) as client:
        with CallerProcess(shared_server.url, namespace, call, times=20, hosts=True, settings=settings) as stopped:
            await stopped.ready()
            assert await client.call("Counter", KEY, "add", 1, timeout=10) == 1
            await stopped.stop()
            with WorkerProcess(shared_server.url, namespace) as other:
                await other.ready()
                assert await client.call("Counter", KEY, "add", 10, timeout=10) == 11

                # The order to call waits for it, so it calls in its first moment, before it can have heard of anything.
                stopped.start()
                stopped.go_on()

                assert await stopped.answers() == [11] * 20


async def test_a_stopped_owner_answers_nobody_with_old_state(shared_server: StoreServer, namespace: str) -> None:
    """Nor does it answer the shared reads of others that it finds in its inbox."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace) as stopped:
            await stopped.ready()
            assert await client.call("Counter", KEY, "add", 1, timeout=10) == 1
            await stopped.stop()
            with WorkerProcess(shared_server.url, namespace) as other:
                await other.ready()
                assert await client.call("Counter", KEY, "add", 10, timeout=10) == 11

                stopped.go_on()
                reads = [await client.call("Counter", KEY, "get", timeout=10) for _ in range(50)]

                assert reads == [11] * 50
