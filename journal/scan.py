"""All keys with a prefix, on every server that holds some."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final

from .node import Node
from .store import Store

#: How many slots of the server's table one SCAN looks at; it takes well below a millisecond.
SCAN_COUNT: Final = 1_000


def pattern_of(prefix: bytes) -> bytes:
    """Return the pattern for names with a prefix, in which nothing stands for anything but itself."""
    return b"".join(b"\\" + byte if byte in b"*?[]\\^-" else byte for byte in _each(prefix)) + b"*"


def _each(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


async def scan(
    store: Store, prefix: bytes, count: int = SCAN_COUNT, *, nodes: Sequence[Node] | None = None
) -> AsyncGenerator[list[bytes]]:
    """Return all keys with a prefix, page by page, on every server that holds some, one after the other.

    Args:
        store: The open store.
        prefix: What the names begin with.
        count: How many slots of the server's table one page is about.
        nodes: The servers that are asked, None for all that take writes.

    A key that is there from the first page to the last comes at least once; now and then one comes twice. One whose
    slot moves meanwhile to a server that was passed already may be left out.

    Raises:
        StoreUnavailable: The store is away.
    """
    pattern = pattern_of(prefix)
    for node in store.nodes if nodes is None else nodes:
        cursor = None
        while cursor != b"0":
            cursor, names = await node.call("SCAN", cursor or b"0", "MATCH", pattern, "COUNT", count)
            yield names


async def unlink_namespace(store: Store) -> None:
    """Delete everything that a namespace has in the store; for tests that had it to themselves.

    Raises:
        StoreUnavailable: The store is away.
    """
    async for keys in scan(store, f"{{{store.namespace}:".encode()):
        await store.together([("UNLINK", key) for key in keys])
