"""What is used wrongly is refused where it stands, with a word on what to write: nothing hangs, nobody else is hurt."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from keylane import (
    BlockingObjectContext,
    InvalidInput,
    InvalidKey,
    InvocationFailed,
    InvocationPaused,
    ObjectContext,
    RetryPolicy,
    TerminalError,
    UnknownHandler,
    VirtualObject,
    WaitTimeout,
)
from keylane.journal.inbox import submit
from keylane.journal.key import new_invocation_id, partition_of
from keylane.journal.requests import Request, RequestKind
from keylane.testing import Harness, harness

pytestmark = pytest.mark.anyio

KEY = "acme/t-1"
ANSWER_SECONDS = 20
Case = Callable[[Any], Any]
cases: dict[str, Case] = {}
thing = VirtualObject("Thing", owner="tests")


@thing.handler(retry=RetryPolicy(attempts=1, then="fail"))
async def misuse(ctx: ObjectContext, name: str) -> Any:
    return await cases[name](ctx)


@thing.handler(retry=RetryPolicy(attempts=1, then="fail"))
def misuse_in_thread(ctx: BlockingObjectContext, name: str) -> Any:
    return cases[name](ctx)


@thing.handler
async def complete(ctx: ObjectContext, awakeable_id: str) -> None:
    await ctx.resolve_awakeable(awakeable_id, "done")


def one() -> int:
    return 1


async def one_later() -> int:
    return 1


def nested() -> Any:
    """Return a list in a list in a list, deeper than Python goes by itself."""
    value: Any = []
    for _ in range(20_000):
        value = [value]
    return value


#: A wrong use of ctx, and what its refusal says.
WRONG: list[tuple[Case, str]] = [
    (lambda ctx: ctx.run("one", one, timeout=5), "takes a timedelta"),
    (lambda ctx: ctx.run("one", one, timeout=timedelta(0)), "more than 0"),
    (lambda ctx: ctx.run("one", one, retry=3), "RetryPolicy"),
    (lambda ctx: ctx.run("one", one, retries=3), "no option 'retries'"),
    (lambda ctx: ctx.run("one", one, on_exhausted="explode"), "on_exhausted"),
    (lambda ctx: ctx.run("one", one_later()), "give it the function"),
    (lambda ctx: ctx.run(5, one), "name of a step is text"),
    (lambda ctx: ctx.get(5, int), "name of a state value is text"),
    (lambda ctx: ctx.sleep("5"), "number of seconds"),
    (lambda ctx: ctx.sleep(None), "number of seconds"),
    (lambda ctx: ctx.sleep(10**400), "between 0 and"),
    (lambda ctx: ctx.sleep(1, release_lane=True, expects=5), "sequence of names, not int"),
    (lambda ctx: ctx.sleep(1, release_lane=True, expects=[5]), "name of a state value is text"),
    (lambda ctx: ctx.sleep(math.nan), "between 0 and"),
    (lambda ctx: ctx.signal("go", str, timeout="5"), "number of seconds"),
    (lambda ctx: ctx.patched(5), "name of a patch is text"),
    (lambda ctx: ctx.patched([]), "name of a patch is text"),
    (lambda ctx: ctx.signal("go", "no type"), "can't be written down"),
    (lambda ctx: ctx.propose(action=None, amount=1), "the name of an effect"),
    (lambda ctx: ctx.propose(action="refund", amount=nested()), "nested too deeply"),
    (lambda ctx: ctx.propose(action="refund", amount=1, notes={"why": nested()}), "nested too deeply"),
    (lambda ctx: ctx.propose(action="refund", amount=1, concurrent="yes"), "True or False"),
    (lambda ctx: ctx.compensate(5, one), "name of a compensation is text"),
    (lambda ctx: ctx.compensate("one", one, timeout=5), "takes a timedelta"),
    (lambda ctx: ctx.call(5, KEY, "complete"), "not int"),
    (lambda ctx: ctx.call(thing, KEY, "complete"), "write 'Thing'"),
    (lambda ctx: ctx.call(one, KEY), "the function one"),
    (lambda ctx: ctx.call("Thing", KEY, "", None), "the handler's name"),
    (lambda ctx: ctx.call("Thing", KEY, "\ud800", None), "the handler's name"),
    (lambda ctx: ctx.attach(5), "an invocation id looks like"),
    (lambda ctx: ctx.send_signal(5, "go", 1), "object type, key"),
    (lambda ctx: ctx.reject_awakeable(f"{ctx.invocation_id}.0", 5), "reason is text"),
    (lambda ctx: ctx.resolve_awakeable(f"{ctx.invocation_id}.{'9' * 40}", 5), "an awakeable's id looks like"),
]
#: Orders that hold something of another type than their owner reads.
ORDERS: list[Callable[[Any, str], Any]] = [
    lambda client, name: client.cancel(name, reason=5),
    lambda client, name: client.kill(name, by=None, reason="why"),
    lambda client, name: client.resume(name, by="ada", reason=None),
    lambda client, name: client.pause(name, by=5, reason="why"),
    lambda client, name: client.restart(name, keep="0", by="ada", reason="why"),
    lambda client, name: client.restart(name, keep=True, by="ada", reason="why"),
    lambda client, name: client.restart(name, keep=0, version=1.5, by="ada", reason="why"),
    lambda client, name: client.reject_awakeable(f"{name}.0", None),
    lambda client, name: client.reject_awakeable(f"{name}.0", "why", code=5),
    lambda client, name: client.signal(name, "go", 1, by=5),
    lambda client, name: client.signal(name, "go", 1, message_id=5),
    lambda client, name: client.signal(name, "go", 1, timeout="5"),
]


EMPTY_NAMES: list[Callable[[Any], Any]] = [
    lambda client: client.call(complete, KEY, "x", idempotency_key=""),
    lambda client: client.send("Thing", KEY, "complete", "x", idempotency_key=""),
    lambda client: client.signal_object("Thing", KEY, "go", 1, message_id=""),
    lambda client: client.approve(f"Thing/{KEY}#refund.1", by="ana", message_id=""),
    lambda client: client.reconcile_resend("Thing", KEY, "refund-1", by="ana", reason="lost", message_id=""),
]


@pytest.fixture
async def things(store_url: str) -> AsyncIterator[Harness]:
    async with harness(thing, store=store_url) as h:
        yield h


async def told(h: Harness, case: Case, *, handler: Any = misuse) -> str:
    """Return what the caller of a handler is told that does something wrong."""
    cases["case"] = case
    with pytest.raises(InvocationFailed) as failed:
        await h.call(handler, KEY, "case", timeout=ANSWER_SECONDS)
    return failed.value.message


async def answer(h: Harness, case: Callable[[ObjectContext], Awaitable[Any]]) -> Any:
    cases["case"] = case
    return await h.call(misuse, KEY, "case", timeout=ANSWER_SECONDS)


async def test_an_awakeable_is_completed_for_every_branch_that_waits_for_it(things: Harness) -> None:
    """A signal is taken by one wait; an awakeable has one value, for all who hold it."""

    async def gathered(ctx: ObjectContext) -> list[str]:
        awakeable = await ctx.awakeable(str)
        await ctx.send(complete, "acme/other", awakeable.id)
        return list(await ctx.gather(awakeable, awakeable.wait(timeout=timedelta(days=1)), awakeable.wait()))

    assert await answer(things, gathered) == ["done"] * 3


async def test_an_awakeable_expires_for_every_branch_that_waits_for_it(things: Harness) -> None:
    """Nothing can complete it any more, so nobody may wait on; all are told the time after which it ended."""

    async def gathered(ctx: ObjectContext) -> list[str]:
        awakeable = await ctx.awakeable(str)

        async def waited(timeout: float | None) -> str:
            try:
                await awakeable.wait(timeout=timeout)
            except WaitTimeout as error:
                return error.waited
            return "completed"

        return list(await ctx.gather(waited(None), waited(2), waited(50)))

    assert await answer(things, gathered) == ["2 s"] * 3


async def test_a_coroutine_that_is_given_twice_is_refused(things: Harness) -> None:
    """It can run only once: the second branch would wait for ever, or run the first one's code."""

    async def in_one_call(ctx: ObjectContext) -> Any:
        step = ctx.run("one", one)
        return await ctx.gather(step, step)

    async def in_a_group(ctx: ObjectContext) -> Any:
        async with ctx.task_group() as group:
            step = ctx.run("one", one)
            group.create_task(step)
            group.create_task(step)

    async def while_it_runs(ctx: ObjectContext) -> Any:
        async with ctx.task_group() as group:
            sleep = ctx.sleep(1)
            group.create_task(sleep)
            await ctx.run("one", one)
            await ctx.select(sleep=sleep)

    async def after_it_was_awaited(ctx: ObjectContext) -> Any:
        step = ctx.run("one", one)
        await step
        return await ctx.gather(step)

    for case in (in_one_call, in_a_group, while_it_runs, after_it_was_awaited):
        assert "it can run only once" in await told(things, case)


