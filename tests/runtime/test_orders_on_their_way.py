"""Cancels, kills, pauses and signals that are taken in while what they are about is on its way to the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from keylane import (
    App,
    Cancelled,
    Handle,
    InvocationCancelled,
    InvocationPaused,
    ObjectContext,
    RetryableError,
    Runtime,
    VirtualObject,
)
from keylane.journal.cancel_order import CancelOrder
from keylane.journal.key import new_invocation_id, parse_id
from keylane.journal.lane_reading import ask
from keylane.journal.pauses import PauseOrder
from keylane.journal.requests import Request, RequestKind
from keylane.journal.store import Store
from keylane.runtime.invocation import Invocation
from keylane.runtime.partition import Partition
from keylane.runtime.signal_orders import packed_value, signal

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
HOUR = timedelta(hours=1)
#: An order comes so many turns of the loop after the handler has begun what it is about; a commit takes many.
TURNS = [*range(13), 16, 20, 30]
#: What is done after so many turns.
hooks: list[tuple[int, Callable[[], None]]] = []
trail: list[str] = []
#: What the store has of a lane, and beside it, as the handler cleans up.
looks: list[Callable[[], Any]] = []
found: list[Any] = []
spot = VirtualObject("Spot", owner="tests", partitions=1)


@pytest.fixture(autouse=True)
def _afresh() -> None:
    for each in (hooks, trail, looks, found):
        each.clear()


def after(turns: int, act: Callable[[], None]) -> None:
    """Do something after so many turns of the loop."""
    if turns == 0:
        act()
    else:
        asyncio.get_running_loop().call_soon(after, turns - 1, act)


def begin() -> None:
    if hooks:
        after(*hooks.pop())


async def look() -> None:
    found.append(await looks[0]())


async def fork(ctx: ObjectContext, *, has_forked: bool) -> None:
    if has_forked:
        await ctx.gather(ctx.run("one", str, "1"), ctx.run("two", str, "2"))


@spot.handler
async def releases(ctx: ObjectContext, has_forked: bool) -> str:  # noqa: FBT001, the argument of a handler
    await fork(ctx, has_forked=has_forked)
    begin()
    try:
        return await ctx.signal("go", str, timeout=HOUR, release_lane=True)
    except Cancelled:
        trail.append("told")
        await ctx.run("look", look)
        raise


@spot.handler
async def waits(ctx: ObjectContext, has_forked: bool) -> str:  # noqa: FBT001, the argument of a handler
    await fork(ctx, has_forked=has_forked)
    begin()
    await ctx.sleep(HOUR)
    return "done"


async def fail() -> None:
    begin()
    raise RetryableError("not now", retry_after=HOUR.total_seconds())


@spot.handler
async def tries_a_step(ctx: ObjectContext, has_forked: bool) -> str:  # noqa: FBT001, the argument of a handler
    await fork(ctx, has_forked=has_forked)
    try:
        await ctx.run("fail", fail)
    except Cancelled:
        trail.append("told")
        raise
    return "done"


@spot.handler
async def fails_itself(ctx: ObjectContext, has_forked: bool) -> str:  # noqa: FBT001, the argument of a handler
    await fork(ctx, has_forked=has_forked)
    await ctx.run("first", str, "1")
    if ctx.attempt == 1:
        await fail()
    await ctx.sleep(HOUR)
    return "done"


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(App([spot]), store=store_url, namespace=namespace) as runtime:
        yield runtime


class Owner:
    """Takes orders in at a given moment."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        (self.partition,) = (each for each in runtime.worker.partitions if each.space.type_name == spot.name)
        #: How often an order found its invocation with a record of its wait on its way.
        self.hits = 0

    def take(self, what: str, key: str) -> None:
        lane = self.partition.lane(key)
        (invocation,) = (*lane.queue, *lane.aside)
        standing = invocation.standing
        if standing is not None and (standing.waits or standing.retry_after_ms) and lane.gate() is not None:
            self.hits += 1
        request = _request(what, self.partition, invocation, key)
        self.runtime.worker._intake.take_entry(self.partition, b"0-1", request.encode())

    async def run(
        self, handler: Any, what: str, turns: int, *, has_forked: bool, key: str | None = None
    ) -> Handle[str]:
        """Have an order taken in so many turns after a handler has begun what it is about."""
        key = key or f"acme/{turns}"
        hooks.append((turns, lambda: self.take(what, key)))
        return await self.runtime.client.send(handler, key, has_forked)


