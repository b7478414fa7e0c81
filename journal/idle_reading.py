"""What is read of objects before their history is shrunk: when each was last written to, and the state of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from .codec import Undecodable
from .errors import KeylaneError
from .keyspace import PartitionSpace
from .lane_reading import ask_each, read_state
from .snapshots import FIRST_READ_ENTRIES, Entry, ObjectState, fold, is_whole, newest_words
from .store import Store


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
