"""What somebody is told who settles an effect by hand: a few facts, to `match` on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

from ..journal.codec import Undecodable
from .verdicts import UnknownTarget


@dataclass(frozen=True, slots=True)
class Reconciled:
    """It is durable, and recorded with the name and the reason.

    Attributes:
        state: Where the effect stands since: `succeeded`, `rejected`, `unresolved`, `unknown` or `intended`.
        at: When it was done, by the partition's time.
    """

    state: str
    at: datetime


@dataclass(frozen=True, slots=True)
class AlreadySettled:
    """The outcome is known already; nothing was changed.

    Attributes:
        state: `succeeded` or `rejected`.
        by: Who settled it; empty where the receiver said so.
        at: Since when it is known, by the partition's time.
    """

    state: str
    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class NotAllowed:
    """The receiver's contract does not allow it, or not now; that somebody has tried is in the ledger.

    Attributes:
        why: Why not.
        allowed: What may be done instead.
    """

    why: str
    allowed: tuple[str, ...]


ReconcileVerdict: TypeAlias = Reconciled | AlreadySettled | NotAllowed | UnknownTarget


def plain_of_reconciling(verdict: ReconcileVerdict) -> list[Any]:
    """Return a verdict as plain values, for `reconcile_verdict_of` in another process."""
    match verdict:
        case Reconciled():
            return ["reconciled", verdict.state, verdict.at]
        case AlreadySettled():
            return ["already-settled", verdict.state, verdict.by, verdict.at]
        case NotAllowed():
            return ["not-allowed", verdict.why, list(verdict.allowed)]
        case UnknownTarget():
            return ["unknown"]


def reconcile_verdict_of(plain: object) -> ReconcileVerdict:
    """Return the verdict that plain values stand for; what a later version adds behind them is left out.

    Raises:
        Undecodable: They stand for none.
    """
    match cast("list[object]", plain) if isinstance(plain, list) else []:
        case ["reconciled", str() as state, datetime() as at, *_]:
            return Reconciled(state, at.astimezone(UTC))
        case ["already-settled", str() as state, str() as by, datetime() as at, *_]:
            return AlreadySettled(state, by, at.astimezone(UTC))
        case ["not-allowed", str() as why, allowed, *_]:
            return NotAllowed(why, _texts(allowed))
        case ["unknown", *_]:
            return UnknownTarget()
        case _:
            raise Undecodable("not a verdict on what was done about an effect")


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, cast("list[object]", value))) if isinstance(value, list) else ()