async def test_a_refused_second_use_of_a_coroutine_leaves_the_first_alone(things: Harness) -> None:
    """The branch that has it goes on."""

    async def caught(ctx: ObjectContext) -> int:
        async with ctx.task_group() as group:
            step = ctx.run("one", one)
            task = group.create_task(step)
            with pytest.raises(RuntimeError):
                group.create_task(step)
        return await task

    assert await answer(things, caught) == 1


@pytest.mark.parametrize(
    ("given", "remedy"),
    [([one_later], "asterisk"), (one_later, "call it"), (5, "needs no waiting")],
)
async def test_what_is_no_branch_is_refused_with_what_to_write(things: Harness, given: Any, remedy: str) -> None:
    """A list, a function, and a value are not awaitable, each for a reason of its own."""

    async def gathered(ctx: ObjectContext) -> Any:
        return await ctx.gather(given)

    assert remedy in await told(things, gathered)


async def test_a_group_that_is_not_open_says_when_it_is(things: Harness) -> None:
    """Before its block as well as behind it."""

    async def before(ctx: ObjectContext) -> Any:
        group: Any = ctx.task_group()
        group.create_task(ctx.run("one", one))

    assert "not open" in await told(things, before)


async def in_group(ctx: ObjectContext, task: Any) -> None:
    async with ctx.task_group() as group:
        group.create_task(task)


