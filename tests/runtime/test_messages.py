"""Calls and messages between objects: typed, recorded, in order, and no reason for a lane to stand still for ever."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from keylane import (
    App,
    BlockingObjectContext,
    InvalidInput,
    InvocationFailed,
    Key,
    ObjectContext,
    Overloaded,
    PayloadTooLarge,
    RetryPolicy,
    Runtime,
    Sent,
    Settings,
    SharedContext,
    TerminalError,
    UnknownHandler,
    UnknownObject,
    VirtualObject,
)
from keylane.journal.key import parse_id
from keylane.journal.outcomes import Refused, decode_outcome
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=2)
gates: dict[str, anyio.Event] = {}
trail: list[str] = []


class Item(BaseModel):
    """A typed argument and result."""

    name: str
    amount: int = 1


stock = VirtualObject("Stock", owner="stock-team", partitions=4, state={"level": int}, retry=QUICK, backlog=3)
desk = VirtualObject("Desk", owner="desk-team", partitions=4, state={"seen": list[str]}, retry=QUICK)


@stock.handler
async def add(ctx: ObjectContext, item: Item) -> Item:
    level = await ctx.get("level", int, 0) + item.amount
    ctx.set("level", level)
    return Item(name=item.name, amount=level)


@stock.handler(private=True)
async def hidden(ctx: ObjectContext) -> str:
    return "hidden"


@stock.shared
async def level(ctx: SharedContext) -> int:
    return await ctx.get("level", int, 0)


@stock.handler
async def refuse(ctx: ObjectContext) -> None:
    raise TerminalError("none left", code="sold-out", details={"left": 0})


@stock.handler
async def stuck(ctx: ObjectContext, name: str) -> str:
    trail.append(name)
    if name in gates and not gates[name].is_set():
        raise ValueError("not yet")
    return name


@stock.handler
async def hold(ctx: ObjectContext, name: str) -> str:
    trail.append(f"held {name}")
    await gates[name].wait()
    return name


@desk.handler
async def buy(ctx: ObjectContext, item: Item) -> Item:
    return await ctx.call(add, f"acme/{item.name}", item)


@desk.handler
def buy_blocking(ctx: BlockingObjectContext, item: Item) -> Item:
    ctx.send(add, f"acme/{item.name}", Item(name=item.name, amount=100))
    ctx.sleep(0.01)
    return ctx.call(add, Key("acme", item.name), item)


@desk.handler
async def ask(ctx: ObjectContext, words: list[Any]) -> Any:
    return await ctx.call(*words)


@desk.handler
async def tell(ctx: ObjectContext, words: list[Any]) -> str:
    sent = await ctx.send(*words)
    assert isinstance(sent, Sent)
    return sent.id


@desk.handler
async def catch(ctx: ObjectContext, words: list[Any]) -> str:
    try:
        await ctx.call(*words)
    except Exception as error:  # noqa: BLE001, what it is, is the answer
        return f"{type(error).__name__}: {error}"
    return "nothing"


@desk.handler
async def note(ctx: ObjectContext, word: str) -> None:
    ctx.set("seen", [*await ctx.get("seen", list[str], []), word])


@desk.shared
async def seen(ctx: SharedContext) -> list[str]:
    return await ctx.get("seen", list[str], [])


@desk.handler
async def write_around(ctx: ObjectContext, name: str) -> list[str]:
    ctx.set("seen", ["before"])
    await ctx.call(hold, f"acme/{name}", name)
    ctx.set("seen", [*await ctx.get("seen", list[str], []), "after"])
    return await ctx.get("seen", list[str], [])


app = App([stock, desk])


@pytest.fixture(autouse=True)
def _afresh() -> None:
    gates.clear()
    trail.clear()


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        yield runtime


async def test_a_call_by_reference_gives_the_declared_type(runtime: Runtime) -> None:
    """Across types and partitions; what was called has happened once for each call."""
    for number in range(8):
        bought = await runtime.client.call(buy, f"acme/d-{number}", Item(name="tea", amount=2), timeout=10)
        assert bought == Item(name="tea", amount=2 * (number + 1))

    assert await runtime.client.call(level, "acme/tea") == 16


async def test_a_call_by_name_gives_plain_values(runtime: Runtime) -> None:
    """The code of the other object need not be there."""
    words = ["Stock", "acme/tea", "add", {"name": "tea", "amount": 3}]

    assert await runtime.client.call(ask, "acme/d", words, timeout=10) == {"name": "tea", "amount": 3}


async def test_a_plain_function_calls_sends_and_sleeps_too(runtime: Runtime) -> None:
    """Its thread is given back while it waits, and the message before the call arrives before it."""
    bought = await runtime.client.call(buy_blocking, "acme/d", Item(name="tea", amount=1), timeout=10)

    assert bought == Item(name="tea", amount=101)


async def test_more_plain_functions_wait_than_there_are_threads(store_url: str, namespace: str) -> None:
    """A thread that waits is given back, or those that are called would never get one."""
    settings = Settings(blocking_threads=2)
    async with (
        Runtime(App([stock, desk], settings=settings), store=store_url, namespace=namespace) as runtime,
        anyio.create_task_group() as tasks,
    ):
        for number in range(12):
            item = Item(name=f"i-{number}")
            tasks.start_soon(runtime.client.call, buy_blocking, f"acme/d-{number}", item)


async def test_a_shared_handler_is_called_and_leaves_no_lane_waiting(runtime: Runtime) -> None:
    """Its answer comes by the same way."""
    await runtime.client.call(add, "acme/tea", Item(name="tea", amount=7))

    assert await runtime.client.call(ask, "acme/d", ["Stock", "acme/tea", "level"], timeout=10) == 7


async def test_a_private_handler_is_called_from_a_handler_and_from_nowhere_else(runtime: Runtime) -> None:
    """That is what it is for."""
    assert await runtime.client.call(ask, "acme/d", ["Stock", "acme/tea", "hidden"], timeout=10) == "hidden"
    with pytest.raises(Exception, match="private"):
        await runtime.client.call("Stock", "acme/tea", "hidden", timeout=10)


async def test_the_failure_of_a_called_handler_is_raised_with_its_code_and_details(runtime: Runtime) -> None:
    """Caught, it is an answer; uncaught, it ends the caller as failed and not as something to be tried again."""
    words = ["Stock", "acme/tea", "refuse"]

    assert (await runtime.client.call(catch, "acme/d", words, timeout=10)).startswith("InvocationFailed: none left")
    with pytest.raises(InvocationFailed, match="none left") as failed:
        await runtime.client.call(ask, "acme/d", words, timeout=10)
    assert (failed.value.code, failed.value.details) == ("sold-out", {"left": 0})


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["Stock", "acme/tea", "no-such"], UnknownHandler),
        (["Stock", "acme/tea", "add", {"amount": "many"}], InvalidInput),
        (["Nowhere", "acme/tea", "add", 1], UnknownObject),
    ],
)
async def test_a_call_that_is_refused_raises_what_it_was_refused_for(
    runtime: Runtime, words: list[Any], error: type[Exception]
) -> None:
    """The refusal is the recorded outcome of the call."""
    told = await runtime.client.call(catch, "acme/d", words, timeout=10)

    assert told.startswith((f"{error.__name__}:", "InvocationFailed: invalid input"))


async def test_an_argument_above_the_limit_is_refused_before_anything_is_recorded(
    store_url: str, namespace: str
) -> None:
    """The error names the value and the limit."""
    settings = Settings(payload_limit_bytes=1_024)
    async with Runtime(App([stock, desk], settings=settings), store=store_url, namespace=namespace) as runtime:
        large = Item(name="x" * 1_100)
        big = VirtualObject("Big", owner="tests", partitions=1)

        @big.handler
        async def send_large(ctx: ObjectContext) -> None:  # pyright: ignore[reportUnusedFunction]
            await ctx.send(add, "acme/tea", large)

        async with Runtime(App([big], settings=settings), store=store_url, namespace=namespace) as second:
            with pytest.raises(PayloadTooLarge, match="argument"):
                await second.client.call("Big", "acme/b", "send_large", timeout=10)
        assert await runtime.client.call(level, "acme/tea") == 0


async def test_a_sent_message_runs_once_and_its_id_can_be_attached_to(runtime: Runtime) -> None:
    """Nobody waits for it, and whoever wants to know may ask."""
    words = ["Stock", "acme/tea", "add", {"name": "tea", "amount": 5}]
    sent_id = await runtime.client.call(tell, "acme/d", words, timeout=10)

    assert await runtime.client.attach(sent_id, Item).result(timeout=10) == Item(name="tea", amount=5)
    assert await runtime.client.call(level, "acme/tea") == 5


async def test_messages_of_one_object_to_another_keep_their_order(runtime: Runtime) -> None:
    """Also those of many handlers of the sender, one after the other."""
    other = VirtualObject("Other", owner="tests", partitions=2)

    @other.handler
    async def burst(ctx: ObjectContext, start: int) -> None:
        for number in range(start, start + 5):
            await ctx.send(note, "acme/d", str(number))

    store_url = runtime.store_url
    async with Runtime([other], store=store_url, namespace=runtime.namespace) as second:
        for start in range(0, 40, 5):
            await second.client.call(burst, "acme/o", start, timeout=10)

        async def is_complete() -> bool:
            return len(await runtime.client.call(seen, "acme/d")) == 40

        await eventually(is_complete)
    assert await runtime.client.call(seen, "acme/d") == [str(number) for number in range(40)]


async def test_a_message_that_is_refused_is_kept_and_logged_with_the_owners_name(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for it, so somebody has to be told."""
    with caplog.at_level(logging.ERROR, "keylane.intake"):
        sent_id = await runtime.client.call(tell, "acme/d", ["Stock", "acme/tea", "no-such"], timeout=10)
        invocation = parse_id(sent_id)
        space = runtime.client.space_of(invocation)

        async def is_kept() -> bytes | None:
            return await runtime.client.store.call("GET", space.result(invocation.raw))

        await eventually(is_kept)
    assert isinstance(decode_outcome(await is_kept() or b""), Refused)
    assert "stock-team" in caplog.text
    assert "no-such" in caplog.text


