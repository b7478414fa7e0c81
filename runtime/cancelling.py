"""Ends invocations from outside: a cancel is told to the handler at its next durable point, a kill to nobody.

The owner decides, in order of intake. What it decides is written in the commit that takes the request out of the inbox:
whatever dies after that, whoever owns the partition then goes on with it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, cast

from ..journal import operations
from ..journal.cancel_order import CancelOrder
from ..journal.codec import pack
from ..journal.command_records import CancelDelivered, CompensationSkipped
from ..journal.errors import CallError, Fenced, StoreError, StoreUnavailable, Suspended
from ..journal.history import read_result
from ..journal.outcomes import Stopped, Succeeded, encode_outcome, first_of
from ..journal.records import Accepted, CancelRequested, PauseReason, Record
from ..journal.requests import Request, RequestKind
from ..journal.standing import Standing, Status
from ..journal.undoing import undone_by
from .aside import returning
from .at_hand import behind_all
from .cancel_delivery import cancels, cascade
from .due_times import entry_of, forget_due
from .effect_shield import is_shielded
from .endings import accept_in_order, finish, has_left, record, rejoining
from .found_invocations import is_over, is_scheduled
from .invocation import Hold, Invocation
from .partition import OwnershipLost, Partition, Phase
from .replies import answer, refuse
from .resuming import holder

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from ..journal.errors import KeylaneError
    from ..journal.lane_reading import OpenInvocation
    from ..journal.store import Store
    from .docket import Dockets
    from .errands import Errands
    from .invocation import IdempotencyClaim
    from .lane import Lane
    from .reviving import Reviving

#: A request waits so long for what is under way with its invocation, and then twice as long each time, up to the cap.
AGAIN_FIRST_SECONDS: Final = 0.02
AGAIN_CAP_SECONDS: Final = 1.0
#: After so many looks what the store calls open and no lane knows is taken to be lost to its lane.
LOST_TRIES: Final = 6

#: What can't be replayed can't be told anything: it ends at once.
_BEYOND_REPLAY: Final = frozenset({PauseReason.DIVERGED, PauseReason.UNDECODABLE, PauseReason.VALUE_LOST})
NO_FAILED_UNDO: Final = "no undo of it has failed"
#: What the owner says to a request; how the invocation ends is found under the invocation's own id.
GOING: Final = "going"
OVER: Final = "over"
_VERDICTS: Final = {verdict: encode_outcome(Succeeded(pack(verdict))) for verdict in (GOING, OVER)}


@dataclass(slots=True)
class _Asked:
    """A request that is being dealt with."""

    partition: Partition
    entry: bytes
    request: Request
    order: CancelOrder
    tries: int = 0
    #: Whether it was looked for behind all that was on its way when it was not found.
    is_sure: bool = False

    @property
    def raw_id(self) -> bytes:
        return self.order.invocation


class Cancelling:
    """Cancels and kills invocations of one worker's partitions, and gives up undos that have failed.

    Args:
        store: The open store.
        errands: Reads what is not in memory.
        reviving: Brings into memory what it is about.
    """

    def __init__(self, store: Store, errands: Errands, reviving: Reviving) -> None:
        self._store = store
        self._errands = errands
        self._reviving = reviving
        #: Reads the effects of objects: what is under way of them is not broken off.
        self.dockets: Dockets

    def take(self, partition: Partition, entry: bytes, request: Request) -> None:
        """Take a request in; its invocation may be in memory or not.

        Raises:
            Undecodable: Its payload is no order.
        """
        order = CancelOrder.decode(request.payload or b"")
        partition.serving.add(request.invocation)
        self._seek(_Asked(partition, entry, request, order))

    def _seek(self, asked: _Asked) -> None:
        partition = asked.partition
        if partition.phase is Phase.LOST:
            return
        invocation = partition.open.get(asked.raw_id)
        if invocation is None:
            self._errands.add(partial(self._find, asked))
        elif invocation.hold is Hold.RECALLING:
            # Whether it is taken in at all is not known yet.
            invocation.on_recalled.append(partial(self._seek, asked))
        else:
            lane = _lane_of(invocation)
            if lane is None:
                self._again(asked)
            else:
                self._decide(asked, lane, invocation)

    def _again(self, asked: _Asked) -> None:
        delay = min(AGAIN_FIRST_SECONDS * 2**asked.tries, AGAIN_CAP_SECONDS)
        asked.tries += 1
        asyncio.get_running_loop().call_later(delay, self._seek, asked)

    async def _find(self, asked: _Asked) -> None:
        partition, raw_id = asked.partition, asked.raw_id
        if partition.phase is Phase.LOST:
            return
        try:
            (found,), _, claims = await self._reviving.read(partition, [raw_id])
            result = await read_result(self._store, partition.space, raw_id)
            first = first_of(result)
        except StoreUnavailable:
            self._again(asked)
            return
        except StoreError as error:
            self._refuse(asked, str(error))
            return
        if first is not None:
            # Its idempotency key was known: what is to end is the first one.
            asked.order = replace(asked.order, invocation=first)
        if first is not None or raw_id in partition.open or partition.writer.lost is not None:
            self._seek(asked)
        else:
            self._take_found(asked, found, claims, has_result=result is not None)

    def _take_found(
        self, asked: _Asked, found: OpenInvocation, claims: dict[bytes, IdempotencyClaim], *, has_result: bool
    ) -> None:
        partition, raw_id = asked.partition, asked.raw_id
        accepted = found.records[0] if found.records else None
        if has_result or (found.records and is_over(found)):
            self._answer(asked, OVER)
        elif not isinstance(accepted, Accepted):
            self._not_found(asked, found)
        elif not (lane := partition.lane(accepted.key)).loaded:
            lane.when_loaded = (*lane.when_loaded, partial(self._when_loaded, asked, lane))
        elif not is_scheduled(found):
            partition.host.find_parked(lane, raw_id, partial(self._seek_parked, asked))
        elif asked.request.kind is RequestKind.SKIP_COMPENSATION:
            self._refuse(asked, NO_FAILED_UNDO)
        elif partition.was_released(raw_id):
            self._again(asked)
        else:
            # Who has found it due meanwhile must not put it into its lane any more.
            partition.note_released(raw_id)
            self._end(asked, lane, self._reviving.revive_scheduled(lane, found, claims), _how(asked))

    def _not_found(self, asked: _Asked, found: OpenInvocation) -> None:
        if found.undecodable is not None:
            self._refuse(asked, f"its records can't be read: {found.undecodable}")
        elif asked.partition.memory.is_full:
            # It may lie in the inbox, where it waits for room.
            self._again(asked)
        elif not asked.is_sure:
            asked.is_sure = True
            behind_all(asked.partition, partial(self._seek, asked))
        else:
            self._refuse(asked, "nothing is known of it: it was never taken in, or it ended too long ago")

    def _when_loaded(self, asked: _Asked, lane: Lane) -> None:
        if lane.load_error is not None and not lane.loaded:
            self._refuse(asked, f"its object can't be read: {lane.load_error}")
        else:
            self._seek(asked)

    def _seek_parked(self, asked: _Asked) -> None:
        invocation = asked.partition.open.get(asked.raw_id)
        if invocation is not None:
            self._decide(asked, invocation.lane, invocation)
        elif asked.tries < LOST_TRIES:
            self._again(asked)
        else:
            self._refuse(asked, "its lane does not name it: `keylane doctor --repair` brings it back")

    def _decide(self, asked: _Asked, lane: Lane, invocation: Invocation) -> None:
        standing = invocation.standing
        match asked.request.kind:
            case RequestKind.KILL:
                self._end(asked, lane, invocation, _how(asked))
            case RequestKind.SKIP_COMPENSATION:
                self._skip(asked, lane, invocation)
            case _ if not _has_begun(lane, invocation) or _is_beyond_replay(invocation):
                self._end(asked, lane, invocation, _how(asked))
            case _ if standing is not None and (standing.extras.cancel or standing.extras.compensation):
                # It ends anyway, or was asked to before.
                self._answer(asked, GOING, lane)
            case _ if is_shielded(invocation) is None:
                self.dockets.read(lane, partial(self._has_read, asked))
            case _:
                self._request(asked, lane, invocation)

    def _has_read(self, asked: _Asked, error: KeylaneError | None) -> None:
        if error is None:
            self._seek(asked)
        else:
            self._refuse(asked, f"its effects can't be read: {error}")

    def _request(self, asked: _Asked, lane: Lane, invocation: Invocation) -> None:
        """Record that an invocation is to be cancelled; what waits is told in the same commit."""
        request, order = asked.request, asked.order
        if not invocation.accepted:
            accept_in_order(lane, invocation)
        fact = CancelRequested(request.invocation, order.by, order.reason, order.cascades)
        # Also while that is on its way: what is written behind it has to bring it back.
        had_left = has_left(invocation)
        writes = [*_note(lane, invocation, fact), *self._answered(asked, GOING)]
        # Once the answer to its call has come, or it is not known, who records that tells the handler.
        waits_on = bool(is_shielded(invocation)) and not invocation.is_branched
        delivered = None if waits_on else _delivered(invocation)
        if delivered is not None:
            writes.extend(cascade(lane, invocation))
            writes.extend(_note(lane, invocation, delivered))
            forget_due(invocation, delivered.index)
        if invocation.conductor is None or delivered is not None:
            # Neither its time nor its next attempt comes any more.
            writes.append(entry_of(lane.partition, invocation))
        if invocation.conductor is not None:
            invocation.conductor.goes_on()
        if not waits_on:
            writes.extend(_brought_back(lane, invocation, had_left=had_left))
        invocation.attempts = invocation.standing.attempts if invocation.standing is not None else 0
        done = partial(self._requested, asked, invocation, delivered, wakes=not waits_on)
        lane.commit(writes, None, done, about=invocation.raw_id)

    def _skip(self, asked: _Asked, lane: Lane, invocation: Invocation) -> None:
        """Give an undo up that has failed; those before it are undone still."""
        standing = invocation.standing
        paused = None if standing is None else standing.paused
        if standing is None or paused is None or paused.reason is not PauseReason.COMPENSATION_FAILED:
            self._refuse(asked, NO_FAILED_UNDO)
            return
        order, (_, left) = asked.order, undone_by(invocation.records)
        fact = CompensationSkipped(standing.steps, left[0], order.by, order.reason)
        writes = [*_note(lane, invocation, fact), *self._answered(asked, GOING)]
        writes.extend(_brought_back(lane, invocation, had_left=False))
        lane.commit(writes, None, partial(self._requested, asked, invocation, fact), about=invocation.raw_id)

    def _requested(
        self,
        asked: _Asked,
        invocation: Invocation,
        command: Record | None,
        now_ms: int,
        error: BaseException | None,
        *,
        wakes: bool = True,
    ) -> None:
        """Let an invocation go on once what was decided about it is durable.

        Args:
            asked: The request.
            invocation: The invocation.
            command: What its replay has to walk through.
            now_ms: When it was written.
            error: Why it was not.
            wakes: Whether it has anything to do now.
        """
        del now_ms
        partition = asked.partition
        if isinstance(error, Fenced | OwnershipLost):
            return
        if error is not None:
            # Its lane is read anew, and looked at once more.
            _unwind(invocation)
            partition.recall_again.append(partial(self._seek, asked))
            return
        _taken(asked)
        if command is not None:
            invocation.records.append(command)
        if wakes:
            _wake(invocation, ends_wait=isinstance(command, CancelDelivered))

    def _end(self, asked: _Asked, lane: Lane, invocation: Invocation, how: Literal["cancelled", "killed"]) -> None:
        """End an invocation at once: it has not begun, can't be told, or is not to be."""
        partition, order = asked.partition, asked.order
        if not invocation.accepted:
            accept_in_order(lane, invocation)
        standing = invocation.standing
        if standing is None:
            # What its records say makes no sense; that it ends here does.
            standing = invocation.standing = Standing(Status.QUEUED, records=1)
        extras = standing.extras
        is_undone = extras.compensation is None and not extras.has_failed_undo
        more = [*self._answered(asked, OVER), operations.unschedule(invocation.raw_id)]
        more.extend(cancels(lane, invocation, order.by, order.reason, cascades=order.cascades))
        if partition.parked.pop(invocation.raw_id, None) is not None or has_left(invocation):
            more.append(operations.take_up(partition.space, lane.key_text, invocation.raw_id))
        elif any(each.accepted and each is not invocation for each in lane.queue):
            more.append(operations.unpark(lane.key_text))
        outcome = Stopped(how, order.by, order.reason, compensation_failed=not is_undone)
        finish(lane, invocation, outcome, {}, more)
        gate = lane.gate()
        if gate is None:
            _taken(asked)
        else:
            gate.add_done_callback(partial(self._ended, asked))
        _unwind(invocation)
        partition.host.ready(lane)

    def _ended(self, asked: _Asked, gate: asyncio.Future[None]) -> None:
        error = None if gate.cancelled() else gate.exception()
        if error is None:
            _taken(asked)
        elif not isinstance(error, Fenced | OwnershipLost):
            asked.partition.recall_again.append(partial(self._seek, asked))

    def _answer(self, asked: _Asked, verdict: str, lane: Lane | None = None) -> None:
        """Answer what changes nothing."""
        request = asked.request
        if request.kind is RequestKind.SKIP_COMPENSATION:
            self._refuse(asked, NO_FAILED_UNDO)
            return
        if request.kind is RequestKind.OBJECT_CANCEL:
            asked.partition.settle_entry(asked.entry)
        else:
            outcome = _VERDICTS[verdict]
            answer(asked.partition, request.invocation, asked.entry, request.client, outcome, lane=lane)
        _taken(asked)

    def _answered(self, asked: _Asked, verdict: str) -> list[Operation]:
        """Return what takes a request out of the inbox and answers it; between objects nobody waits for that."""
        partition, request = asked.partition, asked.request
        writes = [operations.settle_entry(asked.entry)]
        if request.kind is RequestKind.OBJECT_CANCEL:
            return writes
        outcome = _VERDICTS[verdict]
        writes.append(operations.result(partition.space, request.invocation, outcome, partition.result_retention_ms))
        if request.client is not None:
            writes.append(operations.announce(request.client, request.invocation, outcome))
        return writes

    def _refuse(self, asked: _Asked, why: str) -> None:
        partition, request = asked.partition, asked.request
        if request.kind is RequestKind.OBJECT_CANCEL:
            # Its caller has gone on; what there was to cancel is not here, such as the call of a shared handler.
            partition.settle_entry(asked.entry)
        else:
            error = CallError(why, invocation_id=partition.invocation_id(asked.raw_id))
            refuse(partition, request.invocation, asked.entry, request.client, error)
        _taken(asked)


