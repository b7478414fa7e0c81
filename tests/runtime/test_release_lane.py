"""Waits that leave the lane to others: what others see meanwhile, and what the invocation finds when it returns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import (
    InvocationFailed,
    Runtime,
)
from keylane.journal.doctor.checkup import Plan, check_up
from keylane.testing import shift_clock
from tests.runtime.releasing_orders import (
    KEY,
    after_branches,
    app_of,
    approval,
    ask,
    ask_round,
    begin_afresh,
    branches_in_a_block,
    careful,
    catching,
    completion,
    gates,
    hold,
    holding_nap,
    in_a_branch,
    nap,
    nap_blocking,
    nap_with_steps,
    note,
    order,
    pass_time,
    set_amount,
    told,
    trail,
    waits,
    words,
)
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _afresh() -> None:
    begin_afresh()


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        yield runtime


async def test_a_wait_that_releases_the_lane_lets_others_change_the_object(runtime: Runtime) -> None:
    """What it had written is durable by then, and it reads what the others have written (A11, released)."""
    client = runtime.client
    napping = await client.send(nap, KEY, "n")
    await waits(runtime, napping.id)
    assert await client.call(words, KEY, timeout=10) == ["n"]
    assert await client.call(note, KEY, "between", timeout=10) == "between"
    await pass_time(runtime)
    assert await napping.result(timeout=10) == ["n", "between"]
    assert told(trail) == told(["n runs", "between", "n runs", "n returns", "n after"])


async def test_a_wait_that_holds_the_lane_lets_no_second_run_begin_before_its_end(runtime: Runtime) -> None:
    """Waiting counts as holding: one at a time stays one at a time (A11, held)."""
    client = runtime.client
    napping = await client.send(holding_nap, KEY, "n")
    await waits(runtime, napping.id)
    behind = await client.send(note, KEY, "behind")
    await behind.accepted(timeout=10)
    assert told(trail) == told(["n runs"])
    await pass_time(runtime)
    assert await napping.result(timeout=10) == []
    assert await behind.result(timeout=10) == "behind"


async def test_a_local_caller_gets_the_answer_of_an_invocation_that_released_its_lane(runtime: Runtime) -> None:
    answers: list[object] = []

    async def call() -> None:
        answers.append(await runtime.client.call(nap, KEY, "n", timeout=20))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)

        async def is_aside() -> bool:
            return bool(
                [lane for partition in runtime.worker.partitions for lane in partition.lanes.values() if lane.aside]
            )

        await eventually(is_aside)
        await pass_time(runtime)
    assert answers == [["n"]]


async def test_who_returns_gets_the_head_of_the_lane_behind_what_runs(runtime: Runtime) -> None:
    """Those that are queued wait for it; what has begun is not disturbed."""
    client = runtime.client
    napping = await client.send(nap, KEY, "n")
    await waits(runtime, napping.id)
    holding = await client.send(hold, KEY, "a")

    async def holds() -> bool:
        return "a holds" in trail

    await eventually(holds)
    queued = await client.send(note, KEY, "queued")
    await queued.accepted(timeout=10)
    await pass_time(runtime)

    async def is_back() -> bool:
        lane = (await client.inspect("Order", KEY)).lane
        return [each.id for each in lane.open] == [holding.id, napping.id, queued.id]

    await eventually(is_back)
    assert "n returns" not in trail
    report = await check_up(client.store, Plan(3.0, "server"))
    assert report.findings == ()
    gates["a"].set()
    assert await napping.result(timeout=10) == ["n"]
    assert await queued.result(timeout=10) == "queued"
    assert trail.index("n returns") < trail.index("queued")


async def test_those_that_return_do_so_in_the_order_of_the_ends_of_their_waits(runtime: Runtime) -> None:
    client = runtime.client
    first = await client.send(ask, KEY, "a")
    await waits(runtime, first.id)
    second = await client.send(nap, KEY, "n")
    await waits(runtime, second.id)
    holding = await client.send(hold, KEY, "b")
    await holding.accepted(timeout=10)
    gates["a"].set()

    async def stand(count: int) -> None:
        async def is_so() -> bool:
            return (await client.inspect("Order", KEY)).lane.length == count

        await eventually(is_so)

    await stand(2)
    await pass_time(runtime)
    await stand(3)
    lane = (await client.inspect("Order", KEY)).lane
    assert [each.id for each in lane.open] == [holding.id, first.id, second.id]
    gates["b"].set()
    assert await first.result(timeout=10) == "answer a"
    assert await second.result(timeout=10) == ["n"]


async def test_a_call_that_releases_the_lane_may_come_back_to_it(runtime: Runtime) -> None:
    """It holds nothing, so it closes no circle."""
    assert await runtime.client.call(ask_round, KEY, "w", timeout=10) == "w"
    assert await runtime.client.call(words, KEY, timeout=10) == ["w"]


async def test_what_is_expected_is_compared_when_the_invocation_returns(runtime: Runtime) -> None:
    client = runtime.client
    superseded = await client.send(careful, KEY, None)
    await waits(runtime, superseded.id)
    await client.call(set_amount, KEY, 2, timeout=10)
    await pass_time(runtime)
    with pytest.raises(InvocationFailed, match="superseded by a change of 'amount'") as caught:
        await superseded.result(timeout=10)
    assert (caught.value.code, caught.value.details) == ("superseded", {"names": ["amount"]})


@pytest.mark.parametrize("own", [None, 5])
async def test_what_others_leave_alone_or_the_handler_itself_writes_is_as_expected(
    runtime: Runtime, own: int | None
) -> None:
    client = runtime.client
    sent = await client.send(careful, KEY, own)
    await waits(runtime, sent.id)
    await client.call(note, KEY, "something else", timeout=10)
    await pass_time(runtime)
    assert await sent.result(timeout=10) == f"amount {own or 1}"


async def test_a_replay_finds_superseded_what_the_first_run_did(store_url: str, namespace: str) -> None:
    """The values that were compared are recorded, whatever the state has come to since."""
    async with Runtime(app_of(drain_limit_seconds=0.1), store=store_url, namespace=namespace) as runtime:
        client = runtime.client
        sent = await client.send(catching, KEY)
        await waits(runtime, sent.id)
        await client.call(set_amount, KEY, 2, timeout=10)
        await pass_time(runtime)
        assert await sent.result(timeout=10) == "amount 2"
        assert told(trail) == told(["superseded ('amount',)", "step"])


async def test_a_plain_function_releases_its_lane(runtime: Runtime) -> None:
    client = runtime.client
    sent = await client.send(nap_blocking, KEY, "n")
    await waits(runtime, sent.id)
    assert await client.call(note, KEY, "between", timeout=10) == "between"
    await pass_time(runtime)
    assert await sent.result(timeout=10) == ["n", "between"]


async def test_each_wait_of_a_block_releases_the_lane_and_its_steps_hold_it(runtime: Runtime) -> None:
    client = runtime.client
    sent = await client.send(nap_with_steps, KEY, "n")
    await waits(runtime, sent.id)
    await client.call(note, KEY, "one", timeout=10)
    await pass_time(runtime)

    async def has_second() -> bool:
        return "n second" in trail and (await sent.describe()).status == "waiting"

    await eventually(has_second)
    await client.call(note, KEY, "two", timeout=10)
    await shift_clock(runtime, timedelta(seconds=1400))
    assert await sent.result(timeout=10) == ["one", "two"]
    assert told(trail) == told(["n first", "one", "n second", "two"])


async def test_the_lane_may_be_released_after_branches_have_ended(runtime: Runtime) -> None:
    client = runtime.client
    sent = await client.send(after_branches, KEY)
    await waits(runtime, sent.id)
    await client.call(note, KEY, "between", timeout=10)
    await pass_time(runtime)
    assert await sent.result(timeout=10) == ["between"]


async def test_a_signal_to_an_object_finds_the_invocation_that_has_released_its_lane(
    store_url: str, namespace: str
) -> None:
    """Though it is in no lane, also at an owner that has taken over."""
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        sent = await runtime.client.send(approval, KEY)
        await waits(runtime, sent.id)
        await runtime.client.call(note, KEY, "between", timeout=10)
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        await runtime.client.signal_object(order, KEY, "approved", "yes")
        assert await runtime.client.attach(sent.id).result(timeout=10) == ["yes", "between"]


async def test_a_released_wait_for_a_signal_ends_with_its_timeout(runtime: Runtime) -> None:
    sent = await runtime.client.send(approval, KEY)
    await waits(runtime, sent.id)
    await pass_time(runtime)
    with pytest.raises(InvocationFailed, match="approved"):
        await sent.result(timeout=10)


async def test_a_signal_that_came_early_ends_a_wait_before_the_lane_is_released(runtime: Runtime) -> None:
    await runtime.client.signal_object(order, KEY, "approved", "yes")
    assert await runtime.client.call(approval, KEY, timeout=10) == ["yes"]


async def test_an_awakeable_is_waited_for_with_the_lane_released(runtime: Runtime) -> None:
    sent = await runtime.client.send(completion, KEY)
    await waits(runtime, sent.id)
    await runtime.client.call(note, KEY, "between", timeout=10)
    awakeable = next(each for each in trail if each.startswith("Order."))
    await runtime.client.resolve_awakeable(awakeable, "done")
    assert await sent.result(timeout=10) == ["done", "between"]


@pytest.mark.parametrize(
    ("handler", "word"),
    [(in_a_branch, "let the branches end first"), (branches_in_a_block, "a handler of another object")],
)
async def test_a_lane_is_not_released_where_branches_go_on_in_it(runtime: Runtime, handler: Any, word: str) -> None:
    """They would lose it under their hands; the error says what to do."""
    handle = await runtime.client.send("Order", KEY, handler.name)

    async def has_failed() -> bool:
        told = await handle.describe()
        return told.error is not None and word in told.error.message

    await eventually(has_failed)
