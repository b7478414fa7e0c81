"""The payloads of requests that decide on proposals, and of those that settle effects by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final

from .fields import Layout, a_number, a_text, decode_tagged, one_of, optional, pack, some_bytes


class DecisionAct(StrEnum):
    """What somebody does about a proposal."""

    APPROVE = "approve"
    DECLINE = "decline"
    REVOKE = "revoke"
    DELEGATE = "delegate"


@dataclass(frozen=True, slots=True)
class DecisionOrder:
    """Somebody decides on a proposal of the object that the request names.

    Args:
        act: What they do.
        action: What is proposed.
        version: Which proposal of this action.
        by: Who decides.
        reason: Why.
        whom: Whose decision it is, where that was delegated to `by`; to whom it is delegated by `DELEGATE`; else empty.
    """

    act: DecisionAct
    action: str
    version: int
    by: str
    reason: str
    whom: str = ""

    @property
    def digest(self) -> bytes:
        """What tells another content under the same message id."""
        return blake2b(self.encode(), digest_size=_DIGEST_BYTES).digest()

    def encode(self) -> bytes:
        """Return the bytes of the order."""
        return pack((_DECISION, self.act.value, self.action, self.version, self.by, self.reason, self.whom))

    @classmethod
    def decode(cls, data: bytes) -> DecisionOrder:
        """Return the order that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        return decode_tagged(data, _DECISIONS, "decision")


class ReconcileAct(StrEnum):
    """What a person does about an effect whose outcome is not known."""

    LOOK_UP = "lookup"
    SUCCEEDED = "succeeded"
    NOT_DONE = "not-done"
    RESEND = "resend"
    HAND_OVER = "hand-over"


@dataclass(frozen=True, slots=True)
class ReconcileOrder:
    """Somebody settles an effect of the object that the request names, or has it looked into.

    Args:
        act: What they do.
        operation: The operation id.
        by: Who does it.
        reason: Why: for `NOT_DONE` the evidence.
        receipt: The packed receipt, with `SUCCEEDED`.
        whom: To whom it is handed over; else empty.
        within_ms: Within what time they have to settle it; None where the deadline stays.
    """

    act: ReconcileAct
    operation: str
    by: str
    reason: str
    receipt: bytes | None = None
    whom: str = ""
    within_ms: int | None = None

    @property
    def digest(self) -> bytes:
        """What tells another content under the same message id."""
        return blake2b(self.encode(), digest_size=_DIGEST_BYTES).digest()

    def encode(self) -> bytes:
        """Return the bytes of the order."""
        fields = (_RECONCILE, self.act.value, self.operation, self.by, self.reason, self.receipt, self.whom)
        return pack(fields if self.within_ms is None else (*fields, self.within_ms))

    @classmethod
    def decode(cls, data: bytes) -> ReconcileOrder:
        """Return the order that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        return decode_tagged(data, _RECONCILES, "reconcile order")


_DIGEST_BYTES: Final = 16
_DECISION: Final = 164
_RECONCILE: Final = 165
_DECISIONS: Final[Mapping[int, Layout[DecisionOrder]]] = {
    _DECISION: Layout(DecisionOrder, (one_of(DecisionAct), a_text, a_number, a_text, a_text, a_text))
}
_RECONCILES: Final[Mapping[int, Layout[ReconcileOrder]]] = {
    _RECONCILE: Layout(
        ReconcileOrder,
        (one_of(ReconcileAct), a_text, a_text, a_text, optional(some_bytes), a_text),
        (optional(a_number),),
    )
}
