"""The batches of one tenure: numbered 1, 2, 3 …, each built on the one before it.

A batch is sent again, byte for byte, until the store gives an answer that counts: applied, fenced, or refused for good.
Batches behind one that was not applied answer GAP and are sent again after it, so they are applied once and in order.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Protocol

from .batch import Batch, Commit, build_batch, without_intake
from .errors import InternalError, StoreFull, WrongKeyType
from .keyspace import PartitionSpace
from .numbering import Numbering, Posted
from .server_identity import ServerIdentity
from .tenure import Tenure

if TYPE_CHECKING:
    from .committer import Committer

logger = logging.getLogger("keylane.commit")

#: A call stays well below 5 ms in the server with this many operations, also where each of them looks for its place
#: among very many due times, and while the server rewrites its file: the first write to a page that it shares with the
#: process that does so copies the page, and most operations have a key, and so pages, of their own. In a server whose
#: allocator is that of the C library, what it needs for the call itself may lie on thousands of pages more.
OPERATIONS_PER_BATCH = 100
#: So does one that carries about so much, in values that are larger than usual, or a single commit that carries more.
BYTES_PER_BATCH = 1 << 20
#: So many commits fit into one call without being counted, as long as none of them has more operations than these.
FEW_COMMITS = 10
SMALL_OPERATIONS = OPERATIONS_PER_BATCH // FEW_COMMITS
#: Turns that may be on the wire at once: the next is prepared while the server syncs the one before.
TURNS_IN_FLIGHT = 2
RESEND_FIRST_SECONDS = 0.02
#: A partition whose slot is between two nodes is tried this often at least.
REST_CAP_SECONDS = 0.1


class Routes(Protocol):
    """Which server has which partition, as far as the writers need to know it.

    Attributes:
        troubles: By partition tag, why its batches are not taken now; for those who wait.
    """

    troubles: dict[bytes, str]

    def committer_of(self, space: PartitionSpace) -> Committer:
        """Return the committer of the server that has a partition."""
        ...

    def refused(self, error: Exception) -> Committer | None:
        """Take note of a refusal, and return where it says that this one batch belongs, if it says so."""
        ...

    def lost(self) -> None:
        """Take note that a server can't be reached."""
        ...


