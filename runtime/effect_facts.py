"""What is written about effects: their entries as they change, and what indexes and ledger of the partition get."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..journal import operations
from ..journal.agenda import AgendaItem, AgendaKind
from ..journal.effects import IN_QUESTION, LIFE_MAX, EffectEntry, EffectState, Unknown, encode_effect_outcome
from ..journal.facts import often_made
from ..journal.ledger import EventKind, Happened, LedgerEvent
from ..objects.receivers import qualified_id
from ..objects.recovery import Contract, contract_under

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from ..journal.effects import Waiter
    from ..journal.keyspace import PartitionSpace
    from ..objects.receivers import Effect
    from .invocation import Invocation
    from .lane import Lane
    from .partition import Partition

DAY_MS: Final = 86_400_000
#: Parameters and receipts lie with their object, which has all of them in memory while it needs one.
VALUE_LIMIT_BYTES: Final = 65_536
#: What is told of an answer or an error is cut to so many characters.
DETAIL_CHARACTERS: Final = 500


@often_made
@dataclass(frozen=True, slots=True)
class Change:
    """A change of one effect.

    Args:
        entry: Where it stands afterwards.
        happened: What has happened, oldest first.
        given: What those who wait for the outcome get; None where they wait on.
        given_early: What those get who want to hear of an unknown outcome, likewise.
        alerts: Whether people are told of the last thing that has happened.
        forgets: Whether nothing is left of it: nothing was done, and nobody wants it any more.
    """

    entry: EffectEntry
    happened: tuple[Happened, ...]
    given: bytes | None = None
    given_early: bytes | None = None
    alerts: bool = False
    forgets: bool = False


def effect_of(partition: Partition, entry: EffectEntry) -> Effect[Any, Any] | None:
    """Return the declaration of an effect, None where this code has none."""
    return partition.virtual_object.find_effect(entry.receiver, entry.effect)


def owner_of(partition: Partition, entry: EffectEntry) -> str:
    """Return who is responsible for an effect."""
    effect = effect_of(partition, entry)
    return partition.virtual_object.owner if effect is None else effect.receiver.owner


def contract(partition: Partition, effect: Effect[Any, Any]) -> Contract:
    """Return what the receiver of an effect promises."""
    return contract_under(effect, partition.settings)


def with_lost_attempts(partition: Partition, entry: EffectEntry) -> EffectEntry:
    """Return an effect as it may be: an owner before may have attempted it anew in records that the store has lost.

    What left then did so before this tenure began, or is about to; that nothing was found earlier says nothing of it.
    """
    effect = effect_of(partition, entry)
    if effect is None or not partition.in_doubt(entry.first_ms):
        return entry
    sent_ms = partition.began_ms + contract(partition, effect).send_within_ms
    return entry.but(send_before_ms=max(entry.send_before_ms, sent_ms))


def id_for_receiver(partition: Partition, key_text: str, effect: Effect[Any, Any], operation: str) -> str:
    """Return the operation id that a receiver sees."""
    receiver, space = effect.receiver, partition.space
    if receiver.ids == "verbatim":
        return operation
    return qualified_id(space.namespace, space.type_name, key_text, operation, receiver.id_limit)


def item_of(key_text: str, operation: str, kind: AgendaKind = AgendaKind.EFFECT) -> AgendaItem:
    """Return the name of an effect in the indexes of its partition."""
    return AgendaItem(kind, key_text, operation)


def cut(said: object) -> str:
    """Return what was said as it is told of an effect; what a function of the user calls a reason need be no text."""
    try:
        text = str(said)
    except Exception:  # noqa: BLE001, the text is user code
        text = "its text can't be made"
    return text if len(text) <= DETAIL_CHARACTERS else f"{text[:DETAIL_CHARACTERS]}…"


def in_words(error: BaseException) -> str:
    """Return an exception in a line."""
    text = cut(error)
    return cut(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def unreadable(error: Exception) -> str:
    """Return in a line that the parameters of an effect are none to this code."""
    return f"its parameters can't be read by this code: {in_words(error)}"


def blocker_of(lane: Lane, entry: EffectEntry) -> EffectEntry | None:
    """Return what keeps an effect of an object from being asked for: another one there whose outcome is not known."""
    docket = lane.docket
    assert docket is not None
    for each in docket.unsettled.values():
        if each.receiver == entry.receiver and each.operation != entry.operation and each.is_in_question:
            return each
    return None


def blocks(effect: Effect[Any, Any]) -> bool:
    """Return whether what is in question at its receiver keeps an effect waiting."""
    return effect.receiver.while_unknown == "block"


def accepted_at(invocation: Invocation, now_ms: int) -> int:
    """Return when an invocation was taken in, by the partition's time."""
    if invocation.begun_ms is not None:
        return invocation.begun_ms
    return now_ms - int((time.monotonic() - invocation.arrived_at) * 1000)


def kept_ms(partition: Partition, effect: Effect[Any, Any] | None) -> int:
    """Return for how long a settled effect is known, so that its operation id is not used for something else."""
    ledger_ms = partition.settings.ledger_retention_days * DAY_MS
    if effect is None:
        return ledger_ms
    promised = contract(partition, effect)
    return max(ledger_ms, promised.dedup_ms or 0, promised.found_ms or 0, promised.in_flight_ms)


