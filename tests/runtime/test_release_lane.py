"""Waits that leave the lane to others: what others see meanwhile, and what the invocation finds when it returns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import (
    App,
    BlockingObjectContext,
    CallTimeout,
    Client,
    InvocationCancelled,
    InvocationFailed,
    ObjectContext,
    Runtime,
    Settings,
    SharedContext,
    Superseded,
    VirtualObject,
)
from keylane.journal.doctor.checkup import Plan, check_up
from keylane.journal.key import parse_id
from keylane.runtime.forcing import forced
from keylane.testing import shift_clock
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
WHO: dict[str, str] = {"reason": "a look", "by": "ops"}
gates: dict[str, anyio.Event] = {}
trail: list[str] = []
order = VirtualObject("Order", owner="tests", partitions=1, state={"words": list[str], "amount": int})
other = VirtualObject("Other", owner="tests", partitions=1)


@order.handler
async def note(ctx: ObjectContext, word: str) -> str:
    trail.append(word)
    ctx.set("words", [*await ctx.get("words", list[str], []), word])
    return word


@order.handler
async def set_amount(ctx: ObjectContext, amount: int) -> None:
    ctx.set("amount", amount)


@order.handler
async def nap(ctx: ObjectContext, name: str) -> list[str]:
    """Sleep with the lane released, after a write and before a read."""
    trail.append(f"{name} runs")
    await ctx.get("words", list[str], [])
    ctx.set("words", [*await ctx.get("words", list[str], []), name])
    await ctx.sleep(600, release_lane=True)
    trail.append(f"{name} returns")
    await ctx.run("after", trail.append, f"{name} after")
    return await ctx.get("words", list[str], [])


@order.handler
async def holding_nap(ctx: ObjectContext, name: str) -> list[str]:
    trail.append(f"{name} runs")
    await ctx.sleep(600)
    return await ctx.get("words", list[str], [])


@order.handler
def nap_blocking(ctx: BlockingObjectContext, name: str) -> list[str]:
    ctx.set("words", [*ctx.get("words", list[str], []), name])
    with ctx.release_lane(expects=["amount"]):
        ctx.sleep(600)
    return ctx.get("words", list[str], [])


@order.handler
async def nap_with_steps(ctx: ObjectContext, name: str) -> list[str]:
    """Do several things in one block."""
    async with ctx.release_lane():
        await ctx.run("first", trail.append, f"{name} first")
        await ctx.sleep(600)
        await ctx.run("second", trail.append, f"{name} second")
        await ctx.sleep(600)
    return await ctx.get("words", list[str], [])


@order.handler
async def careful(ctx: ObjectContext, own: int | None) -> str:
    """Expect that nobody changes the amount."""
    ctx.set("amount", 1)
    async with ctx.release_lane(expects=["amount"]):
        if own is not None:
            ctx.set("amount", own)
        await ctx.sleep(600)
    return f"amount {await ctx.get('amount', int)}"


@order.handler
async def catching(ctx: ObjectContext) -> str:
    """Go on after having been superseded, with what is there then."""
    try:
        await ctx.sleep(600, release_lane=True, expects=["amount"])
    except Superseded as superseded:
        trail.append(f"superseded {superseded.names}")
        await ctx.run("step", trail.append, "step")
    return f"amount {await ctx.get('amount', int)}"


@order.handler
async def ask(ctx: ObjectContext, name: str) -> str:
    return await ctx.call(answer, "acme/x", name, release_lane=True)


@order.handler
async def ask_round(ctx: ObjectContext, name: str) -> str:
    """Call an object that calls this one."""
    return await ctx.call(come_back, "acme/x", name, release_lane=True)


@order.handler
async def approval(ctx: ObjectContext) -> list[str]:
    """Wait for somebody's word, and tell what has come meanwhile."""
    word = await ctx.signal("approved", str, timeout=600, release_lane=True)
    return [word, *await ctx.get("words", list[str], [])]


@order.handler
async def completion(ctx: ObjectContext) -> list[str]:
    awakeable = await ctx.awakeable(str)
    await ctx.run("tell", trail.append, awakeable.id)
    word = await awakeable.wait(release_lane=True)
    return [word, *await ctx.get("words", list[str], [])]


@order.handler
async def hold(ctx: ObjectContext, name: str) -> str:
    trail.append(f"{name} holds")
    await gates[name].wait()
    ctx.set("amount", 7)
    return name


@order.handler
async def in_a_branch(ctx: ObjectContext) -> None:
    await ctx.gather(ctx.sleep(1, release_lane=True), ctx.sleep(1))


@order.handler
async def branches_in_a_block(ctx: ObjectContext) -> None:
    async with ctx.release_lane():
        await ctx.gather(ctx.sleep(1), ctx.sleep(2))


