"""Reads what a lane is made of: the object's state, and the invocations that are open in it, in order of intake."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

from .codec import Undecodable
from .command_records import StepAttemptFailed, TimerSet, WaitStarted
from .keyspace import PartitionSpace
from .mail import MAILED, Mail
from .messages import Attached
from .place import Place
from .record_bytes import decode
from .records import AttemptFailed, Paused, Record, Restarted
from .refusals import key_error
from .restarting import dropped, what_counts
from .snapshots import FIRST_READ_ENTRIES, Entry, ObjectState, fold, is_whole, newest_words, older_words
from .store import Store

#: How much of many or long streams one turn reads. Values above the threshold are no part of a record.
STREAMS_AT_ONCE = 64
FIRST_RECORDS = 32
RECORDS_AT_ONCE = 128
LANES_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class OpenInvocation:
    """An invocation that a lane's list names.

    Args:
        raw_id: Its id.
        records: Its records as far as they can be read.
        undecodable: Why the next one can't be read, None when all can.
        is_parked: Whether it was parked for that already: the last record says so.
        begun_ms: The partition's time at its first record, 0 for one that has none.
        written_ms: The partition's time at the newest record of each place that something is due after.
        last_ms: The partition's time at its last record.
        mail: Its signals and awakeables, None for one that has neither.
        attached: Those that wait for its end without having asked for it.
        failed_ms: The partition's time at its newest failed attempt, 0 for one that has none.
    """

    raw_id: bytes
    records: list[Record]
    undecodable: str | None = None
    is_parked: bool = False
    begun_ms: int = 0
    written_ms: Mapping[Place, int] = field(default_factory=dict["Place", int])
    last_ms: int = 0
    mail: Mail | None = None
    attached: tuple[Attached, ...] = ()
    failed_ms: int = 0


@dataclass(frozen=True, slots=True)
class LaneContents:
    """What the store has of one lane.

    Args:
        state: The object's state.
        open: The invocations of its list, in order.
        aside: Those that are named beside it: they have left it while they wait, or are paused and have large values.
    """

    state: ObjectState
    open: list[OpenInvocation] = field(default_factory=list["OpenInvocation"])
    aside: list[OpenInvocation] = field(default_factory=list["OpenInvocation"])


async def read_lane(store: Store, space: PartitionSpace, key_text: str) -> LaneContents:
    """Read a lane's state and its open invocations.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where the object's stream belongs.
        Undecodable: The object's state can't be read.
    """
    newest, ids, aside = await ask(
        store,
        [newest_words(space, key_text), ("LRANGE", space.lane(key_text), 0, -1), aside_words(space, key_text)],
        [space.object(key_text), space.lane(key_text), space.set_aside(key_text)],
    )
    state = await read_state(store, space, key_text, newest)
    if not ids and not aside:
        return LaneContents(state)
    found = await read_invocations(store, space, [*ids, *aside])
    return LaneContents(state, found[: len(ids)], found[len(ids) :])


def aside_words(space: PartitionSpace, key_text: str) -> tuple[Any, ...]:
    """Return the read of the invocations that have left an object's lane, as far as the object names them."""
    return ("SMEMBERS", space.set_aside(key_text))


async def read_state(
    store: Store, space: PartitionSpace, key_text: str, newest: list[Entry] | None = None
) -> ObjectState:
    """Read an object's state; `newest` are its newest entries where they were read already.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where the object's stream belongs.
        Undecodable: The state can't be read.
    """
    entries, asked = newest, FIRST_READ_ENTRIES
    if entries is None:
        (found,) = await ask(store, [newest_words(space, key_text)], [space.object(key_text)])
        entries = cast("list[Entry]", found)
    while not is_whole(entries[-asked:], asked):
        asked = FIRST_READ_ENTRIES * 8
        (older,) = await ask(store, [older_words(space, key_text, entries[-1][0])], [space.object(key_text)])
        entries = entries + older
        if len(older) < asked:
            break
    return fold(entries)


async def read_invocations(store: Store, space: PartitionSpace, ids: Sequence[bytes]) -> list[OpenInvocation]:
    """Read the records of invocations, a few invocations in a turn, and of each a page at a time.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where a stream belongs.
    """
    found: list[OpenInvocation] = []
    for start in range(0, len(ids), STREAMS_AT_ONCE):
        group = ids[start : start + STREAMS_AT_ONCE]
        keys = [space.invocation(raw_id) for raw_id in group]
        words = [("XRANGE", key, "-", "+", "COUNT", FIRST_RECORDS) for key in keys]
        others = [space.attached(raw_id) for raw_id in group]
        replies = await ask(store, [*words, *(("SMEMBERS", each) for each in others)], [*keys, *others])
        streams, attached = replies[: len(group)], replies[len(group) :]
        for raw_id, key, entries, notes in zip(group, keys, streams, attached, strict=True):
            if len(entries) == FIRST_RECORDS:
                await _read_rest(store, key, entries)
            invocation = _invocation(raw_id, entries)
            found.append(replace(invocation, attached=_attached(notes)) if notes else invocation)
    return found


