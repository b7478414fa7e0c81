"""Calls that would wait for themselves are refused at the call, with the path, and leave every lane free."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keylane import Deadlock, InvocationFailed, ObjectContext, Runtime, SharedContext, VirtualObject
from keylane.runtime import intake as intake_module
from keylane.runtime.messages import Messages
from keylane.runtime.probes import Probes

pytestmark = pytest.mark.anyio

NONE: list[Any] = []
#: What a handler calls one after the other: numbers of objects, and what each of them calls.
DIAMOND: list[Any] = [(1, [(3, NONE)]), (2, [(3, NONE)])]

node = VirtualObject("Node", owner="tests", partitions=4, state={"visits": int})


@node.handler
async def visit(ctx: ObjectContext, calls: list[Any]) -> int:
    """Call what is asked for, by name, one after the other; a refusal for a circle counts as nothing."""
    ctx.set("visits", await ctx.get("visits", int, 0) + 1)
    total = 1
    for number, further in calls:
        try:
            total += await ctx.call("Node", f"acme/{number}", "visit", further)
        except Deadlock as error:
            check_path(error.path, [f"Node.visit at {ctx.key}", f"Node.visit at acme/{number}"])
    return total


def check_path(path: tuple[str, ...], names: list[str]) -> None:
    """Make sure that a path ends at the call and leads through its caller."""
    assert path[-1] == names[-1]
    assert set(names) <= set(path)


@node.handler
async def chain(ctx: ObjectContext, numbers: list[int]) -> str:
    """Call the next of a chain of objects."""
    if not numbers:
        return "end"
    return await ctx.call(chain, f"acme/{numbers[0]}", numbers[1:])


@node.handler
async def peek(ctx: ObjectContext, number: int) -> int:
    """Call a handler that reads, of an object that is waited for."""
    return await ctx.call(peek_at, f"acme/{number}", int(ctx.key.key))


@node.handler
async def peek_at(ctx: ObjectContext, number: int) -> int:
    return await ctx.call(visits, f"acme/{number}")


@node.handler
async def remind_myself(ctx: ObjectContext) -> str:
    return (await ctx.send(chain, ctx.key, NONE)).id


@node.shared
async def visits(ctx: SharedContext) -> int:
    return await ctx.get("visits", int, 0)


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime([node], store=store_url, namespace=namespace) as runtime:
        yield runtime


async def is_free(runtime: Runtime, number: int) -> bool:
    """Return whether nothing is open in a lane, and something can run in it."""
    assert await runtime.client.call(chain, f"acme/{number}", NONE, timeout=5) == "end"
    return (await runtime.client.inspect("Node", f"acme/{number}")).lane.open == ()


def _never(probes: Probes, probe: object) -> None:
    """Find no circle by a probe."""
    del probes, probe


@pytest.mark.parametrize("circle", [[0], [1, 0], [1, 2, 0], [1, 2, 3, 4, 5, 2]])
async def test_the_call_that_closes_a_circle_is_refused_with_the_path(
    runtime: Runtime, circle: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A self-call, two and three objects, and a circle that does not lead back to its beginning; without a probe."""
    monkeypatch.setattr(Probes, "_forward", _never)
    with pytest.raises(InvocationFailed) as failed:
        await runtime.client.call(chain, "acme/0", circle, timeout=10)

    assert failed.value.code == "deadlock"
    assert failed.value.details == {"path": [f"Node.chain at acme/{number}" for number in [0, *circle]]}
    for number in {0, *circle}:
        assert await is_free(runtime, number)


async def test_calling_one_object_twice_by_different_ways_is_no_circle(runtime: Runtime) -> None:
    """A diamond: both calls of the shared corner have ended before the other begins."""
    assert await runtime.client.call(visit, "acme/0", DIAMOND, timeout=10) == 5
    assert await runtime.client.call(visits, "acme/3") == 2


async def test_a_handler_that_only_reads_is_called_of_an_object_that_waits(runtime: Runtime) -> None:
    """It takes no lane, so it waits for nobody; it sees what is durable."""
    await runtime.client.call(visit, "acme/1", NONE, timeout=10)

    assert await runtime.client.call(peek, "acme/1", 2, timeout=10) == 1


