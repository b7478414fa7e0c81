"""Finds invocations that no lane in memory has: those that fell due, those that stand aside, and former calls."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from ..journal.errors import KeylaneError, StoreUnavailable, WrongKeyType
from ..journal.history import first_arguments
from ..journal.lane_reading import LaneContents, read_invocations
from ..journal.mail import Mail
from ..journal.records import Accepted, Released
from ..journal.snapshots import ObjectState
from .found_invocations import has_ended, is_parked_in, is_scheduled
from .in_hand import IN_HAND_MAX
from .partition import Phase
from .reviving import Extras
from .scheduling import release

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..journal.lane_reading import OpenInvocation
    from ..journal.outcomes import IdempotencyEntry
    from ..journal.store import Store
    from .errands import Errands
    from .lane import Lane
    from .partition import FirstArguments, Partition
    from .reviving import Reviving

logger = logging.getLogger("keylane.worker")

LOOK_AGAIN_SECONDS = 0.2
#: How many invocations that fell due are looked for in one turn.
FOUND_AT_ONCE = 128


class Finding:
    """Looks for invocations, for one worker.

    Args:
        store: The open store.
        errands: Runs what takes more than one look.
        reviving: Brings into memory what was found.
    """

    def __init__(self, store: Store, errands: Errands, reviving: Reviving) -> None:
        self._store = store
        self._errands = errands
        self._reviving = reviving

    def find(self, partition: Partition, raw_ids: list[bytes]) -> None:
        """Let invocations go on that fell due: bring their lanes into memory, or put scheduled ones into theirs.

        One after the other, so that what was scheduled enters its lane in the order of the due times.
        """
        partition.finding.update((raw_id, None) for raw_id in raw_ids)
        if not partition.is_finding:
            partition.is_finding = True
            self._errands.add(partial(self._find_all, partition))

    async def _find_all(self, partition: Partition) -> None:
        try:
            while partition.finding and partition.phase is Phase.OPEN:
                ids = list(islice(partition.finding, FOUND_AT_ONCE))
                for each, extras in await self._readable(partition, ids):
                    partition.finding.pop(each.raw_id, None)
                    self._take_found(partition, each, extras)
        except StoreUnavailable:
            # The due times stay where they are, and the sweep asks again.
            partition.finding.clear()
        finally:
            partition.is_finding = False

    async def _readable(self, partition: Partition, ids: list[bytes]) -> list[tuple[OpenInvocation, Extras]]:
        """Read invocations; one that can't be read is left out, and keeps no other one waiting."""
        try:
            found = await read_invocations(self._store, partition.space, ids)
            scheduled = [each for each in found if is_scheduled(each)]
            extras = await self._reviving.extras(partition, LaneContents(ObjectState({}), scheduled))
            return [(each, extras) for each in found]
        except WrongKeyType as error:
            if len(ids) == 1:
                logger.warning("%s: what fell due can't be read: %s", partition.space, error)
                partition.finding.pop(ids[0], None)
                return []
        middle = len(ids) // 2
        return [*await self._readable(partition, ids[:middle]), *await self._readable(partition, ids[middle:])]

    def _take_found(self, partition: Partition, found: OpenInvocation, extras: Extras) -> None:
        raw_id = found.raw_id
        if raw_id in partition.open or partition.was_released(raw_id) or partition.phase is not Phase.OPEN:
            return
        accepted = found.records[0] if found.records else None
        if not isinstance(accepted, Accepted) or has_ended(found):
            # One that is nowhere is not due any more.
            partition.forget_due(raw_id)
        elif not is_scheduled(found):
            partition.lane(accepted.key)
        elif not partition.in_hand.reaches(IN_HAND_MAX):
            self._release(partition, accepted, found, extras)

    def _release(self, partition: Partition, accepted: Accepted, found: OpenInvocation, extras: Extras) -> None:
        lane = partition.lane(accepted.key)
        extras = Extras({}, extras.claims)
        found = _with_early(partition, found)
        invocation = self._reviving.revived(lane, replace(found, records=[*found.records, Released()]), extras)
        release(lane, accepted, invocation)
        self._reviving.park_without_handler(lane, invocation)

    def find_parked(self, lane: Lane, raw_id: bytes, done: Callable[[], None]) -> None:
        """Bring an invocation into memory that an owner before has set aside, if it is one."""
        lane.pins += 1
        self._errands.add(partial(self._find_parked, lane, raw_id, done))

    async def _find_parked(self, lane: Lane, raw_id: bytes, done: Callable[[], None]) -> None:
        try:
            await self._revive_parked(lane, raw_id, done)
        finally:
            lane.pins -= 1

    async def _revive_parked(self, lane: Lane, raw_id: bytes, done: Callable[[], None]) -> None:
        partition = lane.partition
        if partition.phase is Phase.LOST:
            return
        try:
            (found,) = await read_invocations(self._store, partition.space, [raw_id])
            extras = await self._reviving.extras(partition, LaneContents(ObjectState({}), [found]))
        except StoreUnavailable:
            lane.pins += 1
            self._errands.add_later(LOOK_AGAIN_SECONDS, partial(self._find_parked, lane, raw_id, done))
            return
        if raw_id not in partition.open and is_parked_in(found, lane.key_text):
            partition.parked[raw_id] = self._reviving.revive(lane, found, extras)
        done()
        left = partition.parked.pop(raw_id, None)
        if left is not None:
            # It was not resumed after all.
            partition.let_go(left)

    def find_arguments(
        self,
        partition: Partition,
        key_text: str,
        entry: IdempotencyEntry,
        done: Callable[[FirstArguments | None], None],
    ) -> None:
        """Read the arguments of a former call."""
        self._errands.add(partial(self._find_arguments, partition, key_text, entry, done))

    async def _find_arguments(
        self,
        partition: Partition,
        key_text: str,
        entry: IdempotencyEntry,
        done: Callable[[FirstArguments | None], None],
    ) -> None:
        try:
            found = await first_arguments(self._store, partition.space, key_text, entry)
        except KeylaneError:
            found = None
        done(found)


def _with_early(partition: Partition, found: OpenInvocation) -> OpenInvocation:
    """Return what was read of a scheduled invocation with the signals that were queued for it since."""
    early = partition.early_signals.pop(found.raw_id, ())
    if found.mail is not None:
        early = [each for each in early if not found.mail.has(each.message)]
    if not early:
        return found
    mail = found.mail or Mail()
    for each in early:
        mail.note(each, partition.now_ms())
    return replace(found, records=[*found.records, *early], mail=mail)
