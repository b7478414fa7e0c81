"""Resuming a parked invocation: whoever owns it by then, whichever way it was parked, once."""

from __future__ import annotations

from datetime import timedelta

import anyio
import pytest

from keylane import CallError, ObjectContext, RetryPolicy, Runtime, TerminalError, VirtualObject
from keylane.journal.inbox import submit
from keylane.journal.key import new_invocation_id, parse_id
from keylane.journal.outcomes import Succeeded, decode_outcome
from keylane.journal.requests import Request, RequestKind, ResumeOrder
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=2)
is_broken = [True]
gates: dict[str, anyio.Event] = {}
trail: list[str] = []


def _object(on_paused: str) -> VirtualObject:
    made = VirtualObject("Ticket", owner="tests", partitions=1, retry=QUICK, on_paused=on_paused)  # pyright: ignore[reportArgumentType]

    @made.handler
    async def work(ctx: ObjectContext, name: str) -> str:  # pyright: ignore[reportUnusedFunction]
        async def step() -> str:
            trail.append(name)
            if name == "first" and is_broken[0]:
                raise ValueError("broken")
            return name

        await ctx.run("step", step, retry=QUICK)
        if name in gates:
            await gates[name].wait()
            await ctx.run("after the gate", step, retry=QUICK)
        return name

    return made


@pytest.fixture(autouse=True)
def _afresh() -> None:
    is_broken[0] = True
    gates.clear()
    trail.clear()


async def parked(runtime: Runtime) -> str:
    """Have an invocation parked and return its id."""
    handle = await runtime.client.send("Ticket", "acme/a", "work", "first")

    async def is_paused() -> bool:
        return (await handle.describe()).status == "paused"

    await eventually(is_paused)
    is_broken[0] = False
    return handle.id


@pytest.mark.parametrize(("before", "after"), [("skip", "skip"), ("hold", "skip"), ("skip", "hold"), ("hold", "hold")])
async def test_a_parked_invocation_is_resumed_by_a_later_owner(
    store_url: str, namespace: str, before: str, after: str
) -> None:
    """Also under another policy than the one that it was parked under, and others of the lane are as that says."""
    async with Runtime([_object(before)], store=store_url, namespace=namespace) as runtime:
        invocation_id = await parked(runtime)
    async with Runtime([_object(after)], store=store_url, namespace=namespace) as runtime:
        if "skip" in (before, after):
            assert await runtime.client.call("Ticket", "acme/a", "work", "other", timeout=10) == "other"
        await runtime.client.resume(invocation_id, reason="repaired", by="tests", timeout=10)
        assert await runtime.client.attach(invocation_id, str).result(timeout=10) == "first"
        assert await runtime.client.call("Ticket", "acme/a", "work", "last", timeout=10) == "last"
        assert (await runtime.client.inspect("Ticket", "acme/a")).lane.open == ()
        assert trail.count("first") == 3


@pytest.mark.parametrize("on_paused", ["skip", "hold"])
async def test_resuming_twice_runs_it_once(store_url: str, namespace: str, on_paused: str) -> None:
    """The second resumption is told that it is not paused."""
    async with Runtime([_object(on_paused)], store=store_url, namespace=namespace) as runtime:
        invocation_id = await parked(runtime)
        await runtime.client.resume(invocation_id, reason="repaired", by="tests", timeout=10)
        with pytest.raises(CallError, match="not paused"):
            await runtime.client.resume(invocation_id, reason="repaired", by="tests", timeout=10)
        assert await runtime.client.attach(invocation_id, str).result(timeout=10) == "first"
        assert trail.count("first") == 3


async def test_a_second_copy_of_a_resumption_keeps_the_first_answer(store_url: str, namespace: str) -> None:
    """One that was sent again because its answer was lost is the same request, not another one."""
    async with Runtime([_object("hold")], store=store_url, namespace=namespace) as runtime:
        store = runtime.client.store
        invocation = parse_id(await parked(runtime))
        space = runtime.client.space_of(invocation)
        order = ResumeOrder(invocation.raw, "tests", "repaired")
        request = Request(RequestKind.RESUME, new_invocation_id(), "", "acme/a", order.encode())
        # As the store has it when the answer to the first sending was lost: the same request twice.
        for _ in range(2):
            await store.call("XADD", space.inbox, "*", "m", request.encode())

        async def is_empty() -> bool:
            return await store.call("XLEN", space.inbox) == 0

        await eventually(is_empty)
        assert isinstance(decode_outcome(await store.call("GET", space.result(request.invocation))), Succeeded)


