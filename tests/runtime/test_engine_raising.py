"""A handler may raise, swallow or cancel whatever it likes: its worker and the other objects go on."""

from __future__ import annotations

import asyncio
import contextvars
from datetime import timedelta
from enum import Enum
from typing import Any

import anyio
import pytest
from pydantic import BaseModel, field_validator

from keylane import (
    BlockingObjectContext,
    CallError,
    Client,
    EffectRejected,
    InvalidInput,
    InvocationFailed,
    InvocationPaused,
    ObjectContext,
    PayloadTooLarge,
    Receiver,
    Rejected,
    RetryPolicy,
    Runtime,
    SharedContext,
    StepFailed,
    TerminalError,
    VirtualObject,
)
from keylane.objects.settings import Settings
from keylane.testing import harness

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=2)
TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("TENANT", default="nobody")

till = Receiver("till", owner="tests")
rough = VirtualObject("Rough", owner="tests", partitions=2, retry=QUICK)
kept: list[ObjectContext] = []


class OwnKind(BaseException):
    """Something that is no Exception."""


class Mute(Exception):
    """An error whose text can't be made."""

    def __str__(self) -> str:
        """Fail."""
        raise ValueError("no text")


class Picky(BaseModel):
    """An argument whose validator raises what pydantic does not catch."""

    number: int

    @field_validator("number")
    @classmethod
    def _check(cls, number: int) -> int:
        if number == 13:
            raise RuntimeError("not this one")
        return number


async def one() -> int:
    return 1


async def failing() -> int:
    raise ValueError("never")


async def _await_cancelled() -> None:
    task = asyncio.ensure_future(anyio.sleep_forever())
    await asyncio.sleep(0)
    task.cancel()
    await task


def _cancel_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@rough.handler
async def fine(ctx: ObjectContext) -> str:
    return "fine"


@rough.handler
async def wrong(ctx: ObjectContext, how: str) -> None:
    match how:
        case "cancelled":
            await _await_cancelled()
        case "own task cancelled":
            _cancel_own_task()
            await asyncio.sleep(0)
        case "own kind":
            raise OwnKind
        case "group":
            raise BaseExceptionGroup("several", [asyncio.CancelledError(), KeyError("x")])
        case "exit":
            raise SystemExit(3)
        case _:
            raise Mute


@rough.handler
async def leave_cancelled(ctx: ObjectContext) -> str:
    _cancel_own_task()
    return "left"


@rough.handler
async def fail_at_length(ctx: ObjectContext) -> None:
    raise TerminalError("x" * 5_000_000, details={"text": "y" * 5_000_000})


class Reason(Enum):
    """Codes as a service has them."""

    DECLINED = "card-declined"


#: Codes that are no text, and the words that they come to.
CODES: dict[str, tuple[Any, str]] = {
    "enum": (Reason.DECLINED, "card-declined"),
    "status": (402, "402"),
    "other": (object, "<class 'object'>"),
}


@rough.handler
async def fail_with_code(ctx: ObjectContext, code: str) -> None:
    raise TerminalError("no", code=CODES[code][0])


def _decline(code: str) -> None:
    raise TerminalError("no", code=CODES[code][0])


@rough.handler
async def fail_in_a_step(ctx: ObjectContext, code: str) -> None:
    await ctx.run("decline", _decline, code)


@rough.shared
async def read_with_code(ctx: SharedContext, code: str) -> None:
    raise TerminalError("no", code=CODES[code][0])


#: As the name of a file may be that is no UTF-8.
ODD_NAME = "caf\udce9"


@till.effect("charge")
async def charge(operation_id: str, cents: int) -> int:
    raise Rejected(f"no {ODD_NAME}")


def _open_odd_file() -> None:
    raise FileNotFoundError(ODD_NAME)


async def odd_errors(ctx: ObjectContext) -> list[str]:
    told: list[str] = []
    try:
        await ctx.run("open", _open_odd_file, retry=QUICK, on_exhausted="raise")
    except StepFailed as error:
        told.append(error.error)
    try:
        await ctx.effect(charge, operation_id="charge", params=1)
    except EffectRejected as error:
        told.append(error.reason)
    await ctx.sleep(0.01)
    return told


@rough.handler
async def fail_without_words(ctx: ObjectContext) -> None:
    raise TerminalError(Mute())  # pyright: ignore[reportArgumentType] - as a careless user does


@rough.handler
async def pause_in_group(ctx: ObjectContext) -> int:
    async with asyncio.TaskGroup():
        return await ctx.run("fails", failing, retry=QUICK)


@rough.handler
async def swallow_the_pause(ctx: ObjectContext) -> int:
    try:
        return await ctx.run("fails", failing, retry=QUICK)
    except BaseException:  # noqa: BLE001, the point of this handler
        return -1


@rough.handler
async def interrupted(ctx: ObjectContext) -> int:
    try:
        async with asyncio.timeout(0.01):
            await ctx.run("endless", anyio.sleep_forever, type=None)
    except TimeoutError:
        return await ctx.run("one", one)
    return 0


