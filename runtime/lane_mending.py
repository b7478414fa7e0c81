"""Puts a lane right: its list, those beside it, its place among the runnable ones, its due times, as memory has them.

A partition's commits are applied in the order in which they are queued. So what memory says at the moment at which a
commit is queued is what the store has to say when it is applied, whatever is under way: the lane need not stand still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from ..journal import operations
from ..journal.errors import CallError, InternalError
from ..journal.lane_reading import OpenInvocation, aside_words, ask
from ..journal.noted import noted, standing_of, written_at_ms
from ..journal.records import Accepted, Paused
from ..journal.standing import Status
from .endings import listed
from .found_invocations import has_left, is_over, is_scheduled
from .invocation import Hold, IdempotencyClaim, Invocation

if TYPE_CHECKING:
    from ..journal.store import Store
    from .lane import Lane
    from .partition import Partition
    from .reviving import Reviving
    from .timers import Timers

#: What the server answers for a key that has no end to its keeping.
FOR_EVER = -1
#: How long a lane may take to be read.
LOAD_SECONDS = 10.0
#: An invocation that began so shortly before the look may have come and gone meanwhile; it is left for the next one.
YOUNG_MS = 2_000
#: First records that one question asks for: each may hold an argument of the payload limit.
AT_ONCE = 64
#: Entries of an object's history that are looked at for the order within one millisecond.
SAME_MOMENT_MAX = 500

#: When an invocation was taken in: the partition's time, the place within that millisecond, and its id.
Intake: TypeAlias = tuple[int, int, bytes]


@dataclass(frozen=True, slots=True)
class _Looked:
    """What the store says of a lane, read while its work goes on.

    Args:
        listed: Its list.
        was_runnable: Whether it is among the runnable ones.
        over: Ids of its list whose invocations have ended or are gone.
        strangers: Invocations that the owner did not have in hand when the look began, and that are open.
        waits: When those are due.
        claims: Their idempotency keys.
        taken_in: When strangers and the invocations of the lane were taken in.
        missing_due: When invocations are due by their records that wait and have no due time.
        aside: Ids of those that the store names as having left the lane.
        left: Invocations that have left the lane while they wait, and that the owner did not have in hand either.
    """

    listed: list[bytes]
    was_runnable: bool
    over: frozenset[bytes]
    strangers: list[OpenInvocation]
    waits: dict[bytes, int]
    claims: dict[bytes, IdempotencyClaim]
    taken_in: Mapping[bytes, Intake]
    missing_due: Mapping[bytes, int]
    aside: frozenset[bytes]
    left: list[OpenInvocation]


class LaneMending:
    """Mends lanes of one worker.

    Args:
        store: The open store.
        reviving: Brings into memory what belongs into a lane.
        timers: Told of due times that were entered.
    """

    def __init__(self, store: Store, reviving: Reviving, timers: Timers) -> None:
        self._store = store
        self._reviving = reviving
        self._timers = timers

    async def mend(self, partition: Partition, key_text: str, ids: Sequence[bytes]) -> list[str]:
        """Put a lane right.

        Args:
            partition: Its partition.
            key_text: Its key.
            ids: Invocations that may belong into it beside those that it names.

        Returns:
            What was done, in sentences.

        Raises:
            InvalidKey: The text is not a key.
            CallError: The lane can't be read now.
            StoreUnavailable: The store is away.
        """
        lane = await loaded(partition, key_text)
        looked = await self._look(lane, ids)
        if not lane.loaded or lane.refused or partition.lanes.get(key_text) is not lane:
            raise CallError("its lane is being read again; ask once more")
        did = [*_drop(lane, looked), *self._adopt(lane, looked), *self._find_again(lane, looked)]
        wanted = listed(lane)
        works = bool(wanted) and not _stands_still(lane.queue[0])
        writes = [
            operations.set_aside(partition.space, key_text, each.raw_id)
            for each in lane.aside
            if each.raw_id not in looked.aside
        ]
        if writes:
            did.append(f"named {len(writes)} beside the lane that had left it while they wait")
        if wanted != looked.listed or works != looked.was_runnable:
            did.extend(_differences(partition, wanted, looked, works=works))
            writes.append(operations.restore_lane(partition.space, key_text, wanted, is_runnable=works))
        for raw_id, due_ms in looked.missing_due.items():
            invocation = partition.open.get(raw_id)
            if raw_id in partition.waiting or (invocation is not None and _sleeps(invocation)):
                writes.append(operations.schedule(raw_id, max(due_ms - partition.now_ms(), 0)))
                did.append(f"entered the due time of {partition.invocation_id(raw_id)}")
        if writes:
            await lane.write(writes)
        self._timers.sweep(partition)
        partition.host.ready(lane)
        return did

    async def _look(self, lane: Lane, ids: Sequence[bytes]) -> _Looked:
        partition = lane.partition
        space, since_ms, known = partition.space, partition.now_ms(), set(partition.open)
        waiting = [raw_id for raw_id in partition.waiting if raw_id in {each.raw_id for each in lane.queue}]
        listed, was_runnable, aside = await ask(
            self._store,
            [
                ("LRANGE", space.lane(lane.key_text), 0, -1),
                ("SISMEMBER", space.runnable, lane.key_text),
                aside_words(space, lane.key_text),
            ],
            [space.lane(lane.key_text), space.runnable, space.set_aside(lane.key_text)],
        )
        over = await self._over(partition, listed)
        others = [raw_id for raw_id in dict.fromkeys((*listed, *ids)) if raw_id not in known]
        found, waits, claims = await self._reviving.read(partition, others)
        own = [each for each in found if _is_open_at(each, lane.key_text, since_ms)]
        strangers, left = [each for each in own if not has_left(each)], [each for each in own if has_left(each)]
        due = await self._missing_due(partition, [*waiting, *(each.raw_id for each in strangers)])
        waits.update(due)
        due.update(await self._missing_timers(lane))
        taken_in = await self._taken_in(lane, strangers) if strangers else {}
        return _Looked(
            listed, bool(was_runnable), over, strangers, waits, claims, taken_in, due, frozenset(aside), left
        )  # fmt: skip

    async def _over(self, partition: Partition, ids: Sequence[bytes]) -> frozenset[bytes]:
        """Return the ids whose invocations have ended or are gone: only the streams of ended ones expire."""
        streams = [partition.space.invocation(raw_id) for raw_id in ids]
        left = await ask(self._store, [("PTTL", stream) for stream in streams], streams)
        return frozenset(raw_id for raw_id, left_ms in zip(ids, left, strict=True) if left_ms != FOR_EVER)

    async def _missing_due(self, partition: Partition, ids: Sequence[bytes]) -> dict[bytes, int]:
        """Return when invocations are due by their records, of those that wait and have no due time."""
        space = partition.space
        scores = await ask(self._store, [("ZSCORE", space.due, raw_id) for raw_id in ids], [space.due] * len(ids))
        missing = [raw_id for raw_id, score in zip(ids, scores, strict=True) if score is None]
        streams = [space.invocation(raw_id) for raw_id in missing]
        newest = await ask(self._store, [("XREVRANGE", stream, "+", "-", "COUNT", 1) for stream in streams], streams)
        due = {raw_id: _due_ms(entries) for raw_id, entries in zip(missing, newest, strict=True)}
        return {raw_id: at_ms for raw_id, at_ms in due.items() if at_ms is not None}

    async def _missing_timers(self, lane: Lane) -> dict[bytes, int]:
        """Return when those that sleep are due, of those that have no due time; their owner's memory knows."""
        space = lane.partition.space
        asleep = {each.raw_id: each.due_ms for each in (*lane.queue, *lane.aside) if _sleeps(each)}
        scores = await ask(self._store, [("ZSCORE", space.due, raw_id) for raw_id in asleep], [space.due] * len(asleep))
        return {raw_id: at_ms for (raw_id, at_ms), score in zip(asleep.items(), scores, strict=True) if score is None}

    async def _taken_in(self, lane: Lane, strangers: Sequence[OpenInvocation]) -> dict[bytes, Intake]:
        """Return when invocations were taken in: the millisecond, and the place in it by the object's history."""
        space = lane.partition.space
        begun = {each.raw_id: each.begun_ms for each in strangers}
        ids = [each.raw_id for each in lane.queue if each.accepted]
        for start in range(0, len(ids), AT_ONCE):
            piece = ids[start : start + AT_ONCE]
            streams = [space.invocation(raw_id) for raw_id in piece]
            firsts = await ask(self._store, [("XRANGE", each, "-", "+", "COUNT", 1) for each in streams], streams)
            begun.update({raw: written_at_ms(got[0][0]) for raw, got in zip(piece, firsts, strict=True) if got})
        # Several are often taken in with one commit, and so in one millisecond.
        moments = {each.begun_ms for each in strangers}
        history = space.object(lane.key_text)
        words = [("XRANGE", history, at_ms, at_ms, "COUNT", SAME_MOMENT_MAX) for at_ms in moments]
        pages = await ask(self._store, words, [history] * len(words))
        places = {fields[1]: place for page in pages for place, (_, fields) in enumerate(page) if fields[0] == b"a"}
        return {raw: (at_ms, _place_in(places, raw), raw) for raw, at_ms in begun.items()}

    def _adopt(self, lane: Lane, looked: _Looked) -> list[str]:
        """Take into a lane what belongs there, in the order of intake."""
        did: list[str] = []
        for each in looked.strangers:
            if each.raw_id in lane.partition.open:
                continue
            invocation = self._reviving.adopt(lane, each, looked.waits, looked.claims)
            lane.queue.insert(_place(lane, each.raw_id, looked.taken_in), invocation)
            did.append(f"took {lane.partition.invocation_id(each.raw_id)} into its lane")
        return did

    def _find_again(self, lane: Lane, looked: _Looked) -> list[str]:
        """Bring those into memory that have left a lane and that nothing led to any more."""
        did: list[str] = []
        for each in looked.left:
            if each.raw_id in lane.partition.open:
                continue
            lane.aside = (*lane.aside, self._reviving.adopt(lane, each, looked.waits, looked.claims))
            did.append(f"found {lane.partition.invocation_id(each.raw_id)} again, which has left its lane")
        return did


