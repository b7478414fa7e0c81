"""A worker: the tasks that own partitions, take calls in, run handlers and write what becomes of them."""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import anyio
import anyio.abc

from ..journal.background import Background
from ..journal.lane_reading import read_runnable
from ..journal.leases import sync_leases
from ..journal.tenure import Acquired
from .acceptances import Acceptances
from .assignment import PartitionId
from .attaching import Attaching
from .blob_sweep import BlobSweep
from .cancelling import Cancelling
from .doors import Doors
from .effect_parts import EffectParts
from .effects import Effects
from .errands import Errands
from .execution import Execution
from .finding import Finding
from .idle import Idle, Parts
from .inbox_reader import InboxReader
from .intake import CALLS_PER_SLOT, Intake
from .lane import Lane
from .lane_mending import LaneMending
from .lease_thread import HeldLease, LeaseThread
from .loading import Loading
from .mending import Mending
from .meters import NO_METERS, Meters
from .newcomers import Newcomers
from .outbox import Outbox
from .ownership import Ownership
from .partition import Partition, Phase
from .partition_host import PartitionHost
from .pausing import Pauses
from .places import Places
from .presence import Presence, new_worker_identity
from .probes import Probes
from .reads import Reads, Serving, asker_of
from .residency import Residency
from .resuming import Resuming
from .retention import Retention
from .reviving import Reviving
from .signal_boxes import SignalBoxes
from .signal_delivery import SignalDelivery
from .signal_intake import SignalIntake
from .slots import Slots
from .spans import NO_SPANS, Spans
from .steps import Steps
from .timers import Timers
from .validating import VALIDATOR_SLOTS, Validating, Validation, sender_of
from .waits import Waits

if TYPE_CHECKING:
    from ..journal.keyspace import PartitionSpace
    from ..journal.node import Node
    from ..journal.requests import Request
    from ..journal.safety import Durability
    from ..journal.store import Store
    from ..objects.app import App
    from ..objects.settings import Settings

logger = logging.getLogger("keylane.worker")

ACCEPTANCE_TICK_SECONDS = 0.025
#: Shared handlers that run at once for callers in other processes.
READ_SLOTS = 64
#: How long the start waits for the first look around; partitions that others hold come later.
FIRST_LOOK_SECONDS = 5.0


