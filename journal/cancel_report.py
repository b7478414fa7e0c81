"""What became of a cancel: read out of the journals of the invocation and of all that it has asked of other objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from .codec import Undecodable
from .command_records import (
    ApprovalAwaited,
    CallCompleted,
    CallStarted,
    CancelDelivered,
    CompensationSkipped,
    CompensationStarted,
    EffectStarted,
    MessageSent,
    StepAttemptFailed,
    StepCompleted,
    TimerSet,
    WaitStarted,
)
from .effects import IN_QUESTION, EffectEntry, EffectState
from .history import read_result
from .key import InvocationId, format_id
from .lane_reading import ask
from .noted import Bound, Noted, in_words, noted, read_stream, standing_of
from .outcomes import Outcome, Replayed, Stopped, Succeeded, decode_outcome
from .records import Accepted, CancelRequested, Killed, Paused, PauseReason, Record
from .standing import Standing, Status
from .store import Store
from .undoing import begins_undoing, worked

#: Records of one invocation that are read.
RECORDS: Final = Bound(10_000)
#: Invocations that a report is about at most: the one that was cancelled, and what it has asked for, and so on.
INVOCATIONS_MAX: Final = 1_000

_Child: TypeAlias = CallStarted | MessageSent


class CancelOutcome(StrEnum):
    """What became of the invocation."""

    CANCELLED = "cancelled"
    KILLED = "killed"
    COMPLETED = "completed"
    FAILED = "failed"
    PAUSED = "paused"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class CancelReport:
    """What became of a cancel, or of a kill.

    Attributes:
        id: The invocation.
        outcome: What became of it. `completed` and `failed` mean that the cancel came too late, `paused` that a person
            has to look at it, and `open` that it has not ended yet.
        stopped: What was stopped: its wait or its retries in words, and the ids of the invocations, called or sent,
            that were cancelled with it, at any depth.
        committed: What was done and stays: the names of its steps, its effects with their operation ids, and the ids of
            invocations that had completed.
        undone: The names of what was undone.
        unknown: Its effects of which nobody can say yet whether they were done; they are settled all the same.
        left_running: The ids of invocations that it has called or sent and that go on, at any depth.
        compensation_failed: Whether an undo has failed and waits for a person, or was given up.
        was_over: Whether it had ended before anybody asked.
    """

    id: str
    outcome: CancelOutcome
    stopped: tuple[str, ...] = ()
    committed: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    left_running: tuple[str, ...] = ()
    compensation_failed: bool = False
    was_over: bool = False


@dataclass(slots=True)
class Findings:
    """What was found so far of an invocation and of all below it.

    Args:
        outcome: What became of the invocation itself.
        still_stopping: Ids of invocations that are to end with it and have not.
    """

    outcome: CancelOutcome = CancelOutcome.OPEN
    compensation_failed: bool = False
    stopped: list[str] = field(default_factory=list[str])
    committed: list[str] = field(default_factory=list[str])
    undone: list[str] = field(default_factory=list[str])
    unknown: list[str] = field(default_factory=list[str])
    left_running: list[str] = field(default_factory=list[str])
    still_stopping: list[str] = field(default_factory=list[str])

    def report(self, invocation_id: str, *, was_over: bool) -> CancelReport:
        """Return it as its reader gets it."""
        return CancelReport(
            invocation_id,
            self.outcome,
            tuple(self.stopped),
            tuple(self.committed),
            tuple(self.undone),
            tuple(self.unknown),
            tuple(self.left_running),
            self.compensation_failed,
            was_over,
        )


async def read_findings(store: Store, invocation: InvocationId, *, cascades: bool) -> Findings:
    """Look at an invocation and at all that it has called or sent, as they stand now.

    Args:
        store: The open store.
        invocation: The invocation.
        cascades: Whether what was sent is to end too.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where one of ours belongs.
    """
    found = Findings()
    records, found.outcome = await _look(store, invocation)
    _note_own(found, records)
    await _note_effects(store, found, invocation, records)
    below = list(_children(records))
    seen = {invocation.raw}
    while below and len(seen) < INVOCATIONS_MAX:
        child = below.pop(0)
        if child.invocation in seen:
            continue
        seen.add(child.invocation)
        below.extend(await _note_child(store, found, child, cascades=cascades))
    return found


def _note_own(found: Findings, records: Sequence[Record]) -> None:
    found.compensation_failed = is_half_undone(records)
    told = next((each for each in records if isinstance(each, CancelDelivered)), None)
    begun = begins_undoing(records)
    found.committed.extend(each.name for each in records[:begun] if isinstance(each, StepCompleted))
    found.undone.extend(worked(records))
    if told is not None:
        found.stopped.extend(_stopped_at(records, told))


async def _note_effects(store: Store, found: Findings, invocation: InvocationId, records: Sequence[Record]) -> None:
    """Note what became of the effects that an invocation has asked for, as they stand with their object now."""
    asked = {each.operation: each for each in records if isinstance(each, EffectStarted)}
    begun = begins_undoing(records)
    #: What an undo has done is told by the name of the undo.
    own = {each.operation for each in records[:begun] if isinstance(each, EffectStarted)}
    accepted = next((each for each in records if isinstance(each, Accepted)), None)
    if not asked or accepted is None:
        return
    key = store.space(invocation.type_name, invocation.partition).effects(accepted.key)
    (entries,) = await ask(store, [("HMGET", key, *asked)], [key])
    for each, data in zip(asked.values(), entries, strict=True):
        state = _state_of(data)
        name = f"{each.receiver}.{each.effect} {each.operation}"
        if state is EffectState.SUCCEEDED and each.operation in own and name not in found.undone:
            # What its declared undo has undone does not stay.
            found.committed.append(name)
        elif state in IN_QUESTION:
            found.unknown.append(name)


def _state_of(data: bytes | None) -> EffectState | None:
    try:
        return None if data is None else EffectEntry.decode(data).state
    except Undecodable:
        return EffectState.UNKNOWN


def is_half_undone(records: Sequence[Record]) -> bool:
    """Return whether something of an invocation that was to be undone was not: an undo has failed or was given up.

    Args:
        records: Its records, oldest first.
    """
    if any(isinstance(each, CompensationSkipped) for each in records):
        return True
    match records[-1] if records else None:
        case Paused(reason=PauseReason.COMPENSATION_FAILED):
            return True
        case Killed():
            return any(isinstance(each, CompensationStarted) for each in records)
        case _:
            return False


def _stopped_at(records: Sequence[Record], told: CancelDelivered) -> Iterator[str]:
    """Say what the handler was in when it was told: a wait, or the retries of a step."""
    for each in reversed(records[: records.index(told)]):
        match each:
            case CancelRequested():
                continue
            case TimerSet() | WaitStarted() | CallStarted() | EffectStarted() | ApprovalAwaited() if (
                each.index == told.index
            ):
                yield in_words(each)
            case StepAttemptFailed() if each.index == told.index:
                yield f"retries of step {each.name!r}, after {each.attempt} failed"
            case _:
                pass
        return


def _children(records: Sequence[Record]) -> Iterator[_Child]:
    """Return what an invocation has sent, and what it has called and got no answer from."""
    answered = {each.index for each in records if isinstance(each, CallCompleted)}
    for each in records:
        if isinstance(each, MessageSent) or (
            isinstance(each, CallStarted) and each.index not in answered and each.is_of_a_handler
        ):
            yield each


async def _note_child(store: Store, found: Findings, child: _Child, *, cascades: bool) -> list[_Child]:
    """Note what became of one invocation below; returns what is to be looked at below it."""
    invocation = InvocationId(child.type_name, child.partition, child.invocation)
    records, outcome = await _look(store, invocation)
    text = format_id(child.type_name, child.partition, child.invocation)
    match outcome:
        case CancelOutcome.CANCELLED | CancelOutcome.KILLED:
            found.stopped.append(text)
        case CancelOutcome.COMPLETED:
            found.committed.append(text)
        case CancelOutcome.FAILED:
            pass
        case _:
            found.left_running.append(text)
            is_to_end = isinstance(child, CallStarted) or cascades
            if is_to_end and outcome is not CancelOutcome.PAUSED:
                found.still_stopping.append(text)
    return list(_children(records))


async def _look(store: Store, invocation: InvocationId) -> tuple[list[Record], CancelOutcome]:
    """Read an invocation's records, and what became of it; one that only its result is left of has none."""
    space = store.space(invocation.type_name, invocation.partition)
    entries, _ = await read_stream(store, space.invocation(invocation.raw), RECORDS)
    notes: list[Noted] = [noted(entry) for entry in entries]
    records = [note.record for note in notes if note.record is not None]
    if records:
        standing, _ = standing_of(notes, is_whole=True)
        return records, _outcome_of(standing)
    data = await read_result(store, space, invocation.raw)
    if data is None:
        return [], CancelOutcome.OPEN
    try:
        outcome = decode_outcome(data)
    except Undecodable:
        return [], CancelOutcome.OPEN
    if isinstance(outcome, Replayed):
        # Its idempotency key was known: what counts is the first one.
        return await _look(store, invocation._replace(raw=outcome.invocation))
    return [], _outcome_in(outcome)


def _outcome_of(standing: Standing | None) -> CancelOutcome:
    if standing is None:
        return CancelOutcome.OPEN
    if standing.is_terminal or standing.status is Status.PAUSED:
        return CancelOutcome(standing.status.value)
    return CancelOutcome.OPEN


def _outcome_in(outcome: Outcome) -> CancelOutcome:
    match outcome:
        case Succeeded():
            return CancelOutcome.COMPLETED
        case Stopped():
            return CancelOutcome(outcome.how)
        case _:
            return CancelOutcome.FAILED
