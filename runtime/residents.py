"""Handlers that wait in memory: each for a while, and so many at a time; the others are in the journal alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .wheel import Wheel

if TYPE_CHECKING:
    from .invocation import Invocation


class Residents:
    """The waiting handlers of one worker, in the order in which they began to wait.

    Args:
        let_go: Has one leave memory; it is left alone where its wait is about to end.
        seconds: How long one stays; with 0, none begins to.
        most: How many stay at a time.
    """

    __slots__ = ("_let_go", "_most", "_seconds", "_since", "_waiting")

    def __init__(self, let_go: Callable[[Invocation], None], seconds: float, most: int) -> None:
        self._let_go = let_go
        self._seconds = seconds
        self._most = most
        self._since: Wheel[Invocation] = Wheel(let_go)
        self._waiting: dict[Invocation, None] = {}

    def enter(self, invocation: Invocation) -> int:
        """Take a handler in that begins to wait, and let the one go that has waited longest where there are too many.

        Returns:
            Its place, which `leave` wants to know.
        """
        waiting = self._waiting
        # One that waits again comes after those that have waited meanwhile.
        waiting.pop(invocation, None)
        waiting[invocation] = None
        if len(waiting) > self._most:
            longest = next(iter(waiting))
            del waiting[longest]
            self._let_go(longest)
        return self._since.add(invocation, self._seconds)

    def leave(self, invocation: Invocation, place: int) -> None:
        """Take note that a handler waits no longer, or not in memory."""
        self._waiting.pop(invocation, None)
        self._since.discard(invocation, place)