@rough.handler
async def nested(ctx: ObjectContext) -> int:
    async def outer() -> int:
        return await ctx.run("inner", one)

    return await ctx.run("outer", outer, retry=QUICK)


@rough.handler
async def step_of_its_own(ctx: ObjectContext) -> int:
    async def step() -> int:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.lowlevel.checkpoint)
        with anyio.move_on_after(0.001):
            await anyio.sleep_forever()
        return sum(await asyncio.gather(one(), one()))

    return await ctx.run("step", step)


@rough.handler
async def keep(ctx: ObjectContext) -> None:
    kept.append(ctx)


@rough.handler
async def use_kept(ctx: ObjectContext) -> list[str]:
    old = kept[-1]
    errors: list[str] = []
    calls: list[Any] = [lambda: old.set("x", 1), lambda: old.run("late", one), lambda: old.get("x", int)]
    for call in calls:
        try:
            coroutine = call()
            if coroutine is not None:
                await coroutine
        except RuntimeError as error:
            errors.append(type(error).__name__)
    return errors


@rough.handler
async def tenant(ctx: ObjectContext, name: str) -> str:
    before = TENANT.get()
    TENANT.set(name)
    await asyncio.sleep(0)
    assert TENANT.get() == name
    return before


@rough.handler
async def picky(ctx: ObjectContext, argument: Picky) -> None:
    return


@rough.handler(private=True)
async def secret(ctx: ObjectContext) -> str:
    return "secret"


@rough.handler
def blocking(ctx: BlockingObjectContext) -> int:
    def step() -> int:
        return 5

    return ctx.run("in a thread too", step)


@rough.shared
async def read_wrong(ctx: SharedContext, how: str) -> None:
    if how == "exit":
        raise SystemExit(4)
    await _await_cancelled()


@rough.shared
async def read_much(ctx: SharedContext) -> str:
    return "x" * 2_000_000


@pytest.mark.parametrize("how", ["cancelled", "own task cancelled", "own kind", "group", "exit", "mute"])
async def test_whatever_a_handler_raises_is_retried_and_others_go_on(store_url: str, namespace: str, how: str) -> None:
    """What is no Exception is an outcome of the handler, never the end of the slot or of the worker."""
    async with Runtime([rough], store=store_url, namespace=namespace) as runtime:
        with anyio.fail_after(10):
            with pytest.raises(InvocationPaused):
                await runtime.client.call(wrong, "acme/a", how)
            assert await runtime.client.call(fine, "acme/b") == "fine"


async def test_a_handler_that_cancels_its_own_task_costs_nobody_else(store_url: str, namespace: str) -> None:
    """A cancellation that a handler leaves behind does not hit the next one."""
    async with Runtime([rough], store=store_url, namespace=namespace) as runtime:
        with anyio.fail_after(10):
            assert await runtime.client.call(leave_cancelled, "acme/a") == "left"
            answers = [await runtime.client.call(fine, f"acme/{number}") for number in range(5)]
        assert answers == ["fine"] * 5


@pytest.mark.parametrize("how", ["exit", "cancelled"])
@pytest.mark.parametrize("is_remote", [False, True])
async def test_whatever_a_shared_handler_raises_is_its_answer(
    store_url: str, namespace: str, how: str, *, is_remote: bool
) -> None:
    """In the caller's own task as well as in a slot: the caller gets a failure, and is not cancelled."""
    async with (
        Runtime([rough], store=store_url, namespace=namespace) as runtime,
        Client(store_url, namespace=namespace) as other,
    ):
        client = other if is_remote else runtime.client
        with anyio.fail_after(10):
            with pytest.raises(InvocationFailed):
                await client.call(read_wrong, "acme/a", how)
            assert await client.call(fine, "acme/b") == "fine"


@pytest.mark.parametrize("is_remote", [False, True])
async def test_the_limit_of_an_output_holds_for_shared_handlers(
    store_url: str, namespace: str, *, is_remote: bool
) -> None:
    """A shared handler's output is bounded like any other value."""
    async with (
        Runtime([rough], store=store_url, namespace=namespace) as runtime,
        Client(store_url, namespace=namespace) as other,
    ):
        with pytest.raises(PayloadTooLarge):
            await (other if is_remote else runtime.client).call(read_much, "acme/a", timeout=10)


async def test_an_error_is_recorded_in_bounds(store_url: str, namespace: str) -> None:
    """A message or details of megabytes are cut: each attempt is recorded with its error."""
    async with Runtime([rough], store=store_url, namespace=namespace) as runtime:
        with pytest.raises(InvocationFailed) as caught:
            await runtime.client.call(fail_at_length, "acme/a")
    assert len(caught.value.message) < 20_000
    assert "left out" in str(caught.value.details)


@pytest.mark.parametrize("handler", [fail_with_code, fail_in_a_step, read_with_code])
async def test_a_code_that_is_no_text_is_told_as_a_word(store_url: str, namespace: str, handler: Any) -> None:
    """Of an enum's member its value: nothing that an error says of itself keeps it from being recorded."""
    async with Runtime([rough], store=store_url, namespace=namespace) as runtime:
        for code, (_, word) in CODES.items():
            with pytest.raises(InvocationFailed) as caught:
                await runtime.client.call(handler, "acme/a", code, timeout=10)
            assert (caught.value.message, caught.value.code) == ("no", word)


