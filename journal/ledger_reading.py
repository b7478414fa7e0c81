"""What anybody may read of effects and proposals: queues, open proposals, alerts and ledgers, page by page.

Reads only. What can't be decoded is told as such and never ends a reading. A page holds what was there when it was
read; an item that is there from the first page to the last comes at least once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from .agenda import AgendaItem, AgendaKind
from .codec import Undecodable
from .due import ms_of
from .effects import EffectEntry
from .errors import UnknownObject
from .keyspace import PartitionSpace
from .lane_reading import ask
from .ledger import LedgerEvent
from .noted import named, written_at_ms
from .proposals import ProposalEntry
from .snapshots import Entry
from .store import Store
from .types_registry import read_types

#: Partitions that are read in one turn; most of them have nothing of what is read.
SPACES_AT_ONCE: Final = 64
#: Members of an index, and events of a stream, that one command reads.
MEMBERS_AT_ONCE: Final = 256
EVENTS_AT_ONCE: Final = 256
#: Entries that are read in one turn: each carries its parameters and what has happened to it.
ENTRIES_AT_ONCE: Final = 64

AnyEntry: TypeAlias = "EffectEntry | ProposalEntry"
E = TypeVar("E", EffectEntry, ProposalEntry)
K = TypeVar("K", EffectEntry, ProposalEntry)


@dataclass(frozen=True, slots=True)
class Indexed:
    """A member of an index of a partition: its agenda, its queue, or its open proposals.

    Args:
        space: The partition.
        item: What it names, None where that can't be read.
        due_ms: When it is due, by the partition's time.
    """

    space: PartitionSpace
    item: AgendaItem | None
    due_ms: int


@dataclass(frozen=True, slots=True)
class Found(Generic[K]):
    """What an index names, with what stands behind it.

    Args:
        space: The partition.
        item: The object and the name.
        due_ms: When it is due: an effect to be settled by people, a proposal to expire.
        entry: The effect or proposal; None where it is gone, or can't be read.
        problem: Why it is None.
        is_gone: Whether it is None because nothing is there.
    """

    space: PartitionSpace
    item: AgendaItem
    due_ms: int
    entry: K | None
    problem: str | None = None
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class Noticed:
    """An entry of a ledger, or of the alerts.

    Args:
        space: The partition.
        entry_id: Its id in the stream, behind which a later reading goes on.
        at_ms: When it was written, by the partition's time.
        event: What it says, None where that can't be read.
        problem: Why not.
    """

    space: PartitionSpace
    entry_id: bytes
    at_ms: int
    event: LedgerEvent | None
    problem: str | None = None


async def spaces_of(store: Store, type_name: str | None = None) -> list[PartitionSpace]:
    """Return the partitions of an object type, or of all.

    Raises:
        UnknownObject: The namespace has no such type.
        StoreUnavailable: The store is away.
    """
    types = await read_types(store)
    if type_name is not None and type_name not in types:
        raise UnknownObject(type_name, tuple(sorted(types)))
    names = sorted(types) if type_name is None else [type_name]
    return [store.space(name, number) for name in names for number in range(types[name])]


async def read_index(store: Store, keys: Mapping[PartitionSpace, bytes]) -> AsyncGenerator[list[Indexed]]:
    """Return the members of an index of partitions, in pages; one that moves meanwhile may come twice.

    Args:
        store: The open store.
        keys: The index of each partition.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where an index belongs.
    """
    spaces = list(keys)
    for start in range(0, len(spaces), SPACES_AT_ONCE):
        cursors = dict.fromkeys(spaces[start : start + SPACES_AT_ONCE], b"0")
        while cursors:
            words = [("ZSCAN", keys[space], at, "COUNT", MEMBERS_AT_ONCE) for space, at in cursors.items()]
            replies = await ask(store, words, [keys[space] for space in cursors])
            page: list[Indexed] = []
            for space, (_, flat) in zip(cursors, replies, strict=True):
                page.extend(_indexed(space, *each) for each in zip(flat[::2], flat[1::2], strict=True))
            ahead = zip(cursors, replies, strict=True)
            cursors = {space: cursor for space, (cursor, _) in ahead if cursor != b"0"}
            if page:
                yield page


def _indexed(space: PartitionSpace, member: bytes, score: bytes) -> Indexed:
    try:
        item = AgendaItem.decode(member)
    except Undecodable:
        item = None
    return Indexed(space, item, ms_of(score))


async def read_agenda(store: Store, spaces: Sequence[PartitionSpace]) -> AsyncGenerator[list[Indexed]]:
    """Return what the agendas of partitions name, in pages.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where an agenda belongs.
    """
    async for page in read_index(store, {space: space.agenda for space in spaces}):
        yield page


async def read_queue(store: Store, spaces: Sequence[PartitionSpace]) -> AsyncGenerator[list[Found[EffectEntry]]]:
    """Return the effects that people have to settle, in pages; each partition's in no order.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where one of ours belongs.
    """
    async for page in read_index(store, {space: space.queue for space in spaces}):
        for start in range(0, len(page), ENTRIES_AT_ONCE):
            yield await read_effects(store, page[start : start + ENTRIES_AT_ONCE])


async def read_proposed(store: Store, spaces: Sequence[PartitionSpace]) -> AsyncGenerator[list[Found[ProposalEntry]]]:
    """Return the proposals that wait for a decision, in pages; each partition's in no order.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where one of ours belongs.
    """
    async for page in read_index(store, {space: space.proposed for space in spaces}):
        for start in range(0, len(page), ENTRIES_AT_ONCE):
            yield await _entries(store, page[start : start + ENTRIES_AT_ONCE], AgendaKind.PROPOSAL, ProposalEntry)


async def read_effects(store: Store, members: Sequence[Indexed]) -> list[Found[EffectEntry]]:
    """Return the effects that members of an index name; proposals, and what can't be read, are left out.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where an object's effects belong.
    """
    return await _entries(store, members, AgendaKind.EFFECT, EffectEntry)


async def _entries(store: Store, members: Sequence[Indexed], kind: AgendaKind, form: type[E]) -> list[Found[E]]:
    named_ = [(each, each.item) for each in members if each.item is not None and each.item.kind is kind]
    is_effect = kind is AgendaKind.EFFECT
    keys = [
        each.space.effects(item.key) if is_effect else each.space.proposals(item.key) for each, item in named_
    ]  # fmt: skip
    words = [("HGET", key, item.name) for key, (_, item) in zip(keys, named_, strict=True)]
    found: list[Found[E]] = []
    for (each, item), data in zip(named_, await ask(store, words, keys), strict=True):
        entry, problem = _decoded(data, form)
        found.append(Found(each.space, item, each.due_ms, entry, problem, is_gone=data is None))
    return found


def _decoded(data: bytes | None, form: type[E]) -> tuple[E | None, str | None]:
    if data is None:
        return None, "it is not there any more"
    try:
        return form.decode(data), None
    except Undecodable as error:
        return None, error.message


async def read_ledger(store: Store, spaces: Sequence[PartitionSpace]) -> AsyncGenerator[list[Noticed]]:
    """Return the events of ledgers, in pages; those of one partition in the order in which they happened.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where a ledger belongs.
    """
    async for page in _read_streams(store, {space: space.ledger for space in spaces}, {}):
        yield page


async def read_alerts(
    store: Store, spaces: Sequence[PartitionSpace], after: Mapping[PartitionSpace, bytes] | None = None
) -> AsyncGenerator[list[Noticed]]:
    """Return alerts, in pages; those of one partition in the order in which they were raised.

    Args:
        store: The open store.
        spaces: The partitions.
        after: The last entry of each that was read before; a partition that it lacks is read from the beginning.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where alerts belong.
    """
    async for page in _read_streams(store, {space: space.alerts for space in spaces}, after or {}):
        yield page


async def _read_streams(
    store: Store, streams: Mapping[PartitionSpace, bytes], after: Mapping[PartitionSpace, bytes]
) -> AsyncGenerator[list[Noticed]]:
    spaces = list(streams)
    for first in range(0, len(spaces), SPACES_AT_ONCE):
        group = spaces[first : first + SPACES_AT_ONCE]
        ahead = {space: b"(" + after[space] if space in after else b"-" for space in group}
        while ahead:
            words = [("XRANGE", streams[space], at, "+", "COUNT", EVENTS_AT_ONCE) for space, at in ahead.items()]
            replies: list[list[Entry]] = await ask(store, words, [streams[space] for space in ahead])
            read = list(zip(ahead, replies, strict=True))
            page = [_noticed(space, entry) for space, entries in read for entry in entries]
            ahead = {space: b"(" + entries[-1][0] for space, entries in read if len(entries) == EVENTS_AT_ONCE}
            if page:
                yield page


def _noticed(space: PartitionSpace, entry: Entry) -> Noticed:
    entry_id, fields = entry
    at_ms = written_at_ms(entry_id)
    try:
        return Noticed(space, entry_id, at_ms, LedgerEvent.decode(named(fields).get(b"e", b"")))
    except Undecodable as error:
        return Noticed(space, entry_id, at_ms, None, f"entry {entry_id.decode()}: {error.message}")
