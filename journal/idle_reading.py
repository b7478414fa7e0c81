"""What is read of objects before their history is shrunk: when each was last written to, and the state of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from .codec import Undecodable
from .errors import KeylaneError
from .keyspace import PartitionSpace
from .lane_reading import ask, ask_each, read_state
from .noted import named
from .snapshots import FIRST_READ_ENTRIES, Entry, ObjectState, aside_of, fold, is_whole, newest_words
from .store import Store
from .timeline import turn_of

#: How much of a history is read at a time to find what it says of parked invocations.
PAGE_ENTRIES: Final = 200


async def read_last_writes(store: Store, space: PartitionSpace, key_texts: Sequence[str]) -> list[int | KeylaneError]:
    """Return the partition's time of the newest entry of each object, 0 for one that has none.

    Returns:
        For each, the time, or the error for which it can't be read.

    Raises:
        StoreUnavailable: The store is away.
    """
    keys = [space.object(key_text) for key_text in key_texts]
    replies = await ask_each(store, [("XREVRANGE", key, "+", "-", "COUNT", 1) for key in keys], keys)
    return [reply if isinstance(reply, KeylaneError) else _written_at_ms(reply) for reply in replies]


def _written_at_ms(entries: Any) -> int:
    return int(cast("list[Entry]", entries)[0][0].partition(b"-")[0]) if entries else 0


async def read_states(
    store: Store, space: PartitionSpace, key_texts: Sequence[str]
) -> list[ObjectState | KeylaneError]:
    """Read the states of objects, most of them in one turn.

    Returns:
        For each, its state, or the error for which it can't be read.

    Raises:
        StoreUnavailable: The store is away.
    """
    keys = [space.object(key_text) for key_text in key_texts]
    replies = await ask_each(store, [newest_words(space, key_text) for key_text in key_texts], keys)
    return [await _state(store, space, key_text, reply) for key_text, reply in zip(key_texts, replies, strict=True)]


async def _state(store: Store, space: PartitionSpace, key_text: str, newest: Any) -> ObjectState | KeylaneError:
    if isinstance(newest, KeylaneError):
        return newest
    try:
        if is_whole(newest, FIRST_READ_ENTRIES):
            return fold(newest)
        return await read_state(store, space, key_text, newest)
    except Undecodable as error:
        return error


async def read_aside(store: Store, space: PartitionSpace, key_text: str) -> list[bytes]:
    """Return the ids of invocations that an object's history names as begun and not as ended, and that left its lane.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where one of ours belongs.
    """
    stream, lane = space.object(key_text), space.lane(key_text)
    begun: dict[bytes, None] = {}
    start: bytes | str = "-"
    while True:
        (page,) = await ask(store, [("XRANGE", stream, start, "+", "COUNT", PAGE_ENTRIES)], [stream])
        for turn, fields in ((turn_of(space, entry), named(entry[1])) for entry in cast("list[Entry]", page)):
            begun.update(dict.fromkeys(aside_of(fields)))
            if turn.raw_id is None:
                continue
            if turn.is_long:
                begun[turn.raw_id] = None
            else:
                begun.pop(turn.raw_id, None)
        if len(page) < PAGE_ENTRIES:
            break
        start = b"(" + page[-1][0]
    if not begun:
        return []
    (queued,) = await ask(store, [("LRANGE", lane, 0, -1)], [lane])
    return [raw_id for raw_id in begun if raw_id not in queued]
