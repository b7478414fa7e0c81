"""What the journal has of a run with branches, walked through in two orders at once.

A record that the handler's own run has made carries what was read up to it: reads and notes are looked up in the first
of those that the code has not come to again (the *next made* record). What lets a branch go on is handed over in the
order of the journal, which is the order in which the first run handed it over.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ..journal.command_records import (
    ApprovalAwaited,
    AwakeableMade,
    CallCompleted,
    CallStarted,
    CancelDelivered,
    Command,
    CompensationSkipped,
    EffectStarted,
    MessageSent,
    ModelCallBegun,
    Proposed,
    StepAttemptFailed,
    StepCompleted,
    StepFailed,
    TimerFired,
    TimerSet,
    WaitCompleted,
    WaitExpired,
    WaitStarted,
    WaitWithdrawn,
)

if TYPE_CHECKING:
    from ..journal.place import Place
    from ..journal.records import Record

#: Records that let a branch go on.
RESUMING: Final = (
    StepCompleted,
    StepFailed,
    MessageSent,
    AwakeableMade,
    Proposed,
    CallCompleted,
    TimerFired,
    WaitCompleted,
    WaitExpired,
    CancelDelivered,
)
#: Records that begin a wait: the branch goes on when its end comes.
BEGINNINGS: Final = (CallStarted, TimerSet, WaitStarted, EffectStarted, ApprovalAwaited)
#: Records that come from outside of the handler's run.
_OUTSIDE: Final = (CallCompleted, TimerFired, WaitExpired, CompensationSkipped)
#: Records that the code comes to when all is quiet, and not while it runs.
MADE_IN_QUIET: Final = (StepCompleted, StepFailed, StepAttemptFailed, ModelCallBegun, CancelDelivered)
#: Records of a step that goes on behind them.
OF_GOING_STEPS: Final = (StepAttemptFailed, ModelCallBegun)


class Replay:
    """The records of an invocation while its branches run.

    Args:
        records: The invocation's durable commands, to which new ones are added at the end.
        position: How many of them are behind the run already.
    """

    __slots__ = ("_at_place", "_made", "_passed", "_position", "_records", "withdrawn")

    def __init__(self, records: list[Record], position: int) -> None:
        self._records = records
        self._position = position
        self._made: deque[int] = deque()
        self._passed: set[int] = set()
        self._at_place: dict[Place, deque[int]] = {}
        #: Places whose waits a former run has given up.
        self.withdrawn: set[Place] = set()
        begun: set[Place] = set()
        for number in range(position, len(records)):
            record = records[number]
            if isinstance(record, WaitWithdrawn):
                self.withdrawn.add(record.index)
            elif isinstance(record, BEGINNINGS):
                begun.add(record.index)
            # A message that was there already was taken up by the handler itself: no wait for it had begun.
            is_outside = isinstance(record, _OUTSIDE) or (isinstance(record, WaitCompleted) and record.index in begun)
            if not is_outside:
                self._made.append(number)
                self._at_place.setdefault(place_of(record), deque()).append(number)

    @property
    def is_ahead(self) -> bool:
        """Whether the code has yet to come to something that a former run has made."""
        return self.head() is not None

    def head(self) -> Record | None:
        """Return the next made record; the end of a wait before which nothing was read tells nothing."""
        for number in self._made:
            record = self._records[number]
            if not isinstance(record, WaitWithdrawn) or record.reads or record.notes:
                return record
        return None

    def at(self, place: Place) -> Record | None:
        """Return what was made at a place and not come to yet."""
        numbers = self._at_place.get(place)
        return self._records[numbers[0]] if numbers else None

    def go_past(self, place: Place) -> None:
        """Take note that the code has come to what was made at a place."""
        numbers = self._at_place[place]
        self._passed.add(numbers.popleft())
        if not numbers:
            del self._at_place[place]
        while self._made and self._made[0] in self._passed:
            self._passed.discard(self._made.popleft())

    def upcoming(self) -> Record | None:
        """Return the record that is to be handed over next, or None at the end of the journal."""
        return self._records[self._position] if self._position < len(self._records) else None

    def hand_over(self) -> None:
        """Take note that a record was handed over, or is nobody's."""
        self._position += 1


def place_of(record: Record) -> Place:
    """Return the place of a command's record."""
    assert isinstance(record, Command)
    return record.index
