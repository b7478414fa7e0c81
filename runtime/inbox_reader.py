"""Reads the inboxes of this worker's partitions: on a hint at once, and in any case at the sweep."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from ..journal.codec import Undecodable
from ..journal.errors import KeylaneError
from ..journal.inbox import START, comparable, read_after
from ..journal.lane_reading import ask
from ..journal.requests import Request
from ..journal.store import store_error
from .idle import unheard
from .in_hand import IN_HAND_MAX
from .partition import Partition, Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..journal.store import Store
    from ..journal.subscription import Listening
    from .errands import Errands
    from .intake import Intake

logger = logging.getLogger("keylane.inbox")

AGAIN_FIRST_SECONDS = 0.2
AGAIN_CAP_SECONDS = 1.0
_TAKING = (Phase.OPENING, Phase.OPEN)


class InboxReader:
    """The reading end of the inboxes.

    Args:
        store: The open store.
        intake: Takes entries in.
        errands: Reads what takes more than one look.
        partitions: Returns the partitions that this worker holds.
    """

    def __init__(
        self, store: Store, intake: Intake, errands: Errands, partitions: Callable[[], list[Partition]]
    ) -> None:
        self._store = store
        self._intake = intake
        self._errands = errands
        self._partitions = partitions
        self._by_channel: dict[bytes, Partition] = {}
        self._dirty: dict[Partition, None] = {}
        #: The partitions that are being read, and whether more came in since.
        self._reading: dict[Partition, bool] = {}
        #: Those that could not be read, until they are tried again, which neither hints nor sweeps make sooner; and how
        #: long they wait the next time.
        self._resting: set[Partition] = set()
        self._delays: dict[Partition, float] = {}
        self._idle: asyncio.Future[None] | None = None
        self.subscription: Listening
        #: Called whenever something was taken in; must not raise.
        self.on_rest: Callable[[], None] = unheard

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is being read, and nothing has hinted that there is something to read."""
        return not self._dirty and not self._reading

    def attend(self, partition: Partition) -> None:
        """Listen to the hints of a partition."""
        self._by_channel[partition.space.inbox_channel] = partition
        self.subscription.subscribe(partition.space.inbox_channel)

    def leave(self, partition: Partition) -> None:
        """Listen to them no longer."""
        self._delays.pop(partition, None)
        channel = partition.space.inbox_channel
        if self._by_channel.get(channel) is partition:
            del self._by_channel[channel]
            self.subscription.unsubscribe(channel)

    def hinted(self, channel: bytes, payload: bytes) -> None:
        """Take a hint that something came in."""
        del payload
        partition = self._by_channel.get(channel)
        if partition is not None:
            self._note(partition)

    def hear_again(self) -> None:
        """Read all inboxes now that hints arrive again, also those that could not be read while none did."""
        self._resting.clear()
        self.look_everywhere()

    def look_everywhere(self) -> None:
        """Read all inboxes: hints may have been missed."""
        for partition in self._partitions():
            self._note(partition)

    def read_now(self) -> bool:
        """Begin to read all inboxes in this turn of the loop; return whether none was being read already."""
        partitions = self._partitions()
        ready = [each for each in partitions if each not in self._reading and each not in self._resting]
        for partition in ready:
            self._begin(partition)
        return len(ready) == len(partitions)

    def _note(self, partition: Partition) -> None:
        self._dirty[partition] = None
        idle, self._idle = self._idle, None
        if idle is not None and not idle.done():
            idle.set_result(None)

    async def run(self) -> None:
        """Read what is hinted at, until cancelled."""
        while True:
            if not self._dirty:
                self._idle = asyncio.get_running_loop().create_future()
                await self._idle
            dirty, self._dirty = self._dirty, {}
            for partition in dirty:
                self._begin(partition)

    def _begin(self, partition: Partition) -> None:
        """Begin to read one inbox without waiting: another partition's server may be the only one that answers."""
        if partition in self._reading:
            self._reading[partition] = True
        elif partition.phase is not Phase.OPEN or partition in self._resting:
            return
        elif partition.memory.is_full or partition.inbox.behind is not None:
            self._reading[partition] = False
            self._errands.begin(partial(self._read_apart, partition))
        elif not partition.in_hand.reaches(IN_HAND_MAX):
            self._reading[partition] = False
            count = partition.inbox.page.count
            self._store.submit(_words(partition), partial(self._took, partition, partition.inbox.cursor, count))

    def _took(self, partition: Partition, cursor: bytes, count: int, reply: Any) -> None:
        is_hinted_at = self._reading.pop(partition)
        if partition.phase is not Phase.OPEN:
            return
        if isinstance(reply, Exception):
            self._try_again(partition, store_error(reply, self._store.url))
            return
        self._delays.pop(partition, None)
        if partition.inbox.cursor != cursor:
            # Meanwhile something was put back, which comes first then.
            self._note(partition)
            return
        partition.inbox.page.saw([_data(fields) for _, fields in reply])
        for entry, fields in reply:
            self._take(partition, entry, _data(fields))
        if len(reply) < count:
            partition.inbox.ahead.clear()
        if is_hinted_at or len(reply) == count:
            self._note(partition)
        if reply:
            self.on_rest()

    async def _read_apart(self, partition: Partition) -> None:
        """Read an inbox of which entries were left where they are, for want of memory."""
        try:
            if partition.memory.is_full:
                await self._read_ahead(partition)
            else:
                await self.read_all(partition)
            self._delays.pop(partition, None)
        except Exception as error:  # noqa: BLE001, whatever it is, the next try may go better
            self._try_again(partition, error)
        finally:
            if self._reading.pop(partition):
                self._note(partition)

    def _try_again(self, partition: Partition, error: Exception) -> None:
        level = logging.INFO if isinstance(error, KeylaneError) else logging.ERROR
        logger.log(level, "the inbox of %s is not readable now: %s", partition.space, error)
        if partition.phase is not Phase.OPEN:
            return
        delay = self._delays.get(partition, AGAIN_FIRST_SECONDS)
        self._delays[partition] = min(2 * delay, AGAIN_CAP_SECONDS)
        self._resting.add(partition)
        asyncio.get_running_loop().call_later(delay, self._rested, partition)

    def _rested(self, partition: Partition) -> None:
        self._resting.discard(partition)
        self._note(partition)

    def _take(self, partition: Partition, entry: bytes, data: bytes) -> None:
        partition.inbox.cursor = entry
        if partition.inbox.ahead and entry in partition.inbox.ahead:
            partition.inbox.ahead.discard(entry)
            return
        self._intake.take_entry(partition, entry, data)

    async def read_all(self, partition: Partition) -> None:
        """Take in the whole inbox of a partition that is being opened; what was dealt with already is taken out.

        While the store's memory is full, only what needs no room is taken in, and the rest when there is some.

        Raises:
            StoreUnavailable: The store is away; reading goes on from there when it is called again.
        """
        while not partition.memory.is_full:
            cursor, count = partition.inbox.cursor, partition.inbox.page.count
            entries = await self._page(partition, cursor, count)
            known = await self._known(partition, [data for _, data in entries])
            if partition.phase not in _TAKING:
                return
            if partition.inbox.cursor != cursor:
                continue
            for (entry, data), is_known in zip(entries, known, strict=True):
                if is_known and entry not in partition.inbox.ahead and not partition.is_known(_raw_id(data)):
                    partition.inbox.cursor = entry
                    partition.settle_entry(entry)
                else:
                    self._take(partition, entry, data)
            if len(entries) < count:
                partition.inbox.behind = None
                partition.inbox.ahead.clear()
                return
        await self._read_ahead(partition)

    async def _read_ahead(self, partition: Partition) -> None:
        """Deal with what needs no room, also behind requests that have to wait for some."""
        partition.inbox.looked = max(partition.inbox.cursor, partition.inbox.looked, key=comparable)
        while True:
            cursor, count = partition.inbox.looked, partition.inbox.page.count
            entries = await self._page(partition, cursor, count)
            known = await self._known(partition, [data for _, data in entries])
            if partition.phase not in _TAKING:
                return
            if partition.inbox.looked != cursor:
                continue
            for (entry, data), is_known in zip(entries, known, strict=True):
                partition.inbox.looked = entry
                if is_known or entry in partition.inbox.ahead:
                    continue
                if self._intake.take_ahead(partition, entry, data):
                    partition.inbox.ahead.add(entry)
                else:
                    partition.inbox.leave(entry)
            if len(entries) < count:
                return

    async def read_again(self, partition: Partition) -> list[str]:
        """Look once more at what was read already and still lies in the inbox, and take in what was passed over.

        Returns:
            What was done, in sentences.

        Raises:
            StoreUnavailable: The store is away.
        """
        did: list[str] = []
        cursor, end = START, comparable(partition.inbox.cursor)
        while True:
            count = partition.inbox.page.count
            entries = await self._page(partition, cursor, count)
            passed = [entry for entry in entries if comparable(entry[0]) <= end]
            known = await self._known(partition, [data for _, data in passed])
            for (entry, data), is_known in zip(passed, known, strict=True):
                did.extend(self._look_again(partition, entry, data, is_known=is_known))
            if len(passed) < count:
                return did
            cursor = passed[-1][0]

    def _look_again(self, partition: Partition, entry: bytes, data: bytes, *, is_known: bool) -> list[str]:
        raw_id = _raw_id(data)
        if is_known and raw_id not in partition.open:
            partition.settle_entry(entry)
            return [f"took entry {entry.decode()} out of the inbox: it had been dealt with"]
        if partition.is_known(raw_id):
            self._intake.take_entry(partition, entry, data)
            return []
        self._intake.take_entry(partition, entry, data)
        return [f"took entry {entry.decode()} of the inbox in, which had been passed over"]

    async def _page(self, partition: Partition, cursor: bytes, count: int) -> list[tuple[bytes, bytes]]:
        entries = await read_after(self._store, partition.space, cursor, count)
        partition.inbox.page.saw([data for _, data in entries])
        return entries

    async def _known(self, partition: Partition, requests: list[bytes]) -> list[bool]:
        """Return which requests an owner before has dealt with: a copy may have been left behind."""
        space = partition.space
        ids = [_raw_id(data) for data in requests]
        reads = [("EXISTS", space.result(raw_id), space.invocation(raw_id)) for raw_id in ids]
        found = await ask(self._store, reads, [space.inbox] * len(ids))
        return [count > 0 for count in found]


def _words(partition: Partition) -> tuple[Any, ...]:
    return ("XRANGE", partition.space.inbox, b"(" + partition.inbox.cursor, "+", "COUNT", partition.inbox.page.count)


def _data(fields: list[bytes]) -> bytes:
    return fields[1] if fields[:1] == [b"m"] else b""


def _raw_id(data: bytes) -> bytes:
    try:
        return Request.decode(data).invocation
    except Undecodable:
        return b""
