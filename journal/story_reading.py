"""Reads the story of one object: its stream, the records of its invocations, its docket and the ledger, in bounds."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from .codec import Undecodable
from .command_records import WaitCompleted
from .docket_reading import DocketReading, read_docket
from .key import Key, format_id
from .keyspace import PartitionSpace
from .lane_reading import ask
from .ledger import Happened, LedgerEvent
from .noted import Noted, moment, named, noted
from .object_description import What
from .plain_values import short
from .reading import inspect
from .receivers_registry import ReceiverCard, read_receivers
from .record_bytes import decode
from .records import Accepted, Finished
from .snapshots import Entry, decode_values
from .store import Store
from .story import Line, Order, Story, Topic, by_urgency
from .story_matters import matters_of
from .story_words import (
    Told,
    is_told,
    lines_of_effect,
    lines_of_proposal,
    places_told,
    words_of_end,
    words_of_finished,
    words_of_record,
)
from .timeline import event_of, turn_of

#: Entries of the object's stream that a story is told from unless told otherwise.
STORY_ENTRIES: Final = 200
#: Long invocations whose records are told, the newest ones, and records of each.
INVOCATIONS_MAX: Final = 64
RECORDS_EACH_MAX: Final = 256
STREAMS_AT_ONCE: Final = 16
#: The newest events of the partition's ledger that are looked through for what the docket no longer has.
LEDGER_EVENTS_MAX: Final = 4_096
LEDGER_PAGE: Final = 512
#: Characters of a state value that are shown.
VALUE_CHARACTERS: Final = 100

#: Gives the operation id that a receiver sees: of the receiver, where it is known, the type's name, key and operation.
Qualify = Callable[["ReceiverCard | None", str, str, str], str]

_ENDS: Final = frozenset({What.COMPLETED, What.FAILED, What.CANCELLED, What.KILLED})
#: What is told otherwise, or says nothing to people.
_UNTOLD: Final = frozenset({What.RECEIVED, What.PATCHED, What.RELEASED})


@dataclass(slots=True)
class _Book:
    """What was read of an object, and the lines so far."""

    space: PartitionSpace
    docket: DocketReading
    cards: Mapping[str, ReceiverCard]
    qualify: Qualify
    key_text: str
    results: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    order: Order = field(default_factory=Order)

    def id_of(self, raw_id: bytes) -> str:
        return format_id(self.space.type_name, self.space.number, raw_id)

    def owner_of(self, receiver: str) -> str:
        card = self.cards.get(receiver)
        return f"the owner of {receiver}" if card is None else card.owner

    def qualified(self, receiver: str, operation: str) -> str:
        return self.qualify(self.cards.get(receiver), self.space.type_name, self.key_text, operation)

    def told(self) -> Told:
        operations = {each.operation for each in self.docket.effects}
        return Told(operations, {each.field for each in self.docket.proposals})


async def read_story(
    store: Store, space: PartitionSpace, key: Key, qualify: Qualify, *, entries: int = STORY_ENTRIES
) -> Story:
    """Return the story of an object; of one that nothing is kept of it is empty.

    Args:
        store: The open store.
        space: The partition of the key.
        key: The object.
        qualify: Gives the operation id that a receiver sees.
        entries: How many of the newest entries of the object's stream are told.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where one of ours belongs.
    """
    key_text = str(key)
    docket = await read_docket(store, space, key_text)
    described = await inspect(store, space, key, timeline_entries=1, docket=docket)
    stream = space.object(key_text)
    (newest,) = await ask(store, [("XREVRANGE", stream, "+", "-", "COUNT", entries + 1)], [stream])
    book = _Book(space, docket, await read_receivers(store), qualify, key_text)
    shown: list[Entry] = newest[:entries][::-1]
    open_ids = await _open_ids(store, space, key_text)
    book.results = await _results(store, space, shown)
    await _note_invocations(store, book, shown, open_ids)
    _note_docket(book)
    is_ledger_cut = await _note_ledger(store, book)
    return Story(
        space.type_name,
        key_text,
        space.number,
        described.read_at,
        described.owner,
        described.in_charge,
        book.order.lines(),
        by_urgency(matters_of(described, docket, book.owner_of, book.qualified)),
        docket.problems,
        is_cut=len(newest) > entries or docket.is_cut or is_ledger_cut,
    )


async def _open_ids(store: Store, space: PartitionSpace, key_text: str) -> list[bytes]:
    """Return the open invocations of an object: those of its lane, and those that stand beside it."""
    lane, aside = space.lane(key_text), space.set_aside(key_text)
    words = [("LRANGE", lane, 0, INVOCATIONS_MAX - 1), ("SMEMBERS", aside)]
    in_lane, beside = await ask(store, words, [lane, aside])
    return [*in_lane, *sorted(beside)]


async def _results(store: Store, space: PartitionSpace, entries: Sequence[Entry]) -> dict[bytes, bytes]:
    """Return the kept outcomes of the invocations that entries are about."""
    ids = list(dict.fromkeys(raw_id for entry in entries if (raw_id := turn_of(space, entry).raw_id) is not None))
    keys = [space.result(raw_id) for raw_id in ids]
    found = await ask(store, [("GET", key) for key in keys], keys)
    return {raw_id: data for raw_id, data in zip(ids, found, strict=True) if data is not None}


async def _note_invocations(store: Store, book: _Book, entries: Sequence[Entry], open_ids: Sequence[bytes]) -> None:
    space, told = book.space, book.told()
    long_ones: dict[bytes, None] = dict.fromkeys(open_ids)
    # The end of one that was accepted before what is shown looks like a short one without an argument.
    perhaps: dict[bytes, None] = {}
    for entry in entries:
        turn, finished = turn_of(space, entry), _finished(named(entry[1]))
        if turn.raw_id is not None and turn.is_long:
            long_ones[turn.raw_id] = None
        elif finished is not None and finished.input is None:
            perhaps[finished.invocation] = None
    ids = [*(each for each in perhaps if each not in long_ones), *long_ones]
    notes = await _records(store, space, ids[-INVOCATIONS_MAX:])
    for raw_id, each in notes.items():
        _note_records(book, raw_id, each, told)
    for entry in entries:
        _note_entry(book, entry, notes)


async def _records(store: Store, space: PartitionSpace, ids: Sequence[bytes]) -> dict[bytes, list[Noted]]:
    found: dict[bytes, list[Noted]] = {}
    for start in range(0, len(ids), STREAMS_AT_ONCE):
        group = ids[start : start + STREAMS_AT_ONCE]
        keys = [space.invocation(raw_id) for raw_id in group]
        words = [("XREVRANGE", key, "+", "-", "COUNT", RECORDS_EACH_MAX) for key in keys]
        for raw_id, stream in zip(group, await ask(store, words, keys), strict=True):
            if stream:
                found[raw_id] = [noted(entry) for entry in reversed(stream)]
    return found


def _note_records(book: _Book, raw_id: bytes, notes: Sequence[Noted], told: Told) -> None:
    invocation, settled = book.id_of(raw_id), places_told(notes, told)
    for note in notes:
        record, event = note.record, event_of(book.space, raw_id, note)
        if event.what in _UNTOLD or (isinstance(record, WaitCompleted) and record.index in settled):
            continue
        if event.what in _ENDS:
            text = words_of_end(_handler_of(notes), event.what.value, book.results.get(raw_id))
            book.order.note(Line(event.at, Topic.ENDED, text, invocation))
            continue
        words = None if record is None else words_of_record(record)
        if words is None:
            text = ": ".join(filter(None, (f"{event.what.value} {event.name}".strip(), event.detail)))
            words = Topic.OTHER, text, ""
        if record is None or not is_told(record, told):
            topic, text, by = words
            book.order.note(Line(event.at, topic, text, invocation, by))


def _handler_of(notes: Sequence[Noted]) -> str:
    first = notes[0].record
    return first.handler if isinstance(first, Accepted) else "it"


def _note_entry(book: _Book, entry: Entry, with_records: Container[bytes]) -> None:
    """Note what an entry of the object's stream says beside the records: short invocations, and the state."""
    by_name, turn = named(entry[1]), turn_of(book.space, entry)
    at, invocation = moment(turn.at_ms), turn.event.invocation
    has_records = turn.raw_id is not None and turn.raw_id in with_records
    finished = _finished(by_name)
    if finished is not None and not has_records:
        book.order.note(Line(at, Topic.ASKED, words_of_finished(finished), invocation))
        end = words_of_end(finished.handler, turn.event.what.value, book.results.get(finished.invocation))
        book.order.note(Line(at, Topic.ENDED, end, invocation))
    elif turn.is_long and b"a" in by_name and not has_records:
        text = f"{turn.event.name} is asked for; its records are no longer kept, or not among those that are shown"
        book.order.note(Line(at, Topic.ASKED, text, invocation))
    elif turn.event.what in (What.SHRUNK, What.MIGRATED, What.UNDECODABLE):
        book.order.note(Line(at, Topic.OTHER, f"{turn.event.what.value}: {turn.event.detail}", invocation))
    state = _state(by_name)
    if state:
        book.order.note(Line(at, Topic.STATE, state, invocation))


