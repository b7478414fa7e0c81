"""Takes decisions on proposals in, those for one object one after the other, and lets proposals expire.

Who may decide is asked of the user's own function, which may take its time: decisions for other objects, and all other
requests, do not wait for that. What is decided is written in the commit that says so to whoever asked.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from ..journal import operations
from ..journal.batch import Commit
from ..journal.codec import Undecodable, pack
from ..journal.effect_orders import DecisionOrder
from ..journal.errors import InternalError, KeylaneError
from ..journal.inbox import comparable
from ..journal.key import Key
from ..journal.ledger import EventKind, Happened
from ..journal.outcomes import Succeeded, encode_outcome
from ..journal.proposals import CLOSED, ProposalEntry, ProposalState, proposal_field
from ..objects.decisions import Deciding as Asking
from ..objects.decisions import applied, closed, is_lapsed, refusal, told_overdue
from ..objects.proposing import moment, proposal_of, standing_of
from ..objects.verdicts import (
    AlreadyDecided,
    Decided,
    DecisionVerdict,
    Expired,
    NotPermitted,
    SupersededBy,
    UnknownTarget,
    plain_of_decision,
)
from .at_hand import is_ready
from .authority import Question
from .bounds import check_name, check_reason
from .failures import refused
from .partition import Phase
from .proposal_changes import ledger_event, newest_version, old_item_of, retention_ms, settled, warn_ms
from .replies import answered

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..journal.batch import Operation
    from ..journal.requests import Request
    from .authority import Authority
    from .docket import Docket, Dockets
    from .lane import Lane
    from .partition import Partition
    from .proposal_changes import ProposalChanges

logger = logging.getLogger("keylane.intake")

_Target: TypeAlias = "tuple[Partition, str]"


@dataclass(slots=True, eq=False)
class _Asked:
    """One request that is being dealt with.

    Args:
        partition: Where it came in.
        entry: Its entry of the inbox.
        request: The request.
        order: Its payload.
        key_text: The object that it is about.
        is_asking: Whether the user's function is being asked.
        is_answered: Whether it has answered.
        why_not: Its answer: why whoever decides may not, None if they may.
    """

    partition: Partition
    entry: bytes
    request: Request
    order: DecisionOrder
    key_text: str
    is_asking: bool = False
    is_answered: bool = False
    why_not: str | None = None

    @property
    def field(self) -> str:
        return proposal_field(self.order.action, self.order.version)


class Deciding:
    """The decisions that come for the proposals of one worker's objects.

    Args:
        dockets: Reads the proposals of objects.
        authority: Asks who may decide.
        changes: Writes what becomes of proposals.
    """

    def __init__(self, dockets: Dockets, authority: Authority, changes: ProposalChanges) -> None:
        self._dockets = dockets
        self._authority = authority
        self._changes = changes
        self._queues: dict[_Target, deque[_Asked]] = {}

    def take(self, partition: Partition, entry: bytes, request: Request) -> None:
        """Take a decision in; its object may be in memory or not.

        Raises:
            InvalidKey: It names no object.
            PayloadTooLarge: A name or the reason is too long.
        """
        try:
            order = DecisionOrder.decode(request.payload or b"")
        except Undecodable:
            writes = [operations.keep_undecodable(request.encode()), operations.settle_entry(entry)]
            partition.writer.commit(Commit(writes))
            return
        check_order(order)
        key_text = str(Key.parse(request.key))
        partition.serving.add(request.invocation)
        asked = _Asked(partition, entry, request, order, key_text)
        self._queues.setdefault((partition, key_text), deque()).append(asked)
        self._pump(partition, key_text)

    def _pump(self, partition: Partition, key_text: str) -> None:
        """Decide what waits for an object, as far as that is possible now."""
        target = (partition, key_text)
        queue = self._queues.get(target)
        while queue and partition.phase is not Phase.LOST:
            asked = queue[0]
            try:
                is_decided = self._decide(asked)
            except KeylaneError as error:
                is_decided = self._refuse(asked, error)
            except Exception:
                logger.exception("%s: a decision can't be taken in", partition.invocation_id(asked.request.invocation))
                is_decided = self._refuse(asked, InternalError("the runtime failed on this decision; see its log"))
            if not is_decided:
                return
            queue.popleft()
        self._queues.pop(target, None)

    def _refuse(self, asked: _Asked, error: KeylaneError) -> bool:
        writes = _answer(asked, encode_outcome(refused(error)))
        asked.partition.writer.commit(Commit(writes, partial(_noted, asked)))
        return True

    def _decide(self, asked: _Asked) -> bool:
        """Decide one request; returns whether it is decided, else this is called again when it can be."""
        partition = asked.partition
        lane = partition.lane(asked.key_text)
        if asked.is_asking:
            return False
        docket = self._docket(lane, partial(self._pump, partition, asked.key_text))
        if docket is None:
            return False
        entry = docket.proposals.get(asked.field)
        if entry is None:
            self._say(lane, asked, UnknownTarget())
            return True
        asking = Asking(asked.order, asked.request.invocation, partition.now_ms())
        verdict = refusal(entry, newest_version(docket, entry.action), asking)
        if verdict is None and not asked.is_answered:
            self._ask(lane, asked, asking.approver, entry)
            return asked.is_answered and self._decide(asked)
        if verdict is None and asked.why_not is not None:
            verdict = NotPermitted(asked.why_not)
        if verdict is None:
            self._apply(lane, docket, entry, asked, asking)
        else:
            self._say(lane, asked, verdict, entry)
        return True

    def _docket(self, lane: Lane, again: Callable[[], None]) -> Docket | None:
        """Return the docket of an object that is in memory as the store has it; else something is called then."""
        if not is_ready(lane, again):
            return None
        if lane.docket is None:
            self._dockets.read(lane, partial(self._has_read, lane, again))
            return None
        return lane.docket

    def _has_read(self, lane: Lane, again: Callable[[], None], error: KeylaneError | None) -> None:
        if error is None:
            again()
            return
        logger.error("%s %s: its proposals can't be read: %s", lane.partition.space, lane.key_text, error)
        for asked in self._queues.pop((lane.partition, lane.key_text), ()):
            self._refuse(asked, error)

    def _ask(self, lane: Lane, asked: _Asked, approver: str, entry: ProposalEntry) -> None:
        """Have the user's function asked; the decisions behind this one wait for the answer."""
        space, virtual_object = lane.partition.space, lane.partition.virtual_object
        asked.is_asking = True
        proposal = proposal_of(space.type_name, lane.key_text, entry)
        answered_ = partial(self._is_answered, asked)
        self._authority.ask(Question(virtual_object, lane.key.tenant, approver, proposal, answered_))

    def _is_answered(self, asked: _Asked, why_not: str | None) -> None:
        was_put = asked.is_asking
        asked.is_asking, asked.is_answered, asked.why_not = False, True, why_not
        queue = self._queues.get((asked.partition, asked.key_text))
        if was_put and queue and queue[0] is asked and asked.partition.virtual_object.may_approve is not None:
            self._pump(asked.partition, asked.key_text)

    def _apply(self, lane: Lane, docket: Docket, entry: ProposalEntry, asked: _Asked, asking: Asking) -> None:
        after, event = applied(entry, asking)
        verdict = Decided(standing_of(after), moment(asking.now_ms))
        done, again = partial(_done, asked), partial(self._again, asked)
        self._changes.write(lane, docket, after, event, _said(asked, verdict), done, again)

    def _say(self, lane: Lane, asked: _Asked, verdict: DecisionVerdict, entry: ProposalEntry | None = None) -> None:
        """Say that a decision changes nothing; that somebody has tried is in the ledger."""
        writes = _said(asked, verdict)
        if entry is not None:
            event = Happened(
                lane.partition.now_ms(), EventKind.REFUSED, detail=f"{asked.order.act}: {in_words(verdict)}",
                by=asked.order.by,
            )  # fmt: skip
            writes.append(operations.note_in_ledger(lane.partition.space, ledger_event(lane, entry, event)))
        lane.commit(writes, None, partial(settled, lane.partition, partial(_done, asked), partial(self._again, asked)))

    def _again(self, asked: _Asked) -> None:
        """Decide something once more, ahead of what came after it."""
        partition, key_text = asked.partition, asked.key_text
        if partition.phase is Phase.LOST:
            return
        queue = self._queues.setdefault((partition, key_text), deque())
        earlier = [each for each in queue if _place(each) < _place(asked)]
        later = [each for each in queue if _place(each) > _place(asked)]
        queue.clear()
        queue.extend((*earlier, asked, *later))
        self._pump(partition, key_text)

    def fall_due(self, lane: Lane, name: str) -> None:
        """Do what is due about a proposal; its lane and its docket are in memory as the store has them."""
        docket = lane.docket
        assert docket is not None
        entry, now_ms = docket.proposals.get(name), lane.partition.now_ms()
        if entry is None:
            return
        warned_ms = warn_ms(entry)
        if is_lapsed(entry, now_ms):
            self._expire(lane, docket, entry)
        elif entry.waiters and entry.state is not ProposalState.OPEN:
            lane.commit(self._changes.agenda(lane, entry))
            self._changes.tell(lane, name)
        elif entry.state in CLOSED:
            self._forget(lane, docket, entry, now_ms)
        elif warned_ms is not None and warned_ms <= now_ms:
            self._warn(lane, docket, entry, now_ms)
        else:
            lane.commit(self._changes.agenda(lane, entry))

    def _expire(self, lane: Lane, docket: Docket, entry: ProposalEntry) -> None:
        """Close a proposal whose time has passed."""
        event = Happened(lane.partition.now_ms(), EventKind.EXPIRED)
        expired = closed(entry, ProposalState.EXPIRED, event)
        self._changes.write(lane, docket, expired, event, [], _nothing, _nothing)

    def _warn(self, lane: Lane, docket: Docket, entry: ProposalEntry, now_ms: int) -> None:
        """Tell once, also across a crash, that a proposal is about to expire."""
        what = "nobody has used the approval" if entry.state is ProposalState.APPROVED else "it waits for a decision"
        seconds = max((entry.expires_ms or now_ms) - now_ms, 0) // 1000
        event = Happened(now_ms, EventKind.OVERDUE, detail=f"{what}, and expires in {seconds:,} s")
        told = told_overdue(entry, event)
        alert = operations.raise_alert(lane.partition.space, ledger_event(lane, told, event))
        lane.commit([*self._changes.changed(lane, docket, told, event), alert])

    def _forget(self, lane: Lane, docket: Docket, entry: ProposalEntry, now_ms: int) -> None:
        """Forget a proposal that was closed long enough ago; the newest of its action stays while there is an object.

        Versions go on from it: an operation id that is made of one must not come again.
        """
        keeps_ms = retention_ms(lane.partition)
        item = old_item_of(lane, entry)
        is_newest = entry.version == newest_version(docket, entry.action)
        is_over = all(each.state in CLOSED and each.since_ms + keeps_ms <= now_ms for each in docket.proposals.values())
        has_object = bool(lane.queued or lane.queue or lane.aside or docket.effects) or not is_over
        if entry.since_ms + keeps_ms > now_ms:
            lane.commit(self._changes.agenda(lane, entry))
        elif is_newest and has_object:
            lane.commit([operations.put_on_agenda(lane.partition.space, item, keeps_ms)])
        else:
            forgotten = docket.forget_proposal(entry.action, entry.version)
            lane.commit([forgotten, operations.take_off_agenda(lane.partition.space, item)])


