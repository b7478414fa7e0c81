"""Reads invocations in all structures that know of them, at one moment, so that work under way never looks broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import redis.exceptions

from ..codec import Undecodable
from ..command_records import CallCompleted, Command, TimerFired, WaitCompleted, WaitExpired
from ..due import ms_of
from ..keyspace import PartitionSpace
from ..noted import COMES_WHILE_PAUSED, Noted, noted, standing_of, telling_before
from ..record_bytes import decode, encode
from ..records import Accepted, AttemptFailed, Paused, Resumed
from ..snapshots import Entry
from ..standing import OpenWait, Status
from ..store import Store
from .facts import InvocationFacts
from .scanning import FOR_EVER

#: First records that are asked for in one turn: each may hold an argument of the payload limit, so turns grow only
#: while what came is small.
FIRST_TURN: Final = 16
TURN_MAX: Final = 256
SMALL_TURN_BYTES: Final = 1 << 19
LARGE_TURN_BYTES: Final = 4 << 20
#: Ids that one call of `examine` is about.
IDS_MAX: Final = 50

#: Records that are looked at in one turn for a call or a timer that is open still.
OPEN_WAIT_PAGE: Final = 64

#: A call or a timer stays open over these.
_OVER_A_WAIT: Final = (AttemptFailed, Paused, Resumed)

#: What ends a wait.
_ENDS: Final = (CallCompleted, TimerFired, WaitCompleted, WaitExpired)

_WORDS: Final = 6
_HEAD: Final = 4


@dataclass(frozen=True, slots=True)
class Examined:
    """One invocation, as `examine` answers it.

    Args:
        raw_id: Its id.
        position: Its place in the lane's list from 0, -1 where it is not in it, -2 where it is set aside.
        left_ms: For how long its stream is kept: -1 for ever, -2 where it has none.
        due_ms: When it is due.
        has_result: Whether it has a result.
        newest: Its newest record, None where it has none.
        newest_id: Name of the entry that holds that.
    """

    raw_id: bytes
    position: int
    left_ms: int
    due_ms: int | None
    has_result: bool
    newest: Noted | None
    newest_id: bytes = b""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or there is nothing of it: only the streams of ended invocations expire."""
        return self.left_ms != FOR_EVER