class PartitionWriter:
    """The batches of one tenure: numbered 1, 2, 3 …, in the order in which their commits were queued.

    Args:
        space: The partition's keys.
        tenure: The period of ownership under which everything is written.
        committer: Sends what is queued.
    """

    def __init__(self, space: PartitionSpace, tenure: Tenure, committer: Committer) -> None:
        self.space = space
        self.tenure = tenure
        self.name = str(space)
        self.queued: deque[Commit] = deque()
        self.unanswered: deque[Batch] = deque()
        self.number = 0
        self.serial = 0
        self.applied_number = 0
        self.applied_serial = 0
        self.on_wire = 0
        self.resending = False
        self.lost: BaseException | None = None
        #: Where this partition's slot is on its way to, for the next sending only.
        self.detour: Committer | None = None
        self.is_asking = False
        self.setbacks = 0
        self._rests = False
        #: Gives messages their numbers as their batch is spelled.
        self.numbering = Numbering(space)
        #: Told of the partition's time with each answer, ahead of those who wait for it; must not raise.
        self.on_time: Callable[[int], None] | None = None
        #: Told of the messages of each batch once they are durable; must not raise.
        self.on_posted: Callable[[list[Posted]], None] | None = None
        #: Told how many commits a batch had and how many seconds it took, once it is durable; must not raise.
        self.on_applied: Callable[[int, float], None] | None = None
        self._committer = committer
        #: How many of the queued commits have to be looked at before they go out together.
        self._large = 0
        self._home = committer

    def commit(self, commit: Commit) -> None:
        """Queue a commit; it goes out with the others of this turn."""
        if self.lost is not None:
            _tell(commit, 0, self.lost)
            return
        if commit.weight or len(commit.operations) > SMALL_OPERATIONS:
            self._large += 1
        self.queued.append(commit)
        self._committer.commit_waits(self)

    @property
    def server(self) -> ServerIdentity | None:
        """The server that has the partition, as far as it has said who it is; not yet one that its slot is going to."""
        return self._home.identity.identity

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or unanswered."""
        return not self.queued and not self.unanswered

    def next_batches(self, function: str) -> list[Batch]:
        """Return what can be sent now: the unanswered ones from the lowest on, or a new one."""
        if self.resending:
            if self.on_wire or self._rests:
                return []
            self.resending = False
            return list(self.unanswered)
        if not self.queued or len(self.unanswered) >= TURNS_IN_FLIGHT:
            return []
        commits = self._next_commits()
        if self._committer.is_full and not any(commit.takes_in for commit in commits):
            function = self._committer.finishing
        self.number += 1
        self.serial += 1
        built_on = self.unanswered[-1].serial if self.unanswered else self.applied_serial
        batch = build_batch(
            function, self.space, self.tenure, self.number, self.serial, built_on, commits, self.numbering
        )
        if self.on_applied is not None:
            batch.sent_at = time.monotonic()
        self.unanswered.append(batch)
        return [batch]

    def wake(self) -> None:
        """Have what there is sent, by the committer of the server that has the partition now."""
        if self.resending and not self.on_wire:
            self._find_committer()
        self._committer.wake(self)

    def settle(self) -> None:
        """Move to the server that has the partition now, unless an answer of the former one is still awaited."""
        if self.on_wire or self.lost is not None:
            return
        self._find_committer()
        if not self.is_idle:
            self._committer.wake(self)

    def _find_committer(self) -> None:
        found = self.detour
        if found is None:
            found = self._home = self._committer.routes.committer_of(self.space)
        self.is_asking, self.detour = self.detour is not None, None
        if found is not self._committer:
            self._committer.forget(self)
            self._committer = found

    def set_back(self, why: str) -> None:
        """Wait a little before sending again what this partition's server did not take, longer each time.

        The first time there is no wait: most often the refusal itself has said which server has the partition.
        """
        self._committer.routes.troubles[self.space.tag] = why
        self.setbacks += 1
        if self.setbacks > 1 and not self._rests:
            self._rests = True
            delay = min(RESEND_FIRST_SECONDS * 2 ** min(self.setbacks - 2, 8), REST_CAP_SECONDS)
            asyncio.get_running_loop().call_later(delay, self._go_on)

    def note_trouble(self, why: str) -> None:
        """Have those who wait told what for, until a batch is through."""
        self._committer.routes.troubles[self.space.tag] = why
        self.setbacks = self.setbacks or 1

    def _go_on(self) -> None:
        self._rests = False
        if self.lost is None:
            self.wake()

    def recovered(self) -> None:
        """Forget what was in the way."""
        self.setbacks = 0
        self._committer.routes.troubles.pop(self.space.tag, None)

    def _next_commits(self) -> list[Commit]:
        if len(self.queued) <= FEW_COMMITS and not self._large:
            commits = list(self.queued)
            self.queued.clear()
            return commits
        return self._bounded_commits()

    def _bounded_commits(self) -> list[Commit]:
        queued, commits, operations, weight = self.queued, list[Commit](), 0, 0
        while queued:
            operations += len(queued[0].operations)
            weight += queued[0].weight
            if commits and (operations > OPERATIONS_PER_BATCH or weight > BYTES_PER_BATCH):
                break
            commit = queued.popleft()
            self._large -= is_large(commit)
            commits.append(commit)
        return commits

    def applied(self, batch: Batch, now: int) -> None:
        """Tell the commits of a batch that they are durable."""
        if self.unanswered[0] is not batch:
            self.lose(InternalError(f"{self.name}: batch {batch.number} was answered before the one ahead of it"))
            return
        self.unanswered.popleft()
        self.applied_number = batch.number
        self.applied_serial = batch.serial
        if batch.counted:
            self.numbering.applied(batch.counted)
        if self.on_time is not None:
            self.on_time(now)
        for commit in batch.commits:
            _tell(commit, now, None)
        if batch.posted and self.on_posted is not None:
            self.on_posted(batch.posted)
        if self.on_applied is not None and batch.sent_at:
            self.on_applied(len(batch.commits), time.monotonic() - batch.sent_at)

    def lose(self, error: BaseException) -> None:
        """End the tenure's writing: nothing that is not yet durable will be."""
        self.lost = error
        self._committer.routes.troubles.pop(self.space.tag, None)
        lost = [commit for batch in self.unanswered for commit in batch.commits]
        lost.extend(self.queued)
        self.unanswered.clear()
        self.queued.clear()
        for commit in lost:
            _tell(commit, 0, error)

    def refuse(self, batch: Batch, error: Exception) -> None:
        """Take out of the queue what the store refused for good, with all that was built on it; keep the rest.

        The batch was not applied and neither was any behind it, so their numbers are free again.
        """
        position = _wrong_position(error)
        named = set(batch.commits) if position is None else batch.writers(position)
        lanes: set[Hashable] = {commit.lane for commit in named if commit.lane is not None}
        everything = [commit for each in self.unanswered for commit in each.commits]
        everything.extend(self.queued)
        refused = {commit: None for commit in everything if commit in named or commit.lane in lanes}
        self.unanswered.clear()
        self.resending = False
        # The messages of all that was not applied get other numbers with the batches that they go out in.
        self.numbering.take_back()
        self.number = batch.number - 1
        self.queued = deque(commit for commit in everything if commit not in refused)
        self._large = sum(map(is_large, self.queued))
        reason = error if position is None else WrongKeyType(batch.key(position).decode(errors="replace"))
        for commit in refused:
            _tell(commit, 0, reason)

    def turn_away(self) -> None:
        """Take out of the queue what takes in, with all that was built on it, since the store has no memory for it.

        Nothing may be on the wire. What was never in doubt was not applied, so its numbers are free again. A batch that
        is in doubt may have been applied before the memory was full: it goes on as it is, by the name that is let in.
        """
        kept = list(itertools.takewhile(lambda batch: batch.in_doubt, self.unanswered))
        for batch in kept:
            batch.call(self._committer.finishing)
        others = list(self.unanswered)[len(kept) :]
        everything = [commit for batch in others for commit in batch.commits]
        everything.extend(self.queued)
        staying, turned_away = without_intake(everything)
        self.unanswered = deque(kept)
        self.resending = bool(kept)
        self.number -= len(others)
        self.numbering.take_back(batch.counted for batch in kept if batch.counted)
        self.queued = deque(staying)
        self._large = sum(map(is_large, self.queued))
        for commit in turned_away:
            _tell(commit, 0, StoreFull())


def is_large(commit: Commit) -> bool:
    """Return whether a commit is more than a small part of what one call may carry."""
    return commit.weight > 0 or len(commit.operations) > SMALL_OPERATIONS


def _wrong_position(error: Exception) -> int | None:
    """Return the position of the foreign key that a refusal names, or None for another refusal."""
    code, position, *_ = (*str(error).split(" ", 2), "")
    return int(position) if code == "WRONGKEYTYPE" else None


def _tell(commit: Commit, now: int, error: BaseException | None) -> None:
    try:
        commit.done(now, error)
    except Exception:
        # One that raises against its word must not leave the others of its batch untold.
        logger.exception("what waited for a commit failed on its end")