async def in_turn(ctx: ObjectContext, task: Any) -> None:
    async for each in ctx.as_completed(task):
        await each


#: What takes a task, and would wait for it.
TAKERS: dict[str, Callable[[ObjectContext, Any], Any]] = {
    "gather": lambda ctx, task: ctx.gather(ctx.run("one", one), task),
    "select": lambda ctx, task: ctx.select(it=task),
    "as_completed": in_turn,
    "task_group": in_group,
}


@pytest.mark.parametrize("taker", TAKERS)
async def test_a_task_of_another_run_is_refused(things: Harness, taker: str) -> None:
    """It ends with the run that made it: whether that goes on, or has ended."""
    tasks: list[Any] = []
    has_begun = asyncio.Event()

    async def ends(ctx: ObjectContext) -> None:
        async with ctx.task_group() as group:
            tasks.append(group.create_task(ctx.run("one", one)))

    async def goes_on(ctx: ObjectContext) -> None:
        async with ctx.task_group() as group:
            tasks.append(group.create_task(ctx.sleep(timedelta(days=1))))
            has_begun.set()

    await answer(things, ends)
    cases["goes on"] = goes_on
    await things.send(misuse, "acme/t-2", "goes on")
    await asyncio.wait_for(has_begun.wait(), ANSWER_SECONDS)
    for task in tasks:
        refused = await told(things, lambda ctx, task=task: TAKERS[taker](ctx, task))
        assert refused.startswith(f"ctx.{taker} was given a task")
        assert "not of this run" in refused


