"""A harness whose workers are killed one after the other, each at a call of the store that was drawn for it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import anyio
import anyio.lowlevel

from keylane import Client, Runtime
from keylane.journal.background import Background
from keylane.journal.errors import StoreUnavailable
from keylane.runtime.virtual_time import Subject
from keylane.testing import Harness

from .scripts import TYPES

#: The calls that follow from what handlers do.
COUNTED: Final = frozenset({"commit", "deliver"})


class Killer:
    """An observer that kills its worker at one of its calls of the store.

    Args:
        number: At which, counted from 1.
        moment: `before` it is sent, or `after` its answer.
        kill: Kills it.
    """

    def __init__(self, number: int, moment: str, kill: Any) -> None:
        self.is_armed = False
        self._left = number
        self._moment = moment
        self._kill = kill

    def before_send(self, what: str, partition: str, number: int) -> None:
        """Count what is about to be sent."""
        self._reach("before", what, f"{what} {number} of {partition}")

    def after_answer(self, what: str, partition: str, number: int) -> None:
        """Count what has been answered."""
        self._reach("after", what, f"{what} {number} of {partition}")

    def deliver(self, channel: bytes) -> bool:
        """Let every message pass."""
        del channel
        return True

    def _reach(self, moment: str, what: str, words: str) -> None:
        if not self.is_armed or what not in COUNTED or moment != self._moment or not self._left:
            return
        self._left -= 1
        if not self._left:
            self._kill(f"{moment} {words}")


class MortalHarness(Harness):
    """A harness with a client of its own that outlives its workers.

    Args:
        app: What to host.
        kills: For each worker in turn, at which of its calls it is killed, and the moment.
        more: As for a harness.

    Attributes:
        killed: Where workers were killed.
    """

    def __init__(self, app: Any, *, kills: Sequence[tuple[int, str]], **more: Any) -> None:
        super().__init__(app, auto_advance=False, **more)
        self.killed: list[str] = []
        self._kills = list(kills)
        self._is_killed = anyio.Event()
        self._living: Runtime

    async def _start(self, store_url: str, stack: contextlib.AsyncExitStack) -> Subject:
        self._living = await self._born(store_url)
        stack.push_async_callback(self._end)
        client = Client(self._living.store_url, namespace=self.namespace, settings=self.settings)
        subject = Subject(self._living.worker, await stack.enter_async_context(client))
        self._runtime = self._living
        tasks = await stack.enter_async_context(Background())
        tasks.start_soon(self._succeed, store_url, subject)
        return subject

    async def _born(self, store_url: str) -> Runtime:
        """Start a worker. What it does until it is known to be there is not counted."""
        killer = Killer(*self._kills.pop(0), self._kill) if self._kills else None
        self._runtime = runtime = self._new_runtime(store_url, killer)
        await runtime.__aenter__()
        runtime.worker.force(self.force)
        if killer is not None:
            killer.is_armed = True
        return runtime

    def _kill(self, where: str) -> None:
        self.killed.append(where)
        self._runtime.worker.die()
        self._is_killed.set()

    async def _succeed(self, store_url: str, subject: Subject) -> None:
        while True:
            await self._is_killed.wait()
            self._is_killed = anyio.Event()
            with anyio.CancelScope(shield=True):
                await self._living.__aexit__(None, None, None)
                self._living = await self._born(store_url)
            subject.replace(self._living.worker)

    async def _end(self) -> None:
        await self._living.__aexit__(None, None, None)

    async def until(self, moment_ms: int) -> None:
        """Let time pass up to a moment, whatever dies meanwhile.

        Args:
            moment_ms: By the clock of the store.
        """
        while True:
            left_ms = moment_ms - await self.now_ms()
            try:
                await self.advance(timedelta(milliseconds=max(left_ms, 0)))
            except StoreUnavailable:
                await anyio.lowlevel.checkpoint()
                continue
            if await self.now_ms() >= moment_ms:
                return

    async def now_ms(self) -> int:
        """Return what time it is in the namespace."""
        store = self.client.store
        seconds, microseconds = await store.call("TIME")
        offset = await store.call("HGET", store.space(TYPES[0], 0).owner, "offset")
        return int(seconds) * 1000 + int(microseconds) // 1000 + int(offset or 0)
