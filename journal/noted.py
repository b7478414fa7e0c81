"""Records with the times at which they were written, read leniently: what can't be read is said and passed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeAlias, TypeVar

from .blobs import size_of
from .codec import Undecodable
from .command_records import (
    ApprovalAwaited,
    AwakeableMade,
    CallCompleted,
    CallStarted,
    CancelDelivered,
    Command,
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
from .descriptions import Step
from .key import format_id
from .lane_reading import ask
from .place import Place, format_place, sort_key
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
from .restarting import what_counts
from .snapshots import Entry
from .standing import END_OF, Extras, IllegalTransition, OpenWait, Standing, Status
from .store import Store
from .transitions import replay

T = TypeVar("T")

#: What may come for an invocation while it is paused, and leaves it so.
COMES_WHILE_PAUSED: Final = (SignalReceived, CallCompleted, TimerFired, WaitCompleted, WaitExpired)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

#: A first page is small, since each entry may hold many values; pages grow while they turn out small.
FIRST_PAGE_ENTRIES: Final = 16
PAGE_ENTRIES_MAX: Final = 128
SMALL_PAGE_BYTES: Final = 1 << 19


@dataclass(frozen=True, slots=True)
class Bound:
    """How much of a stream is read at most; the last page may go over the bytes."""

    entries: int
    bytes: int = 8 << 20


@dataclass(frozen=True, slots=True)
class Noted:
    """One entry of an invocation's stream.

    Args:
        at_ms: When it was written, in partition time.
        size_bytes: Size of its fields.
        record: The record, None where it can't be read.
        problem: Why it can't.
    """

    at_ms: int
    size_bytes: int
    record: Record | None
    problem: str | None = None


def moment(milliseconds: float) -> datetime:
    """Return a time of the store as a datetime."""
    return _EPOCH + timedelta(milliseconds=milliseconds)


def written_at_ms(entry_id: bytes) -> int:
    """Return when an entry of a stream was written."""
    return int(entry_id.partition(b"-")[0])


def named(fields: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the fields of an entry by name."""
    return dict(zip(fields[::2], fields[1::2], strict=True))


async def read_stream(
    store: Store, stream: bytes, bound: Bound, *, newest_first: bool = False
) -> tuple[list[Entry], bool]:
    """Read a stream from one end, page by page, up to a bound.

    Returns:
        The entries in the order of reading, and whether there may be more.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: Something else stands in the stream's place.
    """
    entries: list[Entry] = []
    read_bytes, count = 0, FIRST_PAGE_ENTRIES
    while len(entries) < bound.entries and read_bytes < bound.bytes:
        wanted = min(count, bound.entries - len(entries))
        words = _page(stream, entries[-1][0] if entries else None, wanted, newest_first=newest_first)
        (page,) = await ask(store, [words], [stream])
        entries.extend(page)
        if len(page) < wanted:
            return entries, False
        page_bytes = sum(len(word) for _, fields in page for word in fields)
        read_bytes += page_bytes
        if page_bytes < SMALL_PAGE_BYTES:
            count = min(count * 4, PAGE_ENTRIES_MAX)
    return entries, bool(entries)


def _page(stream: bytes, last: bytes | None, count: int, *, newest_first: bool) -> tuple[Any, ...]:
    if newest_first:
        return ("XREVRANGE", stream, "+" if last is None else b"(" + last, "-", "COUNT", count)
    return ("XRANGE", stream, "-" if last is None else b"(" + last, "+", "COUNT", count)


def noted(entry: Entry) -> Noted:
    """Read one entry of an invocation's stream; never raises."""
    entry_id, fields = entry
    at_ms, size_bytes = written_at_ms(entry_id), sum(map(len, fields[1::2]))
    data = named(fields).get(b"r")
    if data is None:
        return Noted(at_ms, size_bytes, None, f"entry {entry_id.decode()} has no record")
    try:
        return Noted(at_ms, size_bytes, decode(data))
    except Undecodable as error:
        return Noted(at_ms, size_bytes, None, f"entry {entry_id.decode()}: {error}")


class _Telling(Generic[T]):
    """Looks at the records of an invocation, newest first, for the one that tells where it stands."""

    __slots__ = ("_is_signal", "found")

    def __init__(self) -> None:
        #: What stands for the one found so far, alone; empty before anything was looked at.
        self.found: list[T] = []
        self._is_signal = True

    def look_at(self, what: T, record: Record | None) -> bool:
        """Look at one record, for which something stands; return whether older ones change nothing any more."""
        if self._is_signal:
            self.found, self._is_signal = [what], isinstance(record, SignalReceived)
        if isinstance(record, COMES_WHILE_PAUSED):
            return False
        if isinstance(record, Paused):
            self.found = [what]
        return True