class Worker(PartitionHost):
    """Hosts an app on a store; use it as an async context manager.

    Leaving it hands the partitions over: what runs may end within the drain limit, nothing new starts.

    Args:
        app: What it hosts.
        store: The open store.
        settings: The effective settings.
        durability: What its answers promise.
        restart_may_lose: Whether a restart may cost the server what it has confirmed.
    """

    #: Told what happens, in numbers; set before it is opened.
    meters: Meters = NO_METERS
    #: Makes the spans of traces; likewise.
    spans: Spans = NO_SPANS

    def __init__(
        self, app: App, store: Store, settings: Settings, durability: Durability, *, restart_may_lose: bool = False
    ) -> None:
        self._app = app
        self._durability: Durability = durability
        self._store = store
        self._settings = settings
        self._presence = Presence(new_worker_identity())
        self._stack = contextlib.AsyncExitStack()
        self._limiter = anyio.CapacityLimiter(settings.blocking_threads)
        # Handlers in threads wait for their steps, so these must not wait for the handlers' threads.
        self._step_limiter, read_limiter = (anyio.CapacityLimiter(settings.blocking_threads) for _ in range(2))
        self._errands = Errands()
        self._timers = Timers(store)
        self._waits = Waits(self._timers, settings.waiting_residency_seconds, settings.waiting_resident_max)
        self._outbox = Outbox(store, self.lost_messages, self._keep_ms(restart_may_lose=restart_may_lose))
        self._residency = Residency(settings.resident_lanes)
        self._retention = Retention(store, self._partitions, sweep_seconds=settings.sweep_seconds)
        self._reviving = Reviving(store, self._timers)
        self._finding = Finding(store, self._errands, self._reviving)
        self._loading = Loading(store, self._errands, self._reviving, self.ready)
        self._reads = Reads(app, store, read_limiter, settings.payload_limit_bytes)
        self._probes = Probes(store, self._partition_of)
        self._pauses = Pauses(store, self._errands)
        self._boxes = SignalBoxes(store, self._errands)
        self.effect_parts = EffectParts(store, settings, self._errands, self._waits)
        self._validating = Validating(self._reads, settings.payload_limit_bytes)
        self._acceptances = Acceptances()
        self._intake = self._make_intake()
        self._execution = Execution(settings, self._timers, self._limiter)
        self._inboxes = InboxReader(store, self._intake, self._errands, self._partitions)
        self._blob_sweep = BlobSweep(store, self._partitions)
        lanes = LaneMending(store, self._reviving, self._timers)
        dockets = self.effect_parts.mending
        self._mending = Mending(store, self._errands, lanes, self._inboxes, self._waits, self._outbox, dockets)
        self._leases = LeaseThread(
            sync_leases(store, timeout_seconds=settings.renewal_seconds),
            lease_seconds=settings.lease_seconds,
            renewal_seconds=settings.renewal_seconds,
            stuck_after_seconds=settings.stuck_after_seconds,
            on_fenced=self._fenced,
        )
        self._ownership = Ownership(
            store=store,
            app=app,
            settings=settings,
            durability=durability,
            presence=self._presence,
            leases=self._leases,
            errands=self._errands,
            make=self._make,
            recover=self._recover,
            suspend=self._timers.suspend,
            restart_may_lose=restart_may_lose,
        )
        self._newcomers = Newcomers(store, durability, self._errands, settings.sweep_seconds, self._may_lose)
        self.doors = Doors(app, settings, self._ownership, self._intake, self._acceptances, self._reads)
        #: Tells, in tests, when nothing happens before time passes.
        self.idle: Idle
        self.is_dead = False

    def _make_intake(self) -> Intake:
        """Return what takes requests in, with those who know what becomes of each kind."""
        store, errands = self._store, self._errands
        calls_max = self._settings.lane_slots * CALLS_PER_SLOT
        intake = Intake(self._reads.serve, calls_max, self._repair, self._acceptances)
        delivery = SignalDelivery(self._waits)
        self._waits.on_abandoned.append(delivery.give_back)
        intake.waits = self._waits
        intake.validating = self._validating
        intake.signals = SignalIntake(store, errands, self._boxes, delivery)
        intake.deciding = self.effect_parts.deciding
        intake.reconciling = self.effect_parts.reconciling
        intake.cancelling = Cancelling(store, errands, self._reviving)
        intake.cancelling.dockets = self.effect_parts.dockets
        intake.pauses, intake.resuming = self._pauses, Resuming(self._pauses)
        intake.probes = self._probes
        intake.attaching = Attaching(store, errands, self._reviving.read_records, self._probes.attached)
        return intake

    @property
    def identity(self) -> str:
        """This worker's name, new at each process start."""
        return self._presence.worker

    @property
    def store(self) -> Store:
        """The store that it works on."""
        return self._store

    @property
    def partitions(self) -> list[Partition]:
        """The partitions that this worker holds now."""
        return self._ownership.partitions

    async def __aenter__(self) -> Self:
        """Start, and take a first look at what there is to own.

        Raises:
            SchemaMismatch: The namespace was written with another partition count or by another release.
        """
        await self._stack.__aenter__()
        try:
            await self._ownership.register()
            self._presence.open()
            self._stack.callback(self._presence.close)
            await self._stack.enter_async_context(self._leases)
            tasks = await self._stack.enter_async_context(Background())
            await self._start(tasks)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _start(self, tasks: anyio.abc.TaskGroup) -> None:
        self._slots = Slots(self._settings.lane_slots, self._execution.turn, _tenant_of, tasks)
        self._execution.slots = self._slots
        self._waits.slots = self._slots
        self._timers.backlog = self._backlog
        steps = Steps(self._settings, self._slots, self._timers, self._step_limiter)
        places = Places(self._store, self.doors)
        self._execution.steps = steps
        effects = Effects(self._app, places, steps, self._waits, self._timers, self._settings.payload_limit_bytes)
        effects.boxes, effects.store = self._boxes, self._store
        self._execution.messages = effects
        self.effect_parts.serve(effects)
        self.effect_parts.start(self._settings, tasks)
        self._reads.slots = Slots[Serving](READ_SLOTS, self._reads.serve_now, asker_of, tasks)
        self._validating.slots = Slots[Validation](VALIDATOR_SLOTS, self._validating.turn, sender_of, tasks)
        resting = (self._slots, self._reads.slots, self._validating.slots, *self.effect_parts.resting)
        self.idle = Idle(
            self._store,
            Parts(
                (*resting, self._reads, self._errands), self._inboxes, self._outbox, self._timers,
                self.effect_parts.agenda, self._partitions, self._sweep_partitions,
                partial(self._acceptances.accept_late_ones, 0.0),
            ),
        )  # fmt: skip
        subscription = self._store.new_subscription(on_message=self._inboxes.hinted, on_gap=self._inboxes.hear_again)
        self._inboxes.subscription = subscription
        self._errands.start(tasks)
        self._stack.callback(self._store.on_server_change(self._server_changed))
        sweeps = (self._sweep, self._retention.run, self._blob_sweep.run, self._tick, self.effect_parts.agenda.run)
        for task in (self._timers.run, self._inboxes.run, self._outbox.run, self._ownership.run, *sweeps):
            tasks.start_soon(task)
        try:
            await tasks.start(subscription.run)
            with anyio.move_on_after(FIRST_LOOK_SECONDS):
                await self._ownership.opened.wait()
                await self._opened()
        except BaseException:
            # What was taken until then would have to be waited out by others.
            await self._hand_over()
            raise

    async def _opened(self) -> None:
        """Wait until what was acquired at the first look is open."""
        while any(partition.phase is Phase.OPENING for partition in self._ownership.partitions):
            await anyio.sleep(0.001)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hand everything over and stop."""
        try:
            await self._hand_over()
        finally:
            await self._stack.aclose()

    async def _hand_over(self) -> None:
        try:
            with anyio.CancelScope(shield=True):
                if not self.is_dead:
                    await self._ownership.drain()
        finally:
            # What cut it short leaves nobody to run them: who waits for an answer of theirs has to look elsewhere.
            for partition in self.partitions:
                partition.lose()

    def force(self, how: Literal["suspend", "replay"] | None) -> None:
        """Have each handler suspended at every wait, or replayed at every record; for tests."""
        self._waits.force(how)

    def die(self) -> None:
        """Stop as if the process had been killed: nothing more is sent, and what runs can't go on; for tests.

        What is left of it is closed without handing anything over.
        """
        self.is_dead = True
        self._store.sever()
        for partition in self.partitions:
            partition.lose()
        self._presence.abandon()
        self.idle.rested()

    async def look_for_due(self) -> None:
        """Ask the store now what time it is in each partition and what is due by it, as the sweep does each second."""
        await self._timers.ask(self._ownership.partitions)
        await self.effect_parts.agenda.ask(self._ownership.partitions)

    def why_busy(self) -> str:
        """Return what runs now, in words."""
        running = [
            f"{lane.partition.space.type_name}.{lane.running.handler.name} at {lane.key_text}"
            for partition in self.partitions
            for lane in partition.lanes.values()
            if lane.running is not None
        ]
        return f"{', '.join(running)} run" if running else "something is on its way, or due again and again"

    async def shrink_histories(self) -> None:
        """Shrink now what has been idle for the retention, as is done with each sweep.

        Raises:
            StoreUnavailable: The store is away.
        """
        await self._retention.sweep()

    def _repair(self, partition: Partition, request: Request, entry: bytes) -> None:
        self._mending.take(partition, request, entry)

    def _fenced(self, lease: HeldLease) -> None:
        for partition in self._ownership.of_lease(lease):
            partition.lose(is_taken=True)

    def _server_changed(self, node: Node) -> None:
        """End the tenures on a server that is another one: what it has is compared before anything goes on from it."""
        self._ownership.register_again()
        for partition in self._ownership.partitions:
            if not partition.is_on_its_server():
                partition.lose()
        if self._durability == "fsync":
            self._newcomers.look_at(node)

    def _may_lose(self) -> None:
        self._ownership.restart_may_lose = True
        self._outbox.keep_ms = self._keep_ms(restart_may_lose=True)

    def _keep_ms(self, *, restart_may_lose: bool) -> int:
        """Return how long messages that have arrived are kept: as far back as their receiver's store may lose them."""
        return int(self._settings.doubt_seconds * 1000) if restart_may_lose else 0

    def _backlog(self) -> int:
        """Return how many lanes wait for a slot and how many commits for their turn."""
        return self._slots.waiting + sum(len(partition.writer.queued) for partition in self._ownership.partitions)

    def _partitions(self) -> list[Partition]:
        return self._ownership.partitions

    def _partition_of(self, space: PartitionSpace) -> Partition | None:
        return self._ownership.get(PartitionId(space.type_name, space.number))

    def _make(self, identity: PartitionId, acquired: Acquired) -> Partition:
        partition = Partition(
            self,
            self._store,
            self._app.objects[identity.type_name],
            self._store.space(identity.type_name, identity.number),
            acquired.tenure,
            self._settings,
            acquired.now_ms,
        )
        partition.history, partition.doubt = acquired.history, acquired.doubt
        partition.meters, partition.spans = self.meters, self.spans
        self.meters.watch(partition)
        return partition

    async def _recover(self, partition: Partition) -> None:
        """Bring the work of an acquired partition into memory: its runnable lanes, then its whole inbox."""
        await self._outbox.attend(partition)
        self._inboxes.attend(partition)
        await self._pauses.recall(partition)
        for key_text in await read_runnable(self._store, partition.space):
            if not partition.is_paused(key_text):
                partition.runnable.add(key_text)
                partition.lane(key_text)
        await self._inboxes.read_all(partition)
        if partition.phase is not Phase.OPENING:
            return
        if not (partition.runnable or partition.open):
            # Nothing of it waits for its new owner, whose first commit says nothing of how long one would have.
            partition.taken_at = None
        partition.phase = Phase.OPEN
        self.doors.open(partition)
        for lane in list(partition.lanes.values()):
            self.ready(lane)
        self._timers.sweep(partition)
        self.effect_parts.agenda.attend(partition)
        self._probes.attend(partition)

    async def _tick(self) -> None:
        while True:
            await anyio.sleep(ACCEPTANCE_TICK_SECONDS)
            self._acceptances.accept_late_ones()

    async def _sweep(self) -> None:
        """Find what was missed: hints, due times, look-ups that the store did not answer."""
        while True:
            await anyio.sleep(self._settings.sweep_seconds)
            self._inboxes.look_everywhere()
            self._residency.sweep()
            self.effect_parts.agenda.sweep()
            self._probes.sweep()
            self._sweep_partitions()

    def _sweep_partitions(self) -> None:
        for partition in self._ownership.partitions:
            if partition.writer.lost is not None:
                # Lanes find out by themselves; commits that belong to none have nobody else to tell.
                partition.lose()
                continue
            if not partition.is_on_its_server():
                partition.lose()
                continue
            partition.memory = self._store.memory_of(partition.space)
            partition.forget_ended()
            partition.read_again()
            self._timers.sweep(partition)
            again, partition.recall_again = partition.recall_again, []
            for ask_again in again:
                ask_again()


def _tenant_of(lane: Lane) -> str:
    return lane.key.tenant
