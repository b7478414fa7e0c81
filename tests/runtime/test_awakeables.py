"""Awakeables: typed, completed once, and whoever completes is told what became of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import anyio
import pytest

from keylane import (
    Accepted,
    AlreadyCompleted,
    App,
    BlockingClient,
    Client,
    Expired,
    InvalidInput,
    InvalidKey,
    InvocationFailed,
    PayloadTooLarge,
    Runtime,
    Settings,
    TerminalError,
    UnknownObject,
    UnknownTarget,
    WaitTimeout,
)
from keylane.testing import shift_clock
from tests.runtime.signalled_orders import (
    NOON,
    YES,
    Answer,
    Decision,
    app,
    begin_afresh,
    bypass,
    decide,
    decide_blocking,
    decide_soon,
    decide_twice,
    desk,
    gather,
    gather_or_fail,
    given,
    hear,
    id_of,
    order,
    reject,
    resolve,
    tell,
    tell_blocking,
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


@pytest.mark.parametrize("handler", [decide, decide_blocking], ids=["async", "plain"])
async def test_an_awakeable_gives_the_declared_type_exactly(runtime: Runtime, handler: Any) -> None:
    """Models with enums, decimals and times come back equal, in both kinds of handlers."""
    handle = await runtime.client.send(handler, "acme/1", "a")

    verdict = await runtime.client.resolve_awakeable(await id_of("a"), YES, by="ana")

    assert isinstance(verdict, Accepted)
    assert not verdict.replayed
    assert await handle.result(timeout=10) == YES


async def test_an_awakeable_is_completed_with_plain_values_too(runtime: Runtime) -> None:
    """By those who don't have the type, as JSON would say it."""
    handle = await runtime.client.send(decide, "acme/1", "a")
    plain = {"answer": "no", "amount": "1.50", "at": "2026-05-01T12:00:00Z"}

    await runtime.client.resolve_awakeable(await id_of("a"), plain)

    assert await handle.result(timeout=10) == Decision(answer=Answer.NO, amount=Decimal("1.50"), at=NOON)


async def test_a_rejection_is_raised_where_the_awakeable_is_waited_for(runtime: Runtime) -> None:
    """As a terminal error with the message and the code of whoever rejected it."""
    handle = await runtime.client.send(decide, "acme/1", "a")

    verdict = await runtime.client.reject_awakeable(await id_of("a"), "not with me", code="declined")

    assert isinstance(verdict, Accepted)
    with pytest.raises(InvocationFailed, match="not with me") as caught:
        await handle.result(timeout=10)
    assert caught.value.code == "declined"


async def test_a_completion_that_comes_before_the_wait_is_kept_for_it(runtime: Runtime) -> None:
    """And may be waited for more than once."""
    handle = await runtime.client.send(decide_twice, "acme/1", "a")

    assert isinstance(await runtime.client.resolve_awakeable(await id_of("a"), "early"), Accepted)
    assert isinstance(await handle.signal("first", "one"), Accepted)

    assert await handle.result(timeout=10) == ["one", "early", "early"]


async def test_of_a_hundred_concurrent_completions_one_wins_and_all_others_are_told_who(runtime: Runtime) -> None:
    """The verdicts name the winner, and the handler gets the winner's value."""
    handle = await runtime.client.send(decide_twice, "acme/1", "a")
    awakeable_id = await id_of("a")
    verdicts: dict[str, Any] = {}

    async def one(number: int) -> None:
        verdicts[f"n-{number}"] = await runtime.client.resolve_awakeable(awakeable_id, f"n-{number}", by=f"n-{number}")

    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(one, number)
    (winner,) = [name for name, verdict in verdicts.items() if isinstance(verdict, Accepted)]
    losers = [verdict for verdict in verdicts.values() if not isinstance(verdict, Accepted)]
    assert len(losers) == 99
    assert {type(verdict) for verdict in losers} == {AlreadyCompleted}
    assert {verdict.by for verdict in losers} == {winner}
    await handle.signal("first", "one")
    assert await handle.result(timeout=10) == ["one", winner, winner]


async def test_a_wait_that_has_timed_out_ends_its_awakeable(store_url: str, namespace: str) -> None:
    """Never early; who comes later is told so, and waiting once more says the same at once."""
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(decide_soon, "acme/1", "a")
        awakeable_id = await id_of("a")
        await waits(handle)
        await shift_clock(runtime, timedelta(seconds=58))
        assert [step.name for step in (await handle.describe()).steps if not step.is_settled] == [
            "the completion of awakeable 0"
        ]
        await shift_clock(runtime, timedelta(seconds=3))
        verdict = await until_expired(runtime, awakeable_id)
        assert isinstance(verdict, Expired)
        assert verdict.at is not None
        await handle.signal("end", "end")
        assert await handle.result(timeout=10) == ["wait-timeout", "wait-timeout", "end"]
        assert isinstance(await runtime.client.resolve_awakeable(awakeable_id, "later"), Expired)


