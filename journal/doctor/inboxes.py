"""Looks through inboxes: requests that lie there twice, the oldest one, and for which objects they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from ..key import format_id
from ..keyspace import PartitionSpace
from ..noted import Bound, read_stream
from ..open_reading import request_of
from ..store import Store
from .findings import Finding, InboxRepair, Kind, Place

#: How much of an inbox is looked at; owners refuse requests where more entries than these lie in it.
LOOKED_AT: Final = Bound(10_000, 16 << 20)


@dataclass(frozen=True, slots=True)
class Inbox:
    """What an inbox held when it was read.

    Args:
        space: The partition.
        looked_at: How many entries were looked at.
        is_cut: Whether there were more.
        oldest: Id of the first entry that is no call of a shared handler: those lie there while they run.
        repeated: Ids of entries by the raw id of their request, where several have the same.
        by_key: How many requests there are for each object.
    """

    space: PartitionSpace
    looked_at: int = 0
    is_cut: bool = False
    oldest: bytes | None = None
    repeated: dict[bytes, list[bytes]] = field(default_factory=dict[bytes, list[bytes]])
    by_key: Counter[str] = field(default_factory=Counter[str])


async def read_inbox(store: Store, space: PartitionSpace) -> Inbox:
    """Read an inbox.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where the inbox belongs.
    """
    entries, is_cut = await read_stream(store, space.inbox, LOOKED_AT)
    by_id: dict[bytes, list[bytes]] = {}
    by_key: Counter[str] = Counter()
    oldest: bytes | None = None
    for entry in entries:
        request = request_of(entry)
        if request is None:
            continue
        by_id.setdefault(request.invocation, []).append(entry[0])
        by_key[request.key] += 1
        if oldest is None and not request.shared:
            oldest = entry[0]
    repeated = {raw_id: names for raw_id, names in by_id.items() if len(names) > 1}
    return Inbox(space, len(entries), is_cut, oldest, repeated, by_key)


async def still_repeated(store: Store, inbox: Inbox) -> list[Finding]:
    """Return the requests that lie there more than once and have done so since the inbox was read.

    A client that got no answer puts its request in again, and the owner takes the copy out when it comes to it.

    Raises:
        StoreUnavailable: The store is away.
    """
    found: list[Finding] = []
    for raw_id, names in inbox.repeated.items():
        there = [name for name in names if await _is_there(store, inbox.space, name)]
        if len(there) > 1:
            found.append(_repeated(inbox.space, raw_id, len(there)))
    return found


async def _is_there(store: Store, space: PartitionSpace, name: bytes) -> bool:
    (entries,) = await store.together([("XRANGE", space.inbox, name, name)])
    return bool(entries) and not isinstance(entries, Exception)


def _repeated(space: PartitionSpace, raw_id: bytes, times: int) -> Finding:
    return Finding(
        Kind.INBOX_ENTRY_REPEATED,
        Place(space.type_name, space.number, invocation=format_id(space.type_name, space.number, raw_id)),
        f"its request lies in the inbox {times} times",
        "its owner takes it in once, and takes the copies out",
        InboxRepair(space.type_name, space.number),
    )


def age_ms(name: bytes, now_ms: int) -> int:
    """Return how old an entry is, by the clock of the server that wrote it."""
    return max(now_ms - int(name.partition(b"-")[0]), 0)