@pytest.mark.parametrize("force", [None, "replay"])
async def test_an_error_is_what_it_is_whatever_its_text_holds(store_url: str, force: Any) -> None:
    """A step that has failed and an effect that was rejected are caught as such, with an odd name in their words."""
    desk = VirtualObject("Desk", owner="tests", effects=[charge])
    work = desk.handler(odd_errors)
    async with harness(desk, store=store_url, force=force) as h:
        told = await h.call(work, "acme/a", timeout=10)
    assert [text.count("caf\\udce9") for text in told] == [1, 1]


async def test_a_terminal_error_without_words_ends_its_invocation(store_url: str, namespace: str) -> None:
    """As any other error whose text can't be made."""
    async with Runtime([rough], store=store_url, namespace=namespace) as runtime:
        with pytest.raises(InvocationFailed, match="its text can't be made"):
            await runtime.client.call(fail_without_words, "acme/a", timeout=10)


@pytest.mark.parametrize("handler", [pause_in_group, swallow_the_pause])
async def test_a_pause_is_a_pause_whatever_the_handler_wraps_it_in(
    store_url: str, namespace: str, handler: Any
) -> None:
    """A task group round a step turns the suspension into a group, and a broad except swallows it: still paused."""
    async with Runtime([rough], store=store_url, namespace=namespace) as runtime:
        with anyio.fail_after(10):
            with pytest.raises(InvocationPaused):
                await runtime.client.call(handler, "acme/a")
            assert await runtime.client.call(fine, "acme/b") == "fine"


@pytest.mark.parametrize(("handler", "named"), [(interrupted, "timeout="), (nested, "inside step 'outer'")])
async def test_steps_whose_place_is_not_defined_are_refused_by_name(
    store_url: str, namespace: str, handler: Any, named: str
) -> None:
    """A step that is cancelled from around it, or begun inside another one, says what to write instead."""
    async with Runtime([rough], store=store_url, namespace=namespace) as runtime:
        with anyio.fail_after(10), pytest.raises(InvocationPaused) as caught:
            await runtime.client.call(handler, "acme/a")
    assert named in str(caught.value)


async def test_a_step_may_use_timeouts_and_task_groups_inside(store_url: str, namespace: str) -> None:
    """What a step does within itself is its own."""
    async with Runtime([rough], store=store_url, namespace=namespace) as runtime:
        assert await runtime.client.call(step_of_its_own, "acme/a") == 2


async def test_a_context_that_outlives_its_handler_does_nothing(store_url: str, namespace: str) -> None:
    """A reference that was kept reads, writes and records nothing for an invocation that has ended."""
    async with Runtime([rough], store=store_url, namespace=namespace) as runtime:
        await runtime.client.call(keep, "acme/a")
        assert await runtime.client.call(use_kept, "acme/a") == ["ContextClosed"] * 3
        lane = (await runtime.client.inspect("Rough", "acme/a")).lane
        assert lane.open == ()


async def test_context_variables_end_with_the_handler(store_url: str, namespace: str) -> None:
    """The next invocation of the slot does not find what the one before it, of another tenant, has set."""
    async with Runtime([rough], store=store_url, namespace=namespace) as runtime:
        seen = [await runtime.client.call(tenant, f"{name}/a", name) for name in ("acme", "umbrella", "initech")]
    assert seen == ["nobody"] * 3


async def test_a_validator_may_raise_anything(store_url: str, namespace: str) -> None:
    """The value is refused, by the caller that has the type and by the owner for the one that has not."""
    async with Runtime([rough], store=store_url, namespace=namespace) as runtime:
        for key in (None, "once"):
            with pytest.raises(InvalidInput):
                await runtime.client.call(picky, "acme/a", Picky.model_construct(number=13), idempotency_key=key)
            with pytest.raises(InvalidInput):
                await runtime.client.call("Rough", "acme/a", "picky", {"number": 13}, idempotency_key=key, timeout=10)
        assert await runtime.client.call(fine, "acme/a") == "fine"


@pytest.mark.parametrize("is_remote", [False, True])
async def test_a_private_handler_is_private_by_name_too(store_url: str, namespace: str, *, is_remote: bool) -> None:
    """The owner refuses what comes from outside, whoever packed it."""
    async with (
        Runtime([rough], store=store_url, namespace=namespace) as runtime,
        Client(store_url, namespace=namespace) as other,
    ):
        with pytest.raises(CallError, match="private"):
            await (other if is_remote else runtime.client).call("Rough", "acme/a", "secret", timeout=10)


async def test_handlers_in_threads_do_not_wait_for_their_own_threads(store_url: str, namespace: str) -> None:
    """All threads are taken by handlers, and their steps run in threads all the same."""
    settings = Settings(blocking_threads=1)
    async with Runtime([rough], store=store_url, namespace=namespace, settings=settings) as runtime:
        with anyio.fail_after(10):
            assert await runtime.client.call(blocking, "acme/a") == 5