async def until_expired(runtime: Runtime, awakeable_id: str) -> Any:
    """Wait until the wait for an awakeable has timed out, and complete it then."""
    handle = runtime.client.attach(awakeable_id.rpartition(".")[0])

    async def has_expired() -> bool:
        return (await handle.describe()).waits_for is not None and any(
            step.name == "signal 'end'" for step in (await handle.describe()).steps
        )

    await eventually(has_expired)
    return await runtime.client.resolve_awakeable(awakeable_id, "late")


async def test_every_verdict_is_told_by_its_type(runtime: Runtime) -> None:
    """Unknown ids, ended invocations, short and long, private handlers, and wrong ids."""
    client = runtime.client
    nobody = f"Order.0.{'0' * 32}"
    handle = await client.send(decide, "acme/1", "a")
    awakeable_id = await id_of("a")

    assert await client.resolve_awakeable(f"{nobody}.0", 1) == UnknownTarget()
    assert await client.resolve_awakeable(f"Nothing.0.{'0' * 32}.0", 1) == UnknownTarget()
    assert await client.resolve_awakeable(f"Order.99.{'0' * 32}.0", 1) == UnknownTarget()
    assert await client.signal(nobody, "go", 1) == UnknownTarget()
    assert await client.resolve_awakeable(f"{handle.id}.7", YES) == UnknownTarget()
    assert await client.resolve_awakeable(f"{handle.id}.0-1-2", YES) == UnknownTarget()
    assert isinstance(await client.resolve_awakeable(awakeable_id, YES, by="ana"), Accepted)
    await handle.result(timeout=10)
    again = await client.resolve_awakeable(awakeable_id, YES, by="bob")
    assert isinstance(again, AlreadyCompleted)
    assert again.by == "ana"
    late = await client.signal(handle.id, "go", 1)
    assert isinstance(late, Expired)
    assert late.at is not None
    short = await client.send(bypass, "acme/2")
    await short.result(timeout=10)
    assert await short.signal("go", 1) == Expired(None)
    for wrong in (handle.id, "nonsense", f"{handle.id}.", f"{handle.id}.x"):
        with pytest.raises(InvalidKey):
            await client.resolve_awakeable(wrong, 1)
    with pytest.raises(InvalidKey):
        await client.signal(awakeable_id, "go", 1)
    with pytest.raises(UnknownObject):
        await client.signal_object("Nothing", "acme/1", "go", 1)
    with pytest.raises(InvalidInput):
        await client.signal(handle.id, "", 1)
    with pytest.raises(PayloadTooLarge):
        await client.signal(handle.id, "n" * 300, 1)


async def test_an_awakeable_of_an_ended_invocation_that_nobody_completed_has_expired(runtime: Runtime) -> None:
    """Since the invocation ended."""
    handle = await runtime.client.send(decide_soon, "acme/1", "a")
    awakeable_id = await id_of("a")
    await waits(handle)
    await shift_clock(runtime, timedelta(seconds=61))
    await handle.signal("end", "x")
    await handle.result(timeout=10)

    assert isinstance(await runtime.client.resolve_awakeable(awakeable_id, "late"), Expired)


async def test_handlers_complete_and_signal_and_are_told_the_verdict(runtime: Runtime) -> None:
    """Across types; the verdict is recorded."""
    client = runtime.client
    handle = await client.send(decide_twice, "acme/1", "a")
    awakeable_id = await id_of("a")
    assert await client.call(resolve, "acme/d", [awakeable_id, "it"], timeout=10) == "Accepted"
    assert await client.call(resolve, "acme/d", [awakeable_id, "it"], timeout=10) == "AlreadyCompleted"
    assert await client.call(tell, "acme/d", ["Order", "acme/1", "first", "one"], timeout=10) == "Accepted"
    assert await handle.result(timeout=10) == ["one", "it", "it"]
    assert await client.call(tell_blocking, "acme/d", [handle.id, "first", "one"], timeout=10) == "Expired"
    rejected = await client.send(decide, "acme/2", "b")
    assert await client.call(reject, "acme/d", await id_of("b"), timeout=10) == "Accepted"
    with pytest.raises(InvocationFailed) as caught:
        await rejected.result(timeout=10)
    assert caught.value.code == "said-no"