def check_order(order: DecisionOrder) -> None:
    """Refuse a decision that says more than fits.

    Raises:
        PayloadTooLarge: A name has more than 256 bytes, or the reason more than 4 KiB.
    """
    for what, name in (("by", order.by), ("approver", order.whom), ("action", order.action)):
        check_name(what, name)
    check_reason(order.reason)


def in_words(verdict: DecisionVerdict) -> str:
    """Return a verdict in a few words."""
    match verdict:
        case Decided():
            return f"decided, it is {verdict.standing}"
        case AlreadyDecided():
            return f"already decided by {verdict.by}"
        case Expired():
            return "expired"
        case SupersededBy():
            return f"superseded by version {verdict.version}"
        case NotPermitted():
            return f"not permitted: {verdict.why}"
        case UnknownTarget():
            return "nothing is known of it"


def _said(asked: _Asked, verdict: DecisionVerdict) -> list[Operation]:
    """Return what tells whoever asked a verdict, with the digest by which another content of a message id is known."""
    plain = [plain_of_decision(verdict), asked.order.digest]
    return _answer(asked, encode_outcome(Succeeded(pack(plain))))


def _answer(asked: _Asked, outcome: bytes) -> list[Operation]:
    request = asked.request
    return answered(
        asked.partition, request.invocation, asked.entry, request.client, outcome, caller=request.caller
    )  # fmt: skip


def _noted(asked: _Asked, now_ms: int, error: BaseException | None) -> None:
    del now_ms
    if error is None:
        _done(asked)


def _done(asked: _Asked) -> None:
    asked.partition.serving.discard(asked.request.invocation)
    asked.partition.remember(asked.request.invocation)


def _place(asked: _Asked) -> tuple[int, int]:
    return comparable(asked.entry)


def _nothing() -> None:
    pass
