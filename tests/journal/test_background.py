"""The tasks of an open store, worker or client: they end with it, however its opening and closing are disturbed."""

from __future__ import annotations

import asyncio

import pytest

from keylane.journal.background import Background

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
