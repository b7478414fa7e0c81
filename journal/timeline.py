"""The history of an object, told in order: the entries of its stream, and the records of its long invocations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import msgpack

from .codec import Undecodable
from .command_records import (
    ApprovalAwaited,
    AwakeableMade,
    CallCompleted,
    CallStarted,
    CancelDelivered,
    CompensationSkipped,
    CompensationStarted,
    EffectStarted,
    MessageSent,
    ModelCallBegun,
    Proposed,
    StepAttemptFailed,
    StepCompleted,
    StepFailed,
    TimerFired,
    TimerSet,
    WaitCompleted,
    WaitExpired,
    WaitStarted,
    WaitWithdrawn,
)
from .key import format_id
from .keyspace import PartitionSpace
from .lane_reading import ask
from .model_calls import of_models_in_words
from .noted import Noted, moment, named, noted, seconds_of, written_at_ms
from .object_description import Event, What
from .outcomes import Failure, Refused, Rejected, Replayed, Stopped, Succeeded, decode_outcome
from .place import Place, format_place
from .record_bytes import decode
from .records import (
    Accepted,
    AttemptFailed,
    Cancelled,
    CancelRequested,
    Completed,
    Failed,
    Finished,
    Killed,
    PatchMarked,
    Paused,
    Record,
    Released,
    Restarted,
    Resumed,
    Scheduled,
    SignalReceived,
)
from .snapshots import Entry, decode_values
from .standing import END_OF
from .store import Store

#: Of so many long invocations the records are read, the newest ones first.
INVOCATIONS_MAX: Final = 32
#: So many of the newest records of each.
RECORDS_EACH_MAX: Final = 64
_SHRUNK: Final = {b"s", b"p"}


@dataclass(frozen=True, slots=True)
class Turn:
    """An entry of an object's stream, read as far as it can be.

    Args:
        at_ms: When it was written.
        event: What it says.
        raw_id: The invocation that it is about, None where that can't be read.
        is_long: Whether that invocation has a stream of its own.
    """

    at_ms: int
    event: Event
    raw_id: bytes | None
    is_long: bool = False


async def read_timeline(
    store: Store, space: PartitionSpace, entries: Sequence[Entry], open_ids: Sequence[bytes]
) -> list[Event]:
    """Return what happened, oldest first.

    Args:
        store: The open store.
        space: The partition.
        entries: The newest entries of the object's stream, newest first.
        open_ids: The open invocations of its lane.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where a stream belongs.
    """
    turns = [turn_of(space, entry) for entry in reversed(entries)]
    long_ones = [turn.raw_id for turn in reversed(turns) if turn.is_long and turn.raw_id is not None]
    ids = list(dict.fromkeys((*open_ids, *long_ones)))[:INVOCATIONS_MAX]
    keys = [space.invocation(raw_id) for raw_id in ids]
    words = [("XREVRANGE", key, "+", "-", "COUNT", RECORDS_EACH_MAX) for key in keys]
    streams = await ask(store, words, keys)
    notes = {raw_id: [noted(entry) for entry in reversed(stream)] for raw_id, stream in zip(ids, streams, strict=True)}
    return merge(space, turns, notes)


def merge(space: PartitionSpace, turns: Sequence[Turn], notes: Mapping[bytes, Sequence[Noted]]) -> list[Event]:
    """Put the entries of an object and the records of its invocations into one order.

    What the object's stream says keeps its order. The records of an invocation stand between its acceptance and its
    end, also where all of them have the same millisecond. Records older than the oldest entry are left out: they would
    stand before a gap.
    """
    told = {(turn.raw_id, turn.event.what) for turn in turns}
    since_ms = turns[0].at_ms if turns else 0
    waiting = [
        (raw_id, note)
        for raw_id, each in notes.items()
        for note in each
        if note.at_ms >= since_ms and (raw_id, _what(note.record)) not in told
    ]
    waiting.sort(key=lambda each: each[1].at_ms)
    events: list[Event] = []
    for turn in turns:
        due = _due(turn, waiting)
        told_now = set(map(id, due))
        waiting = [each for each in waiting if id(each) not in told_now]
        events.extend(event_of(space, raw_id, note) for raw_id, note in due)
        events.append(_completed_by(turn, notes))
    events.extend(event_of(space, raw_id, note) for raw_id, note in waiting)
    return events


def _due(turn: Turn, waiting: Sequence[tuple[bytes, Noted]]) -> list[tuple[bytes, Noted]]:
    """Return the records that stand before an entry: the older ones, and of its own millisecond those of its commit."""
    due = [each for each in waiting if each[1].at_ms < turn.at_ms]
    own = [each for each in waiting if each[0] == turn.raw_id and each[1].at_ms == turn.at_ms]
    match turn.event.what:
        case What.ACCEPTED | What.MIGRATED:
            return due
        case What.STATE:
            # State is written with one record; which one the times can't tell, when a millisecond has several.
            return due + own[:1]
        case _:
            return due + own


def _completed_by(turn: Turn, notes: Mapping[bytes, Sequence[Noted]]) -> Event:
    """Return the event of an entry with what only the invocation's own record of the same fact tells."""
    for note in notes.get(turn.raw_id or b"", ()):
        if note.record is not None and _what(note.record) is turn.event.what:
            size_bytes = turn.event.size_bytes + note.size_bytes
            return replace(turn.event, size_bytes=size_bytes, detail=_detail(note.record))
    return turn.event


