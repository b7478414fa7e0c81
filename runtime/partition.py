"""A partition in its owner's memory: its lanes, what is open in it, and the tenure under which it writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ..journal import operations
from ..journal.batch import Commit
from ..journal.doubt import DoubtSpan, Remembered
from ..journal.errors import InternalError, KeylaneError, StoreFull
from ..journal.key import Key, format_id
from ..journal.outcomes import Outcome
from ..journal.pauses import ALL
from ..journal.recall import DAY_MS
from .in_hand import InHand
from .inbox_place import InboxPlace
from .invocation import Invocation
from .lane import Lane
from .meters import NO_METERS, Meters
from .partition_clock import PartitionClock
from .recent_ids import RecentIds
from .spans import NO_SPANS, Spans
from .turning_away import turn_away_lane

if TYPE_CHECKING:
    from ..journal.keyspace import PartitionSpace
    from ..journal.outcomes import IdempotencyEntry
    from ..journal.pauses import Pausing
    from ..journal.records import SignalReceived
    from ..journal.store import Store
    from ..journal.tenure import Tenure
    from ..journal.writer import PartitionWriter
    from ..objects.settings import Settings
    from ..objects.virtual_object import VirtualObject

#: How often a commit that the store refused for good is built anew before its invocation is answered with an error.
REFUSALS_MAX = 3
#: How long a lane rests after a refusal, twice as long after each that follows soon, up to the cap.
REFUSAL_FIRST_SECONDS = 0.02
REFUSAL_CAP_SECONDS = 5.0
REFUSAL_FORGOTTEN_SECONDS = 30.0
#: How long a lane with open work that can't be read is left alone.
UNREAD_AGAIN_SECONDS = 5.0


class Phase(Enum):
    """Where a tenure stands in this process."""

    OPENING = auto()  # recovering; the fast path is closed
    OPEN = auto()
    DRAINING = auto()  # nothing new starts; handed over when what runs has ended
    LOST = auto()


class OwnershipLost(Exception):
    """The partition is not ours any more; whether the call was taken in has to be asked of the store."""


#: The handler and the packed argument of a call that was made before.
FirstArguments: TypeAlias = tuple[str, bytes | None]


class Host(Protocol):
    """What a partition needs of the worker that holds it."""

    def ready(self, lane: Lane) -> None:
        """Give a lane to a slot."""
        ...

    def entered(self, lane: Lane) -> None:
        """Take note of a lane that comes into memory."""
        ...

    def load(self, lane: Lane, after_seconds: float = 0.0) -> None:
        """Read a lane's state and open invocations."""
        ...

    def refuse(self, partition: Partition, invocation: Invocation, error: KeylaneError) -> None:
        """Tell whoever sent a request that it comes to nothing."""
        ...

    def find(self, partition: Partition, raw_ids: list[bytes]) -> None:
        """Let invocations go on that fell due and are known by their ids alone, in this order."""
        ...

    def due_in(self, partition: Partition, delay_ms: int) -> None:
        """Ask in a while what is due."""
        ...

    def find_arguments(
        self,
        partition: Partition,
        key_text: str,
        entry: IdempotencyEntry,
        done: Callable[[FirstArguments | None], None],
    ) -> None:
        """Read the arguments of the first call of an idempotency key, while they are kept."""
        ...

    def find_parked(self, lane: Lane, raw_id: bytes, done: Callable[[], None]) -> None:
        """Bring an invocation into memory that an owner before has set aside."""
        ...

    def lost(self, partition: Partition) -> None:
        """Take note that a tenure ended."""
        ...


