"""Decides what becomes of a signal or a completion, and writes it in the commit that says so to its sender."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from ..journal import operations
from ..journal.batch import Commit, Operation
from ..journal.blobs import is_reference
from ..journal.codec import pack
from ..journal.command_records import WaitCompleted, WaitStarted, WaitWithdrawn
from ..journal.errors import CallError, Fenced, KeylaneError, Overloaded
from ..journal.outcomes import Succeeded, decode_outcome, encode_outcome
from ..journal.records import SignalReceived
from ..journal.signals import SIGNALS_MAX, EarlySignal, SignalOrder
from ..objects.verdicts import Accepted, AlreadyCompleted, Expired, NotPermitted, UnknownTarget, WaitVerdict, plain_of
from .bounds import has_too_many_records
from .endings import record
from .failures import refused
from .large_values import kept, note, weigh
from .partition import OwnershipLost
from .replies import answered

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..journal.mail import Mail
    from ..journal.place import Place
    from ..journal.records import Record
    from ..journal.requests import Request
    from ..journal.standing import Standing
    from ..objects.virtual_object import VirtualObject
    from .invocation import Invocation
    from .lane import Lane
    from .partition import Partition
    from .signal_box import SignalBox
    from .waits import Waits

#: What a sender is told to wait where as many signals wait as may.
FULL_RETRY_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """One message of the inbox, and what it asks for.

    Args:
        partition: Where it came in.
        entry: Its entry of the inbox.
        request: The request.
        order: Its payload.
        done: Told once it is durable what became of it.
        again: Delivers it once more, where the store has refused the commit.
    """

    partition: Partition
    entry: bytes
    request: Request
    order: SignalOrder
    done: Callable[[Delivery], None]
    again: Callable[[Delivery], None]

    @property
    def message(self) -> bytes:
        """The id by which a second copy is known."""
        return self.request.invocation

    @property
    def is_inside(self) -> bool:
        """Whether another handler sends it."""
        return self.request.caller is not None

    def settled(self, now_ms: int, error: BaseException | None) -> None:
        """Take note of how the commit that delivers it has ended."""
        del now_ms
        if error is None:
            self.done(self)
        elif not isinstance(error, Fenced | OwnershipLost):
            self.partition.recall_again.append(partial(self.again, self))


def said(delivery: Delivery, verdict: WaitVerdict) -> list[Operation]:
    """Return what tells the sender a verdict, and takes the message out of the inbox."""
    plain = plain_of(verdict)
    if isinstance(verdict, Accepted):
        plain += [delivery.order.nonce, delivery.order.digest]
    return _answered(delivery, encode_outcome(Succeeded(pack(plain))))


def refusal(delivery: Delivery, error: KeylaneError) -> list[Operation]:
    """Return what tells the sender that nothing was taken in, and takes the message out of the inbox."""
    return _answered(delivery, encode_outcome(refused(error)))


def _answered(delivery: Delivery, outcome: bytes) -> list[Operation]:
    request = delivery.request
    return answered(
        delivery.partition, request.invocation, delivery.entry, request.client, outcome, caller=request.caller
    )


def moment(at_ms: int) -> datetime:
    """Return a partition's time as a sender is told it."""
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC)


def late_verdict(mail: Mail | None, order: SignalOrder, message: bytes, ended_ms: int) -> WaitVerdict:
    """Return the verdict on a message for an invocation that has ended.

    Args:
        mail: What had come for it.
        order: What is asked for.
        message: The id of the message.
        ended_ms: When it ended.
    """
    if mail is not None and mail.has(message):
        return Accepted(replayed=True, at=moment(ended_ms))
    if order.awakeable is None:
        return Expired(moment(ended_ms))
    awakeable = None if mail is None else mail.awakeables.get(order.awakeable)
    if awakeable is None:
        return UnknownTarget()
    if awakeable.completed is not None:
        return AlreadyCompleted(awakeable.completed.by, moment(awakeable.completed_ms))
    return Expired(moment(ended_ms if awakeable.expired_ms is None else awakeable.expired_ms))


