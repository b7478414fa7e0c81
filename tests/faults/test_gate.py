"""The output gate: nothing leaves a lane before what it was built on is durable, and a refusal takes all of it back."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from keylane import CallTimeout, Client, KeylaneError, Runtime
from keylane.journal.key import partition_of
from keylane.journal.keyspace import PartitionSpace
from keylane.runtime.partition import Phase
from tests.objects_catalogue import (
    add,
    app,
    both,
    fail_after_step,
    fail_after_write,
    get,
    marks,
    one_step,
    set_both,
    store,
    values,
)

from .harness import StoreServer, eventually
from .proxy import Proxy

pytestmark = pytest.mark.anyio

KEY = "acme/one"
PARTITIONS = 16


@asynccontextmanager
async def hosting(proxy: Proxy, namespace: str) -> AsyncGenerator[Runtime]:
    async with Runtime(app, store=proxy.url, namespace=namespace) as runtime:
        # The proxy knows the connection of the commits by the first of them.
        await runtime.client.call(add, "acme/first", 1, timeout=10)
        yield runtime


@pytest.fixture
async def runtime(proxy: Proxy, namespace: str) -> AsyncIterator[Runtime]:
    async with hosting(proxy, namespace) as runtime:
        yield runtime


def object_stream(namespace: str, type_name: str = "Counter") -> bytes:
    space = PartitionSpace(namespace, type_name, partition_of(KEY, PARTITIONS))
    return space.object(KEY)


@asynccontextmanager
async def stalled(proxy: Proxy) -> AsyncGenerator[None]:
    """Keep commits from reaching the store."""
    proxy.stall(only="commit")
    try:
        yield
    finally:
        proxy.heal()


async def test_a_shared_read_sees_nothing_that_is_not_durable(runtime: Runtime, proxy: Proxy) -> None:
    """While the commit of a write is on its way, a read answers with the state before it."""
    client = runtime.client
    assert await client.call(add, KEY, 1, timeout=10) == 1
    async with anyio.create_task_group() as calls, stalled(proxy):
        held = proxy.held
        calls.start_soon(lambda: client.call(add, KEY, 10, timeout=10))
        await eventually(lambda: proxy.held > held, "the commit is on its way")

        assert await client.call(get, KEY, timeout=10) == 1

    assert await client.call(get, KEY, timeout=10) == 11


async def test_a_shared_read_never_goes_behind_an_answer_that_its_owner_has_not_heard_of(
    runtime: Runtime, shared_server: StoreServer, proxy: Proxy, namespace: str
) -> None:
    """The store announces a result before the owner has the reply to its commit: a read must not be older than that."""
    async with Client(shared_server.url, namespace=namespace) as other:
        assert await other.call(add, KEY, 1, timeout=10) == 1
        proxy.hold_replies(only="commit")
        try:
            assert await other.call(add, KEY, 10, timeout=10) == 11

            assert await runtime.client.call(get, KEY, timeout=10) == 11
        finally:
            proxy.heal()


async def test_a_call_is_not_answered_before_it_is_durable(runtime: Runtime, proxy: Proxy) -> None:
    """The answers of a whole run of calls wait for the first commit, though each started on the state of the last."""
    answers: list[int] = []

    async def call() -> None:
        answers.append(await runtime.client.call(add, KEY, 1, timeout=10))

    async with anyio.create_task_group() as calls, stalled(proxy):
        held = proxy.held
        for _ in range(5):
            calls.start_soon(call)
        await eventually(lambda: proxy.held > held, "the commit is on its way")
        await anyio.wait_all_tasks_blocked()

        assert answers == []

    assert answers == [1, 2, 3, 4, 5]


async def test_a_step_does_not_begin_before_its_acceptance_is_durable(
    runtime: Runtime, proxy: Proxy, trail: Path
) -> None:
    """A step acts on the outside world, so what it is built on must be beyond recall."""
    results: list[str] = []

    async def call() -> None:
        results.append(await runtime.client.call(one_step, KEY, str(trail), timeout=10))

    async with anyio.create_task_group() as calls, stalled(proxy):
        held = proxy.held
        calls.start_soon(call)
        await eventually(lambda: proxy.held > held, "the acceptance is on its way")
        await anyio.wait_all_tasks_blocked()

        assert marks(trail) == []

    assert [token for _, token in marks(trail)] == results


async def test_what_a_refused_commit_would_take_back_is_never_seen(
    runtime: Runtime, shared_server: StoreServer, proxy: Proxy, namespace: str
) -> None:
    """A foreign key under the object's name: no read and no answer ever shows what could not be written."""
    client = runtime.client
    shared_server.ask("SET", object_stream(namespace), "foreign")
    answers: list[object] = []
    reads: list[int] = []

    async def call(amount: int) -> None:
        try:
            answers.append(await client.call(add, KEY, amount, timeout=10))
        except KeylaneError as error:
            answers.append(error)

    async with anyio.create_task_group() as calls:
        for amount in (10, 5):
            calls.start_soon(call, amount)
        while len(answers) < 2:
            reads.append(await read_or_refused(client))
            await anyio.lowlevel.checkpoint()

    assert all(isinstance(answer, KeylaneError) for answer in answers), answers
    assert set(reads) <= {0}
    assert shared_server.ask("GET", object_stream(namespace)) == b"foreign"
    assert await client.call(add, "acme/other", 1, timeout=10) == 1

    shared_server.ask("DEL", object_stream(namespace))
    assert await client.call(add, KEY, 3, timeout=10) == 3