def _request(what: str, partition: Partition, invocation: Invocation, key: str) -> Request:
    match what:
        case "pause":
            payload = PauseOrder(invocation.raw_id, "ops", "a look").encode()
            return Request(RequestKind.PAUSE, new_invocation_id(), "", key, payload)
        case "signal":
            value = packed_value("gone", str, 100)
            sending = signal(partition.invocation_id(invocation.raw_id), "go", value, "ops")
            return Request(sending.kind, new_invocation_id(), "", sending.key, sending.order.encode())
        case _:
            order = CancelOrder(invocation.raw_id, "ops", "a look")
            return Request(RequestKind(what), new_invocation_id(), "", "", order.encode())


async def ended(handle: Handle[str]) -> str:
    try:
        return await handle.result(timeout=10)
    except InvocationCancelled:
        return "cancelled"
    except InvocationPaused:
        return "paused"


forked = pytest.mark.parametrize("has_forked", [False, True], ids=["plain", "forked"])


@forked
@pytest.mark.parametrize(("what", "end"), [("cancel", "cancelled"), ("kill", "cancelled"), ("signal", "gone")])
async def test_what_is_about_to_leave_its_lane_has_its_place_in_it_again(
    runtime: Runtime, what: str, end: str, *, has_forked: bool
) -> None:
    """A new owner would find it there, and nothing of it is left beside the lane in the end."""
    owner, space = Owner(runtime), Owner(runtime).partition.space
    async with Store(runtime.store_url, namespace=runtime.client.store.namespace) as store:

        async def places(raw_id: bytes) -> tuple[bool, bool]:
            words = [("LRANGE", space.lane(KEY), 0, -1), ("SMEMBERS", space.set_aside(KEY))]
            lane, aside = await ask(store, words, [space.lane(KEY), space.set_aside(KEY)])
            return raw_id in lane, raw_id in aside

        for turns in TURNS:
            # One object, whose early signals have been read after the first time.
            handle = await owner.run(releases, what, turns, has_forked=has_forked, key=KEY)
            raw_id = parse_id(handle.id).raw
            looks[:] = [partial(places, raw_id)]
            assert await ended(handle) == end, turns
            assert await places(raw_id) == (False, False), turns
    assert set(found) <= {(True, False)}
    assert bool(trail) == (what == "cancel")
    assert owner.hits


@forked
@pytest.mark.parametrize("handler", [waits, tries_a_step], ids=["a wait", "a failed attempt"])
async def test_what_begins_to_wait_is_paused_at_once(runtime: Runtime, handler: Any, *, has_forked: bool) -> None:
    owner = Owner(runtime)
    for turns in TURNS:
        assert await ended(await owner.run(handler, "pause", turns, has_forked=has_forked)) == "paused", turns
    assert owner.hits


@forked
async def test_a_cancel_takes_the_next_attempt_of_a_step_away(runtime: Runtime, *, has_forked: bool) -> None:
    owner = Owner(runtime)
    for turns in TURNS:
        assert await ended(await owner.run(tries_a_step, "cancel", turns, has_forked=has_forked)) == "cancelled", turns
    assert "told" in trail
    assert owner.hits


@forked
async def test_a_cancel_takes_the_next_attempt_of_a_handler_away(runtime: Runtime, *, has_forked: bool) -> None:
    owner = Owner(runtime)
    for turns in TURNS:
        assert await ended(await owner.run(fails_itself, "cancel", turns, has_forked=has_forked)) == "cancelled", turns
    assert owner.hits
