"""What is left of one invocation: its first record, its result, and its place in the history of its object."""

from __future__ import annotations

from .blobs import is_reference, read_blob
from .codec import Undecodable
from .keyspace import PartitionSpace
from .lane_reading import ask
from .outcomes import IdempotencyEntry
from .record_bytes import decode
from .records import Accepted, Finished
from .snapshots import Entry
from .store import Store

#: How much history is searched for a short invocation: its entry lies close behind its acceptance.
PAGE_ENTRIES = 200
PAGES_MAX = 10


async def first_arguments(
    store: Store, space: PartitionSpace, key_text: str, entry: IdempotencyEntry
) -> tuple[str, bytes | None] | None:
    """Return the handler and the packed argument of the first call of an idempotency key, None when no longer kept.

    Raises:
        StoreUnavailable: The store is away.
    """
    accepted = await read_acceptance(store, space, entry.invocation)
    if accepted is not None:
        return accepted.handler, await _whole(store, space, key_text, accepted.input)
    stream = space.object(key_text)
    start: bytes | str = str(entry.accepted_at_ms)
    for _ in range(PAGES_MAX):
        (page,) = await ask(store, [("XRANGE", stream, start, "+", "COUNT", PAGE_ENTRIES)], [stream])
        found = _finished(page, entry.invocation)
        if found is not None:
            return found.handler, await _whole(store, space, key_text, found.input)
        if len(page) < PAGE_ENTRIES:
            return None
        start = b"(" + page[-1][0]
    return None


async def read_acceptance(store: Store, space: PartitionSpace, raw_id: bytes) -> Accepted | None:
    """Return the first record of an invocation that has a stream, None for one that has none.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where the stream belongs.
    """
    stream = space.invocation(raw_id)
    (entries,) = await ask(store, [("XRANGE", stream, "-", "+", "COUNT", 1)], [stream])
    try:
        record = decode(entries[0][1][1])
    except (LookupError, Undecodable):
        return None
    return record if isinstance(record, Accepted) else None


async def read_result(store: Store, space: PartitionSpace, raw_id: bytes) -> bytes | None:
    """Return the encoded outcome of an invocation, None where none is kept.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where the result belongs.
    """
    key = space.result(raw_id)
    (data,) = await ask(store, [("GET", key)], [key])
    return data


async def _whole(store: Store, space: PartitionSpace, key_text: str, packed: bytes | None) -> bytes | None:
    if packed is None or not is_reference(packed):
        return packed
    return await read_blob(store, space, key_text, packed, "argument")


def _finished(page: list[Entry], raw_id: bytes) -> Finished | None:
    for _, fields in page:
        data = dict(zip(fields[::2], fields[1::2], strict=True)).get(b"f")
        if data is None or raw_id not in data:
            continue
        try:
            record = decode(data)
        except Undecodable:
            continue
        if isinstance(record, Finished) and record.invocation == raw_id:
            return record
    return None
