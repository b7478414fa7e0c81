"""Signals: typed, in order, each taken once, and each sender told what became of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import (
    Accepted,
    App,
    Client,
    IdempotencyConflict,
    InvocationFailed,
    NotPermitted,
    Overloaded,
    PayloadTooLarge,
    Runtime,
    Settings,
    WaitVerdict,
)
from keylane.journal.key import parse_id
from keylane.testing import shift_clock
from tests.runtime.signalled_orders import (
    YES,
    app,
    begin_afresh,
    decide,
    decide_twice,
    forward,
    gather,
    gather_blocking,
    given,
    hear,
    hear_large,
    hear_number,
    hear_once,
    id_of,
    log,
    order,
    skipping,
    tell,
    trail,
    vault,
    waits,
)
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _afresh() -> None:
    begin_afresh()


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        yield runtime


def is_replayed(verdict: WaitVerdict) -> bool:
    """Return whether a message had been accepted before."""
    assert isinstance(verdict, Accepted)
    return verdict.replayed


@pytest.mark.parametrize("handler", [gather, gather_blocking], ids=["async", "plain"])
async def test_signals_to_an_invocation_are_taken_once_each_in_order(runtime: Runtime, handler: Any) -> None:
    """Those that come while it waits, and those that come before."""
    handle = await runtime.client.send(handler, "acme/1", 20)

    for number in range(20):
        assert isinstance(await handle.signal("go", number), Accepted)

    assert await handle.result(timeout=10) == list(range(20))


async def test_signals_to_an_object_wait_for_whoever_comes_to_wait(runtime: Runtime) -> None:
    """In order, over several invocations, and none is left behind afterwards."""
    client = runtime.client
    for number in range(6):
        assert isinstance(await client.signal_object(order, "acme/1", "go", number), Accepted)
    told = await client.inspect("Order", "acme/1")
    assert [(signal.name, signal.size_bytes) for signal in told.signals] == [("go", 1)] * 6

    first = await client.send(gather, "acme/1", 2)
    second = await client.send(gather, "acme/1", 4)

    assert await first.result(timeout=10) == [0, 1]
    assert await second.result(timeout=10) == [2, 3, 4, 5]
    assert (await client.inspect("Order", "acme/1")).signals == ()
    space = client.space_of(parse_id(first.id))
    assert await client.store.call("EXISTS", space.signals("acme/1")) == 0


async def test_a_signal_to_an_object_goes_to_the_invocation_that_waits(runtime: Runtime) -> None:
    """By the name, and by the key."""
    handle = await runtime.client.send(gather, "acme/1", 1)
    await waits(handle)

    await runtime.client.signal_object("Order", "acme/1", "other", "no")
    await runtime.client.signal_object("Order", "acme/2", "go", "no")
    await runtime.client.signal_object("Order", "acme/1", "go", "yes")

    assert await handle.result(timeout=10) == ["yes"]


async def test_a_signal_to_the_invocation_goes_before_one_to_its_object(runtime: Runtime) -> None:
    """Both came early."""
    await runtime.client.signal_object(order, "acme/1", "go", "object's")
    blocker = await runtime.client.send(decide_twice, "acme/1", "a")
    await runtime.client.resolve_awakeable(await id_of("a"), "done")
    handle = await runtime.client.send(gather, "acme/1", 2)
    await handle.signal("go", "its own")
    assert [signal.name for signal in (await handle.describe()).signals] == ["go"]
    await blocker.signal("first", "one")
    await runtime.client.signal_object(order, "acme/1", "go", "object's second")

    assert await handle.result(timeout=10) == ["its own", "object's"]
    assert [signal.name for signal in (await runtime.client.inspect("Order", "acme/1")).signals] == ["go"]


@pytest.mark.counts_runs
async def test_a_value_of_another_type_is_refused_where_it_is_waited_for_and_never_retried(runtime: Runtime) -> None:
    """The sender can't know the type; what came is recorded, so no further attempt could get another value."""
    handle = await runtime.client.send(hear_number, "acme/1")

    assert isinstance(await handle.signal("go", "no number"), Accepted)

    with pytest.raises(InvocationFailed, match="signal 'go'") as caught:
        await handle.result(timeout=10)
    assert caught.value.code == "invalid-input"
    assert trail == ["run"]


