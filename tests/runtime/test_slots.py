"""The slots of a worker share each turn of the loop with everybody else, however much work is ready."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import anyio
import pytest

from keylane.journal.background import Background
from keylane.runtime.errands import Errands
from keylane.runtime.slots import BEGUN_AT_ONCE, Slots

pytestmark = pytest.mark.anyio

LIMIT = 256
PIECES = 10_000


async def longest_wait(begun: Callable[[], int], is_over: Callable[[], bool]) -> int:
    """Return how many pieces of work were begun at most between two turns of somebody else."""
    longest, before = 0, begun()
    while not is_over():
        await asyncio.sleep(0)
        longest, before = max(longest, begun() - before), begun()
    return longest


async def run_all(pieces: list[str], turn: Callable[[str], Awaitable[None]], done: Counter[str]) -> int:
    """Give everything to slots at once, and return how long somebody else waited meanwhile, counted in pieces."""
    longest = 0
    async with anyio.create_task_group() as tasks:
        slots = Slots[str](LIMIT, turn, lambda piece: piece.partition("/")[0], tasks)
        for piece in pieces:
            slots.give(piece)
        longest = await longest_wait(done.total, lambda: done.total() >= len(pieces))
        tasks.cancel_scope.cancel()
    return longest


async def test_work_that_awaits_nothing_leaves_the_loop_to_others_after_a_bounded_number_of_pieces() -> None:
    """Counted over all slots: each of them has its share of what may be begun in one turn of the loop."""
    done = Counter[str]()

    async def turn(piece: str) -> None:
        done[piece] += 1

    longest = await run_all([f"acme/{number}" for number in range(PIECES)], turn, done)

    assert longest <= BEGUN_AT_ONCE
    assert len(done) == PIECES
    assert set(done.values()) == {1}


async def test_slots_that_rest_while_there_is_work_go_on_with_the_next_turn_of_the_loop() -> None:
    """Also where each piece waits a moment, everything is done, by as many slots as there are."""
    done, at_work, most = Counter[str](), 0, 0

    async def turn(piece: str) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        for _ in range(20):
            await asyncio.sleep(0)
        at_work -= 1
        done[piece] += 1

    with anyio.fail_after(30):
        await run_all([f"acme/{number}" for number in range(2_000)], turn, done)

    assert len(done) == 2_000
    assert most == LIMIT


async def test_a_tenant_that_comes_anew_is_next_though_others_have_much_that_is_ready() -> None:
    """A pause for the loop does not turn the order of tenants around."""
    order: list[str] = []
    over = asyncio.Event()

    async def turn(piece: str) -> None:
        order.append(piece)
        if len(order) == 1_001:
            over.set()

    async with anyio.create_task_group() as tasks:
        slots = Slots[str](LIMIT, turn, lambda piece: piece.partition("/")[0], tasks)
        for number in range(1_000):
            slots.give(f"acme/{number}")
        slots.give("other/1")
        await over.wait()
        tasks.cancel_scope.cancel()

    assert order.index("other/1") <= BEGUN_AT_ONCE + 1


async def test_what_is_made_ready_after_the_end_is_left_alone() -> None:
    """Answers of the store may come when the worker has closed; what they make ready runs elsewhere."""
    done: list[str] = []

    async def turn(piece: str) -> None:
        done.append(piece)

    async def errand() -> None:
        done.append("an errand")

    async with Background() as tasks:
        slots, errands = Slots[str](1, turn, str, tasks), Errands()
        errands.start(tasks)
    for piece in ("one", "another"):
        slots.give(piece)
    errands.begin(errand)
    errands.add(errand)
    await asyncio.sleep(0)

    assert done == []
