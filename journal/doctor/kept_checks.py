"""Large values of objects, compared with the index that lets each of them go some day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..blobs import is_member, member_of, parts_of
from ..keyspace import PartitionSpace
from ..store import Store
from .findings import Finding, Kind, NamedRepair, Place
from .names import printable
from .queue_checks import pages_of

#: Large values of one object whose places in the index are looked for.
VALUES_MAX: Final = 5_000


async def check_values(store: Store, space: PartitionSpace) -> list[Finding]:
    """Look for large values that the index of a partition names and that are not there.

    Raises:
        StoreUnavailable: The store is away.
    """
    found: list[Finding] = []
    async for words in pages_of(store, "ZSCAN", space.blob_index):
        members = [member for member in words[::2] if is_member(member)]
        absent = await _absent(store, space, members)
        # Value and entry come and go in one commit: an entry that is still there belongs to a value that should be.
        scores = await store.together([("ZSCORE", space.blob_index, member) for member in absent])
        named = [member for member, score in zip(absent, scores, strict=True) if isinstance(score, bytes | float)]
        found.extend(_missing(space, member) for member in await _absent(store, space, named))
    return found


async def _absent(store: Store, space: PartitionSpace, members: Sequence[bytes]) -> list[bytes]:
    parts = [parts_of(member) for member in members]
    there = await store.together([("HEXISTS", space.blobs(key), digest) for key, digest in parts])
    return [member for member, is_there in zip(members, there, strict=True) if is_there == 0]


def _missing(space: PartitionSpace, member: bytes) -> Finding:
    key, digest = parts_of(member)
    return Finding(
        Kind.VALUE_MISSING,
        Place(space.type_name, space.number, key, name=f"{printable(space.blobs(key))} {digest.hex()}"),
        f"its large value {digest.hex()} is gone: what refers to it is paused as value_lost when it needs it",
        "put it back from a copy (HSET under its digest) and resume what is paused",
    )


async def check_object_values(store: Store, space: PartitionSpace, key: str) -> list[Finding]:
    """Look for large values of an object that the index does not name: no sweep would ever find them.

    Raises:
        StoreUnavailable: The store is away.
    """
    (count,) = await store.together([("HLEN", space.blobs(key))])
    if not isinstance(count, int) or count > VALUES_MAX:
        return []
    (digests,) = await store.together([("HKEYS", space.blobs(key))])
    if isinstance(digests, Exception):
        return []
    members = [member_of(key, digest) for digest in digests]
    scores = await store.together([("ZSCORE", space.blob_index, member) for member in members])
    unnamed = [member for member, score in zip(members, scores, strict=True) if score is None]
    absent = set(await _absent(store, space, unnamed))
    return [_not_indexed(space, member) for member in unnamed if member not in absent]


def _not_indexed(space: PartitionSpace, member: bytes) -> Finding:
    key, digest = parts_of(member)
    return Finding(
        Kind.VALUE_NOT_INDEXED,
        Place(space.type_name, space.number, key, name=f"{printable(space.blobs(key))} {digest.hex()}"),
        f"the index does not name its large value {digest.hex()}: it stays for ever",
        "its owner enters it into the index, as if it had just been used",
        NamedRepair(space.type_name, space.number, "values", member),
    )
