"""Group commit: the batches of all partitions that one server holds go out together, once a turn of the loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, assert_never

import anyio

from .batch import Batch
from .batch_reply import OF_THE_SLOT, Answer, classify, is_gap
from .errors import Fenced, StoreError
from .library import FINISHING, Library
from .link import Link, LinkLost
from .observer import Observer
from .refusals import why_unavailable
from .replication import WAIT_MS, too_few, witness_words
from .server_identity import IdentityWatch
from .writer import RESEND_FIRST_SECONDS, TURNS_IN_FLIGHT, PartitionWriter, Routes

logger = logging.getLogger("keylane.commit")

#: So many waiting commits go out in the middle of a turn of the loop. Callers whose answers come together commit
#: together, so without it all of them wait for one sync, and client and server idle in turns.
COMMITS_MID_TURN = 32
RESEND_CAP_SECONDS = 1.0


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
        self._ready[writer] = None
        if self._idle is not None:
            self._look()
        if self._waiting >= self._mid_turn and self._turns_in_flight < TURNS_IN_FLIGHT and not self._failures:
            self._send_turn()
            self._link.flush()

    def wake(self, writer: PartitionWriter) -> None:
        """Note that a partition has something to send."""
        self._ready[writer] = None
        self._look()

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
                for batch in writer.next_batches(self._function):
                    sent.append((writer, batch))  # noqa: PERF401, as a rule there is one, and a generator costs more
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
            case Answer.SEND_AGAIN if is_gap(reply) and batch is writer.unanswered[0]:
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
        if is_gap(reply):
            return
        if isinstance(reply, OF_THE_SLOT):
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


def _ignore(reply: Any) -> None:
    del reply
