"""What is put before people, and what they have allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


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