async def telling_before(store: Store, stream: bytes, newest: list[Entry]) -> list[Entry]:
    """Return the newest record of an invocation that tells where it stands.

    A signal that came for it says nothing of that, and neither does the end of a wait of one that is paused: it stays
    so until somebody resumes it.

    Args:
        store: The open store.
        stream: Its records.
        newest: The newest of them, as it was read.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: Something else stands in the stream's place.
    """
    page, count, telling = newest[-1:], FIRST_PAGE_ENTRIES, _Telling[Entry]()
    while page:
        for entry in page:
            if telling.look_at(entry, noted(entry).record):
                return telling.found
        before = b"(" + page[-1][0]
        (page,) = await ask(store, [("XREVRANGE", stream, before, "-", "COUNT", count)], [stream])
        count = PAGE_ENTRIES_MAX
    return telling.found


def standing_of(notes: Sequence[Noted], *, is_whole: bool) -> tuple[Standing | None, str | None]:
    """Return where an invocation stands, and what of its records can't be made sense of.

    Args:
        notes: Its records, oldest first.
        is_whole: Whether they are all.
    """
    records = [note.record for note in notes if note.record is not None]
    problem = next((note.problem for note in notes if note.problem is not None), None)
    if problem is None and is_whole and records:
        try:
            return replay(records), None
        except IllegalTransition as error:
            problem = error.message
    telling = _Telling[Record]()
    any(telling.look_at(record, record) for record in reversed(records))
    return (standing_at(telling.found[0]) if telling.found else None), problem


def standing_at(record: Record) -> Standing:
    """Return where an invocation stands whose newest record this is, as far as that alone tells."""
    match record:
        case Accepted() | Resumed() | Released():
            return Standing(Status.QUEUED, records=1)
        case Scheduled():
            return Standing(Status.SCHEDULED, records=1, delay_ms=record.delay_ms)
        case AttemptFailed():
            waiting = Standing(Status.WAITING, records=1, attempts=record.attempt)
            return waiting._replace(retry_after_ms=record.retry_after_ms, error=record.error)
        case Paused():
            return Standing(Status.PAUSED, records=1, paused=record, error=record.error)
        case CompensationStarted():
            extras = Extras(compensation=record)
            return Standing(Status.COMPENSATING, records=1, error=record.error, extras=extras)
        case Failed():
            return Standing(Status.FAILED, records=1, error=record.error)
        case Completed() | Finished() | Cancelled() | Killed():
            return Standing(_ENDED.get(type(record), _outcome_of(record)), records=1)
        case CancelRequested():
            return Standing(Status.RUNNING, records=1, extras=Extras(cancel=record))
        case SignalReceived() | PatchMarked() | Restarted():
            return Standing(Status.RUNNING, records=1)
        case _:
            return _standing_at_command(record)


_ENDED: Final[Mapping[type, Status]] = {
    Completed: Status.COMPLETED,
    Cancelled: Status.CANCELLED,
    Killed: Status.KILLED,
}


def _outcome_of(record: Record) -> Status:
    return END_OF[record.outcome] if isinstance(record, Finished) else Status.FAILED


def _standing_at_command(record: Command) -> Standing:
    index = record.index if isinstance(record.index, int) else 0
    match record:
        case CallStarted() | TimerSet() | WaitStarted() | EffectStarted() | ApprovalAwaited():
            extras = Extras(is_aside=record.releases)
            return Standing(Status.WAITING, records=1, steps=index, waits=(record,), extras=extras)
        case StepAttemptFailed():
            waiting = Standing(Status.WAITING, records=1, steps=index, step_attempts=record.attempt)
            return waiting._replace(retry_after_ms=record.retry_after_ms, error=record.error)
        case StepFailed():
            return Standing(Status.RUNNING, records=1, steps=index + 1, error=record.error)
        case ModelCallBegun():
            return Standing(Status.RUNNING, records=1, steps=index)
        case _:
            return Standing(Status.RUNNING, records=1, steps=index + 1)


def seconds_of(milliseconds: int) -> str:
    """Return a time in seconds, exactly."""
    return f"{milliseconds / 1000:,.3f}".rstrip("0").rstrip(".") + " s"