async def test_a_full_backlog_is_an_answer_to_a_call_and_no_bound_for_messages(runtime: Runtime) -> None:
    """What was sent waits its turn; what was called is told, as the recorded outcome of the call."""
    gates["tea"] = anyio.Event()
    holding = await runtime.client.send(hold, "acme/tea", "tea")

    async def is_held() -> bool:
        return bool(trail)

    await eventually(is_held)
    for number in range(6):
        words = ["Stock", "acme/tea", "add", {"name": "tea", "amount": 1}]
        await runtime.client.call(tell, f"acme/d-{number}", words, timeout=10)

    async def all_wait() -> bool:
        return (await runtime.client.inspect("Stock", "acme/tea")).lane.length == 7

    await eventually(all_wait)
    told = await runtime.client.call(catch, "acme/d", ["Stock", "acme/tea", "add", {"name": "tea"}], timeout=10)
    assert told.startswith(Overloaded.__name__)
    gates["tea"].set()
    assert await holding.result(timeout=10) == "tea"

    async def is_complete() -> bool:
        return await runtime.client.call(level, "acme/tea") == 6

    await eventually(is_complete)


async def test_a_paused_callee_is_waited_for(runtime: Runtime) -> None:
    """Its caller waits as visibly as it does, and goes on once somebody has resumed it."""
    gates["tea"] = anyio.Event()
    handle = await runtime.client.send(ask, "acme/d", ["Stock", "acme/tea", "stuck", "tea"])

    async def is_paused() -> bool:
        holder = (await runtime.client.inspect("Stock", "acme/tea")).lane.holder
        return holder is not None and holder.status == "paused"

    await eventually(is_paused)
    told = await handle.describe()
    assert told.status == "waiting"
    assert told.waits_for is not None
    assert "Stock.stuck at acme/tea" in told.waits_for
    holder = (await runtime.client.inspect("Stock", "acme/tea")).lane.holder
    assert holder is not None
    gates["tea"].set()
    await runtime.client.resume(holder.id, reason="repaired", by="tests", timeout=10)
    assert await handle.result(timeout=10) == "tea"


