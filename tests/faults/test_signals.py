"""Signals and completions while workers are killed, connections are cut and hints are lost: each is seen once."""

from __future__ import annotations

import os
import random
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from keylane import Accepted, AlreadyCompleted, CallTimeout, Client, Handle, StoreError, UnknownTarget, WaitVerdict
from keylane.journal.doctor.names import Structure, parse
from tests.signals_catalogue import collect, decide, race

from .harness import StoreServer
from .proxy import Proxy
from .worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

APP = "tests.signals_catalogue:app"
SEED = "KEYLANE_SIGNALS_SEED"
EACH = 10
LIMIT_SECONDS = 1_800.0
#: Long for what takes a moment on a quiet machine.
READY_SECONDS = 120.0
CLEAN_SECONDS = 60.0

#: Sends one message to an invocation, with its number and its message id.
Send = Callable[[Handle[list[int]], str, int, str], Awaitable[WaitVerdict]]


async def test_four_hundred_acknowledged_messages_while_everything_fails_are_each_seen_once(
    shared_server: StoreServer, proxy: Proxy, namespace: str
) -> None:
    """The short form, with a seed that stays the same."""
    await exchange(shared_server, proxy, namespace, seed="1", objects=40)


@pytest.mark.nightly
async def test_ten_thousand_acknowledged_messages_while_everything_fails_are_each_seen_once(
    shared_server: StoreServer, proxy: Proxy, namespace: str
) -> None:
    """The long form, with a seed of its own each time; it is printed, and can be given."""
    seed = os.environ.get(SEED) or secrets.token_hex(4)
    await exchange(shared_server, proxy, namespace, seed=seed, objects=1_000)


async def exchange(server: StoreServer, proxy: Proxy, namespace: str, *, seed: str, objects: int) -> None:
    """Complete waits until each is acknowledged, kill workers meanwhile, and compare what the handlers saw."""
    choose = random.Random(seed)
    began = time.monotonic()
    kinds = (
        (collect, to_invocation),
        (collect, to_object),
        (decide, to_awakeable),
        (race, to_invocation),
    )
    async with Client(server.url, namespace=namespace) as client, AsyncExitStack() as stack:
        workers = [stack.enter_context(WorkerProcess(proxy.url, namespace, app=APP)) for _ in range(2)]
        await workers[0].ready()
        results: dict[str, list[int]] = {}
        repeated = [0]
        gate = anyio.CapacityLimiter(40)
        kills = cuts = 0

        async def one(number: int) -> None:
            handler, send = kinds[number % len(kinds)]
            key = f"acme/{number}"
            async with gate:
                handle = await client.send(handler, key, EACH)
                for each in range(EACH):
                    repeated[0] += await accepted(send, handle, key, each)
                results[key] = await handle.result(timeout=LIMIT_SECONDS)

        async with anyio.create_task_group() as tasks:
            for number in range(objects):
                tasks.start_soon(one, number)
            kills, cuts = await disturb(stack, workers, proxy, namespace, choose, lambda: len(results) == objects)
        wrong = {key: seen for key, seen in results.items() if seen != list(range(EACH))}
        left = await left_in_the_end(client, namespace)
    sys.stderr.write(
        f"\n{SEED}={seed}: {objects * EACH} messages, {repeated[0]} asked again, {kills} workers killed, {cuts} "
        f"connections cut, {time.monotonic() - began:.1f} s\n"
    )
    assert wrong == {}
    assert left == []
    assert kills > 0


async def disturb(
    stack: AsyncExitStack,
    workers: list[WorkerProcess],
    proxy: Proxy,
    namespace: str,
    choose: random.Random,
    is_over: Callable[[], bool],
) -> tuple[int, int]:
    """Kill workers and cut connections until all is over; returns how often."""
    kills = cuts = 0
    began = time.monotonic()
    while not is_over():
        assert time.monotonic() - began < LIMIT_SECONDS
        await anyio.sleep(choose.uniform(0.05, 0.3))
        cuts += proxy.cut()
        if choose.random() < 0.7:
            kills += 1
            place = choose.randrange(2)
            workers[place].kill()
            workers[place] = stack.enter_context(WorkerProcess(proxy.url, namespace, app=APP))
            await workers[place].ready(READY_SECONDS)
    return kills, cuts


async def accepted(send: Send, handle: Handle[list[int]], key: str, number: int) -> int:
    """Send a message until it is acknowledged; returns how often it had to be asked again."""
    asked = unknown = 0
    while True:
        try:
            # An awakeable that was not made yet is unknown, and that is the answer to this id for good.
            verdict = await send(handle, key, number, f"{number}:{unknown}")
        except (CallTimeout, StoreError):
            asked += 1
            continue
        match verdict:
            case Accepted():
                return asked
            case UnknownTarget():
                unknown += 1
                await anyio.sleep(0.02)
            case other:
                raise AssertionError(f"{key} {number}: {other}")


