"""Callers in this process and elsewhere against a real owner."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from keylane.journal.errors import (
    CallTimeout,
    IdempotencyConflict,
    InvalidInput,
    InvocationFailed,
    InvocationPaused,
    StoreUnavailable,
    TerminalError,
    UnknownHandler,
)
from keylane.journal.observer import NoObserver, Observer
from keylane.journal.store import Store
from keylane.objects.app import App
from keylane.objects.context import ObjectContext, SharedContext
from keylane.objects.policies import RetryPolicy
from keylane.objects.settings import Settings
from keylane.objects.virtual_object import VirtualObject
from keylane.runtime.blocking import BlockingClient
from keylane.runtime.client import Client
from keylane.runtime.runtime import Runtime
from tests.faults.harness import eventually
from tests.faults.proxy import Proxy
from tests.plain import plain

KEY = "acme/l-1"

ledger = VirtualObject("Ledger", owner="books", state={"lines": list[str], "total": Decimal}, partitions=4)
gates: dict[str, anyio.Event] = {}
entered: dict[str, anyio.Event] = {}
conditions = {"bank": "up"}


@ledger.handler
async def write(ctx: ObjectContext, line: str) -> int:
    lines = [*await ctx.get("lines", list[str], []), line]
    ctx.set("lines", lines)
    return len(lines)


@ledger.handler
async def pay(ctx: ObjectContext, amount: Decimal) -> Decimal:
    total = await ctx.get("total", Decimal, Decimal(0)) + amount
    ctx.set("total", total)
    return total


@ledger.handler
async def decline(ctx: ObjectContext) -> None:
    del ctx
    raise TerminalError("card declined", code="card-declined", details={"left": 3})


@ledger.handler
async def wait_for(ctx: ObjectContext, gate: str) -> str:
    entered.setdefault(str(ctx.key), anyio.Event()).set()
    await gates[gate].wait()
    return f"{ctx.key} through {gate}"


@ledger.handler(retry=RetryPolicy(attempts=1))
async def fragile(ctx: ObjectContext) -> str:
    del ctx
    if conditions["bank"] == "down":
        raise ValueError("out of order")
    return "mended"


@ledger.shared
async def lines_of(ctx: SharedContext) -> list[str]:
    return await ctx.get("lines", list[str], [])


class Deaf(NoObserver):
    """Drops every message."""

    def deliver(self, channel: bytes) -> bool:
        del channel
        return False


@asynccontextmanager
async def running(
    store_url: str, namespace: str, observer: Observer | None = None
) -> AsyncGenerator[tuple[Runtime, Client]]:
    """An owner, and a client that stands outside it."""
    settings = Settings(sweep_seconds=0.2)
    runtime = Runtime(App(ledger), store=store_url, namespace=namespace, settings=settings, observer=observer)
    async with (
        runtime,
        Store(store_url, namespace=namespace, observer=observer) as store,
        Client(store, settings=settings) as outside,
    ):
        yield runtime, outside


@pytest.fixture
async def both(store_url: str, namespace: str) -> AsyncGenerator[tuple[Client, Client]]:
    async with running(store_url, namespace) as (runtime, outside):
        yield runtime.client, outside


@pytest.mark.anyio
async def test_inside_and_outside_see_the_same_object(both: tuple[Client, Client]) -> None:
    """By reference and by name, from the owner's process and from another, the lane is one."""
    inside, outside = both

    assert await inside.call(pay, KEY, Decimal("1.10")) == Decimal("1.10")
    assert await outside.call(pay, KEY, Decimal("2.20"), timeout=10) == Decimal("3.30")
    assert await inside.call("Ledger", KEY, "pay", "0.30") == Decimal("3.60")
    assert await outside.call("Ledger", KEY, "pay", Decimal(1), timeout=10) == Decimal("4.60")
    for client in both:
        assert await client.call(lines_of, KEY, timeout=10) == []
        assert await client.call("Ledger", KEY, "lines_of", timeout=10) == []


@pytest.mark.anyio
async def test_errors_are_the_same_inside_and_outside(both: tuple[Client, Client]) -> None:
    """What the handler raises, what the owner refuses, and what it does not know."""
    for client in both:
        with pytest.raises(InvocationFailed) as failed:
            await client.call(decline, KEY, timeout=10)
        assert (failed.value.code, failed.value.details) == ("card-declined", {"left": 3})

        with pytest.raises(InvalidInput) as invalid:
            await client.call("Ledger", KEY, "pay", "much", timeout=10)
        assert invalid.value.path == "amount"

        with pytest.raises(UnknownHandler) as unknown:
            await client.call("Ledger", KEY, "apy", timeout=10)
        assert "pay" in unknown.value.known