#: The commands that are no steps and have words of their own.
Worded: TypeAlias = (
    MessageSent | OpenWait | AwakeableMade | Proposed | WaitCompleted | CancelDelivered | CompensationSkipped
)

_Ended: TypeAlias = CallCompleted | TimerFired | WaitCompleted | WaitExpired | WaitWithdrawn | CancelDelivered


def in_words(record: Worded) -> str:
    """Return a command that is no step in words."""
    match record:
        case MessageSent():
            later = f", {seconds_of(record.delay_ms)} later" if record.delay_ms else ""
            return f"send to {record.type_name}.{record.handler} at {record.key}{later}"
        case CallStarted(is_attached=True):
            return f"result of {format_id(record.type_name, record.partition, record.invocation)}"
        case CallStarted():
            return f"call of {record.type_name}.{record.handler} at {record.key}"
        case TimerSet():
            return f"sleep of {seconds_of(record.delay_ms)}"
        case EffectStarted() | Proposed() | ApprovalAwaited():
            return _of_effects_in_words(record)
        case WaitStarted():
            place = record.awakeable
            return f"signal {record.name!r}" if place is None else f"the completion of awakeable {format_place(place)}"
        case AwakeableMade():
            return "awakeable"
        case WaitCompleted():
            return "signal, completion or outcome that was there before"
        case CancelDelivered():
            return "cancellation"
        case CompensationSkipped():
            return f"{record.name}, given up by {record.by}"


def _of_effects_in_words(record: EffectStarted | Proposed | ApprovalAwaited) -> str:
    match record:
        case EffectStarted():
            effect = f"effect {record.receiver}.{record.effect} {record.operation!r}"
            return f"what became of {effect}, to undo it" if record.settles else effect
        case Proposed():
            return f"proposal {record.action!r}, version {record.version}"
        case ApprovalAwaited():
            return f"decision on {record.action!r}, version {record.version}"


def steps_of(notes: Sequence[Noted]) -> tuple[Step, ...]:
    """Return the steps that records name, in order; one that is being tried again is the last.

    What else a handler asks for has a place among them: messages, calls and waits, under what they are in words.
    """
    steps: dict[Place, Step] = {}
    records = [note.record for note in notes if note.record is not None]
    counting = set(map(id, what_counts(records)))
    for note in notes:
        if id(note.record) not in counting:
            # The invocation was begun again from an earlier command.
            continue
        record = note.record
        match record:
            case CallStarted() | TimerSet() | WaitStarted() | EffectStarted() | ApprovalAwaited():
                steps[record.index] = Step(record.index, in_words(record), moment(note.at_ms), is_settled=False)
            case CallCompleted() | TimerFired() | WaitExpired() | WaitWithdrawn():
                _note_end(steps, note, record)
            case WaitCompleted() | CancelDelivered() if record.index in steps:
                _note_end(steps, note, record)
            case (
                MessageSent()
                | AwakeableMade()
                | Proposed()
                | WaitCompleted()
                | CancelDelivered()
                | CompensationSkipped()
            ):
                steps[record.index] = Step(record.index, in_words(record), moment(note.at_ms), is_settled=True)
            case _:
                _note_step(steps, note)
    return tuple(steps[place] for place in sorted(steps, key=sort_key))


def _note_end(steps: dict[Place, Step], note: Noted, record: _Ended) -> None:
    begun = steps.get(record.index)
    if begun is None:
        return
    match record:
        case CallCompleted():
            size_bytes = len(record.outcome)
        case WaitCompleted():
            size_bytes = len(record.value)
        case _:
            size_bytes = None
    steps[record.index] = replace(begun, at=moment(note.at_ms), is_settled=True, size_bytes=size_bytes)


def _note_step(steps: dict[Place, Step], note: Noted) -> None:
    record = note.record
    if not isinstance(record, StepCompleted | StepFailed | StepAttemptFailed | ModelCallBegun):
        return
    before = steps.get(record.index)
    failed_attempts = 0 if before is None else before.failed_attempts
    step = Step(record.index, record.name, moment(note.at_ms), is_settled=True, failed_attempts=failed_attempts)
    match record:
        case StepCompleted():
            steps[record.index] = replace(step, size_bytes=size_of(record.result), usage=record.usage)
        case ModelCallBegun():
            steps[record.index] = replace(step, is_settled=False, error=None if before is None else before.error)
        case StepFailed():
            steps[record.index] = replace(step, error=record.error)
        case StepAttemptFailed():
            failed = failed_attempts + 1
            steps[record.index] = replace(step, is_settled=False, failed_attempts=failed, error=record.error)
