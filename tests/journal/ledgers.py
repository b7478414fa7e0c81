"""Effects, proposals, queues and ledgers written by hand, for tests of what reads them from outside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from keylane.journal.agenda import AgendaItem, AgendaKind
from keylane.journal.codec import pack
from keylane.journal.effects import EffectEntry, EffectState, digest_of
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.ledger import EventKind, Happened, LedgerEvent
from keylane.journal.proposals import ProposalEntry, ProposalState
from keylane.journal.store import Store

RAW_ID: Final = bytes(range(16))
START_MS: Final = 1_700_000_000_000


def effect(
    operation: str, params: Any = None, state: EffectState = EffectState.SUCCEEDED, **fields: Any
) -> EffectEntry:
    """Return an effect of the receiver `payments`."""
    packed = pack({} if params is None else params)
    entry = EffectEntry(
        operation=operation,
        effect="refund",
        receiver="payments",
        state=state,
        params=packed,
        digest=digest_of("refund", packed),
        attempt=1,
        invocation=RAW_ID,
        first_ms=START_MS,
        intended_ms=START_MS,
        send_before_ms=START_MS + 1,
        since_ms=START_MS,
    )
    return replace(entry, **fields)


def proposal(version: int = 1, state: ProposalState = ProposalState.OPEN, **fields: Any) -> ProposalEntry:
    """Return a proposal of a refund."""
    entry = ProposalEntry(
        action="refund",
        version=version,
        state=state,
        bound=pack({}),
        notes=pack({}),
        digest=bytes(16),
        quorum=1,
        invocation=RAW_ID,
        proposed_ms=START_MS,
        expires_ms=None,
        since_ms=START_MS,
    )
    return replace(entry, **fields)


def event(key: str, operation: str, kind: EventKind, at_ms: int = START_MS, **fields: Any) -> LedgerEvent:
    """Return an event of the receiver `payments`."""
    told = LedgerEvent(key, operation, "payments", "refund", "payments-oncall", Happened(at_ms, kind))
    return replace(told, **fields)


async def put_effect(store: Store, space: PartitionSpace, key: str, entry: EffectEntry) -> AgendaItem:
    """Write an effect, and return the item by which indexes name it."""
    await store.call("HSET", space.effects(key), entry.operation, entry.encode())
    return AgendaItem(AgendaKind.EFFECT, key, entry.operation)


async def put_proposal(store: Store, space: PartitionSpace, key: str, entry: ProposalEntry) -> AgendaItem:
    """Write a proposal, and return the item by which indexes name it."""
    await store.call("HSET", space.proposals(key), entry.field, entry.encode())
    return AgendaItem(AgendaKind.PROPOSAL, key, entry.field)


async def put_on(store: Store, index: bytes, item: AgendaItem, due_ms: int) -> None:
    """Enter an item in an index."""
    await store.call("ZADD", index, due_ms, item.encode())


async def put_event(store: Store, stream: bytes, told: LedgerEvent) -> None:
    """Append an event to a ledger or to the alerts, at its own time."""
    await store.call("XADD", stream, f"{told.happened.at_ms}-*", "e", told.encode())