def turn_of(space: PartitionSpace, entry: Entry) -> Turn:
    """Read an entry of an object's stream; never raises."""
    entry_id, fields = entry
    at_ms = written_at_ms(entry_id)
    event = Event(moment(at_ms), What.UNDECODABLE, sum(map(len, fields[1::2])))
    by_name = named(fields)
    raw_id: bytes | None = None
    if by_name.keys() <= _SHRUNK and b"s" in by_name:
        return Turn(at_ms, _shrunk(entry_id, by_name, event), None)
    if b"m" in by_name:
        return Turn(at_ms, _migrated(entry_id, by_name, event), None)
    try:
        raw_id, event = _begun_or_ended(by_name, event)
        event = replace(event, invocation=_id(space, raw_id), **_written(by_name))
    except Undecodable as error:
        event = replace(event, what=What.UNDECODABLE, detail=f"entry {entry_id.decode()}: {error.message}")
    return Turn(at_ms, event, raw_id, is_long=b"f" not in by_name)


def _shrunk(entry_id: bytes, by_name: Mapping[bytes, bytes], event: Event) -> Event:
    """Return the event of the snapshot that is left of a history whose retention has passed."""
    try:
        return replace(event, what=What.SHRUNK, detail="what was before is past its retention", **_written(by_name))
    except Undecodable as error:
        return replace(event, detail=f"entry {entry_id.decode()}: {error.message}")


def _migrated(entry_id: bytes, by_name: Mapping[bytes, bytes], event: Event) -> Event:
    """Return the event of a state that was brought to another version."""
    try:
        told = _versions(by_name[b"m"])
        return replace(event, what=What.MIGRATED, detail=told, **_written(by_name))
    except Undecodable as error:
        return replace(event, detail=f"entry {entry_id.decode()}: {error.message}")


def _versions(data: bytes) -> str:
    try:
        value: Any = msgpack.unpackb(data)
    except (ValueError, TypeError, RecursionError) as error:
        raise Undecodable(str(error)) from error
    match value:
        case [int() as before, int() as after]:
            return f"from version {before} to version {after}"
        case _:
            raise Undecodable("not two versions")


def _begun_or_ended(by_name: Mapping[bytes, bytes], event: Event) -> tuple[bytes, Event]:
    """Return whom an entry is about, and its event as far as that tells it."""
    if b"a" in by_name:
        raw_id, handler = _acceptance(by_name[b"a"])
        return raw_id, replace(event, what=What.ACCEPTED, name=handler)
    if b"f" in by_name:
        record = decode(by_name[b"f"])
        if not isinstance(record, Finished):
            raise Undecodable(f"{type(record).__name__} where Finished belongs")
        return record.invocation, replace(event, what=_what(record), name=record.handler)
    if b"i" in by_name:
        return by_name[b"i"], replace(event, what=What.STATE)
    raise Undecodable("it has none of the fields that an entry has")


def _acceptance(data: bytes) -> tuple[bytes, str]:
    try:
        value: Any = msgpack.unpackb(data)
    except (ValueError, TypeError, RecursionError) as error:
        raise Undecodable(str(error)) from error
    match value:
        case [bytes() as raw_id, str() as handler]:
            return raw_id, handler
        case _:
            raise Undecodable("not an id and a handler")