#: Calls of a plain function's context; none may be made in a thread that is not the function's.
IN_THREADS: list[Case] = [
    lambda ctx: ctx.run("one", one),
    lambda ctx: ctx.get("value", int),
    lambda ctx: ctx.set("value", 1),
    lambda ctx: ctx.sleep(0.001),
    lambda ctx: ctx.uuid(),
    lambda ctx: ctx.awakeable(str),
]


@pytest.mark.parametrize("case", IN_THREADS)
async def test_another_thread_than_the_handlers_is_refused(things: Harness, case: Case) -> None:
    """Its place in the journal would be where the thread happened to come to."""

    def elsewhere(ctx: BlockingObjectContext) -> None:
        with ThreadPoolExecutor() as pool:
            pool.submit(case, ctx).result()

    assert "in a thread that does not run the handler" in await told(things, elsewhere, handler=misuse_in_thread)


async def test_the_context_of_another_plain_handler_is_refused(things: Harness) -> None:
    """Its thread is one of the runtime's, too, and is not the one that the context belongs to."""
    lent: list[BlockingObjectContext] = []
    is_used = threading.Event()

    def lends(ctx: BlockingObjectContext) -> int:
        lent.append(ctx)
        assert is_used.wait(ANSWER_SECONDS)
        return ctx.run("one", one)

    def borrows(ctx: BlockingObjectContext) -> None:
        try:
            lent[0].run("one", one)
        finally:
            is_used.set()

    cases["lends"] = lends
    lending = await things.send(misuse_in_thread, "acme/t-2", "lends")
    async with asyncio.timeout(ANSWER_SECONDS):
        while not lent:
            await asyncio.sleep(0)
    assert "in a thread that does not run the handler" in await told(things, borrows, handler=misuse_in_thread)
    assert await lending.result(timeout=ANSWER_SECONDS) == 1


async def raises_generator_exit(_: object) -> None:
    raise GeneratorExit


def raise_generator_exit(_: object = None) -> int:
    raise GeneratorExit


async def test_no_exception_of_user_code_takes_the_worker_along(things: Harness) -> None:
    """One that Python itself raises to end a coroutine is no order to the worker when it comes from a handler."""

    async def in_a_branch(ctx: ObjectContext) -> None:
        await ctx.gather(raises_generator_exit(ctx), ctx.sleep(60))

    async def in_a_step(ctx: ObjectContext) -> None:
        await ctx.run("step", raise_generator_exit, retry=RetryPolicy(attempts=1), on_exhausted="raise")

    for case in (raises_generator_exit, in_a_branch, in_a_step):
        assert "GeneratorExit" in await told(things, case)
    assert "GeneratorExit" in await told(things, raise_generator_exit, handler=misuse_in_thread)
    assert await answer(things, lambda ctx: ctx.run("one", one)) == 1


async def test_a_group_of_exceptions_is_told_with_what_is_in_it(things: Harness) -> None:
    """Who used a task group of asyncio gets the same word on it as who used a task; and no failure is without one."""

    async def grouped(ctx: ObjectContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.sleep(1))

    async def silent(ctx: ObjectContext) -> None:
        raise StopAsyncIteration

    assert "use ctx.gather" in await told(things, grouped)
    assert await told(things, silent) == "StopAsyncIteration"


async def test_an_undo_that_asks_ctx_is_parked_with_the_reason(things: Harness) -> None:
    """An undo is a step: what it asked for would have no place in the journal."""

    async def undone(ctx: ObjectContext) -> None:
        ctx.compensate("nap", ctx.sleep, 1, retry=RetryPolicy(attempts=1))
        raise TerminalError("no", code="no")

    cases["case"] = undone
    with pytest.raises(InvocationPaused, match=r"ctx\.sleep.*inside step 'undo nap'"):
        await things.call(misuse, KEY, "case", timeout=ANSWER_SECONDS)


