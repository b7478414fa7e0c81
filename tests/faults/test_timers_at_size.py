"""Very many timers: none fires early, none is forgotten while workers come and go, and no lane starves behind them."""

from __future__ import annotations

import random
import sys
import time
from contextlib import ExitStack
from datetime import timedelta

import anyio
import pytest

from keylane import Client, Handle, Overloaded, Runtime, Settings
from keylane.journal.clock import shift_clock
from keylane.journal.key import parse_id
from tests.timers_catalogue import Woken, app, nap, ping

from .harness import StoreServer, eventually_answers
from .worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

APP = "tests.timers_catalogue:app"
SENDERS = 32
#: Rounding of the two times that are compared, in milliseconds.
ROUNDING_MS = 2.0
#: A call takes no longer while others fall due, also on a busy machine.
FOREGROUND_SECONDS = 10.0
#: So many calls are answered before all have fired; were they to wait for the timers, it would be one.
FOREGROUND_CALLS = 10
#: None of them falls due before all of them sleep, however long that takes.
HOUR_SECONDS = 3600.0


async def send_all(client: Client, seconds: list[float]) -> list[Handle[Woken]]:
    """Have as many objects sleep, and return their handles in the order of the given times."""
    handles: dict[int, Handle[Woken]] = {}
    numbers = iter(range(len(seconds)))

    async def send() -> None:
        for number in numbers:
            while number not in handles:
                try:
                    handles[number] = await client.send(nap, f"acme/{number}", seconds[number])
                except Overloaded as full:
                    await anyio.sleep(full.retry_after)

    async with anyio.create_task_group() as senders:
        for _ in range(SENDERS):
            senders.start_soon(send)
    return [handles[number] for number in range(len(seconds))]


async def due_count(client: Client) -> int:
    """Return how many due times lie in the store."""
    spaces = [client.store.space("Napper", number) for number in range(4)]
    return sum([await client.store.call("ZCARD", space.due) for space in spaces])


@pytest.mark.parametrize("skew_seconds", [-5.0, 5.0])
async def test_no_timer_fires_before_its_time_whatever_the_clock_of_the_worker_says(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, skew_seconds: float
) -> None:
    """By the clock of record: its fire time is its due time or later."""
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + skew_seconds)
    choose = random.Random(1)
    seconds = [choose.uniform(0, 1.0) for _ in range(300)]
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        began = time.monotonic()
        handles = await send_all(runtime.client, seconds)
        for handle, wanted in zip(handles, seconds, strict=True):
            woken = await handle.result(timeout=20)
            assert woken.late_ms >= -ROUNDING_MS
            assert time.monotonic() - began >= wanted


async def test_a_thousand_timers_all_fire_while_workers_are_killed(shared_server: StoreServer, namespace: str) -> None:
    """The short form: five workers in turn, of which each is killed."""
    await churn(shared_server, namespace, count=1_000, longest_seconds=6.0, kills=4)


@pytest.mark.nightly
async def test_a_hundred_thousand_timers_all_fire_while_workers_are_killed(
    shared_server: StoreServer, namespace: str
) -> None:
    """The long form."""
    await churn(shared_server, namespace, count=100_000, longest_seconds=240.0, kills=40)


async def churn(server: StoreServer, namespace: str, *, count: int, longest_seconds: float, kills: int) -> None:
    """Have timers fall due while workers are killed one after the other; in the end, none is left."""
    choose = random.Random(2)
    seconds = [choose.uniform(0.5, longest_seconds) for _ in range(count)]
    async with Client(server.url, namespace=namespace) as client:
        with ExitStack() as stack:
            worker = stack.enter_context(WorkerProcess(server.url, namespace, app=APP))
            await worker.ready()
            handles = await send_all(client, seconds)
            for _ in range(kills):
                successor = stack.enter_context(WorkerProcess(server.url, namespace, app=APP))
                await successor.ready()
                await anyio.sleep(longest_seconds / kills / 2)
                worker.kill()
                worker = successor
            late = sorted([(await handle.result(timeout=longest_seconds + 60)).late_ms for handle in handles])
            await eventually_answers(lambda: is_none_left(client), "no due time is left")
    sys.stderr.write(f"\n{count} timers, {kills} kills: the last one was {late[-1] / 1e3:.2f} s late\n")
    assert late[0] >= -ROUNDING_MS


async def is_none_left(client: Client) -> bool:
    return await due_count(client) == 0


@pytest.mark.quiet
async def test_two_thousand_overdue_timers_fire_in_turn_while_others_are_served(store_url: str, namespace: str) -> None:
    """The short form: all of them fell due while nobody lived."""
    await overdue(store_url, namespace, count=2_000, spread_seconds=1.0)


@pytest.mark.nightly
async def test_fifty_thousand_overdue_timers_fire_in_turn_while_others_are_served(
    store_url: str, namespace: str
) -> None:
    """The long form."""
    await overdue(store_url, namespace, count=50_000, spread_seconds=10.0)


async def overdue(store_url: str, namespace: str, *, count: int, spread_seconds: float) -> None:
    """Have timers fall due while no worker lives, then start one: earlier ones first, and calls do not wait for all."""
    choose = random.Random(3)
    seconds = [HOUR_SECONDS + choose.uniform(0, spread_seconds) for _ in range(count)]
    settings = Settings(drain_limit_seconds=0.5)
    async with Runtime(app, store=store_url, namespace=namespace, settings=settings) as runtime:
        handles = await send_all(runtime.client, seconds)
        await eventually_answers(lambda: are_asleep(runtime.client, count), "all sleep", seconds=10 + count / 200)
    async with Client(store_url, namespace=namespace) as client:
        await shift_clock(client.store, timedelta(seconds=HOUR_SECONDS + spread_seconds))
    async with Runtime(app, store=store_url, namespace=namespace, settings=settings) as runtime:
        slowest, answered = await calls_while(runtime)
        woken = [await runtime.client.attach(each.id, Woken).result(timeout=300) for each in handles]
    sys.stderr.write(f"\n{count} overdue: a call took {slowest:.2f} s at most meanwhile\n")
    assert slowest < FOREGROUND_SECONDS
    assert answered >= FOREGROUND_CALLS
    for number in range(4):
        check_order(
            [each for each, handle in zip(woken, handles, strict=True) if parse_id(handle.id).partition == number]
        )


async def are_asleep(client: Client, count: int) -> bool:
    return await due_count(client) == count


async def calls_while(runtime: Runtime) -> tuple[float, int]:
    """Call other objects until the timers have fired; returns how long the slowest took, and how many there were."""
    slowest = 0.0
    number = 0
    while await due_count(runtime.client):
        began = time.monotonic()
        await runtime.client.call(ping, f"acme/foreground-{number % 20}", timeout=30)
        slowest = max(slowest, time.monotonic() - began)
        number += 1
        await anyio.sleep(0.01)
    return slowest, number


def check_order(woken: list[Woken]) -> None:
    """Make sure that of one partition the timers that were due first have fired first, in the main."""
    by_due = sorted(woken, key=lambda each: each.due_ms)
    part = len(by_due) // 5
    first, last = by_due[:part], by_due[-part:]
    assert max(each.at_ms for each in first) < max(each.at_ms for each in last)
    assert sum(each.at_ms for each in first) / part < sum(each.at_ms for each in last) / part