class SignalDelivery:
    """Delivers to what is in memory, for one worker.

    Args:
        waits: Ends waits.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def to_invocation(self, invocation: Invocation, delivery: Delivery) -> None:
        """Deliver to an invocation; what is decided goes into a commit of its lane.

        Raises:
            KeylaneError: It is refused, and nothing is written.
        """
        order, lane = delivery.order, invocation.lane
        verdict = self._refusal(invocation, delivery)
        if verdict is not None:
            lane.commit(said(delivery, verdict), None, delivery.settled)
            return
        standing = invocation.standing
        if standing is None:
            raise CallError("its records can't be read by this code", invocation_id=_name(invocation))
        wait = _wait_for(standing, order.name, order.awakeable)
        if wait is not None:
            self._complete(invocation, wait, delivery, of_object=False)
        else:
            self._receive(invocation, delivery)

    def _refusal(self, invocation: Invocation, delivery: Delivery) -> WaitVerdict | None:
        """Return the verdict on what is not taken in, None for what is."""
        order, partition = delivery.order, delivery.partition
        mail = invocation.mail
        handler = cast("object", invocation.handler)
        if order.awakeable is None and not delivery.is_inside and handler is not None and invocation.handler.is_private:
            return NotPermitted(f"{invocation.handler} is private: only other handlers may signal its invocations")
        if mail is not None and mail.has(delivery.message):
            return Accepted(replayed=True, at=moment(partition.now_ms()))
        if invocation.ended:
            return late_verdict(mail, order, delivery.message, partition.now_ms())
        if order.awakeable is None:
            return None
        awakeable = None if mail is None else mail.awakeables.get(order.awakeable)
        if awakeable is not None and awakeable.completed is None and awakeable.expired_ms is None:
            return None
        return late_verdict(mail, order, delivery.message, partition.now_ms())

    def _complete(self, invocation: Invocation, wait: WaitStarted, delivery: Delivery, *, of_object: bool) -> None:
        """Give a message to the wait that it is for."""
        stored = stored_value(invocation.lane, delivery.order.value)
        note_value(invocation, stored)
        fact = WaitCompleted(wait.index, delivery.message, stored, delivery.order.by, of_object=of_object)
        done, again = partial(delivery.done, delivery), partial(delivery.again, delivery)
        self._waits.complete(invocation, fact, _accepted(delivery), done, again)
        if wait.awakeable is not None:
            self._complete_others(invocation, wait.awakeable, fact)

    def _complete_others(self, invocation: Invocation, awakeable: Place, first: WaitCompleted) -> None:
        """Give what has completed an awakeable to the other branches that wait for it; a crash leaves that to a replay.

        A signal is taken by one wait, but an awakeable is completed for all who hold it.
        """
        standing = invocation.standing
        while standing is not None and (wait := _wait_for(standing, "", awakeable)) is not None:
            fact = WaitCompleted(wait.index, first.message, first.value, first.by)
            self._waits.complete(invocation, fact, [], _nothing, _nothing)
            standing = invocation.standing

    def _receive(self, invocation: Invocation, delivery: Delivery) -> None:
        """Keep a message with the records of its invocation until it is waited for.

        Raises:
            Overloaded: There are as many as may be.
        """
        order, lane = delivery.order, invocation.lane
        _check_room(invocation.mail)
        if has_too_many_records(invocation, delivery.partition.settings.records_per_invocation):
            raise Overloaded(FULL_RETRY_SECONDS, "this invocation has as many records as it may")
        stored = stored_value(lane, order.value)
        note_value(invocation, stored)
        fact = SignalReceived(order.name, order.awakeable, delivery.message, stored, order.by)
        record(invocation, fact)
        writes = [operations.record(lane.partition.space, invocation.raw_id, fact), *_accepted(delivery)]
        lane.commit(writes, None, delivery.settled, about=invocation.raw_id)

    def to_object(self, lane: Lane, box: SignalBox, delivery: Delivery) -> None:
        """Give a signal to the invocation of an object that has waited longest for it, or keep it for the next one.

        Raises:
            KeylaneError: It is refused, and nothing is written.
        """
        partition, order = lane.partition, delivery.order
        expired = box.expire(partition.now_ms())
        if expired:
            lane.commit(expired)
        if not delivery.is_inside and _is_private(partition.virtual_object):
            why = f"all handlers of {partition.virtual_object.name} are private: only other handlers may signal it"
            lane.commit(said(delivery, NotPermitted(why)), None, delivery.settled)
            return
        if box.has(delivery.message) or any(_has(each, delivery.message) for each in (*lane.queue, *lane.aside)):
            known = Accepted(replayed=True, at=moment(partition.now_ms()))
            lane.commit(said(delivery, known), None, delivery.settled)
            return
        longest = _longest_waiting(lane, order.name)
        if longest is not None:
            self._complete(*longest, delivery, of_object=True)
            return
        if len(box) >= SIGNALS_MAX:
            raise Overloaded(FULL_RETRY_SECONDS, f"{len(box):,} signals wait for this object")
        stored = stored_value(lane, order.value)
        early = EarlySignal(delivery.message, order.name, stored, order.by, partition.now_ms())
        lane.commit([*box.keep(early), *_accepted(delivery)], None, delivery.settled)

    def give_back(self, lane: Lane, invocation: Invocation, place: Place) -> None:
        """Give back what a wait got that nobody waits for any more: the next wait of its name gets it.

        Which wait was given up is told again by each replay, also by one after a crash before this was durable.
        """
        mail, box = invocation.mail, lane.box
        taken = None if mail is None else mail.taken(place)
        if mail is None or taken is None:
            return
        facts: list[Record] = [WaitWithdrawn(place)]
        writes: list[Operation] = []
        signal = taken.signal
        if taken.of_object and box is not None:
            early = EarlySignal(signal.message, signal.name, signal.value, signal.by, lane.partition.now_ms())
            writes = box.put_back(early)
        elif taken.of_object:
            facts.append(signal)
        for fact in facts:
            record(invocation, fact)
            writes.append(operations.record(lane.partition.space, invocation.raw_id, fact))
        lane.commit(writes, None, partial(_given_back, invocation, facts[0]))
        self._hand_on(lane, invocation, signal.name)

    def _hand_on(self, lane: Lane, invocation: Invocation, name: str) -> None:
        """Give a signal that was given back to whoever waits for it already."""
        own = None if invocation.standing is None else _wait_for(invocation.standing, name)
        signal = None if invocation.mail is None else invocation.mail.first(name)
        if own is not None and signal is not None:
            fact = WaitCompleted(own.index, signal.message, signal.value, signal.by)
            self._waits.complete(invocation, fact, [], _nothing, _nothing)
            return
        longest, kept_one = _longest_waiting(lane, name), None if lane.box is None else lane.box.first(name)
        if longest is None or kept_one is None or lane.box is None:
            return
        number, early = kept_one
        waiting, wait = longest
        note_value(waiting, early.value)
        fact = WaitCompleted(wait.index, early.message, early.value, early.by, of_object=True)
        self._waits.complete(waiting, fact, [lane.box.take(number)], _nothing, _nothing)

    @staticmethod
    def to_scheduled(
        partition: Partition, raw_id: bytes, mail: Mail | None, delivery: Delivery
    ) -> SignalReceived | None:
        """Keep a signal with the records of an invocation that is to begin later.

        Returns:
            The record, None where the sender is told otherwise.

        Raises:
            Overloaded: There are as many as may be.
        """
        order = delivery.order
        if mail is not None and mail.has(delivery.message):
            tell(delivery, Accepted(replayed=True, at=moment(partition.now_ms())))
            return None
        if order.awakeable is not None:
            tell(delivery, UnknownTarget())
            return None
        _check_room(mail)
        fact = SignalReceived(order.name, None, delivery.message, order.value, order.by)
        writes = [operations.record(partition.space, raw_id, fact), *_accepted(delivery)]
        partition.writer.commit(Commit(writes, delivery.settled, weight=len(order.value)))
        return fact


def tell(delivery: Delivery, verdict: WaitVerdict) -> None:
    """Say a verdict that depends on nothing that is on its way to the store."""
    delivery.partition.writer.commit(Commit(said(delivery, verdict), delivery.settled))


def _accepted(delivery: Delivery) -> list[Operation]:
    return said(delivery, Accepted(replayed=False, at=moment(delivery.partition.now_ms())))


def _name(invocation: Invocation) -> str:
    return invocation.lane.partition.invocation_id(invocation.raw_id)


def _has(invocation: Invocation, message: bytes) -> bool:
    return invocation.mail is not None and invocation.mail.has(message)


def _is_private(virtual_object: VirtualObject) -> bool:
    """Return whether nobody outside may ask anything of a type that takes the lane."""
    exclusive = [each for each in virtual_object.handlers.values() if each.kind == "exclusive"]
    return bool(exclusive) and all(each.is_private for each in exclusive)


def _wait_for(standing: Standing, name: str, awakeable: Place | None = None) -> WaitStarted | None:
    """Return the first open wait that a message ends."""
    for wait in standing.waits:
        if isinstance(wait, WaitStarted) and (wait.name, wait.awakeable) == (name, awakeable):
            return wait
    return None


def _longest_waiting(lane: Lane, name: str) -> tuple[Invocation, WaitStarted] | None:
    """Return the invocation of an object that has waited longest for a signal, with its wait."""
    found: tuple[int, Invocation, WaitStarted] | None = None
    for invocation in (*lane.queue, *lane.aside):
        mail, standing = invocation.mail, invocation.standing
        if mail is None or standing is None or invocation.ended:
            continue
        wait = _wait_for(standing, name)
        since_ms = 0 if wait is None else mail.waiting_since_ms(wait.index)
        if wait is not None and (found is None or since_ms < found[0]):
            found = since_ms, invocation, wait
    return None if found is None else found[1:]


def _check_room(mail: Mail | None) -> None:
    """Refuse a signal too many.

    Raises:
        Overloaded: It is one.
    """
    if mail is not None and len(mail.early) >= SIGNALS_MAX:
        raise Overloaded(FULL_RETRY_SECONDS, f"{len(mail.early):,} signals wait for this invocation")


def _given_back(invocation: Invocation, fact: Record, now_ms: int, error: BaseException | None) -> None:
    del now_ms
    if error is None:
        invocation.records.append(fact)


def _nothing() -> None:
    pass


def stored_value(lane: Lane, value: bytes) -> bytes:
    """Return the outcome that a message brings as it is written: with a reference in place of a large value."""
    outcome = decode_outcome(value)
    if not isinstance(outcome, Succeeded):
        weigh(lane, value)
        return value
    stored = kept(lane, outcome.result)
    return value if stored is outcome.result else encode_outcome(Succeeded(stored, lane.key_text))


def note_value(invocation: Invocation, stored: bytes) -> None:
    """Protect the large value of a message for as long as the invocation is open that has it."""
    outcome = decode_outcome(stored)
    if isinstance(outcome, Succeeded) and is_reference(outcome.result):
        note(invocation, outcome.result)
