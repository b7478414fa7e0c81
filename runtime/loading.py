"""Brings lanes into memory: state, and the invocations that an owner before left open."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from ..journal import operations
from ..journal.blobs import digests_in_records
from ..journal.codec import Undecodable
from ..journal.errors import InternalError, KeylaneError, StoreError, StoreUnavailable
from ..journal.history import first_arguments
from ..journal.lane_reading import LaneContents, OpenInvocation, aside_words, ask, read_invocations, read_lane
from ..journal.mail import Mail
from ..journal.outcomes import IdempotencyEntry
from ..journal.recall import DAY_MS
from ..journal.records import (
    Accepted,
    Cancelled,
    Completed,
    Failed,
    Killed,
    Paused,
    PauseReason,
    Record,
    Released,
    Resumed,
)
from ..journal.restarting import version_of
from ..journal.snapshots import FIRST_READ_ENTRIES, Entry, ObjectState, fold, is_whole, newest_words
from ..journal.standing import IllegalTransition, Standing, Status
from ..journal.transitions import replay
from .docket import docket_words, note_if_none
from .due_times import dues_of
from .endings import parking, resumption, skips
from .invocation import Hold, IdempotencyClaim, Invocation
from .lane import Lane
from .large_values import found_in
from .partition import FirstArguments, Partition, Phase
from .replies import refuse
from .restarting import recall
from .scheduling import release
from .versions import stand_in, why_no_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..journal.store import Store
    from ..objects.handler import Handler
    from ..objects.virtual_object import VirtualObject
    from .errands import Errands
    from .timers import Timers

logger = logging.getLogger("keylane.worker")

LOAD_AGAIN_SECONDS = 0.2
#: Who resumes what only the code of another worker had parked.
BY_ITSELF = "keylane"
#: How many invocations that fell due are looked for in one turn.
FOUND_AT_ONCE = 128
#: With so many invocations in hand, what is scheduled has to wait until some have ended.
IN_HAND_MAX = 4096


@dataclass(frozen=True, slots=True)
class _Extras:
    """What is kept of open invocations beside their records.

    Args:
        waits: When they are due.
        claims: Their idempotency keys.
        is_runnable: Whether the store has their lane among the runnable ones: who holds it need not stand still, though
            the record of a wait may be its last one.
    """

    waits: dict[bytes, int]
    claims: dict[bytes, IdempotencyClaim]
    is_runnable: bool = False


_NO_EXTRAS = _Extras({}, {})


class Loading:
    """Reads lanes for one worker.

    Args:
        store: The open store.
        errands: Runs what takes more than one look.
        timers: Told of what waits for its next attempt.
        ready: Gives a lane to a slot.
    """

    def __init__(self, store: Store, errands: Errands, timers: Timers, ready: Callable[[Lane], None]) -> None:
        self._store = store
        self._errands = errands
        self._timers = timers
        self._ready = ready

    def load(self, lane: Lane) -> None:
        """Read a lane; most have no open invocations and take one look, without a task of their own."""
        if lane.loading:
            return
        lane.loading = True
        space, submit = lane.partition.space, self._store.submit
        answers: list[Any] = []
        submit(newest_words(space, lane.key_text), answers.append)
        submit(aside_words(space, lane.key_text), answers.append)
        if lane.partition.virtual_object.effects:
            submit(docket_words(space, lane.key_text), partial(note_if_none, lane))
        submit(("LRANGE", space.lane(lane.key_text), 0, -1), partial(self._looked, lane, answers))

    def _looked(self, lane: Lane, answers: list[Any], ids: Any) -> None:
        newest = cast("list[Entry]", answers[0]) if answers and isinstance(answers[0], list) else None
        if newest is None or ids != [] or answers[1:] != [[]] or not is_whole(newest, FIRST_READ_ENTRIES):
            self._errands.add(partial(self._load_whole, lane))
            return
        try:
            contents = LaneContents(fold(newest))
        except Undecodable as error:
            self._fail(lane, InternalError(f"the state of {lane.key_text} can't be read: {error}"))
            return
        self._install(lane, contents, _NO_EXTRAS)

    async def _load_whole(self, lane: Lane) -> None:
        partition = lane.partition
        if partition.phase is Phase.LOST:
            return
        try:
            contents = await read_lane(self._store, partition.space, lane.key_text)
            extras = await self._extras(partition, contents, lane)
        except StoreUnavailable:
            # The runner is for others meanwhile: this one's server may be the only one that is away.
            self._errands.add_later(LOAD_AGAIN_SECONDS, partial(self._load_whole, lane))
        except Undecodable as error:
            self._fail(lane, InternalError(f"the state of {lane.key_text} can't be read: {error}"))
        except StoreError as error:
            self._fail(lane, error)
        else:
            self._install(lane, contents, extras)

    async def _extras(self, partition: Partition, contents: LaneContents, lane: Lane | None = None) -> _Extras:
        found = [*contents.open, *(each for each in contents.aside if has_left(each))]
        if not found:
            return _NO_EXTRAS
        space = partition.space
        ids = [each.raw_id for each in found]
        words: list[tuple[Any, ...]] = [("ZSCORE", space.due, raw_id) for raw_id in ids]
        keys = [space.due] * len(ids)
        if lane is not None:
            words.append(("SISMEMBER", space.runnable, lane.key_text))
            keys.append(space.runnable)
        answers = await ask(self._store, words, keys)
        scores, is_runnable = answers[: len(ids)], answers[len(ids) :] == [1]
        waits = {raw_id: int(float(score)) for raw_id, score in zip(ids, scores, strict=True) if score is not None}
        claims = [await self._claim(partition, each) for each in found]
        kept = {raw_id: claim for raw_id, claim in zip(ids, claims, strict=True) if claim is not None}
        return _Extras(waits, kept, is_runnable)

    async def _claim(self, partition: Partition, found: OpenInvocation) -> IdempotencyClaim | None:
        """Return the idempotency key of an open invocation, so that its entry is completed at the end."""
        accepted = found.records[0] if found.records else None
        if not isinstance(accepted, Accepted) or accepted.idempotency is None:
            return None
        # It was taken in shortly before its first record, so its key lies in the hash of that day or of a neighbour.
        # The time in its id is of no use: it is the caller's.
        day = found.begun_ms // DAY_MS
        days = [day, day + 1, day - 1]
        keys = [partition.space.idempotency(each) for each in days]
        digest = accepted.idempotency
        for each, raw in zip(days, await ask(self._store, [("HGET", key, digest) for key in keys], keys), strict=True):
            if raw is not None:
                kept = IdempotencyEntry.decode(raw)
                return IdempotencyClaim(digest, kept.fingerprint, kept.raw_digest, each, kept.accepted_at_ms)
        return None

    def _fail(self, lane: Lane, error: KeylaneError) -> None:
        logger.error("%s %s: %s", lane.partition.space, lane.key_text, error)
        lane.loading = False
        for invocation in lane.queue:
            if invocation.entry is not None and not invocation.accepted:
                refuse(lane.partition, invocation.raw_id, invocation.entry, invocation.client, error, invocation.caller)
        lane.partition.lane_failed(lane, error)

    def _install(self, lane: Lane, contents: LaneContents, extras: _Extras) -> None:
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
                invocation = self._revive(lane, each, extras)
                lane.queue.insert(0, invocation)
            else:
                self._refresh(lane, invocation, each, extras)
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
        self, lane: Lane, contents: LaneContents, extras: _Extras, known: Mapping[bytes, Invocation]
    ) -> None:
        """Bring those into memory that have left a lane while they wait."""
        lane.aside = ()
        for each in contents.aside:
            if not has_left(each):
                continue
            invocation = known.get(each.raw_id)
            if invocation is None:
                invocation = self._revive(lane, each, extras)
            else:
                self._refresh(lane, invocation, each, extras)
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
            extras = await self._extras(partition, LaneContents(ObjectState({}), [found]))
        except StoreUnavailable:
            lane.pins += 1
            self._errands.add_later(LOAD_AGAIN_SECONDS, partial(self._find_parked, lane, raw_id, done))
            return
        if raw_id not in partition.open and _is_parked(found, lane.key_text):
            partition.parked[raw_id] = self._revive(lane, found, extras)
        done()
        left = partition.parked.pop(raw_id, None)
        if left is not None:
            # It was not resumed after all.
            partition.let_go(left)

    async def read_records(self, partition: Partition, ids: Sequence[bytes]) -> list[OpenInvocation]:
        """Read invocations.

        Raises:
            StoreUnavailable: The store is away.
            WrongKeyType: A foreign key stands where a stream belongs.
        """
        return await read_invocations(self._store, partition.space, ids)

    async def read(
        self, partition: Partition, ids: Sequence[bytes]
    ) -> tuple[list[OpenInvocation], dict[bytes, int], dict[bytes, IdempotencyClaim]]:
        """Read invocations with their due times and their idempotency keys.

        Raises:
            StoreUnavailable: The store is away.
            WrongKeyType: A foreign key stands where a stream belongs.
        """
        found = await read_invocations(self._store, partition.space, ids)
        extras = await self._extras(partition, LaneContents(ObjectState({}), found))
        return found, dict(extras.waits), dict(extras.claims)

    def adopt(
        self, lane: Lane, found: OpenInvocation, waits: dict[bytes, int], claims: dict[bytes, IdempotencyClaim]
    ) -> Invocation:
        """Bring an invocation back that a lane's list had lost; its place in the queue is the caller's business."""
        return self._revive(lane, found, _Extras(waits, claims))

    def revive_scheduled(self, lane: Lane, found: OpenInvocation, claims: dict[bytes, IdempotencyClaim]) -> Invocation:
        """Bring an invocation into memory whose time has not come, so that it can be ended."""
        return self._revived(lane, found, _Extras({}, claims))

    def _revive(self, lane: Lane, found: OpenInvocation, extras: _Extras) -> Invocation:
        """Bring an invocation back that an owner before had accepted, and park it where this code can't run it."""
        invocation = self._revived(lane, found, extras)
        self._park_without_handler(lane, invocation)
        return invocation

    def _park_without_handler(self, lane: Lane, invocation: Invocation) -> None:
        if cast("object", invocation.handler) is None:
            if invocation.hold is not Hold.PAUSED:
                why = "the record of its acceptance can't be read"
                self._park(lane, invocation, PauseReason.UNDECODABLE, why)
        elif invocation.needs is not None and (invocation.hold is None or invocation.hold is Hold.RETRYING):
            # One that waits is parked when it would go on: what it waits for is recorded, whoever owns it then.
            self._park(lane, invocation, PauseReason.NEEDS_VERSION, invocation.needs)

    def _revived(self, lane: Lane, found: OpenInvocation, extras: _Extras) -> Invocation:
        partition = lane.partition
        accepted = found.records[0] if found.records else None
        is_readable = isinstance(accepted, Accepted)
        handler, needs = _handler_of(partition.virtual_object, found.records)
        invocation = Invocation(found.raw_id, handler, accepted.input if is_readable else None)  # pyright: ignore[reportArgumentType], one without a handler is held for ever
        invocation.lane = lane
        invocation.needs = needs
        invocation.accepted = True
        invocation.client = accepted.client if is_readable else None
        invocation.caller = accepted.caller if is_readable else None
        invocation.trace = accepted.trace if is_readable else None
        if is_readable and handler is None:
            invocation.asked_for = (accepted.handler, accepted.version)
        partition.open[found.raw_id] = invocation
        self._refresh(lane, invocation, found, extras)
        claim = extras.claims.get(found.raw_id)
        if claim is not None:
            invocation.idempotency = claim
            partition.claims.setdefault(claim.digest, invocation)
        return invocation

    def _refresh(self, lane: Lane, invocation: Invocation, found: OpenInvocation, extras: _Extras) -> None:
        """Take over what the store says of an invocation."""
        try:
            standing: Standing | None = replay(found.records)
        except IllegalTransition as error:
            standing = None
            found = replace(found, undecodable=found.undecodable or str(error))
        invocation.accepted = True
        invocation.standing = standing
        invocation.mail = found.mail
        invocation.begun_ms = found.begun_ms
        invocation.attached = found.attached
        recall(invocation, found.records)
        invocation.refers = digests_in_records(found.records) or None
        invocation.attempts = 0 if standing is None else standing.attempts
        invocation.dues = None if standing is None else dues_of(standing, found.records, found.written_ms)
        invocation.hold = None
        is_paused = found.is_parked or (standing is not None and standing.status is Status.PAUSED)
        if found.undecodable is not None and not is_paused:
            self._park(lane, invocation, PauseReason.UNDECODABLE, found.undecodable)
        elif is_paused:
            invocation.hold = Hold.PAUSED
        elif standing is not None and standing.retry_after_ms is None and _may_go_on(invocation, extras):
            # Whether all of its branches wait is seen once it has been replayed; what they wait for may come meanwhile.
            self._ask_for_timer(lane, invocation, extras)
        elif standing is not None and standing.waiting is not None and standing.retry_after_ms is None:
            invocation.hold = Hold.WAITING
            self._ask_for_timer(lane, invocation, extras)
        elif found.raw_id in extras.waits:
            self._wait_for_attempt(lane, invocation, found, extras)

    def _wait_for_attempt(self, lane: Lane, invocation: Invocation, found: OpenInvocation, extras: _Extras) -> None:
        """Have the next attempt begin when it is due, whatever else of the invocation is due later.

        The due time that the store has is that of a wait once the attempt has begun, and until its own was written.
        """
        partition, standing, due_ms = lane.partition, invocation.standing, extras.waits[found.raw_id]
        own_ms = due_ms
        if standing is not None and standing.retry_after_ms is not None:
            own_ms = found.failed_ms + standing.retry_after_ms
        if due_ms <= own_ms:
            self._wait(lane, invocation, due_ms)
            return
        left_ms = own_ms - partition.now_ms()
        if left_ms <= 0:
            self._ask_for_timer(lane, invocation, extras)
            return
        lane.commit([operations.schedule(found.raw_id, left_ms)])
        self._wait(lane, invocation, own_ms)

    def _ask_for_timer(self, lane: Lane, invocation: Invocation, extras: _Extras) -> None:
        """Have the end of a sleep noticed, also where its due time has been lost."""
        partition = lane.partition
        if not invocation.dues:
            return
        left_ms = max(invocation.due_ms - partition.now_ms(), 0)
        if invocation.raw_id not in extras.waits:
            lane.commit([operations.schedule(invocation.raw_id, left_ms)])
        self._timers.ask_in(partition, left_ms)

    def _wait(self, lane: Lane, invocation: Invocation, due_ms: int) -> None:
        partition = lane.partition
        invocation.hold = Hold.RETRYING
        release = partial(partition.release_hold, lane, invocation)
        delay_ms = max(due_ms - partition.now_ms(), 0)
        self._timers.call_when_due(partition, invocation.raw_id, delay_ms, release)

    def _park(self, lane: Lane, invocation: Invocation, reason: PauseReason, detail: str) -> None:
        """Park what can't be run by this code; its bytes stay as they are."""
        partition = lane.partition
        fact: Record = Paused(reason, detail)
        if invocation.standing is not None:
            invocation.standing = replay([fact], invocation.standing)
        invocation.hold = Hold.PAUSED
        writes = [
            operations.record(partition.space, invocation.raw_id, fact),
            *parking(lane, invocation, reason),
        ]
        lane.commit(writes)
        logger.warning(
            "%s parked (%s): %s; %s has to look into it", partition.invocation_id(invocation.raw_id), reason, detail,
            partition.virtual_object.owner,
        )  # fmt: skip

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
                found = await read_invocations(self._store, partition.space, ids)
                scheduled = [each for each in found if is_scheduled(each)]
                extras = await self._extras(partition, LaneContents(ObjectState({}), scheduled))
                for each in found:
                    partition.finding.pop(each.raw_id, None)
                    self._take_found(partition, each, extras)
        except StoreUnavailable:
            # The due times stay where they are, and the sweep asks again.
            partition.finding.clear()
        finally:
            partition.is_finding = False

    def _take_found(self, partition: Partition, found: OpenInvocation, extras: _Extras) -> None:
        raw_id = found.raw_id
        if raw_id in partition.open or partition.was_released(raw_id) or partition.phase is not Phase.OPEN:
            return
        accepted = found.records[0] if found.records else None
        if not isinstance(accepted, Accepted) or _has_ended(found):
            # One that is nowhere is not due any more.
            partition.forget_due(raw_id)
        elif not is_scheduled(found):
            partition.lane(accepted.key)
        elif not partition.in_hand.reaches(IN_HAND_MAX):
            self._release(partition, accepted, found, extras)

    def _release(self, partition: Partition, accepted: Accepted, found: OpenInvocation, extras: _Extras) -> None:
        lane = partition.lane(accepted.key)
        extras = _Extras({}, extras.claims)
        found = _with_early(partition, found)
        invocation = self._revived(lane, replace(found, records=[*found.records, Released()]), extras)
        release(lane, accepted, invocation)
        self._park_without_handler(lane, invocation)

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


