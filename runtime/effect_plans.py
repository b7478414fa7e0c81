"""What becomes of an effect with each answer and with time: facts in, a change out; nothing is written here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ..journal.effects import EffectEntry, EffectState
from ..journal.errors import EffectRejected
from ..journal.ledger import EventKind, Happened
from ..journal.outcomes import Outcome, Rejected, Succeeded, encode_outcome
from ..objects.receivers import RECONCILE_WITHIN
from ..objects.recovery import AskPeople, LookUp, NextAction, next_action, question_of
from .effect_calls import Absent, Answer, Done, Refused, Unclear, Unsent
from .effect_facts import (
    Change,
    contract,
    early_outcome,
    effect_of,
    follows_another,
    kept_ms,
    taken_back,
    unreadable,
    with_life,
    with_lost_attempts,
)
from .failures import failure_of

if TYPE_CHECKING:
    from typing import Any

    from ..objects.receivers import Effect
    from .partition import Partition

TAIL_LOST: Final = "the store may have lost its tail: it may have been done before"
ABSENT: Final = "the receiver knows nothing of it"
_EARLIER: Final = "an earlier attempt may have been done, and the last one was not sent"
_NO_CODE: Final = "this code has no such effect, so nothing of it can be looked into"


def settled(
    entry: EffectEntry, outcome: Outcome, now_ms: int, kind: EventKind, *, detail: str = "", by: str = ""
) -> Change:
    """Return the change that gives an effect its outcome.

    Args:
        entry: Where it stands.
        outcome: A packed receipt, or the failure that its handler gets.
        now_ms: The partition's time.
        kind: How that is known.
        detail: What a person needs to know of it.
        by: Who says so; empty for the runtime itself.
    """
    is_done = isinstance(outcome, Succeeded)
    encoded = encode_outcome(outcome)
    after = entry.but(
        state=EffectState.SUCCEEDED if is_done else EffectState.REJECTED,
        since_ms=now_ms,
        next_ms=0,
        why=detail,
        outcome=encoded,
        by=by,
    )
    return Change(after, (Happened(now_ms, kind, entry.attempt, detail, by),), given=encoded)


def rejected(
    entry: EffectEntry, reason: str, now_ms: int, kind: EventKind = EventKind.REJECTED, *, by: str = ""
) -> Change:
    """Return the change of an effect that was not done and will not be."""
    failure = failure_of(EffectRejected(entry.operation, reason))
    return settled(entry, Rejected(failure), now_ms, kind, detail=reason, by=by)


def succeeded(
    entry: EffectEntry, receipt: bytes, now_ms: int, kind: EventKind = EventKind.SUCCEEDED, *, detail: str = "",
    by: str = "",
) -> Change:  # fmt: skip
    """Return the change of an effect that was done."""
    return settled(entry, Succeeded(receipt), now_ms, kind, detail=detail, by=by)


def called(
    partition: Partition, attempt: int, answer: Answer, pause_ms: int, entry: EffectEntry, now_ms: int
) -> Change | None:
    """Return the change that the answer to a call makes, None where the effect stands otherwise by now."""
    if entry.state is not EffectState.INTENDED or entry.attempt != attempt:
        return None
    match answer:
        case Done(receipt):
            return succeeded(entry, receipt, now_ms)
        case Refused(reason):
            return rejected(entry, reason, now_ms)
        case Unsent(reason) if follows_another(entry):
            return unsent_again(partition, entry, reason, pause_ms, now_ms)
        case Unsent(reason):
            after = entry.but(state=EffectState.NOT_SENT, since_ms=now_ms, next_ms=now_ms + pause_ms, why=reason)
            return Change(after, (Happened(now_ms, EventKind.NOT_SENT, attempt, reason),))
        case Unclear(why):
            return unknown(partition, entry, why, now_ms)
        case Absent():
            return None


def unsent_again(partition: Partition, entry: EffectEntry, reason: str, pause_ms: int, now_ms: int) -> Change:
    """Return the change of an effect whose newest attempt was not sent, while an earlier one may have been done.

    What is known of it is as before: it is neither tried anew without end, nor forgotten, nor refused by new facts.
    """
    after = entry.but(state=EffectState.UNKNOWN, since_ms=now_ms, why=f"{_EARLIER}: {reason}", lookups=0)
    change = in_question(partition, after, (Happened(now_ms, EventKind.NOT_SENT, entry.attempt, reason),), now_ms)
    if change.entry.state is not EffectState.UNKNOWN:
        return change
    # A receiver that can't be reached is not asked as soon as one that has lost an answer.
    return replace(change, entry=change.entry.but(next_ms=max(change.entry.next_ms, now_ms + pause_ms)))


def orphaned(partition: Partition, attempt: int, why: str, entry: EffectEntry, now_ms: int) -> Change | None:
    """Return the change of an intent of whose call nothing more will be heard."""
    if entry.state is not EffectState.INTENDED or entry.attempt != attempt:
        return None
    return unknown(partition, entry, why, now_ms)


def unknown(partition: Partition, entry: EffectEntry, why: str, now_ms: int) -> Change:
    """Return the change of an effect of which nobody knows whether it was done, with what is done about that."""
    after = entry.but(state=EffectState.UNKNOWN, since_ms=now_ms, why=why, lookups=0)
    return in_question(partition, after, (Happened(now_ms, EventKind.UNKNOWN, entry.attempt, why),), now_ms)


def in_lost_records(partition: Partition, entry: EffectEntry, send_within_ms: int, now_ms: int) -> Change:
    """Return the change of an effect of which nothing was sent, by its records, but may have been by what is missing.

    Args:
        partition: The partition, which is in doubt.
        entry: The effect; it may have been sent from its first time on, as far as that is in doubt.
        send_within_ms: For how long a first byte may leave.
        now_ms: The partition's time.
    """
    doubt = partition.doubt
    first_ms = entry.first_ms if doubt is None else max(entry.first_ms, doubt.from_ms)
    sent = entry.but(attempt=max(entry.attempt, 1), first_ms=first_ms, send_before_ms=now_ms + send_within_ms)
    return unknown(partition, sent, TAIL_LOST, now_ms)


def found_out(
    partition: Partition, attempt: int, answer: Answer, asked_ms: int, entry: EffectEntry, now_ms: int,
    *, by: str = "", reason: str = "",
) -> Change | None:  # fmt: skip
    """Return the change that the answer to a look-up makes."""
    if entry.state not in (EffectState.UNKNOWN, EffectState.UNRESOLVED) or entry.attempt != attempt:
        return None
    asked = entry.but(lookups=entry.lookups + 1)
    match answer:
        case Done(receipt):
            return succeeded(asked, receipt, now_ms, EventKind.FOUND, detail=reason, by=by)
        case Refused(said):
            return rejected(asked, said, now_ms, by=by)
        case Absent():
            happened = Happened(asked_ms, EventKind.ABSENT, attempt, _with(ABSENT, reason), by)
        case Unsent(why) | Unclear(why):
            happened = Happened(asked_ms, EventKind.LOOKUP_FAILED, attempt, _with(why, reason), by)
    return in_question(partition, asked, (happened,), now_ms)


def _with(answer: str, reason: str) -> str:
    return f"{answer}; asked because: {reason}" if reason else answer


def planned(partition: Partition, entry: EffectEntry, now_ms: int) -> Change | None:
    """Return the change that says what is done next about an effect whose outcome is unknown."""
    if entry.state not in (EffectState.UNKNOWN, EffectState.UNRESOLVED):
        return None
    change = in_question(partition, entry, (), now_ms)
    return None if change.entry == entry else change


def asked_next(partition: Partition, entry: EffectEntry, now_ms: int) -> NextAction:
    """Return what is to be done next about an effect whose outcome is unknown."""
    effect = effect_of(partition, entry)
    if effect is None:
        return AskPeople(_NO_CODE)
    try:
        effect.params.load(entry.params)
    except Exception as error:  # noqa: BLE001, a type of the user may raise anything
        # Neither a look-up nor another attempt can be made without them.
        return AskPeople(unreadable(error))
    question = question_of(with_lost_attempts(partition, entry))
    return next_action(contract(partition, effect), question, now_ms)


def in_question(partition: Partition, entry: EffectEntry, happened: tuple[Happened, ...], now_ms: int) -> Change:
    """Return the change of an effect whose outcome is unknown: what is next stands with it.

    Args:
        partition: The partition.
        entry: Where it stands.
        happened: What has happened to it, which is not in its life yet.
        now_ms: The partition's time.
    """
    action = asked_next(partition, with_life(Change(entry, happened)), now_ms)
    if entry.state is EffectState.UNRESOLVED and isinstance(action, LookUp):
        # Asking changes nothing at the receiver: it stays with people, and the time that they have for it goes on.
        after = entry.but(next_ms=_next_of(entry, action.at_ms))
        return Change(after, happened, given_early=early_outcome(after))
    if not isinstance(action, AskPeople):
        after = taken_back(entry).but(state=EffectState.UNKNOWN, next_ms=action.at_ms)
        return Change(after, happened, given_early=early_outcome(after))
    if entry.state is EffectState.UNRESOLVED:
        after = entry.but(next_ms=_next_of(entry, action.look_again_ms))
        return Change(after, happened, given_early=early_outcome(after))
    by_ms = entry.reconcile_by_ms or now_ms + _given_ms(effect_of(partition, entry))
    queued = entry.but(state=EffectState.UNRESOLVED, reconcile_by_ms=by_ms, is_overdue=False)
    after = queued.but(next_ms=_next_of(queued, action.look_again_ms))
    event = Happened(now_ms, EventKind.QUEUED, entry.attempt, action.why)
    return Change(after, (*happened, event), given_early=early_outcome(after))


def _given_ms(effect: Effect[Any, Any] | None) -> int:
    within = RECONCILE_WITHIN if effect is None else effect.receiver.reconcile_within
    return int(within.total_seconds() * 1000)


def _next_of(entry: EffectEntry, look_again_ms: int | None) -> int:
    """Return when something is to be done about an effect that lies with people, 0 for never."""
    moments = [look_again_ms, None if entry.is_overdue else entry.reconcile_by_ms]
    return min((each for each in moments if each is not None), default=0)


def found_overdue(partition: Partition, entry: EffectEntry, now_ms: int) -> Change | None:
    """Return the change that tells people that an effect should be settled by now: once."""
    by_ms = entry.reconcile_by_ms
    if entry.state is not EffectState.UNRESOLVED or entry.is_overdue or by_ms is None or by_ms > now_ms:
        return None
    overdue = entry.but(is_overdue=True)
    event = Happened(now_ms, EventKind.OVERDUE, entry.attempt, entry.why)
    change = in_question(partition, overdue, (event,), now_ms)
    return replace(change, alerts=change.entry.state is EffectState.UNRESOLVED)


def given_up(entry: EffectEntry, now_ms: int, why: str) -> Change:
    """Return the change that forgets an effect of which nothing was done, since nobody wants it any more.

    Who waits to undo it is told that it was not done.
    """
    given = encode_outcome(Rejected(failure_of(EffectRejected(entry.operation, why))))
    return Change(entry, (Happened(now_ms, EventKind.NOT_SENT, entry.attempt, why),), given=given, forgets=True)


def is_old(partition: Partition, entry: EffectEntry) -> bool:
    """Return whether an effect was settled long enough ago to be forgotten."""
    if not entry.is_settled or entry.waiters:
        return False
    return entry.since_ms + kept_ms(partition, effect_of(partition, entry)) <= partition.now_ms()
