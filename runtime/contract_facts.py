"""What a store says to the contract of an app: what it keeps, what is registered there, and who has to settle what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..journal.errors import UnsafeStore
from ..journal.ledger_reading import read_queue
from ..journal.promise import check_all, promise_of, read_all_facts, read_durability
from ..journal.safety import Durability
from ..journal.types_registry import read_owners, read_types
from .unsettled import refuse_unsettled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..journal.safety import ServerFacts
    from ..journal.store import Store
    from ..objects.app import App


@dataclass(frozen=True, slots=True)
class Queued:
    """What people have to settle at one receiver.

    Args:
        count: How many effects.
        overdue: How many of them should be settled by now.
    """

    count: int = 0
    overdue: int = 0


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """What a store says.

    Args:
        durability: What its workers have declared; None where none has begun yet.
        promise: What its settings keep safe, in one sentence.
        doubts: What stands against what is declared.
        partitions: How many each registered object type has.
        owners: Who is in charge of each.
        queued: What people have to settle, by receiver.
    """

    durability: Durability | None
    promise: str
    doubts: tuple[str, ...]
    partitions: Mapping[str, int] = field(default_factory=dict[str, int])
    owners: Mapping[str, str] = field(default_factory=dict[str, str])
    queued: Mapping[str, Queued] = field(default_factory=dict[str, Queued])


async def read_live(store: Store, app: App) -> LiveFacts:
    """Read what a store says to the contract of an app.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where one of ours belongs.
    """
    facts = await read_all_facts(store)
    declared = await read_durability(store)
    durability: Durability = declared or "fsync"
    partitions = await read_types(store)
    return LiveFacts(
        durability=declared,
        promise=promise_of(store, facts, durability),
        doubts=tuple(_doubts(store, app, facts, durability)),
        partitions=partitions,
        owners=await read_owners(store),
        queued=await _queued(store, partitions),
    )


def _doubts(store: Store, app: App, facts: Sequence[ServerFacts], durability: Durability) -> list[str]:
    doubts: list[str] = []
    limit = app.settings.payload_limit_bytes
    try:
        check_all(store, facts, durability, payload_limit_bytes=limit)
    except UnsafeStore as error:
        doubts.append(error.message)
    try:
        refuse_unsettled(app, facts, durability)
    except UnsafeStore as error:
        doubts.append(error.message)
    return doubts


async def _queued(store: Store, partitions: Mapping[str, int]) -> dict[str, Queued]:
    spaces = [store.space(name, number) for name, count in partitions.items() for number in range(count)]
    count: Counter[str] = Counter()
    overdue: Counter[str] = Counter()
    async for page in read_queue(store, spaces):
        for each in page:
            receiver = "?" if each.entry is None else each.entry.receiver
            count[receiver] += 1
            overdue[receiver] += each.entry is not None and each.entry.is_overdue
    return {receiver: Queued(number, overdue[receiver]) for receiver, number in count.items()}
