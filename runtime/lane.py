"""The lane of one object: its queue, its two states, and the gate behind which answers wait.

The next invocation starts on the state of the one before as soon as that one's commit is *queued*. What leaves the lane
(answers, steps, shared reads) waits until everything it was built on is *durable*. So the lane keeps both states.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..journal import operations
from ..journal.batch import Commit, CommitDone, Operation
from ..journal.errors import StoreFull
from ..journal.futures import resolve
from ..journal.operations import Delta, StateChange
from ..journal.snapshots import FIRST_VERSION
from .invocation import Invocation
from .large_values import compact
from .turning_away import turn_away_waiting

if TYPE_CHECKING:
    from ..journal.key import Key
    from .docket import Docket
    from .large_values import LargeValues
    from .partition import Partition
    from .signal_box import SignalBox


class Lane:
    """One object's lane in its owner's memory.

    Args:
        partition: The partition that the object belongs to.
        key: The object.
    """

    __slots__ = (
        "_accepting",
        "_gates",
        "_settled_count",
        "_unsettled",
        "aside",
        "box",
        "busy",
        "deltas",
        "docket",
        "durable",
        "error",
        "generation",
        "is_indexed",
        "is_migrating",
        "is_outdated",
        "key",
        "key_text",
        "large",
        "load_error",
        "loaded",
        "loading",
        "partition",
        "pins",
        "queue",
        "queued",
        "refusals",
        "refused",
        "refused_at",
        "running",
        "state_version",
        "was_used",
        "when_loaded",
    )

    def __init__(self, partition: Partition, key: Key, key_text: str) -> None:
        self.partition = partition
        self.key = key
        self.key_text = key_text
        # Lanes are many and mostly empty: what few of them need takes no memory until it is needed, and a list beats a
        # deque of 600 bytes as long as backlogs are bounded.
        self.queue: list[Invocation] = []
        #: Invocations that have left the lane to others while they wait.
        self.aside: tuple[Invocation, ...] = ()
        self.queued: dict[str, bytes] = {}
        self.durable: dict[str, bytes] = {}
        self.large: LargeValues | None = None
        #: Its early signals, with all that is queued; None until somebody needs them.
        self.box: SignalBox | None = None
        #: Its effects and proposals, with all that is queued; None until somebody needs them.
        self.docket: Docket | None = None
        self.deltas = 0
        #: The version of the state that the store has once what is queued is written, and whether ours is another.
        self.state_version = FIRST_VERSION
        self.is_outdated = False
        #: Whether what is durable is still of the version before: then only the store can tell which one that is.
        self.is_migrating = False
        self.generation = 0
        self.busy = False
        self.load_error: BaseException | None = None
        self.loaded = False
        self.loading = False
        self.when_loaded: tuple[Callable[[], None], ...] = ()
        self.running: Invocation | None = None
        self.refusals = 0
        self.refused_at = 0.0
        self.refused: tuple[Invocation, ...] = ()
        self.error: BaseException | None = None
        #: Whether the store knows that there is history to shrink one day; taken to be so until the lane is read.
        self.is_indexed = True
        #: Set by each use; who makes room for others resets it, and lets go of those that were not used since.
        self.was_used = False
        #: How many errands will go on with this lane when they have their answer.
        self.pins = 0
        self._unsettled = 0
        self._accepting = 0
        self._settled_count = 0
        self._gates: deque[tuple[int, asyncio.Future[None]]] | None = None

    @property
    def is_settled(self) -> bool:
        """Whether everything that was queued is durable."""
        return not self._unsettled

    @property
    def unsettled(self) -> int:
        """How many of the commits that were queued are not durable yet."""
        return self._unsettled

    @property
    def is_settled_but_for_intake(self) -> bool:
        """Whether everything is durable but that invocations were taken in: no state is built on that."""
        return self._unsettled == self._accepting

    @property
    def commits(self) -> int:
        """How many commits were queued so far: whether it has changed tells whether anything was written."""
        return self._settled_count + self._unsettled

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing but the queue would be lost with it: it is read, durable, and nobody is busy with it."""
        busy = self.busy or self.running is not None or self.loading or self.pins or self.when_loaded or self.refused
        return self.loaded and self.is_settled and not busy

    def head(self) -> Invocation | None:
        """Return the invocation that may run now; those that were answered otherwise leave the queue."""
        queue = self.queue
        while queue and queue[0].ended:
            queue.pop(0)
        if not queue or queue[0].hold is not None or not self.loaded or self.refused:
            return None
        return None if self.is_paused else queue[0]

    @property
    def is_paused(self) -> bool:
        """Whether exclusive work has to stop: of this object, or of its whole type."""
        return self.partition.is_paused(self.key_text)

    def leave(self, invocation: Invocation) -> None:
        """Take an invocation out of the queue, as a rule the first one; one that waits outside of it is not in it."""
        queue = self.queue
        if queue and queue[0] is invocation:
            queue.pop(0)
        elif invocation in queue:
            queue.remove(invocation)
        elif invocation in self.aside:
            self.aside = tuple(each for each in self.aside if each is not invocation)

    def tell_loaded(self) -> None:
        """Tell those who wait for the lane to be read that it is, or that it won't be."""
        callbacks, self.when_loaded = self.when_loaded, ()
        for callback in callbacks:
            callback()

    def finished(self, delta: Delta) -> StateChange | None:
        """Return what an ending invocation writes of the state: nothing when it changed nothing, but now and then.

        Endings without a change count too, so that history behind the newest snapshot stays short and can be trimmed.
        """
        if delta or self.deltas + 1 >= self.partition.settings.snapshot_every_deltas:
            return self.change(delta)
        self.deltas += 1
        return None

    def change(self, delta: Delta) -> StateChange:
        """Apply writes to the queued state and return how they are to be written: now and then as a snapshot."""
        apply(self.queued, delta)
        self.deltas += 1
        version = self.partition.virtual_object.state_version
        said = None
        if version != self.state_version and not self.is_outdated:
            said = self.state_version = version
        if self.deltas < self.partition.settings.snapshot_every_deltas:
            return StateChange(delta, None, said)
        return self._snapshot(delta)

    def _snapshot(self, delta: Delta) -> StateChange:
        self.deltas = 0
        self.queued = compact(self, self.queued)
        version = self.state_version
        return StateChange(delta, dict(self.queued), None if version == FIRST_VERSION else version)

    def migrate(self, delta: Delta) -> None:
        """Queue a commit that brings the state to the version of this code, by writes that make it so."""
        before, self.state_version = self.state_version, self.partition.virtual_object.state_version
        self.is_outdated, self.is_migrating = False, True
        apply(self.queued, delta)
        state = self._snapshot(delta)
        writes = [operations.migrate(self.partition.space, self.key_text, state, before, self.state_version)]
        self.commit([*writes, *self.history_trim(state)], delta, self._migrated)

    def _migrated(self, now_ms: int, error: BaseException | None) -> None:
        del now_ms, error
        self.is_migrating = False

    def history_trim(self, state: StateChange | None) -> list[Operation]:
        """Return the operation that drops old history behind a snapshot, where there is one."""
        if state is None or state.snapshot is None:
            return []
        partition = self.partition
        return [operations.trim(partition.space, self.key_text, partition.history_retention_ms)]

    def commit(
        self,
        writes: list[Operation],
        delta: Delta | None = None,
        done: CommitDone | None = None,
        *,
        takes_in: bool = False,
        about: bytes | None = None,
    ) -> None:
        """Queue a commit of this lane.

        Args:
            writes: What to write.
            delta: The state change that becomes durable with it.
            done: Told of the end, after the lane itself.
            takes_in: Whether an invocation is taken in with it: refused while the store's memory is full.
            about: The invocation that it is about, which may have been taken in a moment ago.
        """
        weight = 0
        if self.large is not None and self.large.is_due:
            writes, weight = self._with_values(self.large, writes, takes_in=takes_in, about=about)
        self._unsettled += 1
        if not self.is_indexed:
            self._index(writes)
        settled = partial(self._settled, delta, done)
        commit = Commit(writes, settled, self, takes_in=takes_in, about=about, weight=weight)
        self.partition.writer.commit(commit)

    def accept(self, writes: list[Operation], taken: list[Invocation], done: CommitDone) -> None:
        """Queue a commit that does nothing but take invocations in."""
        weight = 0
        if self.large is not None and self.large.is_due:
            writes, weight = self._with_values(self.large, writes, takes_in=True, about=None)
        self._unsettled += 1
        if not self.is_indexed:
            self._index(writes)
        self._accepting += 1
        ids = tuple(invocation.raw_id for invocation in taken)
        settled = partial(self._acceptance_settled, taken, done)
        self.partition.writer.commit(Commit(writes, settled, self, takes_in=True, accepts=ids, weight=weight))

    def _with_values(
        self, large: LargeValues, writes: list[Operation], *, takes_in: bool, about: bytes | None
    ) -> tuple[list[Operation], int]:
        """Return a commit's operations with the large values that it refers to, and what these weigh.

        What weighs more than one call should carry is queued ahead of it.
        """
        ahead, due, weight = large.take()
        for each, each_weight in ahead:
            self._unsettled += 1
            settled = partial(self._settled, None, None)
            self.partition.writer.commit(
                Commit(each, settled, self, takes_in=takes_in, about=about, weight=each_weight)
            )
        return [*due, *writes], weight

    def _index(self, writes: list[Operation]) -> None:
        """Have the history shrunk after its retention, when a commit adds to it: once, and not with each commit."""
        partition = self.partition
        stream = partition.space.object(self.key_text)
        if any(operation[0] == b"a" and operation[1] == stream for operation in writes):
            self.is_indexed = True
            writes.append(operations.index_history(partition.space, self.key_text, partition.history_retention_ms))

    def shrink(self, aside: Sequence[bytes], done: CommitDone) -> None:
        """Queue a commit that leaves one snapshot of the object's history, or nothing where it has no state.

        Args:
            aside: Parked invocations that have left the lane.
            done: Told of the end.
        """
        self.is_indexed = True
        version = None if self.state_version == FIRST_VERSION else self.state_version
        self.commit(operations.shrink(self.partition.space, self.key_text, self.queued, aside, version), None, done)
        # From here on its history is as short as it gets, and the next commit that adds to it says so.
        self.is_indexed = False
        self.deltas = 0
        if not self.queued:
            # Nothing is left that says it.
            self.state_version = FIRST_VERSION

    async def write(self, writes: list[Operation], delta: Delta | None = None, *, takes_in: bool = False) -> None:
        """Queue a commit and wait until it, and so everything before it in this lane, is durable.

        Raises:
            BaseException: The commit was refused or the partition is lost.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.commit(writes, delta, partial(_written, future), takes_in=takes_in)
        await future

    def gate(self) -> asyncio.Future[None] | None:
        """Return what to await before anything leaves the lane, or None when all of it is durable."""
        if not self._unsettled:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._gates is None:
            self._gates = deque()
        self._gates.append((self._settled_count + self._unsettled, future))
        return future

    def _acceptance_settled(
        self, taken: list[Invocation], done: CommitDone, now_ms: int, error: BaseException | None
    ) -> None:
        """Let what runs go on when those behind it could not be taken in: it is not built on them."""
        self._accepting -= 1
        if not isinstance(error, StoreFull) or self.running in taken:
            self._settled(None, done, now_ms, error)
            return
        self._unsettled -= 1
        self._settled_count += 1
        done(now_ms, error)
        turn_away_waiting(self.partition, self, error)
        self._let_through(error)

    def _settled(self, delta: Delta | None, done: CommitDone | None, now_ms: int, error: BaseException | None) -> None:
        self._unsettled -= 1
        self._settled_count += 1
        if error is None:
            if delta:
                apply(self.durable, delta)
        elif self.error is None:
            self.error = error
            self.generation += 1
            self.box = None
            self.docket = None
            if self.large is not None:
                self.large.forget_all()
        if done is not None:
            done(now_ms, error)
        if self._gates or self.error is not None:
            self._let_through(self.error)

    def _let_through(self, error: BaseException | None) -> None:
        """Tell those who have waited for what is settled by now."""
        while self._gates and self._gates[0][0] <= self._settled_count:
            resolve(self._gates.popleft()[1], None, error)
        if self.error is not None and not self._unsettled:
            self.partition.lane_refused(self)


def apply(values: dict[str, bytes], delta: Delta) -> None:
    """Apply writes to a state."""
    for name, value in delta.items():
        if value is None:
            values.pop(name, None)
        else:
            values[name] = value


def _written(future: asyncio.Future[None], now_ms: int, error: BaseException | None) -> None:
    del now_ms
    resolve(future, None, error)
