"""Takes in what people do about effects whose outcome nobody knows, and answers each of them once, durably.

What the receiver's contract forbids is refused, with the reason and what is allowed. Each act is one commit: the
effect, its ledger, the end of the wait of its handler, and the answer to whoever has asked. So an act whose answer was
lost is answered again, and not done again, when the same request comes a second time.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from ..journal import operations
from ..journal.batch import Commit
from ..journal.codec import Undecodable, pack
from ..journal.effect_orders import ReconcileAct, ReconcileOrder
from ..journal.effects import EffectEntry
from ..journal.errors import (
    EffectRejected,
    InternalError,
    InvalidInput,
    InvalidOutput,
    KeylaneError,
    PayloadTooLarge,
    StoreUnavailable,
)
from ..journal.history import read_result
from ..journal.key import Key
from ..journal.ledger import EventKind, Happened, LedgerEvent
from ..journal.noted import moment
from ..journal.outcomes import Rejected, Succeeded, encode_outcome
from ..objects.receiver_checks import SPAN_MAX
from ..objects.reconcile_verdicts import AlreadySettled, NotAllowed, Reconciled, ReconcileVerdict, plain_of_reconciling
from ..objects.reconciliation import acts_of
from ..objects.verdicts import UnknownTarget
from .at_hand import written
from .bounds import check_decision, check_name
from .effect_facts import VALUE_LIMIT_BYTES, contract, effect_of, owner_of, with_lost_attempts
from .failures import failure_of, refused
from .partition import Phase
from .replies import answered

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from ..journal.requests import Request
    from ..journal.store import Store
    from .at_hand import AtHand
    from .errands import Errands
    from .lane import Lane
    from .partition import Partition
    from .settling_by_hand import SettlingByHand

logger = logging.getLogger("keylane.intake")

#: How soon an effect is looked at again with which something is under way, or after the store was away.
AGAIN_SECONDS: Final = 0.05
STORE_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """One request that is being dealt with.

    Args:
        partition: Where it came in.
        entry: Its entry of the inbox.
        request: The request.
        order: Its payload.
        key_text: The object that it is about.
    """

    partition: Partition
    entry: bytes
    request: Request
    order: ReconcileOrder
    key_text: str

    @property
    def raw_id(self) -> bytes:
        return self.request.invocation


class Reconciling:
    """What people do about the effects of one worker's objects.

    Args:
        store: The open store.
        errands: Runs what takes more than one look.
        at_hand: Brings objects into memory.
        by_hand: Does what is allowed.
    """

    def __init__(self, store: Store, errands: Errands, at_hand: AtHand, by_hand: SettlingByHand) -> None:
        self._store = store
        self._errands = errands
        self._at_hand = at_hand
        self._by_hand = by_hand

    def take(self, partition: Partition, entry: bytes, request: Request) -> None:
        """Take a request in; its object may be in memory or not.

        Raises:
            InvalidKey: It names no object.
            PayloadTooLarge: A name or the reason is too long.
            InvalidInput: Nobody says who does it, or why.
        """
        try:
            order = ReconcileOrder.decode(request.payload or b"")
        except Undecodable:
            writes = [operations.keep_undecodable(request.encode()), operations.settle_entry(entry)]
            partition.writer.commit(Commit(writes))
            return
        check_order(order)
        asked = _Asked(partition, entry, request, order, str(Key.parse(request.key)))
        partition.serving.add(asked.raw_id)
        # A look-up may take long; others must not wait behind it.
        self._errands.begin(partial(self._serve, asked))

    async def _serve(self, asked: _Asked) -> None:
        partition = asked.partition
        try:
            if await self._was_answered(asked):
                await self._write(asked, [operations.settle_entry(asked.entry)])
            else:
                await self._settle(asked)
        except KeylaneError as error:
            await self._refuse(asked, error)
        except Exception:
            logger.exception("%s: an act by hand can't be taken in", partition.invocation_id(asked.raw_id))
            await self._refuse(asked, InternalError("the runtime failed on this request; see its log"))
        finally:
            partition.serving.discard(asked.raw_id)
            partition.remember(asked.raw_id)

    async def _was_answered(self, asked: _Asked) -> bool:
        """Return whether this very request was answered before, by this owner or another."""
        while asked.partition.phase is not Phase.LOST:
            try:
                return await read_result(self._store, asked.partition.space, asked.raw_id) is not None
            except StoreUnavailable:
                await anyio.sleep(STORE_SECONDS)
        return False

    async def _settle(self, asked: _Asked) -> None:
        """Do what is asked for, or say why not; over and over while something else is under way."""
        partition, operation = asked.partition, asked.order.operation
        while (found := await self._at_hand.bring(partition, asked.key_text)) is not None:
            lane, docket = found
            entry = docket.effects.get(operation)
            verdict = UnknownTarget() if entry is None else why_not(partition, entry, asked.order.act)
            if entry is None or verdict is not None:
                is_done = await self._say(lane, asked, verdict or UnknownTarget(), entry)
            elif self._by_hand.is_under_way(lane, operation):
                is_done = False
            else:
                is_done = await self._act(lane, entry, asked) is not None
            if is_done:
                return
            await anyio.sleep(AGAIN_SECONDS)

    async def _act(self, lane: Lane, entry: EffectEntry, asked: _Asked) -> EffectEntry | None:
        """Do what is asked for; returns where the effect stands then, None where it has to be looked at again.

        Raises:
            InvalidInput: The receipt is none of this effect.
        """
        order, by_hand = asked.order, self._by_hand
        by, detail, more = order.by, order.reason, partial(_done, asked)
        match order.act:
            case ReconcileAct.LOOK_UP:
                return await by_hand.look_up_now(lane, entry, by=by, detail=detail, more=more)
            case ReconcileAct.RESEND:
                return await by_hand.resend_now(lane, entry, by=by, detail=detail, more=more)
            case ReconcileAct.HAND_OVER:
                within_ms = order.within_ms
                return await by_hand.hand_over(
                    lane, entry, order.whom, by=by, detail=detail, within_ms=within_ms, more=more
                )  # fmt: skip
            case ReconcileAct.SUCCEEDED:
                outcome = Succeeded(receipt_of(lane.partition, entry, order.receipt))
                kind = EventKind.MARKED_SUCCEEDED
                return await by_hand.settle(lane, entry, outcome, kind, by=by, detail=detail, more=more)
            case ReconcileAct.NOT_DONE:
                rejected = Rejected(failure_of(EffectRejected(order.operation, detail, by)))
                kind = EventKind.MARKED_NOT_DONE
                return await by_hand.settle(lane, entry, rejected, kind, by=by, detail=detail, more=more)

    async def _say(self, lane: Lane, asked: _Asked, verdict: ReconcileVerdict, entry: EffectEntry | None) -> bool:
        """Say that nothing was done; that somebody has tried is in the ledger."""
        writes, order, partition = _answer(asked, verdict), asked.order, lane.partition
        if entry is not None and isinstance(verdict, NotAllowed):
            event = Happened(partition.now_ms(), EventKind.REFUSED, 0, f"{order.act.value}: {verdict.why}", order.by)
            owner = entry.assigned or owner_of(partition, entry)
            told = LedgerEvent(asked.key_text, entry.operation, entry.receiver, entry.effect, owner, event)
            writes.append(operations.note_in_ledger(partition.space, told))
        lane.commit(writes)
        return await written(lane)

    async def _refuse(self, asked: _Asked, error: KeylaneError) -> None:
        await self._write(asked, _outcome(asked, encode_outcome(refused(error))))

    async def _write(self, asked: _Asked, writes: list[Operation]) -> None:
        partition = asked.partition
        if partition.phase is not Phase.LOST:
            partition.writer.commit(Commit(writes))


def why_not(partition: Partition, entry: EffectEntry, act: ReconcileAct) -> ReconcileVerdict | None:
    """Return why something may not be done about an effect, None where it may."""
    if entry.is_settled:
        return AlreadySettled(entry.state.value, entry.by, moment(entry.since_ms))
    effect = effect_of(partition, entry)
    known = None if effect is None else contract(partition, effect)
    allowed, forbidden = acts_of(with_lost_attempts(partition, entry), known, partition.now_ms())
    why = forbidden.get(act.value)
    return None if why is None else NotAllowed(why, allowed)


def receipt_of(partition: Partition, entry: EffectEntry, packed: bytes | None) -> bytes:
    """Return a receipt as its handler gets it.

    Raises:
        InvalidInput: It is none of this effect.
        PayloadTooLarge: It is larger than what lies with an object.
    """
    effect = effect_of(partition, entry)
    if effect is None or packed is None:
        raise InvalidInput("receipt", "say with what receipt it was done")
    try:
        receipt = effect.receipt.dump(effect.receipt.load(packed))
    except (InvalidOutput, InvalidInput) as error:
        raise InvalidInput(error.path, error.reason) from error
    if len(receipt) > VALUE_LIMIT_BYTES:
        raise PayloadTooLarge("the receipt", len(receipt), VALUE_LIMIT_BYTES, remedy="keep what is large elsewhere")
    return receipt


def check_order(order: ReconcileOrder) -> None:
    """Refuse an order that does not say enough, or says more than fits.

    Raises:
        InvalidInput: Nobody says who does it, why, to whom it is handed over, or within what time there is.
        PayloadTooLarge: A name has more than 256 bytes, or the reason more than 4 KiB.
    """
    check_decision(order.by, order.reason)
    check_name("whom", order.whom)
    if order.act is ReconcileAct.HAND_OVER and not order.whom.strip():
        raise InvalidInput("to", "say to whom it is handed over")
    if order.within_ms is not None and not 0 < order.within_ms <= SPAN_MAX / timedelta(milliseconds=1):
        # A deadline that no calendar has could not be read, and nothing else of the queue with it.
        raise InvalidInput("within", f"it has to lie ahead, and to be at most {SPAN_MAX.days:,} days")


def _done(asked: _Asked) -> list[Operation]:
    # Where the effect stands is read by whoever has asked: a look-up knows it only with its answer.
    return _answer(asked, Reconciled("", moment(asked.partition.now_ms())))


def _answer(asked: _Asked, verdict: ReconcileVerdict) -> list[Operation]:
    plain = [plain_of_reconciling(verdict), asked.order.digest]
    return _outcome(asked, encode_outcome(Succeeded(pack(plain))))


def _outcome(asked: _Asked, outcome: bytes) -> list[Operation]:
    return answered(asked.partition, asked.raw_id, asked.entry, asked.request.client, outcome)
