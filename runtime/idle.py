"""Whether a worker has anything to do until time passes or somebody asks it for something; for time in tests.

Its parts say when they come to rest. Then one turn of the store tells the remainder: the inboxes are read to their end
and the due times looked at, and if nothing has begun meanwhile and nothing is on its way, there is nothing to wait for.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from ..journal.due import Due, read_all_due
from ..journal.errors import StoreUnavailable
from .partition import Partition, Phase
from .timers import DUE_AT_LEAST

if TYPE_CHECKING:
    from ..journal.store import Store
    from .agenda import Agenda
    from .inbox_reader import InboxReader
    from .outbox import Outbox
    from .timers import Timers

#: How many due invocations of a partition are looked at.
DUE_AT_ONCE: Final = 256
#: So often is asked for what is due; what is due still then waits for something else, such as a person.
ASKED_MAX: Final = 3
#: How often it is looked at whether everything is still, while there is nothing to ask the store about.
LOOK_AGAIN_SECONDS: Final = 0.001


def unheard() -> None:
    """Stand for a listener where there is none."""


class Resting(Protocol):
    """A part of a worker that runs the code of users, or what is needed to get there."""

    on_rest: Callable[[], None]

    @property
    def is_at_rest(self) -> bool:
        """Whether it has nothing to do."""
        ...


class StillRunning(Exception):
    """Code of users runs and does not come to rest."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What has to be at rest before a worker is idle.

    Args:
        resting: The slots of handlers and of reads, the reads of this process, and the errands.
        inboxes: Reads what comes in.
        outbox: Delivers what goes out.
        timers: Fires what is due.
        agenda: Does what is due for objects.
        partitions: Returns the partitions that the worker holds.
        sweep: Tries what had to be put off.
        accept: Has what came in and has not begun yet taken in durably.
    """

    resting: Sequence[Resting]
    inboxes: InboxReader
    outbox: Outbox
    timers: Timers
    agenda: Agenda
    partitions: Callable[[], list[Partition]]
    sweep: Callable[[], None]
    accept: Callable[[], None]


class Idle:
    """Tells when a worker has nothing to do.

    Args:
        store: The open store.
        parts: What has to be at rest.
    """

    def __init__(self, store: Store, parts: Parts) -> None:
        self._store = store
        self._parts = parts
        #: How often something has come to rest: that it has changed tells that something has happened.
        self.rests = 0
        self._waiters: list[asyncio.Future[None]] = []

    def listen(self) -> None:
        """Have the parts say when they come to rest; without this they cost nothing."""
        for part in self._parts.resting:
            part.on_rest = self.rested
        self._parts.inboxes.on_rest = self.rested

    def rested(self) -> None:
        """Take note that something has come to rest."""
        self.rests += 1
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def is_at_rest(self) -> bool:
        """Whether no code of users runs, and nothing that leads to it."""
        return all(part.is_at_rest for part in self._parts.resting)

    async def changed_since(self, rests: int) -> None:
        """Wait until something has come to rest since then."""
        while self.rests == rests:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def reached(self, look: Callable[[], None] = unheard, patience_seconds: float = math.inf) -> int | None:
        """Wait until nothing happens before time passes or somebody asks for something.

        Args:
            look: Called before the store is asked, to send questions of one's own ahead.
            patience_seconds: How long code of users may run without coming to rest.

        Returns:
            How long until the next invocation is due, in milliseconds; None where none will be.

        Raises:
            StoreUnavailable: The store is away.
            StillRunning: Code of users runs for longer than patience lasts.
        """
        asked: Counter[bytes] = Counter()
        while True:
            if self._store.is_severed:
                raise StoreUnavailable(self._store.url, "the worker is dead")
            rests = self.rests
            partitions = self._parts.partitions()
            if not self.is_at_rest:
                await self._rest_after(rests, partitions, patience_seconds)
                continue
            # What ends between the question and its answer would make the answer an old one without leaving a trace.
            was_still = self._is_still(partitions)
            self._parts.accept()
            look()
            is_read_now = self._parts.inboxes.read_now()
            answers = await read_all_due(self._store, [each.space for each in partitions], DUE_AT_ONCE)
            stops = await self._parts.agenda.stops(partitions)
            if not (was_still and is_read_now and rests == self.rests and self._is_still(partitions)):
                if not partitions:
                    # Nobody was asked, so nothing was waited for: what is on its way needs the loop to arrive.
                    await anyio.sleep(LOOK_AGAIN_SECONDS)
                continue
            dues = [answer for answer in answers if isinstance(answer, Due)]
            due = [[raw_id for raw_id in each.ids if asked[raw_id] < ASKED_MAX] for each in dues]
            due.extend([data for data in each.due if asked[data] < ASKED_MAX] for each in stops)
            if not any(due):
                nexts = [each.next_in_ms for each in (*dues, *stops) if each.next_in_ms is not None]
                return min(nexts, default=None)
            for ids in due:
                # Of very many, one question hands out the earliest.
                asked.update(ids[:DUE_AT_LEAST])
            await self._parts.timers.ask(partitions)
            await self._parts.agenda.ask(partitions)

    async def _rest_after(self, rests: int, partitions: list[Partition], patience_seconds: float) -> None:
        """Wait until something comes to rest; how long the store takes does not try one's patience."""
        with anyio.move_on_after(patience_seconds):
            await self.changed_since(rests)
            return
        # Where the process itself stood still, what was ready all the time has its turn now.
        await read_all_due(self._store, [each.space for each in partitions], 1)
        if self.rests == rests and self._store.is_quiet:
            raise StillRunning

    def _is_still(self, partitions: list[Partition]) -> bool:
        """Return whether nothing has begun, and nothing is on its way to the store or from there."""
        if any(each.recall_again for each in partitions):
            self._parts.sweep()
            return False
        parts = self._parts
        is_written = all(each.phase is Phase.OPEN and each.writer.is_idle for each in partitions)
        is_sent = self._store.is_quiet and parts.outbox.is_at_rest and parts.inboxes.is_at_rest
        return is_written and is_sent and self.is_at_rest
