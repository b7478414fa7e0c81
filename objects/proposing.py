"""What is proposed and approved, between the values that handlers see and the bytes that lie in the store.

A decision is bound to a digest of the action, the version and the fields, in the canonical form in which equal values
have equal bytes. Notes are for people, and no part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final, cast

from ..journal.codec import TOO_DEEP, pack, unpack
from ..journal.effects import DIGEST_BYTES
from ..journal.errors import ApprovalUnfit, InvalidInput, InvalidKey, KeylaneError, PayloadTooLarge
from ..journal.key import is_name
from ..journal.proposals import Decision, ProposalEntry, ProposalId, ProposalState, parse_proposal_id
from .approvals import Approval, DecisionTaken, Proposal, ProposalEvent, ProposalStanding, ProposalStatus
from .fingerprint import canonical, differing_fields
from .types import boundary_of

#: What people are asked to decide on fits on a page.
PROPOSAL_LIMIT_BYTES: Final = 65_536
#: How many may have to approve.
QUORUM_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Draft:
    """What a handler is about to propose, checked and packed.

    Args:
        action: What is to be done.
        bound: The packed fields that the decision is about.
        notes: The packed fields that it is not about.
        expires_in_ms: How long it can be approved, and its approval used; None for as long as it takes.
        quorum: How many have to approve.
        is_concurrent: Whether it stands beside other proposals of its action.
    """

    action: str
    bound: bytes
    notes: bytes
    expires_in_ms: int | None
    quorum: int
    is_concurrent: bool


def draft(
    action: str,
    fields: Mapping[str, Any],
    notes: Mapping[str, Any],
    *,
    expires_in_ms: int | None,
    quorum: int,
    concurrent: bool,
) -> Draft:
    """Check and pack what a handler wrote.

    Raises:
        InvalidInput: The action is no name, the quorum no number that can be reached, there is nothing that the
            decision is about, or a value can't be written down or compared.
        PayloadTooLarge: It is more than a page.
    """
    if not is_name(action):
        raise InvalidInput("action", "it is the name of an effect: a letter, then letters, digits and _ . -")
    if isinstance(quorum, bool) or not isinstance(quorum, int) or not 1 <= quorum <= QUORUM_MAX:  # pyright: ignore[reportUnnecessaryIsInstance] - what a user gives is not checked
        raise InvalidInput("quorum", f"it is a number from 1 to {QUORUM_MAX}")
    if not isinstance(concurrent, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - what a user gives is not checked
        raise InvalidInput("concurrent", "it is True or False")
    if not fields:
        why = "an approval of nothing in particular limits nothing: name what the effect has to have, as in amount=…"
        raise InvalidInput("fields", why)
    if not isinstance(notes, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - what a user gives is not checked
        raise InvalidInput("notes", f"they are names with values, as in {{'why': …}}, not {type(notes).__name__}")
    bound, beside = _packed(fields, "field"), _packed(notes, "note")
    _check_comparable(bound)
    if len(bound) + len(beside) > PROPOSAL_LIMIT_BYTES:
        remedy = "propose what a person has to know, and keep the rest in the state"
        raise PayloadTooLarge("the proposal", len(bound) + len(beside), PROPOSAL_LIMIT_BYTES, remedy=remedy)
    return Draft(action, bound, beside, expires_in_ms, quorum, concurrent)


def _packed(fields: Mapping[str, Any], what: str) -> bytes:
    plain: dict[str, Any] = {}
    for name, value in fields.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - what a user gives is not checked
            raise InvalidInput(what, f"the name of a {what} is text, not {type(name).__name__}")
        plain[name] = _as_read(value, f"{what} {name}")
    return pack(plain)


def _check_comparable(bound: bytes) -> None:
    """Refuse a field that nothing can be said to be equal to.

    Raises:
        InvalidInput: It has a NaN, which differs from itself.
    """
    # Two readings, since a container takes one and the same object for equal to itself.
    first, second = (cast("dict[str, Any]", unpack(bound)) for _ in range(2))
    for name, value in first.items():
        if value != second[name]:
            raise InvalidInput(f"field {name}", "it has a NaN, which equals nothing that an effect could have")


def _as_read(value: object, where: str) -> Any:
    """Return a value as it comes back from the store.

    Raises:
        InvalidInput: It can't be written down.
    """
    try:
        return _plain(value, where)
    except RecursionError:
        raise InvalidInput(where, TOO_DEEP) from None


def _plain(value: object, where: str) -> Any:
    """Return each part of a value as it is written by its own type, and read as plain data."""
    match value:
        case dict():
            items = cast("dict[object, object]", value).items()
            return {_plain(name, where): _plain(each, f"{where}.{name}") for name, each in items}
        case list():
            return [_plain(each, where) for each in cast("list[object]", value)]
        case tuple():
            return tuple(_plain(each, where) for each in cast("tuple[object, ...]", value))
        case _:
            form: Any = Any if isinstance(value, set | frozenset) else type(value)
            return unpack(boundary_of(form, where=where).dump(value))


def digest_of(action: str, version: int, bound: Mapping[str, Any]) -> bytes:
    """Return the digest that a decision is bound to.

    Args:
        action: What is to be done.
        version: Which proposal of this action.
        bound: The fields, as plain data.
    """
    return blake2b(canonical((action, version, dict(bound))), digest_size=DIGEST_BYTES).digest()


def as_proposed(action: str, version: int, fields: Mapping[str, Any], digest: str) -> bool:
    """Return whether fields are those that a digest was made of: somebody may have changed one since."""
    try:
        plain = {name: _as_read(value, f"field {name}") for name, value in fields.items()}
    except KeylaneError:
        return False
    return digest_of(action, version, plain).hex() == digest


def proposal_id(type_name: str, key_text: str, entry: ProposalEntry) -> str:
    """Return what names a proposal from outside."""
    return str(ProposalId(type_name, key_text, entry.action, entry.version))


def read_proposal_id(given: str | Proposal | Approval) -> ProposalId:
    """Return the id of a proposal, as whoever decides on it gives it.

    Raises:
        InvalidKey: The text is none.
    """
    match given:
        case Proposal():
            return parse_proposal_id(given.id)
        case Approval():
            return parse_proposal_id(given.proposal_id)
        case str():
            return parse_proposal_id(given)
        case _:
            raise InvalidKey(given, "a proposal's id looks like Order/acme/o-1001#refund.3")


def proposal_of(type_name: str, key_text: str, entry: ProposalEntry) -> Proposal:
    """Return a proposal as handlers see it."""
    return Proposal(
        id=proposal_id(type_name, key_text, entry),
        action=entry.action,
        version=entry.version,
        fields=unpack(entry.bound),
        notes=unpack(entry.notes),
        digest=entry.digest.hex(),
        proposed_at=moment(entry.proposed_ms),
        expires_at=None if entry.expires_ms is None else moment(entry.expires_ms),
    )


def approval_of(type_name: str, key_text: str, entry: ProposalEntry) -> Approval:
    """Return what an approved proposal allows."""
    approvals = [each for each in entry.decisions if each.approves]
    return Approval(
        proposal_id=proposal_id(type_name, key_text, entry),
        action=entry.action,
        version=entry.version,
        fields=unpack(entry.bound),
        digest=entry.digest.hex(),
        approved_by=tuple(each.approver for each in approvals),
        approved_at=moment(max((each.at_ms for each in approvals), default=entry.since_ms)),
        expires_at=None if entry.expires_ms is None else moment(entry.expires_ms),
    )


def status_of(type_name: str, key_text: str, entry: ProposalEntry) -> ProposalStatus:
    """Return where a proposal stands, for those who look at it from outside."""
    return ProposalStatus(
        proposal=proposal_of(type_name, key_text, entry),
        standing=standing_of(entry),
        since=moment(entry.since_ms),
        quorum=entry.quorum,
        decisions=tuple(_taken(each) for each in entry.decisions),
        delegations=tuple((each.giver, each.taker) for each in entry.delegations),
        operation_id=entry.operation,
        waiting=len(entry.waiters),
        is_overdue=entry.is_overdue,
        history=tuple(ProposalEvent(moment(each.at_ms), each.kind.value, each.by, each.detail) for each in entry.life),
    )


def standing_of(entry: ProposalEntry) -> ProposalStanding:
    """Return where a proposal stands, in a word."""
    return entry.state.value


def _taken(decision: Decision) -> DecisionTaken:
    return DecisionTaken(
        decision.approver, decision.by, decision.approves, decision.reason, moment(decision.at_ms)
    )  # fmt: skip


def moment(at_ms: int) -> datetime:
    """Return a partition's time as people are told it."""
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC)