@dataclass(frozen=True, slots=True)
class ExaminedLane:
    """A lane, and the invocations that were asked about."""

    now_ms: int
    length: int
    is_runnable: bool
    head: bytes
    invocations: tuple[Examined, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A lane and ids of invocations that may have to do with it."""

    space: PartitionSpace
    key: str
    ids: tuple[bytes, ...] = ()


async def examine(store: Store, questions: Sequence[Question]) -> list[ExaminedLane | None]:
    """Examine lanes, in one turn.

    Returns:
        For each what was found, None where a key of a wrong type stands in the way, which is a finding by itself.

    Raises:
        StoreUnavailable: The store is away.
    """
    calls = [_words(store, each) for each in questions]
    replies = await store.together_fcall(calls)
    return [_lane(question, reply) for question, reply in zip(questions, replies, strict=True)]


def _words(store: Store, question: Question) -> tuple[Any, ...]:
    space = question.space
    keys = [space.owner, space.due, space.runnable, space.lane(question.key), space.set_aside(question.key)]
    for raw_id in question.ids:
        keys += (space.invocation(raw_id), space.result(raw_id))
    return (*store.words("examine", keys, read_only=True), question.key, *question.ids)


def _lane(question: Question, reply: Any) -> ExaminedLane | None:
    if isinstance(reply, redis.exceptions.ResponseError):
        if str(reply).startswith("WRONGKEYTYPE"):
            return None
        raise reply
    now_ms, length, is_runnable, head = reply[:_HEAD]
    invocations = tuple(
        _examined(raw_id, reply[_HEAD + _WORDS * at : _HEAD + _WORDS * (at + 1)])
        for at, raw_id in enumerate(question.ids)
    )
    return ExaminedLane(now_ms, length, bool(is_runnable), head, invocations)


def _examined(raw_id: bytes, words: Sequence[Any]) -> Examined:
    position, left_ms, due, has_result, entry_id, record = words
    newest = noted((entry_id, [b"r", record])) if entry_id else None
    return Examined(raw_id, position, left_ms, ms_of(due) if due else None, bool(has_result), newest, entry_id)


async def read_open_facts(
    store: Store, streams: Sequence[tuple[PartitionSpace, bytes]], in_charge: Mapping[str, str]
) -> list[InvocationFacts | Unfinished]:
    """Read the facts of invocations whose streams don't expire.

    Args:
        store: The open store.
        streams: Partition and raw id of each.
        in_charge: Who is in charge of each type.

    Returns:
        The facts of those that are open, and those that have ended without an end to their keeping.

    Raises:
        StoreUnavailable: The store is away.
    """
    found: list[InvocationFacts | Unfinished] = []
    at, count = 0, FIRST_TURN
    while at < len(streams):
        turn = streams[at : at + count]
        at += count
        size_bytes = await _read_turn(store, turn, in_charge, found)
        if size_bytes < SMALL_TURN_BYTES:
            count = min(2 * count, TURN_MAX)
        elif size_bytes > LARGE_TURN_BYTES:
            count = max(count // 2, 1)
    return found


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An invocation that has ended, and whose stream would be kept for ever."""

    space: PartitionSpace
    raw_id: bytes


async def _read_turn(
    store: Store,
    turn: Sequence[tuple[PartitionSpace, bytes]],
    in_charge: Mapping[str, str],
    found: list[InvocationFacts | Unfinished],
) -> int:
    """Add the facts of some invocations; returns how many bytes were read."""
    words = [("XRANGE", space.invocation(raw_id), "-", "+", "COUNT", 1) for space, raw_id in turn]
    firsts = [_entries(reply) for reply in await store.together(words)]
    keys = [_key_of(entries) for entries in firsts]
    # One whose acceptance can't be read belongs to no lane that we could name; the empty one is nobody's.
    questions = [Question(space, key or "", (raw_id,)) for (space, raw_id), key in zip(turn, keys, strict=True)]
    size_bytes = sum(len(word) for entries in firsts for _, fields in entries for word in fields)
    for question, key, lane in zip(questions, keys, await examine(store, questions), strict=True):
        if lane is None:
            continue
        size_bytes += _size_of(lane)
        last = lane.invocations[0]
        seen = await _told(store, question.space, last)
        facts = _facts(question, key, lane, seen, in_charge)
        if isinstance(facts, InvocationFacts):
            facts = await _with_open_wait(store, facts, seen, last.newest_id)
        if facts is not None:
            found.append(facts)
    return size_bytes


async def _told(store: Store, space: PartitionSpace, seen: Examined) -> Examined:
    """Return what was seen of an invocation with the newest record that tells where it stands."""
    if seen.newest is None or not isinstance(seen.newest.record, COMES_WHILE_PAUSED):
        return seen
    newest = (seen.newest_id, [b"r", encode(seen.newest.record)])
    telling = await telling_before(store, space.invocation(seen.raw_id), [newest])
    return replace(seen, newest=noted(telling[0]), newest_id=telling[0][0]) if telling else seen


async def _with_open_wait(store: Store, facts: InvocationFacts, seen: Examined, last: bytes) -> InvocationFacts:
    """Add the call or the timer that is open still, where the newest record does not say so and it matters."""
    newest = seen.newest
    if newest is None or facts.standing is None:
        return facts
    if facts.standing.waiting is not None:
        return replace(facts, waiting_since_ms=newest.at_ms)
    if facts.position > 0 and isinstance(newest.record, _ENDS):
        return await _returned(store, facts, seen)
    is_asleep = facts.position == 0 and not facts.is_lane_runnable and facts.due_ms is None
    if not is_asleep or not isinstance(newest.record, _OVER_A_WAIT):
        return facts
    command = await _newest_command(store, facts.space.invocation(facts.raw_id), last)
    if command is None or not isinstance(command.record, OpenWait):
        return facts
    standing = facts.standing._replace(waits=(command.record,))
    return replace(facts, standing=standing, waiting_since_ms=command.at_ms)


async def _returned(store: Store, facts: InvocationFacts, seen: Examined) -> InvocationFacts:
    """Say that one whose wait has ended is queued, if it had released its lane: it does not run before it has it."""
    begun = await _newest_command(store, facts.space.invocation(facts.raw_id), b"(" + seen.newest_id)
    record = None if begun is None else begun.record
    if facts.standing is None or not isinstance(record, OpenWait) or not record.releases:
        return facts
    return replace(facts, standing=facts.standing._replace(status=Status.QUEUED))


async def _newest_command(store: Store, stream: bytes, end: bytes) -> Noted | None:
    """Return the newest command among the records up to an entry: they were there when the newest one was read."""
    while True:
        (page,) = await store.together([("XREVRANGE", stream, end, "-", "COUNT", OPEN_WAIT_PAGE)])
        entries = _entries(page)
        notes = [noted(entry) for entry in entries]
        command = next((note for note in notes if isinstance(note.record, Command)), None)
        if command is not None or len(entries) < OPEN_WAIT_PAGE:
            return command
        end = b"(" + entries[-1][0]


def _entries(reply: Any) -> list[Entry]:
    return [] if isinstance(reply, Exception) else reply


def _size_of(lane: ExaminedLane) -> int:
    return sum(each.newest.size_bytes for each in lane.invocations if each.newest is not None)


def _key_of(entries: Sequence[Entry]) -> str | None:
    """Return the object that an invocation was accepted for, None where that can't be read."""
    for _, fields in entries:
        try:
            record = decode(dict(zip(fields[::2], fields[1::2], strict=True))[b"r"])
        except (Undecodable, KeyError):
            return None
        return record.key if isinstance(record, Accepted) else None
    return None


def _facts(
    question: Question, key: str | None, lane: ExaminedLane, seen: Examined, in_charge: Mapping[str, str]
) -> InvocationFacts | Unfinished | None:
    if seen.newest is None or seen.is_over:
        # It has ended since the walk came by.
        return None
    standing, problem = standing_of([seen.newest], is_whole=False)
    if standing is not None and standing.is_terminal:
        return Unfinished(question.space, seen.raw_id)
    is_parked = standing is not None and standing.paused is not None
    if key is None and not is_parked:
        problem = problem or "the record of its acceptance can't be read"
    return InvocationFacts(
        space=question.space,
        raw_id=seen.raw_id,
        key=key or "",
        standing=standing,
        problem=problem,
        recorded_ms=seen.newest.at_ms,
        now_ms=lane.now_ms,
        position=seen.position,
        lane_length=lane.length,
        is_lane_runnable=lane.is_runnable,
        due_ms=seen.due_ms,
        has_result=seen.has_result,
        in_charge=in_charge.get(question.space.type_name),
    )