async def test_what_is_resumed_goes_on_behind_what_runs_also_for_a_later_owner(store_url: str, namespace: str) -> None:
    """Two invocations of one lane never mix: the running one had begun, so it ends first, crash or not."""
    gates["runs"] = anyio.Event()
    async with Runtime([_object("skip")], store=store_url, namespace=namespace) as runtime:
        store, space = runtime.client.store, runtime.client.store.space("Ticket", 0)
        invocation_id = await parked(runtime)
        running = await runtime.client.send("Ticket", "acme/a", "work", "runs")

        async def has_begun() -> bool:
            return "runs" in trail

        await eventually(has_begun)
        await runtime.client.resume(invocation_id, reason="repaired", by="tests", timeout=10)
        order = await store.call("LRANGE", space.lane("acme/a"), 0, -1)
        assert order == [parse_id(running.id).raw, parse_id(invocation_id).raw]
        gates["runs"].set()
        assert await runtime.client.attach(invocation_id, str).result(timeout=10) == "first"
        assert trail[-2:] == ["runs", "first"]
        assert await store.call("LRANGE", space.lane("acme/a"), 0, -1) == []


async def test_requests_that_can_not_be_read_are_refused_and_others_go_on(store_url: str, namespace: str) -> None:
    """A resumption without an order, or arguments that are no msgpack, cost neither the reader nor the worker."""
    async with Runtime([_object("hold")], store=store_url, namespace=namespace) as runtime:
        store, space = runtime.client.store, runtime.client.store.space("Ticket", 0)
        junk = b"\xc1junk"
        requests = [
            Request(RequestKind.RESUME, new_invocation_id(), "", "acme/a", junk),
            Request(RequestKind.CALL, new_invocation_id(), "work", "acme/a", junk, idempotency_key="k"),
            Request(RequestKind.CALL, new_invocation_id(), "work", "acme/a", junk, junk, idempotency_key="k2"),
            Request(RequestKind.CALL, new_invocation_id(), "work", "acme/a", junk),
        ]
        for request in requests:
            await submit(store, space, request)

        async def are_answered() -> bool:
            found = [await store.call("EXISTS", space.result(request.invocation)) for request in requests]
            return all(found)

        await eventually(are_answered)
        assert await runtime.client.call("Ticket", "acme/a", "work", "other", timeout=10) == "other"


async def test_lanes_that_stand_still_do_not_keep_the_inbox_from_being_read(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the resumption that would set them going could never be taken in."""
    monkeypatch.setattr("keylane.runtime.inbox_reader.IN_HAND_MAX", 8)
    async with Runtime([_object("hold")], store=store_url, namespace=namespace) as runtime:
        invocation_id = await parked(runtime)
        handles = [await runtime.client.send("Ticket", "acme/a", "work", f"n{number}") for number in range(20)]
        await runtime.client.resume(invocation_id, reason="repaired", by="tests", timeout=10)
        assert [await handle.result(timeout=10) for handle in handles] == [f"n{number}" for number in range(20)]
        assert await runtime.client.call("Ticket", "umbrella/b", "work", "elsewhere", timeout=10) == "elsewhere"


async def test_a_request_that_was_refused_is_not_run_from_its_second_copy(store_url: str, namespace: str) -> None:
    """Its sender was told that it is not taken in, and has perhaps asked again under another id."""
    ran: list[str] = []
    small = VirtualObject("Small", owner="tests", partitions=1, backlog=1)
    gate = anyio.Event()

    @small.handler
    async def work(ctx: ObjectContext, name: str) -> None:
        ran.append(name)
        if name == "holds":
            await gate.wait()
        if name == "never":
            raise TerminalError("no")

    async with Runtime([small], store=store_url, namespace=namespace) as runtime:
        store, space = runtime.client.store, runtime.client.store.space("Small", 0)
        holder = await runtime.client.send(work, "acme/a", "holds")

        async def is_held() -> bool:
            return bool(ran)

        await eventually(is_held)
        request = Request(RequestKind.SEND, new_invocation_id(), "work", "acme/a", b"\xa7refused")
        await store.call("XADD", space.inbox, "*", "m", request.encode())
        await store.call("SPUBLISH", space.inbox_channel, "")

        async def is_refused() -> bool:
            return bool(await store.call("EXISTS", space.result(request.invocation)))

        await eventually(is_refused)
        gate.set()
        await holder.result(timeout=10)
        await store.call("XADD", space.inbox, "*", "m", request.encode())

        async def is_empty() -> bool:
            return await store.call("XLEN", space.inbox) == 0

        await eventually(is_empty)
        await runtime.client.call(work, "acme/a", "after")
    assert ran == ["holds", "after"]