def _finished(by_name: Mapping[bytes, bytes]) -> Finished | None:
    if b"f" not in by_name:
        return None
    try:
        record = decode(by_name[b"f"])
    except Undecodable:
        return None
    return record if isinstance(record, Finished) else None


def _state(by_name: Mapping[bytes, bytes]) -> str:
    """Return what an entry says of the state: the values that it wrote, or that it holds all of them."""
    if b"s" in by_name and b"d" not in by_name:
        # What is left of a history that was shrunk is told as such.
        return "" if by_name.keys() <= {b"s", b"p"} else "state: all of it, written anew"
    try:
        values = decode_values(by_name[b"d"]) if b"d" in by_name else {}
    except Undecodable as error:
        return f"state: {error.message}"
    written = [
        f"{name} is cleared" if value is None else f"{name} is {short(value, VALUE_CHARACTERS)}"
        for name, value in values.items()
    ]
    return f"state: {', '.join(written)}" if written else ""


def _note_docket(book: _Book) -> None:
    for effect in book.docket.effects:
        owner, qualified = book.owner_of(effect.receiver), book.qualified(effect.receiver, effect.operation)
        book.order.note_all(lines_of_effect(effect, owner, qualified, book.id_of(effect.invocation)))
    for proposal in book.docket.proposals:
        book.order.note_all(lines_of_proposal(proposal, book.id_of(proposal.invocation)))


