"""One timer for all deadlines: never early, at most a slot late, and what left is not handed over."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.runtime.wheel import SLOTS_PER_SECOND, Wheel

SLOT_SECONDS = 1 / SLOTS_PER_SECOND


class Seen:
    """What a wheel handed over, and when."""

    def __init__(self) -> None:
        self.items: list[tuple[str, float]] = []
        self.wheel: Wheel[str] = Wheel(self.take)

    def take(self, item: str) -> None:
        self.items.append((item, asyncio.get_running_loop().time()))


@pytest.mark.anyio
async def test_items_come_in_the_order_of_their_moments_and_never_early() -> None:
    """Whatever the order of entry, each item comes at its moment or a slot after it."""
    seen, loop = Seen(), asyncio.get_running_loop()
    due = {name: loop.time() + delay for name, delay in (("c", 0.09), ("a", 0.02), ("b", 0.05))}

    for name, moment in due.items():
        seen.wheel.add(name, moment - loop.time())
    while len(seen.items) < 3:
        await anyio.sleep(SLOT_SECONDS)

    assert [name for name, _ in seen.items] == ["a", "b", "c"]
    assert all(at >= due[name] for name, at in seen.items)


@pytest.mark.anyio
async def test_item_that_left_does_not_come() -> None:
    """Leaving works for one item of a slot and leaves its neighbours there."""
    seen = Seen()
    slots = {name: seen.wheel.add(name, 0.02) for name in "abc"}

    seen.wheel.discard("b", slots["b"])
    while len(seen.items) < 2:
        await anyio.sleep(SLOT_SECONDS)
    await anyio.sleep(2 * SLOT_SECONDS)

    assert sorted(name for name, _ in seen.items) == ["a", "c"]


@pytest.mark.anyio
async def test_item_may_enter_again_when_it_comes() -> None:
    """The callback may add to the wheel that called it."""
    times: list[float] = []

    def again(item: str) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) < 3:
            wheel.add(item, 0.01)

    wheel: Wheel[str] = Wheel(again)
    wheel.add("a", 0.0)
    while len(times) < 3:
        await anyio.sleep(SLOT_SECONDS)

    assert times == sorted(times)


@pytest.mark.anyio
async def test_closed_wheel_is_still() -> None:
    """After closing nothing comes and no timer is left."""
    seen = Seen()
    seen.wheel.add("a", 0.01)

    seen.wheel.close()
    await anyio.sleep(3 * SLOT_SECONDS)

    assert seen.items == []


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=30))
def test_wheel_hands_over_exactly_what_stayed(entries: list[tuple[int, bool]]) -> None:
    """For any set of moments, what was not taken out comes once, and what was taken out never."""

    async def run() -> list[str]:
        seen = Seen()
        for number, (milliseconds, leaves) in enumerate(entries):
            slot = seen.wheel.add(str(number), milliseconds / 1000)
            if leaves:
                seen.wheel.discard(str(number), slot)
        await anyio.sleep(0.05 + 3 * SLOT_SECONDS)
        return sorted(name for name, _ in seen.items)

    assert anyio.run(run) == sorted(str(number) for number, (_, leaves) in enumerate(entries) if not leaves)