async def test_a_timeout_is_never_early_and_leaves_no_due_time(runtime: Runtime) -> None:
    """Whether the signal comes or not."""
    client = runtime.client
    late = await client.send(hear, "acme/1", 60.0)
    await waits(late)
    await shift_clock(runtime, timedelta(seconds=58))
    assert (await late.describe()).status == "waiting"
    await shift_clock(runtime, timedelta(seconds=3))
    assert (await late.result(timeout=10)).startswith("wait-timeout: signal 'go' did not come within 60 s")

    early = await client.send(hear, "acme/2", 60.0)
    await waits(early)
    assert await due_times(runtime, early.id) == 1
    await early.signal("go", "in time")
    assert await early.result(timeout=10) == "in time"
    assert await due_times(runtime, early.id) == 0
    assert await client.call(log, "acme/1") == [await late.result()]


async def due_times(runtime: Runtime, invocation_id: str) -> int:
    space = runtime.client.space_of(parse_id(invocation_id))
    return await runtime.client.store.call("ZCARD", space.due)


async def test_early_signals_to_an_object_are_kept_for_the_retention_and_no_longer(runtime: Runtime) -> None:
    """What has expired is given to nobody, and its key goes with the store's own broom."""
    client = runtime.client
    await client.signal_object(order, "acme/1", "go", "old")
    await shift_clock(runtime, timedelta(hours=24, seconds=1))
    await client.signal_object(order, "acme/1", "go", "young")

    handle = await client.send(gather, "acme/1", 1)

    assert await handle.result(timeout=10) == ["young"]
    space = client.space_of(parse_id(handle.id))
    assert await client.store.call("EXISTS", space.signals("acme/1")) == 0
    await client.signal_object(order, "acme/1", "go", "left")
    assert 0 < await client.store.call("PTTL", space.signals("acme/1")) <= 86_460_000


async def test_no_more_than_a_thousand_signals_wait_for_one_object_or_invocation(runtime: Runtime) -> None:
    """The next one is refused; those that are there stay."""
    client = runtime.client
    handle = await client.send(hear_number, "acme/1")
    await waits(handle)

    async def some(begin: int) -> None:
        for number in range(begin, begin + 100):
            await client.signal_object(order, "acme/1", "other", number)
            await handle.signal("another", number)

    async with anyio.create_task_group() as tasks:
        for begin in range(0, 1000, 100):
            tasks.start_soon(some, begin)
    with pytest.raises(Overloaded, match="1,000 signals wait for this object"):
        await client.signal_object(order, "acme/1", "go-on", 1)
    with pytest.raises(Overloaded, match="1,000 signals wait for this invocation"):
        await handle.signal("go-on", 1)
    assert isinstance(await handle.signal("go", 7), Accepted)
    assert await handle.result(timeout=10) == 7
    assert len((await client.inspect("Order", "acme/1")).signals) == 1000


async def test_large_values_are_written_once_and_come_back_whole(store_url: str, namespace: str) -> None:
    """To an object and to an invocation; above the payload limit both sides refuse."""
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        client = runtime.client
        large = "x" * 100_000
        await client.signal_object(order, "acme/1", "go", large)
        handle = await client.send(hear_large, "acme/1")
        await handle.signal("go", large)
        assert await handle.result(timeout=10) == 200_000
        space = client.space_of(parse_id(handle.id))
        assert await client.store.call("HLEN", space.blobs("acme/1")) == 1
        assert await client.store.call("EXISTS", space.signals("acme/1")) == 0
        with pytest.raises(PayloadTooLarge):
            await handle.signal("go", "x" * 1_048_577)
        narrow = Settings(payload_limit_bytes=1024)
    async with (
        Runtime(App([order], settings=narrow), store=store_url, namespace=namespace),
        Client(store_url, namespace=namespace) as elsewhere,
    ):
        with pytest.raises(PayloadTooLarge):
            await elsewhere.signal_object(order, "acme/1", "go", "x" * 5000)


async def test_private_handlers_are_signalled_by_other_handlers_only(runtime: Runtime) -> None:
    """From outside the answer is no, whether by id or by object."""
    client = runtime.client
    handle = await client.send(forward, "acme/1", "acme/2")
    hidden_id = await hidden_invocation(runtime)

    refused = await client.signal(hidden_id, "go", "outside")
    assert isinstance(refused, NotPermitted)
    assert "private" in refused.why
    assert isinstance(await client.signal_object(vault, "acme/1", "go", "outside"), NotPermitted)
    assert await client.call(tell, "acme/1", ["Vault", "acme/1", "go", "inside"], timeout=10) == "Accepted"
    assert await client.call(tell, "acme/1", [hidden_id, "go", "inside"], timeout=10) == "Accepted"
    assert await handle.result(timeout=10) == "inside"