@pytest.mark.anyio
async def test_what_one_client_awaits_in_turn_is_taken_in_in_turn(both: tuple[Client, Client]) -> None:
    """Sends and calls of one client to one key keep their order, inside and outside, in any mixture."""
    for number, client in enumerate(both):
        key = f"acme/order-{number}"
        for line in range(40):
            if line % 3:
                await client.send(write, key, str(line))
            else:
                await client.call(write, key, str(line), timeout=10)
        await client.call(write, key, "last", timeout=10)

        assert await client.call(lines_of, key, timeout=10) == [*map(str, range(40)), "last"]


@pytest.mark.anyio
async def test_all_callers_together_add_up(both: tuple[Client, Client], store_url: str, namespace: str) -> None:
    """Calls from inside, outside and a blocking client at once on one key: none is lost, none counts twice."""
    inside, outside = both

    def blocking(count: int) -> None:
        with BlockingClient(store_url, namespace=namespace) as client:
            for _ in range(count):
                client.call(pay, KEY, Decimal(1), timeout=20)

    async def calls(client: Client, count: int) -> None:
        for _ in range(count):
            await client.call(pay, KEY, Decimal(1), timeout=20)

    async with anyio.create_task_group() as tasks:
        for client in (inside, outside) * 4:
            tasks.start_soon(calls, client, 20)
        tasks.start_soon(anyio.to_thread.run_sync, blocking, 40)

    assert await outside.call(pay, KEY, Decimal(0), timeout=10) == 200


@pytest.mark.anyio
async def test_work_finishes_when_every_message_is_dropped(store_url: str, namespace: str) -> None:
    """Hints only save time: with all of them lost, sweeps and looks find everything."""
    async with running(store_url, namespace, Deaf()) as (_, outside), anyio.create_task_group() as tasks:

        async def calls(key: str) -> None:
            for _ in range(3):
                await outside.call(pay, key, Decimal(1), timeout=20)

        for number in range(20):
            tasks.start_soon(calls, f"acme/deaf-{number}")


@pytest.mark.anyio
async def test_work_finishes_while_listeners_are_killed(both: tuple[Client, Client], store_url: str) -> None:
    """The connections that listen are cut again and again; calls go on, and end with the right sum."""
    _, outside = both
    ended: list[Decimal] = []

    async def calls() -> None:
        for _ in range(60):
            total = await outside.call(pay, KEY, Decimal(1), timeout=20)
            ended.append(total)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calls)
        while len(ended) < 60:
            plain(store_url, "CLIENT", "KILL", "TYPE", "pubsub")
            await anyio.sleep(0.02)

    assert ended == [Decimal(number) for number in range(1, 61)]


@pytest.mark.anyio
@pytest.mark.parametrize("place", [0, 1], ids=["inside", "outside"])
async def test_second_call_of_a_key_in_flight_shares_the_first_result(both: tuple[Client, Client], place: int) -> None:
    """While the first one still runs, the second waits for it instead of running, wherever it comes from."""
    gate = gates["shared"] = anyio.Event()
    first = await both[1].send(wait_for, KEY, "shared", idempotency_key="k")
    await first.accepted(timeout=10)
    results: list[str] = []

    async def again() -> None:
        results.append(await both[place].call(wait_for, KEY, "shared", idempotency_key="k", timeout=10))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(again)
        await anyio.wait_all_tasks_blocked()
        assert results == []
        gate.set()

    assert results == [await first.result(timeout=10)]


@pytest.mark.anyio
async def test_verdict_tells_a_replay_from_a_run(both: tuple[Client, Client]) -> None:
    """The same key and amount is a replay with the first time; another amount is refused, naming the field."""
    for number, client in enumerate(both):
        key = f"acme/replay-{number}"
        first = await client.send(pay, key, Decimal("40.00"), idempotency_key="t-77")
        assert not (await first.accepted(timeout=10)).replayed
        assert await first.result(timeout=10) == 40

        again = await client.send(pay, key, Decimal(40), idempotency_key="t-77")
        verdict = await again.accepted(timeout=10)
        assert verdict.replayed
        assert verdict.first_at is not None
        assert await again.result(timeout=10) == 40

        other = await client.send(pay, key, Decimal(45), idempotency_key="t-77")
        with pytest.raises(IdempotencyConflict):
            await other.accepted(timeout=10)