def _how(asked: _Asked) -> Literal["cancelled", "killed"]:
    return "killed" if asked.request.kind is RequestKind.KILL else "cancelled"


def _lane_of(invocation: Invocation) -> Lane | None:
    """Return the lane that an invocation is in, None while that is changing."""
    lane = cast("Lane | None", getattr(invocation, "lane", None))
    if lane is None or not lane.loaded or lane.refused or lane.error is not None or invocation.ended:
        return None
    is_here = invocation in lane.queue or invocation in lane.aside or invocation.raw_id in lane.partition.parked
    return lane if is_here else None


def _has_begun(lane: Lane, invocation: Invocation) -> bool:
    """Return whether anything of an invocation may have run. The holder of a lane may have, at an owner before."""
    if lane.running is invocation:
        return True
    if not invocation.accepted:
        return False
    standing = invocation.standing
    if invocation.records or (standing is not None and standing.paused is not None):
        return True
    is_behind = invocation in lane.queue and lane.queue[0] is not invocation
    return not is_behind and (invocation.has_run or invocation.begun_ms is not None)


def _is_beyond_replay(invocation: Invocation) -> bool:
    standing = invocation.standing
    if not invocation.accepted:
        return False
    if standing is None:
        return True
    return standing.paused is not None and standing.paused.reason in _BEYOND_REPLAY