async def test_state_is_written_with_the_call_and_read_fresh_behind_it(runtime: Runtime) -> None:
    """What was set before a call is durable while it lasts, and the lane is held."""
    gates["tea"] = anyio.Event()
    handle = await runtime.client.send(write_around, "acme/d", "tea")

    async def is_held() -> bool:
        return bool(trail)

    await eventually(is_held)
    assert await runtime.client.call(seen, "acme/d") == ["before"]
    behind = await runtime.client.send(note, "acme/d", "behind")
    gates["tea"].set()
    assert await handle.result(timeout=10) == ["before", "after"]
    await behind.result(timeout=10)
    assert await runtime.client.call(seen, "acme/d") == ["before", "after", "behind"]


async def test_a_waiting_lane_is_not_among_the_runnable_ones_and_inspect_says_for_what_it_waits(
    runtime: Runtime,
) -> None:
    """A take-over reads the runnable lanes: those that wait must cost it nothing, nor those that queue behind."""
    gates["tea"] = anyio.Event()
    handle = await runtime.client.send(ask, "acme/d", ["Stock", "acme/tea", "hold", "tea"])
    space = runtime.client.space_of(parse_id(handle.id))

    async def waits() -> bool:
        return (await handle.describe()).status == "waiting"

    await eventually(waits)
    assert await runtime.client.store.call("SMEMBERS", space.runnable) == []
    behind = await runtime.client.send(note, "acme/d", "behind")
    assert not (await behind.accepted(timeout=10)).replayed
    assert await runtime.client.store.call("SMEMBERS", space.runnable) == []
    told = (await runtime.client.inspect("Desk", "acme/d")).lane
    assert [each.status for each in told.open] == ["waiting", "queued"]
    assert "waits for the reply to its call of Stock.hold at acme/tea" in told.open[0].why
    assert told.open[1].why == f"waits behind {handle.id}"
    gates["tea"].set()
    await behind.result(timeout=10)


