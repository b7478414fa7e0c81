"""What has become of a cell: the receiver's ledger, what the store says, and what the handler was told."""

from __future__ import annotations

from dataclasses import dataclass

from keylane import Client
from keylane.journal.agenda import AgendaItem, AgendaKind
from keylane.journal.codec import unpack
from keylane.journal.effects import EffectEntry, EffectState, decode_effect_outcome
from keylane.journal.key import Key
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.lane_reading import ask
from keylane.journal.ledger import EventKind
from keylane.journal.outcomes import Succeeded
from keylane.runtime.docket import Docket, read_docket

from .cells import REFUSED
from .expected import Ending, Money
from .manner import Booking

OPERATION = "pay-1"


@dataclass(frozen=True, slots=True)
class Observed:
    """What has become of an effect.

    Args:
        says: In the words of the expected table.
        problems: What does not fit together, whatever the table says.
    """

    says: str
    problems: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join((self.says, *self.problems))


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one cell in the end.

    Args:
        entry: What the store says of the effect; None for nothing.
        is_queued: Whether it lies with people.
        bookings: The receiver's lines about the order.
        told: What the handler has returned; None while it waits, or if it was killed.
        may_be_told: Whether the handler can return at all.
        approval: The state of the proposal and the operation that has used it up; None without one.
    """

    entry: EffectEntry | None
    is_queued: bool
    bookings: tuple[Booking, ...]
    told: str | None
    may_be_told: bool = True
    approval: tuple[str, str] | None = None

    @property
    def receipts(self) -> list[str]:
        """The numbers of all payments."""
        return [booking.receipt for booking in self.bookings if booking.is_paid]

    def observe(self) -> Observed:
        """Say what has become of it."""
        if self.entry is None:
            return Observed(f"{self._money}, no effect", ())
        return Observed(f"{self._money}, {ending_of(self.entry)}", tuple(self._problems(self.entry)))

    @property
    def _money(self) -> str:
        paid = len(self.receipts)
        if paid > 1:
            return f"paid {paid} times"
        if paid:
            return Money.PAID
        is_refused = self.entry is not None and self.entry.state is EffectState.REJECTED
        return Money.REFUSED if is_refused else Money.NOT_PAID

    def _problems(self, entry: EffectEntry) -> list[str]:
        problems: list[str] = []
        match entry.state:
            case EffectState.SUCCEEDED:
                receipt = receipt_of(entry)
                if receipt not in self.receipts:
                    problems.append(f"the receipt {receipt} is not in the receiver's ledger")
                if self.may_be_told and self.told != receipt:
                    problems.append(f"the handler was told {self.told!r}, not {receipt!r}")
            case EffectState.REJECTED:
                if not self.bookings:
                    problems.append("the receiver knows of no refusal")
                if self.may_be_told and self.told != REFUSED:
                    problems.append(f"the handler was told {self.told!r} of a refusal")
            case _:
                if self.told is not None:
                    problems.append(f"the handler was told {self.told!r} of what is not known")
        if self.is_queued != (entry.state is EffectState.UNRESOLVED):
            problems.append(f"{entry.state} and {'' if self.is_queued else 'not '}in the queue")
        if self.approval is not None and self.approval != ("consumed", OPERATION):
            problems.append(f"the approval is {self.approval}")
        return problems


def ending_of(entry: EffectEntry) -> str:
    """Return how an effect has ended, in the words of the expected table."""
    if entry.state is EffectState.UNRESOLVED:
        return Ending.UNRESOLVED
    if not entry.is_settled:
        return f"still {entry.state}"
    kinds = [event.kind for event in entry.life]
    newest = max(index for index, kind in enumerate(kinds) if kind in (EventKind.INTENDED, EventKind.RESENT))
    if EventKind.UNKNOWN in kinds[newest:]:
        return Ending.LOOKUP
    if kinds[newest] is EventKind.RESENT:
        return Ending.RESEND
    # Attempts that never left are none.
    return Ending.ATTEMPT if EventKind.UNKNOWN in kinds[:newest] else Ending.ANSWER


def receipt_of(entry: EffectEntry) -> str | None:
    """Return the receipt of an effect that has succeeded."""
    outcome = None if entry.outcome is None else decode_effect_outcome(entry.outcome)
    return unpack(outcome.result) if isinstance(outcome, Succeeded) else None


async def docket_of(client: Client, space: PartitionSpace, key: str) -> Docket:
    """Read an object's effects and proposals."""
    return await read_docket(client.store, space, str(Key.parse(key)))


async def queue_of(client: Client, space: PartitionSpace) -> set[tuple[str, str]]:
    """Return the effects that lie with people: key and operation of each."""
    (members,) = await ask(client.store, [("ZRANGE", space.queue, 0, -1)], [space.queue])
    items = [AgendaItem.decode(member) for member in members]
    return {(item.key, item.name) for item in items if item.kind is AgendaKind.EFFECT}
