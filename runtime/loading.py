"""Brings lanes into memory: state, and the invocations that an owner before left open."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ..journal import operations
from ..journal.blobs import digests_in_records
from ..journal.codec import Undecodable
from ..journal.errors import InternalError, KeylaneError, StoreError, StoreUnavailable
from ..journal.lane_reading import LaneContents, aside_words, read_lane
from ..journal.records import PauseReason, Resumed
from ..journal.snapshots import FIRST_READ_ENTRIES, Entry, fold, is_whole, newest_words
from .docket import docket_keys, note_no_docket
from .endings import resumption, skips
from .found_invocations import has_left, is_over
from .invocation import Hold, Invocation
from .large_values import found_in
from .partition import Phase
from .replies import refuse
from .reviving import NO_EXTRAS, Extras

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..journal.store import Store
    from .errands import Errands
    from .lane import Lane
    from .reviving import Reviving

logger = logging.getLogger("keylane.worker")

LOAD_AGAIN_SECONDS = 0.2
#: Who resumes what only the code of another worker had parked.
BY_ITSELF = "keylane"


class Loading:
    """Reads lanes for one worker.

    Args:
        store: The open store.
        errands: Runs what takes more than one look.
        reviving: Brings into memory what was open in them.
        ready: Gives a lane to a slot.
    """

    def __init__(self, store: Store, errands: Errands, reviving: Reviving, ready: Callable[[Lane], None]) -> None:
        self._store = store
        self._errands = errands
        self._reviving = reviving
        self._ready = ready

    def load(self, lane: Lane) -> None:
        """Read a lane; most have no open invocations and take one look, without a task of their own."""
        if lane.loading:
            return
        lane.loading = True
        space = lane.partition.space
        words = (
            newest_words(space, lane.key_text),
            _beside_words(lane),
            ("LRANGE", space.lane(lane.key_text), 0, -1),
        )
        self._store.submit_all(words, partial(self._looked, lane))

    def _looked(self, lane: Lane, answers: list[Any]) -> None:
        newest, beside, ids = answers
        if beside == 0 and lane.partition.virtual_object.effects:
            note_no_docket(lane)
        if not isinstance(newest, list) or ids != [] or not is_whole(cast("list[Entry]", newest), FIRST_READ_ENTRIES):
            self._errands.add(partial(self._load_whole, lane))
        elif beside == 0:
            self._install_usual(lane, cast("list[Entry]", newest))
        else:
            # As a rule effects that are settled, which are read when somebody needs them.
            seen = partial(self._looked_aside, lane, cast("list[Entry]", newest))
            self._store.submit(aside_words(lane.partition.space, lane.key_text), seen)

    def _looked_aside(self, lane: Lane, newest: list[Entry], aside: Any) -> None:
        if aside == []:
            self._install_usual(lane, newest)
        else:
            self._errands.add(partial(self._load_whole, lane))

    def _install_usual(self, lane: Lane, newest: list[Entry]) -> None:
        """Install a lane without open invocations, whose state its newest entries tell."""
        try:
            contents = LaneContents(fold(newest))
        except Undecodable as error:
            self._fail(lane, InternalError(f"the state of {lane.key_text} can't be read: {error}"))
            return
        self._install(lane, contents, NO_EXTRAS)

    async def _load_whole(self, lane: Lane) -> None:
        partition = lane.partition
        if partition.phase is Phase.LOST:
            return
        try:
            contents = await read_lane(self._store, partition.space, lane.key_text)
            extras = await self._reviving.extras(partition, contents, lane)
        except StoreUnavailable:
            # The runner is for others meanwhile: this one's server may be the only one that is away.
            self._errands.add_later(LOAD_AGAIN_SECONDS, partial(self._load_whole, lane))
        except Undecodable as error:
            self._fail(lane, InternalError(f"the state of {lane.key_text} can't be read: {error}"))
        except StoreError as error:
            self._fail(lane, error)
        else:
            self._install(lane, contents, extras)

    def _fail(self, lane: Lane, error: KeylaneError) -> None:
        logger.error("%s %s: %s", lane.partition.space, lane.key_text, error)
        lane.loading = False
        for invocation in lane.queue:
            if invocation.entry is not None and not invocation.accepted:
                refuse(lane.partition, invocation.raw_id, invocation.entry, invocation.client, error, invocation.caller)
        lane.partition.lane_failed(lane, error)

    def _install(self, lane: Lane, contents: LaneContents, extras: Extras) -> None:
        lane.queued = contents.state.values
        referred = {digest for each in (*contents.open, *contents.aside) for digest in digests_in_records(each.records)}
        lane.large = found_in(lane, lane.queued, referred)
        lane.durable = dict(lane.queued)
        lane.deltas = contents.state.deltas_since_snapshot
        lane.state_version = contents.state.version
        # Nothing is of any version.
        is_other = contents.state.version != lane.partition.virtual_object.state_version
        lane.is_outdated = is_other and bool(lane.queued)
        if contents.state.is_shrunk:
            lane.is_indexed = False
        lane.partition.runnable.discard(lane.key_text)
        known = {each.raw_id: each for each in (*lane.queue, *lane.aside) if not each.ended}
        self._install_aside(lane, contents, extras, known)
        for each in reversed(contents.open):
            invocation = known.get(each.raw_id)
            if invocation is None and is_over(each):
                lane.commit([operations.leave_lane(lane.partition.space, lane.key_text, each.raw_id)])
                continue
            if invocation is None:
                invocation = self._reviving.revive(lane, each, extras)
                lane.queue.insert(0, invocation)
            else:
                self._reviving.refresh(lane, invocation, each, extras)
                if invocation not in lane.queue:
                    lane.queue.insert(0, invocation)
            if invocation.hold is Hold.PAUSED and _lacked_its_code(invocation):
                self._go_on(lane, invocation)
            if invocation.hold is Hold.PAUSED and skips(lane.partition.virtual_object):
                self._set_aside(lane, invocation)
        lane.loading = False
        lane.loaded = True
        lane.tell_loaded()
        self._ready(lane)

    def _install_aside(
        self, lane: Lane, contents: LaneContents, extras: Extras, known: Mapping[bytes, Invocation]
    ) -> None:
        """Bring those into memory that have left a lane while they wait."""
        lane.aside = ()
        for each in contents.aside:
            if not has_left(each):
                continue
            invocation = known.get(each.raw_id)
            if invocation is None:
                invocation = self._reviving.revive(lane, each, extras)
            else:
                self._reviving.refresh(lane, invocation, each, extras)
                if invocation in lane.queue:
                    lane.queue.remove(invocation)
            lane.aside = (*lane.aside, invocation)

    @staticmethod
    def _go_on(lane: Lane, invocation: Invocation) -> None:
        """Let an invocation go on that another worker had no code for: in a rolling deploy nobody need do that."""
        if lane.is_outdated and lane.state_version > lane.partition.virtual_object.state_version:
            return
        reason = "this worker has the code that it needs"
        lane.commit(resumption(lane, invocation, Resumed(BY_ITSELF, reason), is_aside=False, running=None))
        invocation.attempts = 0
        invocation.hold = None

    @staticmethod
    def _set_aside(lane: Lane, invocation: Invocation) -> None:
        """Let the others of a lane go on past one that was parked in it."""
        partition = lane.partition
        lane.queue.remove(invocation)
        partition.let_go(invocation)
        writes = [operations.leave_lane(partition.space, lane.key_text, invocation.raw_id)]
        if invocation.refers:
            writes.append(operations.set_aside(partition.space, lane.key_text, invocation.raw_id))
        if lane.queue:
            # It was parked as the holder of its lane, which stopped being runnable then.
            writes.append(operations.unpark(lane.key_text))
        lane.commit(writes)


def _beside_words(lane: Lane) -> tuple[Any, ...]:
    """Return the question whether anything lies beside an object: invocations that have left its lane, or a docket."""
    space, key_text = lane.partition.space, lane.key_text
    docket = docket_keys(space, key_text) if lane.partition.virtual_object.effects else ()
    return ("EXISTS", space.set_aside(key_text), *docket)


def _lacked_its_code(invocation: Invocation) -> bool:
    """Return whether an invocation was parked only because a worker's code lacked what ours has."""
    paused = None if invocation.standing is None else invocation.standing.paused
    return invocation.needs is None and paused is not None and paused.reason is PauseReason.NEEDS_VERSION
