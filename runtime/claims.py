"""Idempotency keys: decided by the owner, in order of intake, once for each key.

The first call that brings a key runs; every other one with the same key and the same arguments gets the first one's
result, one with other arguments is refused, and one that comes after the result's retention is told how it had ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..journal.blobs import is_reference
from ..journal.codec import unpack
from ..journal.errors import (
    CallError,
    Fenced,
    IdempotencyConflict,
    InternalError,
    InvalidInput,
    KeylaneError,
    ResultExpired,
    StoreFull,
    StoreUnavailable,
)
from ..journal.link import LinkLost
from ..journal.outcomes import IdempotencyEntry, Replayed, encode_outcome
from ..journal.recall import DAY_MS, Recalled, digest_of, recall
from ..journal.store import store_error
from ..objects.fingerprint import differing_fields, fingerprint, raw_digest
from .endings import accept_in_order
from .invocation import Hold, IdempotencyClaim, Invocation
from .partition import OwnershipLost
from .replies import answer, refuse
from .turning_away import turn_away

if TYPE_CHECKING:
    from ..objects.types import Boundary
    from .lane import Lane
    from .partition import Partition

_ENDED_AS = {"c": "completed", "f": "failed", "x": "been cancelled", "?": "not ended"}


class Claims:
    """Decides what becomes of calls that bring an idempotency key."""

    def claim(self, lane: Lane, invocation: Invocation, basis: bytes | None, idempotency_key: str) -> None:
        """Claim a key for an invocation that is about to enter a lane.

        The invocation is held until it is known whether the key was used before; where that is known at once, it has
        ended when this returns.

        Raises:
            InvalidInput: The argument does not fit the handler's type.
        """
        partition = lane.partition
        now_ms = partition.now_ms()
        invocation.idempotency = IdempotencyClaim(
            digest_of(lane.key_text, idempotency_key),
            self._fingerprint(invocation, basis),
            raw_digest(f"{invocation.handler.name}\0".encode() + (invocation.payload or b"")),
            now_ms // DAY_MS,
            now_ms,
        )
        first = partition.claims.get(invocation.idempotency.digest)
        if first is None:
            self._recall(lane, invocation)
        else:
            self._second(lane, first, invocation)

    def _fingerprint(self, invocation: Invocation, basis: bytes | None) -> bytes:
        handler = invocation.handler
        packed = basis if basis is not None else invocation.payload
        if handler.input is None:
            return fingerprint(handler.name, None)
        if packed is None:
            raise InvalidInput(handler.input.where, "the handler takes an argument and none was given")
        return fingerprint(handler.name, as_set(handler.input, packed))

    def _second(self, lane: Lane, first: Invocation, second: Invocation) -> None:
        """Decide on a key whose first call is in our hands: its acceptance becomes durable before ours is answered."""
        claim, own = first.idempotency, second.idempotency
        assert claim is not None
        assert own is not None
        if first.hold is Hold.RECALLING and not first.ended:
            # What becomes of the first is not known yet, so neither is what the second is told.
            second.hold = Hold.RECALLING
            first.on_recalled.append(partial(self._claim_again, lane, second))
            return
        if not first.ended:
            accept_in_order(first.lane, first)
        if is_same(claim.fingerprint, claim.raw_digest, own):
            self._replay(lane.partition, second, first.raw_id, claim.accepted_at_ms)
            return
        if first.payload is not None and is_reference(first.payload):
            second.hold = Hold.RECALLING
            entry = IdempotencyEntry(first.raw_id, claim.fingerprint, claim.raw_digest, "?", claim.accepted_at_ms)
            self._conflict(lane.partition, second, entry)
            return
        fields = self._named(second, first.handler.name, first.payload)
        self._refuse(lane.partition, second, IdempotencyConflict(fields))

    def _claim_again(self, lane: Lane, invocation: Invocation) -> None:
        claim = invocation.idempotency
        if invocation.ended or claim is None:
            return
        first = lane.partition.claims.get(claim.digest)
        if first is None:
            self._recall(lane, invocation)
        else:
            self._second(lane, first, invocation)

    def _recall(self, lane: Lane, invocation: Invocation) -> None:
        partition = lane.partition
        claim = invocation.idempotency
        assert claim is not None
        partition.claims[claim.digest] = invocation
        days = self._days(partition, claim.day)
        if not days:
            decided(invocation)
            return
        invocation.hold = Hold.RECALLING
        recall(partition.store, partition.space, days, claim.digest, partial(self._recalled, lane, invocation))

    @staticmethod
    def _days(partition: Partition, today: int) -> Sequence[int]:
        """Return the days that may have keys: all of the retention at first, then those that have some."""
        if partition.known_days is None:
            kept_days = int(partition.tombstone_retention_ms // DAY_MS) + 1
            partition.known_days = {today - back for back in range(kept_days + 1)}
        asked = sorted(partition.known_days, reverse=True)
        partition.known_days.add(today)
        return asked

    def _recalled(self, lane: Lane, invocation: Invocation, found: Recalled | Exception) -> None:
        if invocation.ended:
            return
        if isinstance(found, Recalled):
            self._decide(lane.partition, invocation, found)
        else:
            self._not_recalled(invocation, found)

    def _not_recalled(self, invocation: Invocation, error: Exception) -> None:
        lane = invocation.lane
        match error:
            case LinkLost() | StoreUnavailable():
                # The lane stands still with the store; the sweep asks again.
                lane.partition.recall_again.append(partial(self._recall_again, lane, invocation))
            case _:
                self._refuse(lane.partition, invocation, as_call_error(error))

    def _recall_again(self, lane: Lane, invocation: Invocation) -> None:
        claim = invocation.idempotency
        partition = lane.partition
        if invocation.ended or claim is None:
            return
        days = self._days(partition, claim.day)
        recall(partition.store, partition.space, days, claim.digest, partial(self._recalled, lane, invocation))

    def _decide(self, partition: Partition, invocation: Invocation, found: Recalled) -> None:
        claim = invocation.idempotency
        assert claim is not None
        if partition.known_days is not None:
            partition.known_days.difference_update(day for day in found.empty_days if day != claim.day)
        entry = found.entry
        if entry is None:
            self._date(partition, claim, found.now_ms)
        if entry is None or entry.invocation == invocation.raw_id:
            decided(invocation)
            return
        if partition.claims.get(claim.digest) is invocation:
            del partition.claims[claim.digest]
        if is_same(entry.fingerprint, entry.raw_digest, claim):
            done = partial(self._with_result, partition, invocation, entry)
            partition.store.submit(("GET", partition.space.result(entry.invocation)), done)
        else:
            self._conflict(partition, invocation, entry)

    @staticmethod
    def _date(partition: Partition, claim: IdempotencyClaim, now_ms: int) -> None:
        """Enter a new key under the day that it is in the store: our own estimate may be a sweep old."""
        partition.saw_time(now_ms)
        day = now_ms // DAY_MS
        if day != claim.day and partition.known_days is not None:
            claim.day, claim.accepted_at_ms = day, now_ms
            partition.known_days.add(day)

    def _with_result(self, partition: Partition, invocation: Invocation, entry: IdempotencyEntry, result: Any) -> None:
        """Decide on a key that a former call used, once it is known whether its result is still there."""
        if invocation.ended:
            return
        if isinstance(result, Exception):
            self._not_recalled(invocation, store_error(result, partition.store.url))
        elif result is None and entry.outcome != "?":
            first_id = partition.invocation_id(entry.invocation)
            self._refuse(partition, invocation, ResultExpired(_ENDED_AS[entry.outcome], invocation_id=first_id))
        else:
            self._replay(partition, invocation, entry.invocation, entry.accepted_at_ms)

    def _conflict(self, partition: Partition, invocation: Invocation, entry: IdempotencyEntry) -> None:
        def done(payload: tuple[str, bytes | None] | None) -> None:
            fields = None
            if payload is not None:
                handler_name, packed = payload
                fields = self._named(invocation, handler_name, packed)
            self._refuse(partition, invocation, IdempotencyConflict(fields))

        partition.host.find_arguments(partition, invocation.lane.key_text, entry, done)

    def _named(self, second: Invocation, handler_name: str, packed: bytes | None) -> tuple[str, ...] | None:
        """Return the paths that differ between the first call's arguments and the second's."""
        handler = second.handler
        if handler_name != handler.name:
            return ("handler",)
        if handler.input is None or packed is None or second.payload is None:
            return ("argument",)
        boundary = handler.input
        try:
            first = unpack(as_set(boundary, packed))
            return differing_fields(first, unpack(as_set(boundary, second.payload)), boundary.where)
        except Exception:  # noqa: BLE001, what can't be compared differs in an unknown way
            return None

    def _replay(self, partition: Partition, second: Invocation, first_id: bytes, first_at_ms: int) -> None:
        outcome = Replayed(first_id, first_at_ms)
        second.ended = True
        told = partial(_told, partition, second, outcome)
        encoded = encode_outcome(outcome)
        # The first one's acceptance may be on its way still: refused, it takes this answer with it.
        answer(partition, second.raw_id, second.entry, second.client, encoded, told, lane=second.lane, about=first_id)
        decided(second)

    def _refuse(self, partition: Partition, second: Invocation, error: CallError) -> None:
        second.ended = True
        if second.entry is not None:
            refuse(partition, second.raw_id, second.entry, second.client, error)
        partition.ended(second, error)
        decided(second)


def decided(invocation: Invocation) -> None:
    """End the hold of an invocation of which it is known now whether it is taken in: it runs, or it was answered."""
    invocation.hold = None
    callbacks, invocation.on_recalled = invocation.on_recalled, []
    for callback in callbacks:
        callback()
    invocation.lane.partition.host.ready(invocation.lane)


def as_set(boundary: Boundary[Any], packed: bytes) -> bytes:
    """Return an argument without the fields that its caller did not set."""
    return boundary.dump_unset(boundary.load(packed))


def is_same(first_fingerprint: bytes, first_raw: bytes, claim: IdempotencyClaim) -> bool:
    """Return whether two calls ask for the same; byte-equal arguments always do."""
    return first_fingerprint == claim.fingerprint or first_raw == claim.raw_digest


def as_call_error(error: Exception) -> CallError:
    """Return an error that a caller may get."""
    if isinstance(error, CallError):
        return error
    return CallError(error.message if isinstance(error, KeylaneError) else str(error))


def _told(
    partition: Partition, invocation: Invocation, outcome: Replayed, now_ms: int, error: BaseException | None
) -> None:
    del now_ms
    match error:
        case None:
            partition.ended(invocation, outcome)
        case Fenced() | OwnershipLost():
            partition.ended(invocation, OwnershipLost(str(partition.space)))
        case StoreFull():
            turn_away(partition, invocation, error)
        case _:
            partition.ended(invocation, InternalError(f"the store refused the answer: {error}"))