async def loaded(partition: Partition, key_text: str) -> Lane:
    """Return a lane once it is in memory.

    Raises:
        CallError: It can't be read now.
        InvalidKey: The text is not a key.
    """
    lane = partition.lane(key_text)
    if not lane.loaded:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.when_loaded = (*lane.when_loaded, partial(_resolve, future))
        with anyio.move_on_after(LOAD_SECONDS):
            await future
    if not lane.loaded:
        raise CallError(f"its object can't be read: {lane.load_error or 'the store takes too long'}")
    return lane


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _place_in(acceptances: Mapping[bytes, int], raw_id: bytes) -> int:
    """Return the place of an invocation's acceptance among those of its millisecond, 0 where it is not among them."""
    return next((place for data, place in acceptances.items() if raw_id in data), 0)


def _is_open_at(found: OpenInvocation, key_text: str, since_ms: int) -> bool:
    """Return whether an invocation that nobody has in hand is this object's, and open without being parked."""
    accepted = found.records[0] if found.records else None
    if not isinstance(accepted, Accepted) or accepted.key != key_text or found.begun_ms > since_ms - YOUNG_MS:
        return False
    # A parked one may stand beside its lane, where whoever resumes it finds it by its id; a scheduled one has to.
    return (
        not is_over(found)
        and not found.is_parked
        and not isinstance(found.records[-1], Paused)
        and not is_scheduled(found)
    )


