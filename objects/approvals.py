"""What is put before people, and what they have allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

#: Where a proposal stands.
ProposalStanding: TypeAlias = Literal["open", "approved", "declined", "expired", "superseded", "revoked", "consumed"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Something that people decide on: exactly these fields, in this version. Keep it in the state if others need it.

    Attributes:
        id: What names it from outside, as `Order/acme/o-1001#refund.3`.
        action: What is to be done: the name of the effect.
        version: How many proposals of this action the object has had, this one included.
        fields: What the decision is about; `proposal["amount"]` reads one.
        notes: What it is not about.
        digest: Digest of action, version and fields, in hexadecimal digits.
        proposed_at: When it was made, by the partition's time.
        expires_at: Until when it can be approved, and its approval used; None for as long as it takes.
    """

    id: str
    action: str
    version: int
    fields: dict[str, Any]
    notes: dict[str, Any] = field(default_factory=dict[str, Any])
    digest: str = ""
    proposed_at: datetime | None = None
    expires_at: datetime | None = None

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


@dataclass(frozen=True, slots=True)
class Approval:
    """That a proposal was approved; one effect uses it up.

    What allows the effect is the proposal as it is stored: its decisions and its time count, not those that stand here.

    Attributes:
        proposal_id: The proposal.
        action: What may be done.
        version: The version that was approved.
        fields: With what.
        digest: Digest of action, version and fields.
        approved_by: Who approved it, in the order in which they did.
        approved_at: When the last of them did.
        expires_at: Until when it may be used.
    """

    proposal_id: str
    action: str
    version: int
    fields: Mapping[str, Any]
    digest: str
    approved_by: tuple[str, ...]
    approved_at: datetime
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DecisionTaken:
    """What somebody has said to a proposal.

    Attributes:
        approver: Whose decision it is.
        by: Who has said it: the approver, or somebody to whom they had delegated it.
        approves: What they said.
        reason: Why.
        at: When, by the partition's time.
    """

    approver: str
    by: str
    approves: bool
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class ProposalEvent:
    """One thing that happened to a proposal.

    Attributes:
        at: When, by the partition's time.
        what: What, in a word or two.
        by: Who did it; empty for the runtime itself.
        detail: What there is to say beside it.
    """

    at: datetime
    what: str
    by: str
    detail: str


@dataclass(frozen=True, slots=True)
class ProposalStatus:
    """Where a proposal stands, and how it came to that.

    Attributes:
        proposal: What is proposed.
        standing: Where it stands.
        since: Since when.
        quorum: How many have to approve.
        decisions: What was said so far.
        delegations: Who lets whom decide, as pairs.
        operation_id: The operation id of the effect that has used its approval up; empty while none has.
        waiting: How many waits for the decision are open.
        is_overdue: Whether it was told that it is about to expire.
        history: What has happened to it, oldest first.
    """

    proposal: Proposal
    standing: ProposalStanding
    since: datetime
    quorum: int
    decisions: tuple[DecisionTaken, ...] = ()
    delegations: tuple[tuple[str, str], ...] = ()
    operation_id: str = ""
    waiting: int = 0
    is_overdue: bool = False
    history: tuple[ProposalEvent, ...] = ()

    @property
    def id(self) -> str:
        """What names it."""
        return self.proposal.id
