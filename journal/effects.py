"""Effects of an object as they lie in the store: the intent, what is known of the outcome, and who waits for it.

    (nothing) ── intended ──┬── succeeded · rejected                       the receiver said so
        │                   ├── not sent ── intended (the next attempt)    nothing has left
        │                   └── unknown ──┬── succeeded · rejected         by a look-up, or a person
        │                                 ├── intended (the same id again, where the contract allows it)
        │                                 └── unresolved ── as unknown, or handed over
        └── blocked ── intended                                            another effect there is not settled

An effect belongs to its object: it outlives the invocation that asked for it. Its operation id is taken for good:
asking again with the same parameters gives what became of it, and with other parameters is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from .facts import copier, often_made
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
from .outcomes import OUTCOME_LAYOUTS, Outcome, encode_outcome
from .place import Place, a_place

#: How many of the things that happened to an effect stand with it; the ledger has all of them.
LIFE_MAX: Final = 60
DIGEST_BYTES: Final = 16
#: The longest operation id that a handler may write, in bytes.
OPERATION_MAX: Final = 200


class EffectState(StrEnum):
    """Where an effect stands."""

    BLOCKED = "blocked"
    INTENDED = "intended"
    NOT_SENT = "not_sent"
    UNKNOWN = "unknown"
    UNRESOLVED = "unresolved"
    SUCCEEDED = "succeeded"
    REJECTED = "rejected"


#: The states that nothing leaves.
SETTLED: Final = frozenset({EffectState.SUCCEEDED, EffectState.REJECTED})
#: Those in which the receiver may have done it, or may yet.
IN_QUESTION: Final = frozenset({EffectState.INTENDED, EffectState.UNKNOWN, EffectState.UNRESOLVED})


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may have happened or not; nothing says which yet.

    Args:
        since_ms: Since when that is so, by the partition's time.
        why: What is known, in words.
    """

    since_ms: int
    why: str


#: With what the wait for an effect ends: as an invocation ends, or with that nobody knows yet.
EffectOutcome: TypeAlias = Outcome | Unknown


@often_made
@dataclass(frozen=True, slots=True)
class Waiter:
    """An invocation that waits for an outcome or a decision.

    Args:
        invocation: Its raw id.
        place: The place of its wait.
        takes_unknown: Whether it wants to hear of an unknown outcome, instead of waiting until that is settled.
    """

    invocation: bytes
    place: Place
    takes_unknown: bool = False


