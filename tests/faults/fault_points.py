"""An observer that hurts its own process at a numbered point, as the environment says."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

VARIABLE: Final = "KEYLANE_TEST_FAULT"


class Action(StrEnum):
    """What is done to the process."""

    KILL = "kill"
    STOP = "stop"


class Moment(StrEnum):
    """When: before the call is sent, or once its answer has arrived and nobody has seen it."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong: `kill:before:3` is SIGKILL before the third commit of the process is sent.

    Args:
        action: What is done.
        moment: Before the send or after the answer.
        number: At which call of the verb in this process, counted from 1.
        verb: Which function; `kill:after:1:acquire` means the first acquisition.
    """

    action: Action
    moment: Moment
    number: int
    verb: str = "commit"

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read a fault as the environment spells it."""
        action, moment, number, *verb = text.split(":")
        return cls(Action(action), Moment(moment), int(number), *verb)

    def __str__(self) -> str:
        """Return the fault as the environment spells it."""
        return f"{self.action}:{self.moment}:{self.number}:{self.verb}"


class FaultPoints:
    """Counts the calls of each verb and lets the faults happen; `drop` keeps back every pub/sub message."""

    def __init__(self, faults: list[Fault], *, drop: bool = False) -> None:
        self._faults = faults
        self._drop = drop
        self._counts: dict[tuple[Moment, str], int] = {}

    @classmethod
    def from_environment(cls) -> FaultPoints:
        """Read the faults of this process, separated by commas; the word `drop` among them drops every message."""
        words = [word for word in os.environ.get(VARIABLE, "").split(",") if word]
        return cls([Fault.parse(word) for word in words if word != "drop"], drop="drop" in words)

    def before_send(self, what: str, partition: str, number: int) -> None:
        """Let what should happen before a call happen."""
        del partition, number
        self._reach(Moment.BEFORE, what)

    def after_answer(self, what: str, partition: str, number: int) -> None:
        """Let what should happen after an answer happen."""
        del partition, number
        self._reach(Moment.AFTER, what)

    def deliver(self, channel: bytes) -> bool:
        """Return whether pub/sub messages pass."""
        del channel
        return not self._drop

    def _reach(self, moment: Moment, verb: str) -> None:
        count = self._counts[moment, verb] = self._counts.get((moment, verb), 0) + 1
        for fault in self._faults:
            if (fault.moment, fault.verb, fault.number) == (moment, verb, count):
                os.kill(os.getpid(), signal.SIGKILL if fault.action is Action.KILL else signal.SIGSTOP)
