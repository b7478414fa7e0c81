"""What has fallen due in a partition, by the store's clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import redis.exceptions

from .errors import InternalError, KeylaneError, SchemaMismatch, StoreError, WrongKeyType
from .keyspace import SCHEMA_VERSION, PartitionSpace
from .store import Refusal, Store, refusal

#: What falls due: invocations, the histories of objects, or what is on the agenda.
Indexed: TypeAlias = Literal["invocations", "histories", "agenda"]
_INDEX: Final[Mapping[Indexed, Callable[[PartitionSpace], bytes]]] = {
    "invocations": lambda space: space.due,
    "histories": lambda space: space.history,
    "agenda": lambda space: space.agenda,
}


#: When something is due of which a sorted set says that it never is.
NEVER_MS: Final = 1 << 53


def ms_of(score: bytes) -> int:
    """Return the time that a sorted set names; whatever it is, it is a number."""
    return int(max(-NEVER_MS, min(float(score), NEVER_MS)))


@dataclass(frozen=True, slots=True)
class Due:
    """An answer about due times.

    Args:
        now_ms: The partition's time.
        ids: Raw ids of invocations that are due, keys of objects whose history is, or items of the agenda; the earliest
            come first.
        next_in_ms: How long until the next one, None when there is none.
    """

    now_ms: int
    ids: list[bytes]
    next_in_ms: int | None


async def read_all_due(
    store: Store, spaces: Sequence[PartitionSpace], limit: int, what: Indexed = "invocations"
) -> list[Due | KeylaneError]:
    """Ask many partitions in one turn.

    Args:
        store: The open store.
        spaces: The partitions.
        limit: How much is named of each at most.
        what: Which index: that of invocations, of the objects whose history may be shrunk, or the agenda.

    Returns:
        For each, what is due, or the error for which it can't be read.

    Raises:
        StoreUnavailable: No server of the store can be reached.
    """
    keys = [(space.owner, _INDEX[what](space)) for space in spaces]
    words = [(*store.words("due", each, read_only=True), limit) for each in keys]
    replies = await store.each_fcall(words)
    return [_answer(space, reply) for space, reply in zip(spaces, replies, strict=True)]


def _answer(space: PartitionSpace, reply: Any) -> Due | KeylaneError:
    match reply:
        case redis.exceptions.ResponseError():
            return _named(refusal(reply), space)
        case StoreError():
            return reply
        case Exception():
            return StoreError(str(reply))
        case _:
            return _due(reply)


def _due(reply: Any) -> Due:
    now_ms, next_ms, *ids = reply
    return Due(now_ms, ids, None if next_ms < 0 else max(next_ms - now_ms, 0))


def _named(refused: Refusal, space: PartitionSpace) -> KeylaneError:
    match refused.code:
        case "WRONGKEYTYPE":
            return WrongKeyType(refused.text)
        case "SCHEMA":
            return SchemaMismatch(f"schema version of {space}:", refused.text, SCHEMA_VERSION)
        case _:
            return InternalError(f"{space}: {refused}")
