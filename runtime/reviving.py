"""Brings invocations into memory that an owner before left open, as their records and the store's lists have them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ..journal import operations
from ..journal.blobs import digests_in_records
from ..journal.codec import Undecodable
from ..journal.due import ms_of
from ..journal.lane_reading import LaneContents, OpenInvocation, ask, read_invocations
from ..journal.outcomes import IdempotencyEntry
from ..journal.recall import DAY_MS
from ..journal.records import Accepted, Paused, PauseReason, Record
from ..journal.restarting import version_of
from ..journal.snapshots import ObjectState
from ..journal.standing import IllegalTransition, Standing, Status
from ..journal.transitions import replay
from .due_times import dues_of
from .endings import parking
from .found_invocations import has_left
from .invocation import Hold, IdempotencyClaim, Invocation
from .restarting import recall
from .versions import stand_in, why_no_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..journal.store import Store
    from ..objects.handler import Handler
    from ..objects.virtual_object import VirtualObject
    from .lane import Lane
    from .partition import Partition
    from .timers import Timers

logger = logging.getLogger("keylane.worker")


@dataclass(frozen=True, slots=True)
class Extras:
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


NO_EXTRAS = Extras({}, {})


class Reviving:
    """Brings invocations into memory for one worker.

    Args:
        store: The open store.
        timers: Told of what waits for its next attempt.
    """

    def __init__(self, store: Store, timers: Timers) -> None:
        self._store = store
        self._timers = timers

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
        extras = await self.extras(partition, LaneContents(ObjectState({}), found))
        return found, dict(extras.waits), dict(extras.claims)

    async def extras(self, partition: Partition, contents: LaneContents, lane: Lane | None = None) -> Extras:
        """Return what is kept beside the records of invocations that were read."""
        found = [*contents.open, *(each for each in contents.aside if has_left(each))]
        if not found:
            return NO_EXTRAS
        space = partition.space
        ids = [each.raw_id for each in found]
        words: list[tuple[Any, ...]] = [("ZSCORE", space.due, raw_id) for raw_id in ids]
        keys = [space.due] * len(ids)
        if lane is not None:
            words.append(("SISMEMBER", space.runnable, lane.key_text))
            keys.append(space.runnable)
        answers = await ask(self._store, words, keys)
        scores, is_runnable = answers[: len(ids)], answers[len(ids) :] == [1]
        waits = {raw_id: ms_of(score) for raw_id, score in zip(ids, scores, strict=True) if score is not None}
        claims = [await self._claim(partition, each) for each in found]
        kept = {raw_id: claim for raw_id, claim in zip(ids, claims, strict=True) if claim is not None}
        return Extras(waits, kept, is_runnable)

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
                try:
                    kept = IdempotencyEntry.decode(raw)
                except Undecodable as error:
                    # What its key stands for is for a person to say; its lane goes on.
                    logger.warning("%s: its idempotency key: %s", partition.invocation_id(found.raw_id), error)
                    return None
                return IdempotencyClaim(digest, kept.fingerprint, kept.raw_digest, each, kept.accepted_at_ms)
        return None

    def adopt(
        self, lane: Lane, found: OpenInvocation, waits: dict[bytes, int], claims: dict[bytes, IdempotencyClaim]
    ) -> Invocation:
        """Bring an invocation back that a lane's list had lost; its place in the queue is the caller's business."""
        return self.revive(lane, found, Extras(waits, claims))

    def revive_scheduled(self, lane: Lane, found: OpenInvocation, claims: dict[bytes, IdempotencyClaim]) -> Invocation:
        """Bring an invocation into memory whose time has not come, so that it can be ended."""
        return self.revived(lane, found, Extras({}, claims))

    def revive(self, lane: Lane, found: OpenInvocation, extras: Extras) -> Invocation:
        """Bring an invocation back that an owner before had accepted, and park it where this code can't run it."""
        invocation = self.revived(lane, found, extras)
        self.park_without_handler(lane, invocation)
        return invocation

    def park_without_handler(self, lane: Lane, invocation: Invocation) -> None:
        """Park an invocation that this code can't run."""
        if cast("object", invocation.handler) is None:
            if invocation.hold is not Hold.PAUSED:
                why = "the record of its acceptance can't be read"
                self._park(lane, invocation, PauseReason.UNDECODABLE, why)
        elif invocation.needs is not None and (invocation.hold is None or invocation.hold is Hold.RETRYING):
            # One that waits is parked when it would go on: what it waits for is recorded, whoever owns it then.
            self._park(lane, invocation, PauseReason.NEEDS_VERSION, invocation.needs)

    def revived(self, lane: Lane, found: OpenInvocation, extras: Extras) -> Invocation:
        """Bring an invocation back as its records have it."""
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
        self.refresh(lane, invocation, found, extras)
        claim = extras.claims.get(found.raw_id)
        if claim is not None:
            invocation.idempotency = claim
            partition.claims.setdefault(claim.digest, invocation)
        return invocation

    def refresh(self, lane: Lane, invocation: Invocation, found: OpenInvocation, extras: Extras) -> None:
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

    def _wait_for_attempt(self, lane: Lane, invocation: Invocation, found: OpenInvocation, extras: Extras) -> None:
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

    def _ask_for_timer(self, lane: Lane, invocation: Invocation, extras: Extras) -> None:
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


def _may_go_on(invocation: Invocation, extras: Extras) -> bool:
    """Return whether a handler may have branches that go on beside what it waits for, by the records or without any.

    The lane of one without branches stops being runnable in the commit of its wait. Of a branch whose first step has
    not ended, nothing is recorded.
    """
    is_waiting = invocation.standing is not None and invocation.standing.waiting is not None
    return invocation.is_branched or (is_waiting and extras.is_runnable)


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
