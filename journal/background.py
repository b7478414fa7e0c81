"""Tasks that belong to an open store, worker or client, and to nothing around it; and work that nothing cuts short."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

import anyio
from anyio.abc import TaskGroup

from .errors import InternalError

logger = logging.getLogger("keylane")


class Background:
    """A task group in a task of its own; use it as an async context manager, which gives the group.

    A group that is opened in the caller's task dies with any scope of the caller's that is cancelled, a timeout for
    instance, and then nobody is left to write what is under way and to hand over. This one ends when it is closed.

    When one of its tasks fails, which is a bug of ours, the task that opened it is cancelled and closing raises. When
    somebody cancels them, as the end of `asyncio.run` does with all that is left, that task is cancelled as well.
    """

    def __init__(self) -> None:
        self._host: asyncio.Task[None]
        self._opener: asyncio.Task[object] | None = None
        self._is_closing = False
        self._tasks: TaskGroup

    async def __aenter__(self) -> TaskGroup:
        """Open the group."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[TaskGroup] = loop.create_future()
        self._opener = asyncio.current_task()
        self._host = loop.create_task(self._run(opened))
        self._host.add_done_callback(self._ended)
        try:
            self._tasks = await opened
        except BaseException:
            # Nobody closes what was never open.
            self._is_closing = True
            self._host.cancel()
            raise
        return self._tasks

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel the tasks and wait until they have ended.

        Raises:
            InternalError: One of them had failed.
        """
        is_cancelled_by_us = self._host.done() and not self._is_closing
        self._is_closing = True
        self._tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._host])
        failure = None if self._host.cancelled() else self._host.exception()
        if failure is None:
            return
        if is_cancelled_by_us and self._opener is not None:
            self._opener.uncancel()
        raise InternalError("a task of the runtime failed; its log says why") from failure

    async def _run(self, opened: asyncio.Future[TaskGroup]) -> None:
        async with anyio.create_task_group() as tasks:
            if not opened.done():
                opened.set_result(tasks)
            await anyio.sleep_forever()

    def _ended(self, host: asyncio.Task[None]) -> None:
        failure = None if host.cancelled() else host.exception()
        if failure is not None:
            logger.error("a task of the runtime failed", exc_info=failure)
        if not self._is_closing and self._opener is not None:
            self._opener.cancel("a task of Keylane failed; its log says why")


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Run something that must not be cut short in a task of its own, whatever cancels the caller meanwhile.

    Raises:
        asyncio.CancelledError: The caller was cancelled; by now the work is done.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    # A shield holds off scopes of anyio, and not the cancel of a task, such as that of `asyncio.timeout`.
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