@order.handler
async def after_branches(ctx: ObjectContext) -> list[str]:
    """Release the lane once all branches have ended."""
    await ctx.gather(ctx.run("a", str, "a"), ctx.run("b", str, "b"))
    await ctx.sleep(600, release_lane=True)
    return await ctx.get("words", list[str], [])


@order.shared
async def words(ctx: SharedContext) -> list[str]:
    return await ctx.get("words", list[str], [])


@other.handler
async def answer(ctx: ObjectContext, name: str) -> str:
    await gates[name].wait()
    return f"answer {name}"


@other.handler
async def come_back(ctx: ObjectContext, name: str) -> str:
    return await ctx.call(note, KEY, name)


def app_of(**numbers: Any) -> App:
    return App([order, other], settings=Settings(**numbers))


@pytest.fixture(autouse=True)
def _afresh() -> None:
    gates.clear()
    gates.update((name, anyio.Event()) for name in ("a", "b", "c"))
    trail.clear()


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        yield runtime


def told(words: list[str]) -> list[str]:
    """Return what handlers have told of themselves; what code outside of steps tells again is left out where forced."""
    return words if forced() is None else list(dict.fromkeys(words))


async def waits(runtime: Runtime, invocation_id: str) -> None:
    """Wait until an invocation waits durably."""

    async def is_so() -> bool:
        return (await runtime.client.describe(invocation_id)).status == "waiting"

    await eventually(is_so)


async def pass_time(runtime: Runtime) -> None:
    await shift_clock(runtime, timedelta(seconds=700))


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


async def test_an_owner_that_takes_over_lets_a_released_invocation_return(store_url: str, namespace: str) -> None:
    """It is in no lane and not in memory: its due time, its reply, and its object lead to it."""
    async with Runtime(app_of(drain_limit_seconds=0.1), store=store_url, namespace=namespace) as runtime:
        napping = await runtime.client.send(nap, KEY, "n")
        asking = await runtime.client.send(ask, KEY, "a")
        await waits(runtime, napping.id)
        await waits(runtime, asking.id)
    async with Runtime(app_of(drain_limit_seconds=0.1), store=store_url, namespace=namespace) as runtime:
        assert await runtime.client.call(note, KEY, "between", timeout=10) == "between"
        gates["a"].set()
        await pass_time(runtime)
        assert await runtime.client.attach(napping.id).result(timeout=10) == ["n", "between"]
        assert await runtime.client.attach(asking.id).result(timeout=10) == "answer a"


async def test_a_released_invocation_leaves_memory_with_its_lane(store_url: str, namespace: str) -> None:
    """A lane that nobody uses is let go of, whatever waits beside it."""
    async with Runtime(app_of(resident_lanes=1), store=store_url, namespace=namespace) as runtime:
        client = runtime.client
        napping = [await client.send(nap, f"acme/o-{n}", f"n{n}") for n in range(5)]
        for each in napping:
            await waits(runtime, each.id)

        async def have_left() -> bool:
            return sum(len(partition.lanes) for partition in runtime.worker.partitions) <= 1

        await eventually(have_left)
        assert sum(len(partition.open) for partition in runtime.worker.partitions) <= 1
        await pass_time(runtime)
        assert [await each.result(timeout=10) for each in napping] == [[f"n{n}"] for n in range(5)]


async def test_a_lane_that_was_released_is_free_for_whoever_takes_over(runtime: Runtime) -> None:
    """Nothing stands in it, so it is not among the runnable ones, and the doctor has nothing to say."""
    client = runtime.client
    napping = await client.send(nap, KEY, "n")
    await waits(runtime, napping.id)

    async def has_left() -> bool:
        return (await client.inspect("Order", KEY)).lane.length == 0

    await eventually(has_left)
    lane = (await client.inspect("Order", KEY)).lane
    assert (lane.open, lane.is_runnable) == ((), False)
    assert [each.id for each in lane.parked] == [napping.id]
    assert "has released its lane" in lane.parked[0].why
    assert "has released its lane" in ((await napping.describe()).waits_for or "")
    report = await check_up(client.store, Plan(3.0, "server"))
    assert report.findings == ()


async def test_a_released_invocation_can_be_paused_and_returns_when_it_is_resumed(runtime: Runtime) -> None:
    """Its wait ends meanwhile; others go on all the time."""
    client = runtime.client
    napping = await client.send(nap, KEY, "n")
    await waits(runtime, napping.id)
    await client.pause(napping.id, **WHO, timeout=10)
    assert await client.call(note, KEY, "one", timeout=10) == "one"
    await pass_time(runtime)
    assert await client.call(note, KEY, "two", timeout=10) == "two"
    assert (await napping.describe()).status == "paused"
    await client.resume(napping.id, **WHO, timeout=10)
    assert await napping.result(timeout=10) == ["n", "one", "two"]


