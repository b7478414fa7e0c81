"""Takes signals and completions in: those for one target one after the other, in the order in which they came."""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from ..journal import operations
from ..journal.batch import Commit
from ..journal.codec import Undecodable
from ..journal.errors import CallError, InternalError, KeylaneError, StoreUnavailable
from ..journal.inbox import comparable
from ..journal.key import Key
from ..journal.lane_reading import OpenInvocation, ask, read_invocations
from ..journal.mail import Mail
from ..journal.outcomes import Succeeded, decode_outcome
from ..journal.records import Accepted
from ..journal.requests import RequestKind
from ..journal.signals import SignalOrder
from ..journal.standing import TERMINAL, IllegalTransition, Status
from ..journal.transitions import replay
from ..objects.verdicts import Expired, UnknownTarget
from .at_hand import behind_all, is_ready
from .bounds import check_name
from .endings import accept_in_order
from .invocation import Hold
from .partition import Phase
from .signal_delivery import Delivery, SignalDelivery, late_verdict, refusal, tell
from .signal_orders import check_packed

if TYPE_CHECKING:
    from ..journal.requests import Request
    from ..journal.store import Store
    from .errands import Errands
    from .lane import Lane
    from .partition import Partition
    from .signal_boxes import SignalBoxes

logger = logging.getLogger("keylane.intake")

LOOK_AGAIN_SECONDS: Final = 0.2

#: A partition, and the raw id of an invocation or the key of an object in it.
_Target: TypeAlias = "tuple[Partition, bytes | str]"


