"""Handlers in several versions: an invocation ends with the one that it began with, or says which one it lacks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import CallError, Handle, InvalidInput, InvocationPaused, ObjectContext, Runtime, Settings, VirtualObject
from keylane.testing import shift_clock
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

gates: dict[str, anyio.Event] = {}
trail: list[str] = []


@pytest.fixture(autouse=True)
def _afresh() -> None:
    gates.clear()
    trail.clear()


def desk(versions: Iterable[int], *, more: bool = False, on_paused: Any = "hold", takes: Any = str) -> VirtualObject:
    """Return a type whose handler `work` is there in some versions, each of which says which one it is."""
    made = VirtualObject("Desk", owner="desk-oncall", partitions=1, on_paused=on_paused)

    def declare(version: int) -> None:
        async def work(ctx: ObjectContext, name: Any) -> str:
            await ctx.run(f"step of {version}", _note, f"{name} {version}")
            if name in gates:
                await ctx.sleep(3600)
            return f"{name} by {version}"

        work.__annotations__["name"] = takes
        made.handler(name="work", version=version)(work)

    for version in versions:
        declare(version)
    if more:

        @made.handler
        async def other(ctx: ObjectContext) -> str:  # pyright: ignore[reportUnusedFunction]
            return "other"

    return made


def _note(text: str) -> None:
    trail.append(text)


async def status(handle: Handle[Any], wanted: str) -> None:
    """Wait until an invocation stands so."""

    async def is_so() -> bool:
        return (await handle.describe()).status == wanted

    await eventually(is_so)


def opened(store_url: str, namespace: str, hosted: VirtualObject, **numbers: Any) -> Runtime:
    return Runtime([hosted], store=store_url, namespace=namespace, settings=Settings(**numbers))


async def begun(store_url: str, namespace: str, hosted: VirtualObject) -> str:
    """Have an invocation begin under a type and be left to the next owner while it sleeps."""
    async with opened(store_url, namespace, hosted) as runtime:
        gates["a"] = anyio.Event()
        handle = await runtime.client.send("Desk", "acme/d", "work", "a")
        await status(handle, "waiting")
        gates.clear()
        return handle.id


async def wake(runtime: Runtime) -> None:
    """Let what sleeps or begins later go on."""
    gates["a"] = anyio.Event()
    await shift_clock(runtime, timedelta(hours=2))


async def test_new_calls_take_the_highest_version(store_url: str, namespace: str) -> None:
    """In whatever order the versions are declared."""
    async with opened(store_url, namespace, desk([2, 3, 1])) as runtime:
        assert await runtime.client.call("Desk", "acme/d", "work", "x", timeout=10) == "x by 3"


async def test_an_invocation_ends_with_the_version_that_it_began_with(store_url: str, namespace: str) -> None:
    """A deploy that adds a version leaves what is in flight to the old one."""
    invocation_id = await begun(store_url, namespace, desk([1]))
    async with opened(store_url, namespace, desk([1, 2])) as runtime:
        await wake(runtime)
        assert await runtime.client.attach(invocation_id, str).result(timeout=10) == "a by 1"
        assert await runtime.client.call("Desk", "acme/d", "work", "b", timeout=10) == "b by 2"
    assert trail == ["a 1", "b 2"]


async def test_deploying_another_handler_strands_nothing(store_url: str, namespace: str) -> None:
    """A version is what somebody says it is, never a hash of the source."""
    invocation_id = await begun(store_url, namespace, desk([1]))
    async with opened(store_url, namespace, desk([1], more=True)) as runtime:
        await wake(runtime)
        assert await runtime.client.attach(invocation_id, str).result(timeout=10) == "a by 1"
    assert trail == ["a 1"]


async def test_an_invocation_whose_version_is_gone_says_which_one_it_needs(
    store_url: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is paused where everybody can see it, and its owner is named in the log; it never stalls in silence."""
    invocation_id = await begun(store_url, namespace, desk([1]))
    async with opened(store_url, namespace, desk([2])) as runtime:
        await wake(runtime)
        handle = runtime.client.attach(invocation_id, str)
        await status(handle, "paused")
        pause = (await handle.describe()).pause
        assert pause is not None
        assert (pause.reason, pause.in_charge) == ("needs_version", "desk-oncall")
        assert pause.detail == "needs version 1 of handler 'work'; this code has 2"
        with pytest.raises(InvocationPaused, match="needs version 1"):
            await handle.result(timeout=10)
        with pytest.raises(CallError, match=r"needs version 1 of handler 'work'.*deploy it again"):
            await runtime.client.resume(invocation_id, reason="try", by="tests", timeout=10)
    assert any("needs version 1" in each.message and "desk-oncall" in each.message for each in caplog.records)
    assert trail == ["a 1"]


