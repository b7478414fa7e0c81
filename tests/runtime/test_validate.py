"""Validators: they look at a call before it enters the lane, and nothing is left of what they refuse."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import anyio
import pytest

from keylane import (
    App,
    BlockingObjectContext,
    BlockingSharedContext,
    Client,
    Handle,
    InvalidInput,
    InvocationRefused,
    ObjectContext,
    RegistrationError,
    Runtime,
    SharedContext,
    TerminalError,
    VirtualObject,
)
from keylane.journal.key import parse_id
from keylane.journal.scan import scan
from keylane.runtime import validating

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
gates: dict[str, anyio.Event] = {}
trail: list[str] = []
account = VirtualObject("Account", owner="tests", partitions=1, state={"balance": int})


async def is_covered(ctx: SharedContext, amount: int) -> None:
    trail.append(f"look at {amount}")
    if amount < 0:
        raise ValueError("a negative amount")
    if amount in (8, 9):
        await gates[str(amount)].wait()
    if amount == 13:
        raise KeyError("thirteen")
    balance = await ctx.get("balance", int, 0)
    if amount > balance:
        raise TerminalError("not covered", code="not-covered", details={"balance": balance})


def is_covered_blocking(ctx: BlockingSharedContext, amount: int) -> None:
    if amount > ctx.get("balance", int, 0):
        raise TerminalError("not covered", code="not-covered")


async def is_idle(ctx: SharedContext) -> None:
    raise TerminalError(f"{ctx.key} is never idle")


@account.handler
async def pay_in(ctx: ObjectContext, amount: int) -> int:
    trail.append(f"pay in {amount}")
    ctx.set("balance", await ctx.get("balance", int, 0) + amount)
    return amount


@account.handler(validate=is_covered)
async def draw(ctx: ObjectContext, amount: int) -> int:
    trail.append(f"draw {amount}")
    left = await ctx.get("balance", int, 0) - amount
    ctx.set("balance", left)
    return left


@account.handler(validate=is_covered_blocking)
def draw_blocking(ctx: BlockingObjectContext, amount: int) -> int:
    return amount


@account.handler(validate=is_idle)
async def close(ctx: ObjectContext) -> None:
    trail.append("close")


@account.handler
async def hold(ctx: ObjectContext, name: str) -> None:
    await gates[name].wait()


@account.handler
async def ask(ctx: ObjectContext, amount: int) -> str:
    """Draw from another account, and tell what came of it."""
    try:
        return f"left {await ctx.call(draw, 'acme/other', amount)}"
    except InvocationRefused as refused:
        return f"{refused.reason_code}: {refused.reason}"


@account.handler
async def tell(ctx: ObjectContext, amount: int) -> str:
    return (await ctx.send(draw, "acme/other", amount)).id


@pytest.fixture(autouse=True)
def _afresh() -> None:
    gates.clear()
    gates.update((name, anyio.Event()) for name in ("8", "9", "held"))
    trail.clear()


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(App([account]), store=store_url, namespace=namespace) as runtime:
        yield runtime


@pytest.fixture(params=["same process", "another process"])
async def client(request: pytest.FixtureRequest, runtime: Runtime) -> AsyncIterator[Client]:
    """A client beside the worker, whose calls go straight into the lane, and one whose calls go through the inbox."""
    if request.param == "same process":
        yield runtime.client
        return
    async with Client(runtime.store_url, namespace=runtime.client.store.namespace) as client:
        yield client


async def test_a_validator_refuses_before_anything_is_queued_or_recorded(client: Client) -> None:
    """The caller is told why, with code and details; the handler never ran, and the object has no history of it."""
    await client.call(pay_in, KEY, 5)
    before = await client.inspect("Account", KEY)
    with pytest.raises(InvocationRefused, match="not covered") as caught:
        await client.call(draw, KEY, 7, idempotency_key="once", timeout=10)
    assert (caught.value.reason_code, caught.value.details) == ("not-covered", {"balance": 5})
    after = await client.inspect("Account", KEY)
    assert (after.timeline, after.lane.open, after.lane.waiting) == (before.timeline, (), ())
    assert "draw 7" not in trail
    claims = client.store.space("Account", 0).tag + b":k:"
    assert [page async for page in scan(client.store, claims) if page] == []


async def test_a_call_that_a_validator_lets_in_is_answered_as_any_other(client: Client) -> None:
    await client.call(pay_in, KEY, 5)
    assert await client.call(draw, KEY, 2, timeout=10) == 3
    handle = await client.send(draw, KEY, 1)
    assert not (await handle.accepted(timeout=10)).replayed
    assert await handle.result(timeout=10) == 2


async def test_a_refused_idempotency_key_is_free_for_another_try(client: Client) -> None:
    """Nothing was claimed: when the state has changed, the same key and arguments are a new call."""
    with pytest.raises(InvocationRefused):
        await client.call(draw, KEY, 3, idempotency_key="k", timeout=10)
    await client.call(pay_in, KEY, 3)
    assert await client.call(draw, KEY, 3, idempotency_key="k", timeout=10) == 0
    assert trail.count("draw 3") == 1


async def test_a_repeated_call_gets_the_first_result_and_is_not_validated_again(client: Client) -> None:
    """What it asked for is done, so that a validator would refuse it by now."""
    await client.call(pay_in, KEY, 3)
    assert await client.call(draw, KEY, 3, idempotency_key="k", timeout=10) == 0
    assert await client.call(draw, KEY, 3, idempotency_key="k", timeout=10) == 0
    assert trail.count("look at 3") == 1


async def test_a_second_call_with_a_key_waits_for_the_verdict_on_the_first(runtime: Runtime) -> None:
    """It is not answered with the result of a call that is refused in the end: it is looked at for itself."""
    await runtime.client.call(pay_in, KEY, 20)
    ends: list[object] = []

    async def call() -> None:
        try:
            ends.append(await runtime.client.call(draw, KEY, 8, idempotency_key="k", timeout=10))
        except InvocationRefused as refused:
            ends.append(refused.reason_code)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        tasks.start_soon(call)
        while "look at 8" not in trail:
            await anyio.sleep(0.001)
        gates["8"].set()
    assert ends == [12, 12]
    assert (trail.count("look at 8"), trail.count("draw 8")) == (1, 1)


async def test_a_validator_reads_what_is_durable_while_the_lane_is_held(runtime: Runtime) -> None:
    await runtime.client.call(pay_in, KEY, 5)
    held = await runtime.client.send(hold, KEY, "held")
    with pytest.raises(InvocationRefused):
        await runtime.client.call(draw, KEY, 6, timeout=10)
    gates["held"].set()
    await held.result(timeout=10)


async def test_calls_enter_in_the_order_of_intake_however_long_their_validators_take(client: Client) -> None:
    """One client's messages to a key stay in order: the quick ones wait behind the slow one."""
    await client.call(pay_in, KEY, 20)
    slow = await client.send(draw, KEY, 8)
    quick = await client.send(draw, KEY, 1)
    other = await client.send(pay_in, KEY, 2)
    while "look at 1" not in trail:
        await anyio.sleep(0.001)
    assert not {"draw 1", "pay in 2"} & set(trail)
    gates["8"].set()
    assert [await each.result(timeout=10) for each in (slow, quick, other)] == [12, 11, 2]