def _written(by_name: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Return what an entry says about state, as fields of an event."""
    data = by_name.get(b"s", by_name.get(b"d"))
    if data is None:
        return {}
    values = decode_values(data)
    return {
        "is_snapshot": b"s" in by_name,
        "wrote": tuple(str(name) for name, value in values.items() if value is not None),
        "cleared": tuple(str(name) for name, value in values.items() if value is None),
    }


def _id(space: PartitionSpace, raw_id: bytes) -> str:
    return format_id(space.type_name, space.number, raw_id)


def event_of(space: PartitionSpace, raw_id: bytes, note: Noted) -> Event:
    """Return what a record of an invocation says; never raises."""
    event = Event(moment(note.at_ms), What.UNDECODABLE, note.size_bytes, _id(space, raw_id), detail=note.problem or "")
    record = note.record
    if record is None:
        return event
    return replace(event, what=_what(record), name=_name(record), detail=_detail(record))


def _what(record: Record | None) -> What:
    return What.UNDECODABLE if record is None else _WHAT.get(type(record)) or _end(cast("Finished", record))


def _end(record: Finished) -> What:
    return What(END_OF[record.outcome].value)


_WHAT: Final[Mapping[type, What]] = {
    Accepted: What.ACCEPTED,
    StepCompleted: What.STEP,
    StepAttemptFailed: What.STEP_RETRY,
    StepFailed: What.STEP_FAILED,
    ModelCallBegun: What.MODEL_CALL,
    AttemptFailed: What.RETRY,
    Paused: What.PAUSED,
    Resumed: What.RESUMED,
    Completed: What.COMPLETED,
    Failed: What.FAILED,
    Scheduled: What.SCHEDULED,
    Released: What.RELEASED,
    MessageSent: What.SENT,
    CallStarted: What.CALLED,
    CallCompleted: What.REPLIED,
    TimerSet: What.SLEEPS,
    TimerFired: What.WOKE,
    AwakeableMade: What.AWAKEABLE,
    WaitStarted: What.WAITS,
    SignalReceived: What.RECEIVED,
    WaitCompleted: What.GOT,
    WaitExpired: What.EXPIRED,
    WaitWithdrawn: What.WITHDRAWN,
    CancelRequested: What.CANCEL_REQUESTED,
    CancelDelivered: What.CANCEL_DELIVERED,
    Cancelled: What.CANCELLED,
    Killed: What.KILLED,
    CompensationStarted: What.COMPENSATING,
    CompensationSkipped: What.UNDO_SKIPPED,
    PatchMarked: What.PATCHED,
    Restarted: What.RESTARTED,
    EffectStarted: What.EFFECT,
    Proposed: What.PROPOSED,
    ApprovalAwaited: What.AWAITS_DECISION,
}


def _name(record: Record) -> str:
    match record:
        case StepCompleted() | StepAttemptFailed() | StepFailed() | ModelCallBegun() | CompensationSkipped():
            return record.name
        case WaitStarted() | SignalReceived():
            return record.name or f"awakeable {format_place(cast('Place', record.awakeable))}"
        case Accepted() | Finished():
            return record.handler
        case MessageSent() | CallStarted():
            return f"{record.type_name}.{record.handler}"
        case EffectStarted():
            return f"{record.receiver}.{record.effect}"
        case Proposed() | ApprovalAwaited():
            return record.action
        case _:
            return ""


def _detail(record: Record) -> str:
    match record:
        case StepAttemptFailed() | AttemptFailed():
            return f"attempt {record.attempt}: {in_words(record.error)}; again after {record.retry_after_ms} ms"
        case StepFailed() | Failed():
            return in_words(record.error)
        case ModelCallBegun() | StepCompleted():
            return of_models_in_words(record)
        case Scheduled() | TimerSet():
            return f"for {seconds_of(record.delay_ms)}"
        case MessageSent():
            later = f", to begin {seconds_of(record.delay_ms)} later" if record.delay_ms else ""
            return f"at {record.key}, {format_id(record.type_name, record.partition, record.invocation)}{later}"
        case CallStarted():
            return f"at {record.key}, {format_id(record.type_name, record.partition, record.invocation)}"
        case CallCompleted():
            return _reply_in_words(record.outcome)
        case WaitStarted():
            return "" if record.timeout_ms is None else f"for {seconds_of(record.timeout_ms)} at most"
        case EffectStarted():
            return f"{record.operation}: what became of it, to undo it" if record.settles else record.operation
        case Proposed() | ApprovalAwaited():
            return f"version {record.version}"
        case PatchMarked():
            return record.name
        case _:
            return _asked_for(record)


def _asked_for(record: Record) -> str:
    """Say who has asked for what happened, and why."""
    match record:
        case Paused():
            by = f" by {record.by}" if record.by else ""
            return f"{record.reason.value}{by}: {record.detail}"
        case Restarted():
            version = "" if record.version is None else f" in version {record.version}"
            return f"from command {record.kept}{version} by {record.by}: {record.reason}"
        case Resumed() | CancelRequested() | Cancelled() | Killed() | CompensationSkipped():
            return f"by {record.by}: {record.reason}"
        case SignalReceived() | WaitCompleted():
            return f"by {record.by}" if record.by else ""
        case CompensationStarted():
            return "" if record.error is None else in_words(record.error)
        case _:
            return ""


def _reply_in_words(data: bytes) -> str:
    try:
        outcome = decode_outcome(data)
    except Undecodable as error:
        return error.message
    match outcome:
        case Succeeded() | Replayed():
            return ""
        case Rejected(failure=failure):
            return in_words(failure)
        case Refused():
            return f"refused: {outcome.message}"
        case Stopped():
            return outcome.how


def in_words(failure: Failure) -> str:
    """Return a failure in one line: with the name of its type, and with its module where that is the user's."""
    module, _, name = failure.type_name.rpartition(".")
    if module != "builtins" and not module.startswith("keylane."):
        name = failure.type_name
    return f"{name}: {failure.message}" if failure.message else name
