"""A commit and the batch that carries it, down to the words of the function call that writes it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from .keyspace import PartitionSpace
from .numbering import HISTORY_FIELD, Counted, Numbering, Posted
from .tenure import Tenure

#: An operation of `lua/commit.lua`: its letter and arguments, with a key's name where the function has a position.
Operation = tuple[Any, ...]

#: The operations that name a key, and the letter of the type that the key must have.
KEYED = {
    b"a": "s", b"t": "s", b"s": "-", b"e": "-", b"h": "h", b"q": "l", b"f": "l", b"u": "l", b"r": "l",
    b"x": "x", b"y": "x", b"k": "s", b"n": "z", b"o": "z",
    b"j": "z", b"z": "z", b"g": "h", b"m": "t", b"v": "t", b"G": "h",
}  # fmt: skip

#: The fixed keys behind the owner, in order: due, runnable, inbox, answer channel, undecodable; and which of them an
#: operation writes, with the letter of its type.
FIXED_KEYS = 5
FIXED = {
    b"d": (0, "z"), b"c": (0, "z"),
    b"q": (1, "t"), b"f": (1, "t"), b"u": (1, "t"), b"w": (1, "t"), b"l": (1, "t"), b"r": (1, "t"),
    b"i": (2, "s"),
    b"b": (4, "s"),
}  # fmt: skip

#: Told once how a commit ended: the partition's time in milliseconds, or the error for which it was refused.
CommitDone = Callable[[int, BaseException | None], None]


def unheard(now_ms: int, error: BaseException | None) -> None:
    """Let a commit end that nobody waits for."""
    del now_ms, error


class Commit:
    """Operations that are applied together or not at all.

    Args:
        operations: What to write, in order.
        done: Told of the end; must not raise.
        lane: What the commit belongs to: when one commit of a lane is refused for good, so are those queued after it.
        takes_in: Whether it takes new work in: refused while the store's memory is full, when all others go on.
        accepts: The invocations that it takes in, when it does nothing else: only what is about them is built on it.
        about: The invocation that it goes on with, where that may have been taken in by a commit shortly before.
        weight: How many bytes of values larger than usual it carries.
    """

    __slots__ = ("about", "accepts", "done", "lane", "operations", "takes_in", "weight")

    def __init__(
        self,
        operations: list[Operation],
        done: CommitDone = unheard,
        lane: Hashable = None,
        *,
        takes_in: bool = False,
        accepts: Collection[bytes] = (),
        about: bytes | None = None,
        weight: int = 0,
    ) -> None:
        self.operations = operations
        self.done = done
        self.lane = lane
        self.takes_in = takes_in
        self.accepts = accepts
        self.about = about
        self.weight = weight

    def writes(self, key: bytes) -> bool:
        """Return whether an operation names a key."""
        return any(operation[0] in KEYED and operation[1] == key for operation in self.operations)

    @property
    def is_counted(self) -> bool:
        """Return whether an operation gives out a number, or takes an acknowledgement."""
        return any(operation[0] in (b"x", b"y") for operation in self.operations)

    def writes_fixed(self, fixed: int) -> bool:
        """Return whether an operation writes one of the fixed keys, by its place among them."""
        return any(FIXED.get(operation[0], (None,))[0] == fixed for operation in self.operations)


@dataclass(slots=True)
class Batch:
    """A numbered batch. What it says never changes once it was sent.

    Attributes:
        on_wire: Whether an answer is awaited.
        in_doubt: Whether it was sent once without an answer, so that it may have been applied, whatever is said later.
        posted: Its messages, with the numbers that they have in it; None where there are none, as in most batches.
        counted: How far their outboxes have come with it.
        sent_at: When it was sent first, in seconds of a clock of this process, where somebody wants to know.
    """

    number: int
    serial: int
    commits: list[Commit]
    words: tuple[Any, ...]
    on_wire: bool = False
    in_doubt: bool = False
    was_sent: bool = False
    posted: list[Posted] | None = None
    counted: dict[bytes, Counted] | None = None
    numbers: bytes = b""
    sent_at: float = 0.0

    @property
    def takes_in(self) -> bool:
        """Whether it takes new work in."""
        return any(commit.takes_in for commit in self.commits)

    def call(self, function: str) -> None:
        """Have it applied by another name of the commit function, which does the same."""
        self.words = (self.words[0], function, *self.words[2:])

    def key(self, position: int) -> bytes:
        """Return the key that stands at a position of the call, counted from 1."""
        return self.words[2 + position]

    def writers(self, position: int) -> set[Commit]:
        """Return the commits that write to the key at a position; the owner's, at 1, is written by all."""
        fixed, key = position - 2, self.key(position)
        if fixed < 0:
            return set(self.commits)
        if fixed < FIXED_KEYS:
            return {commit for commit in self.commits if commit.writes_fixed(fixed)}
        if key == self.numbers:
            return {commit for commit in self.commits if commit.is_counted}
        return {commit for commit in self.commits if commit.writes(key)}