async def test_a_validator_that_takes_too_long_refuses(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else those behind it in the lane would wait for ever."""
    monkeypatch.setattr(validating, "VALIDATOR_SECONDS", 0.05)
    await runtime.client.call(pay_in, KEY, 20)
    with pytest.raises(InvocationRefused) as caught:
        await runtime.client.call(draw, KEY, 9, timeout=10)
    assert caught.value.reason_code == "validator-timeout"
    assert await runtime.client.call(pay_in, KEY, 1, timeout=10) == 1


async def test_a_validator_that_fails_refuses_and_is_logged(runtime: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "keylane.intake"), pytest.raises(InvocationRefused) as caught:
        await runtime.client.call(draw, KEY, 13, timeout=10)
    assert caught.value.reason_code == "validator-failed"
    assert "the validator of Account.draw failed" in caplog.text


async def test_any_value_error_refuses(client: Client) -> None:
    with pytest.raises(InvocationRefused, match="a negative amount") as caught:
        await client.call(draw, KEY, -1, timeout=10)
    assert caught.value.reason_code == "invalid"


async def test_an_argument_that_does_not_fit_never_reaches_the_validator(client: Client) -> None:
    with pytest.raises(InvalidInput):
        await client.call("Account", KEY, "draw", "much", timeout=10)
    assert trail == []


async def test_a_plain_validator_runs_in_a_thread(client: Client) -> None:
    with pytest.raises(InvocationRefused):
        await client.call(draw_blocking, KEY, 1, timeout=10)
    await client.call(pay_in, KEY, 1)
    assert await client.call(draw_blocking, KEY, 1, timeout=10) == 1


async def test_a_handler_without_argument_has_a_validator_without_one(client: Client) -> None:
    with pytest.raises(InvocationRefused, match="acme/o-1 is never idle"):
        await client.call(close, KEY, timeout=10)


async def test_what_is_to_begin_later_is_validated_when_it_is_taken_in(client: Client) -> None:
    """Nothing of a refused one is scheduled."""
    handle: Handle[int] = await client.send(draw, KEY, 3, delay=3600)
    with pytest.raises(InvocationRefused):
        await handle.accepted(timeout=10)
    assert await client.store.call("ZCARD", client.store.space("Account", 0).due) == 0
    await client.call(pay_in, KEY, 3)
    kept = await client.send(draw, KEY, 3, delay=3600)
    await kept.accepted(timeout=10)
    assert (await kept.describe()).status == "scheduled"


async def test_a_refused_call_of_another_object_raises_in_its_caller(client: Client) -> None:
    assert await client.call(ask, KEY, 7, timeout=10) == "not-covered: not covered"


async def test_a_refused_message_of_another_object_is_logged_with_the_owner(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for it, so somebody has to be told."""
    with caplog.at_level(logging.ERROR, "keylane.intake"):
        sent = await runtime.client.call(tell, KEY, 7, timeout=10)
        with pytest.raises(InvocationRefused):
            await runtime.client.attach(sent).result(timeout=10)
    assert "draw at acme/other was refused" in caplog.text
    assert "tests has to look into it" in caplog.text
    stream = runtime.client.store.space("Account", 0).invocation(parse_id(sent).raw)
    assert not await runtime.client.store.call("EXISTS", stream)


async def test_a_call_that_was_not_decided_on_is_validated_by_the_next_owner(store_url: str, namespace: str) -> None:
    """It was never taken in, so it lies in the inbox still."""
    async with Client(store_url, namespace=namespace) as client:
        async with Runtime(App([account]), store=store_url, namespace=namespace) as runtime:
            await runtime.client.call(pay_in, KEY, 20)
            handle = await client.send(draw, KEY, 9)
            while "look at 9" not in trail:
                await anyio.sleep(0.001)
        gates["9"].set()
        async with Runtime(App([account]), store=store_url, namespace=namespace):
            assert await handle.result(timeout=10) == 11
    assert trail.count("look at 9") == 2


def test_a_validator_that_takes_another_argument_than_its_handler_is_refused() -> None:
    made = VirtualObject("Made", owner="tests")

    async def check(ctx: SharedContext, amount: str) -> None: ...

    with pytest.raises(RegistrationError, match=r"takes str, handler Made\.work takes int"):

        @made.handler(validate=check)
        async def work(ctx: ObjectContext, amount: int) -> None: ...


def test_a_validator_that_returns_a_value_is_refused() -> None:
    """What it returns would be taken for a verdict."""
    made = VirtualObject("Made", owner="tests")

    async def check(ctx: SharedContext) -> bool:
        return False

    with pytest.raises(RegistrationError, match="refuses by raising"):

        @made.handler(validate=check)
        async def work(ctx: ObjectContext) -> None: ...
