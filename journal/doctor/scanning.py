"""Walking over all keys of a namespace: in pages, on every node, with what stands under each name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis.exceptions

from ..store import Store, is_missing_function
from .names import KeyName, parse

#: How many slots of the server's table one SCAN looks at; it takes well below a millisecond.
SCAN_COUNT: Final = 1_000
#: Keys that one call of `survey` looks at.
SURVEY_KEYS: Final = 100

NOTHING: Final = -2
FOR_EVER: Final = -1


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands under a name.

    Args:
        name: The name.
        kind: Its type as the server calls it, `none` when it is gone.
        left_ms: For how long it is kept: -1 for ever, -2 when it is gone.
        entries: How many entries it has, where it is a stream.
    """

    name: KeyName
    kind: bytes
    left_ms: int
    entries: int


def pattern_of(prefix: bytes) -> bytes:
    """Return the pattern for names with a prefix, in which nothing stands for anything but itself."""
    return b"".join(b"\\" + byte if byte in b"*?[]\\^-" else byte for byte in _each(prefix)) + b"*"


def _each(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


async def scan(store: Store, prefix: bytes, count: int = SCAN_COUNT) -> AsyncGenerator[list[bytes]]:
    """Return all keys with a prefix, page by page, on every server that holds some, one after the other.

    A key that is there from the first page to the last comes at least once; now and then one comes twice. One whose
    slot moves meanwhile to a server that was passed already may be left out.

    Raises:
        StoreUnavailable: The store is away.
    """
    pattern = pattern_of(prefix)
    for node in store.nodes:
        cursor = None
        while cursor != b"0":
            cursor, names = await node.call("SCAN", cursor or b"0", "MATCH", pattern, "COUNT", count)
            yield names


async def survey(store: Store, names: Sequence[KeyName]) -> list[Standing]:
    """Look at what stands under names, in one turn; those of one partition share calls of a bounded length.

    Raises:
        StoreUnavailable: The store is away.
    """
    by_partition: dict[tuple[str, int], list[KeyName]] = defaultdict(list)
    for name in names:
        by_partition[name.type_name, name.number].append(name)
    pieces = [
        each[start : start + SURVEY_KEYS]
        for each in by_partition.values()
        for start in range(0, len(each), SURVEY_KEYS)
    ]
    calls = [store.words("survey", [name.raw for name in piece], read_only=True) for piece in pieces]
    replies = await together(store, calls)
    found: list[Standing] = []
    for piece, reply in zip(pieces, replies, strict=True):
        if isinstance(reply, Exception):
            raise reply
        found.extend(Standing(name, *reply[3 * at : 3 * at + 3]) for at, name in enumerate(piece))
    return found


async def together(store: Store, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Send reads in one turn; a refusal is returned in its place. The library is loaded where it is missing.

    Raises:
        StoreUnavailable: The store is away.
    """
    replies = await store.together(calls)
    if any(isinstance(reply, redis.exceptions.ResponseError) and is_missing_function(reply) for reply in replies):
        await store.load_library()
        replies = await store.together(calls)
    return replies


def names_of(namespace: str, raw_names: Sequence[bytes]) -> list[KeyName]:
    """Return the names that stand under tags of a namespace's partitions."""
    parsed = (parse(namespace, raw) for raw in raw_names)
    return [name for name in parsed if name is not None]