@pytest.mark.parametrize(("case", "word"), WRONG)
async def test_a_wrong_argument_is_refused_at_once_with_what_to_write(things: Harness, case: Case, word: str) -> None:
    """Nothing of it is written or sent, in awaiting handlers and in plain ones."""

    async def awaited(ctx: ObjectContext) -> Any:
        doing = case(ctx)
        return await doing if asyncio.iscoroutine(doing) else doing

    assert word in await told(things, awaited)
    assert word in await told(things, case, handler=misuse_in_thread)


async def test_an_awakeable_in_place_of_its_id_is_told_so(things: Harness) -> None:
    """The same for a handle in place of the id of an invocation."""

    async def given_itself(ctx: ObjectContext) -> Any:
        return await ctx.resolve_awakeable(await ctx.awakeable(), 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    assert "write its .id" in await told(things, given_itself)
    handle: Any = await things.send(complete, KEY, "x")
    with pytest.raises(InvalidKey, match=r"write its \.id"):
        await things.client.cancel(handle)


@pytest.mark.parametrize("ask", ORDERS)
async def test_an_order_of_the_wrong_type_never_reaches_an_owner(
    things: Harness, ask: Callable[[Any, str], Any]
) -> None:
    """An owner could not read it: whoever asked would hear of a malformed record, or nothing at all."""
    handle = await things.send(complete, KEY, "no id")
    with pytest.raises(TypeError, match=r"(is text|whole number|number of seconds)"):
        await ask(things.client, handle.id)


@pytest.mark.parametrize("ask", EMPTY_NAMES)
async def test_an_empty_name_for_asking_again_is_refused(things: Harness, ask: Callable[[Any], Any]) -> None:
    """It would be the same for all callers that have none, who would get each other's answers."""
    with pytest.raises(InvalidInput, match=r"(idempotency_key|message_id): it is empty"):
        await ask(things.client)


async def test_a_name_for_asking_again_that_no_bytes_can_carry_is_refused(things: Harness) -> None:
    """It is said which of the arguments it is."""
    with pytest.raises(InvalidInput, match="idempotency_key: it has a lone surrogate"):
        await things.call(complete, KEY, "x", idempotency_key="\ud800")


@pytest.mark.parametrize("timeout", [math.nan, math.inf])
async def test_a_timeout_that_is_no_time_is_refused(things: Harness, timeout: float) -> None:
    """Who wants to wait for ever leaves it out."""
    with pytest.raises(ValueError, match="leave it out"):
        await things.call(complete, KEY, "x", timeout=timeout)


@pytest.mark.parametrize("keep", [-1, 2**70])
async def test_a_number_of_commands_that_nobody_has_is_refused(things: Harness, keep: int) -> None:
    """Below none, and above what can be written down."""
    handle = await things.send(complete, KEY, "no id")
    with pytest.raises(ValueError, match="keep is"):
        await things.client.restart(handle.id, keep=keep, by="ada", reason="why")


async def test_a_request_whose_refusal_cant_be_spelled_is_refused_all_the_same(things: Harness) -> None:
    """Else it would stay in the inbox and be stumbled over for ever, with all that comes behind it."""
    with pytest.raises(InvalidInput):
        await things.client.call("Thing", KEY, "\ud800", None)
    store = things.client.store
    space = store.space("Thing", partition_of(KEY, things.settings.partitions or 0))
    poison = Request(RequestKind.SEND, new_invocation_id(), "\ud800", KEY, None)

    await submit(store, space, poison)

    raw = f"Thing.{space.number}.{poison.invocation.hex()}"
    with pytest.raises(UnknownHandler, match="ud800"):
        await things.attach(raw).accepted(timeout=ANSWER_SECONDS)
    assert await answer(things, lambda ctx: ctx.run("one", one)) == 1
