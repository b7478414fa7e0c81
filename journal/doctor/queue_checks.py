"""What queues name: lanes, runnable lanes, due times and idempotency keys, each compared with the work behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, NamedTuple

from ..codec import Undecodable
from ..key import format_id, key_text
from ..keyspace import PartitionSpace
from ..outcomes import IdempotencyEntry
from ..store import Store
from .examining import IDS_MAX, Question, examine
from .findings import Finding, Kind, LaneRepair, NamedRepair, Place
from .names import printable
from .scanning import FOR_EVER
from .state_checks import check_states

#: Names that one page of a queue has.
PAGE: Final = 500
#: Lanes that are read in one turn.
LANES_AT_ONCE: Final = 64


async def check_lanes(store: Store, lanes: Sequence[tuple[PartitionSpace, str]]) -> list[Finding]:
    """Compare the lists of lanes with the invocations that they name; most are short and take one turn together.

    Raises:
        StoreUnavailable: The store is away.
    """
    found: list[Finding] = []
    for start in range(0, len(lanes), LANES_AT_ONCE):
        piece = lanes[start : start + LANES_AT_ONCE]
        first = 0
        while piece:
            words = [("LRANGE", space.lane(key), first, first + PAGE - 1) for space, key in piece]
            replies = await store.together(words)
            named = [_Named(*lane, ids) for lane, ids in zip(piece, replies, strict=True) if isinstance(ids, list)]
            found.extend(await _check_named(store, named))
            piece = [(each.space, each.key) for each in named if len(each.ids) == PAGE]
            first += PAGE
    return found


class _Named(NamedTuple):
    """A page of a lane's list."""

    space: PartitionSpace
    key: str
    ids: list[bytes]


async def _check_named(store: Store, named: Sequence[_Named]) -> list[Finding]:
    found: list[Finding] = []
    words = [("PTTL", each.space.invocation(raw_id)) for each in named for raw_id in each.ids]
    kept = iter(await store.together(words))
    for space, key, ids in named:
        found.extend(_repeated(space, key, ids))
        over = [raw_id for raw_id, left_ms in zip(ids, kept, strict=False) if left_ms != FOR_EVER]
        for start in range(0, len(over), IDS_MAX):
            question = Question(space, key, tuple(over[start : start + IDS_MAX]))
            (lane,) = await examine(store, [question])
            seen = () if lane is None else lane.invocations
            found.extend(_orphaned(space, key, each.raw_id) for each in seen if each.position >= 0 and each.is_over)
    return found


async def _over(store: Store, space: PartitionSpace, ids: Sequence[bytes]) -> list[bytes]:
    """Return the ids whose invocations have ended or are gone, as it seems at a first look."""
    replies = await store.together([("PTTL", space.invocation(raw_id)) for raw_id in ids])
    return [raw_id for raw_id, left_ms in zip(ids, replies, strict=True) if left_ms != FOR_EVER]


def _repeated(space: PartitionSpace, key: str, ids: Sequence[bytes]) -> list[Finding]:
    return [
        Finding(
            Kind.LANE_ENTRY_REPEATED,
            Place(space.type_name, space.number, key, format_id(space.type_name, space.number, raw_id)),
            f"its lane names it {times} times: when it has ended, the others would stand in the way",
            "its owner writes the lane as it has it in memory",
            LaneRepair(space.type_name, space.number, key),
        )
        for raw_id, times in Counter(ids).items()
        if times > 1
    ]


def _orphaned(space: PartitionSpace, key: str, raw_id: bytes) -> Finding:
    return Finding(
        Kind.LANE_ENTRY_ORPHANED,
        Place(space.type_name, space.number, key, format_id(space.type_name, space.number, raw_id)),
        "its lane names it, and it has ended or nothing is kept of it",
        "its owner takes it out of the lane",
        LaneRepair(space.type_name, space.number, key),
    )


async def check_runnable(store: Store, space: PartitionSpace) -> list[Finding]:
    """Compare the runnable lanes with what is in them.

    Raises:
        StoreUnavailable: The store is away.
    """
    found: list[Finding] = []
    async for names in pages_of(store, "SSCAN", space.runnable):
        keys = [key for key in map(key_text, names) if key is not None]
        found.extend(_no_key(space, name) for name in names if key_text(name) is None)
        there = await store.together([("EXISTS", space.lane(key)) for key in keys])
        empty = [key for key, exists in zip(keys, there, strict=True) if exists == 0]
        found.extend(await check_states(store, space, [key for key in keys if key not in empty]))
        lanes = await examine(store, [Question(space, key) for key in empty])
        for key, lane in zip(empty, lanes, strict=True):
            if lane is not None and lane.is_runnable and not lane.length:
                found.append(_without_work(space, key))
    return found


