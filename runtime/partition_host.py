"""What the partitions of a worker ask of it, each passed on to the part of it that does that."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from .partition import Phase
from .replies import refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..journal.errors import KeylaneError
    from ..journal.keyspace import PartitionSpace
    from ..journal.outcomes import IdempotencyEntry
    from ..journal.store import Store
    from .doors import Doors
    from .effect_parts import EffectParts
    from .errands import Errands
    from .finding import Finding
    from .inbox_reader import InboxReader
    from .invocation import Invocation
    from .lane import Lane
    from .loading import Loading
    from .outbox import Outbox
    from .ownership import Ownership
    from .partition import FirstArguments, Partition
    from .probes import Probes
    from .residency import Residency
    from .slots import Slots
    from .timers import Timers
    from .waits import Waits


class PartitionHost:
    """What a worker does for the partitions that it holds."""

    _errands: Errands
    _finding: Finding
    _inboxes: InboxReader
    _loading: Loading
    _outbox: Outbox
    _ownership: Ownership
    _probes: Probes
    _residency: Residency
    _slots: Slots[Lane]
    _store: Store
    _timers: Timers
    _waits: Waits
    doors: Doors
    effect_parts: EffectParts

    def ready(self, lane: Lane) -> None:
        """Give a lane to a slot, if it has something to run and none has it yet."""
        if not lane.busy and lane.partition.phase is Phase.OPEN and lane.head() is not None:
            lane.busy = True
            self._slots.give(lane)

    def entered(self, lane: Lane) -> None:
        """Make room in memory for a lane that comes in."""
        self._residency.enter(lane)

    def load(self, lane: Lane, after_seconds: float = 0.0) -> None:
        """Read a lane into memory."""
        if not after_seconds:
            self._loading.load(lane)
            return
        asyncio.get_running_loop().call_later(after_seconds, self._loading.load, lane)

    def refuse(self, partition: Partition, invocation: Invocation, error: KeylaneError) -> None:
        """Tell whoever sent a request that it comes to nothing."""
        if invocation.entry is not None and not invocation.accepted:
            refuse(partition, invocation.raw_id, invocation.entry, invocation.client, error, invocation.caller)

    def find(self, partition: Partition, raw_ids: list[bytes]) -> None:
        """Let invocations go on that fell due, in this order."""
        elsewhere: list[bytes] = []
        for raw_id in raw_ids:
            invocation = partition.open.get(raw_id)
            if invocation is None:
                elsewhere.append(raw_id)
            else:
                self._waits.fire(partition, invocation)
        if elsewhere:
            self._finding.find(partition, elsewhere)

    def due_in(self, partition: Partition, delay_ms: int) -> None:
        """Ask in a while what is due."""
        self._timers.ask_in(partition, delay_ms)

    def lost_messages(self, partition: Partition, target: PartitionSpace) -> None:
        """Tell the callers whose messages to a partition are lost."""
        self._errands.add(partial(self._waits.fail_lost_calls, self._store, partition, target))

    def find_arguments(
        self,
        partition: Partition,
        key_text: str,
        entry: IdempotencyEntry,
        done: Callable[[FirstArguments | None], None],
    ) -> None:
        """Read the arguments of a former call."""
        self._finding.find_arguments(partition, key_text, entry, done)

    def find_parked(self, lane: Lane, raw_id: bytes, done: Callable[[], None]) -> None:
        """Bring an invocation into memory that an owner before has set aside."""
        self._finding.find_parked(lane, raw_id, done)

    def lost(self, partition: Partition) -> None:
        """Take note that a tenure ended."""
        self._timers.suspend(partition)
        self.effect_parts.agenda.leave(partition)
        self._outbox.leave(partition)
        self._residency.lost(partition)
        self._inboxes.leave(partition)
        self._probes.leave(partition)
        self.doors.close(partition)
        self._ownership.lost(partition)
