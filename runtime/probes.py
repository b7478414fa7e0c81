"""Sends probes along the waits of invocations for each other, and refuses one call of a circle that they find.

What closes a circle is always a call that comes to wait behind a holder which waits for a call itself. That is when a
probe is sent. Probes may be lost, and lanes may have come to stand still under an owner before: so all lanes in which
calls wait are looked at again at the sweep, ever more rarely, and those that stand still are noted in the store.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from ..journal import operations
from ..journal.batch import Commit
from ..journal.codec import Undecodable
from ..journal.errors import Deadlock, InvalidKey, KeylaneError
from ..journal.inbox import KNOWN, Submission
from ..journal.key import new_invocation_id
from ..journal.probes import Probe
from ..journal.probing import START, Page, if_taken, read_blocked
from ..journal.requests import Request, RequestKind
from .attaching import refuse_attached
from .partition import Partition, Phase
from .waiting_edges import edge_of, has_waiting_call, holder_of, seen_at
from .withdrawal import refuse_queued

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..journal.keyspace import PartitionSpace
    from ..journal.store import Store
    from .invocation import Invocation
    from .lane import Lane

logger = logging.getLogger("keylane.probes")

#: Where calls come in quick succession, one probe for all of them is sent so much later than the one before.
TOGETHER_SECONDS: Final = 0.1
#: A lane is looked at again so soon at first, twice as long after each look, up to the cap.
AGAIN_FIRST_SECONDS: Final = 0.9
AGAIN_CAP_SECONDS: Final = 60.0
#: Lanes that one sweep looks at, and of these the ones that it has read for that.
LOOKS_PER_SWEEP: Final = 2_000
LOADS_PER_SWEEP: Final = 200
#: Lanes that stood still under an owner before: so many are taken up at each sweep.
TAKEN_UP_PER_SWEEP: Final = 100
#: So many probes are put into an inbox before it is made sure that somebody takes them out.
UNTAKEN_MAX: Final = 64
#: A probe that the store does not take in so soon is given up.
SUBMISSION_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Noted:
    """A lane in which a call waits.

    Args:
        next_at: When it is looked at again.
        delay_seconds: How long it then rests.
        sent_at: When a probe was sent last.
        is_sending: Whether one is about to be.
        is_marked: Whether the store knows of it.
    """

    next_at: float
    delay_seconds: float = AGAIN_FIRST_SECONDS
    sent_at: float = 0.0
    is_sending: bool = False
    is_marked: bool = False


@dataclass(slots=True)
class _Inbox:
    """What was put into another owner's inbox since somebody was last known to read it."""

    count: int = 0
    last: bytes = KNOWN


