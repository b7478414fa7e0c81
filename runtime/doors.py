"""The short way into partitions that this process owns, for the client of the same process."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ..journal.key import Key, partition_of
from .assignment import PartitionId
from .door import DoorClosed
from .intake import find_handler
from .ownership import Ownership, partitions_of
from .partition import Phase

if TYPE_CHECKING:
    import asyncio

    from ..journal.outcomes import Outcome
    from ..objects.app import App
    from ..objects.settings import Settings
    from .acceptances import Acceptances
    from .intake import Intake
    from .partition import Partition
    from .reads import Reads

#: How many keys' partitions are remembered: hashing a key costs more than looking it up.
REMEMBERED_KEYS = 65_536


class PartitionDoor:
    """The door of one partition, for as long as its tenure lasts."""

    __slots__ = ("_acceptances", "_intake", "_partition", "_reads")

    def __init__(self, partition: Partition, intake: Intake, acceptances: Acceptances, reads: Reads) -> None:
        self._partition = partition
        self._acceptances = acceptances
        self._intake = intake
        self._reads = reads

    @property
    def is_open(self) -> bool:
        """Whether calls are taken in here."""
        return self._partition.phase is Phase.OPEN

    def is_shared(self, handler_name: str) -> bool:
        """Return whether a handler only reads; an unknown one does not."""
        handler = self._partition.virtual_object.handlers.get(handler_name)
        return handler is not None and handler.kind == "shared"

    @property
    def taken_in(self) -> bytes:
        """Id of the last inbox entry that was taken in."""
        return self._partition.inbox.cursor

    def call(
        self,
        handler_name: str,
        key: str,
        payload: bytes | None,
        basis: bytes | None,
        idempotency_key: str | None,
        raw_id: bytes,
    ) -> asyncio.Future[Outcome]:
        """Take a call of an exclusive handler in.

        Returns:
            The outcome once it is durable, or `DoorClosed` when the partition was lost meanwhile.

        Raises:
            CallError: It was refused; nothing of it is written.
            DoorClosed: The partition is not ours any more.
        """
        partition = self._partition
        if partition.phase is not Phase.OPEN:
            raise DoorClosed
        handler = find_handler(partition, handler_name)
        return self._intake.take_call(partition, handler, key, payload, basis, idempotency_key, raw_id)

    def accepted(self, raw_id: bytes) -> asyncio.Future[None]:
        """Commit the acceptance of a call by itself, so that its id may be given out."""
        return self._acceptances.accept_now(self._partition, raw_id)

    async def read(self, handler_name: str, key: str, payload: bytes | None, raw_id: bytes) -> Outcome:
        """Run a shared handler in the caller's own task.

        Raises:
            UnknownHandler: The type has none of this name.
        """
        partition = self._partition
        handler = find_handler(partition, handler_name)
        return await self._reads.outcome(partition, partition.space, handler, key, payload, raw_id)


class Doors:
    """Finds the door of a key.

    Args:
        app: What this process hosts.
        settings: The effective settings.
        ownership: The partitions that it holds.
        intake: Takes calls in.
        acceptances: Commits that they were taken in.
        reads: Serves shared handlers.
    """

    def __init__(
        self,
        app: App,
        settings: Settings,
        ownership: Ownership,
        intake: Intake,
        acceptances: Acceptances,
        reads: Reads,
    ) -> None:
        self._app = app
        self._settings = settings
        self._ownership = ownership
        self._intake = intake
        self._acceptances = acceptances
        self._reads = reads
        self._doors: dict[tuple[str, int], PartitionDoor] = {}
        self._number = lru_cache(REMEMBERED_KEYS)(self._number_of)

    def _number_of(self, object_name: str, key_text: str) -> int:
        Key.parse(key_text)
        return partition_of(key_text, self._count(object_name))

    def route(self, object_name: str, key_text: str) -> PartitionDoor | None:
        """Return the door of the partition that holds a key; None where it is owned elsewhere, or not open yet."""
        if object_name not in self._app.objects:
            return None
        door = self._doors.get((object_name, self._number(object_name, key_text)))
        return door if door is not None and door.is_open else None

    def partitions(self, object_name: str) -> int | None:
        """Return how many partitions a hosted type has; None for one that is not hosted here."""
        return self._count(object_name) if object_name in self._app.objects else None

    def _count(self, object_name: str) -> int:
        return partitions_of(self._app.objects[object_name], self._settings)

    def open(self, partition: Partition) -> None:
        """Open a partition's door."""
        identity = (partition.space.type_name, partition.number)
        self._doors[identity] = PartitionDoor(partition, self._intake, self._acceptances, self._reads)

    def close(self, partition: Partition) -> None:
        """Close a partition's door, unless a later tenure has opened its own."""
        identity = PartitionId(partition.space.type_name, partition.number)
        if self._ownership.get(identity) in (None, partition):
            self._doors.pop((identity.type_name, identity.number), None)