async def hidden_invocation(runtime: Runtime) -> str:
    """Return the id of the private invocation once it waits."""
    found: list[str] = []

    async def has_begun() -> bool:
        holder = (await runtime.client.inspect("Order", "acme/2")).lane.holder
        if holder is not None and holder.status == "waiting":
            found.append(holder.id)
        return bool(found)

    await eventually(has_begun)
    return found[0]


async def test_the_same_message_id_is_taken_once_and_answered_as_the_first_time(runtime: Runtime) -> None:
    """For completions and signals; another content under it is a conflict, another target another message."""
    client = runtime.client
    handle = await client.send(gather, "acme/1", 2)
    told = [is_replayed(await handle.signal("go", "a", message_id="m-1")) for _ in range(3)]
    assert told == [False, True, True]
    with pytest.raises(IdempotencyConflict):
        await handle.signal("go", "b", message_id="m-1")
    assert not is_replayed(await client.signal_object(order, "acme/1", "go", "c", message_id="m-1"))
    assert await handle.result(timeout=10) == ["a", "c"]
    assert is_replayed(await client.signal_object(order, "acme/1", "go", "c", message_id="m-1"))
    assert (await client.inspect("Order", "acme/1")).signals == ()

    decided = await client.send(decide, "acme/2", "a")
    awakeable_id = await id_of("a")
    verdicts = [await client.resolve_awakeable(awakeable_id, YES, message_id="r") for _ in range(2)]
    assert [is_replayed(verdict) for verdict in verdicts] == [False, True]
    assert await decided.result(timeout=10) == YES


async def test_concurrent_senders_of_one_message_id_are_all_accepted_and_taken_once(runtime: Runtime) -> None:
    """Exactly one of them is told that it was new."""
    handle = await runtime.client.send(gather, "acme/1", 2)
    verdicts: list[Any] = []

    async def one() -> None:
        verdicts.append(await handle.signal("go", "a", message_id="m"))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(one)
    assert [verdict.replayed for verdict in verdicts].count(False) == 1
    await handle.signal("go", "b")
    assert await handle.result(timeout=10) == ["a", "b"]


async def test_a_signal_to_what_begins_later_is_kept_for_it(runtime: Runtime) -> None:
    """With its records, in order; the checkup finds nothing odd in it."""
    handle = await runtime.client.send(gather, "acme/1", 2, delay=timedelta(hours=1))
    assert isinstance(await handle.signal("go", 1), Accepted)
    assert isinstance(await handle.signal("go", 2, message_id="m"), Accepted)
    assert is_replayed(await handle.signal("go", 2, message_id="m"))
    assert (await handle.describe()).status == "scheduled"

    await shift_clock(runtime, timedelta(hours=1, seconds=1))

    assert await handle.result(timeout=10) == [1, 2]


async def test_a_signal_for_one_that_was_not_taken_in_yet_takes_it_in_first(runtime: Runtime) -> None:
    """In the order in which its sender asked for the two."""
    blocker = await runtime.client.send(gather, "acme/1", 1)
    handle = await runtime.client.send(gather, "acme/1", 1)
    assert isinstance(await handle.signal("go", "second"), Accepted)
    assert isinstance(await blocker.signal("go", "first"), Accepted)

    assert await blocker.result(timeout=10) == ["first"]
    assert await handle.result(timeout=10) == ["second"]


@pytest.mark.counts_runs
@pytest.mark.parametrize("to", ["invocation", "object"])
async def test_what_is_paused_beside_its_lane_gets_its_signal_when_it_goes_on(runtime: Runtime, to: str) -> None:
    """One to the invocation at once, one to the object unless somebody in the lane takes it meanwhile."""
    client = runtime.client
    handle = await client.send(hear_once, "acme/1")

    async def is_paused() -> bool:
        return (await handle.describe()).status == "paused"

    await eventually(is_paused)
    if to == "object":
        assert isinstance(await client.signal_object(skipping, "acme/1", "go", "it"), Accepted)
        assert [signal.name for signal in (await client.inspect("Skipping", "acme/1")).signals] == ["go"]
    else:
        assert isinstance(await handle.signal("go", "it"), Accepted)
    given["mended"] = "yes"
    await client.resume(handle.id, reason="a test", by="a test")

    assert await handle.result(timeout=10) == "it"
    assert (await client.inspect("Skipping", "acme/1")).signals == ()