def _may_go_on(invocation: Invocation, extras: _Extras) -> bool:
    """Return whether a handler may have branches that go on beside what it waits for, by the records or without any.

    The lane of one without branches stops being runnable in the commit of its wait. Of a branch whose first step has
    not ended, nothing is recorded.
    """
    is_waiting = invocation.standing is not None and invocation.standing.waiting is not None
    return invocation.is_branched or (is_waiting and extras.is_runnable)


def is_over(found: OpenInvocation) -> bool:
    """Return whether an invocation that a lane names has ended, or has left nothing: no owner can run it."""
    if found.undecodable is not None or found.is_parked:
        return False
    try:
        return not found.records or replay(found.records).is_terminal
    except IllegalTransition:
        return False


def is_scheduled(found: OpenInvocation) -> bool:
    """Return whether an invocation is to begin later."""
    try:
        return len(found.records) > 1 and replay(found.records).status is Status.SCHEDULED
    except IllegalTransition:
        return False


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


def _has_ended(found: OpenInvocation) -> bool:
    return isinstance(found.records[-1], Completed | Failed | Cancelled | Killed)


def has_left(found: OpenInvocation) -> bool:
    """Return whether an invocation has left its lane to others while it waits."""
    try:
        return bool(found.records) and replay(found.records).is_aside
    except IllegalTransition:
        return False


def _is_parked(found: OpenInvocation, key_text: str) -> bool:
    accepted = found.records[0] if found.records else None
    if not isinstance(accepted, Accepted) or accepted.key != key_text:
        return False
    try:
        standing = replay(found.records)
        return found.is_parked or standing.status is Status.PAUSED or standing.is_aside
    except IllegalTransition:
        return False


def _lacked_its_code(invocation: Invocation) -> bool:
    """Return whether an invocation was parked only because a worker's code lacked what ours has."""
    paused = None if invocation.standing is None else invocation.standing.paused
    return invocation.needs is None and paused is not None and paused.reason is PauseReason.NEEDS_VERSION


def _handler_of(
    virtual_object: VirtualObject, records: Sequence[Record]
) -> tuple[Handler[Any, Any] | None, str | None]:
    """Return the handler of an invocation, None where its acceptance can't be read, and what our code lacks of it."""
    accepted = records[0] if records else None
    if not isinstance(accepted, Accepted):
        return None, None
    version = version_of(accepted, records)
    handler = virtual_object.version_of(accepted.handler, version)
    if handler is not None:
        return handler, None
    needs = why_no_version(virtual_object, accepted.handler, version)
    return stand_in(virtual_object, accepted.handler, version), needs
