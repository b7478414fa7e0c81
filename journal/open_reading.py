"""The open invocations of an object, described: what each does or waits for, and what still lies in the inbox."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from .codec import Undecodable
from .command_records import (
    CallCompleted,
    CallStarted,
    CancelDelivered,
    TimerFired,
    WaitCompleted,
    WaitExpired,
    WaitStarted,
)
from .descriptions import Cancel, Pause
from .key import format_id
from .keyspace import PartitionSpace
from .lane_reading import ask
from .noted import Bound, Noted, moment, named, noted, read_stream, standing_of, telling_before, written_at_ms
from .noted import in_words as in_words_of
from .object_description import OpenInvocation, WaitingRequest
from .place import format_place
from .records import Accepted, CancelRequested, Paused, SignalReceived
from .requests import Request
from .snapshots import Entry, aside_of
from .standing import Standing, Status
from .store import Store
from .surroundings import Surroundings
from .timeline import in_words, turn_of

#: Entries of an inbox that are looked through.
INBOX: Final = Bound(2_000)
#: Parked invocations that are looked for among those that the newest history names.
PARKED_MAX: Final = 50


async def read_open(
    store: Store, space: PartitionSpace, ids: Sequence[bytes], around: Surroundings
) -> tuple[OpenInvocation, ...]:
    """Describe the invocations of a lane, in its order.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where a stream belongs.
    """
    described = await _described(store, space, ids, around)
    return tuple(told for _, told in described)


async def read_parked(
    store: Store, space: PartitionSpace, entries: Sequence[Entry], ids: Sequence[bytes], around: Surroundings
) -> tuple[OpenInvocation, ...]:
    """Describe the invocations that are parked and have left the lane, as far as the object's newest entries name them.

    Args:
        store: The open store.
        space: The partition.
        entries: The newest entries of the object's stream.
        ids: The invocations that are in the lane.
        around: The circumstances of the reading.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where a stream belongs.
    """
    turns = [turn_of(space, entry) for entry in reversed(entries)]
    ended = {turn.raw_id for turn in turns if not turn.is_long}
    kept = [raw_id for entry in reversed(entries) for raw_id in aside_of(named(entry[1]))]
    begun = dict.fromkeys((*kept, *(turn.raw_id for turn in turns if turn.is_long and turn.raw_id is not None)))
    aside = [raw_id for raw_id in begun if raw_id not in ended and raw_id not in ids]
    described = await _described(store, space, aside[-PARKED_MAX:], around, is_lane=False)
    return tuple(told for _, told in described if told.status is Status.PAUSED or told.has_released_lane)


async def _described(
    store: Store, space: PartitionSpace, ids: Sequence[bytes], around: Surroundings, *, is_lane: bool = True
) -> list[tuple[bytes, OpenInvocation]]:
    """Read the first and the last record of each, which is all that it takes."""
    streams = [space.invocation(raw_id) for raw_id in ids]
    firsts = await ask(store, [("XRANGE", stream, "-", "+", "COUNT", 1) for stream in streams], streams)
    lasts = await ask(store, [("XREVRANGE", stream, "+", "-", "COUNT", 1) for stream in streams], streams)
    telling = [await telling_before(store, stream, last) for stream, last in zip(streams, lasts, strict=True)]
    due = await ask(store, [("ZSCORE", space.due, raw_id) for raw_id in ids], [space.due] * len(ids))
    described: list[tuple[bytes, OpenInvocation]] = []
    head = format_id(space.type_name, space.number, ids[0]) if ids else ""
    for position, raw_id in enumerate(ids):
        notes = [noted(entry) for entry in (*firsts[position], *telling[position])]
        behind = head if position and is_lane else None
        told = _open(format_id(space.type_name, space.number, raw_id), notes, due[position], behind, around)
        described.append((raw_id, told))
    return described


def _open(
    invocation_id: str, notes: Sequence[Noted], due_ms: bytes | None, behind: str | None, around: Surroundings
) -> OpenInvocation:
    standing, problem = standing_of(notes, is_whole=False)
    accepted = notes[0].record if notes else None
    is_readable = isinstance(accepted, Accepted)
    retry_due_at = moment(float(due_ms)) if due_ms is not None else None
    return OpenInvocation(
        invocation_id,
        None if standing is None else standing.status,
        why(standing, problem, behind, retry_due_at, around, invocation_id, moment(notes[-1].at_ms) if notes else None),
        accepted.handler if is_readable else None,
        moment(notes[0].at_ms) if notes else None,
        0 if standing is None else max(standing.attempts, standing.step_attempts),
        retry_due_at,
        pause_of(notes, around),
        standing is not None and standing.is_aside,
    )


def why(
    standing: Standing | None,
    problem: str | None,
    behind: str | None,
    retry_due_at: datetime | None,
    around: Surroundings,
    invocation_id: str = "",
    since: datetime | None = None,
) -> str:
    """Say in words what an open invocation does or waits for.

    Args:
        standing: Where it stands, None where no record of it can be read.
        problem: What of its records can't be read.
        behind: The holder of the lane, None for the holder itself.
        retry_due_at: When its next attempt is due.
        around: The circumstances of the reading.
        invocation_id: Its id.
        since: When its newest record was written.
    """
    if standing is not None and standing.paused is not None:
        whom = around.in_charge or "somebody"
        return f"paused ({standing.paused.reason.value}): {standing.paused.detail}; {whom} has to resume it"
    if standing is None or problem is not None:
        return f"its records can't be read: {problem or 'there are none'}"
    if behind is not None:
        return f"waits behind {behind}"
    waited = waits_for(standing, retry_due_at, invocation_id, since)
    if waited is not None:
        return waited
    if around.pauses:
        return f"goes no further than its next durable point: {'; '.join(map(str, around.pauses))}"
    if standing.status is Status.WAITING:
        return _waits(standing, retry_due_at, around)
    holder = around.owner.holder
    if holder is None:
        return "nobody holds its partition: it goes on when a worker does"
    if standing.status is Status.COMPENSATING:
        return f"is being undone at {holder}{_waits_for_room(around)}"
    if standing.extras.cancel is not None and not standing.extras.is_cancel_delivered:
        return f"runs at {holder}, and is told at its next durable point that it is cancelled"
    if standing.status is Status.RUNNING:
        return f"runs at {holder}; its newest record is that of step {standing.steps - 1}{_waits_for_room(around)}"
    return f"runs at {holder}, or is about to; nothing of it is recorded yet{_waits_for_room(around)}"


def _waits_for_room(around: Surroundings) -> str:
    return "" if around.full is None else f"; no step is started until there is room: {around.full}"


def waits_for(
    standing: Standing, due_at: datetime | None, invocation_id: str = "", since: datetime | None = None
) -> str | None:
    """Say for what an invocation waits: a reply, a signal, a completion, or a time; None for one that does not."""
    when = "" if due_at is None else f", until {due_at:%Y-%m-%d %H:%M:%S} UTC"
    if standing.status is Status.SCHEDULED:
        return f"is to begin later{when}"
    waiting = standing.waiting
    if waiting is None or standing.retry_after_ms is not None:
        return None
    released = "has released its lane and " if waiting.releases else ""
    if isinstance(waiting, WaitStarted):
        began = "" if since is None else f", since {since:%Y-%m-%d %H:%M:%S} UTC"
        return f"{released}waits for {_what_comes(waiting, invocation_id)}{began}{when}"
    if not isinstance(waiting, CallStarted):
        return f"{released}waits in its {in_words_of(waiting)}{when}"
    callee = format_id(waiting.type_name, waiting.partition, waiting.invocation)
    if waiting.is_attached:
        return f"{released}waits for the result of {callee}"
    return f"{released}waits for the reply to its {in_words_of(waiting)}, {callee}"


def _what_comes(wait: WaitStarted, invocation_id: str) -> str:
    if wait.awakeable is None or not invocation_id:
        return in_words_of(wait)
    return f"the completion of awakeable {invocation_id}.{format_place(wait.awakeable)}"


def _waits(standing: Standing, retry_due_at: datetime | None, around: Surroundings) -> str:
    what = f"step {standing.steps}" if standing.step_attempts else "the handler"
    number = max(standing.step_attempts, standing.attempts) + 1
    error = "" if standing.error is None else f", after {in_words(standing.error)}"
    if retry_due_at is None:
        return f"attempt {number} of {what} runs or is about to{error}"
    seconds = (retry_due_at - around.now).total_seconds()
    when = f"in {seconds:.1f} s" if seconds > 0 else "now"
    return f"attempt {number} of {what} is due {when}{error}"


_COMES_MEANWHILE: Final = (CallCompleted, TimerFired, WaitCompleted, WaitExpired, SignalReceived)


def pause_of(notes: Sequence[Noted], around: Surroundings) -> Pause | None:
    """Return why an invocation is parked, where its newest readable record says so.

    The end of what it waits for may have come meanwhile: it stays parked over that.
    """
    readable = (note for note in reversed(notes) if note.record is not None)
    newest = next((note for note in readable if not isinstance(note.record, _COMES_MEANWHILE)), None)
    if newest is None or not isinstance(newest.record, Paused):
        return None
    record = newest.record
    return Pause(record.reason, record.detail, moment(newest.at_ms), record.by, around.in_charge)


def cancel_of(notes: Sequence[Noted]) -> Cancel | None:
    """Return who has asked for the end of an invocation, None where nobody has."""
    asked = next((note for note in notes if isinstance(note.record, CancelRequested)), None)
    if asked is None or not isinstance(asked.record, CancelRequested):
        return None
    is_delivered = any(isinstance(note.record, CancelDelivered) for note in notes)
    return Cancel(asked.record.by, asked.record.reason, moment(asked.at_ms), is_delivered)


async def read_waiting(
    store: Store, space: PartitionSpace, key_text: str
) -> tuple[tuple[WaitingRequest, ...], int, int]:
    """Return the requests for an object that lie in the inbox, its length, and how much of it was looked at.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where the inbox belongs.
    """
    entries, _ = await read_stream(store, space.inbox, INBOX)
    (length,) = await ask(store, [("XLEN", space.inbox)], [space.inbox])
    requests = (request_of(entry) for entry in entries)
    waiting = tuple(
        waiting_request(space, entry, request)
        for entry, request in zip(entries, requests, strict=True)
        if request is not None and request.key == key_text
    )
    return waiting, max(length, len(entries)), len(entries)


def request_of(entry: Entry) -> Request | None:
    """Return the request that an inbox entry holds, None where it holds none: the owner will put it aside."""
    try:
        return Request.decode(named(entry[1]).get(b"m", b""))
    except Undecodable:
        return None


def waiting_request(space: PartitionSpace, entry: Entry, request: Request) -> WaitingRequest:
    """Describe an inbox entry."""
    return WaitingRequest(
        format_id(space.type_name, space.number, request.invocation),
        request.kind,
        request.handler,
        moment(written_at_ms(entry[0])),
        sum(map(len, entry[1][1::2])),
    )
