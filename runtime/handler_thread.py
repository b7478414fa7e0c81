"""The thread of one plain handler: its context may be used from there alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.from_thread

from .misuse import ForeignThread
from .own_context import in_thread, is_of_the_runtime

if TYPE_CHECKING:
    from .context import ExclusiveContext


class HandlerThread:
    """The thread that runs a plain handler, once it does.

    Args:
        ctx: What an exclusive handler is given; None for a shared one.
    """

    __slots__ = ("_ctx", "_ident")

    def __init__(self, ctx: ExclusiveContext | None = None) -> None:
        self._ctx = ctx
        self._ident: int | None = None

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a handler in this thread."""
        self._ident = threading.get_ident()
        return in_thread(partial(function, *arguments))

    def check(self, call: str) -> None:
        """Refuse a call of ctx from another thread.

        Raises:
            ForeignThread: It comes from there.
        """
        if threading.get_ident() == self._ident:
            return
        # A plain step runs in a thread of its own: what it may not do, it is told by the call itself.
        is_in_step = self._ctx is not None and self._ctx.step is not None
        if not (is_in_step and is_of_the_runtime()):
            raise ForeignThread(call)

    def awaited(self, call: str, function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
        """Return what a call of ctx comes to that is awaited where the worker's loop runs."""
        self.check(call)
        return anyio.from_thread.run(function, *arguments)

    def sync(self, call: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a call of ctx comes to that awaits nothing, made where the worker's loop runs."""
        self.check(call)
        return anyio.from_thread.run_sync(function, *arguments)