async def test_what_a_shared_handler_lacks_is_said_where_it_is_asked_for(store_url: str, namespace: str) -> None:
    """It reads and leaves no history, so it can't call."""
    wrong = VirtualObject("Wrong", owner="tests", partitions=1)

    @wrong.shared
    async def call_anyway(ctx: SharedContext) -> None:
        await ctx.call(level, "acme/tea")  # pyright: ignore  # noqa: PGH003, what the checkers refuse, too

    async with Runtime([wrong], store=store_url, namespace=namespace) as runtime:
        with pytest.raises(InvocationFailed, match=r"ctx\.call does not exist in a shared handler"):
            await runtime.client.call(call_anyway, "acme/w", timeout=10)


async def test_a_partition_whose_handlers_send_nothing_has_no_key_for_it(runtime: Runtime) -> None:
    """Nobody pays for what they don't use."""
    await runtime.client.call(add, "acme/tea", Item(name="tea"))

    keys = await runtime.client.store.call("KEYS", f"{{{runtime.namespace}:*")
    assert not [key for key in keys if key.endswith((b":sent", b":bases", b":marks")) or b":x:" in key]


async def test_what_has_arrived_leaves_the_outbox(runtime: Runtime) -> None:
    """Nothing but the numbers and the marks is left of messages and of inboxes."""
    for number in range(10):
        await runtime.client.call(buy, f"acme/d-{number}", Item(name=f"i-{number}"), timeout=10)

    async def is_empty() -> bool:
        keys = await runtime.client.store.call("KEYS", f"{{{runtime.namespace}:*:x:*")
        inboxes = await runtime.client.store.call("KEYS", f"{{{runtime.namespace}:*:inbox")
        lengths = [await runtime.client.store.call("XLEN", key) for key in inboxes]
        return not keys and not any(lengths)

    await eventually(is_empty)
