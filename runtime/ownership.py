"""Which partitions this worker holds: takes what is its share, hands over what is not, and opens what it took."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from ..journal.code_registry import register_code
from ..journal.doubt import Remembered
from ..journal.doubt import Verdict as HistoryVerdict
from ..journal.errors import KeylaneError, StoreError, StoreUnavailable
from ..journal.leases import acquire, announce, observe, release, withdraw, withdraw_dead
from ..journal.old_libraries import tend_libraries
from ..journal.promise import declare_durability
from ..journal.receivers_registry import register_receivers
from ..journal.tenure import Acquired, Announcement, Observation, lease_clock
from ..journal.types_registry import register_types
from ..objects.reconciliation import cards_of, code_of
from .assignment import PartitionId, desired
from .liveness import LeaseWatch, Neighbours, Verdict
from .lost_tail import report
from .partition import Partition, Phase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..journal.safety import Durability
    from ..journal.store import Store
    from ..objects.app import App
    from ..objects.settings import Settings
    from ..objects.virtual_object import VirtualObject
    from .errands import Errands
    from .lease_thread import HeldLease, LeaseThread
    from .presence import Presence

logger = logging.getLogger("keylane.ownership")

#: A lease is looked at so often within its length, so that a take-over follows soon after its end.
LOOKS_PER_LEASE = 12
#: So many partitions are asked for at a time.
ACQUIRED_AT_ONCE = 256
#: How often old function libraries are looked for, and how soon after the start.
LIBRARIES_SECONDS = 3600.0
FIRST_LIBRARIES_SECONDS = 60.0
#: How often a hand-over looks whether what runs has ended.
QUIET_CHECK_SECONDS = 0.01


def partitions_of(virtual_object: VirtualObject, settings: Settings) -> int:
    """Return how many partitions a type has: its own number, else the deployment's."""
    return virtual_object.partitions or settings.partitions


