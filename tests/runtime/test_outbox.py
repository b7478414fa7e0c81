"""What becomes of messages when a store loses what it had confirmed, on either side of the way."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from keylane import MessageLost, ObjectContext, Runtime, SharedContext, VirtualObject
from keylane.journal.key import parse_id
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.observer import NoObserver
from keylane.runtime import route as route_module
from keylane.runtime.inbox_reader import InboxReader
from keylane.runtime.outbox import Outbox
from keylane.runtime.partition import Partition
from keylane.runtime.route import Route
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

gates: dict[str, anyio.Event] = {}

source = VirtualObject("Source", owner="source-team", partitions=1)
sink = VirtualObject("Sink", owner="sink-team", partitions=1, state={"taken": list[int]})


@source.handler
async def send(ctx: ObjectContext, numbers: list[int]) -> list[str]:
    return [(await ctx.send(take, "acme/k", number)).id for number in numbers]


@source.handler
async def call(ctx: ObjectContext, name: str) -> str:
    try:
        return await ctx.call(hold, "acme/h", name)
    except MessageLost as lost:
        return f"lost: {lost.invocation_id}"


@sink.handler
async def take(ctx: ObjectContext, number: int) -> int:
    ctx.set("taken", [*await ctx.get("taken", list[int], []), number])
    return number


@sink.handler
async def hold(ctx: ObjectContext, name: str) -> str:
    await gates[name].wait()
    return name


@sink.shared
async def taken(ctx: SharedContext) -> list[int]:
    return await ctx.get("taken", list[int], [])


@pytest.fixture(autouse=True)
def _afresh() -> None:
    gates.clear()


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime([source, sink], store=store_url, namespace=namespace) as runtime:
        yield runtime


def spaces(runtime: Runtime) -> tuple[PartitionSpace, PartitionSpace]:
    """Return the partitions of the two types."""
    store = runtime.client.store
    return store.space("Source", 0), store.space("Sink", 0)


async def all_taken(runtime: Runtime, numbers: list[int]) -> None:
    """Wait until these have been taken, in this order, and nothing is on its way."""
    store, (sender, receiver) = runtime.client.store, spaces(runtime)

    async def are_taken() -> bool:
        return await runtime.client.call(taken, "acme/k") == numbers and not await store.call(
            "EXISTS", sender.outbox(receiver.name)
        )

    await eventually(are_taken)


async def test_a_receiver_that_has_lost_its_tail_is_sent_what_the_outbox_still_has(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries are kept for a while where durability is weaker; of those it gets none twice and none too few."""
    store, (sender, receiver) = runtime.client.store, spaces(runtime)
    monkeypatch.setattr(runtime.worker._outbox, "keep_ms", 60_000)
    await runtime.client.call(send, "acme/s", [1, 2, 3], timeout=10)

    async def are_taken() -> bool:
        return await runtime.client.call(taken, "acme/k") == [1, 2, 3]

    await eventually(are_taken)
    # The receiver forgets that it had messages 2 and 3, as an owner does who was not there.
    for partition in runtime.worker.partitions:
        partition._ended.clear()
    history, _, retired = (await store.call("HGET", receiver.marks, sender.name)).split(b":")
    await store.call("HSET", receiver.marks, sender.name, history + b":1:" + retired)
    await runtime.client.call(send, "acme/s", [4], timeout=10)

    async def are_taken_again() -> bool:
        return await runtime.client.call(taken, "acme/k") == [1, 2, 3, 2, 3, 4]

    await eventually(are_taken_again)


