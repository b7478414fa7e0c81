"""Proposals of an object as they lie in the store: what is proposed, who has decided what, and who waits for it.

(nothing) ── open ──┬── approved ──┬── consumed (by the intent of one effect)
│              └── revoked · expired · superseded
├── declined · expired
└── superseded (by a newer proposal of the same action)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .effects import WAITER_LAYOUT, Waiter
from .errors import InvalidKey
from .fields import (
    Layout,
    a_flag,
    a_number,
    a_text,
    decode_tagged,
    nested,
    one_of,
    optional,
    pack,
    sequence_of,
    some_bytes,
)
from .ledger import HAPPENED_LAYOUT, Happened, fields_of_happened


class ProposalState(StrEnum):
    """Where a proposal stands."""

    OPEN = "open"
    APPROVED = "approved"
    DECLINED = "declined"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    REVOKED = "revoked"
    CONSUMED = "consumed"


#: The states in which nothing can come of a proposal any more.
CLOSED: Final = frozenset(ProposalState) - {ProposalState.OPEN, ProposalState.APPROVED}


@dataclass(frozen=True, slots=True)
class Decision:
    """What one person has said to a proposal.

    Args:
        approver: Who decided: one of those who may.
        approves: What they said.
        reason: Why.
        at_ms: When, by the partition's time.
        message: Id of the message, by which a second copy is known.
        by: Who said so, where that is somebody to whom the approver had delegated it; else the approver.
    """

    approver: str
    approves: bool
    reason: str
    at_ms: int
    message: bytes
    by: str


@dataclass(frozen=True, slots=True)
class Delegation:
    """One person lets another decide in their place.

    Args:
        giver: Who delegates.
        taker: To whom.
    """

    giver: str
    taker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalEntry:
    """One proposal of an object.

    Args:
        action: What is to be done; the name of the effect that does it.
        version: How many proposals of this action the object has had, this one included.
        state: Where it stands.
        bound: The packed fields that the decision is about.
        notes: Packed fields that it is not about.
        digest: Digest of action, version and bound fields.
        quorum: How many have to approve.
        invocation: Raw id of the invocation that proposed it.
        proposed_ms: When, by the partition's time; so the others.
        expires_ms: Until when it can be approved, and its approval used; None for as long as it takes.
        since_ms: Since when it is in its state.
        operation: The operation id of the effect that has consumed it.
        is_concurrent: Whether it stands beside other open proposals of its action.
        is_overdue: Whether it was told that it is about to expire.
        decisions: What was said so far.
        delegations: Who lets whom decide.
        waiters: Who waits for the decision.
        life: What has happened to it, oldest first.
        is_guarded: Whether the code that proposed it says who may approve.
    """

    action: str
    version: int
    state: ProposalState
    bound: bytes
    notes: bytes
    digest: bytes
    quorum: int
    invocation: bytes
    proposed_ms: int
    expires_ms: int | None
    since_ms: int
    operation: str = ""
    is_concurrent: bool = False
    is_overdue: bool = False
    decisions: tuple[Decision, ...] = ()
    delegations: tuple[Delegation, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    life: tuple[Happened, ...] = ()
    is_guarded: bool = False

    @property
    def field(self) -> str:
        """Its name among the proposals of its object."""
        return proposal_field(self.action, self.version)

    def encode(self) -> bytes:
        """Return the bytes of the entry."""
        decisions = tuple((d.approver, d.approves, d.reason, d.at_ms, d.message, d.by) for d in self.decisions)
        delegations = tuple((each.giver, each.taker) for each in self.delegations)
        waiters = tuple((each.invocation, each.place, each.takes_unknown) for each in self.waiters)
        life = tuple(fields_of_happened(each) for each in self.life)
        return pack(
            (
                _ENTRY, self.action, self.version, self.state.value, self.bound, self.notes, self.digest, self.quorum,
                self.invocation, self.proposed_ms, self.expires_ms, self.since_ms, self.operation, self.is_concurrent,
                self.is_overdue, decisions, delegations, waiters, life, self.is_guarded,
            )
        )  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> ProposalEntry:
        """Return the entry that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        return decode_tagged(data, _LAYOUTS, "proposal")


def proposal_field(action: str, version: int) -> str:
    """Return the name of a proposal among those of its object, as `refund.3`."""
    return f"{action}.{version}"


@dataclass(frozen=True, slots=True)
class ProposalId:
    """What names a proposal from outside; `str()` gives its text form, as `Order/acme/o-1001#refund.3`.

    Args:
        type_name: The object type.
        key: The object, as `tenant/key`.
        action: What is proposed.
        version: Which proposal of this action.
    """

    type_name: str
    key: str
    action: str
    version: int

    def __str__(self) -> str:
        return f"{self.type_name}/{self.key}#{proposal_field(self.action, self.version)}"


_ID: Final = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*)/(.+)#([A-Za-z][A-Za-z0-9_.-]*)\.([1-9][0-9]{0,17})", re.DOTALL)


def parse_proposal_id(text: str) -> ProposalId:
    """Read the text form of a proposal's id.

    Raises:
        InvalidKey: It is not one.
    """
    found = _ID.fullmatch(text)
    if found is None:
        raise InvalidKey(text, "a proposal's id looks like Order/acme/o-1001#refund.3")
    return ProposalId(found[1], found[2], found[3], int(found[4]))


def _entry(*values: object) -> ProposalEntry:
    return ProposalEntry(**dict(zip(_NAMES, values, strict=False)))  # pyright: ignore[reportArgumentType]


_NAMES: Final = (
    "action", "version", "state", "bound", "notes", "digest", "quorum", "invocation", "proposed_ms", "expires_ms",
    "since_ms", "operation", "is_concurrent", "is_overdue", "decisions", "delegations", "waiters", "life",
    "is_guarded",
)  # fmt: skip
_DECISION: Final = Layout(Decision, (a_text, a_flag, a_text, a_number, some_bytes, a_text))
_DELEGATION: Final = Layout(Delegation, (a_text, a_text))

_ENTRY: Final = 163
_LAYOUTS: Final[Mapping[int, Layout[ProposalEntry]]] = {
    _ENTRY: Layout(
        _entry,
        (
            a_text, a_number, one_of(ProposalState), some_bytes, some_bytes, some_bytes, a_number, some_bytes, a_number,
            optional(a_number), a_number, a_text, a_flag, a_flag, sequence_of(nested(_DECISION)),
            sequence_of(nested(_DELEGATION)), sequence_of(nested(WAITER_LAYOUT)), sequence_of(nested(HAPPENED_LAYOUT)),
        ),
        (a_flag,),
    )
}  # fmt: skip