async def read_or_refused(client: Any) -> int:
    """Read the counter; where the store refuses to say anything, nothing is shown, which is as good as nothing."""
    try:
        return await client.call(get, KEY, timeout=10)
    except KeylaneError:
        return 0


async def test_a_commit_refused_in_flight_takes_back_what_was_built_on_it(
    runtime: Runtime, shared_server: StoreServer, proxy: Proxy, namespace: str
) -> None:
    """The key is taken away while two calls are on their way: neither is answered with a value, neither is kept."""
    client = runtime.client
    answers: list[object] = []

    async def call(amount: int) -> None:
        try:
            answers.append(await client.call(add, KEY, amount, timeout=10))
        except KeylaneError as error:
            answers.append(error)

    async with anyio.create_task_group() as calls:
        proxy.stall(only="commit")
        held = proxy.held
        calls.start_soon(call, 10)
        await eventually(lambda: proxy.held > held, "the first commit is on its way")
        calls.start_soon(call, 5)
        await anyio.wait_all_tasks_blocked()
        shared_server.ask("SET", object_stream(namespace), "foreign")
        assert await read_or_refused(client) == 0

        proxy.heal()
        await eventually(lambda: len(answers) == 2, "both are answered")
        assert await read_or_refused(client) == 0

    assert all(isinstance(answer, KeylaneError) for answer in answers), answers


async def test_a_shared_handler_sees_one_state_throughout(runtime: Runtime, tmp_path: Path) -> None:
    """What was written together is visible together, also to a read that waits between two values."""
    client = runtime.client
    gate = tmp_path / "gate"
    await client.call(set_both, KEY, 1, timeout=10)
    seen: list[list[int]] = []

    async def read() -> None:
        seen.append(await client.call(both, KEY, str(gate), timeout=10))

    async with anyio.create_task_group() as reads:
        reads.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        await client.call(set_both, KEY, 2, timeout=10)
        gate.touch()

    assert seen == [[1, 1]]


async def test_a_call_that_was_given_up_leaves_no_error_that_nobody_looks_at(
    runtime: Runtime, shared_server: StoreServer, proxy: Proxy, namespace: str
) -> None:
    """Its owner is fenced after the caller has stopped waiting: that is no news for anybody, and no defect to log."""
    unseen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    space = PartitionSpace(namespace, "Counter", partition_of(KEY, PARTITIONS))
    async with stalled(proxy):
        with pytest.raises(CallTimeout):
            await runtime.client.call(add, KEY, 1, timeout=0.1)
        shared_server.ask("HINCRBY", space.owner, "epoch", 1)
    [partition] = [each for each in runtime.worker.partitions if each.space == space]

    await eventually(lambda: partition.phase is Phase.LOST, "the owner is fenced")
    gc.collect()
    await anyio.lowlevel.checkpoint()

    assert unseen == []


async def test_a_handler_that_writes_and_then_fails_leaves_the_state_as_it_was(runtime: Runtime) -> None:
    """The writes since the last durable point are gone, and the next call does not see them either."""
    client = runtime.client
    await client.call(store, KEY, 7, timeout=10)

    with pytest.raises(KeylaneError, match="after the write"):
        await client.call(fail_after_write, KEY, 8, timeout=10)

    assert await client.call(values, KEY, timeout=10) == [7, None]


async def test_a_handler_that_fails_behind_a_step_keeps_what_the_step_made_durable(runtime: Runtime) -> None:
    """A durable point is final: only what was written after it is discarded."""
    client = runtime.client

    with pytest.raises(KeylaneError, match="after the step"):
        await client.call(fail_after_step, KEY, 8, timeout=10)

    assert await client.call(values, KEY, timeout=10) == [8, None]