@pytest.mark.anyio
# Of a call from outside the store has to have confirmed the request before the time has passed.
@pytest.mark.parametrize(("place", "seconds"), [(0, 0.02), (1, 1.0)], ids=["inside", "outside"])
async def test_timeout_gives_an_id_that_leads_to_the_result(
    both: tuple[Client, Client], place: int, seconds: float
) -> None:
    """The caller goes away with the id; the invocation goes on, and anybody can attach to it."""
    gate = gates["slow"] = anyio.Event()
    with pytest.raises(CallTimeout) as caught:
        await both[place].call(wait_for, KEY, "slow", timeout=seconds)

    gate.set()
    for client in both:
        assert await client.attach(caught.value.invocation_id or "").result(timeout=10) == f"{KEY} through slow"


@pytest.mark.anyio
@pytest.mark.parametrize("place", [0, 1], ids=["inside", "outside"])
async def test_paused_call_is_told_at_once_and_resumed_from_anywhere(
    both: tuple[Client, Client], place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller gets reason, owner and id; somebody else mends the cause and resumes; the result is there."""
    monkeypatch.setitem(conditions, "bank", "down")
    with anyio.fail_after(5), pytest.raises(InvocationPaused) as caught:
        await both[place].call(fragile, KEY)
    assert (caught.value.reason, caught.value.owner) == ("retries_spent", "books")
    assert "the last time with ValueError: out of order" in caught.value.detail
    invocation_id = caught.value.invocation_id or ""

    conditions["bank"] = "up"
    await both[1 - place].resume(invocation_id, reason="mended", by="ann", timeout=10)

    assert await both[place].attach(invocation_id).result(timeout=10) == "mended"


@pytest.mark.one_server
@pytest.mark.anyio
async def test_callers_outlive_a_store_that_goes_away(store_url: str, namespace: str, tmp_path: Path) -> None:
    """While the store is away a call ends with its timeout and says why; afterwards calls work again by themselves."""
    with Proxy(Path(urlsplit(store_url).path), tmp_path / "p") as proxy:
        async with running(proxy.url, namespace) as (runtime, outside):
            for client in (runtime.client, outside):
                await client.call(pay, KEY, Decimal(1), timeout=10)
            proxy.refuse()

            for client in (runtime.client, outside):
                with anyio.fail_after(2), pytest.raises(StoreUnavailable):
                    await client.call(pay, KEY, Decimal(1), timeout=0.3)

            proxy.heal()
            for client in (runtime.client, outside):
                assert await client.call(pay, KEY, Decimal(0), timeout=20) >= 2


@pytest.mark.anyio
async def test_request_waits_for_a_worker(store_url: str, namespace: str) -> None:
    """A send before any worker ever ran is done when one comes up."""
    async with Store(store_url, namespace=namespace) as store, Client(store) as early:
        handle = await early.send(write, KEY, "early")
        async with running(store_url, namespace):
            assert await handle.result(timeout=10) == 1


@pytest.mark.anyio
async def test_description_and_inspection_are_readable_from_outside(both: tuple[Client, Client]) -> None:
    """Both delegate to the journal's readings."""
    inside, outside = both
    handle = await outside.send(write, KEY, "line")
    await handle.result(timeout=10)

    assert (await handle.describe()).object_name == "Ledger"
    described = await inside.inspect("Ledger", KEY)
    assert [value.name for value in described.state] == ["lines"]


@pytest.mark.anyio
async def test_caller_that_goes_away_leaves_its_invocation_running(both: tuple[Client, Client]) -> None:
    """Cancelling the caller's task, inside or outside, cancels the waiting and nothing else."""
    for number, client in enumerate(both):
        key = f"acme/gone-{number}"
        async with anyio.create_task_group() as tasks:
            gates["gone"], entered[key] = anyio.Event(), anyio.Event()
            tasks.start_soon(client.call, wait_for, key, "gone")
            await entered[key].wait()
            tasks.cancel_scope.cancel()
        gates["gone"].set()

        assert await client.call(write, key, "after", timeout=10) == 1
        await eventually(lambda client=client: client.answers.waiting == 0, "nobody waits any more")