def _delivered(invocation: Invocation) -> CancelDelivered | None:
    """Return the record that ends the wait of a handler's main branch, if it is in one."""
    standing = invocation.standing
    if standing is None or standing.wait_at(standing.steps) is None:
        return None
    if invocation.conductor is not None and not standing.is_aside:
        # Where a handler with branches stands is known to its run alone, unless all of it waits and has left its lane.
        return None
    return CancelDelivered(standing.steps)


def _note(lane: Lane, invocation: Invocation, fact: Record) -> list[Operation]:
    record(invocation, fact)
    return [operations.record(lane.partition.space, invocation.raw_id, fact)]


def _brought_back(lane: Lane, invocation: Invocation, *, had_left: bool) -> list[Operation]:
    """Return what lets an invocation run again: at the head of its lane where it had left it."""
    if had_left:
        invocation.entry = None
        return returning(lane, invocation)
    is_aside = lane.partition.parked.pop(invocation.raw_id, None) is not None
    running = holder(lane)
    if is_aside and running is not None:
        # It goes on behind what has begun, also for an owner that comes after us.
        accept_in_order(lane, running)
    writes = rejoining(lane, invocation, is_aside=is_aside, running=running)
    if is_aside:
        lane.queue.insert(0 if running is None else 1, invocation)
    invocation.entry = None
    return writes


