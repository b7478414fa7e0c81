"""What anybody may read of one object's effects and proposals: page by page, and no more than what is asked for.

Settled effects are kept for long, by the thousand where an object has so many; who wants proposals reads none of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from .codec import Undecodable
from .effects import EffectEntry, EffectState
from .keyspace import PartitionSpace
from .lane_reading import ask
from .noted import moment
from .object_description import OpenEffect, OpenProposal
from .proposals import CLOSED, ProposalEntry, proposal_field
from .store import Store

#: Entries of a hash that one command reads: each carries its parameters and what has happened to it.
ENTRIES_AT_ONCE: Final = 64
#: Effects, and proposals, of one object that are looked at for those who ask from outside.
DOCKET_MAX: Final = 1_000

E = TypeVar("E", EffectEntry, ProposalEntry)


@dataclass(frozen=True, slots=True)
class DocketReading:
    """The effects and proposals of one object.

    Args:
        effects: Its effects, in the order in which they were first intended.
        proposals: Its proposals, in the order in which they were made.
        problems: What can't be read of them.
        is_cut: Whether there are more than were looked at.
    """

    effects: tuple[EffectEntry, ...] = ()
    proposals: tuple[ProposalEntry, ...] = ()
    problems: tuple[str, ...] = ()
    is_cut: bool = False

    @property
    def open_effects(self) -> tuple[OpenEffect, ...]:
        """What is told of its effects that are not settled."""
        return tuple(open_effect(each) for each in self.effects if not each.is_settled)

    @property
    def open_proposals(self) -> tuple[OpenProposal, ...]:
        """What is told of its proposals of which something may come."""
        return tuple(open_proposal(each) for each in self.proposals if each.state not in CLOSED)


@dataclass(frozen=True, slots=True)
class HashPage:
    """Some entries of a hash.

    Args:
        key: The hash.
        flat: Their names and values, one after the other.
        has_more: Whether the hash has more than what was read up to here.
    """

    key: bytes
    flat: list[bytes]
    has_more: bool


async def hash_pages(
    store: Store, keys: Sequence[bytes], count: int = ENTRIES_AT_ONCE
) -> AsyncGenerator[list[HashPage]]:
    """Return what hashes hold, in turns that have a page of each that has more; an entry may come twice.

    Args:
        store: The open store.
        keys: The hashes.
        count: About how many entries one command reads of a large one.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where a hash belongs.
    """
    cursors: dict[bytes, Any] = dict.fromkeys(keys, b"0")
    while cursors:
        words = [("HSCAN", key, cursor, "COUNT", count) for key, cursor in cursors.items()]
        replies = await ask(store, words, list(cursors))
        turn = list(zip(cursors, replies, strict=True))
        cursors = {key: cursor for key, (cursor, _) in turn if cursor != b"0"}
        yield [HashPage(key, flat, key in cursors) for key, (_, flat) in turn]


async def read_proposal(
    store: Store, space: PartitionSpace, key_text: str, action: str, version: int
) -> ProposalEntry | None:
    """Return one proposal of an object, None where there is none.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where the proposals belong.
        Undecodable: It can't be read.
    """
    key = space.proposals(key_text)
    (data,) = await ask(store, [("HGET", key, proposal_field(action, version))], [key])
    return None if data is None else ProposalEntry.decode(data)


async def read_docket(store: Store, space: PartitionSpace, key_text: str, *, limit: int = DOCKET_MAX) -> DocketReading:
    """Return the effects and proposals of one object, as far as they can be read.

    Args:
        store: The open store.
        space: The partition.
        key_text: The object.
        limit: About how many of each are read at most, in no order.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where they belong.
    """
    effects = await read_effects_of(store, space, key_text, limit=limit)
    proposals = await read_proposals_of(store, space, key_text, limit=limit)
    return DocketReading(
        effects.effects,
        proposals.proposals,
        (*effects.problems, *proposals.problems),
        is_cut=effects.is_cut or proposals.is_cut,
    )


async def read_effects_of(
    store: Store, space: PartitionSpace, key_text: str, *, limit: int = DOCKET_MAX
) -> DocketReading:
    """Return the effects of one object; as `read_docket`."""
    effects, problems, is_cut = await _hash(store, space.effects(key_text), EffectEntry, limit)
    effects.sort(key=lambda each: (each.first_ms, each.operation))
    return DocketReading(effects=tuple(effects), problems=tuple(problems), is_cut=is_cut)


async def read_proposals_of(
    store: Store, space: PartitionSpace, key_text: str, *, limit: int = DOCKET_MAX
) -> DocketReading:
    """Return the proposals of one object, without a look at its effects; as `read_docket`."""
    proposals, problems, is_cut = await _hash(store, space.proposals(key_text), ProposalEntry, limit)
    proposals.sort(key=lambda each: (each.proposed_ms, each.action, each.version))
    return DocketReading(proposals=tuple(proposals), problems=tuple(problems), is_cut=is_cut)


async def _hash(store: Store, key: bytes, form: type[E], limit: int) -> tuple[list[E], list[str], bool]:
    """Return the entries of a hash, what can't be read of it, and whether it has more than was looked at."""
    found: dict[bytes, E] = {}
    problems: dict[bytes, str] = {}
    looked_at = 0
    is_cut = False
    async for (page,) in hash_pages(store, [key], min(limit, ENTRIES_AT_ONCE)):
        for name, data in zip(page.flat[::2], page.flat[1::2], strict=True):
            try:
                found[name] = form.decode(data)
            except Undecodable as error:
                problems[name] = f"{name.decode(errors='replace')}: {error.message}"
        looked_at += len(page.flat) // 2
        is_cut = page.has_more and looked_at >= limit
        if is_cut:
            break
    return list(found.values()), list(problems.values()), is_cut


def open_effect(entry: EffectEntry) -> OpenEffect:
    """Return what is told of an effect that is not settled."""
    due_ms = entry.reconcile_by_ms if entry.state is EffectState.UNRESOLVED else entry.next_ms
    return OpenEffect(
        entry.operation,
        entry.effect,
        entry.receiver,
        entry.state.value,
        moment(entry.since_ms),
        entry.why,
        moment(due_ms) if due_ms else None,
        entry.assigned,
    )


def open_proposal(entry: ProposalEntry) -> OpenProposal:
    """Return what is told of a proposal of which something may come."""
    expires = None if entry.expires_ms is None else moment(entry.expires_ms)
    approvals = sum(each.approves for each in entry.decisions)
    return OpenProposal(
        entry.field, entry.state.value, moment(entry.since_ms), approvals, entry.quorum, expires
    )  # fmt: skip
