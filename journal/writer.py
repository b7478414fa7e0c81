"""Group commit: the numbered batches of one tenure, and the committer that sends those of all partitions together.

A batch is sent again, byte for byte, until the store gives an answer that counts: applied, fenced, or refused for good.
Batches behind one that was not applied answer GAP and are sent again after it, so they are applied once and in order.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Hashable
from enum import Enum, auto
from functools import partial
from typing import Any, Protocol, assert_never

import anyio
import redis.exceptions

from .batch import Batch, Commit, build_batch, without_intake
from .errors import Fenced, InternalError, StoreError, StoreFull, WrongKeyType
from .keyspace import PartitionSpace
from .library import FINISHING, Library
from .link import Link, LinkLost
from .numbering import Numbering, Posted
from .observer import Observer
from .refusals import why_unavailable
from .replication import WAIT_MS, too_few, witness_words
from .server_identity import IdentityWatch, ServerIdentity
from .tenure import Tenure

logger = logging.getLogger("keylane.commit")

#: A call stays below 5 ms in the server with this many commits and this many operations, whichever is reached first.
COMMITS_PER_BATCH = 300
OPERATIONS_PER_BATCH = 400
#: So does one that carries about so much, in values that are larger than usual, or a single commit that carries more.
BYTES_PER_BATCH = 1 << 20
#: Turns that may be on the wire at once: the next is prepared while the server syncs the one before.
TURNS_IN_FLIGHT = 2
#: So many waiting commits go out in the middle of a turn of the loop. Callers whose answers come together commit
#: together, so without it all of them wait for one sync, and client and server idle in turns.
COMMITS_MID_TURN = 32
RESEND_FIRST_SECONDS = 0.02
RESEND_CAP_SECONDS = 1.0
#: A partition whose slot is between two nodes is tried this often at least.
REST_CAP_SECONDS = 0.1

_NOT_APPLIED = (
    "LOADING", "BUSY", "READONLY", "TRYAGAIN", "MOVED", "ASK", "CLUSTERDOWN", "MASTERDOWN", "MISCONF",
    "NOREPLICAS", "GAP", "ERR Function not found", "Function not found",
)  # fmt: skip


#: Refusals that are about the slot of one partition, not about the server.
_OF_THE_SLOT = (
    redis.exceptions.AskError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
)


class Answer(Enum):
    """What a reply to a batch means for it."""

    APPLIED = auto()
    SEND_AGAIN = auto()
    FULL = auto()
    FENCED = auto()
    REFUSED = auto()


def classify(reply: Any) -> Answer:
    """Decide what a reply or exception means.

    Args:
        reply: The partition time of an applied batch, or the exception that the link handed over.
    """
    match reply:
        case int():
            return Answer.APPLIED
        case LinkLost() | redis.exceptions.ConnectionError():
            return Answer.SEND_AGAIN
        case redis.exceptions.ResponseError():
            return _classify_error(reply)
        case _:
            return Answer.REFUSED


def _classify_error(error: redis.exceptions.ResponseError) -> Answer:
    text = str(error)
    if text.startswith("FENCED"):
        return Answer.FENCED
    if isinstance(error, redis.exceptions.OutOfMemoryError) or text.startswith("OOM"):
        return Answer.FULL
    retried = (
        redis.exceptions.ReadOnlyError
        | redis.exceptions.TryAgainError
        | redis.exceptions.AskError
        | redis.exceptions.ClusterDownError
    )
    if isinstance(error, retried) or text.startswith(_NOT_APPLIED):
        return Answer.SEND_AGAIN
    return Answer.REFUSED


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
        #: Told of the messages of each batch once they are durable; must not raise.
        self.on_posted: Callable[[list[Posted]], None] | None = None
        self._committer = committer

    def commit(self, commit: Commit) -> None:
        """Queue a commit; it goes out with the others of this turn."""
        if self.lost is not None:
            _tell(commit, 0, self.lost)
            return
        self.queued.append(commit)
        self._committer.commit_waits(self)

    @property
    def server(self) -> ServerIdentity | None:
        """The server that has the partition, as far as it has said who it is."""
        return self._committer.identity.identity

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
        found = self.detour or self._committer.routes.committer_of(self.space)
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
        queued, commits, operations, weight = self.queued, list[Commit](), 0, 0
        while queued and len(commits) < COMMITS_PER_BATCH:
            operations += len(queued[0].operations)
            weight += queued[0].weight
            if commits and (operations > OPERATIONS_PER_BATCH or weight > BYTES_PER_BATCH):
                break
            commits.append(queued.popleft())
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
        for commit in batch.commits:
            _tell(commit, now, None)
        if batch.posted and self.on_posted is not None:
            self.on_posted(batch.posted)

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
        self.numbering.take_back(batch.counted for batch in kept)
        self.queued = deque(staying)
        for commit in turned_away:
            _tell(commit, 0, StoreFull())


def _wrong_position(error: Exception) -> int | None:
    """Return the position of the foreign key that a refusal names, or None for another refusal."""
    code, position, *_ = (*str(error).split(" ", 2), "")
    return int(position) if code == "WRONGKEYTYPE" else None


class Committer:
    """Sends the batches of all partitions that one server holds, once a turn.

    Args:
        link: The connection to that server, used for nothing else, so that batches keep their order.
        library: The functions.
        observer: Told of every batch before it is sent and after its answer.
        routes: Knows which server has which partition.
        on_full: Called when the server has refused a batch for want of memory.
        replicas: How many have to have a batch before its commits are told that they are durable.
        identity: Knows which server answers over the connection.

    Attributes:
        is_full: Whether the server had no memory when it was last asked to take something in.
        finishing: The name of the commit function by which it runs while memory is full.
    """

    def __init__(
        self,
        link: Link,
        library: Library,
        observer: Observer,
        routes: Routes,
        on_full: Callable[[], None] | None = None,
        *,
        replicas: int = 0,
        identity: IdentityWatch | None = None,
    ) -> None:
        self.routes = routes
        self._link = link
        self._library = library
        self._function = library.function("commit")
        self.finishing = library.function(FINISHING["commit"])
        self.is_full = False
        self._on_full = on_full
        self._full: set[PartitionWriter] = set()
        self._code = library.code
        self._replicas = replicas
        self.identity = identity or IdentityWatch()
        self._turns: deque[_Turn] = deque()
        self._observer = observer
        self._ready: dict[PartitionWriter, None] = {}
        self._refused: dict[PartitionWriter, tuple[Batch, Exception]] = {}
        self._turns_in_flight = 0
        self._waiting = 0
        self._on_wire = 0
        self._mid_turn = COMMITS_MID_TURN
        self._failures = 0
        self._idle: asyncio.Future[None] | None = None

    def commit_waits(self, writer: PartitionWriter) -> None:
        """Note that a partition has one commit more to send."""
        self._waiting += 1
        self.wake(writer)
        if self._waiting >= self._mid_turn and self._turns_in_flight < TURNS_IN_FLIGHT and not self._failures:
            self._send_turn()
            self._link.flush()

    def wake(self, writer: PartitionWriter) -> None:
        """Note that a partition has something to send."""
        self._ready[writer] = None
        idle = self._idle
        if idle is not None:
            self._idle = None
            if not idle.done():
                idle.set_result(None)

    def forget(self, writer: PartitionWriter) -> None:
        """Leave a partition to the committer of another server."""
        self._ready.pop(writer, None)

    async def run(self) -> None:
        """Send turn after turn until cancelled."""
        while True:
            if not self._ready or self._turns_in_flight >= TURNS_IN_FLIGHT:
                self._idle = idle = asyncio.get_running_loop().create_future()
                await idle
                continue
            # One more turn of the loop lets everybody who is ready join this batch.
            await asyncio.sleep(0)
            if self._failures:
                await self._back_off()
            self._send_turn()
            self._link.flush()

    async def _back_off(self) -> None:
        await anyio.sleep(min(RESEND_FIRST_SECONDS * 2 ** (self._failures - 1), RESEND_CAP_SECONDS))
        while not self._link.is_up:
            await anyio.sleep(RESEND_FIRST_SECONDS)

    def _send_turn(self) -> None:
        ready, self._ready = self._ready, {}
        self._waiting = 0
        sent: list[tuple[PartitionWriter, Batch]] = []
        for writer in ready:
            if writer.lost is None and writer not in self._refused and writer not in self._full:
                sent.extend((writer, batch) for batch in writer.next_batches(self._function))
        if not sent:
            return
        turn = _Turn(len(sent))
        self._turns_in_flight += 1
        for writer, batch in sent:
            batch.on_wire = True
            writer.on_wire += 1
            self._on_wire += len(batch.commits)
            self._observer.before_send("commit", writer.name, batch.number)
            if writer.is_asking:
                self._link.submit(("ASKING",), _ignore)
            self._link.submit(batch.words, partial(self._answered, turn, writer, batch))
        if self._replicas:
            self._ask_replicas(turn, sent)

    def _ask_replicas(self, turn: _Turn, sent: list[tuple[PartitionWriter, Batch]]) -> None:
        """Ask behind a turn how many replicas have it."""
        for writer, batch in sent:
            if batch.was_sent:
                # It may have been applied over a connection that is gone, and then it writes nothing over this one.
                self._link.submit(witness_words(self._library, writer.space.witness), turn.witnessed)
            batch.was_sent = True
        turn.unanswered += 1
        self._turns.append(turn)
        self._wait(turn)

    def _wait(self, turn: _Turn) -> None:
        self._link.submit(("WAIT", self._replicas, WAIT_MS), partial(self._replicated, turn))

    def _replicated(self, turn: _Turn, reply: Any) -> None:
        """Take the answer of a WAIT; that of a later one counts for the turns before it, too."""
        if turn.is_over:
            return
        is_answer = isinstance(reply, int) and turn.is_sound
        if is_answer and reply >= self._replicas:
            while not turn.is_over:
                self._release(self._turns.popleft(), None)
        elif is_answer and any(writer.lost is None for writer, _, _ in turn.held):
            for writer, _, _ in turn.held:
                writer.note_trouble(too_few(reply, self._replicas))
            self._wait(turn)
        else:
            self._turns.remove(turn)
            self._release(turn, LinkLost(str(reply)))

    def _release(self, turn: _Turn, error: LinkLost | None) -> None:
        """Hand on what was answered, now that it is known whether it is on enough replicas."""
        turn.is_over = True
        turn.unanswered -= 1
        held, turn.held = turn.held, []
        for writer, batch, reply in held:
            self._settle(turn, writer, batch, error or reply)
        if not held and not turn.unanswered:
            self._end_turn()

    def _answered(self, turn: _Turn, writer: PartitionWriter, batch: Batch, reply: Any) -> None:
        self._observer.after_answer("commit", writer.name, batch.number)
        if self._replicas and isinstance(reply, int):
            turn.held.append((writer, batch, reply))
        else:
            self._settle(turn, writer, batch, reply)

    def _settle(self, turn: _Turn, writer: PartitionWriter, batch: Batch, reply: Any) -> None:
        batch.on_wire = False
        writer.on_wire -= 1
        self._mid_turn = max(COMMITS_MID_TURN, (self._on_wire + self._waiting) // 2)
        self._on_wire -= len(batch.commits)
        turn.unanswered -= 1
        if writer.lost is None:
            self._take(turn, writer, batch, reply)
        if not turn.unanswered:
            self._turns_in_flight -= 1
        if (self._refused or self._full) and not writer.on_wire:
            self._settle_refusals(writer)
        if writer.queued or writer.resending or not turn.unanswered:
            self._wake_after(writer)

    def _settle_refusals(self, writer: PartitionWriter) -> None:
        """Let a writer whose batches are all answered take out what was refused."""
        if writer in self._refused:
            writer.refuse(*self._refused.pop(writer))
        if writer in self._full:
            self._full.discard(writer)
            if writer.lost is None:
                writer.turn_away()

    def _take(self, turn: _Turn, writer: PartitionWriter, batch: Batch, reply: Any) -> None:
        answer = classify(reply)
        match answer:
            case Answer.APPLIED:
                self._failures = 0
                if writer.setbacks:
                    writer.recovered()
                if self.is_full and batch.words[1] == self._function:
                    self.is_full = False
                writer.applied(batch, reply)
            case Answer.FULL:
                self._note_full(writer, batch)
            case Answer.SEND_AGAIN if _is_gap(reply) and batch is writer.unanswered[0]:
                # All before it was answered as applied. So the store has forgotten some of it, and what this owner has
                # in memory is built on more than there is.
                logger.error("%s: the store has lost writes: batch %d is answered %s", writer.name, batch.number, reply)
                writer.lose(StoreError(f"{writer.name}: the store has lost writes that it had confirmed"))
            case Answer.SEND_AGAIN:
                batch.in_doubt |= isinstance(reply, LinkLost)
                self._note_failure(turn, writer, batch, reply)
                writer.resending = True
            case Answer.FENCED:
                logger.warning("%s: fenced: %s", writer.name, reply)
                writer.lose(Fenced())
            case Answer.REFUSED:
                logger.error("%s: batch %d was refused: %s", writer.name, batch.number, reply)
                self._refused.setdefault(writer, (batch, reply))
            case _:
                assert_never(answer)

    def _note_full(self, writer: PartitionWriter, batch: Batch) -> None:
        if not self.is_full:
            logger.warning("%s: the store's memory is full: batch %d takes nothing in", writer.name, batch.number)
        self.is_full = True
        self._full.add(writer)
        if self._on_full is not None:
            self._on_full()

    def _note_failure(self, turn: _Turn, writer: PartitionWriter, batch: Batch, reply: Any) -> None:
        logger.info("%s: batch %d will be sent again: %s", writer.name, batch.number, reply)
        if _is_gap(reply):
            return
        if isinstance(reply, _OF_THE_SLOT):
            # The other partitions of this server have nothing to do with it.
            writer.detour = self.routes.refused(reply)
            writer.set_back(why_unavailable(reply))
            return
        if "Function not found" in str(reply):
            # It goes out ahead of the batch that is sent again; that it is there already is as good an answer.
            self._link.submit(("FUNCTION", "LOAD", self._code), _ignore)
        elif isinstance(reply, LinkLost):
            self.routes.lost()
        if not turn.has_failed:
            # One lost connection is one failure, however many partitions had a batch on it.
            turn.has_failed = True
            self._failures = min(self._failures + 1, 10)

    def _wake_after(self, writer: PartitionWriter) -> None:
        if writer.queued or writer.resending:
            writer.wake()
        # That may have been the committer of another server.
        self._look()

    def _end_turn(self) -> None:
        self._turns_in_flight -= 1
        self._look()

    def _look(self) -> None:
        if self._ready and self._idle is not None:
            idle, self._idle = self._idle, None
            if not idle.done():
                idle.set_result(None)


def _is_gap(reply: Any) -> bool:
    return str(reply).startswith("GAP")


class _Turn:
    """One turn: how many of its batches are unanswered, whether one has failed, and what is not yet replicated."""

    __slots__ = ("has_failed", "held", "is_over", "is_sound", "unanswered")

    def __init__(self, unanswered: int) -> None:
        self.unanswered = unanswered
        self.has_failed = False
        self.held: list[tuple[PartitionWriter, Batch, int]] = []
        self.is_sound = True
        self.is_over = False

    def witnessed(self, reply: Any) -> None:
        """Take note of whether something was written for a batch that was sent before."""
        self.is_sound = self.is_sound and isinstance(reply, int)


def _tell(commit: Commit, now: int, error: BaseException | None) -> None:
    try:
        commit.done(now, error)
    except Exception:
        # One that raises against its word must not leave the others of its batch untold.
        logger.exception("what waited for a commit failed on its end")


def _ignore(reply: Any) -> None:
    del reply
