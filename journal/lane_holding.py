"""Who holds a lane, since when and for what, as those are told who wait for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from .descriptions import InvocationDescription, LaneHolder, ObjectPause
from .key import parse_id
from .keyspace import PartitionSpace
from .lane_reading import ask
from .noted import moment, named, written_at_ms
from .open_reading import read_open
from .pauses import told as told_pauses
from .pauses import words_of
from .snapshots import Entry
from .standing import TERMINAL, Status
from .store import Store
from .surroundings import Surroundings

#: Entries of an object's history in which the end of the holder before is looked for.
HISTORY_ENTRIES: Final = 50
_IN_LANE: Final = frozenset({Status.QUEUED, Status.RUNNING, Status.WAITING})


async def with_lane(
    store: Store, space: PartitionSpace, told: InvocationDescription, around: Surroundings
) -> InvocationDescription:
    """Add to a description what the invocation waits for beside itself: the holder of its lane, or a pause.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where one of ours belongs.
    """
    if told.key is None or told.status is None or told.status in TERMINAL:
        return told
    lane, history = space.lane(told.key), space.object(told.key)
    words = [("LRANGE", lane, 0, 0), ("XREVRANGE", history, "+", "-", "COUNT", HISTORY_ENTRIES)]
    ids, newest, paused = await ask(store, [*words, words_of(space, told.key)], [lane, history, space.paused])
    pauses = told_pauses(paused, around.in_charge)
    told = replace(told, pauses=pauses, note=told.note or _note(told, pauses))
    if told.status not in _IN_LANE or told.has_released_lane or not ids or ids[0] == parse_id(told.id).raw:
        return told
    (holder,) = await read_open(store, space, ids, replace(around, pauses=pauses))
    since = held_since(holder.accepted_at, newest)
    return replace(told, behind=LaneHolder(holder.id, holder.handler, since, holder.why))


def _note(told: InvocationDescription, pauses: tuple[ObjectPause, ...]) -> str:
    if not pauses or told.pause is not None:
        return ""
    return f"it goes no further than its next durable point: {'; '.join(map(str, pauses))}"


def held_since(accepted_at: datetime | None, newest: list[Entry]) -> datetime | None:
    """Return since when a holder holds its lane: since its acceptance, or the end of the one before it."""
    if accepted_at is None:
        return None
    ended_at = next((moment(written_at_ms(entry[0])) for entry in newest if b"f" in named(entry[1])), accepted_at)
    return max(accepted_at, ended_at)