#: What is said of an approval that can't be used because of where its proposal stands.
_NOT_APPROVED: Final = {
    ProposalState.OPEN: "it is not approved",
    ProposalState.DECLINED: "it was declined",
    ProposalState.EXPIRED: "its time has passed: propose it anew",
    ProposalState.SUPERSEDED: "a newer proposal has taken its place",
    ProposalState.REVOKED: "the approval was taken back",
}


def unfit(
    approval: Approval, entry: ProposalEntry | None, effect: str, params: object, operation: str, now_ms: int
) -> ApprovalUnfit | None:
    """Return why an approval does not allow an effect, None where it does.

    Args:
        approval: The approval, as the handler gives it.
        entry: The proposal that it is about, as the object has it.
        effect: Name of the effect.
        params: Its parameters, as plain data.
        operation: The operation id; the one that has consumed the approval may go on with it.
        now_ms: The partition's time.
    """

    def because(why: str, fields: tuple[str, ...] = ()) -> ApprovalUnfit:
        return ApprovalUnfit(approval.proposal_id, why, fields)

    if entry is None:
        return because("this object has proposed no such thing")
    is_whole = as_proposed(approval.action, approval.version, approval.fields, approval.digest)
    if not is_whole or approval.digest != entry.digest.hex():
        return because("it was altered since it was approved")
    if entry.state is ProposalState.CONSUMED:
        return None if entry.operation == operation else because(f"effect {entry.operation!r} has used it up")
    if entry.state is not ProposalState.APPROVED:
        return because(_NOT_APPROVED[entry.state])
    if entry.expires_ms is not None and entry.expires_ms <= now_ms:
        return because(_NOT_APPROVED[ProposalState.EXPIRED])
    if entry.action != effect:
        return because(f"it is about {entry.action!r}, and the effect is {effect!r}")
    differing = _differing(cast("dict[str, Any]", unpack(entry.bound)), params)
    if differing:
        return because(f"the effect has another {', '.join(differing)}", differing)
    return None


def _differing(bound: Mapping[str, Any], params: object) -> tuple[str, ...]:
    """Return the bound fields that an effect does not have, or has otherwise."""
    given = cast("dict[str, Any]", params) if isinstance(params, dict) else {}
    paths: list[str] = []
    for name, value in bound.items():
        if name not in given:
            paths.append(name)
        elif canonical(value) != canonical(given[name]):
            paths.extend(differing_fields(value, given[name], name))
    return tuple(paths)