class SignalIntake:
    """The messages that came for those who wait, on one worker.

    Args:
        store: The open store.
        errands: Runs what takes more than one look.
        boxes: Reads the early signals of objects.
        delivery: Delivers to what is in memory.
    """

    def __init__(self, store: Store, errands: Errands, boxes: SignalBoxes, delivery: SignalDelivery) -> None:
        self._store = store
        self._errands = errands
        self._boxes = boxes
        self._delivery = delivery
        self._queues: dict[_Target, deque[Delivery]] = {}
        self._sought: set[_Target] = set()
        #: Those that were not found, and are looked for once more.
        self._missed: set[_Target] = set()

    def take(self, partition: Partition, entry: bytes, request: Request) -> None:
        """Take a request in; its target may be in memory or not.

        Raises:
            CallError: It is refused at once.
        """
        try:
            order = SignalOrder.decode(request.payload or b"")
            outcome = decode_outcome(order.value)
        except Undecodable:
            writes = [operations.keep_undecodable(request.encode()), operations.settle_entry(entry)]
            partition.writer.commit(Commit(writes))
            return
        if isinstance(outcome, Succeeded):
            check_packed(outcome.result, partition.payload_limit_bytes)
        check_name("signal", order.name)
        check_name("by", order.by)
        target: bytes | str | None = order.invocation
        if request.kind is RequestKind.OBJECT_SIGNAL:
            target = str(Key.parse(request.key))
        if not target:
            raise CallError("this message names nobody whom it is for")
        delivery = Delivery(partition, entry, request, order, self._done, self._again)
        partition.serving.add(request.invocation)
        self._queues.setdefault((partition, target), deque()).append(delivery)
        self._pump(partition, target)

    def _done(self, delivery: Delivery) -> None:
        partition, message = delivery.partition, delivery.message
        partition.serving.discard(message)
        partition.remember(message)
        raw_id = delivery.order.invocation
        if raw_id in partition.early_signals and not partition.is_finding:
            # Whoever lets it begin from here on reads this one with its records.
            left = [each for each in partition.early_signals.pop(raw_id) if each.message != message]
            if left:
                partition.early_signals[raw_id] = left

    def _again(self, delivery: Delivery) -> None:
        """Deliver something once more, ahead of what came after it."""
        partition, target = delivery.partition, _target_of(delivery)
        if partition.phase is Phase.LOST:
            return
        if partition.memory.is_full:
            # Who it is for may have been turned away, and is taken in again before it then.
            partition.serving.discard(delivery.message)
            partition.inbox.put_back(delivery.entry)
            return
        queue = self._queues.setdefault((partition, target), deque())
        later = [each for each in queue if _place(each) > _place(delivery)]
        for _ in later:
            queue.pop()
        queue.extend((delivery, *later))
        self._pump(partition, target)

    def _pump(self, partition: Partition, target: bytes | str) -> None:
        """Deliver what waits for a target, as far as that is possible now."""
        queue = self._queues.get((partition, target))
        while queue and partition.phase is not Phase.LOST:
            delivery = queue[0]
            try:
                is_decided = self._deliver(delivery, target)
            except KeylaneError as error:
                is_decided = self._refuse(delivery, error)
            except Exception:
                logger.exception("%s: a signal can't be taken in", partition.invocation_id(delivery.message))
                is_decided = self._refuse(delivery, InternalError("the runtime failed on this signal; see its log"))
            if not is_decided:
                return
            queue.popleft()
        self._queues.pop((partition, target), None)
        self._missed.discard((partition, target))

    @staticmethod
    def _refuse(delivery: Delivery, error: KeylaneError) -> bool:
        delivery.partition.writer.commit(Commit(refusal(delivery, error), delivery.settled))
        return True

    def _deliver(self, delivery: Delivery, target: bytes | str) -> bool:
        """Deliver one message; returns whether it is decided, else this is called again when it can be.

        Raises:
            KeylaneError: It is refused.
        """
        partition = delivery.partition
        again = partial(self._pump, partition, target)
        if isinstance(target, str):
            lane = partition.lane(target)
            if not is_ready(lane, again) or not self._has_box(lane, target):
                return False
            assert lane.box is not None
            self._delivery.to_object(lane, lane.box, delivery)
            return True
        invocation = partition.open.get(target)
        if invocation is None:
            self._seek(partition, target)
            return False
        if invocation.hold is Hold.RECALLING:
            # What is known of its idempotency key decides whether there is such an invocation at all.
            invocation.on_recalled.append(again)
            return False
        if not is_ready(invocation.lane, again):
            return False
        if not invocation.accepted and not invocation.ended:
            accept_in_order(invocation.lane, invocation)
        self._delivery.to_invocation(invocation, delivery)
        return True

    def _has_box(self, lane: Lane, target: str) -> bool:
        if lane.box is not None:
            return True
        self._boxes.read(lane, partial(self._has_read_box, lane.partition, target))
        return False

    def _has_read_box(self, partition: Partition, target: str, error: KeylaneError | None) -> None:
        if error is None:
            self._pump(partition, target)
            return
        for delivery in self._queues.pop((partition, target), ()):
            self._refuse(delivery, error)

    def _seek(self, partition: Partition, raw_id: bytes) -> None:
        """Find an invocation that is not in memory, by its records."""
        if (partition, raw_id) not in self._sought:
            self._sought.add((partition, raw_id))
            self._errands.add(partial(self._look, partition, raw_id))

    async def _look(self, partition: Partition, raw_id: bytes) -> None:
        space = partition.space
        try:
            (found,) = await read_invocations(self._store, space, [raw_id])
            result = space.result(raw_id)
            (has_result,) = await ask(self._store, [("EXISTS", result)], [result])
        except StoreUnavailable:
            self._sought.discard((partition, raw_id))
            self._errands.add_later(LOOK_AGAIN_SECONDS, partial(self._look_again, partition, raw_id))
            return
        except KeylaneError as error:
            self._sought.discard((partition, raw_id))
            for delivery in self._queues.pop((partition, raw_id), ()):
                self._refuse(delivery, error)
            return
        self._sought.discard((partition, raw_id))
        if partition.phase is Phase.LOST or raw_id in partition.open:
            self._pump(partition, raw_id)
        else:
            self._take_found(partition, found, has_result=bool(has_result))

    async def _look_again(self, partition: Partition, raw_id: bytes) -> None:
        self._pump(partition, raw_id)

    def _take_found(self, partition: Partition, found: OpenInvocation, *, has_result: bool) -> None:
        raw_id = found.raw_id
        accepted = found.records[0] if found.records else None
        status = _status_of(found)
        is_unknown = not found.records and found.undecodable is None and not has_result
        if is_unknown and (partition, raw_id) not in self._missed:
            self._missed.add((partition, raw_id))
            behind_all(partition, partial(self._pump, partition, raw_id))
            return
        self._missed.discard((partition, raw_id))
        if not isinstance(accepted, Accepted) and found.undecodable is None:
            for delivery in self._queues.pop((partition, raw_id), ()):
                tell(delivery, Expired(None) if has_result else UnknownTarget())
        elif status in TERMINAL:
            for delivery in self._queues.pop((partition, raw_id), ()):
                tell(delivery, late_verdict(found.mail, delivery.order, delivery.message, found.last_ms))
        elif not isinstance(accepted, Accepted):
            for delivery in self._queues.pop((partition, raw_id), ()):
                self._refuse(delivery, CallError("its records can't be read by this code"))
        elif status is Status.SCHEDULED:
            self._take_scheduled(partition, found)
        else:
            self._bring_in(partition, raw_id, accepted.key)

    def _bring_in(self, partition: Partition, raw_id: bytes, key_text: str) -> None:
        """Bring an open invocation into memory, with its lane or from beside it."""
        lane = partition.lane(key_text)
        if raw_id in partition.open:
            self._pump(partition, raw_id)
        elif is_ready(lane, partial(self._pump, partition, raw_id)):
            partition.host.find_parked(lane, raw_id, partial(self._found_parked, partition, raw_id))

    def _found_parked(self, partition: Partition, raw_id: bytes) -> None:
        if raw_id in partition.open:
            self._pump(partition, raw_id)
        else:
            # Its end came meanwhile; or its lane does not name it, which a repair puts right.
            partition.recall_again.append(partial(self._pump, partition, raw_id))

    def _take_scheduled(self, partition: Partition, found: OpenInvocation) -> None:
        """Keep signals with the records of what is to begin later, which is in no lane yet."""
        raw_id, mail = found.raw_id, found.mail
        for delivery in self._queues.pop((partition, raw_id), ()):
            try:
                fact = self._delivery.to_scheduled(partition, raw_id, mail, delivery)
            except KeylaneError as error:
                self._refuse(delivery, error)
                continue
            if fact is not None:
                # Whoever lets it begin may have read its records before this one is there.
                partition.early_signals.setdefault(raw_id, []).append(fact)
                mail = Mail() if mail is None else mail
                mail.note(fact, partition.now_ms())


def _target_of(delivery: Delivery) -> bytes | str:
    return delivery.order.invocation or str(Key.parse(delivery.request.key))


def _place(delivery: Delivery) -> tuple[int, int]:
    return comparable(delivery.entry)


def _status_of(found: OpenInvocation) -> Status | None:
    try:
        return replay(found.records).status if found.records else None
    except IllegalTransition:
        return None