def _wake(invocation: Invocation, *, ends_wait: bool) -> None:
    """Let a handler go on: where it stands, or from its journal."""
    lane = invocation.lane
    partition = lane.partition
    if invocation.conductor is not None:
        invocation.conductor.poke()
        return
    if invocation.hold is not Hold.RECALLING:
        invocation.hold = None
    wake_attempt = partition.waiting.pop(invocation.raw_id, None)
    future = partition.sleepers.get(invocation.raw_id)
    if wake_attempt is not None:
        wake_attempt()
    elif ends_wait and future is not None and not future.done():
        future.set_result(None)
    partition.host.ready(lane)


def _unwind(invocation: Invocation) -> None:
    """End the run of a handler whose invocation has ended, or whose lane has another history now."""
    partition = invocation.lane.partition
    partition.waiting.pop(invocation.raw_id, None)
    future = partition.sleepers.get(invocation.raw_id)
    if invocation.conductor is not None:
        invocation.conductor.refused()
    if future is not None and not future.done():
        future.set_exception(Suspended())
    elif invocation.ended and invocation.task is not None:
        invocation.task.cancel()


def _taken(asked: _Asked) -> None:
    partition = asked.partition
    partition.serving.discard(asked.request.invocation)
    partition.remember(asked.request.invocation)
