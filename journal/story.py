"""The story of one object, for people: what was asked, decided and sent, what is uncertain, and what is next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from .descriptions import PartitionOwner


class Topic(StrEnum):
    """What a line of the story is about."""

    ASKED = "asked"
    STEP = "step"
    STATE = "state"
    PROPOSAL = "proposal"
    DECISION = "decision"
    EFFECT = "effect"
    ANSWER = "answer"
    UNCERTAIN = "uncertain"
    PEOPLE = "people"
    WAIT = "wait"
    OTHER = "other"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened.

    Args:
        at: When, by the partition's time, and not before what it came from.
        topic: What it is about.
        text: What happened, in words.
        invocation: Id of the invocation that it happened to; None where it belongs to the object itself.
        by: Who did it, where that was a person or somebody who said a name.
    """

    at: datetime
    topic: Topic
    text: str
    invocation: str | None = None
    by: str = ""


@dataclass(frozen=True, slots=True)
class Matter:
    """Something of the object that is not settled: what is uncertain, what happens next, and whose it is.

    Args:
        what: What it is.
        why: What is known of it, in words.
        next: What happens next, in words.
        owner: Who is responsible for it.
        since: Since when it is so.
        due: When the next thing is due, None where nothing has a time.
        is_uncertain: Whether an outside system may have done something of which nobody knows.
    """

    what: str
    why: str
    next: str
    owner: str
    since: datetime | None = None
    due: datetime | None = None
    is_uncertain: bool = False


@dataclass(frozen=True, slots=True)
class Story:
    """Everything that is told of one object.

    Args:
        object_name: The object type.
        key: The object.
        partition: The partition's number.
        read_at: The partition's time when this was read.
        owner: Who owns the partition.
        in_charge: Who is in charge of the object type, None where nobody has said so.
        lines: What happened, oldest first.
        matters: What is not settled: what is uncertain first.
        problems: What can't be read.
        is_cut: Whether more has happened than is told.
    """

    object_name: str
    key: str
    partition: int
    read_at: datetime
    owner: PartitionOwner
    in_charge: str | None = None
    lines: tuple[Line, ...] = ()
    matters: tuple[Matter, ...] = ()
    problems: tuple[str, ...] = ()
    is_cut: bool = False

    @property
    def is_known(self) -> bool:
        """Whether anything of it is kept."""
        return bool(self.lines or self.matters or self.problems)


@dataclass(slots=True)
class Order:
    """Puts lines into the order in which things happened.

    Of one millisecond what was asked stands first, then what was done, then what came of it; among those, the order in
    which they were noted. The store's clock, which dates records, may be ahead of the partition's, which dates the
    rest: nothing of an invocation is told before it was asked for, and what happened to one thing in its own order.
    """

    _noted: list[tuple[int, Line]] = field(default_factory=list["tuple[int, Line]"])
    _things: int = 0

    def note(self, line: Line) -> None:
        """Note one line."""
        self.note_all((line,))

    def note_all(self, lines: Iterable[Line]) -> None:
        """Note several lines about one thing, in their own order."""
        self._things += 1
        self._noted.extend((self._things, line) for line in lines)

    def lines(self) -> tuple[Line, ...]:
        """Return all lines, oldest first."""
        asked: dict[str | None, datetime] = {}
        for _, line in self._noted:
            if line.topic is Topic.ASKED and line.invocation is not None:
                asked.setdefault(line.invocation, line.at)
        newest: dict[int, datetime] = {}
        placed: list[Line] = []
        for thing, line in self._noted:
            newest[thing] = max(line.at, asked.get(line.invocation, line.at), newest.get(thing, line.at))
            placed.append(replace(line, at=newest[thing]))
        return tuple(sorted(placed, key=lambda each: (each.at, _RANKS.get(each.topic, 1))))


_RANKS = {Topic.ASKED: 0, Topic.WAIT: 2, Topic.ANSWER: 2, Topic.UNCERTAIN: 2, Topic.PEOPLE: 3, Topic.ENDED: 4}


def by_urgency(matters: Sequence[Matter]) -> tuple[Matter, ...]:
    """Return matters with what is uncertain first, and of each kind what is due soonest."""
    return tuple(sorted(matters, key=lambda each: (not each.is_uncertain, each.due is None, each.due or each.since)))
