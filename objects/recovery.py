"""What is to be done about an effect whose outcome is not known: decided by its contract and the time alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

#: Between look-ups: the first pause, doubled up to the last one, in ms.
LOOKUP_FIRST_MS: Final = 500
LOOKUP_LAST_MS: Final = 300_000


@dataclass(frozen=True, slots=True)
class Contract:
    """What a receiver promises about one effect, in ms.

    Args:
        dedup_ms: For how long it knows an operation id; None if it takes one again.
        can_look_up: Whether it can be asked what became of an operation id.
        lag_ms: How long after it was done something can be found.
        found_ms: For how long something can be found; None for ever.
        absent_means_not_done: Whether absence, once it counts, says that it was not done.
        in_flight_ms: The longest time from the first byte of a call until it can still take effect.
        may_be_late: Whether a stopped process may send after its time.
        lease_ms: The lease of a partition.
    """

    dedup_ms: int | None
    can_look_up: bool
    lag_ms: int
    found_ms: int | None
    absent_means_not_done: bool
    in_flight_ms: int
    may_be_late: bool
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Question:
    """What is known of an effect that is in question, by the partition's time in ms.

    Args:
        first_ms: When its first intent was recorded.
        send_before_ms: Until when its newest attempt may have sent its first byte.
        lookups: How many times the receiver was asked since then.
        last_lookup_ms: When it was asked last; None if it was not.
        was_absent: Whether the last answer was that it knows nothing of it.
    """

    first_ms: int
    send_before_ms: int
    lookups: int
    last_lookup_ms: int | None
    was_absent: bool


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask the receiver, at a time."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Resend:
    """Send the same operation id again, at a time: the receiver takes it once."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class AttemptAnew:
    """Make another attempt: it is certain that nothing was done, and nothing can be under way."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class AskPeople:
    """Put it before a person: nothing that the contract allows can tell."""

    why: str


NextAction: TypeAlias = LookUp | Resend | AttemptAnew | AskPeople
AllowedAct: TypeAlias = Literal["lookup", "succeeded", "not-done", "resend", "hand-over"]
