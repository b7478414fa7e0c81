"""Effects and proposals of objects, compared with the indexes of their partition: agenda, queue and open proposals.

An entry and the indexes that name it change in one commit, and no read of ours sees two keys at one moment. So what
looks broken is read again, the other way round: work under way has changed what was read first, and damage has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ..agenda import AgendaItem, AgendaKind
from ..code_registry import TypeCard
from ..codec import Undecodable
from ..effects import EffectEntry, EffectState
from ..keyspace import PartitionSpace
from ..noted import moment
from ..plain_values import short
from ..proposals import CLOSED, ProposalEntry, ProposalState
from ..store import Store
from .code_checks import its_effect_is_declared, its_proposal_is_guarded
from .findings import Finding, Kind, NamedRepair, Place
from .queue_checks import pages_of

#: How soon the end of a proposal's time is worth a word, in ms.
SOON_MS: Final = 3_600_000
#: Proposals about to expire that are named.
SOON_NAMED: Final = 10

_Entry: TypeAlias = EffectEntry | ProposalEntry
#: Indexes, and the item by which each has to name something.
_Indexes: TypeAlias = tuple[tuple[bytes, AgendaItem], ...]
_KINDS: Final = {
    AgendaKind.EFFECT: AgendaKind.EFFECT,
    AgendaKind.OLD_EFFECT: AgendaKind.EFFECT,
    AgendaKind.PROPOSAL: AgendaKind.PROPOSAL,
    AgendaKind.OLD_PROPOSAL: AgendaKind.PROPOSAL,
}


@dataclass(frozen=True, slots=True)
class _Seen:
    """An effect or a proposal as it was read: its name and its bytes, what it is, where it stands and who names it."""

    name: bytes
    data: bytes
    kind: AgendaKind
    state: str
    indexes: _Indexes


async def check_effects(
    store: Store, space: PartitionSpace, key: str, now_ms: int, card: TypeCard | None
) -> tuple[list[Finding], int]:
    """Look for effects of an object that nobody comes back to, or can, or that people should have settled.

    Args:
        store: The open store.
        space: The partition.
        key: The object.
        now_ms: The partition's time.
        card: What the code of the type does, None where nobody has said so.

    Returns:
        What was found, and how many effects are not settled.

    Raises:
        StoreUnavailable: The store is away.
    """
    found: list[Finding] = []
    unsettled = 0
    async for words in pages_of(store, "HSCAN", space.effects(key)):
        seen: list[_Seen] = []
        for name, data in zip(words[::2], words[1::2], strict=True):
            try:
                entry = EffectEntry.decode(data)
            except Undecodable as error:
                found.append(_unreadable(space, key, name, error.message))
                continue
            seen.append(_Seen(name, data, AgendaKind.EFFECT, entry.state.value, _effect_indexes(space, key, entry)))
            unsettled += not entry.is_settled
            found.extend(each for each in [its_effect_is_declared(space, key, entry, card)] if each is not None)
            if entry.state is EffectState.UNRESOLVED and (entry.reconcile_by_ms or now_ms) < now_ms:
                found.append(_overdue(space, key, entry, now_ms))
        found.extend(await _unnamed_ones(store, space, key, space.effects(key), seen))
    return found, unsettled


async def check_proposals(
    store: Store, space: PartitionSpace, key: str, card: TypeCard | None
) -> tuple[list[Finding], int]:
    """Look for proposals of an object that nothing has its owner come back to, or that the code guards no more.

    Args:
        store: The open store.
        space: The partition.
        key: The object.
        card: What the code of the type does, None where nobody has said so.

    Returns:
        What was found, and how many proposals are open.

    Raises:
        StoreUnavailable: The store is away.
    """
    found: list[Finding] = []
    are_open = 0
    async for words in pages_of(store, "HSCAN", space.proposals(key)):
        seen: list[_Seen] = []
        for name, data in zip(words[::2], words[1::2], strict=True):
            try:
                entry = ProposalEntry.decode(data)
            except Undecodable as error:
                found.append(_unreadable(space, key, name, error.message))
                continue
            are_open += entry.state is ProposalState.OPEN
            found.extend(each for each in [its_proposal_is_guarded(space, key, entry, card)] if each is not None)
            indexes = _proposal_indexes(space, key, entry)
            seen.append(_Seen(name, data, AgendaKind.PROPOSAL, entry.state.value, indexes))
        found.extend(await _unnamed_ones(store, space, key, space.proposals(key), seen))
    return found, are_open


def _effect_indexes(space: PartitionSpace, key: str, entry: EffectEntry) -> _Indexes:
    """Return where an effect has to be named, and by what."""
    item = AgendaItem(AgendaKind.EFFECT, key, entry.operation)
    if entry.is_settled and not entry.waiters:
        return ((space.agenda, AgendaItem(AgendaKind.OLD_EFFECT, key, entry.operation)),)
    agenda = ((space.agenda, item),) if entry.is_settled or entry.next_ms else ()
    return (*agenda, (space.queue, item)) if entry.state is EffectState.UNRESOLVED else agenda


def _proposal_indexes(space: PartitionSpace, key: str, entry: ProposalEntry) -> _Indexes:
    """Return where a proposal has to be named, and by what."""
    item = AgendaItem(AgendaKind.PROPOSAL, key, entry.field)
    if entry.state is ProposalState.OPEN:
        agenda = () if entry.expires_ms is None else ((space.agenda, item),)
        return (*agenda, (space.proposed, item))
    if entry.state in CLOSED and not entry.waiters:
        # The newest one stays while there is an object, so it may be on no agenda for a moment.
        return ((space.agenda, AgendaItem(AgendaKind.OLD_PROPOSAL, key, entry.field)),)
    is_due = entry.expires_ms is not None or entry.state in CLOSED
    return ((space.agenda, item),) if is_due else ()


async def _unnamed_ones(
    store: Store, space: PartitionSpace, key: str, hash_key: bytes, seen: Sequence[_Seen]
) -> list[Finding]:
    """Return those that an index lacks while their entries stand there as they were seen."""
    wanted = [(each, index, item) for each in seen for index, item in each.indexes]
    scores = await store.together([("ZSCORE", index, item.encode()) for _, index, item in wanted])
    missing = {each.name: each for (each, _, _), score in zip(wanted, scores, strict=True) if score is None}
    again = await store.together([("HGET", hash_key, name) for name in missing])
    return [
        _unnamed(space, key, each)
        for each, data in zip(missing.values(), again, strict=True)
        if data == each.data
    ]  # fmt: skip


async def check_index(store: Store, space: PartitionSpace, index: bytes) -> list[Finding]:
    """Look for members of an index that name nothing any more, or something that does not belong there.

    Args:
        store: The open store.
        space: The partition.
        index: Its agenda, its queue, or its open proposals.

    Raises:
        StoreUnavailable: The store is away.
    """
    found: list[Finding] = []
    async for words in pages_of(store, "ZSCAN", index):
        items: list[AgendaItem] = []
        for member in words[::2]:
            try:
                item = AgendaItem.decode(member)
                # What was reserved outlives its effect.
                items.extend([item] if item.kind in _KINDS else ())
            except Undecodable as error:
                found.append(_no_item(space, index, member, error.message))
        for item in await _suspicious(store, space, index, items):
            finding = await _of_member(store, space, index, item)
            if finding is not None:
                found.append(finding)
    return found


async def _suspicious(
    store: Store, space: PartitionSpace, index: bytes, items: Sequence[AgendaItem]
) -> list[AgendaItem]:
    """Return the members of an index that are worth a closer look, of a page of them that are read in one turn."""
    if index != space.agenda:
        # People's own: a few.
        return list(items)
    keys = [_hash_of(space, item) for item in items]
    there = await store.together([("HEXISTS", key, item.name) for key, item in zip(keys, items, strict=True)])
    return [item for item, is_there in zip(items, there, strict=True) if is_there == 0]


def _hash_of(space: PartitionSpace, item: AgendaItem) -> bytes:
    is_effect = _KINDS[item.kind] is AgendaKind.EFFECT
    return space.effects(item.key) if is_effect else space.proposals(item.key)


async def _of_member(store: Store, space: PartitionSpace, index: bytes, item: AgendaItem) -> Finding | None:
    why = await _why_wrong(store, space, index, item)
    if why is None:
        return None
    (score,) = await store.together([("ZSCORE", index, item.encode())])
    # Who put it there, or takes it off, writes the entry in the same commit.
    if score is None or await _why_wrong(store, space, index, item) is None:
        return None
    kind = Kind.QUEUE_ENTRY_ORPHANED if index == space.queue else Kind.AGENDA_ORPHANED
    where = {space.queue: "the queue of people", space.agenda: "the agenda"}.get(index, "the open proposals")
    return Finding(
        kind,
        Place(space.type_name, space.number, item.key, name=f"{item.kind.value} {item.name}"),
        f"{where} names {item.name}, {why}",
        "its owner takes it off",
        NamedRepair(space.type_name, space.number, "docket", item.encode()),
    )


async def _why_wrong(store: Store, space: PartitionSpace, index: bytes, item: AgendaItem) -> str | None:
    is_effect = _KINDS[item.kind] is AgendaKind.EFFECT
    (data,) = await store.together([("HGET", _hash_of(space, item), item.name)])
    if data is None:
        return "of which nothing is kept"
    if isinstance(data, Exception) or index == space.agenda:
        return None
    try:
        entry: _Entry = EffectEntry.decode(data) if is_effect else ProposalEntry.decode(data)
    except Undecodable:
        return None
    wanted = EffectState.UNRESOLVED if is_effect else ProposalState.OPEN
    return None if entry.state is wanted else f"which is {entry.state.value}"


async def expiring_soon(store: Store, space: PartitionSpace, now_ms: int) -> list[str]:
    """Return in words which open proposals are about to expire.

    Raises:
        StoreUnavailable: The store is away.
    """
    words = ("ZRANGEBYSCORE", space.proposed, now_ms, now_ms + SOON_MS, "WITHSCORES", "LIMIT", 0, SOON_NAMED)
    (found,) = await store.together([words])
    if isinstance(found, Exception):
        return []
    told: list[str] = []
    for member, score in zip(found[::2], found[1::2], strict=True):
        try:
            item = AgendaItem.decode(member)
        except Undecodable:
            continue
        minutes = (float(score) - now_ms) / 60_000
        told.append(
            f"{space.type_name}/{item.key}#{item.name} waits for a decision, and expires in {minutes:.0f} minutes"
        )
    return told


def _unnamed(space: PartitionSpace, key: str, seen: _Seen) -> Finding:
    name = seen.name.decode(errors="replace")
    what = "effect" if seen.kind is AgendaKind.EFFECT else "proposal"
    return Finding(
        Kind.AGENDA_MISSING,
        Place(space.type_name, space.number, key, name=f"{seen.kind.value} {name}"),
        f"its {what} {name} is {seen.state}, and agenda, queue or open proposals lack it: nobody comes back to it",
        "its owner puts it there again",
        NamedRepair(space.type_name, space.number, "docket", AgendaItem(seen.kind, key, name).encode()),
    )


def _overdue(space: PartitionSpace, key: str, entry: EffectEntry, now_ms: int) -> Finding:
    late = (now_ms - (entry.reconcile_by_ms or now_ms)) / 3_600_000
    since = f"{moment(entry.since_ms):%Y-%m-%d %H:%M:%S} UTC"
    return Finding(
        Kind.EFFECT_OVERDUE,
        Place(space.type_name, space.number, key, name=f"e {entry.operation}"),
        f"{entry.receiver}.{entry.effect} {entry.operation} {short(entry.params)} should have been settled "
        f"{late:.1f} h ago: {entry.why or 'nobody knows whether it was done'}, since {since}",
        f"{entry.assigned or 'the owner of ' + entry.receiver} settles it: `keylane reconcile show {space.type_name} "
        f"{key} {entry.operation}` says how",
    )


def _unreadable(space: PartitionSpace, key: str, name: bytes, why: str) -> Finding:
    shown = name.decode(errors="backslashreplace")
    return Finding(
        Kind.DOCKET_UNREADABLE,
        Place(space.type_name, space.number, key, name=shown),
        f"its effect or proposal {shown} can't be read by this code: {why}; nothing that needs it goes on",
        "deploy the version that wrote it, or put it back from a copy",
    )


def _no_item(space: PartitionSpace, index: bytes, member: bytes, why: str) -> Finding:
    return Finding(
        Kind.AGENDA_ORPHANED,
        Place(space.type_name, space.number, name=f"{index.decode(errors='replace')} {member.hex()}"),
        f"it names nothing that can be read: {why}",
        "take it out by hand (ZREM)",
    )