async def test_what_the_outbox_no_longer_has_is_reported_and_its_callers_are_told(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    """With the name of the owner; and the messages after it arrive."""
    store, (sender, receiver) = runtime.client.store, spaces(runtime)
    gates["a"] = anyio.Event()
    await runtime.client.call(send, "acme/s", [1], timeout=10)
    handle = await runtime.client.send(call, "acme/c", "a")

    async def waits() -> bool:
        return (await runtime.client.inspect("Sink", "acme/h")).lane.holder is not None

    await eventually(waits)
    await all_taken(runtime, [1])
    told = await handle.describe()
    assert told.waits_for is not None
    callee = told.waits_for.rpartition(" ")[2]
    # The receiver forgets the call: its records, its place in the lane, and the number of its message.
    await store.call("DEL", receiver.invocation(parse_id(callee).raw), receiver.lane("acme/h"))
    history, _, retired = (await store.call("HGET", receiver.marks, sender.name)).split(b":")
    await store.call("HSET", receiver.marks, sender.name, history + b":1:" + retired)

    with caplog.at_level(logging.ERROR, "keylane.outbox"):
        await runtime.client.call(send, "acme/s", [2, 3], timeout=10)
        await all_taken(runtime, [1, 2, 3])
    assert "messages 2 to 2 to Sink:0 are lost" in caplog.text
    assert "source-team" in caplog.text
    assert await handle.result(timeout=10) == f"lost: {callee}"
    gates["a"].set()


async def test_a_new_history_sends_what_has_not_arrived_with_numbers_from_one(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner after a lost tail goes on: what the receiver knows by its id is not taken twice."""
    with monkeypatch.context() as silent:
        silent.setattr(Outbox, "_send", _keep_back)
        async with Runtime([source, sink], store=store_url, namespace=namespace) as runtime:
            ids = await runtime.client.call(send, "acme/s", [1, 2, 3, 4], timeout=10)
            store, (sender, receiver) = runtime.client.store, spaces(runtime)
            # The receiver had message 2 from before the loss, and what came of it.
            await store.call("SET", receiver.result(parse_id(ids[1]).raw), "outcome")
            await store.call("HSET", receiver.marks, sender.name, "0-00000000:9:")
            await store.call("HSET", sender.owner, "history", "7-abcdef01")
    async with Runtime([source, sink], store=store_url, namespace=namespace) as runtime:
        await all_taken(runtime, [1, 3, 4])
        await runtime.client.call(send, "acme/s", [5], timeout=10)
        await all_taken(runtime, [1, 3, 4, 5])
        mark = await runtime.client.store.call("HGET", receiver.marks, sender.name)
        assert mark == b"7-abcdef01:5:0-00000000"
    async with Runtime([source, sink], store=store_url, namespace=namespace) as runtime:
        await runtime.client.call(send, "acme/s", [6], timeout=10)
        await all_taken(runtime, [1, 3, 4, 5, 6])


def _keep_back(outbox: Outbox, route: Route) -> None:
    del outbox, route


async def test_a_sender_that_has_lost_its_tail_unnoticed_begins_anew(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    """The receiver has more than it was sent, so the numbers mean something else: none of ours must be dropped."""
    store, (sender, receiver) = runtime.client.store, spaces(runtime)
    history = await store.call("HGET", sender.owner, "history")
    await store.call("HSET", receiver.marks, sender.name, history + b":5:")

    with caplog.at_level(logging.ERROR, "keylane.outbox"):
        await runtime.client.call(send, "acme/s", [1, 2, 3], timeout=10)
        await all_taken(runtime, [1, 2, 3])

    assert "begin anew: it has taken 5 messages, of which we know 0" in caplog.text
    assert await store.call("HGET", receiver.marks, sender.name) == history + b".1:3:" + history


async def test_without_the_look_at_what_the_receiver_has_messages_are_lost(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A safeguard that nobody would miss is no safeguard: what is below the foreign mark is dropped without a word."""

    def trusting(route: Route) -> Any:
        route.ceiling = 1_000
        return consignment(route)

    consignment = Route.consignment
    monkeypatch.setattr(Route, "consignment", trusting)
    with pytest.raises(TimeoutError):
        with anyio.fail_after(1):
            await test_a_sender_that_has_lost_its_tail_unnoticed_begins_anew(runtime, caplog)


async def test_a_sender_whose_history_is_retired_begins_anew(runtime: Runtime) -> None:
    """Its own note of the history that it had begun was lost, too."""
    store, (sender, receiver) = runtime.client.store, spaces(runtime)
    history = await store.call("HGET", sender.owner, "history")
    await store.call("HSET", receiver.marks, sender.name, history + b".1:5:" + history)

    await runtime.client.call(send, "acme/s", [1, 2], timeout=10)
    await all_taken(runtime, [1, 2])

    assert await store.call("HGET", receiver.marks, sender.name) == b"%b.2:2:%b.1,%b" % (history, history, history)


async def test_without_the_look_at_the_ids_a_new_history_takes_messages_twice(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A safeguard that nobody would miss is no safeguard; what lies there before an owner is looked up in any case."""

    def as_if_new(messages: list[bytes]) -> tuple[list[bytes], list[bytes | None]]:
        return messages, []

    async def as_if_unknown(reader: InboxReader, partition: Partition, requests: list[bytes]) -> list[bool]:
        del reader, partition
        return [False for _ in requests]

    monkeypatch.setattr(route_module, "_sent_again", as_if_new)
    monkeypatch.setattr(InboxReader, "_known", as_if_unknown)
    with pytest.raises(TimeoutError):
        with anyio.fail_after(2):
            await test_a_new_history_sends_what_has_not_arrived_with_numbers_from_one(store_url, namespace, monkeypatch)


async def test_more_messages_than_memory_holds_are_read_from_the_outbox(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, and none twice."""
    monkeypatch.setattr(route_module, "WINDOW_MESSAGES", 3)
    monkeypatch.setattr(route_module, "MESSAGES_PER_CALL", 2)
    monkeypatch.setattr("keylane.runtime.outbox.READ_ENTRIES", 5)
    with monkeypatch.context() as silent:
        silent.setattr(Outbox, "_send", _keep_back)
        await runtime.client.call(send, "acme/s", list(range(40)), timeout=10)
    await runtime.client.call(send, "acme/s", list(range(40, 50)), timeout=10)

    await all_taken(runtime, list(range(50)))


class Slow(NoObserver):
    """Counts deliveries, and notes the numbers that they begin with."""

    def __init__(self) -> None:
        self.firsts: list[int] = []

    def before_send(self, what: str, partition: str, number: int) -> None:
        """Note a delivery."""
        del partition
        if what == "deliver":
            self.firsts.append(number)


async def test_messages_that_are_ready_together_go_out_together(store_url: str, namespace: str) -> None:
    """One call carries many; and a first one, without any, asks how far the receiver has come."""
    observer = Slow()
    async with Runtime([source, sink], store=store_url, namespace=namespace, observer=observer) as runtime:
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(one, runtime, number)

        async def are_taken() -> bool:
            return len(await runtime.client.call(taken, "acme/k")) == 100

        await eventually(are_taken)
    assert observer.firsts[0] == 1
    assert len(observer.firsts) < 50


async def one(runtime: Runtime, number: int) -> None:
    await runtime.client.call(send, f"acme/s-{number}", [number], timeout=10)