def _attached(members: Iterable[bytes]) -> tuple[Attached, ...]:
    attached: list[Attached] = []
    for each in sorted(members):
        # One that can't be read can't be told anything.
        with suppress(Undecodable):
            attached.append(Attached.decode(each))
    return tuple(attached)


async def _read_rest(store: Store, stream: bytes, entries: list[Entry]) -> None:
    """Read the records behind the first page of a stream, and put them to those."""
    while True:
        words = ("XRANGE", stream, b"(" + entries[-1][0], "+", "COUNT", RECORDS_AT_ONCE)
        (page,) = await ask(store, [words], [stream])
        entries.extend(page)
        if len(page) < RECORDS_AT_ONCE:
            return


async def read_runnable(store: Store, space: PartitionSpace) -> list[str]:
    """Return the lanes of a partition that have work, a page at a time.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where the set belongs.
    """
    lanes: dict[bytes, None] = {}
    cursor = b"0"
    while True:
        words = ("SSCAN", space.runnable, cursor, "COUNT", LANES_AT_ONCE)
        ((cursor, page),) = await ask(store, [words], [space.runnable])
        lanes.update(dict.fromkeys(page))
        if cursor == b"0":
            return [key.decode() for key in lanes]


def _invocation(raw_id: bytes, entries: list[Entry]) -> OpenInvocation:
    records: list[Record] = []
    written_ms: dict[Place, int] = {}
    last_ms, failed_ms, mail = 0, 0, None
    begun_ms = int(entries[0][0].partition(b"-")[0]) if entries else 0
    for entry_id, fields in entries:
        try:
            records.append(decode(dict(zip(fields[::2], fields[1::2], strict=True))[b"r"]))
        except (Undecodable, KeyError) as error:
            why = f"entry {entry_id.decode()}: {error}"
            return OpenInvocation(raw_id, records, why, _ends_parked(entries), begun_ms, written_ms, last_ms, mail)
        newest, last_ms = records[-1], int(entry_id.partition(b"-")[0])
        if isinstance(newest, TimerSet | WaitStarted | StepAttemptFailed):
            written_ms[newest.index] = last_ms
        if isinstance(newest, AttemptFailed | StepAttemptFailed):
            failed_ms = last_ms
        if type(newest) in MAILED:
            mail = mail or Mail()
            mail.note(newest, last_ms)
        elif isinstance(newest, Restarted) and mail is not None:
            mail.drop(dropped(what_counts(records[:-1]), newest.kept))
    return OpenInvocation(
        raw_id, records, begun_ms=begun_ms, written_ms=written_ms, last_ms=last_ms, mail=mail, failed_ms=failed_ms
    )  # fmt: skip


def _ends_parked(entries: list[Entry]) -> bool:
    """Return whether the last record is a pause, which stands behind what can't be read."""
    fields = entries[-1][1]
    try:
        return isinstance(decode(fields[1]), Paused)
    except (Undecodable, LookupError):
        return False


async def ask(store: Store, commands: Sequence[tuple[Any, ...]], keys: Sequence[bytes]) -> list[Any]:
    """Send reads in one turn and wait for all of them.

    Args:
        store: The open store.
        commands: The reads.
        keys: The key that each reads, for messages.

    Raises:
        StoreUnavailable: An answer did not come.
        WrongKeyType: A key holds another type than the read is for.
    """
    replies = await store.together(commands)
    for reply, key in zip(replies, keys, strict=True):
        if isinstance(reply, Exception):
            raise key_error(reply, key, store.url) from reply
    return replies


async def ask_each(store: Store, commands: Sequence[tuple[Any, ...]], keys: Sequence[bytes]) -> list[Any]:
    """Send reads in one turn; the refusal of one is answered in its place, as an error that names its key.

    Raises:
        StoreUnavailable: An answer did not come.
    """
    replies = await store.together(commands)
    return [
        key_error(reply, key, store.url) if isinstance(reply, Exception) else reply
        for reply, key in zip(replies, keys, strict=True)
    ]
