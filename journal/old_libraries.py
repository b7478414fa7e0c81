"""Function libraries of other releases: those that no live worker has announced for a day are deleted.

Libraries belong to whole servers, so what is known of their use lies in one key for all namespaces of a store, and for
all servers of a cluster: a library that is in use anywhere stays everywhere. A release that is deleted too early, such
as one that only clients use, loads its functions again with its next call.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

import redis.exceptions

from .errors import StoreError
from .node import Node
from .store import Store

#: Library name to when a live worker was last known to announce it, in milliseconds of the server's clock.
LIBRARIES_KEY: Final = b"{keylane}:libraries"
UNUSED_MS: Final = 86_400_000

_OURS: Final = re.compile(rb"keylane_[0-9a-f]{12}")


async def tend_libraries(store: Store, live: Collection[str]) -> list[str]:
    """Note which libraries are in use, and delete those that have not been for a day.

    Args:
        store: The open store.
        live: The libraries that live workers announce, this one's own among them.

    Returns:
        The names of those that were deleted.

    Raises:
        StoreUnavailable: The store is away.
        StoreError: The store does not let this client do it.
    """
    try:
        return await _tend(store, {name.encode() for name in live})
    except redis.exceptions.ResponseError as error:
        raise StoreError(f"function libraries can't be looked after: {error}") from error


async def _tend(store: Store, live: set[bytes]) -> list[str]:
    there = {node: await _loaded(node) for node in store.nodes}
    everywhere = set[bytes]().union(*there.values())
    # The clock is that of the server which keeps the times.
    flat, clock = await store.together([("HGETALL", LIBRARIES_KEY), ("TIME",)])
    for reply in (flat, clock):
        if isinstance(reply, Exception):
            raise reply
    now_ms = int(clock[0]) * 1000 + int(clock[1]) // 1000
    used = {name: int(at_ms) for name, at_ms in zip(flat[::2], flat[1::2], strict=True)}
    # One that was never announced while we looked gets its day from here on.
    fresh = live | (everywhere - used.keys())
    if fresh:
        await store.call("HSET", LIBRARIES_KEY, *(word for name in fresh for word in (name, now_ms)))
    unused = [name for name, at_ms in used.items() if name not in fresh and now_ms - at_ms >= UNUSED_MS]
    for name in unused:
        for node in [node for node, names in there.items() if name in names]:
            await _delete(node, name)
        await store.call("HDEL", LIBRARIES_KEY, name)
    return [name.decode() for name in unused if name in everywhere]


async def _loaded(node: Node) -> set[bytes]:
    """Return the names of our libraries on a server, whichever release they are of."""
    listed: list[list[Any]] = await node.call("FUNCTION", "LIST", "LIBRARYNAME", "keylane_*")
    names = (dict(zip(each[::2], each[1::2], strict=True))[b"library_name"] for each in listed)
    return {name for name in names if _OURS.fullmatch(name)}


async def _delete(node: Node, name: bytes) -> None:
    try:
        await node.call("FUNCTION", "DELETE", name)
    except redis.exceptions.ResponseError as error:
        # Another worker did it first.
        if "not found" not in str(error).lower():
            raise