async def to_invocation(handle: Handle[list[int]], key: str, number: int, message_id: str) -> WaitVerdict:
    del key
    return await handle.signal("go", number, message_id=message_id, timeout=3)


async def to_object(handle: Handle[list[int]], key: str, number: int, message_id: str) -> WaitVerdict:
    client: Client = handle._client
    return await client.signal_object("Waiter", key, "go", number, message_id=message_id, timeout=3)


async def to_awakeable(handle: Handle[list[int]], key: str, number: int, message_id: str) -> WaitVerdict:
    del key
    client: Client = handle._client
    awakeable_id = f"{handle.id}.{2 * number}"
    return await client.resolve_awakeable(awakeable_id, number, message_id=message_id, by=message_id, timeout=3)


async def left_in_the_end(client: Client, namespace: str) -> list[tuple[bytes, object]]:
    """Return the early signals, due times and requests that are still there when all had time to go."""
    deadline = time.monotonic() + CLEAN_SECONDS
    while left := await leftovers(client, namespace):
        if time.monotonic() > deadline:
            break
        await anyio.sleep(0.1)
    return left


async def leftovers(client: Client, namespace: str) -> list[tuple[bytes, object]]:
    store = client.store
    left: list[tuple[bytes, object]] = []
    for key in await store.call("KEYS", f"{{{namespace}:*"):
        # An id is random bytes, among which any text may stand.
        name = parse(namespace, key)
        match None if name is None else name.structure:
            case Structure.SIGNALS:
                left.append((key, await store.call("HGETALL", key)))
            case Structure.DUE:
                left.append((key, await store.call("ZRANGE", key, 0, -1, "WITHSCORES")))
            case Structure.INBOX if await store.call("XLEN", key):
                left.append((key, await store.call("XRANGE", key, "-", "+", "COUNT", 5)))
            case _:
                pass
    return left


@pytest.mark.parametrize("at", range(1, 7))
async def test_a_completion_survives_the_death_of_the_owner_at_every_commit(
    shared_server: StoreServer, namespace: str, at: int
) -> None:
    """Killed after each commit in turn: what was acknowledged is seen, once, and the same id is answered the same."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, app=APP, faults=f"kill:after:{at}") as first:
            await first.ready()
            signalled = await client.send(collect, "acme/1", 2)
            decided = await client.send(decide, "acme/2", 1)
            asked = [
                client.signal(signalled.id, "go", 0, message_id="a", timeout=2),
                client.signal_object("Waiter", "acme/1", "go", 1, message_id="b", timeout=2),
                client.resolve_awakeable(f"{decided.id}.0", 7, message_id="c", timeout=2),
            ]
            async with anyio.create_task_group() as tasks:
                for each in asked:
                    tasks.start_soon(as_far_as_it_goes, each)
            first.kill()
        with WorkerProcess(shared_server.url, namespace, app=APP) as second:
            await second.ready()
            for _ in range(2):
                assert isinstance(await client.signal(signalled.id, "go", 0, message_id="a", timeout=10), Accepted)
                again = client.signal_object("Waiter", "acme/1", "go", 1, message_id="b", timeout=10)
                assert isinstance(await again, Accepted)
            assert await signalled.result(timeout=10) == [0, 1]
            await accepted(as_seven, decided, "acme/2", 0)
            assert await decided.result(timeout=10) == [7]


async def as_far_as_it_goes(asked: Awaitable[Any]) -> None:
    try:
        await asked
    except (CallTimeout, StoreError):
        return


async def as_seven(handle: Handle[list[int]], key: str, number: int, message_id: str) -> WaitVerdict:
    """Complete the awakeable, or find that it was completed under the first id."""
    del key
    client: Client = handle._client
    told = await client.resolve_awakeable(f"{handle.id}.{number}", 7, message_id=message_id, timeout=10)
    is_own = isinstance(told, AlreadyCompleted)
    return await client.resolve_awakeable(f"{handle.id}.{number}", 7, message_id="c", timeout=10) if is_own else told


async def test_without_any_hint_signals_come_with_the_sweep(shared_server: StoreServer, namespace: str) -> None:
    """Every notification is dropped: a completion waits for a sweep at most, and nothing stalls."""
    with WorkerProcess(shared_server.url, namespace, app=APP, faults="drop") as worker:
        await worker.ready()
        async with Client(shared_server.url, namespace=namespace) as client:
            handle = await client.send(collect, "acme/1", 3)
            began = time.monotonic()
            for number in range(3):
                assert isinstance(await handle.signal("go", number, timeout=20), Accepted)
            assert await handle.result(timeout=20) == [0, 1, 2]
            assert time.monotonic() - began < 10