class Probes:
    """The probes of one worker.

    Args:
        store: The open store.
        partition_of: Finds a partition that this worker holds.
    """

    def __init__(self, store: Store, partition_of: Callable[[PartitionSpace], Partition | None]) -> None:
        self._store = store
        self._partition_of = partition_of
        self._noted: dict[tuple[Partition, str], _Noted] = {}
        self._inboxes: dict[bytes, _Inbox] = {}
        #: Partitions of which what stood still before is not all taken up, and how far that is.
        self._behind: dict[Partition, bytes] = {}

    def attend(self, partition: Partition) -> None:
        """Look, from the next sweep on, at what stands still in a partition since an owner before."""
        self._behind[partition] = START

    def leave(self, partition: Partition) -> None:
        """Forget a partition whose tenure has ended."""
        self._behind.pop(partition, None)
        for place in [place for place in self._noted if place[0] is partition]:
            del self._noted[place]

    def arrived(self, lane: Lane) -> None:
        """Take note that a call of another object has come into a lane, and look whether it closes a circle."""
        if lane.loaded and lane.queue[-1] is holder_of(lane):
            return
        noted = self._note(lane.partition, lane.key_text)
        if not lane.loaded:
            lane.when_loaded = (*lane.when_loaded, partial(self._arrived, lane, noted))
        else:
            self._arrived(lane, noted)

    def attached(self, invocation: Invocation) -> None:
        """Take note that another object waits for an invocation now, and look whether that closes a circle."""
        lane = invocation.lane
        self._arrived(lane, self._note(lane.partition, lane.key_text))

    def _note(self, partition: Partition, key_text: str) -> _Noted:
        place = (partition, key_text)
        noted = self._noted.get(place)
        if noted is None:
            noted = self._noted[place] = _Noted(time.monotonic() + AGAIN_FIRST_SECONDS)
        return noted

    def _arrived(self, lane: Lane, noted: _Noted) -> None:
        left = noted.sent_at + TOGETHER_SECONDS - time.monotonic()
        if left <= 0:
            self._send_from(lane, noted)
        elif not noted.is_sending:
            noted.is_sending = True
            asyncio.get_running_loop().call_later(left, self._send_together, lane, noted)

    def _send_together(self, lane: Lane, noted: _Noted) -> None:
        noted.is_sending = False
        self._send_from(lane, noted)

    def _send_from(self, lane: Lane, noted: _Noted) -> None:
        """Send a probe from a lane in which a call waits behind one that waits for a call."""
        holder = holder_of(lane)
        edge = None if holder is None else edge_of(holder)
        if edge is None or lane.partition.phase is not Phase.OPEN or not has_waiting_call(lane):
            return
        noted.sent_at = time.monotonic()
        if not noted.is_marked:
            # Whoever owns the partition next does not read a lane that stands still, so it has to know of it.
            noted.is_marked = True
            lane.partition.writer.commit(Commit([operations.note_blocked(lane.partition.space, lane.key_text)]))
        self._forward(Probe((edge,)))

    def sweep(self) -> None:
        """Look again at lanes in which calls wait: probes may have been lost."""
        for partition, cursor in list(self._behind.items()):
            self._take_up(partition, cursor)
        now = time.monotonic()
        loads = LOADS_PER_SWEEP
        for (partition, key_text), noted in list(islice(self._noted.items(), LOOKS_PER_SWEEP)):
            del self._noted[partition, key_text]
            lane = partition.lanes.get(key_text)
            if partition.phase is Phase.LOST or (lane is not None and self._is_over(lane, noted)):
                continue
            # Behind the others, so that each has its turn.
            self._noted[partition, key_text] = noted
            if noted.next_at <= now and (lane is not None or loads):
                loads -= lane is None
                self._look(partition, key_text, noted)

    def _take_up(self, partition: Partition, cursor: bytes) -> None:
        """Read a page of the lanes that stood still under an owner before."""
        del self._behind[partition]
        took_up = partial(self._took_up, partition, cursor)
        read_blocked(self._store, partition.space, cursor, TAKEN_UP_PER_SWEEP, took_up)

    def _took_up(self, partition: Partition, cursor: bytes, page: Page | Exception) -> None:
        if partition.phase is not Phase.OPEN:
            return
        if isinstance(page, Exception):
            logger.info("%s: what stands still can't be read now: %r", partition.space, page)
            self._behind[partition] = cursor
            return
        if page.following != START:
            self._behind[partition] = page.following
        for key_text in page.keys:
            noted = self._note(partition, key_text)
            noted.is_marked = True
            self._look(partition, key_text, noted)

    def _look(self, partition: Partition, key_text: str, noted: _Noted) -> None:
        noted.next_at = time.monotonic() + noted.delay_seconds
        noted.delay_seconds = min(noted.delay_seconds * 2, AGAIN_CAP_SECONDS)
        self._when_loaded(partition, key_text, partial(self._send_noted, partition, key_text, noted))

    def _send_noted(self, partition: Partition, key_text: str, noted: _Noted) -> None:
        lane = partition.lanes.get(key_text)
        if lane is not None:
            self._send_from(lane, noted)

    @staticmethod
    def _when_loaded(partition: Partition, key_text: str, look: Callable[[], None]) -> None:
        """Look at a lane once it is in memory."""
        try:
            lane = partition.lane(key_text)
        except InvalidKey:
            return
        if lane.loaded:
            look()
        else:
            lane.when_loaded = (*lane.when_loaded, look)

    @staticmethod
    def _is_over(lane: Lane, noted: _Noted) -> bool:
        """Return whether no call waits in a lane any more, and take note of that."""
        if not lane.loaded or has_waiting_call(lane):
            return False
        if noted.is_marked:
            lane.partition.writer.commit(Commit([operations.forget_blocked(lane.partition.space, lane.key_text)]))
        return True

    def take(self, partition: Partition, entry: bytes, request: Request) -> None:
        """Take a probe out of the inbox; what comes of it need not outlive us, since it is sent again."""
        partition.settle_entry(entry)
        try:
            probe = Probe.decode(request.payload or b"")
        except Undecodable as error:
            logger.warning("%s: a probe can't be read: %s", partition.space, error)
            return
        self._visit(partition, probe)

    def _visit(self, partition: Partition, probe: Probe) -> None:
        """Look at where a probe has come to, once that is in memory."""
        if partition.phase is not Phase.OPEN:
            return
        edge = probe.edge
        if edge.target in partition.open:
            self._look_at(partition, probe)
        elif edge.is_attached:
            # Where it lies is known to its records alone; once it is in memory, another probe will find it.
            partition.host.find(partition, [edge.target])
        else:
            self._when_loaded(partition, edge.target_key, partial(self._look_at, partition, probe))

    def _look_at(self, partition: Partition, probe: Probe) -> None:
        seen = seen_at(partition, probe.edge) if partition.phase is Phase.OPEN else None
        onward = None if seen is None else probe.seen(seen.following, may_be_refused=seen.may_be_refused)
        if seen is None or onward is None:
            return
        if not onward.is_proven or onward.at != probe.at:
            self._forward(onward)
            return
        error = Deadlock(onward.path)
        logger.warning("%s: refused: %s", partition.invocation_id(seen.invocation.raw_id), error.message)
        if not probe.edge.is_attached:
            refuse_queued(seen.invocation.lane, seen.invocation, error)
            return
        for each in seen.invocation.attached:
            if (each.caller.invocation, each.caller.index) == (probe.edge.invocation, probe.edge.place):
                refuse_attached(seen.invocation, each, error)

    def _forward(self, probe: Probe) -> None:
        """Send a probe to where its edge leads: in this process at once, else by way of the inbox."""
        edge = probe.edge
        space = self._store.space(edge.target_type, edge.target_partition)
        partition = self._partition_of(space)
        if partition is not None and partition.phase is Phase.OPEN:
            asyncio.get_running_loop().call_soon(self._visit, partition, probe)
            return
        inbox = self._inboxes.setdefault(space.tag, _Inbox())
        inbox.count += 1
        if inbox.count <= UNTAKEN_MAX or inbox.last == KNOWN:
            self._submit(space, inbox, probe)
        else:
            # While nobody owns the partition they must not pile up.
            if_taken(self._store, space, inbox.last, partial(self._submit_anew, space, inbox, probe))

    def _submit_anew(self, space: PartitionSpace, inbox: _Inbox, probe: Probe) -> None:
        inbox.count = 1
        self._submit(space, inbox, probe)

    def _submit(self, space: PartitionSpace, inbox: _Inbox, probe: Probe) -> None:
        request = Request(RequestKind.PROBE, new_invocation_id(), "", probe.edge.target_key, probe.encode())
        Submission(self._store, space, request, partial(_submitted, inbox), SUBMISSION_SECONDS)


def _submitted(inbox: _Inbox, verdict: bytes | KeylaneError) -> None:
    if isinstance(verdict, bytes):
        inbox.last = verdict
    else:
        logger.info("a probe is given up, another one will be sent: %s", verdict)