def _sleeps(invocation: Invocation) -> bool:
    """Return whether an invocation waits for a timer that is durable, and for nothing else."""
    standing = invocation.standing
    if standing is None or standing.paused is not None or standing.retry_after_ms is not None or invocation.ended:
        return False
    is_at_it = standing.status is Status.WAITING or invocation.hold is Hold.WAITING
    return is_at_it and invocation.due_ms > 0


def _stands_still(head: Invocation) -> bool:
    """Return whether the holder of a lane waits for something that brings the lane into memory by itself."""
    if head.hold in (Hold.PAUSED, Hold.WAITING):
        return True
    standing = head.standing
    if standing is None or standing.waiting is None or standing.retry_after_ms is not None:
        return False
    if head.is_branched:
        return head.stands_still
    # One that was resumed stands still again once its handler has come to where it waits.
    return standing.status is Status.WAITING or head.raw_id in head.lane.partition.sleepers


def _due_ms(entries: Sequence[Any]) -> int | None:
    """Return when an invocation is due by its newest record, None where that names no time."""
    notes = [noted(entry) for entry in entries]
    standing, _ = standing_of(notes, is_whole=False)
    if standing is None or standing.retry_after_ms is None:
        return None
    return notes[-1].at_ms + standing.retry_after_ms


def _drop(lane: Lane, looked: _Looked) -> list[str]:
    """Take out of a lane's queue what has ended or is gone in the store: it was listed there, so it was accepted."""
    did: list[str] = []
    for invocation in list(lane.queue):
        is_gone = invocation.raw_id in looked.over and invocation.accepted and not invocation.ended
        if is_gone and invocation is not lane.running:
            lane.queue.remove(invocation)
            invocation.ended = True
            lane.partition.ended(invocation, InternalError("its records are gone"))
            did.append(
                f"took {lane.partition.invocation_id(invocation.raw_id)} out of its lane: it has ended or is gone"
            )
    return did


def _place(lane: Lane, raw_id: bytes, taken_in: Mapping[bytes, Intake]) -> int:
    """Return where an invocation belongs in a lane's queue: before those taken in later, behind what runs."""
    own = taken_in[raw_id]
    for position, invocation in enumerate(lane.queue):
        # One that is not known to have been taken in was so after the look.
        other = taken_in.get(invocation.raw_id)
        if invocation is not lane.running and (other is None or other > own):
            return position
    return len(lane.queue)


def _differences(partition: Partition, wanted: Sequence[bytes], looked: _Looked, *, works: bool) -> list[str]:
    did: list[str] = []
    gone = [raw_id for raw_id in looked.listed if raw_id not in wanted]
    if gone:
        names = ", ".join(partition.invocation_id(raw_id) for raw_id in dict.fromkeys(gone))
        did.append(f"took out of the lane's list: {names}")
    if [raw_id for raw_id in looked.listed if raw_id in wanted] != list(wanted):
        did.append(f"wrote the lane's list anew, with {len(wanted)} in it")
    if works != looked.was_runnable:
        did.append(f"entered the lane {'among' if works else 'not any more among'} the runnable ones")
    return did
