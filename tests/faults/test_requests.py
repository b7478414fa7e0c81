"""Requests that reach an inbox twice: a lost answer has the client send again, and the call is still run once."""

from __future__ import annotations

import signal
from typing import Any

import anyio
import pytest

from keylane import Client
from keylane.journal.key import partition_of
from keylane.journal.keyspace import PartitionSpace
from tests.objects_catalogue import add

from .harness import StoreServer, eventually
from .proxy import Proxy
from .worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

KEY = "acme/one"
SPACE_PARTITIONS = 16


def inbox(namespace: str) -> bytes:
    """Return the inbox of the counter."""
    return PartitionSpace(namespace, "Counter", partition_of(KEY, SPACE_PARTITIONS)).inbox


async def send_twice(client: Client, server: StoreServer, proxy: Proxy, namespace: str) -> Any:
    """Send a call whose first answer gets lost, so that two copies of it lie in the inbox; returns its handle."""
    handles: list[Any] = []

    async def send() -> None:
        handles.append(await client.send(add, KEY, 1))

    # The proxy knows the connection by the first request that goes over it, and the client the key's partition.
    await client.send(add, KEY, 1)
    server.ask("DEL", inbox(namespace))
    calls = proxy.calls["submit"]
    async with anyio.create_task_group() as tasks:
        proxy.hold_replies(only="submit")
        tasks.start_soon(send)
        await eventually(lambda: proxy.calls["submit"] > calls, "the store has the first copy")
        await eventually(lambda: server.ask("XLEN", inbox(namespace)) == 1, "it lies in the inbox")
        proxy.cut(only="submit")
        proxy.heal()
    assert server.ask("XLEN", inbox(namespace)) == 2
    return handles[0]


async def test_two_copies_that_an_owner_finds_together_count_once(
    shared_server: StoreServer, proxy: Proxy, namespace: str
) -> None:
    """The owner was away while the client sent twice; the next one takes the second copy for what it is."""
    async with Client(proxy.url, namespace=namespace) as client:
        # A namespace without types has the client ask for them with each call.
        with WorkerProcess(shared_server.url, namespace) as gone:
            await gone.ready()
        handle = await send_twice(client, shared_server, proxy, namespace)
        with WorkerProcess(shared_server.url, namespace) as worker:
            await worker.ready()

            assert await handle.result(timeout=10) == 1
            assert await client.call(add, KEY, 10, timeout=10) == 11
            await eventually(lambda: shared_server.ask("XLEN", inbox(namespace)) == 0, "both copies are taken out")


async def test_two_copies_that_a_running_owner_reads_count_once(
    shared_server: StoreServer, proxy: Proxy, namespace: str
) -> None:
    """The same for an owner that stands still for a moment, shorter than its lease."""
    async with Client(proxy.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace) as worker:
            await worker.ready()
            await worker.stop()
            # The worker stands still, so what is sent stays in the inbox.
            handle = await send_twice(client, shared_server, proxy, namespace)
            worker.go_on()

            assert await handle.result(timeout=10) == 1
            assert await client.call(add, KEY, 10, timeout=10) == 11
            await eventually(lambda: shared_server.ask("XLEN", inbox(namespace)) == 0, "both copies are taken out")


async def test_a_copy_that_an_owner_before_left_behind_is_not_run_again(
    shared_server: StoreServer, namespace: str
) -> None:
    """The call was answered, its owner died, and a late copy lies in the inbox when the next owner reads it."""
    async with Client(shared_server.url, namespace=namespace) as client:
        handle = await client.send(add, KEY, 1)
        [(_, fields)] = shared_server.ask("XRANGE", inbox(namespace), "-", "+")
        with WorkerProcess(shared_server.url, namespace, faults="kill:after:2") as first:
            assert await handle.result(timeout=15) == 1
            await client.send(add, KEY, 10)
            assert await first.ended() == -signal.SIGKILL
        shared_server.ask("XADD", inbox(namespace), "*", *fields)
        with WorkerProcess(shared_server.url, namespace) as second:
            await second.ready()

            assert await client.call(add, KEY, 100, timeout=10) == 111
            await eventually(lambda: shared_server.ask("XLEN", inbox(namespace)) == 0, "the copy is taken out")
