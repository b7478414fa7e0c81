"""Looks for a call between objects on all of its way: from the caller's outbox to the callee, and back as a reply."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from .errors import StoreError
from .keyspace import PartitionSpace
from .lane_reading import ask
from .messages import reply_id
from .noted import Bound, read_stream
from .open_reading import request_of
from .store import Store

#: How much of an outbox or of an inbox is looked through; where there is more, nothing is said of what was not found.
LOOKED_THROUGH: Final = Bound(10_000, 16 << 20)


async def traceless(
    store: Store, source: PartitionSpace, target: PartitionSpace, callees: Collection[bytes]
) -> frozenset[bytes]:
    """Return the calls of which there is nothing anywhere on their way.

    The places are looked at in the order in which a call comes by. It is entered in each before it leaves the one
    before, so that one that is under way is met in at least one of them.

    Args:
        store: The open store.
        source: The partition of the callers.
        target: The partition that is called.
        callees: Raw ids of the invocations that were called.

    Raises:
        StoreUnavailable: The store is away.
    """
    left = set(callees)
    try:
        for stream in (source.outbox(target.name), target.inbox):
            left -= await _found_in(store, stream, {raw_id: raw_id for raw_id in left})
        left -= await _written(store, target, left)
        for stream in (target.outbox(source.name), source.inbox):
            left -= await _found_in(store, stream, {reply_id(raw_id): raw_id for raw_id in left})
    except _TooLong:
        return frozenset()
    return frozenset(left)


class _TooLong(StoreError):
    """Not all of a stream was looked through."""


async def _found_in(store: Store, stream: bytes, sought: dict[bytes, bytes]) -> set[bytes]:
    if not sought:
        return set()
    entries, is_cut = await read_stream(store, stream, LOOKED_THROUGH)
    requests = (request_of(entry) for entry in entries)
    found = {sought[each.invocation] for each in requests if each is not None and each.invocation in sought}
    if is_cut and len(found) < len(sought):
        raise _TooLong(stream.decode(errors="replace"))
    return found


async def _written(store: Store, target: PartitionSpace, callees: Collection[bytes]) -> set[bytes]:
    ids = list(callees)
    words = [("EXISTS", target.result(raw_id), target.invocation(raw_id)) for raw_id in ids]
    replies = await ask(store, words, [target.result(raw_id) for raw_id in ids])
    return {raw_id for raw_id, there in zip(ids, replies, strict=True) if there}
