"""Awakeables and signals: typed, in order, each taken once, and each sender told what became of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from keylane import (
    Accepted,
    AlreadyCompleted,
    App,
    BlockingClient,
    BlockingObjectContext,
    Client,
    Expired,
    IdempotencyConflict,
    InvalidInput,
    InvalidKey,
    InvocationFailed,
    NotPermitted,
    ObjectContext,
    Overloaded,
    PayloadTooLarge,
    RetryPolicy,
    Runtime,
    Settings,
    SharedContext,
    TerminalError,
    UnknownObject,
    UnknownTarget,
    VirtualObject,
    WaitTimeout,
    WaitVerdict,
)
from keylane.journal.key import parse_id
from keylane.testing import shift_clock
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=2)
given: dict[str, str] = {}
trail: list[str] = []


class Answer(Enum):
    """An answer."""

    YES = "yes"
    NO = "no"


class Decision(BaseModel):
    """What somebody decides."""

    answer: Answer
    amount: Decimal
    at: datetime


order = VirtualObject("Order", owner="tests", partitions=2, state={"log": list[str]}, retry=QUICK)
desk = VirtualObject("Desk", owner="tests", partitions=2, retry=QUICK)
vault = VirtualObject("Vault", owner="tests", partitions=1)
skipping = VirtualObject(
    "Skipping", owner="tests", partitions=1, on_paused="skip",
    retry=RetryPolicy(first=timedelta(milliseconds=1), attempts=1),
)  # fmt: skip


def give(name: str, awakeable_id: str) -> None:
    given[name] = awakeable_id


@order.handler
async def decide(ctx: ObjectContext, name: str) -> Decision:
    trail.append("run")
    awakeable = await ctx.awakeable(Decision)
    await ctx.run("give", give, name, awakeable.id, type=None)
    return await awakeable.wait()


@order.handler
def decide_blocking(ctx: BlockingObjectContext, name: str) -> Decision:
    trail.append("run")
    awakeable = ctx.awakeable(Decision)
    ctx.run("give", give, name, awakeable.id, type=None)
    return awakeable.wait()


@order.handler
async def decide_soon(ctx: ObjectContext, name: str) -> list[str]:
    awakeable = await ctx.awakeable(str)
    await ctx.run("give", give, name, awakeable.id, type=None)
    told: list[str] = []
    for _ in range(2):
        try:
            told.append(await awakeable.wait(timeout=60))
        except WaitTimeout as error:
            told.append(error.code)
    return [*told, await ctx.signal("end", str)]


@order.handler
async def decide_twice(ctx: ObjectContext, name: str) -> list[str]:
    awakeable = await ctx.awakeable(str)
    await ctx.run("give", give, name, awakeable.id, type=None)
    first = await ctx.signal("first", str)
    return [first, await awakeable, await awakeable.wait(timeout=1)]


@order.handler
async def gather(ctx: ObjectContext, count: int) -> list[Any]:
    trail.append("run")
    return [await ctx.signal("go", Any) for _ in range(count)]


@order.handler(retry=RetryPolicy(first=timedelta(milliseconds=1), attempts=1))
async def gather_or_fail(ctx: ObjectContext) -> list[int]:
    taken = [await ctx.signal("go", int) for _ in range(3)]
    if "mended" not in given:
        raise ValueError("not yet")
    return taken


@order.handler
def gather_blocking(ctx: BlockingObjectContext, count: int) -> list[int]:
    return [ctx.signal("go", int) for _ in range(count)]


@order.handler
async def hear(ctx: ObjectContext, seconds: float) -> str:
    try:
        heard = await ctx.signal("go", str, timeout=seconds)
    except WaitTimeout as error:
        heard = f"{error.code}: {error}"
    ctx.set("log", [*await ctx.get("log", list[str], []), heard])
    return heard


@order.handler
async def hear_number(ctx: ObjectContext) -> int:
    trail.append("run")
    return await ctx.signal("go", int)


@order.handler
async def hear_large(ctx: ObjectContext) -> int:
    return len(await ctx.signal("go", str)) + len(await ctx.signal("go", str))


@order.handler(private=True)
async def hidden(ctx: ObjectContext) -> str:
    return await ctx.signal("go", str)


@order.handler
async def forward(ctx: ObjectContext, key: str) -> str:
    return await ctx.call(hidden, key)


@order.handler
async def bypass(ctx: ObjectContext) -> str:
    return "at once"


@order.shared
async def log(ctx: SharedContext) -> list[str]:
    return await ctx.get("log", list[str], [])


@desk.handler
async def resolve(ctx: ObjectContext, words: list[Any]) -> str:
    return type(await ctx.resolve_awakeable(*words)).__name__


@desk.handler
async def reject(ctx: ObjectContext, awakeable_id: str) -> str:
    return type(await ctx.reject_awakeable(awakeable_id, "no", code="said-no")).__name__


@desk.handler
async def tell(ctx: ObjectContext, words: list[Any]) -> str:
    match words:
        case [str() as target, str() as name, value]:
            return type(await ctx.send_signal(target, name, value)).__name__
        case [str() as type_name, str() as key, str() as name, value]:
            return type(await ctx.send_signal((type_name, key), name, value)).__name__
        case _:
            raise TerminalError("neither form")


@desk.handler
def tell_blocking(ctx: BlockingObjectContext, words: list[Any]) -> str:
    target, name, value = words
    return type(ctx.send_signal(target, name, value)).__name__


@vault.handler(private=True)
async def locked(ctx: ObjectContext) -> str:
    return await ctx.signal("go", str)


@skipping.handler
async def hear_once(ctx: ObjectContext) -> str:
    if "mended" not in given:
        with anyio.move_on_after(0.05):
            await ctx.signal("go", str)
        raise ValueError("not in time")
    return await ctx.signal("go", str)


app = App([order, desk, vault, skipping])
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
YES = Decision(answer=Answer.YES, amount=Decimal("40.00"), at=NOON)


@pytest.fixture(autouse=True)
def _afresh() -> None:
    given.clear()
    trail.clear()


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        yield runtime


async def id_of(name: str) -> str:
    """Return the id of an awakeable once it is given out."""

    async def is_given() -> bool:
        return name in given

    await eventually(is_given)
    return given[name]


async def waits(handle: Any) -> None:
    """Wait until an invocation waits, as the store has it."""

    async def waiting() -> bool:
        return (await handle.describe()).status == "waiting"

    await eventually(waiting)


def is_replayed(verdict: WaitVerdict) -> bool:
    """Return whether a message had been accepted before."""
    assert isinstance(verdict, Accepted)
    return verdict.replayed


# awakeables


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


# signals


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


# verdicts


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


# from handlers


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


# residency, owners and clients


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
