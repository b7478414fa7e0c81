"""What has come for one invocation, told by its records: signals that nobody has taken yet, and its awakeables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .command_records import AwakeableMade, WaitCompleted, WaitExpired, WaitStarted, WaitWithdrawn
from .place import Place
from .records import Record, Restarted, SignalReceived

#: The records that have to do with signals and awakeables, by their types.
MAILED: Final = frozenset[type](
    {AwakeableMade, WaitStarted, WaitCompleted, WaitExpired, WaitWithdrawn, SignalReceived, Restarted}
)


@dataclass(slots=True)
class AwakeableStanding:
    """Where an awakeable stands.

    Args:
        completed: What completed it, None while nothing has.
        completed_ms: When, by the partition's time.
        expired_ms: When its wait timed out, None where none has.
    """

    completed: SignalReceived | WaitCompleted | None = None
    completed_ms: int = 0
    expired_ms: int | None = None


class Mail:
    """The signals and awakeables of one invocation."""

    __slots__ = ("_waits", "awakeables", "early", "messages")

    def __init__(self) -> None:
        #: Ids of all messages that were taken in, so that a second copy is known.
        self.messages: set[bytes] = set()
        #: Signals that no wait has taken, in the order in which they came.
        self.early: list[SignalReceived] = []
        self.awakeables: dict[Place, AwakeableStanding] = {}
        self._waits: dict[Place, tuple[WaitStarted, int]] = {}

    def note(self, record: Record, at_ms: int) -> None:
        """Take one more record into account; those that have nothing to do with signals make no difference."""
        match record:
            case AwakeableMade():
                self.awakeables[record.index] = AwakeableStanding()
            case WaitStarted():
                self._waits[record.index] = record, at_ms
            case WaitCompleted():
                self._complete(record, at_ms)
            case WaitExpired():
                awakeable = self._ended(record.index)
                if awakeable is not None:
                    awakeable.expired_ms = at_ms
            case WaitWithdrawn():
                self._waits.pop(record.index, None)
            case SignalReceived():
                self._receive(record, at_ms)
            case Restarted():
                self._restart(record)
            case _:
                pass

    def first(self, name: str) -> SignalReceived | None:
        """Return the first signal of a name that no wait has taken."""
        return next((each for each in self.early if each.name == name), None)

    def completion(self, place: Place) -> SignalReceived | WaitCompleted | None:
        """Return what completed an awakeable, None while nothing has."""
        awakeable = self.awakeables.get(place)
        return None if awakeable is None else awakeable.completed

    def waiting_since_ms(self, index: Place) -> int:
        """Return when an open wait began."""
        wait = self._waits.get(index)
        return 0 if wait is None else wait[1]

    def _ended(self, index: Place) -> AwakeableStanding | None:
        """Take note that a wait has ended; returns the awakeable that it was for, if it was for one."""
        wait = self._waits.pop(index, None)
        if wait is None or wait[0].awakeable is None:
            return None
        return self.awakeables.get(wait[0].awakeable)

    def _complete(self, record: WaitCompleted, at_ms: int) -> None:
        self.messages.add(record.message)
        awakeable = self._ended(record.index)
        if awakeable is None:
            self.early = [each for each in self.early if each.message != record.message]
        elif awakeable.completed is None:
            awakeable.completed, awakeable.completed_ms = record, at_ms

    def _receive(self, record: SignalReceived, at_ms: int) -> None:
        self.messages.add(record.message)
        if record.awakeable is None:
            self.early.append(record)
            return
        awakeable = self.awakeables.setdefault(record.awakeable, AwakeableStanding())
        if awakeable.completed is None:
            awakeable.completed, awakeable.completed_ms = record, at_ms

    def _restart(self, record: Restarted) -> None:
        """Forget the waits, and the awakeables that the kept part has not made: their handler begins anew there."""
        self._waits.clear()
        self.awakeables = {
            place: each for place, each in self.awakeables.items() if isinstance(place, tuple) or place < record.kept
        }
