"""The points inside a worker at which a test hits it, and the seams by which it gets there.

Some lie in the functions that call the receiver, where calls are held. The others lie at the store: the commits of one
kind are held back until all objects have one, and go out together, so that one call carries them all; then the process
is hit before the call is sent, or when its answer has arrived and nobody has seen it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from keylane.journal import writer
from keylane.journal.batch import Commit, Operation
from keylane.journal.codec import Undecodable
from keylane.journal.effects import EffectEntry, EffectState
from keylane.journal.writer import PartitionWriter
from keylane.runtime.declared_undos import SUFFIX

#: Says at which point in the code calls are held, and what is done to the process at which commit.
HOLD: Final = "KEYLANE_TEST_HOLD"
STRIKE: Final = "KEYLANE_TEST_STRIKE"
#: How long commits of one kind that are all there are held back for: time in which a call that does not wait for them
#: would get out.
LEAK_SECONDS: Final = 0.1
OPERATIONS_MAX: Final = 10_000


class Point(StrEnum):
    """A point in the functions that call the receiver."""

    FIRST_BYTE = "first-byte"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Hold:
    """Where calls are held.

    Args:
        point: At which point.
        count: How many there must be.
    """

    point: Point
    count: int

    @classmethod
    def parse(cls, text: str) -> Hold:
        """Read it as the environment spells it: `first-byte:24`."""
        point, _, count = text.partition(":")
        return cls(Point(point), int(count))

    def __str__(self) -> str:
        return f"{self.point}:{self.count}"


_unsent: list[Callable[[], None]] = []


def at_first_byte(send: Callable[[], None]) -> None:
    """Send a request; where the test says so only when all are here, and this process was stopped and goes on.

    Nothing can come between: neither a look at the clock, nor the end of a timeout.
    """
    hold = _hold()
    if hold is None or hold.point is not Point.FIRST_BYTE:
        send()
        return
    _unsent.append(send)
    if len(_unsent) == hold.count:
        os.kill(os.getpid(), signal.SIGSTOP)
        for each in _unsent:
            each()


async def at_answer(order: str) -> None:
    """Wait here for ever, where the test says so."""
    hold = _hold()
    if hold is not None and hold.point is Point.ANSWER:
        say(f"has the answer for {order}")
        await asyncio.Event().wait()


def _hold() -> Hold | None:
    text = os.environ.get(HOLD)
    return Hold.parse(text) if text else None


def say(line: str) -> None:
    """Tell the test."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class What(StrEnum):
    """What a commit says of an effect."""

    INTENT = "intent"
    OUTCOME = "outcome"
    UNDO = "intent of an undo"


_STATES: Final = {
    What.INTENT: {EffectState.INTENDED},
    What.UNDO: {EffectState.INTENDED},
    What.OUTCOME: {EffectState.SUCCEEDED, EffectState.REJECTED, EffectState.UNKNOWN, EffectState.UNRESOLVED},
}


@dataclass(frozen=True, slots=True)
class Strike:
    """What happens to the process at the store.

    Args:
        what: At commits that say what.
        count: How many there must be.
        is_after: Whether once they are answered, and not before they are sent.
        number: The signal.
    """

    what: What
    count: int
    is_after: bool
    number: int

    @classmethod
    def parse(cls, text: str) -> Strike:
        """Read it as the environment spells it: `intent:24:after:9`."""
        what, count, moment, number = text.split(":")
        return cls(What(what), int(count), moment == "after", int(number))

    def __str__(self) -> str:
        return f"{self.what}:{self.count}:{'after' if self.is_after else 'before'}:{self.number}"


class Striker:
    """Holds back commits until all are there, and hits the process at the call that carries them: an observer.

    Args:
        strike: What happens when; None for nothing.
    """

    def __init__(self, strike: Strike | None) -> None:
        self._strike = strike
        self._held: dict[Hashable, list[Callable[[], None]]] = {}
        self._is_due = False
        self._is_over = False
        self._batches: set[tuple[str, int]] = set()

    @classmethod
    def from_environment(cls) -> Striker:
        """Read what is to happen in this process, and take its seat at the commits."""
        text = os.environ.get(STRIKE)
        striker = cls(Strike.parse(text) if text else None)
        if striker._strike is not None:
            striker._sit_down()
        return striker

    def before_send(self, what: str, partition: str, number: int) -> None:
        """Hit it now, or remember which answer to wait for."""
        if not self._is_due or what != "commit" or not partition.startswith("Cell:"):
            return
        self._is_due = False
        assert self._strike is not None
        if self._strike.is_after:
            self._batches.add((partition, number))
        else:
            os.kill(os.getpid(), self._strike.number)

    def after_answer(self, what: str, partition: str, number: int) -> None:
        """Hit it when the answer of the call has come."""
        if what == "commit" and (partition, number) in self._batches:
            self._batches.clear()
            assert self._strike is not None
            os.kill(os.getpid(), self._strike.number)

    def deliver(self, channel: bytes) -> bool:
        """Let every message pass."""
        del channel
        return True

    def _sit_down(self) -> None:
        queue, striker = PartitionWriter.commit, self

        def hold_back(self: PartitionWriter, commit: Commit) -> None:
            if not striker._holds(commit, lambda: queue(self, commit)):
                queue(self, commit)

        # One call carries them all, however many they are.
        writer.OPERATIONS_PER_BATCH = OPERATIONS_MAX
        # Behind the lanes, which take what is held back for queued: whatever waits for it waits.
        PartitionWriter.commit = hold_back

    def _holds(self, commit: Commit, go_on: Callable[[], None]) -> bool:
        """Hold a commit back if it is one of those, or if one of its lane is held before it; return whether it is."""
        if self._strike is None or self._is_over:
            return False
        if commit.lane in self._held:
            self._held[commit.lane].append(go_on)
            return True
        if not any(_says(operation, self._strike.what) for operation in commit.operations):
            return False
        self._held[commit.lane] = [go_on]
        if len(self._held) == self._strike.count:
            asyncio.get_running_loop().call_later(LEAK_SECONDS, self._let_all_go)
        return True

    def _let_all_go(self) -> None:
        self._is_due = self._is_over = True
        for commits in self._held.values():
            for go_on in commits:
                go_on()


def _says(operation: Operation, what: What) -> bool:
    if operation[0] != b"h":
        return False
    if what is What.UNDO and not str(operation[2]).endswith(SUFFIX):
        return False
    try:
        return EffectEntry.decode(operation[3]).state in _STATES[what]
    except (Undecodable, TypeError):
        return False