def build_batch(
    function: str,
    space: PartitionSpace,
    tenure: Tenure,
    number: int,
    serial: int,
    built_on: int,
    commits: list[Commit],
    numbering: Numbering | None = None,
) -> Batch:
    """Spell the function call that applies commits.

    Args:
        function: The global name of the commit function.
        space: The partition's keys.
        tenure: The period of ownership under which it is written.
        number: The batch's number within the tenure.
        serial: Different for each content that was ever given a number in this tenure.
        built_on: Serial of the batch before it, 0 for the first: it is applied behind that one or not at all.
        commits: What to apply, in order.
        numbering: Gives their messages their numbers.
    """
    letters = ["-"] * FIXED_KEYS
    positions: dict[bytes, int] = {}
    words: list[Any] = []
    counting = _spell(commits, letters, positions, words, numbering or Numbering(space))
    if counting is not None:
        if space.sent not in positions:
            letters.append("h")
            positions[space.sent] = len(positions) + 7
        words += counting.words(positions[space.sent])
    call = (
        "FCALL", function, 6 + len(positions),
        space.owner, space.due, space.runnable, space.inbox, space.answer_channel, space.undecodable, *positions,
        tenure.epoch, tenure.token, number, serial, built_on, "".join(letters), *words,
    )  # fmt: skip
    batch = Batch(number, serial, commits, call)
    return batch if counting is None else counting.noted(batch)


def _spell(
    commits: list[Commit], letters: list[str], positions: dict[bytes, int], words: list[Any], numbering: Numbering
) -> _Counting | None:
    """Spell the operations of commits.

    Args:
        commits: What to apply, in order.
        letters: Gets the letter of each key's type, from the second key of the call on.
        positions: Gets the keys that the operations name, in order, and where they stand in the call.
        words: Gets the operations.
        numbering: Gives their messages their numbers.

    Returns:
        What was counted, None where nothing was.
    """
    counting: _Counting | None = None
    for commit in commits:
        for operation in commit.operations:
            verb = operation[0]
            if verb in FIXED:
                place, kind = FIXED[verb]
                letters[place] = kind
            letter = KEYED.get(verb)
            if letter is None:
                words += operation
                continue
            key = operation[1]
            position = positions.get(key)
            if position is None:
                position = positions[key] = len(positions) + 7
                letters.append(letter)
            elif letter != "-":
                letters[position - 2] = letter
            if letter == "x":
                counting = counting or _Counting(numbering)
                words += (verb, position, *counting.spell(operation))
                continue
            words += operation
            # Its key, which stands behind the verb.
            words[1 - len(operation)] = position
    return counting


def without_intake(commits: Iterable[Commit]) -> tuple[list[Commit], list[Commit]]:
    """Part commits into those that may go on while memory is full, and those that take in or were built on such."""
    lanes: set[Hashable] = set()
    ids: set[bytes | None] = set()
    staying: list[Commit] = []
    turned_away: list[Commit] = []
    for commit in commits:
        if not (commit.takes_in or commit.lane in lanes or commit.about in ids):
            staying.append(commit)
            continue
        turned_away.append(commit)
        if commit.accepts:
            ids.update(commit.accepts)
        elif commit.lane is not None:
            lanes.add(commit.lane)
    return staying, turned_away


class _Counting:
    """The messages of one batch: their numbers, and what is written down of these."""

    __slots__ = ("_numbering", "_posted", "outboxes")

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering
        self._posted: list[Posted] = []
        self.outboxes: dict[bytes, None] = {}

    def spell(self, operation: Operation) -> tuple[Any, ...]:
        """Return the arguments of an operation behind its key."""
        letter, outbox, argument = operation
        self.outboxes[outbox] = None
        if letter == b"y":
            self._numbering.acknowledge(outbox, argument)
            return (argument,)
        number = self._numbering.assign(outbox)
        self._posted.append(Posted(outbox, number, argument))
        return (number, argument)

    def words(self, position: int) -> list[Any]:
        """Return what writes down how far the numbers have come, in the hash at a position."""
        numbering = self._numbering
        target = numbering.space.target
        words: list[Any] = []
        for outbox, counted in numbering.spelled(tuple(self.outboxes)).items():
            words += (b"h", position, target(outbox), str(counted))
        if self._posted:
            words += (b"h", position, HISTORY_FIELD, numbering.history)
        return words

    def noted(self, batch: Batch) -> Batch:
        """Return a batch with what becomes durable with it."""
        batch.posted = self._posted
        batch.counted = self._numbering.spelled(tuple(self.outboxes))
        batch.numbers = self._numbering.space.sent
        return batch
