"""Large values: their bytes are written once for each object, and everything that holds them refers to them.

Records, deltas, snapshots and results hold a value either whole or as a *reference*: the digest of its bytes and their
number, in an extension type of msgpack that no value of a user can be. The bytes lie in a hash of the object under
their digest, so that the same value is written once however often it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from .codec import REFERENCE_BYTES, REFERENCE_HEAD, Undecodable
from .command_records import Bare, Command, StepCompleted, WaitCompleted
from .errors import ValueLost
from .key import key_text
from .keyspace import PartitionSpace
from .lane_reading import ask
from .outcomes import Succeeded, decode_outcome
from .records import Accepted, Finished, Record, SignalReceived
from .store import Store

DIGEST_BYTES: Final = 16
_DIGEST: Final = slice(len(REFERENCE_HEAD), len(REFERENCE_HEAD) + DIGEST_BYTES)
_SIZE_BYTES: Final = REFERENCE_BYTES - len(REFERENCE_HEAD) - DIGEST_BYTES

#: An outcome with a reference in it, and the key of the object, has no more bytes than this.
_MESSAGE_WITH_REFERENCE: Final = 2048

#: One reply holds about so much of large values, or a single larger one.
REPLY_BYTES: Final = 1 << 20


def digest_of(packed: bytes) -> bytes:
    """Return the digest under which a packed value is kept."""
    return blake2b(packed, digest_size=DIGEST_BYTES).digest()


def reference_to(packed: bytes, digest: bytes) -> bytes:
    """Return what stands for a packed value that is kept under its digest."""
    return REFERENCE_HEAD + digest + len(packed).to_bytes(_SIZE_BYTES, "big")


def is_reference(stored: bytes) -> bool:
    """Return whether bytes stand for a value that is kept elsewhere, rather than being one."""
    return len(stored) == REFERENCE_BYTES and stored.startswith(REFERENCE_HEAD)


def digest_in(reference: bytes) -> bytes:
    """Return the digest that a reference names."""
    return reference[_DIGEST]


def size_of(stored: bytes) -> int:
    """Return how many bytes a value has, whole or referred to."""
    return int.from_bytes(stored[_DIGEST.stop :], "big") if is_reference(stored) else len(stored)


def digests_in(values: Iterable[bytes | None]) -> Iterator[bytes]:
    """Return the digests that values refer to."""
    return (digest_in(value) for value in values if value is not None and is_reference(value))


def digests_in_records(records: Iterable[Record]) -> set[bytes]:
    """Return the digests that records refer to."""
    return {digest_in(reference) for reference in references_in(records)}


def references_in(records: Iterable[Record]) -> set[bytes]:
    """Return the references that records hold."""
    values = (value for record in records for value in _values_in(record))
    return {value for value in values if value is not None and is_reference(value)}


def _values_in(record: Record) -> Iterable[bytes | None]:
    match record:
        case Accepted() | Finished():
            return (record.input,)
        case StepCompleted():
            return (record.result, *record.reads.values())
        case WaitCompleted():
            return (_result_in(record.value), *record.reads.values())
        case SignalReceived():
            return (_result_in(record.value),)
        case _ if isinstance(record, Command) and not isinstance(record, Bare):
            return record.reads.values()
        case _:
            return ()


def _result_in(value: bytes) -> bytes | None:
    """Return what stands for the value of a message, None where it is no reference for sure."""
    if len(value) > _MESSAGE_WITH_REFERENCE:
        return None
    try:
        outcome = decode_outcome(value)
    except Undecodable:
        return None
    return outcome.result if isinstance(outcome, Succeeded) else None


def whole(reference: bytes, found: Any, where: str) -> bytes:
    """Return the bytes that a reference stands for.

    Args:
        reference: The reference.
        found: What the store has under its digest.
        where: What the value is, for the message.

    Raises:
        ValueLost: It has nothing, or something else.
    """
    if not isinstance(found, bytes):
        raise ValueLost(where, digest_in(reference).hex(), "is missing")
    if len(found) != size_of(reference) or digest_of(found) != digest_in(reference):
        raise ValueLost(where, digest_in(reference).hex(), "is damaged")
    return found


async def read_blob(store: Store, space: PartitionSpace, key_text: str, reference: bytes, where: str) -> bytes:
    """Read the bytes that a reference stands for.

    Raises:
        ValueLost: They are missing or damaged.
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where the object's large values belong.
    """
    at_hand = store.blob_cache.get(digest_in(reference))
    if at_hand is not None:
        return at_hand
    key = space.blobs(key_text)
    (found,) = await ask(store, [("HGET", key, digest_in(reference))], [key])
    packed = whole(reference, found, where)
    store.blob_cache.put(digest_in(reference), packed)
    return packed


async def read_values(
    store: Store, space: PartitionSpace, key_text: str, values: Mapping[str, bytes], limit_bytes: int
) -> dict[str, bytes | None]:
    """Read the values that are references, a page at a time.

    Args:
        store: The open store.
        space: The partition.
        key_text: The object.
        values: Values by name, whole or referred to.
        limit_bytes: How much is read in all.

    Returns:
        The bytes of each reference; None for those that the limit left out, and for those that are lost.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where the object's large values belong.
    """
    found: dict[str, bytes | None] = {name: None for name, value in values.items() if is_reference(value)}
    key = space.blobs(key_text)
    for names in _pages(values, list(found), limit_bytes):
        digests = [digest_in(values[name]) for name in names]
        (replies,) = await ask(store, [("HMGET", key, *digests)], [key])
        for name, reply in zip(names, replies, strict=True):
            found[name] = _whole_or_none(values[name], reply)
    return found


def _pages(values: Mapping[str, bytes], names: Sequence[str], limit_bytes: int) -> Iterator[list[str]]:
    page: list[str] = []
    page_bytes = 0
    for name in names:
        size = size_of(values[name])
        if size > limit_bytes:
            break
        limit_bytes -= size
        if page and page_bytes + size > REPLY_BYTES:
            yield page
            page, page_bytes = [], 0
        page.append(name)
        page_bytes += size
    if page:
        yield page


def _whole_or_none(reference: bytes, found: Any) -> bytes | None:
    try:
        return whole(reference, found, "")
    except ValueLost:
        return None


def member_of(key_text: str, digest: bytes) -> bytes:
    """Return the name of a large value in the index of its partition."""
    return key_text.encode() + b"\0" + digest


def is_member(member: bytes) -> bool:
    """Return whether an entry of the index names an object and a digest."""
    head, zero = member[: -DIGEST_BYTES - 1], member[-DIGEST_BYTES - 1 : -DIGEST_BYTES]
    return zero == b"\0" and key_text(head) is not None


def parts_of(member: bytes) -> tuple[str, bytes]:
    """Return the object and the digest that an entry of the index names."""
    return member[: -DIGEST_BYTES - 1].decode(), member[-DIGEST_BYTES:]


def unused_words(space: PartitionSpace, before_ms: int, count: int) -> tuple[Any, ...]:
    """Return the command that reads what nothing has referred to anew since a moment, the longest unused first."""
    return ("ZRANGEBYSCORE", space.blob_index, "-inf", before_ms, "LIMIT", 0, count)
