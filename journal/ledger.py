"""The ledger: what happened to the effects and proposals of objects, one event after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .facts import often_made
from .fields import Layout, a_number, a_text, decode_tagged, nested, one_of, pack


class EventKind(StrEnum):
    """What happened."""

    INTENDED = "intended"
    BLOCKED = "blocked"
    NOT_SENT = "not sent"
    SUCCEEDED = "succeeded"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    FOUND = "found"
    ABSENT = "absent"
    LOOKUP_FAILED = "look-up failed"
    RESENT = "resent"
    QUEUED = "queued"
    OVERDUE = "overdue"
    HANDED_OVER = "handed over"
    MARKED_SUCCEEDED = "marked succeeded"
    MARKED_NOT_DONE = "marked not done"
    PROPOSED = "proposed"
    APPROVED = "approved"
    DECLINED = "declined"
    DELEGATED = "delegated"
    REVOKED = "revoked"
    REFUSED = "refused"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    CONSUMED = "consumed"


@often_made
@dataclass(frozen=True, slots=True)
class Happened:
    """One thing that happened to an effect or a proposal.

    Args:
        at_ms: When, by the partition's time.
        kind: What.
        attempt: The number of the attempt that it is about, counted from 1; 0 where it is about none.
        detail: What a person needs to know of it: the receiver's answer, the reason of a decision.
        by: Who did it; empty for the runtime itself.
    """

    at_ms: int
    kind: EventKind
    attempt: int = 0
    detail: str = ""
    by: str = ""


@often_made
@dataclass(frozen=True, slots=True)
class LedgerEvent:
    """An entry of a partition's ledger, or of its alerts.

    Args:
        key: The object, as `tenant/key`.
        subject: The operation id of an effect; the action and version of a proposal, as `refund.3`.
        receiver: The receiver of an effect; empty for a proposal.
        effect: Name of the effect; empty for a proposal.
        owner: Who is responsible: the receiver's owner, or the object type's.
        happened: What happened.
    """

    key: str
    subject: str
    receiver: str
    effect: str
    owner: str
    happened: Happened

    def encode(self) -> bytes:
        """Return the bytes of the event."""
        return pack(
            (_EVENT, self.key, self.subject, self.receiver, self.effect, self.owner, fields_of_happened(self.happened))
        )

    @classmethod
    def decode(cls, data: bytes) -> LedgerEvent:
        """Return the event that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        return decode_tagged(data, _LAYOUTS, "ledger event")


def fields_of_happened(happened: Happened) -> tuple[object, ...]:
    """Return the fields of an event in the order in which they are written."""
    return (happened.at_ms, happened.kind.value, happened.attempt, happened.detail, happened.by)


HAPPENED_LAYOUT: Final = Layout(Happened, (a_number, one_of(EventKind), a_number, a_text, a_text))

_EVENT: Final = 161
_LAYOUTS: Final[Mapping[int, Layout[LedgerEvent]]] = {
    _EVENT: Layout(LedgerEvent, (a_text, a_text, a_text, a_text, a_text, nested(HAPPENED_LAYOUT)))
}