def release_of(partition: Partition, key_text: str, entry: EffectEntry, *, was_sent: bool) -> list[Operation]:
    """Return what lets go of the operation id of an effect that is forgotten, where it was reserved.

    What the receiver finds for ever it would find for another object that has the id then: that is never let go of. Nor
    is an id of an object whose paused invocations leave its lane: they may be about to use it, and are not known.
    """
    effect = effect_of(partition, entry)
    if effect is None or effect.receiver.ids != "verbatim" or partition.virtual_object.on_paused == "skip":
        return []
    promised = contract(partition, effect)
    if was_sent and promised.can_look_up and promised.found_ms is None:
        return []
    item = AgendaItem(AgendaKind.RESERVED, key_text, f"{entry.receiver} {entry.operation}")
    return [operations.put_on_agenda(partition.space, item, 0)]


def events_of(partition: Partition, key_text: str, change: Change) -> list[Operation]:
    """Return what a change leaves in the ledger of its partition, and among the alerts."""
    entry, space = change.entry, partition.space
    owner = entry.assigned or owner_of(partition, entry)
    events = [
        LedgerEvent(key_text, entry.operation, entry.receiver, entry.effect, owner, each) for each in change.happened
    ]
    writes = [operations.note_in_ledger(space, each) for each in events]
    if change.alerts:
        writes.append(operations.raise_alert(space, events[-1]))
    return writes


def with_life(change: Change, waiters: tuple[Waiter, ...] | None = None) -> EffectEntry:
    """Return the entry of a change with what has happened, and with others who wait for it, where some are given."""
    entry = change.entry
    life = (*entry.life, *change.happened)[-LIFE_MAX:]
    return entry.but(life=life, waiters=entry.waiters if waiters is None else waiters)


def agenda_of(partition: Partition, key_text: str, entry: EffectEntry, now_ms: int) -> list[Operation]:
    """Return what puts an effect on the agenda of its partition, or takes it off, as it stands now."""
    space, item = partition.space, item_of(key_text, entry.operation)
    if entry.is_settled and not entry.waiters:
        old = item_of(key_text, entry.operation, AgendaKind.OLD_EFFECT)
        keep_ms = kept_ms(partition, effect_of(partition, entry))
        return [operations.take_off_agenda(space, item), operations.put_on_agenda(space, old, keep_ms)]
    if not (entry.is_settled or entry.next_ms):
        return [operations.take_off_agenda(space, item)]
    return [operations.put_on_agenda(space, item, max(entry.next_ms - now_ms, 0))]


def queue_of(
    space: PartitionSpace, key_text: str, before: EffectEntry | None, entry: EffectEntry, now_ms: int
) -> list[Operation]:
    """Return what puts an effect before people, gives them another time, or takes it back from them."""
    item, is_queued = item_of(key_text, entry.operation), entry.state is EffectState.UNRESOLVED
    was_queued = before is not None and before.state is EffectState.UNRESOLVED
    is_moved = before is not None and before.reconcile_by_ms != entry.reconcile_by_ms
    if is_queued and (not was_queued or is_moved):
        return [operations.enter_queue(space, item, max((entry.reconcile_by_ms or now_ms) - now_ms, 0))]
    if not is_queued and was_queued:
        return [operations.leave_queue(space, item)]
    return []


def follows_another(entry: EffectEntry) -> bool:
    """Return whether an attempt before the newest one may have been sent."""
    return entry.first_ms < entry.intended_ms


def intent(
    entry: EffectEntry, now_ms: int, send_within_ms: int, kind: EventKind, detail: str = "", by: str = ""
) -> Change:
    """Return the intent of an effect's next attempt.

    Args:
        entry: Where it stands.
        now_ms: The partition's time.
        send_within_ms: For how long its first byte may leave.
        kind: `INTENDED`, or `RESENT` where the same may have been sent before.
        detail: Why there is another attempt.
        by: Who asks for it; empty for the runtime itself.
    """
    attempt = entry.attempt + 1
    # What has happened is cut, so it can't tell: an attempt that keeps the time of another one has followed on it.
    may_be_sent = entry.state in IN_QUESTION or follows_another(entry)
    intended = taken_back(entry).but(
        state=EffectState.INTENDED,
        attempt=attempt,
        # Before anything may have been sent nothing can have been deduplicated.
        first_ms=entry.first_ms if may_be_sent else now_ms,
        intended_ms=max(now_ms, entry.first_ms + 1) if may_be_sent else now_ms,
        send_before_ms=now_ms + send_within_ms,
        since_ms=now_ms,
        next_ms=now_ms,
        why="",
        lookups=0,
    )
    return Change(intended, (Happened(now_ms, kind, attempt, detail, by),))


def taken_back(entry: EffectEntry) -> EffectEntry:
    """Return an effect as it is when people need not settle it any more, or not yet.

    The time that they had ends with that. One that was named before it has come to them is still to come.
    """
    return entry.but(reconcile_by_ms=None, is_overdue=False) if entry.state is EffectState.UNRESOLVED else entry


def early_outcome(entry: EffectEntry) -> bytes:
    """Return what those get who want to hear of an unknown outcome."""
    return encode_effect_outcome(Unknown(entry.since_ms, entry.why))