@often_made
@dataclass(frozen=True, slots=True, kw_only=True)
class EffectEntry:
    """One effect of an object.

    Args:
        operation: The operation id, as the handler wrote it: unique among the effects of the object.
        effect: Name of the effect.
        receiver: Name of the receiver.
        state: Where it stands.
        params: The packed parameters.
        digest: Their digest.
        attempt: How many intents there were.
        invocation: Raw id of the invocation that asked first.
        first_ms: When the first intent was recorded, by the partition's time; so the others.
        intended_ms: When that of the newest attempt was.
        send_before_ms: Until when that attempt may send its first byte.
        since_ms: Since when it is in its state.
        why: What is known, in words.
        outcome: The encoded outcome, once there is one.
        by: Who settled it; empty for the runtime itself.
        facts: What was looked at before the intent, packed.
        approval: The action and version of the approval that it has consumed, as `refund.3`; empty for none.
        lookups: How many times the receiver was asked since it is in question.
        next_ms: When something is to be done about it.
        reconcile_by_ms: Until when a person has to settle it, once it lies with people; before that, only where whoever
            has handed it over has named a time.
        is_overdue: Whether it was told that this time has passed.
        assigned: Who has to settle it now, where it was handed over.
        waiters: Who waits for the outcome.
        life: What has happened to it, oldest first.
    """

    operation: str
    effect: str
    receiver: str
    state: EffectState
    params: bytes
    digest: bytes
    attempt: int
    invocation: bytes
    first_ms: int
    intended_ms: int
    send_before_ms: int
    since_ms: int
    why: str = ""
    outcome: bytes | None = None
    by: str = ""
    facts: bytes | None = None
    approval: str = ""
    lookups: int = 0
    next_ms: int = 0
    reconcile_by_ms: int | None = None
    is_overdue: bool = False
    assigned: str = ""
    waiters: tuple[Waiter, ...] = ()
    life: tuple[Happened, ...] = field(default=())

    @property
    def is_settled(self) -> bool:
        """Whether its outcome is known for good."""
        return self.state in SETTLED

    @property
    def is_in_question(self) -> bool:
        """Whether the receiver may have done it, or may yet."""
        return self.state in IN_QUESTION

    def but(self, **changes: Any) -> EffectEntry:
        """Return the entry with other values in some fields."""
        return _but(self, changes)

    def encode(self) -> bytes:
        """Return the bytes of the entry."""
        waiters = tuple((each.invocation, each.place, each.takes_unknown) for each in self.waiters)
        life = tuple(fields_of_happened(each) for each in self.life)
        told = (self.reconcile_by_ms, self.is_overdue, self.assigned, waiters, life)
        return pack(
            (
                _ENTRY, self.operation, self.effect, self.receiver, self.state.value, self.params, self.digest,
                self.attempt, self.invocation, self.first_ms, self.intended_ms, self.send_before_ms, self.since_ms,
                self.why, self.outcome, self.by, self.facts, self.approval, self.lookups, self.next_ms, *told,
            )
        )  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> EffectEntry:
        """Return the entry that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        return decode_tagged(data, _LAYOUTS, "effect")


def encode_effect_outcome(outcome: EffectOutcome) -> bytes:
    """Return the bytes of an outcome."""
    if isinstance(outcome, Unknown):
        return pack((_UNKNOWN, outcome.since_ms, outcome.why))
    return encode_outcome(outcome)


def decode_effect_outcome(data: bytes) -> EffectOutcome:
    """Return the outcome that bytes hold.

    Raises:
        Undecodable: They hold none.
    """
    return decode_tagged(data, _OUTCOMES, "outcome of an effect")


def digest_of(effect: str, canonical_params: bytes) -> bytes:
    """Return the digest by which two requests under one operation id are known to ask for the same.

    Args:
        effect: Name of the effect.
        canonical_params: The parameters, in the form in which equal ones have equal bytes.
    """
    return blake2b(pack((effect, canonical_params)), digest_size=DIGEST_BYTES).digest()


def _entry(*values: object) -> EffectEntry:
    return EffectEntry(**dict(zip(_NAMES, values, strict=False)))  # pyright: ignore[reportArgumentType]


_NAMES: Final = (
    "operation", "effect", "receiver", "state", "params", "digest", "attempt", "invocation", "first_ms", "intended_ms",
    "send_before_ms", "since_ms", "why", "outcome", "by", "facts", "approval", "lookups", "next_ms",
    "reconcile_by_ms", "is_overdue", "assigned", "waiters", "life",
)  # fmt: skip
_but: Final = copier(EffectEntry)
WAITER_LAYOUT: Final = Layout(Waiter, (some_bytes, a_place, a_flag))
_a_waiter: Final = nested(WAITER_LAYOUT)
_an_event: Final = nested(HAPPENED_LAYOUT)

_UNKNOWN: Final = 74
_OUTCOMES: Final[Mapping[int, Layout[Any]]] = {
    **OUTCOME_LAYOUTS,
    _UNKNOWN: Layout(Unknown, (a_number, a_text)),
}

_ENTRY: Final = 162
_LAYOUTS: Final[Mapping[int, Layout[EffectEntry]]] = {
    _ENTRY: Layout(
        _entry,
        (
            a_text, a_text, a_text, one_of(EffectState), some_bytes, some_bytes, a_number, some_bytes, a_number,
            a_number, a_number, a_number, a_text, optional(some_bytes), a_text, optional(some_bytes), a_text, a_number,
            a_number, optional(a_number), a_flag, a_text, sequence_of(_a_waiter), sequence_of(_an_event),
        ),
    )
}  # fmt: skip
