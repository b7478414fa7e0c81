"""An id that a caller gets whose time has passed leads to something: what became of its call is durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import anyio
import pytest

from keylane import App, Client, InvocationRefused, ObjectContext, Runtime, SharedContext, VirtualObject
from keylane.journal.errors import CallTimeout, Fenced, StoreFull
from keylane.runtime import claims
from keylane.runtime.doors import PartitionDoor
from keylane.runtime.partition import Partition
from keylane.runtime.turning_away import turn_away_waiting
from tests.faults.harness import eventually

pytestmark = pytest.mark.anyio

KEY = "acme/d-1"
desk = VirtualObject("Desk", owner="tests", partitions=1)
gates: dict[str, anyio.Event] = {}
verdicts: dict[str, anyio.Event] = {}

#: What happens to a call between the moment at which its caller's time has passed and the question for its id.
Mishap = Callable[[Partition, bytes], None]


async def is_welcome(_: SharedContext, gate: str) -> None:
    await verdicts[gate].wait()
    if gate == "shut":
        raise ValueError("not today")


@desk.handler
async def stay(_: ObjectContext, gate: str) -> str:
    await gates[gate].wait()
    return gate


@desk.handler(validate=is_welcome)
async def enter(_: ObjectContext, gate: str) -> str:
    await gates[gate].wait()
    return gate


@pytest.fixture(autouse=True)
def _afresh() -> None:
    for events in (gates, verdicts):
        events.update((name, anyio.Event()) for name in ("open", "shut"))


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(App(desk), store=store_url, namespace=namespace) as runtime:
        yield runtime


async def given_up(client: Client, name: str, gate: str, seconds: float = 0.01) -> str | None:
    """Call and give up, and return the id that was given out."""
    with pytest.raises(CallTimeout) as caught:
        await client.call("Desk", KEY, name, gate, timeout=seconds)
    return caught.value.invocation_id


def lose(partition: Partition, _: bytes) -> None:
    partition.lose()


def fence(partition: Partition, _: bytes) -> None:
    """As when the refused commit was of no lane: nothing but the writer knows of it yet."""
    partition.writer.lose(Fenced())


def turn_away(partition: Partition, _: bytes) -> None:
    """As when the store had no memory for what waits in the lane."""
    turn_away_waiting(partition, partition.lanes[KEY], StoreFull())


@pytest.mark.parametrize("mishap", [lose, fence, turn_away])
async def test_no_id_is_given_out_for_a_call_that_comes_to_nothing_as_its_time_passes(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, mishap: Mishap
) -> None:
    """Nothing of it is durable and nothing will be, so nobody could ever find it."""
    taken_in = PartitionDoor.accepted

    def too_late(door: PartitionDoor, raw_id: bytes) -> asyncio.Future[None]:
        mishap(door._partition, raw_id)
        return taken_in(door, raw_id)

    before = await runtime.client.send(stay, KEY, "open")
    await before.accepted(timeout=10)
    monkeypatch.setattr(PartitionDoor, "accepted", too_late)

    assert await given_up(runtime.client, "stay", "shut") is None
    gates["open"].set()
    assert await before.result(timeout=10) == "open"


async def test_the_id_of_a_call_that_ends_as_its_time_passes_leads_to_the_result(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is durable before its caller asks, and its owner has forgotten it."""
    taken_in = PartitionDoor.accepted

    async def once_over(door: PartitionDoor, raw_id: bytes) -> None:
        gates["open"].set()
        await eventually(lambda: raw_id not in door._partition.open, "it has ended")
        await taken_in(door, raw_id)

    def late(door: PartitionDoor, raw_id: bytes) -> asyncio.Future[None]:
        return asyncio.ensure_future(once_over(door, raw_id))

    monkeypatch.setattr(PartitionDoor, "accepted", late)
    invocation_id = await given_up(runtime.client, "stay", "open")

    assert invocation_id is not None
    assert await runtime.client.attach(invocation_id).result(timeout=10) == "open"


@pytest.mark.parametrize("gate", ["open", "shut"])
async def test_a_call_whose_caller_gave_up_before_the_verdict_has_an_id_if_it_is_let_in(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, gate: str
) -> None:
    """A validator decides after the caller's time has passed; of what it refuses nothing is ever written."""
    taken_in = PartitionDoor.accepted

    def decide(door: PartitionDoor, raw_id: bytes) -> asyncio.Future[None]:
        future = taken_in(door, raw_id)
        verdicts[gate].set()
        return future

    monkeypatch.setattr(PartitionDoor, "accepted", decide)
    invocation_id = await given_up(runtime.client, "enter", gate)

    if gate == "shut":
        assert invocation_id is None
        with pytest.raises(InvocationRefused):
            await runtime.client.call(enter, KEY, gate, timeout=10)
        return
    gates[gate].set()
    assert invocation_id is not None
    assert await runtime.client.attach(invocation_id).result(timeout=10) == gate


async def test_a_repetition_has_an_id_once_its_answer_is_durable(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known for one by what the store remembers of its key, and its answer is written beside its lane."""
    gates["open"].set()
    async with Runtime(App(desk), store=store_url, namespace=namespace) as first:
        await first.client.call(stay, KEY, "open", idempotency_key="once")
    taken_in, recall = PartitionDoor.accepted, claims.recall
    recalls: list[Callable[[], None]] = []
    open_then: list[bool] = []

    def held(*question: Any) -> None:
        recalls.append(partial(recall, *question))

    def watched(door: PartitionDoor, raw_id: bytes) -> asyncio.Future[None]:
        future = taken_in(door, raw_id)
        recalls.pop()()
        future.add_done_callback(lambda _: open_then.append(raw_id in door._partition.open))
        return future

    monkeypatch.setattr(claims, "recall", held)
    monkeypatch.setattr(PartitionDoor, "accepted", watched)
    async with Runtime(App(desk), store=store_url, namespace=namespace) as second:
        with pytest.raises(CallTimeout) as caught:
            await second.client.call(stay, KEY, "open", idempotency_key="once", timeout=0.01)

        assert open_then == [False]
        assert await second.client.attach(caught.value.invocation_id or "").result(timeout=10) == "open"
