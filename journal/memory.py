"""How much memory a server has left, looked at once a second, so that work stops being taken in before it is refused.

A server that is full refuses what takes in. What was taken in before must be able to end then, which also takes memory:
so intake stops earlier, at a part of `maxmemory`, and begins again only when clearly less is in use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio
import redis.exceptions

from .errors import StoreError, StoreFull
from .safety import parse_info

logger = logging.getLogger("keylane.store")

LOOK_SECONDS: Final = 1.0
#: Intake begins again when so much less of `maxmemory` is in use than where it stopped.
HYSTERESIS: Final = 0.05
MEGABYTE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What a server said of its memory.

    Args:
        used_bytes: What counts against the limit: without the buffers of replicas and of the append-only file.
        limit_bytes: `maxmemory`, 0 for none.
    """

    used_bytes: int
    limit_bytes: int

    @property
    def ratio(self) -> float:
        """The used part of the limit; 0 without a limit."""
        return self.used_bytes / self.limit_bytes if self.limit_bytes else 0.0

    def __str__(self) -> str:
        """Return what people want to know."""
        used, limit = self.used_bytes / MEGABYTE, self.limit_bytes / MEGABYTE
        return f"{used:.1f} of {limit:.1f} MB ({self.ratio:.0%}) of the store's memory are in use"


def memory_use_of(info: Mapping[str, str]) -> MemoryUse:
    """Read the memory section of INFO."""
    not_counted = int(info.get("mem_not_counted_for_evict", "0"))
    return MemoryUse(int(info.get("used_memory", "0")) - not_counted, int(info.get("maxmemory", "0")))


class MemoryWatch:
    """Knows whether one server has room for new work.

    Args:
        ask: Sends one command to that server and returns its reply.
        limit_ratio: The part of `maxmemory` at which intake stops.

    Attributes:
        is_full: Whether nothing is to be taken in.
        use: What the server said last; None before the first answer.
    """

    def __init__(self, ask: Callable[..., Awaitable[Any]], limit_ratio: float) -> None:
        self._ask = ask
        self._limit_ratio = limit_ratio
        self._waiting: list[asyncio.Future[None]] = []
        self.is_full = False
        self.use: MemoryUse | None = None

    @property
    def why(self) -> str:
        """Why nothing is taken in, in words."""
        return "the store has refused for want of memory" if self.use is None else str(self.use)

    def check(self) -> None:
        """Refuse new work while there is no room for it.

        Raises:
            StoreFull: There is none; it may be asked for again later.
        """
        if self.is_full:
            raise StoreFull(self.why)

    def room(self) -> asyncio.Future[None]:
        """Return a future that is done when there is room again."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.is_full:
            self._waiting.append(future)
        else:
            future.set_result(None)
        return future

    def note_refusal(self) -> None:
        """Take note that the server has refused something for want of memory, whatever was seen before."""
        self.is_full = True

    async def run(self) -> None:
        """Look once a second until cancelled."""
        while True:
            try:
                await self.look()
            # A user may lose the right to ask while this runs; a server that is full says so itself.
            except (StoreError, redis.exceptions.ResponseError) as error:
                logger.debug("the store's memory is not known now: %s", error)
            await anyio.sleep(LOOK_SECONDS)

    async def look(self) -> MemoryUse:
        """Ask the server now.

        Raises:
            StoreError: It does not answer.
        """
        use = memory_use_of(parse_info(await self._ask("INFO", "memory")))
        self.saw(use)
        return use

    def saw(self, use: MemoryUse) -> None:
        """Take note of what the server said."""
        self.use = use
        if not self.is_full and use.ratio >= self._limit_ratio:
            logger.warning("%s: nothing new is taken in until there is room", use)
            self.is_full = True
        elif self.is_full and use.ratio < self._limit_ratio - HYSTERESIS:
            logger.warning("%s: there is room again", use)
            self.is_full = False
            self._tell()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
