"""What has fallen due in a partition, by the store's clock."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import InternalError, KeylaneError, SchemaMismatch, WrongKeyType
from .keyspace import SCHEMA_VERSION, PartitionSpace
from .store import Refusal, Store


@dataclass(frozen=True, slots=True)
class Due:
    """An answer about due times.

    Args:
        now_ms: The partition's time.
        ids: Raw ids of invocations that are due, earliest first.
        next_in_ms: How long until the next one, None when there is none.
    """

    now_ms: int
    ids: list[bytes]
    next_in_ms: int | None


async def read_due(store: Store, space: PartitionSpace, limit: int) -> Due:
    """Ask what is due.

    Raises:
        StoreUnavailable: The store is away.
        SchemaMismatch: The partition was written by another release.
        WrongKeyType: A foreign key stands where the owner or the due times belong.
    """
    try:
        now_ms, next_ms, *ids = await store.fcall("due", [space.owner, space.due], [limit], read_only=True)
    except Refusal as refused:
        raise _named(refused, space) from refused
    return Due(now_ms, ids, None if next_ms < 0 else max(next_ms - now_ms, 0))


def _named(refused: Refusal, space: PartitionSpace) -> KeylaneError:
    match refused.code:
        case "WRONGKEYTYPE":
            return WrongKeyType(refused.text)
        case "SCHEMA":
            return SchemaMismatch(f"schema version of {space}:", refused.text, SCHEMA_VERSION)
        case _:
            return InternalError(f"{space}: {refused}")