async def test_a_released_invocation_that_is_resumed_before_its_time_waits_on(runtime: Runtime) -> None:
    client = runtime.client
    napping = await client.send(nap, KEY, "n")
    await waits(runtime, napping.id)
    await client.pause(napping.id, **WHO, timeout=10)
    await client.resume(napping.id, **WHO, timeout=10)
    assert (await napping.describe()).status == "waiting"
    assert await client.call(note, KEY, "one", timeout=10) == "one"
    assert (await check_up(client.store, Plan(3.0, "server"))).findings == ()
    await pass_time(runtime)
    assert await napping.result(timeout=10) == ["n", "one"]


async def test_a_released_call_whose_reply_comes_while_it_is_paused_returns_when_it_is_resumed(
    store_url: str, namespace: str
) -> None:
    """Also by way of another owner."""
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        client = runtime.client
        asking = await client.send(ask, KEY, "a")
        await waits(runtime, asking.id)
        await client.pause(asking.id, **WHO, timeout=10)
        gates["a"].set()

        async def has_reply() -> bool:
            stream = client.store.space("Order", 0).invocation(parse_id(asking.id).raw)
            return await client.store.call("XLEN", stream) == 4

        await eventually(has_reply)
    async with Runtime(app_of(), store=store_url, namespace=namespace) as runtime:
        assert await runtime.client.call(note, KEY, "one", timeout=10) == "one"
        await runtime.client.resume(asking.id, **WHO, timeout=10)
        assert await runtime.client.attach(asking.id).result(timeout=10) == "answer a"


async def test_a_key_that_is_paused_keeps_what_returns_from_running(runtime: Runtime) -> None:
    client = runtime.client
    napping = await client.send(nap, KEY, "n")
    await waits(runtime, napping.id)
    await client.pause("Order", KEY, **WHO, timeout=10)
    await pass_time(runtime)

    async def is_back() -> bool:
        return (await client.inspect("Order", KEY)).lane.length == 1

    await eventually(is_back)
    assert "n returns" not in trail
    await client.resume("Order", KEY, **WHO, timeout=10)
    assert await napping.result(timeout=10) == ["n"]


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


@pytest.mark.parametrize("how", ["cancel", "kill"])
async def test_a_released_invocation_can_be_cancelled_and_killed(runtime: Runtime, how: str) -> None:
    """It returns to its lane for its cleanup, or is gone at once; its lane stays free for others."""
    client = runtime.client
    sent = await client.send(nap, KEY, "n")
    await waits(runtime, sent.id)
    await getattr(client, how)(sent.id, **WHO)
    with pytest.raises(InvocationCancelled):
        await sent.result(timeout=10)
    assert await client.call(note, KEY, "after", timeout=10) == "after"
    assert "n returns" not in trail
    space = client.store.space("Order", 0)
    assert await client.store.call("SMEMBERS", space.set_aside(KEY)) == []
    assert (await check_up(client.store, Plan(3.0, "server"))).findings == ()


async def test_callers_behind_a_lane_that_is_held_are_told_by_whom_since_when_and_for_what(runtime: Runtime) -> None:
    """A wait inside an exclusive handler freezes nothing without a word: `status` answers, others see why (A1)."""
    client = runtime.client
    napping = await client.send(holding_nap, KEY, "n")
    await waits(runtime, napping.id)
    with anyio.fail_after(1):
        assert await client.call(words, KEY) == []
    with pytest.raises(CallTimeout) as local:
        await client.call(note, KEY, "behind", timeout=0.1)
    async with Client(runtime.store_url, namespace=client.store.namespace) as elsewhere:
        with pytest.raises(CallTimeout) as remote:
            await elsewhere.call(note, KEY, "behind", timeout=0.1)
        with pytest.raises(CallTimeout) as attached:
            await elsewhere.attach(local.value.invocation_id or "").result(timeout=0.1)
    for caught in (local, remote, attached):
        assert "held since 2" in caught.value.message
        assert napping.id in caught.value.message
        assert "waits in its sleep of 600 s" in caught.value.why
    told = await client.describe(local.value.invocation_id or "")
    assert told.behind is not None
    assert (told.behind.id, told.behind.handler) == (napping.id, "holding_nap")
    assert told.behind.since is not None
    lane = (await client.inspect("Order", KEY)).lane
    assert (lane.holder and lane.holder.id, lane.held_since) == (napping.id, told.behind.since)
    await pass_time(runtime)
    await napping.result(timeout=10)


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
