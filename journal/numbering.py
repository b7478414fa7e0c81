"""The numbers of a partition's messages: given out when a batch is spelled, taken back when it is refused.

Numbers are contiguous for each receiving partition. A commit that is refused for good must leave no hole, so a message
has no number before its batch is spelled, and whatever is spelled anew gets its numbers anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from .codec import Undecodable
from .keyspace import PartitionSpace

#: The field of the hash of numbers that names the history they belong to; a partition's name has a dot.
HISTORY_FIELD: Final = "history"
#: The field of the hash of bases that says that messages of this partition may have been sent before.
AGAIN_FIELD: Final = "again"


@dataclass(frozen=True, slots=True)
class Counted:
    """How far the messages to one partition have come.

    Args:
        assigned: The last number that was given out.
        acknowledged: The last one that has arrived.
    """

    assigned: int = 0
    acknowledged: int = 0

    def __str__(self) -> str:
        """Return it as it is written down."""
        return f"{self.assigned}:{self.acknowledged}"

    @classmethod
    def read(cls, text: bytes) -> Counted:
        """Return what was written down.

        Raises:
            Undecodable: It is something else.
        """
        return cls(*_two_numbers(text, "the numbers of an outbox"))


@dataclass(frozen=True, slots=True)
class Base:
    """Where the numbers that a partition is told begin: an entry's number less this is what it is told.

    Args:
        before: The number before the first of them.
        restarts: How often they began anew within the history.
    """

    before: int = 0
    restarts: int = 0

    def __str__(self) -> str:
        """Return it as it is written down."""
        return f"{self.before}:{self.restarts}"

    @classmethod
    def read(cls, text: bytes) -> Base:
        """Return what was written down.

        Raises:
            Undecodable: It is something else.
        """
        return cls(*_two_numbers(text, "the base of an outbox"))


def _two_numbers(text: bytes, what: str) -> tuple[int, int]:
    try:
        first, second = map(int, text.split(b":"))
    except ValueError as error:
        raise Undecodable(f"{text!r:.60} is not {what}") from error
    return first, second


@dataclass(frozen=True, slots=True)
class Posted:
    """A message that is durable in an outbox."""

    outbox: bytes
    number: int
    message: bytes


@dataclass(slots=True)
class Numbering:
    """The numbers of one tenure.

    Args:
        space: The partition.
        history: The history that the partition's numbers belong to.
    """

    space: PartitionSpace
    history: str = ""
    _spelled: dict[bytes, Counted] = field(default_factory=dict[bytes, Counted])
    _durable: dict[bytes, Counted] = field(default_factory=dict[bytes, Counted])

    def load(self, counted: Mapping[bytes, Counted]) -> None:
        """Take over what the tenure before has left."""
        self._durable = dict(counted)
        self._spelled = dict(counted)

    def known(self, outbox: bytes) -> Counted:
        """Return what is durable of an outbox."""
        return self._durable.get(outbox, _NONE)

    def raise_to(self, outbox: bytes, counted: Counted) -> None:
        """Take note of messages that are in an outbox and were not known of, so that no number is given out twice."""
        for numbers in (self._spelled, self._durable):
            known = numbers.get(outbox, _NONE)
            if known.assigned < counted.assigned:
                numbers[outbox] = Counted(counted.assigned, max(known.acknowledged, counted.acknowledged))

    def assign(self, outbox: bytes) -> int:
        """Return the number of the next message."""
        counted = self._spelled.get(outbox, _NONE)
        number = counted.assigned + 1
        self._spelled[outbox] = Counted(number, counted.acknowledged)
        return number

    def given_out(self, outbox: bytes) -> int:
        """Return the last number that was given out, durable or not."""
        return self._spelled.get(outbox, _NONE).assigned

    def acknowledge(self, outbox: bytes, number: int) -> None:
        """Note what has arrived."""
        counted = self._spelled.get(outbox, _NONE)
        self._spelled[outbox] = Counted(counted.assigned, max(counted.acknowledged, number))

    def spelled(self, outboxes: Sequence[bytes]) -> dict[bytes, Counted]:
        """Return the numbers that a batch writes down for the outboxes that it touches."""
        return {outbox: self._spelled[outbox] for outbox in outboxes}

    def applied(self, numbers: Mapping[bytes, Counted]) -> None:
        """Note that a batch is durable."""
        self._durable.update(numbers)

    def take_back(self, kept: Iterable[Mapping[bytes, Counted]] = ()) -> None:
        """Forget the numbers of the batches that are not durable, of which none was applied.

        Args:
            kept: The numbers of those that may have been, in order: these go on as they are.
        """
        self._spelled = dict(self._durable)
        for counted in kept:
            self._spelled.update(counted)


_NONE: Final = Counted()