@pytest.mark.counts_runs
async def test_waits_outlive_their_handlers_and_owners(store_url: str, namespace: str) -> None:
    """What has left memory is found by its id; what comes while nobody is up is taken in at the start."""
    short = App([order, desk, vault], settings=Settings(waiting_residency_seconds=0.05, resident_lanes=1))
    async with Runtime(short, store=store_url, namespace=namespace) as runtime:
        decided = await runtime.client.send(decide, "acme/1", "a")
        heard = await runtime.client.send(gather, "acme/2", 2)
        awakeable_id = await id_of("a")
        await waits(decided)
        await waits(heard)

        async def have_left() -> bool:
            return not any(partition.sleepers for partition in runtime.worker.partitions)

        await eventually(have_left)
        assert trail == ["run", "run"]
        await heard.signal("go", 1)
        ids = decided.id, heard.id
    async with Client(store_url, namespace=namespace) as client:
        with pytest.raises(TimeoutError), anyio.fail_after(0.3):
            await client.resolve_awakeable(awakeable_id, YES, message_id="m")
        with pytest.raises(TimeoutError), anyio.fail_after(0.3):
            await client.signal(ids[1], "go", 2, message_id="m")
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        assert await runtime.client.attach(ids[0], Decision).result(timeout=10) == YES
        assert await runtime.client.attach(ids[1]).result(timeout=10) == [1, 2]
        verdict = await runtime.client.resolve_awakeable(awakeable_id, YES, message_id="m")
        assert isinstance(verdict, Accepted)
        assert verdict.replayed


async def test_what_is_begun_again_gets_what_had_come_for_it_once_more(runtime: Runtime) -> None:
    """Signals that the part that does not stay had taken wait again, in their order."""
    client = runtime.client
    handle = await client.send(gather_or_fail, "acme/1")
    for number in range(3):
        await handle.signal("go", number)

    async def is_paused() -> bool:
        return (await handle.describe()).status == "paused"

    await eventually(is_paused)
    given["mended"] = "yes"
    await client.restart(handle.id, keep=1, reason="a test", by="a test")

    assert await handle.result(timeout=10) == [0, 1, 2]


async def test_a_blocking_client_is_told_the_same(runtime: Runtime, namespace: str) -> None:
    """From a thread, with a handle of its own."""
    handle = await runtime.client.send(decide_twice, "acme/1", "a")
    awakeable_id = await id_of("a")

    def ask() -> list[str]:
        with BlockingClient(runtime.store_url, namespace=namespace) as client:
            verdicts = [
                client.resolve_awakeable(awakeable_id, "it"),
                client.reject_awakeable(awakeable_id, "no"),
                client.attach(handle.id).signal("first", "one"),
                client.signal(handle.id, "first", "two", message_id="m"),
                client.signal_object(order, "acme/9", "first", "three"),
            ]
            return [type(verdict).__name__ for verdict in verdicts]

    told = await anyio.to_thread.run_sync(ask)
    assert told[:3] == ["Accepted", "AlreadyCompleted", "Accepted"]
    assert told[3] in ("Accepted", "Expired")
    assert told[4] == "Accepted"
    assert await handle.result(timeout=10) == ["one", "it", "it"]


async def test_what_an_invocation_waits_for_is_said_with_since_when(runtime: Runtime) -> None:
    """By describe, by inspect, and to those who look at the lane."""
    decided = await runtime.client.send(decide, "acme/1", "a")
    awakeable_id = await id_of("a")
    await waits(decided)
    heard = await runtime.client.send(hear, "acme/2", 60.0)
    await waits(heard)

    told = (await decided.describe()).waits_for
    assert told is not None
    assert awakeable_id in told
    assert "since" in told
    holder = (await runtime.client.inspect("Order", "acme/1")).lane.holder
    assert holder is not None
    assert awakeable_id in holder.why
    signal = (await heard.describe()).waits_for
    assert signal is not None
    assert signal.startswith("waits for signal 'go', since")
    assert "until" in signal


async def test_wait_timeout_is_a_terminal_error_with_a_code_of_its_own() -> None:
    """Handlers that don't catch it fail with it."""
    error = WaitTimeout("signal 'x'", "3 s")

    assert isinstance(error, TerminalError)
    assert error.code == "wait-timeout"
    assert str(error) == "signal 'x' did not come within 3 s"
