"""Whether a decision on a proposal counts, and what it makes of it: facts in, facts out.

Who may decide at all is asked elsewhere, of the user's own function, before what stands here is applied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ..journal.effect_orders import DecisionAct, DecisionOrder
from ..journal.effects import LIFE_MAX
from ..journal.ledger import EventKind, Happened
from ..journal.proposals import Decision, Delegation, ProposalEntry, ProposalState
from .proposing import moment, standing_of
from .verdicts import AlreadyDecided, Decided, DecisionVerdict, Expired, NotPermitted, SupersededBy

#: How many may have decisions of others in their hands, for one proposal.
DELEGATIONS_MAX: Final = 64
_KINDS: Final = {
    DecisionAct.APPROVE: EventKind.APPROVED,
    DecisionAct.DECLINE: EventKind.DECLINED,
    DecisionAct.REVOKE: EventKind.REVOKED,
    DecisionAct.DELEGATE: EventKind.DELEGATED,
}
_USABLE: Final = frozenset({ProposalState.OPEN, ProposalState.APPROVED})


@dataclass(frozen=True, slots=True)
class Deciding:
    """A decision that somebody asks for.

    Args:
        order: What they ask for.
        message: The id of the message.
        now_ms: The partition's time.
    """

    order: DecisionOrder
    message: bytes
    now_ms: int

    @property
    def approver(self) -> str:
        """Whose decision it is, so who has to be permitted to make it."""
        is_for_another = self.order.whom and self.order.act is not DecisionAct.DELEGATE
        return self.order.whom if is_for_another else self.order.by


def is_lapsed(entry: ProposalEntry, now_ms: int) -> bool:
    """Return whether the time of a proposal has passed that nobody has closed."""
    return entry.state in _USABLE and entry.expires_ms is not None and entry.expires_ms <= now_ms


def refusal(entry: ProposalEntry, newest: int, deciding: Deciding) -> DecisionVerdict | None:
    """Return the verdict on a decision that changes nothing, whoever makes it; None where it counts if they may.

    Args:
        entry: The proposal.
        newest: The version of the newest proposal of its action.
        deciding: What is asked for.
    """
    known = next((each for each in entry.decisions if each.message == deciding.message), None)
    if known is not None:
        return Decided(standing_of(entry), moment(known.at_ms))
    if entry.state is ProposalState.EXPIRED or is_lapsed(entry, deciding.now_ms):
        return Expired(moment(entry.expires_ms or entry.since_ms))
    match entry.state:
        case ProposalState.OPEN:
            return _refusal_while_open(entry, deciding)
        case ProposalState.APPROVED if deciding.order.act is DecisionAct.REVOKE:
            return _refusal_of_person(entry, deciding)
        case ProposalState.SUPERSEDED:
            return SupersededBy(newest)
        case _:
            return _decided_before(entry)


def _refusal_while_open(entry: ProposalEntry, deciding: Deciding) -> DecisionVerdict | None:
    own = _approval_by(entry, deciding.approver)
    match deciding.order.act:
        case DecisionAct.APPROVE if own is not None:
            return AlreadyDecided(_decider(own), moment(own.at_ms))
        case DecisionAct.APPROVE if any(deciding.order.by in (each.by, each.approver) for each in entry.decisions):
            # Several approvals are several people: one with two votes is none of the pairs of eyes that are asked for.
            return NotPermitted(f"{deciding.order.by} has decided already: the others have to be other people")
        case DecisionAct.REVOKE if own is None:
            return NotPermitted(f"{deciding.approver} has approved nothing of it that could be taken back")
        case DecisionAct.DELEGATE if not deciding.order.whom or deciding.order.whom == deciding.order.by:
            return NotPermitted("a decision is delegated to somebody else")
        case DecisionAct.DELEGATE if len(entry.delegations) >= DELEGATIONS_MAX:
            return NotPermitted(f"there are {DELEGATIONS_MAX} delegations, as many as there may be")
        case _:
            return _refusal_of_person(entry, deciding)


def _refusal_of_person(entry: ProposalEntry, deciding: Deciding) -> NotPermitted | None:
    """Refuse who decides for another without having been asked to."""
    giver, taker = deciding.approver, deciding.order.by
    if giver == taker or Delegation(giver, taker) in entry.delegations:
        return None
    return NotPermitted(f"{giver} has not delegated this to {taker}")


def _approval_by(entry: ProposalEntry, approver: str) -> Decision | None:
    return next((each for each in entry.decisions if each.approves and each.approver == approver), None)


def _decided_before(entry: ProposalEntry) -> AlreadyDecided:
    revoked = next((each for each in reversed(entry.life) if each.kind is EventKind.REVOKED), None)
    if entry.state is ProposalState.REVOKED and revoked is not None:
        return AlreadyDecided(revoked.by, moment(revoked.at_ms))
    last = entry.decisions[-1] if entry.decisions else None
    if last is None:
        return AlreadyDecided("", moment(entry.since_ms))
    return AlreadyDecided(_decider(last), moment(last.at_ms))


def _decider(decision: Decision) -> str:
    return decision.by if decision.by == decision.approver else f"{decision.by} for {decision.approver}"


def applied(entry: ProposalEntry, deciding: Deciding) -> tuple[ProposalEntry, Happened]:
    """Return a proposal after a decision that counts, and what has happened to it."""
    order, now_ms = deciding.order, deciding.now_ms
    event = Happened(now_ms, _KINDS[order.act], detail=_detail(deciding), by=order.by)
    decisions = entry.decisions
    match order.act:
        case DecisionAct.DELEGATE:
            given = Delegation(order.by, order.whom)
            delegations = tuple(dict.fromkeys((*entry.delegations, given)))
            return _happened(replace(entry, delegations=delegations), event), event
        case DecisionAct.REVOKE if entry.state is ProposalState.OPEN:
            left = tuple(each for each in decisions if each.approver != deciding.approver)
            return _happened(replace(entry, decisions=left), event), event
        case DecisionAct.REVOKE:
            return closed(entry, ProposalState.REVOKED, event), event
        case DecisionAct.DECLINE:
            others = tuple(each for each in decisions if each.approver != deciding.approver)
            made = replace(entry, decisions=(*others, _decision(deciding, approves=False)))
            return closed(made, ProposalState.DECLINED, event), event
        case DecisionAct.APPROVE:
            made = replace(entry, decisions=(*decisions, _decision(deciding, approves=True)))
            if len(made.decisions) < entry.quorum:
                return _happened(made, event), event
            return closed(made, ProposalState.APPROVED, event), event


def _decision(deciding: Deciding, *, approves: bool) -> Decision:
    order = deciding.order
    return Decision(deciding.approver, approves, order.reason, deciding.now_ms, deciding.message, order.by)


def _detail(deciding: Deciding) -> str:
    order = deciding.order
    if order.act is DecisionAct.DELEGATE:
        return f"to {order.whom}{_reason(order.reason)}"
    return f"for {deciding.approver}{_reason(order.reason)}" if deciding.approver != order.by else order.reason


def _reason(reason: str) -> str:
    return f": {reason}" if reason else ""


def closed(entry: ProposalEntry, state: ProposalState, event: Happened, operation: str = "") -> ProposalEntry:
    """Return a proposal in another state, and with what has brought it there."""
    return _happened(replace(entry, state=state, since_ms=event.at_ms, operation=operation), event)


def _happened(entry: ProposalEntry, event: Happened) -> ProposalEntry:
    return replace(entry, life=(*entry.life, event)[-LIFE_MAX:])


def told_overdue(entry: ProposalEntry, event: Happened) -> ProposalEntry:
    """Return a proposal of which it was told that it is about to expire."""
    return _happened(replace(entry, is_overdue=True), event)
