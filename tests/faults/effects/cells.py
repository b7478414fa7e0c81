"""The cells of the grid: a contract of the receiver, a point at which the worker is hit, and what the receiver does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .manner import Manner


class Promise(StrEnum):
    """What the receiver promises."""

    DEDUP = "deduplicates"
    LOOKUP = "look-up"
    PUNCTUAL = "look-up, no late calls"
    BOTH = "both"
    NEITHER = "neither"


class Hit(StrEnum):
    """When the worker is hit, and how; with SIGKILL where it says nothing else."""

    NOTHING = "no fault"
    BEFORE_INTENT = "before the intent"
    AFTER_INTENT = "after the intent"
    SENT = "request sent"
    COMMITTED = "receiver committed"
    ANSWERED = "answer received"
    BEFORE_RECORD = "before the local record"
    AFTER_RECORD = "after the local record"
    SETTLING = "during settling"
    BEFORE_CONSUMED = "before the approval is consumed"
    AFTER_CONSUMED = "after the approval is consumed"
    STOPPED_INTENT = "stopped after the intent"
    STOPPED_FIRST_BYTE = "stopped before the first byte"
    STOPPED_SENT = "stopped after the request was sent"
    HANDED_OVER = "planned hand-over"
    INVOCATION_KILLED = "kill of the invocation"
    BOTH_KILLED = "kill of the invocation, then of the worker"


class Behaviour(StrEnum):
    """What the receiver does."""

    FAST = "fast"
    SLOW = "slow"
    DROPS = "drops"
    REFUSES = "refuses"
    LAGS = "lags"
    PAST = "past"


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination.

    Args:
        promise: What the receiver promises.
        hit: When the worker is hit.
        behaviour: What the receiver does.
    """

    promise: Promise
    hit: Hit
    behaviour: Behaviour

    def __str__(self) -> str:
        return f"{self.promise} | {self.hit} | {self.behaviour}"

    @property
    def receiver(self) -> str:
        """The name of the receiver in the app under test: its windows belong to its contract."""
        return receiver_name(self.promise, _kind(self.behaviour))

    @property
    def key(self) -> str:
        """The object that asks for the effect."""
        return f"acme/{self.receiver}.{self.behaviour}"

    @property
    def manner(self) -> Manner:
        """How the receiver treats this order."""
        windows = windows_of(self.promise, _kind(self.behaviour))
        return Manner(
            dedup_ms=windows.dedup_ms,
            can_look_up=windows.can_look_up,
            lag_ms=windows.lag_ms,
            found_ms=windows.found_ms,
            delay_ms=SLOW_MS if self.behaviour is Behaviour.SLOW else 0,
            drops=self.behaviour is Behaviour.DROPS,
            refuses=self.behaviour is Behaviour.REFUSES,
        )


@dataclass(frozen=True, slots=True)
class Windows:
    """The times of a contract, in ms, as it is declared and as the receiver keeps to it.

    Args:
        dedup_ms: For how long an operation id is taken once; None if it is taken again.
        can_look_up: Whether it can be asked.
        lag_ms: How long after it was done something is found.
        found_ms: For how long it is found.
        absence_counts: Whether it is declared that absence means that it was not done.
    """

    dedup_ms: int | None
    can_look_up: bool
    lag_ms: int
    found_ms: int | None
    absence_counts: bool


class Kind(StrEnum):
    """How long the windows of a contract are."""

    PLAIN = "plain"
    LAGGING = "lagging"  # what was done is found only after a while
    SHORT = "short"  # another worker goes on when the windows are past


#: What a handler returns in place of a receipt where the receiver said no.
REFUSED: Final = "refused"

SLOW_MS: Final = 150
LEASE_MS: Final = 300
SEND_WITHIN_MS: Final = 1_000
#: How long a request that the test holds at the receiver may take until it takes effect: long enough for another worker
#: to take over and to ask for the first time while it is still held.
IN_FLIGHT_MS: Final = 5_000
LONG_MS: Final = 600_000
LAG_MS: Final = 4_000
#: Over before a worker that waits for the lease of a dead one can ask, or may send.
SHORT_FOUND_MS: Final = 250
SHORT_DEDUP_MS: Final = max(LEASE_MS, SEND_WITHIN_MS) + IN_FLIGHT_MS + SHORT_FOUND_MS


def windows_of(promise: Promise, kind: Kind) -> Windows:
    """Return the times of a contract."""
    deduplicates = promise in (Promise.DEDUP, Promise.BOTH)
    can_look_up = promise in (Promise.LOOKUP, Promise.PUNCTUAL, Promise.BOTH)
    is_short = kind is Kind.SHORT
    dedup_ms = SHORT_DEDUP_MS if is_short else LONG_MS
    found_ms = SHORT_FOUND_MS if is_short else LONG_MS
    return Windows(
        dedup_ms=dedup_ms if deduplicates else None,
        can_look_up=can_look_up,
        lag_ms=LAG_MS if kind is Kind.LAGGING and can_look_up else 0,
        found_ms=found_ms if can_look_up else None,
        absence_counts=can_look_up and not is_short,
    )


def receiver_name(promise: Promise, kind: Kind) -> str:
    """Return the name of a receiver of the app under test."""
    return f"{promise.name.lower()}-{kind}"


def _kind(behaviour: Behaviour) -> Kind:
    match behaviour:
        case Behaviour.LAGS:
            return Kind.LAGGING
        case Behaviour.PAST:
            return Kind.SHORT
        case _:
            return Kind.PLAIN