async def test_a_message_to_oneself_is_no_circle(runtime: Runtime) -> None:
    """Nobody waits for it: it runs when the handler that sent it has ended."""
    sent_id = await runtime.client.call(remind_myself, "acme/1", timeout=10)

    assert await runtime.client.attach(sent_id, str).result(timeout=10) == "end"


far = VirtualObject("Far", owner="tests", partitions=2)


@far.handler
async def call_back(ctx: ObjectContext, words: list[str]) -> Any:
    return await ctx.call(words[0], words[1], words[2], *words[3:])


async def test_a_circle_through_a_worker_that_lacks_the_code_is_refused_too(store_url: str, namespace: str) -> None:
    """Whether the handler takes the lane is not known there; its owner knows, and refuses it with the same error."""
    near = VirtualObject("Near", owner="tests", partitions=2)

    @near.handler
    async def go(ctx: ObjectContext, handler: str) -> Any:
        return await ctx.call("Far", "acme/f", "call_back", ["Near", str(ctx.key), handler])

    @near.handler
    async def touch(ctx: ObjectContext) -> str:  # pyright: ignore[reportUnusedFunction]
        return "touched"

    @near.shared
    async def look(ctx: SharedContext) -> str:  # pyright: ignore[reportUnusedFunction]
        return "looked"

    async with (
        Runtime([near], store=store_url, namespace=namespace) as first,
        Runtime([far], store=store_url, namespace=namespace),
    ):
        with pytest.raises(InvocationFailed) as failed:
            await first.client.call(go, "acme/n", "touch", timeout=10)
        assert failed.value.code == "deadlock"
        assert failed.value.details["path"] == [
            "Near.go at acme/n",
            "Far.call_back at acme/f",
            "Near.touch at acme/n",
        ]
        assert await first.client.call(go, "acme/n", "look", timeout=10) == "looked"
        assert await first.client.call("Near", "acme/n", "touch", timeout=10) == "touched"


@dataclass
class Hosting:
    """A runtime in a thread of its own, where hypothesis can use it."""

    portal: BlockingPortal
    runtime: Runtime


@pytest.fixture(scope="module")
def hosting(store_url: str) -> Iterator[Hosting]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Runtime([node], store=store_url, namespace="circles")) as runtime,
    ):
        yield Hosting(portal, runtime)


def trees(depth: int) -> st.SearchStrategy[list[Any]]:
    """Draw what a handler calls: up to three objects of seven, each of which calls others, so many hops deep."""
    if not depth:
        return st.just([])
    return st.lists(st.tuples(st.integers(0, 6), trees(depth - 1)), max_size=3 if depth > 4 else 2)


def expected(number: int, calls: list[Any], held: frozenset[int]) -> int:
    """Return how many objects are visited, circles left out."""
    held = held | {number}
    return 1 + sum(expected(other, further, held) for other, further in calls if other not in held)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, 6), calls=trees(6))
def test_no_graph_of_calls_ends_with_a_lane_held(hosting: Hosting, start: int, calls: list[Any]) -> None:
    """Up to six hops, with circles and diamonds: every call ends, with what a plain walk gives, and all is free."""
    visited = hosting.portal.call(walk, hosting.runtime, start, calls)

    assert visited == expected(start, calls, frozenset())


async def walk(runtime: Runtime, start: int, calls: list[Any]) -> int:
    visited = await runtime.client.call(visit, f"acme/{start}", calls, timeout=20)
    for number in range(7):
        assert await is_free(runtime, number)
    return visited


async def test_without_the_look_at_the_path_a_circle_stands_still(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A safeguard that nobody would miss is no safeguard: with both looks taken out, only a probe would find it."""

    def let_pass(*facts: object) -> bool:
        del facts
        return False

    monkeypatch.setattr(Messages, "_check_path", let_pass)
    monkeypatch.setattr(intake_module, "closes", let_pass)
    monkeypatch.setattr(Probes, "_forward", let_pass)
    handle = await runtime.client.send(chain, "acme/0", [1, 0])
    with pytest.raises(Exception, match="no answer within"):
        await handle.result(timeout=1)
    told = (await runtime.client.inspect("Node", "acme/0")).lane
    assert [each.status for each in told.open] == ["waiting", "queued"]