class Ownership:
    """The tenures of one worker.

    Args:
        store: The open store.
        app: What this worker hosts.
        settings: The effective settings.
        durability: What this worker's answers promise.
        presence: This process's identity.
        leases: Keeps the leases.
        errands: Opens partitions and hands them over.
        make: Makes the partition of a tenure that begins.
        recover: Brings an acquired partition's work into memory and opens it.
        suspend: Ends the waits of a partition that is handed over.
        restart_may_lose: Whether a restart may cost the server what it has confirmed.
    """

    def __init__(
        self,
        *,
        store: Store,
        app: App,
        settings: Settings,
        durability: Durability,
        presence: Presence,
        leases: LeaseThread,
        errands: Errands,
        make: Callable[[PartitionId, Acquired], Partition],
        recover: Callable[[Partition], Awaitable[None]],
        suspend: Callable[[Partition], None],
        restart_may_lose: bool,
    ) -> None:
        self._store = store
        self._app = app
        self._settings = settings
        self._durability: Durability = durability
        self._presence = presence
        self._leases = leases
        self._errands = errands
        self._make = make
        self._recover = recover
        self._suspend = suspend
        #: Raised when a server that is another one than before keeps less.
        self.restart_may_lose = restart_may_lose
        self._remembered: dict[PartitionId, Remembered] = {}
        self._is_registered = False
        self._neighbours = Neighbours(presence.worker, lease_seconds=settings.lease_seconds)
        self._watches: dict[PartitionId, LeaseWatch] = {}
        self._held: dict[PartitionId, tuple[Partition, HeldLease]] = {}
        self._counter = 0
        self._announce_at = -math.inf
        self._libraries_at = lease_clock() + FIRST_LIBRARIES_SECONDS
        self._draining = False
        self._acquiring = 0
        self._all = [
            PartitionId(each.name, number)
            for each in app.objects.values()
            for number in range(partitions_of(each, settings))
        ]
        self.opened = anyio.Event()

    @property
    def partitions(self) -> list[Partition]:
        """The partitions that this worker holds."""
        return [partition for partition, _ in self._held.values()]

    def get(self, identity: PartitionId) -> Partition | None:
        """Return a partition that this worker holds."""
        held = self._held.get(identity)
        return None if held is None else held[0]

    async def register(self) -> None:
        """Write into the namespace what clients have to know of it, or find that partition counts differ.

        Raises:
            SchemaMismatch: The namespace has another count.
        """
        await declare_durability(self._store, self._durability)
        hosted = self._app.objects.values()
        counts = {each.name: partitions_of(each, self._settings) for each in hosted}
        await register_types(self._store, counts, {each.name: each.owner for each in hosted})
        await register_receivers(self._store, cards_of(self._app, self._settings))
        await register_code(self._store, code_of(self._app))
        self._is_registered = True

    def register_again(self) -> None:
        """Write that again before anything is owned: the store may have lost it."""
        self._is_registered = False

    async def run(self) -> None:
        """Look around, take and hand over, until cancelled."""
        while True:
            try:
                await self._look_around()
            except StoreUnavailable as error:
                logger.info("the registry is not readable now: %s", error)
            except Exception:
                logger.exception("ownership can't go on as it is")
            await anyio.sleep(self._settings.lease_seconds / LOOKS_PER_LEASE)

    async def _look_around(self) -> None:
        if not self._is_registered:
            await self.register()
        if lease_clock() >= self._announce_at:
            await self._announce_if_possible()
        verdicts = await self._observe()
        wanted = self._wanted()
        for identity in [each for each in self._held if each not in wanted]:
            self._begin_hand_over(identity)
        free = [identity for identity in sorted(wanted) if identity in verdicts]
        while free and not self._draining:
            # In one turn and not one after the other: a take-over lasts as long as one of them and not as all.
            async with anyio.create_task_group() as acquisitions:
                for identity in free[:ACQUIRED_AT_ONCE]:
                    self._acquiring += 1
                    acquisitions.start_soon(self._acquire, identity, *verdicts[identity])
            del free[:ACQUIRED_AT_ONCE]
        self.opened.set()

    def _wanted(self) -> frozenset[PartitionId]:
        return desired(self._presence.worker, self._neighbours.live, self._all)

    async def _observe(self) -> dict[PartitionId, tuple[Observation, Verdict]]:
        """Return the partitions that may be taken; all are watched, so that a dead holder is noticed once for all."""
        missing = [identity for identity in self._all if identity not in self._held]
        poll = await observe(self._store, [self._store.space(each.type_name, each.number) for each in missing])
        found: dict[PartitionId, tuple[Observation, Verdict]] = {}
        for identity, seen in zip(missing, poll.seen, strict=True):
            if isinstance(seen, StoreUnavailable):
                # The others go on; what is not answered counts as not seen.
                logger.info("%s %d is not seen now: %s", identity.type_name, identity.number, seen.why)
                continue
            if isinstance(seen, StoreError):
                logger.error("%s %d can't be owned: %s", identity.type_name, identity.number, seen)
                continue
            self._note_successor(identity, seen)
            watch = self._watches.setdefault(identity, LeaseWatch(self._settings.lease_seconds))
            verdict = watch.poll(seen, sent_at=poll.sent_at, answered_at=poll.answered_at)
            if verdict is Verdict.HELD and self._is_nobodys(seen):
                verdict = Verdict.EXPIRED
            if verdict is not Verdict.HELD:
                found[identity] = (seen, verdict)
        silent = {seen.worker for seen, verdict in found.values() if verdict is Verdict.EXPIRED}
        silent.discard(self._presence.worker)
        if silent:
            self._neighbours.bury(silent)
        return found

    def _note_successor(self, identity: PartitionId, seen: Observation) -> None:
        """Take note that another one has had a partition since this worker had: what it wrote is not known here."""
        remembered = self._remembered.get(identity)
        if remembered is not None and (seen.epoch or 0) > remembered.epoch:
            self._remembered[identity] = replace(remembered, is_newest=False)

    async def _announce_if_possible(self) -> None:
        """Announce; while the registry's node alone is away, who lives is what was last seen.

        Raises:
            StoreUnavailable: This worker has not seen the registry yet.
        """
        try:
            await self._announce()
        except StoreUnavailable as error:
            if not self._neighbours.live:
                raise
            logger.info("the registry is not readable now: %s", error)

    def _is_nobodys(self, seen: Observation) -> bool:
        """Return whether the holder is known not to run the partition: it is dead, or it is ourselves."""
        return seen.worker == self._presence.worker or self._presence.same_machine_dead(seen.machine, seen.worker)

    async def _announce(self) -> None:
        self._counter += 1
        announcement = Announcement(
            self._counter,
            tuple(self._app.objects),
            self._presence.machine,
            self._store.library.name,
            self._draining,
            self._settings.lease_seconds,
        )
        self._announce_at = lease_clock() + self._settings.renewal_seconds
        seen = await announce(self._store, self._presence.worker, announcement)
        self._neighbours.poll(seen.announcements, sent_at=seen.sent_at, answered_at=seen.answered_at)
        dead = [
            worker
            for worker, machine in self._neighbours.suspects()
            if self._presence.same_machine_dead(machine, worker)
        ]
        if dead:
            self._neighbours.bury(dead)
        await withdraw_dead(self._store, self._neighbours.forgettable())
        if lease_clock() >= self._libraries_at:
            self._libraries_at = lease_clock() + LIBRARIES_SECONDS
            self._errands.begin(self._tend_libraries)

    async def _tend_libraries(self) -> None:
        """Delete the functions of releases that nobody runs any more."""
        try:
            deleted = await tend_libraries(self._store, self._neighbours.libraries)
        except KeylaneError as error:
            logger.info("old function libraries stay for now: %s", error)
            return
        if deleted:
            logger.info("deleted function libraries that nobody uses: %s", ", ".join(deleted))

    async def _acquire(self, identity: PartitionId, seen: Observation, verdict: Verdict) -> None:
        """Try to get a partition; what keeps this one from being owned must not cost the others of the turn."""
        try:
            await self._acquire_now(identity, seen, verdict)
        except StoreUnavailable as error:
            logger.info("%s can't be acquired now: %s", identity, error)
        except Exception:
            logger.exception("%s can't be owned", identity)
        finally:
            self._acquiring -= 1

    async def _acquire_now(self, identity: PartitionId, seen: Observation, verdict: Verdict) -> None:
        began_at = time.monotonic()
        space = self._store.space(identity.type_name, identity.number)
        remembered = self._remembered.get(identity)
        acquired = await acquire(
            self._store,
            space,
            seen,
            partitions=partitions_of(self._app.objects[identity.type_name], self._settings),
            worker=self._presence.worker,
            machine=self._presence.machine,
            lease_seconds=self._settings.lease_seconds,
            restart_may_lose=self.restart_may_lose,
            reach_seconds=self._settings.doubt_seconds,
            remembered=remembered,
        )
        if acquired is None:
            return
        self._watches.pop(identity, None)
        self._remembered.pop(identity, None)
        if acquired.verdict is not HistoryVerdict.WHOLE:
            self._errands.add(partial(report, self._store, space, acquired, remembered))
        how = "took over from a silent holder" if verdict is Verdict.EXPIRED else "acquired"
        logger.info("%s: %s, epoch %d", space, how, acquired.tenure.epoch)
        partition = self._make(identity, acquired)
        partition.taken_at = began_at
        partition.meters.acquired(partition, from_a_silent_one=verdict is Verdict.EXPIRED)
        lease = self._leases.hold(space, acquired.tenure, sent_at=acquired.sent_at)
        partition.hold_lease(lease.is_valid)
        self._held[identity] = (partition, lease)
        self._errands.begin(partial(self._open, partition))

    async def _open(self, partition: Partition) -> None:
        while partition.phase is Phase.OPENING:
            try:
                await self._recover(partition)
            except Exception as error:  # noqa: BLE001, one that can't be opened now is tried again
                logger.warning("%s: not recovered yet: %r", partition.space, error)
                await anyio.sleep(self._settings.sweep_seconds)

    def of_lease(self, lease: HeldLease) -> list[Partition]:
        """Return the partition that a lease is for, if it is held still."""
        return [partition for partition, held in self._held.values() if held is lease]

    def lost(self, partition: Partition) -> None:
        """Forget a partition whose tenure has ended."""
        identity = PartitionId(partition.space.type_name, partition.number)
        held = self._held.get(identity)
        if held is not None and held[0] is partition:
            del self._held[identity]
            self._leases.drop(held[1])
            if partition.remembered is not None:
                self._remembered[identity] = partition.remembered

    def _begin_hand_over(self, identity: PartitionId) -> None:
        partition = self._held[identity][0]
        if partition.phase in (Phase.OPEN, Phase.OPENING):
            partition.drain()
            self._suspend(partition)
            self._errands.begin(partial(self._hand_over, partition))

    async def _hand_over(self, partition: Partition) -> None:
        """Let what runs end, within the drain limit, and let go of the partition."""
        with anyio.move_on_after(self._settings.drain_limit_seconds):
            while not partition.is_quiet and partition.phase is not Phase.LOST:
                await anyio.sleep(QUIET_CHECK_SECONDS)
        if partition.phase is Phase.LOST:
            return
        tenure = partition.tenure
        partition.lose()
        try:
            await release(self._store, partition.space, tenure)
        except KeylaneError as error:
            logger.warning("%s was not handed over, its lease will run out: %s", partition.space, error)

    async def drain(self) -> None:
        """Hand everything over and leave the registry; returns when that is done, within the drain limit."""
        self._draining = True
        if self._errands.is_over:
            # As by the end of `asyncio.run`: there is nothing left that could hand over, nor a connection.
            logger.warning("nothing was handed over, since all tasks were cancelled: the leases will run out")
            return
        with anyio.move_on_after(self._settings.drain_limit_seconds + self._settings.lease_seconds):
            try:
                await self._announce()
            except KeylaneError as error:
                logger.warning("the others were not told that this worker leaves: %s", error)
            # What it asked for before is handed over as well: its answer may come still.
            while (self._held or self._acquiring) and not self._errands.is_over:
                for identity in list(self._held):
                    self._begin_hand_over(identity)
                await anyio.sleep(QUIET_CHECK_SECONDS)
            if not self._errands.is_over:
                await self._withdraw()

    async def _withdraw(self) -> None:
        try:
            await withdraw(self._store, self._presence.worker)
        except KeylaneError as error:
            logger.warning("this worker was not taken out of the registry: %s", error)
