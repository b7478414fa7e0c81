"""What the sender of a signal, or whoever completes an awakeable, is told: a few facts, to `match` on."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias, assert_never, cast

from ..journal.codec import Undecodable


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
    """It came too late: the wait had timed out, or the invocation had ended.

    Attributes:
        at: Since when it is too late; None for an invocation so short that only its result is kept.
    """

    at: datetime | None


@dataclass(frozen=True, slots=True)
class UnknownTarget:
    """Nothing is known of this id: it was never given out, or its records have outlived their retention."""


@dataclass(frozen=True, slots=True)
class NotPermitted:
    """Whoever asked may not send to this target.

    Attributes:
        why: Why not.
    """

    why: str


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


def _items(plain: object) -> list[object]:
    return cast("list[object]", plain) if isinstance(plain, list) else []
