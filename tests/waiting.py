"""Waiting for what others bring about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

#: How long it may take on a machine that does other things, too.
PATIENCE_SECONDS = 15.0
POLL_SECONDS = 0.005


async def eventually(holds: Callable[[], Awaitable[object]]) -> None:
    """Wait until something holds.

    Args:
        holds: Asks for it: a client, a store.

    Raises:
        TimeoutError: It never did.
    """
    with anyio.fail_after(PATIENCE_SECONDS):
        while not await holds():
            await anyio.sleep(POLL_SECONDS)
