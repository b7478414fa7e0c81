"""What the sender of signals, or whoever completes an awakeable or decides on a proposal, is told: to `match` on."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias, assert_never, cast

from ..journal.codec import Undecodable
from ..journal.proposals import ProposalState
from .approvals import ProposalStanding


@dataclass(frozen=True, slots=True)
class Accepted:
    """It is durable, and whoever waits for it, or comes to, gets it.

    Attributes:
        replayed: Whether this message id had been accepted before, so that nothing new was taken in.
        at: When it was accepted, by the partition's time.
    """

    replayed: bool
    at: datetime


@dataclass(frozen=True, slots=True)
class AlreadyCompleted:
    """The awakeable was completed before, by another message.

    Attributes:
        by: Who did it, as far as they said.
        at: When, by the partition's time.
    """

    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Expired:
    """It came too late: the wait had timed out, the invocation had ended, or the proposal's time had passed.

    Attributes:
        at: Since when it is too late; None for an invocation so short that only its result is kept.
    """

    at: datetime | None


@dataclass(frozen=True, slots=True)
class UnknownTarget:
    """Nothing is known of this id: it was never given out, or its records have outlived their retention."""


@dataclass(frozen=True, slots=True)
class NotPermitted:
    """Whoever asked may not send to this target, or not decide that.

    Attributes:
        why: Why not.
    """

    why: str


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision is durable, and counts.

    Attributes:
        standing: Where the proposal stands with it: `open` where others have to approve too.
        at: When it was taken in, by the partition's time.
    """

    standing: ProposalStanding
    at: datetime


@dataclass(frozen=True, slots=True)
class AlreadyDecided:
    """The proposal was decided before, or whoever asks has decided already.

    Attributes:
        by: Who did it.
        at: When, by the partition's time.
    """

    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class SupersededBy:
    """There is a newer proposal of the same action, which is the one to decide on.

    Attributes:
        version: Its version.
    """

    version: int


#: What became of a decision on a proposal.
DecisionVerdict: TypeAlias = Decided | AlreadyDecided | Expired | SupersededBy | NotPermitted | UnknownTarget

#: What became of a signal, or of the completion of an awakeable.
WaitVerdict: TypeAlias = Accepted | AlreadyCompleted | Expired | UnknownTarget | NotPermitted


def plain_of(verdict: WaitVerdict) -> list[Any]:
    """Return a verdict as plain values, for `verdict_of` in another process."""
    match verdict:
        case Accepted():
            return ["accepted", verdict.at, verdict.replayed]
        case AlreadyCompleted():
            return ["already-completed", verdict.at, verdict.by]
        case Expired():
            return ["expired", verdict.at]
        case UnknownTarget():
            return ["unknown"]
        case NotPermitted():
            return ["not-permitted", verdict.why]
        case _:
            assert_never(verdict)


def verdict_of(plain: object) -> WaitVerdict:
    """Return the verdict that plain values stand for; what a later version adds behind them is left out.

    Raises:
        Undecodable: They stand for none.
    """
    match _items(plain):
        case ["accepted", datetime() as at, bool() as replayed, *_]:
            return Accepted(replayed, at.astimezone(UTC))
        case ["already-completed", datetime() as at, str() as by, *_]:
            return AlreadyCompleted(by, at.astimezone(UTC))
        case ["expired", datetime() | None as at, *_]:
            return Expired(None if at is None else at.astimezone(UTC))
        case ["unknown", *_]:
            return UnknownTarget()
        case ["not-permitted", str() as why, *_]:
            return NotPermitted(why)
        case _:
            raise Undecodable("not a verdict on a signal")


def plain_of_decision(verdict: DecisionVerdict) -> list[Any]:
    """Return a verdict on a decision as plain values, for `decision_verdict_of` in another process."""
    match verdict:
        case Decided():
            return ["decided", verdict.standing, verdict.at]
        case AlreadyDecided():
            return ["already-decided", verdict.by, verdict.at]
        case Expired():
            return ["expired", verdict.at]
        case SupersededBy():
            return ["superseded", verdict.version]
        case NotPermitted():
            return ["not-permitted", verdict.why]
        case UnknownTarget():
            return ["unknown"]
        case _:
            assert_never(verdict)


def decision_verdict_of(plain: object) -> DecisionVerdict:
    """Return the verdict that plain values stand for; what a later version adds behind them is left out.

    Raises:
        Undecodable: They stand for none.
    """
    match _items(plain):
        case ["decided", str() as standing, datetime() as at, *_] if standing in _STANDINGS:
            return Decided(cast("ProposalStanding", standing), at.astimezone(UTC))
        case ["already-decided", str() as by, datetime() as at, *_]:
            return AlreadyDecided(by, at.astimezone(UTC))
        case ["expired", datetime() as at, *_]:
            return Expired(at.astimezone(UTC))
        case ["superseded", int() as version, *_]:
            return SupersededBy(version)
        case ["not-permitted", str() as why, *_]:
            return NotPermitted(why)
        case ["unknown", *_]:
            return UnknownTarget()
        case _:
            raise Undecodable("not a verdict on a decision")


_STANDINGS = frozenset(state.value for state in ProposalState)


def _items(plain: object) -> list[object]:
    return cast("list[object]", plain) if isinstance(plain, list) else []