class Partition:
    """One tenure of this worker.

    Args:
        host: The worker.
        store: The open store.
        virtual_object: The object type.
        space: The partition's keys.
        tenure: The period of ownership.
        settings: The effective settings.
        now_ms: The partition's time at acquisition.
    """

    #: Told what happens here, in numbers.
    meters: Meters = NO_METERS
    #: Makes the spans of traces.
    spans: Spans = NO_SPANS
    #: When it was taken over, while it has open work that has not gone on yet; of a clock of this process.
    taken_at: float | None = None
    #: The history that the numbers of its messages belong to.
    history: str = ""

    def __init__(
        self,
        host: Host,
        store: Store,
        virtual_object: VirtualObject,
        space: PartitionSpace,
        tenure: Tenure,
        settings: Settings,
        now_ms: int,
    ) -> None:
        self.host = host
        self.store = store
        self.virtual_object = virtual_object
        self.space = space
        self.tenure = tenure
        self.settings = settings
        self.writer: PartitionWriter = store.writer(space, tenure)
        self.phase = Phase.OPENING
        self.lanes: dict[str, Lane] = {}
        #: Objects that are not in memory and whose history is being shrunk, and when the next one is to be.
        self.shrinking: set[str] = set()
        self.histories_due_ms = 0
        self.open: dict[bytes, Invocation] = {}
        self.parked: dict[bytes, Invocation] = {}
        self.claims: dict[bytes, Invocation] = {}
        self.known_days: set[int] | None = None
        self.recall_again: list[Callable[[], None]] = []
        self.expiring_days: set[int] = set()
        self.waiting: dict[bytes, Callable[[], None]] = {}
        self.sleepers: dict[bytes, asyncio.Future[None]] = {}
        #: Objects whose exclusive work is stopped, by key; all of them under the empty one.
        self.paused: dict[str, Pausing] = {}
        self.memory = store.memory_of(space)
        self.server = self.writer.server
        self.doubt: DoubtSpan | None = None
        #: What was known of it when the tenure ended, to compare with what the store has.
        self.remembered: Remembered | None = None
        #: What fell due and is looked for, in order of the due times.
        self.finding: dict[bytes, None] = {}
        self.is_finding = False
        #: Signals to what is scheduled, which whoever lets it begin may not find among the records that it has read.
        self.early_signals: dict[bytes, list[SignalReceived]] = {}
        self.inbox = InboxPlace()
        #: How many handlers run, and how many effects are called now or are about to be.
        self.running, self.calling = 0, 0
        self.serving: set[bytes] = set()
        self.result_retention_ms = self.history_retention_ms = int(settings.result_retention_seconds * 1000)
        self.blob_threshold_bytes = settings.blob_threshold_bytes
        self.payload_limit_bytes = settings.payload_limit_bytes
        self.tombstone_retention_ms = settings.tombstone_retention_days * 86_400_000
        self.backlog = virtual_object.backlog or settings.backlog_per_key
        self._ended, self._released = RecentIds(), RecentIds()
        #: Lanes that had open work when the tenure began, or could not be read since with some in them.
        self.runnable: set[str] = set()
        self._unread: dict[str, float] = {}
        self.in_hand = InHand(self.open, self.sleepers, self.parked)
        self.began_ms = now_ms
        self._clock = PartitionClock(now_ms)
        self.writer.on_time = self.saw_time
        self._lease_is_valid: Callable[[], bool] = _never

    @property
    def number(self) -> int:
        """The partition's number within its type."""
        return self.space.number

    def saw_time(self, now_ms: int) -> None:
        """Take note of the partition's time in an answer."""
        self._clock.saw(now_ms)

    def now_ms(self) -> int:
        """Return a close estimate of the partition's time that never goes back; the store compares deadlines itself."""
        return self._clock.now_ms()

    def is_paused(self, key_text: str) -> bool:
        """Return whether exclusive work of an object has to stop, as that of all objects or by itself."""
        return bool(self.paused) and (ALL in self.paused or key_text in self.paused)

    def in_doubt(self, since_ms: int) -> bool:
        """Return whether what is open since a time may have gone on in records that the store has lost."""
        return self.doubt is not None and self.doubt.reaches(since_ms)

    def invocation_id(self, raw_id: bytes) -> str:
        """Return the text form of an id."""
        return format_id(self.space.type_name, self.space.number, raw_id)

    def lane(self, key_text: str) -> Lane:
        """Return the lane of a key; a new one is read from the store before anything runs in it.

        Raises:
            InvalidKey: The text is not a key.
        """
        lane = self.lanes.get(key_text)
        if lane is None:
            return self._new_lane(key_text)
        lane.was_used = True
        return lane

    def _new_lane(self, key_text: str) -> Lane:
        lane = self.lanes[key_text] = Lane(self, Key.parse(key_text), key_text)
        if key_text in self.shrinking:
            # What is being written of it was read before; whether that counts, the next commit must not depend on.
            self.shrinking.discard(key_text)
            lane.is_indexed = False
        self.host.entered(lane)
        self.host.load(lane)
        return lane

    def evict(self, lane: Lane) -> None:
        """Let go of a lane that is at rest: all of it lies in the store, parked invocations included."""
        del self.lanes[lane.key_text]
        for invocation in (*lane.queue, *lane.aside):
            self.let_go(invocation)

    def let_go(self, invocation: Invocation) -> None:
        """Let go of an invocation that waits or is parked: it is found again by its id."""
        self.open.pop(invocation.raw_id, None)
        self.waiting.pop(invocation.raw_id, None)
        claim = invocation.idempotency
        if claim is not None and self.claims.get(claim.digest) is invocation:
            del self.claims[claim.digest]
        self.remember(invocation.raw_id)

    def enter(self, lane: Lane, invocation: Invocation) -> None:
        """Put an invocation at the tail of a lane."""
        self.open[invocation.raw_id] = invocation
        lane.queue.append(invocation)
        if not lane.busy and lane.loaded and lane.queue[0] is invocation:
            self.host.ready(lane)

    def release_hold(self, lane: Lane, invocation: Invocation) -> None:
        """Let the head of a lane run again."""
        invocation.hold = None
        if not lane.busy:
            self.host.ready(lane)

    def ended(self, invocation: Invocation, outcome: Outcome | BaseException) -> None:
        """Take note that an invocation's end is durable, and tell those who wait."""
        self.open.pop(invocation.raw_id, None)
        claim = invocation.idempotency
        if claim is not None and self.claims.get(claim.digest) is invocation:
            del self.claims[claim.digest]
        if invocation.entry is not None:
            self.remember(invocation.raw_id)
        invocation.tell(outcome)

    def remember(self, raw_id: bytes) -> None:
        """Remember for a while that a request was dealt with: a second copy of it may lie in the inbox."""
        self._ended.note(raw_id)

    def forget(self, raw_id: bytes) -> None:
        """Forget that a request was dealt with: it was put back."""
        self._ended.drop(raw_id)

    def is_known(self, raw_id: bytes) -> bool:
        """Return whether a request with this id is or was in our hands a moment ago."""
        return raw_id in self.open or raw_id in self._ended or raw_id in self.serving

    def note_released(self, raw_id: bytes) -> None:
        """Remember for a while that a scheduled invocation has entered its lane: it may be found due once more."""
        self._released.note(raw_id)

    def was_released(self, raw_id: bytes) -> bool:
        """Return whether a scheduled invocation has entered its lane a moment ago."""
        return raw_id in self._released

    def take_back_release(self, raw_id: bytes) -> None:
        """Take note that a scheduled invocation did not enter its lane after all."""
        self._released.drop(raw_id)

    def forget_ended(self) -> None:
        """Drop the ids that ended, or were released, long enough ago."""
        self.expiring_days.intersection_update((self.now_ms() // DAY_MS,))
        self._ended.forget_old()
        self._released.forget_old()

    def lane_refused(self, lane: Lane) -> None:
        """Throw away what a lane had built on a refused commit, and run it again from its arguments."""
        error = lane.error
        lane.error = None
        if self.phase is Phase.LOST or self.writer.lost is not None:
            self.lose()
            return
        refused, lane.refused = lane.refused, ()
        if isinstance(error, StoreFull):
            turn_away_lane(self, lane, refused, error)
        else:
            for invocation in reversed(refused):
                self._take_back(lane, invocation, error)
        lane.loaded = False
        lane.is_indexed = True
        self.host.load(lane, self._pause_after_refusal(lane))

    @staticmethod
    def _pause_after_refusal(lane: Lane) -> float:
        """Return how long a lane rests, in seconds: what the store refuses again and again must not run without end."""
        now = time.monotonic()
        in_a_row = 0 if now - lane.refused_at > REFUSAL_FORGOTTEN_SECONDS else lane.refusals
        lane.refusals, lane.refused_at = in_a_row + 1, now
        return min(REFUSAL_FIRST_SECONDS * 2**in_a_row, REFUSAL_CAP_SECONDS)

    def _take_back(self, lane: Lane, invocation: Invocation, error: BaseException | None) -> None:
        invocation.refusals += 1
        if invocation.refusals > REFUSALS_MAX:
            failed = InternalError(f"the store refused the end of this invocation: {error}")
            self.host.refuse(self, invocation, failed)
            self.ended(invocation, failed)
            return
        invocation.ended = False
        lane.queue.insert(0, invocation)

    def lane_failed(self, lane: Lane, error: BaseException) -> None:
        """Answer everybody who waits for a lane that can't be loaded; what is durable stays as it is."""
        self.lanes.pop(lane.key_text, None)
        queue = list(lane.queue)
        if lane.key_text in self.runnable or any(invocation.accepted for invocation in queue):
            # What is open in it must go on once somebody has repaired it, without a call that happens to come.
            self.runnable.add(lane.key_text)
            self._unread[lane.key_text] = time.monotonic() + UNREAD_AGAIN_SECONDS
        lane.queue.clear()
        for invocation in queue:
            invocation.ended = True
            self.ended(invocation, error)
        lane.load_error = error
        lane.tell_loaded()

    def read_again(self) -> None:
        """Try to read the lanes again that have open work and could not be read."""
        now = time.monotonic()
        for key_text in [key_text for key_text, at in self._unread.items() if at <= now]:
            del self._unread[key_text]
            self.lane(key_text)

    def lose(self, *, is_taken: bool = False) -> None:
        """End the tenure in this process: local callers are told to ask the store, nothing else runs.

        Args:
            is_taken: Whether the store has said that another one has the partition.
        """
        if self.phase is Phase.LOST:
            return
        # What is handed over, or refused, others may have written to by the time that it is compared.
        is_newest = not is_taken and self.phase is not Phase.DRAINING and self.writer.lost is None
        self.phase = Phase.LOST
        self.remembered = Remembered(
            self.tenure.epoch, self.tenure.token, self.writer.applied_number, tuple(self._durable_ids()), is_newest
        )
        if self.writer.lost is None:
            self.writer.lose(OwnershipLost(str(self.space)))
        for lane in self.lanes.values():
            lane.generation += 1
        open_ones = list(self.open.values())
        self.open.clear()
        for invocation in open_ones:
            invocation.ended = True
            invocation.tell(OwnershipLost(str(self.space)))
        self.waiting.clear()
        for lane in list(self.lanes.values()):
            lane.tell_loaded()
        self.host.lost(self)

    def _durable_ids(self) -> Iterator[bytes]:
        """Return invocations that are known to be durable, as far as they are remembered."""
        for raw_id, invocation in self.open.items():
            if invocation.accepted and invocation.lane.is_settled:
                yield raw_id
        yield from self._ended

    def hold_lease(self, is_valid: Callable[[], bool]) -> None:
        """Take the lease: whether nobody else can have taken the partition over."""
        self._lease_is_valid = is_valid

    def may_serve(self) -> bool:
        """Return whether reads may be served from memory."""
        return (
            self.phase is Phase.OPEN and self.writer.lost is None and self._lease_is_valid() and self.is_on_its_server()
        )

    def is_on_its_server(self) -> bool:
        """Return whether the server is the one on which the tenure began; another one may know less than this owner."""
        server = self.writer.server
        if server is self.server or server is None:
            return True
        if self.server is not None and not server.is_same(self.server):
            return False
        self.server = server
        return True

    def drain(self) -> None:
        """Start nothing more; callers of this process are told to ask the store, where everything durable lies."""
        self.phase = Phase.DRAINING
        running = {lane.running for lane in self.lanes.values()}
        for invocation in list(self.open.values()):
            if invocation not in running and not invocation.ended:
                invocation.tell(OwnershipLost(str(self.space)))

    def settle_entry(self, entry: bytes) -> None:
        """Take a copy of a request that was dealt with out of the inbox."""
        self.writer.commit(Commit([operations.settle_entry(entry)]))

    def forget_due(self, raw_id: bytes) -> None:
        """Take out a due time that belongs to nothing open."""
        self.writer.commit(Commit([operations.unschedule(raw_id)]))

    @property
    def is_quiet(self) -> bool:
        """Whether nothing runs and nothing is on its way to the store."""
        return not self.running and not self.calling and self.writer.is_idle


def _never() -> bool:
    return False
