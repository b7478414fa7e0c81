"""What a handler asks for of an effect, compared with what its journal and its object have of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..journal.codec import unpack
from ..journal.command_records import EffectStarted, WaitCompleted
from ..journal.errors import EffectConflict
from ..journal.outcomes import Rejected, encode_outcome
from ..objects.fingerprint import differing_fields

if TYPE_CHECKING:
    from ..journal.effects import EffectEntry
    from ..journal.outcomes import Failure
    from ..objects.approvals import Approval
    from ..objects.receivers import Effect


@dataclass(frozen=True, slots=True)
class Wish:
    """What a handler asks for.

    Args:
        effect: The effect.
        operation: The operation id.
        params: The packed parameters.
        digest: Their digest.
        approval: What allows it.
        takes_unknown: Whether an unknown outcome is one.
    """

    effect: Effect[Any, Any]
    operation: str
    params: bytes
    digest: bytes
    approval: Approval | None
    takes_unknown: bool

    def is_of(self, entry: EffectEntry) -> bool:
        """Return whether an effect is the one that is asked for."""
        names = (entry.effect, entry.receiver)
        return names == (self.effect.name, self.effect.receiver.name) and entry.digest == self.digest

    def is_in(self, found: EffectStarted) -> bool:
        """Return whether a record is about the effect that is asked for."""
        asked = (self.operation, self.effect.name, self.effect.receiver.name, self.digest)
        return (found.operation, found.effect, found.receiver, found.digest) == asked

    def __str__(self) -> str:
        name = f"{self.effect.receiver.name}.{self.effect.name}"
        return f"effect {name} {self.operation!r} with these parameters"


def ended_by(fact: EffectStarted, value: bytes, by: str = "") -> WaitCompleted:
    """Return the record that ends the wait for an effect."""
    return WaitCompleted(fact.index, fact.digest, value, by)


def refused(fact: EffectStarted, failure: Failure) -> WaitCompleted:
    """Return the record that ends the wait for an effect that is not asked for."""
    return ended_by(fact, encode_outcome(Rejected(failure)))


def conflict(entry: EffectEntry, wish: Wish) -> EffectConflict:
    """Return what a request is told whose operation id stands for something else."""
    if (entry.effect, entry.receiver) != (wish.effect.name, wish.effect.receiver.name):
        return EffectConflict(wish.operation, effect=f"{entry.receiver}.{entry.effect}")
    differing = differing_fields(unpack(entry.params), unpack(wish.params), wish.effect.params.where)
    return EffectConflict(wish.operation, differing)
