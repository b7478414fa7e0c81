"""The tasks of an open store, worker or client: they end with it, however its opening and closing are disturbed."""

from __future__ import annotations

import asyncio

import pytest

from keylane.journal.background import Background
from keylane.journal.errors import InternalError

pytestmark = pytest.mark.anyio


async def test_an_opening_that_is_cancelled_leaves_no_task_behind() -> None:
    """Nobody closes what was never open, so its task has to end by itself."""

    async def body() -> None:
        async with Background():
            await asyncio.Event().wait()

    before = asyncio.all_tasks()
    for turns in range(4):
        task = asyncio.ensure_future(body())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        for _ in range(4):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == before


async def test_a_task_that_fails_cancels_who_opened_it_and_closing_says_so() -> None:
    """Nobody would write what is under way, so nothing goes on as if it were."""

    async def fail() -> None:
        raise KeyError("ours")

    async def body() -> None:
        async with Background() as tasks:
            tasks.start_soon(fail)
            await asyncio.Event().wait()

    task = asyncio.ensure_future(body())
    await asyncio.wait([task])
    assert isinstance(task.exception(), InternalError)


async def test_tasks_that_somebody_cancels_cancel_who_opened_them() -> None:
    """That is no failure, and nothing to report."""
    before = {*asyncio.all_tasks()}

    async def body() -> None:
        async with Background():
            await asyncio.Event().wait()

    task = asyncio.ensure_future(body())
    await asyncio.sleep(0.01)
    for each in asyncio.all_tasks() - before - {task}:
        each.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
