"""A handler with branches while each of them waits: its slot serves others, and it leaves memory after a while."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..journal import operations
from .waits import let_go

if TYPE_CHECKING:
    from .invocation import Invocation
    from .lane import Lane
    from .waits import Waits


class Standstill:
    """The standstill of one run, as often as it comes.

    Args:
        lane: The run's lane.
        invocation: Its invocation.
        waits: Lends its slot, and lets it leave memory.
        woken: Called when something sets it going, with the error that ends the run, if one does.
    """

    __slots__ = ("_invocation", "_lane", "_sleeper", "_undo", "_waits", "_woken", "is_known")

    def __init__(
        self, lane: Lane, invocation: Invocation, waits: Waits, woken: Callable[[BaseException | None], None]
    ) -> None:
        self._lane = lane
        self._invocation = invocation
        self._waits = waits
        self._woken = woken
        self._sleeper: asyncio.Future[None] | None = None
        self._undo = contextlib.ExitStack()
        #: Whether the store knows that the lane need not be taken up by a new owner.
        self.is_known = False

    @property
    def has_begun(self) -> bool:
        """Whether it lasts."""
        return self._sleeper is not None

    def begin(self, *, is_known: bool) -> None:
        """Stand still.

        Args:
            is_known: Whether all that is waited for sets the handler going whoever is the owner by then.
        """
        lane, invocation, waits = self._lane, self._invocation, self._waits
        if is_known and not self.is_known:
            self.is_known = True
            lane.commit([operations.stand_still(lane.key_text)])
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeper = lane.partition.sleepers[invocation.raw_id] = future
        self._undo.enter_context(waits.slots.lent())
        self._undo.callback(self._leave, future)
        future.add_done_callback(self._wake)
        if is_known:
            self._undo.callback(waits.leave, invocation, waits.enter(invocation))
            if waits.is_never_resident:
                let_go(invocation)

    def _leave(self, future: asyncio.Future[None]) -> None:
        sleepers = self._lane.partition.sleepers
        if sleepers.get(self._invocation.raw_id) is future:
            del sleepers[self._invocation.raw_id]

    def _wake(self, future: asyncio.Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if future is self._sleeper:
            self.end()
            self._woken(error)

    def end(self) -> None:
        """Go on, if it lasts."""
        self._sleeper = None
        self._undo.close()
