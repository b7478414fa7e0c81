"""Waiting for what others bring about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.faults.harness import eventually_answers

#: How long it may take on a machine that does other things, too.
PATIENCE_SECONDS = 15.0


async def eventually(holds: Callable[[], Awaitable[object]]) -> None:
    """Wait until something holds.

    Args:
        holds: Asks for it: a client, a store.

    Raises:
        NeverHappenedError: It never did.
    """
    await eventually_answers(holds, getattr(holds, "__qualname__", "it holds"), seconds=PATIENCE_SECONDS)