async def _note_ledger(store: Store, book: _Book) -> bool:
    """Note events of the ledger that the docket no longer has; returns whether there are more that were not read."""
    known: set[tuple[str, Happened]] = {(each.operation, one) for each in book.docket.effects for one in each.life}
    known |= {(each.field, one) for each in book.docket.proposals for one in each.life}
    stream, end, read = book.space.ledger, b"+", 0
    while read < LEDGER_EVENTS_MAX:
        (page,) = await ask(store, [("XREVRANGE", stream, end, "-", "COUNT", LEDGER_PAGE)], [stream])
        for entry in page:
            event = _event(entry)
            if event is not None and event.key == book.key_text and (event.subject, event.happened) not in known:
                book.order.note(_line_of_event(event))
        read += len(page)
        if len(page) < LEDGER_PAGE:
            return False
        end = b"(" + page[-1][0]
    return True


def _event(entry: Entry) -> LedgerEvent | None:
    try:
        return LedgerEvent.decode(named(entry[1]).get(b"e", b""))
    except Undecodable:
        return None


def _line_of_event(event: LedgerEvent) -> Line:
    happened = event.happened
    what = f"{event.effect} {event.subject!r} at {event.receiver}" if event.receiver else event.subject
    detail = f": {happened.detail}" if happened.detail else ""
    topic = Topic.EFFECT if event.receiver else Topic.DECISION
    return Line(moment(happened.at_ms), topic, f"{what} is {happened.kind.value}{detail}", None, happened.by)
