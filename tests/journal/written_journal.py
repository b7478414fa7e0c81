"""A journal that a test writes by the journal's own operations, and reads back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from keylane.journal import operations, reading
from keylane.journal.batch import Commit, Operation
from keylane.journal.codec import pack
from keylane.journal.key import InvocationId, Key
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.leases import acquire
from keylane.journal.operations import StateChange
from keylane.journal.outcomes import Failure, Outcome, Succeeded, encode_outcome
from keylane.journal.records import (
    Accepted,
    Completed,
    Finished,
    Record,
)
from keylane.journal.requests import Request, RequestKind
from keylane.journal.store import Store
from keylane.journal.tenure import VACANT, Tenure
from keylane.journal.types_registry import register_types

KEY = Key("acme", "o-1001")
BROKEN = Failure("builtins.ValueError", "no such card", "error", None, "Traceback …")
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Journal:
    """A partition that the test owns, and what the runtime would write into it."""

    store: Store
    space: PartitionSpace
    tenure: Tenure
    writer: Any

    async def write(self, *writes: Operation) -> datetime:
        """Commit; returns the partition's time of it."""
        durable: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(now_ms: int, error: BaseException | None) -> None:
            if error is None:
                durable.set_result(now_ms)
            else:
                durable.set_exception(error)

        self.writer.commit(Commit(list(writes), done))
        return datetime.fromtimestamp(await durable / 1000, tz=UTC)

    async def accept(self, raw_id: bytes, handler: str = "refund") -> datetime:
        return await self.write(*operations.accept(self.space, Accepted(raw_id, handler, 1, str(KEY), pack(40))))

    async def record(self, raw_id: bytes, *facts: Record) -> datetime:
        return await self.write(*(operations.record(self.space, raw_id, fact) for fact in facts))

    async def end(self, raw_id: bytes, last: Record, outcome: Outcome, state: StateChange | None = None) -> datetime:
        mark = "c" if isinstance(last, Completed) else "f"
        return await self.write(
            operations.finish_short(self.space, str(KEY), Finished(raw_id, "refund", 1, None, mark), state),
            *operations.finish_long(self.space, str(KEY), raw_id, last, HOUR_MS),
            operations.result(self.space, raw_id, encode_outcome(outcome), HOUR_MS),
        )

    async def short(self, raw_id: bytes, state: StateChange | None = None, handler: str = "add") -> datetime:
        return await self.write(
            operations.finish_short(self.space, str(KEY), Finished(raw_id, handler, 1, pack(1), "c"), state),
            operations.result(self.space, raw_id, encode_outcome(Succeeded(pack(2))), HOUR_MS),
        )

    async def describe(self, raw_id: bytes) -> reading.InvocationDescription:
        return await reading.describe(self.store, InvocationId("Order", 3, raw_id))

    async def inspect(self, timeline_entries: int = reading.TIMELINE_ENTRIES) -> reading.ObjectDescription:
        return await reading.inspect(self.store, self.space, KEY, timeline_entries=timeline_entries)


def request(raw_id: bytes) -> Request:
    """Return a request for the object."""
    return Request(RequestKind.SEND, raw_id, "refund", str(KEY), pack(40))


@asynccontextmanager
async def own_journal(store_url: str, namespace: str) -> AsyncGenerator[Journal]:
    """Own a partition, and give what writes into it."""
    async with Store(store_url, namespace=namespace) as store:
        await register_types(store, {"Order": 16}, {"Order": "refunds-oncall"})
        space = store.space("Order", 3)
        acquired = await acquire(store, space, VACANT, partitions=16, worker="w1", machine="m", lease_seconds=3)
        assert acquired is not None
        yield Journal(store, space, acquired.tenure, store.writer(space, acquired.tenure))