async def test_what_is_in_flight_waits_for_code_that_reads_its_argument(store_url: str, namespace: str) -> None:
    """It has done something already, so it is not over with an argument that new code can't read; a new call is."""
    invocation_id = await begun(store_url, namespace, desk([1]))
    async with opened(store_url, namespace, desk([1], takes=int)) as runtime:
        with pytest.raises(InvalidInput):
            await runtime.client.call("Desk", "acme/other", "work", "a", timeout=10)
        await wake(runtime)
        with pytest.raises(InvocationPaused, match="the recorded argument does not fit this code") as caught:
            await runtime.client.attach(invocation_id, str).result(timeout=10)
        assert caught.value.reason == "diverged"
    async with opened(store_url, namespace, desk([1])) as runtime:
        await runtime.client.resume(invocation_id, reason="took it back", by="tests", timeout=10)
        assert await runtime.client.attach(invocation_id, str).result(timeout=10) == "a by 1"
    assert trail == ["a 1"]


async def test_what_needed_a_version_goes_on_by_itself_where_that_is_deployed(store_url: str, namespace: str) -> None:
    """In a rolling deploy work moves to and fro between old and new code, and nobody has to resume any of it."""
    invocation_id = await begun(store_url, namespace, desk([2]))
    async with opened(store_url, namespace, desk([1])) as runtime:
        await wake(runtime)
        await status(runtime.client.attach(invocation_id, str), "paused")
    async with opened(store_url, namespace, desk([1, 2])) as runtime:
        handle = runtime.client.attach(invocation_id, str)
        await status(handle, "completed")
        assert await handle.result(timeout=10) == "a by 2"
        assert await runtime.client.call("Desk", "acme/d", "work", "b", timeout=10) == "b by 2"
    assert trail == ["a 2", "b 2"]


async def test_a_handler_that_a_worker_does_not_have_yet_is_waited_for_as_well(store_url: str, namespace: str) -> None:
    """An old worker that takes over what a new one had begun leaves it to the next new one."""
    async with opened(store_url, namespace, desk([1], more=True)) as runtime:
        later = await runtime.client.send("Desk", "acme/d", "other", delay=3600)
        await status(later, "scheduled")
    async with opened(store_url, namespace, desk([1])) as runtime:
        await wake(runtime)
        handle = runtime.client.attach(later.id, str)
        await status(handle, "paused")
        pause = (await handle.describe()).pause
        assert pause is not None
        assert pause.detail == "needs handler 'other', version 1; this code has no handler of that name"
    async with opened(store_url, namespace, desk([1], more=True)) as runtime:
        handle = runtime.client.attach(later.id, str)
        await status(handle, "completed")
        assert await handle.result(timeout=10) == "other"


async def test_where_paused_ones_let_others_pass_one_without_its_version_does_too(
    store_url: str, namespace: str
) -> None:
    """It is resumed by hand once its version is deployed again."""
    invocation_id = await begun(store_url, namespace, desk([1], on_paused="skip"))
    async with opened(store_url, namespace, desk([2], on_paused="skip")) as runtime:
        await wake(runtime)
        assert await runtime.client.call("Desk", "acme/d", "work", "b", timeout=10) == "b by 2"
        await status(runtime.client.attach(invocation_id, str), "paused")
    async with opened(store_url, namespace, desk([1, 2], on_paused="skip")) as runtime:
        await runtime.client.resume(invocation_id, reason="deployed", by="tests", timeout=10)
        assert await runtime.client.attach(invocation_id, str).result(timeout=10) == "a by 1"