def _no_key(space: PartitionSpace, name: bytes) -> Finding:
    shown = name.decode(errors="backslashreplace")
    return Finding(
        Kind.RUNNABLE_WITHOUT_WORK,
        Place(space.type_name, space.number, name=f"{printable(space.runnable)} {shown}"),
        "the runnable lanes name something that is no key: no owner can read them to their end",
        "take it out of the set by hand (SREM)",
    )


def _without_work(space: PartitionSpace, key: str) -> Finding:
    return Finding(
        Kind.RUNNABLE_WITHOUT_WORK,
        Place(space.type_name, space.number, key),
        "its lane is among the runnable ones, and nothing is in it",
        "its owner takes it out of the runnable ones, after entering what belongs into it",
        LaneRepair(space.type_name, space.number, key),
    )


async def check_due(store: Store, space: PartitionSpace) -> list[Finding]:
    """Compare the due times with the invocations that they are for.

    Raises:
        StoreUnavailable: The store is away.
    """
    found: list[Finding] = []
    async for words in pages_of(store, "ZSCAN", space.due):
        over = await _over(store, space, words[::2])
        for start in range(0, len(over), IDS_MAX):
            (lane,) = await examine(store, [Question(space, "", tuple(over[start : start + IDS_MAX]))])
            seen = () if lane is None else lane.invocations
            found.extend(_due_orphaned(space, each.raw_id) for each in seen if each.due_ms is not None and each.is_over)
    return found


def _due_orphaned(space: PartitionSpace, raw_id: bytes) -> Finding:
    return Finding(
        Kind.DUE_TIME_ORPHANED,
        Place(space.type_name, space.number, invocation=format_id(space.type_name, space.number, raw_id)),
        "it has a due time, and it has ended or nothing is kept of it",
        "its owner takes the due time out",
        NamedRepair(space.type_name, space.number, "due", raw_id),
    )


async def check_claims(store: Store, space: PartitionSpace, day: bytes, name: bytes) -> list[Finding]:
    """Look for idempotency keys whose invocations have ended without a word to them.

    Raises:
        StoreUnavailable: The store is away.
    """
    found: list[Finding] = []
    async for words in pages_of(store, "HSCAN", name):
        unsettled: dict[bytes, bytes] = {}
        for digest, data in zip(words[::2], words[1::2], strict=True):
            try:
                entry = IdempotencyEntry.decode(data)
            except Undecodable as error:
                found.append(_unreadable(space, name, digest, error.message))
                continue
            if entry.outcome == "?":
                unsettled[digest] = entry.invocation
        found.extend(await _unsettled(store, space, day, name, unsettled))
    return found


async def _unsettled(
    store: Store, space: PartitionSpace, day: bytes, name: bytes, digests: dict[bytes, bytes]
) -> list[Finding]:
    """Return the keys that say that their invocation has not ended, read after it was seen to have.

    End and key are written in one commit, so a key that is read later than the end knows of it.
    """
    ended = set(await _over(store, space, list(digests.values())))
    suspects = [digest for digest, raw_id in digests.items() if raw_id in ended]
    again = await store.together([("HGET", name, digest) for digest in suspects])
    return [
        _claim(space, day, digest, digests[digest])
        for digest, data in zip(suspects, again, strict=True)
        if isinstance(data, bytes) and IdempotencyEntry.decode(data).outcome == "?"
    ]


def _claim(space: PartitionSpace, day: bytes, digest: bytes, raw_id: bytes) -> Finding:
    return Finding(
        Kind.CLAIM_UNSETTLED,
        Place(space.type_name, space.number, invocation=format_id(space.type_name, space.number, raw_id)),
        "its idempotency key says that it has not ended, and it has, or nothing is kept of it",
        "its owner notes how it ended, where that is known; where not, a person decides if the call may run again",
        NamedRepair(space.type_name, space.number, "claims", b"%s:%s" % (day, digest)),
    )


def _unreadable(space: PartitionSpace, name: bytes, digest: bytes, why: str) -> Finding:
    return Finding(
        Kind.CLAIM_UNREADABLE,
        Place(space.type_name, space.number, name=f"{printable(name)} {digest.hex()}"),
        f"an idempotency key can't be read: {why}",
        "a person decides whether its call may run again: deleting the field (HDEL) lets it",
    )


async def pages_of(store: Store, command: str, name: bytes) -> AsyncIterator[list[Any]]:
    """Return what a set, a sorted set or a hash holds, page by page; nothing where something else stands there."""
    cursor = b"0"
    while True:
        (reply,) = await store.together([(command, name, cursor, "COUNT", PAGE)])
        if isinstance(reply, Exception):
            return
        cursor, words = reply
        if words:
            yield words
        if cursor == b"0":
            return
