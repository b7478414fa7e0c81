"""States of objects that have something to run: where one can't be read, nothing of its lane goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from ..codec import Undecodable
from ..keyspace import PartitionSpace
from ..snapshots import Entry, fold, newest_words
from ..store import Store
from .findings import Finding, Kind, Place

#: How many states are read at once: each may be large.
STATES_AT_ONCE: Final = 8


async def check_states(store: Store, space: PartitionSpace, keys: Sequence[str]) -> list[Finding]:
    """Look at the newest entries of objects, among which the newest snapshot is as a rule.

    Raises:
        StoreUnavailable: The store is away.
    """
    found: list[Finding] = []
    for start in range(0, len(keys), STATES_AT_ONCE):
        piece = keys[start : start + STATES_AT_ONCE]
        for key, reply in zip(piece, await store.together([newest_words(space, key) for key in piece]), strict=True):
            # What is of a wrong type is a finding by itself.
            if isinstance(reply, list):
                found.extend(_unreadable(space, key, cast("list[Entry]", reply)))
    return found


def _unreadable(space: PartitionSpace, key: str, newest: list[Entry]) -> list[Finding]:
    try:
        fold(newest)
    except Undecodable as error:
        cause = f"its state can't be read, so nothing of its lane goes on: {error.reason}"
        remedy = "put its stream back from a copy, or take the entry out (XDEL); its owner reads it again by itself"
        return [Finding(Kind.STATE_UNREADABLE, Place(space.type_name, space.number, key), cause, remedy)]
    return []
