"""Data that were put back from a copy: declared by a person, since nothing in the store can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import token_bytes

from .doubt import DoubtSpan
from .errors import InternalError, WrongKeyType
from .keyspace import PartitionSpace
from .lane_reading import ask
from .store import Refusal, Store

RANDOM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Declared:
    """What was declared of one partition."""

    space: PartitionSpace
    span: DoubtSpan
    history: str


async def declare_restored(store: Store, counts: Mapping[str, int], since_ms: int, margin_ms: int) -> list[Declared]:
    """Declare that the data of partitions were put back from a copy, which may have nothing at all of some.

    It ends their tenures, so it may be done while workers run: what they have in memory belongs to another history, and
    they begin anew from what is in the store. Nobody need be there to be asked.

    Args:
        store: The open store.
        counts: How many partitions each object type has.
        since_ms: What was written since then may be missing, by the server's clock.
        margin_ms: How long from now on work is in doubt, too.

    Returns:
        What was declared.

    Raises:
        StoreUnavailable: The store is away; some partitions may be done. Doing it again is no harm.
        WrongKeyType: A foreign key stands where the owner of a partition belongs.
    """
    declared: list[Declared] = []
    for space in (store.space(name, number) for name, count in counts.items() for number in range(count)):
        args = (since_ms, margin_ms, token_bytes(RANDOM_BYTES), counts[space.type_name])
        try:
            answer = await store.fcall("restored", [space.owner], args)
        except Refusal as refused:
            named = refused.code == "WRONGKEYTYPE"
            raise (WrongKeyType(refused.text) if named else InternalError(f"{space}: {refused}")) from refused
        declared.append(Declared(space, DoubtSpan(answer[0], answer[1]), answer[2].decode()))
    return declared


async def missing(store: Store, space: PartitionSpace, ids: Sequence[bytes]) -> list[bytes]:
    """Return which invocations have neither a record nor a result.

    Raises:
        StoreUnavailable: The store is away.
    """
    reads = [("EXISTS", space.result(raw_id), space.invocation(raw_id)) for raw_id in ids]
    found = await ask(store, reads, [space.owner] * len(reads))
    return [raw_id for raw_id, count in zip(ids, found, strict=True) if not count]
