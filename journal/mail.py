"""What has come for one invocation, told by its records: signals that nobody has taken yet, and its awakeables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from .command_records import AwakeableMade, WaitCompleted, WaitExpired, WaitStarted, WaitWithdrawn
from .place import Place
from .records import Record, SignalReceived

#: The records that have to do with signals and awakeables, by their types.
MAILED: Final = frozenset[type]({AwakeableMade, WaitStarted, WaitCompleted, WaitExpired, WaitWithdrawn, SignalReceived})


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


@dataclass(frozen=True, slots=True)
class Taken:
    """A signal that ended a wait.

    Args:
        signal: The signal.
        of_object: Whether it was sent to the object.
    """

    signal: SignalReceived
    of_object: bool


class Mail:
    """The signals and awakeables of one invocation."""

    __slots__ = ("_came", "_taken", "_waits", "awakeables", "early")

    def __init__(self) -> None:
        #: Signals that no wait has taken, in the order in which they came.
        self.early: list[SignalReceived] = []
        self.awakeables: dict[Place, AwakeableStanding] = {}
        self._waits: dict[Place, tuple[WaitStarted, int]] = {}
        self._taken: dict[Place, Taken] = {}
        #: The messages that were taken in, each with its place in the order in which they came.
        self._came: dict[bytes, int] = {}

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
                wait, _ = self._waits.pop(record.index, (None, 0))
                if wait is not None and wait.awakeable in self.awakeables:
                    self.awakeables[wait.awakeable].expired_ms = at_ms
            case WaitWithdrawn():
                self._withdraw(record.index)
            case SignalReceived():
                self._receive(record, at_ms)
            case _:
                pass

    def has(self, message: bytes) -> bool:
        """Return whether a message was taken in."""
        return message in self._came

    def first(self, name: str) -> SignalReceived | None:
        """Return the first signal of a name that no wait has taken."""
        return next((each for each in self.early if each.name == name), None)

    def taken(self, place: Place) -> Taken | None:
        """Return the signal that ended the wait of a place, unless it was given back."""
        return self._taken.get(place)

    def completion(self, place: Place) -> SignalReceived | WaitCompleted | None:
        """Return what completed an awakeable, None while nothing has."""
        awakeable = self.awakeables.get(place)
        return None if awakeable is None else awakeable.completed

    def has_expired(self, place: Place) -> bool:
        """Return whether the wait for an awakeable has timed out."""
        awakeable = self.awakeables.get(place)
        return awakeable is not None and awakeable.expired_ms is not None

    def waiting_since_ms(self, index: Place) -> int:
        """Return when an open wait began."""
        wait = self._waits.get(index)
        return 0 if wait is None else wait[1]

    def drop(self, records: Iterable[Record]) -> None:
        """Forget commands that don't count any more; what had come for them from outside waits again."""
        for record in records:
            match record:
                case AwakeableMade():
                    self.awakeables.pop(record.index, None)
                case WaitStarted():
                    self._waits.pop(record.index, None)
                    if record.awakeable in self.awakeables:
                        self.awakeables[record.awakeable].expired_ms = None
                case WaitCompleted() if record.index in self._taken:
                    self._put_back(self._taken.pop(record.index).signal)
                case _:
                    pass

    def _note_message(self, message: bytes) -> None:
        self._came.setdefault(message, len(self._came))

    def _complete(self, record: WaitCompleted, at_ms: int) -> None:
        self._note_message(record.message)
        wait, _ = self._waits.pop(record.index, (None, 0))
        if wait is None:
            return
        if wait.awakeable is None:
            self.early = [each for each in self.early if each.message != record.message]
            signal = SignalReceived(wait.name, None, record.message, record.value, record.by)
            self._taken[record.index] = Taken(signal, record.of_object)
            return
        awakeable = self.awakeables.setdefault(wait.awakeable, AwakeableStanding())
        if awakeable.completed is None:
            awakeable.completed, awakeable.completed_ms = record, at_ms

    def _withdraw(self, index: Place) -> None:
        self._waits.pop(index, None)
        taken = self._taken.pop(index, None)
        if taken is not None and not taken.of_object:
            self._put_back(taken.signal)

    def _put_back(self, signal: SignalReceived) -> None:
        self.early.append(signal)
        self.early.sort(key=lambda each: self._came[each.message])

    def _receive(self, record: SignalReceived, at_ms: int) -> None:
        self._note_message(record.message)
        if record.awakeable is None:
            self._put_back(record)
            return
        awakeable = self.awakeables.setdefault(record.awakeable, AwakeableStanding())
        if awakeable.completed is None:
            awakeable.completed, awakeable.completed_ms = record, at_ms
