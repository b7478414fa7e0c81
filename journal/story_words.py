"""The records of invocations, and what happened to effects and proposals, in plain sentences."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

from .codec import Undecodable
from .command_records import (
    ApprovalAwaited,
    AwakeableMade,
    CallCompleted,
    CallStarted,
    EffectStarted,
    MessageSent,
    Proposed,
    StepAttemptFailed,
    StepCompleted,
    StepFailed,
    TimerFired,
    TimerSet,
    WaitCompleted,
    WaitStarted,
)
from .effects import EffectEntry, Unknown, decode_effect_outcome
from .ledger import EventKind, Happened
from .messages import Caller
from .noted import Noted, moment, seconds_of
from .outcomes import Refused, Rejected, Replayed, Stopped, Succeeded
from .place import Place
from .plain_values import short
from .proposals import ProposalEntry, proposal_field
from .records import Accepted, AttemptFailed, Finished, Paused, Record, Restarted, Resumed
from .story import Line, Topic
from .timeline import in_words


@dataclass(frozen=True, slots=True)
class Told:
    """What the docket tells, so that the records of invocations need not repeat it.

    Args:
        operations: Operation ids of effects.
        proposals: Proposals, as `refund.3`.
    """

    operations: Container[str]
    proposals: Container[str]


def is_told(record: Record, told: Told) -> bool:
    """Return whether the docket tells what a record says."""
    match record:
        case EffectStarted():
            return record.operation in told.operations
        case Proposed():
            return proposal_field(record.action, record.version) in told.proposals
        case _:
            return False


def places_told(notes: Iterable[Noted], told: Told) -> frozenset[Place]:
    """Return the places of waits whose end the docket tells."""
    places: set[Place] = set()
    for note in notes:
        match note.record:
            case EffectStarted() as begun if begun.operation in told.operations:
                places.add(begun.index)
            case ApprovalAwaited() as begun if proposal_field(begun.action, begun.version) in told.proposals:
                places.add(begun.index)
            case _:
                continue
    return frozenset(places)


def words_of_record(record: Record) -> tuple[Topic, str, str] | None:
    """Return what a record of an invocation says: the topic, the words, and who did it; None if it has none here."""
    match record:
        case Accepted():
            return Topic.ASKED, _asked(record), ""
        case EffectStarted(settles=True):
            effect = f"{record.receiver}.{record.effect}, operation {record.operation!r}"
            return Topic.EFFECT, f"waits to know what became of {effect}, to undo it", ""
        case EffectStarted():
            return Topic.EFFECT, f"asks {record.receiver} for {record.effect}, operation {record.operation!r}", ""
        case Proposed():
            return Topic.PROPOSAL, f"proposes {record.action}, version {record.version}: {short(record.value)}", ""
        case ApprovalAwaited():
            return Topic.WAIT, f"waits for the decision on {record.action}, version {record.version}", ""
        case _:
            return _of_step(record) or _of_wait(record) or _of_pause(record)


def _asked(record: Accepted) -> str:
    argument = short(record.input)
    key = ", with an idempotency key" if record.idempotency is not None else ""
    return f"{_who(record.caller, record.client)} asks for {record.handler}({argument}){key}"


def _who(caller: Caller | None, client: bytes | None) -> str:
    if caller is not None:
        handler = f".{caller.path[-1].handler}" if caller.path else ""
        return f"{caller.type_name}{handler} at {caller.key}"
    if client is not None:
        return f"client {client.hex()[:8]}"
    return "somebody in the worker's process, or who does not wait for the answer,"


def _of_step(record: Record) -> tuple[Topic, str, str] | None:
    match record:
        case StepCompleted():
            return Topic.STEP, f"step {record.name!r} gives {short(record.result)}", ""
        case StepAttemptFailed():
            again = f"again after {seconds_of(record.retry_after_ms)}"
            return (
                Topic.STEP,
                f"step {record.name!r} fails, attempt {record.attempt}: {in_words(record.error)}; {again}",
                "",
            )
        case StepFailed():
            return Topic.STEP, f"step {record.name!r} fails for good: {in_words(record.error)}", ""
        case AttemptFailed():
            again = f"{in_words(record.error)}; again after {seconds_of(record.retry_after_ms)}"
            return Topic.STEP, f"the handler fails, attempt {record.attempt}: {again}", ""
        case _:
            return None


def _of_wait(record: Record) -> tuple[Topic, str, str] | None:
    match record:
        case MessageSent():
            return Topic.OTHER, f"sends {record.type_name}.{record.handler} to {record.key}", ""
        case CallStarted(is_attached=True):
            return Topic.WAIT, "waits for the end of an invocation that it did not ask for", ""
        case CallStarted():
            return Topic.WAIT, f"calls {record.type_name}.{record.handler} at {record.key} and waits for the reply", ""
        case CallCompleted():
            return Topic.ANSWER, f"the reply comes: {_outcome(record.outcome)}", ""
        case TimerSet():
            return Topic.WAIT, f"sleeps for {seconds_of(record.delay_ms)}", ""
        case TimerFired():
            return Topic.OTHER, "its sleep is over", ""
        case AwakeableMade():
            return Topic.OTHER, "gives out the id of an awakeable", ""
        case WaitStarted():
            what = f"the signal {record.name!r}" if record.name else "the completion of an awakeable"
            return Topic.WAIT, f"waits for {what}", ""
        case WaitCompleted():
            return Topic.ANSWER, f"gets {_outcome(record.value)}", record.by
        case _:
            return None


def _of_pause(record: Record) -> tuple[Topic, str, str] | None:
    match record:
        case Paused():
            return Topic.PEOPLE, f"is paused ({record.reason.value}): {record.detail}", record.by or ""
        case Resumed():
            return Topic.PEOPLE, f"is resumed: {record.reason}", record.by
        case Restarted():
            return Topic.PEOPLE, f"goes on from command {record.kept}: {record.reason}", record.by
        case _:
            return None


def words_of_finished(record: Finished) -> str:
    """Return what a short invocation was asked for."""
    key = ", with an idempotency key" if record.idempotency is not None else ""
    return f"{record.handler}({short(record.input)}) is asked for{key}"


def words_of_end(handler: str, what: str, result: bytes | None) -> str:
    """Return how an invocation ended, with its result where that is kept."""
    said = "" if result is None else _outcome(result)
    return f"{handler} {what}{f': {said}' if said else ''}"


def _outcome(data: bytes) -> str:
    """Return an outcome in words: that of a call, of a wait, of an invocation or of an effect."""
    try:
        outcome = decode_effect_outcome(data)
    except Undecodable as error:
        return error.message
    match outcome:
        case Unknown():
            return f"that it is unknown: {outcome.why}"
        case Succeeded():
            return short(outcome.result)
        case Rejected(failure=failure):
            return in_words(failure)
        case Refused():
            return f"refused: {outcome.message}"
        case Replayed():
            return "the result of an earlier call with the same idempotency key"
        case Stopped():
            return f"{outcome.how} by {outcome.by}: {outcome.reason}" if outcome.by else outcome.how


def lines_of_effect(entry: EffectEntry, owner: str, qualified: str, invocation: str) -> list[Line]:
    """Return what has happened to an effect, as lines of the story of its object.

    Args:
        entry: The effect.
        owner: Who is responsible for what stays unknown at its receiver.
        qualified: The operation id that the receiver sees.
        invocation: Id of the invocation that asked first.
    """
    lines: list[Line] = []
    is_handed_over = bool(entry.assigned) and all(each.kind is not EventKind.HANDED_OVER for each in entry.life)
    for happened in entry.life:
        # What is put before people later is put before whoever it was handed over to.
        topic, text = _of_effect(entry, happened, entry.assigned if is_handed_over else owner, qualified)
        is_handed_over = is_handed_over or happened.kind is EventKind.HANDED_OVER
        lines.append(Line(moment(happened.at_ms), topic, text, invocation, happened.by))
    return lines


def _of_effect(entry: EffectEntry, happened: Happened, owner: str, qualified: str) -> tuple[Topic, str]:
    name, told = f"{entry.effect} {entry.operation!r}", f": {happened.detail}" if happened.detail else ""
    match happened.kind:
        case EventKind.INTENDED:
            return Topic.EFFECT, _intended(entry, happened, qualified)
        case EventKind.SUCCEEDED | EventKind.FOUND:
            asked = " when it is asked" if happened.kind is EventKind.FOUND else ""
            return Topic.ANSWER, f"{entry.receiver} confirms {name}{asked}: {_receipt(entry, happened.detail)}"
        case EventKind.REJECTED:
            return Topic.ANSWER, f"{entry.receiver} refuses {name}{told}"
        case EventKind.MARKED_SUCCEEDED:
            return (
                Topic.PEOPLE,
                f"{name} is marked as done{told}; receipt {_receipt(entry, '')}",
            )
        case EventKind.QUEUED:
            return Topic.PEOPLE, f"{name} is put before {owner}{told}"
        case kind:
            topic, words = _EFFECT_WORDS.get(kind, (Topic.OTHER, kind.value))
            return topic, f"{name}: {words.format(receiver=entry.receiver)}{told}"


_EFFECT_WORDS: Final[dict[EventKind, tuple[Topic, str]]] = {
    EventKind.BLOCKED: (Topic.WAIT, "it has to wait, another effect at {receiver} is not settled"),
    EventKind.NOT_SENT: (Topic.EFFECT, "nothing was sent"),
    EventKind.UNKNOWN: (Topic.UNCERTAIN, "nobody knows whether it was done"),
    EventKind.ABSENT: (Topic.UNCERTAIN, "{receiver} is asked, and knows nothing of it"),
    EventKind.LOOKUP_FAILED: (Topic.UNCERTAIN, "{receiver} can't be asked"),
    EventKind.RESENT: (Topic.EFFECT, "the same request is sent to {receiver} again"),
    EventKind.OVERDUE: (Topic.PEOPLE, "the time to settle it has passed"),
    EventKind.HANDED_OVER: (Topic.PEOPLE, "it is handed over"),
    EventKind.MARKED_NOT_DONE: (Topic.PEOPLE, "it is marked as not done"),
}


def _intended(entry: EffectEntry, happened: Happened, qualified: str) -> str:
    attempt = f", attempt {happened.attempt}" if happened.attempt > 1 else ""
    approval = f", under approval {entry.approval}" if entry.approval else ""
    facts = f"; facts checked before: {short(entry.facts)}" if entry.facts is not None else ""
    return f"asks {entry.receiver} for {entry.effect}{attempt} as {qualified}: {short(entry.params)}{approval}{facts}"


def _receipt(entry: EffectEntry, otherwise: str) -> str:
    said = "" if entry.outcome is None else _outcome(entry.outcome)
    return said or otherwise


def lines_of_proposal(entry: ProposalEntry, invocation: str) -> list[Line]:
    """Return what has happened to a proposal, as lines of the story of its object."""
    lines: list[Line] = []
    for happened in entry.life:
        topic, text = _of_proposal(entry, happened)
        lines.append(Line(moment(happened.at_ms), topic, text, invocation, happened.by))
    return lines


def _of_proposal(entry: ProposalEntry, happened: Happened) -> tuple[Topic, str]:
    name, told = f"{entry.action} version {entry.version}", f": {happened.detail}" if happened.detail else ""
    match happened.kind:
        case EventKind.PROPOSED:
            until = "" if entry.expires_ms is None else f", until {moment(entry.expires_ms):%Y-%m-%d %H:%M:%S} UTC"
            quorum = f", {entry.quorum} have to approve" if entry.quorum > 1 else ""
            return Topic.PROPOSAL, f"proposes {name}: {short(entry.bound)}{until}{quorum}"
        case EventKind.CONSUMED:
            return Topic.DECISION, f"the approval of {name} is used up by operation {entry.operation!r}"
        case kind:
            return _PROPOSAL_TOPICS.get(kind, Topic.DECISION), f"{name} is {kind.value}{told}"


_PROPOSAL_TOPICS: Final[dict[EventKind, Topic]] = {
    EventKind.SUPERSEDED: Topic.PROPOSAL,
    EventKind.EXPIRED: Topic.PROPOSAL,
}
