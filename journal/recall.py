"""What a partition remembers of idempotency keys: hashes by day, which outlive the results of their calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, cast

from .codec import Undecodable
from .keyspace import PartitionSpace
from .link import LinkLost
from .outcomes import IdempotencyEntry
from .store import Store, is_missing_function, store_error

DIGEST_BYTES = 16
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Recalled:
    """What was found.

    Args:
        now_ms: The partition's time.
        entry: The key's entry, None when it was never used or is forgotten.
        empty_days: Days that were asked for and have no keys at all.
    """

    now_ms: int
    entry: IdempotencyEntry | None
    empty_days: tuple[int, ...]


#: Handed what was found or the error; must not raise.
RecallDone = Callable[[Recalled | Exception], None]


def digest_of(key_text: str, idempotency_key: str) -> bytes:
    """Return the digest under which an idempotency key of an object is kept."""
    return blake2b(f"{key_text}\0{idempotency_key}".encode(), digest_size=DIGEST_BYTES).digest()


def recall(store: Store, space: PartitionSpace, days: Sequence[int], digest: bytes, done: RecallDone) -> None:
    """Look an idempotency key up.

    Args:
        store: The open store.
        space: The partition.
        days: The days to look at, newest first.
        digest: The digest of the key.
        done: Handed the answer.
    """
    keys = [space.owner, *(space.idempotency(day) for day in days)]
    words = (*store.words("recall", keys, read_only=True), digest)
    store.submit(words, partial(_answered, store, space, tuple(days), done))


def _answered(store: Store, space: PartitionSpace, days: tuple[int, ...], done: RecallDone, reply: Any) -> None:
    if isinstance(reply, Exception):
        if is_missing_function(reply):
            store.load_library_beside(space)
        done(reply if isinstance(reply, LinkLost) else store_error(reply, store.url))
        return
    positions = cast("list[int]", reply[2:])
    empty = tuple(days[position - 1] for position in positions)
    try:
        entry = IdempotencyEntry.decode(reply[1]) if reply[1] else None
    except Undecodable as error:
        done(error)
        return
    done(Recalled(reply[0], entry, empty))
