"""What is not settled of an object: effects in question, open proposals, and invocations that have not ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias

from .docket_reading import DocketReading
from .effects import EffectEntry, EffectState
from .key import parse_id
from .noted import moment
from .object_description import ObjectDescription, OpenInvocation
from .plain_values import short
from .proposals import ProposalEntry, ProposalState
from .story import Matter

#: Gives who is responsible for what stays unknown at a receiver.
OwnerOf: TypeAlias = Callable[[str], str]
#: Gives the operation id that a receiver sees, of the receiver's name and the operation id.
Qualified: TypeAlias = Callable[[str, str], str]


def matters_of(
    described: ObjectDescription, docket: DocketReading, owner_of: OwnerOf, qualified: Qualified
) -> list[Matter]:
    """Return what is not settled of an object.

    Args:
        described: What is known of its lane.
        docket: Its effects and proposals.
        owner_of: Gives who is responsible for what stays unknown at a receiver.
        qualified: Gives the operation id that a receiver sees.
    """
    in_charge = described.in_charge or "the owner of the object type"
    lane = described.lane
    matters = [_of_effect(each, owner_of, qualified) for each in docket.effects if not each.is_settled]
    matters += [_of_proposal(each, in_charge) for each in docket.proposals if _is_open(each)]
    held = _held(docket, owner_of)
    matters += [_of_invocation(each, in_charge, held.get(parse_id(each.id).raw)) for each in (*lane.open, *lane.parked)]
    matters += [
        Matter(
            str(pause), "nothing exclusive of it runs", f"{pause.by} or somebody else resumes it", pause.by, pause.since
        )
        for pause in lane.pauses
    ]
    return matters


def _of_effect(entry: EffectEntry, owner_of: OwnerOf, qualified: Qualified) -> Matter:
    owner = entry.assigned or owner_of(entry.receiver)
    matter = Matter(
        f"{entry.effect} {entry.operation!r} at {entry.receiver}: {short(entry.params)}",
        entry.why,
        "",
        owner,
        moment(entry.since_ms),
        is_uncertain=entry.is_in_question,
    )
    return _with_next(matter, entry, qualified(entry.receiver, entry.operation))


def _with_next(matter: Matter, entry: EffectEntry, qualified: str) -> Matter:
    due = moment(entry.next_ms) if entry.next_ms else None
    match entry.state:
        case EffectState.INTENDED:
            why = f"it is sent as {qualified}; the answer has not come yet"
            then = f"{entry.receiver}'s answer is recorded; without one the outcome is unknown, and is looked into"
            return _told(matter, why, then, moment(entry.send_before_ms))
        case EffectState.NOT_SENT:
            return _told(matter, entry.why or "nothing was sent", "it is tried again", due)
        case EffectState.BLOCKED:
            why = entry.why or f"another effect at {entry.receiver} is not settled"
            return _told(matter, why, "it is sent when that is settled", None)
        case EffectState.UNRESOLVED:
            late = "; that time has passed" if entry.is_overdue else ""
            by = None if entry.reconcile_by_ms is None else moment(entry.reconcile_by_ms)
            then = f"{matter.owner} settles it by hand: `keylane reconcile`{late}"
            return _told(matter, f"nobody knows whether {qualified} was done: {entry.why}", then, by)
        case _:
            asked = f"{entry.receiver} was asked {_times(entry.lookups)}; " if entry.lookups else ""
            why = f"nobody knows whether {qualified} was done: {asked}{entry.why}"
            return _told(matter, why, f"{entry.receiver} is asked, or asked again, as its contract allows", due)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _told(matter: Matter, why: str, then: str, due: datetime | None) -> Matter:
    return replace(matter, why=why, next=then, due=due)


def _is_open(entry: ProposalEntry) -> bool:
    return entry.state in (ProposalState.OPEN, ProposalState.APPROVED)


def _of_proposal(entry: ProposalEntry, in_charge: str) -> Matter:
    what = f"{entry.action} version {entry.version}: {short(entry.bound)}"
    expires = None if entry.expires_ms is None else moment(entry.expires_ms)
    if entry.state is ProposalState.APPROVED:
        by = ", ".join(each.approver for each in entry.decisions if each.approves)
        return Matter(what, f"approved by {by}, and not used yet", "one effect uses it up, or it expires", in_charge,
                      moment(entry.since_ms), expires)  # fmt: skip
    approvals = sum(each.approves for each in entry.decisions)
    why = f"waits for a decision, {approvals} of {entry.quorum} have approved"
    then = "somebody who may decides: `keylane approvals`" + ("" if expires is None else "; else it expires")
    return Matter(what, why, then, in_charge, moment(entry.proposed_ms), expires)


def _held(docket: DocketReading, owner_of: OwnerOf) -> dict[bytes, str]:
    """Return what people have to do before invocations go on, by raw id."""
    held: dict[bytes, str] = {}
    for entry in docket.effects:
        if entry.state is EffectState.UNRESOLVED:
            then = f"it goes on when {entry.assigned or owner_of(entry.receiver)} has settled {entry.operation!r}"
            held |= {each.invocation: then for each in entry.waiters}
    for proposal in docket.proposals:
        if proposal.state is ProposalState.OPEN:
            then = f"it goes on when {proposal.field} is decided" + (
                "" if proposal.expires_ms is None else " or expires"
            )
            held |= {each.invocation: then for each in proposal.waiters}
    return held


def _of_invocation(each: OpenInvocation, in_charge: str, held: str | None) -> Matter:
    owner = each.pause.in_charge or in_charge if each.pause is not None else in_charge
    resume = f"{owner} has to resume it: `keylane resume`"
    then = resume if each.pause is not None else held or "it goes on by itself"
    what = f"{each.handler or 'an invocation'} {each.id}"
    return Matter(what, each.why, then, owner, each.accepted_at, each.retry_due_at)
