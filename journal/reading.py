"""What anybody may ask of an invocation or of an object: reads only, of bounded work, that never stop at bad bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, assert_never

from .blobs import read_values, size_of
from .cancel_report import is_half_undone
from .codec import Undecodable
from .command_records import EffectStarted
from .descriptions import InvocationDescription, KeptResult, Place, ResultKind
from .docket_reading import DocketReading, open_effect, read_docket
from .effects import EffectEntry
from .key import InvocationId, Key, format_id
from .keyspace import PartitionSpace
from .lane_holding import held_since, with_lane
from .lane_reading import ask
from .model_calls import spending_of
from .noted import Bound, Noted, moment, noted, read_stream, standing_of, steps_of
from .object_description import LaneDescription, ObjectDescription, StateValue
from .open_reading import (
    INBOX,
    cancel_of,
    pause_of,
    read_open,
    read_parked,
    read_waiting,
    request_of,
    waiting_request,
    waits_for,
)
from .outcomes import Outcome, Refused, Rejected, Replayed, Stopped, Succeeded, decode_outcome
from .pauses import told as told_pauses
from .pauses import words_of
from .records import Accepted
from .signal_reading import early_of, read_early
from .snapshots import FIRST_VERSION, Entry, fold, is_whole
from .standing import TERMINAL, Standing, Status
from .store import Store
from .surroundings import Surroundings, look
from .timeline import read_timeline

#: Records of one invocation that are read.
RECORDS: Final = Bound(2_000)
#: Entries of an object's stream that are read to find its state.
HISTORY: Final = Bound(4_000, 32 << 20)
#: Bytes of large values that are shown with the state of an object.
STATE_BYTES_MAX: Final = 8 << 20
LEFT_OUT: Final = "not shown: too much to be read at once, or lost"
#: Open invocations of a lane that are described.
OPEN_MAX: Final = 50
#: Entries of an object's stream that the timeline shows unless told otherwise.
TIMELINE_ENTRIES: Final = 50


async def describe(store: Store, invocation: InvocationId) -> InvocationDescription:
    """Return what is known of one invocation; also when that is nothing.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where one of ours belongs.
    """
    space, raw_id = store.space(invocation.type_name, invocation.partition), invocation.raw
    result = space.result(raw_id)
    commands = [("GET", result), ("PTTL", result), ("ZSCORE", space.due, raw_id)]
    around, (outcome, left_ms, due_ms) = await look(store, space, commands, [result, result, space.due])
    told = InvocationDescription(
        str(invocation), space.type_name, space.number, Place.NOWHERE, around.now, around.owner
    )
    if outcome is not None:
        told = _with_result(told, space, outcome, left_ms, around)
    entries, is_cut = await read_stream(store, space.invocation(raw_id), RECORDS)
    if entries:
        notes = [noted(entry) for entry in entries]
        if is_cut:
            stream = space.invocation(raw_id)
            (last,) = await ask(store, [("XREVRANGE", stream, "+", "-", "COUNT", 1)], [stream])
            notes.extend(noted(entry) for entry in last)
        due_at = None if due_ms is None else moment(float(due_ms))
        told = _with_records(told, notes, due_at, around, is_cut=is_cut)
        told = await _with_effect(store, space, told, notes)
    elif outcome is None:
        told = await _in_inbox(store, space, raw_id, told, around)
    return await with_lane(store, space, told, around)


async def _with_effect(
    store: Store, space: PartitionSpace, told: InvocationDescription, notes: Sequence[Noted]
) -> InvocationDescription:
    """Say where the effect stands that an invocation waits for, which lies with its object."""
    standing, _ = standing_of(notes, is_whole=not told.is_cut)
    wait = None if standing is None else standing.waiting
    if told.waits_for is None or told.key is None or not isinstance(wait, EffectStarted):
        return told
    effects = space.effects(told.key)
    (data,) = await ask(store, [("HGET", effects, wait.operation)], [effects])
    try:
        entry = None if data is None else EffectEntry.decode(data)
    except Undecodable:
        entry = None
    return told if entry is None else replace(told, waits_for=f"{told.waits_for}; {open_effect(entry)}")


def _with_result(
    told: InvocationDescription, space: PartitionSpace, data: bytes, left_ms: int, around: Surroundings
) -> InvocationDescription:
    try:
        kept, status, note = _result(space, decode_outcome(data))
    except Undecodable as error:
        kept, status, note = KeptResult(ResultKind.UNDECODABLE, 0, message=error.message), None, error.message
    expires_at = moment(around.now_ms + left_ms) if left_ms >= 0 else None
    kept = replace(kept, size_bytes=kept.size_bytes or len(data), expires_at=expires_at)
    if not note:
        note = "nothing but its result is kept: it was a short one, whose one entry lies in the history of its object"
    return replace(told, place=Place.RESULT, status=status, result=kept, note=note)


def _result(space: PartitionSpace, outcome: Outcome) -> tuple[KeptResult, Status | None, str]:
    """Return what is to be said of an outcome, the status that it stands for, and a note."""
    match outcome:
        case Succeeded(kept_with=None):
            return KeptResult(ResultKind.SUCCEEDED, 0), Status.COMPLETED, ""
        case Succeeded():
            return KeptResult(ResultKind.SUCCEEDED, size_of(outcome.result)), Status.COMPLETED, ""
        case Rejected(failure=failure):
            kept = KeptResult(ResultKind.FAILED, 0, code=failure.code, message=failure.message)
            return kept, Status.FAILED, ""
        case Stopped():
            return KeptResult(ResultKind(outcome.how), 0, message=outcome.reason), Status(outcome.how), ""
        case Refused():
            kept = KeptResult(ResultKind.REFUSED, 0, code=outcome.code, message=outcome.message)
            return kept, None, f"it was refused and never ran: {outcome.message}"
        case Replayed():
            first = format_id(space.type_name, space.number, outcome.invocation)
            note = f"it never ran: its idempotency key had been used by {first}, whose result counts"
            return KeptResult(ResultKind.REPLAYED, 0, first=first), None, note
        case _:
            assert_never(outcome)


def _with_records(
    told: InvocationDescription, notes: Sequence[Noted], due_at: datetime | None, around: Surroundings, *, is_cut: bool
) -> InvocationDescription:
    standing, problem = standing_of(notes, is_whole=not is_cut)
    status = None if standing is None else standing.status
    accepted = notes[0].record
    if isinstance(accepted, Accepted):
        told = replace(told, key=accepted.key, handler=accepted.handler, version=accepted.version)
    is_over = status in TERMINAL
    records = [each.record for each in notes if each.record is not None]
    spent = spending_of(records)
    note = "its result is no longer kept" if is_over and told.result is None else ""
    if around.full is not None and status in (Status.QUEUED, Status.RUNNING):
        note = f"its next step waits until there is room: {around.full}"
    return replace(
        told,
        place=Place.JOURNAL,
        status=status,
        note=note,
        accepted_at=moment(notes[0].at_ms),
        ended_at=moment(notes[-1].at_ms) if is_over else None,
        failed_attempts=0 if standing is None else standing.attempts,
        records=len(notes),
        steps=steps_of(notes),
        error=None if standing is None else standing.error,
        pause=pause_of(notes, around),
        cancel=cancel_of(notes),
        compensation_failed=is_half_undone(records),
        retry_due_at=None if is_over else due_at,
        waits_for=None if standing is None or is_over else _waits_for(told.id, standing, notes, due_at),
        undecodable=problem,
        is_cut=is_cut,
        signals=() if is_over else early_of(notes),
        has_released_lane=standing is not None and standing.is_aside,
        models=spent if spent.calls else None,
    )


def _waits_for(invocation_id: str, standing: Standing, notes: Sequence[Noted], due_at: datetime | None) -> str | None:
    """Say for what an invocation waits, and since when where its own records tell."""
    began = (note.at_ms for note in reversed(notes) if note.record is not None and note.record == standing.waiting)
    since_ms = next(began, None)
    return waits_for(standing, due_at, invocation_id, None if since_ms is None else moment(since_ms))


async def _in_inbox(
    store: Store, space: PartitionSpace, raw_id: bytes, told: InvocationDescription, around: Surroundings
) -> InvocationDescription:
    """Look for a request that no owner has dealt with yet, and else say that nothing is known."""
    entries, is_cut = await read_stream(store, space.inbox, INBOX)
    for entry in entries:
        # Most entries are about others, and need not be decoded to know that.
        request = request_of(entry) if any(raw_id in field for field in entry[1]) else None
        if request is not None and request.invocation == raw_id:
            waiting = waiting_request(space, entry, request)
            holder = around.owner.holder
            note = "its owner takes it in next" if holder else "nobody holds its partition: it waits for a worker"
            if around.full is not None:
                note = f"it is taken in when there is room: {around.full}"
            return replace(
                told,
                place=Place.INBOX,
                status=Status.QUEUED,
                note=note,
                key=request.key,
                handler=request.handler,
                asked_at=waiting.asked_at,
            )
    return replace(told, note=_nothing_known(store, space, len(entries), around, is_cut=is_cut))


def _nothing_known(store: Store, space: PartitionSpace, looked_at: int, around: Surroundings, *, is_cut: bool) -> str:
    if not around.is_type_known:
        return f"namespace {store.namespace!r} has no object type {space.type_name!r}"
    if is_cut:
        return f"no record or result of it, nor is it among the first {looked_at} requests of the inbox, which has more"
    return "no record, result or request of it: it was never asked for, is not durable yet, or its retention has passed"


async def inspect(
    store: Store,
    space: PartitionSpace,
    key: Key,
    *,
    timeline_entries: int = TIMELINE_ENTRIES,
    docket: DocketReading | None = None,
) -> ObjectDescription:
    """Return an object's state, lane and journal; of one that nobody ever called they are empty.

    Args:
        store: The open store.
        space: The partition of the key.
        key: The object.
        timeline_entries: How many of the newest entries of its stream are shown.
        docket: Its effects and proposals, where they have been read.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where one of ours belongs.
    """
    key_text = str(key)
    asked = timeline_entries + 1
    questions = _questions(space, key_text, asked)
    around, (ids, length, is_runnable, newest, paused) = await look(store, space, *questions)
    around = replace(around, pauses=told_pauses(paused, around.in_charge))
    shown: list[Entry] = newest[:timeline_entries]
    state, state_problem, state_version = await _state(store, space, key_text, newest, asked)
    docket = docket or await read_docket(store, space, key_text)
    opened = await read_open(store, space, ids, around)
    waiting, inbox_length, inbox_read = await read_waiting(store, space, key_text)
    return ObjectDescription(
        space.type_name,
        key_text,
        space.number,
        around.now,
        around.owner,
        around.in_charge,
        state,
        state_problem,
        LaneDescription(
            opened,
            length,
            bool(is_runnable),
            held_since(opened[0].accepted_at if opened else None, shown),
            await read_parked(store, space, shown, ids, around),
            waiting,
            inbox_length,
            inbox_read,
            around.pauses,
        ),
        tuple(await read_timeline(store, space, shown, ids)),
        is_timeline_cut=len(newest) > timeline_entries,
        state_version=state_version,
        signals=await read_early(store, space, key_text),
        effects=docket.open_effects[:OPEN_MAX],
        proposals=docket.open_proposals[:OPEN_MAX],
        is_docket_cut=docket.is_cut,
    )


def _questions(space: PartitionSpace, key_text: str, asked: int) -> tuple[list[tuple[Any, ...]], list[bytes]]:
    """Return what is asked about an object beside its partition, and the key of each question."""
    lane, history = space.lane(key_text), space.object(key_text)
    commands: list[tuple[Any, ...]] = [
        ("LRANGE", lane, 0, OPEN_MAX - 1),
        ("LLEN", lane),
        ("SISMEMBER", space.runnable, key_text),
        ("XREVRANGE", history, "+", "-", "COUNT", asked),
        words_of(space, key_text),
    ]
    return commands, [lane, lane, space.runnable, history, space.paused]


async def _state(
    store: Store, space: PartitionSpace, key_text: str, newest: list[Entry], asked: int
) -> tuple[tuple[StateValue, ...], str | None, int]:
    """Return the state, or why it is not known, and its version."""
    entries = newest
    if not is_whole(entries, asked):
        entries, is_cut = await read_stream(store, space.object(key_text), HISTORY, newest_first=True)
        if is_cut and not is_whole(entries, len(entries)):
            problem = f"not found: no snapshot among the newest {len(entries)} entries of its history"
            return (), problem, FIRST_VERSION
    try:
        folded = fold(entries)
    except Undecodable as error:
        return (), error.message, FIRST_VERSION
    values = folded.values
    if not all(type(name) is str and type(value) is bytes for name, value in values.items()):
        return (), "it holds something that is not a name with a packed value", FIRST_VERSION
    large = await read_values(store, space, key_text, values, STATE_BYTES_MAX)
    return tuple(_value(name, values[name], large) for name in sorted(values)), None, folded.version


def _value(name: str, stored: bytes, large: Mapping[str, bytes | None]) -> StateValue:
    if name not in large:
        return StateValue(name, stored)
    packed = large[name]
    return StateValue(name, stored, LEFT_OUT) if packed is None else StateValue(name, packed)
