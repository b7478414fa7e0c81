"""Makes of an effect's entry what people are shown of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..journal.blobs import is_reference
from ..journal.codec import Undecodable, unpack
from ..journal.effect_cases import Alert, EffectCase
from ..journal.effects import EffectEntry, EffectState, Unknown, decode_effect_outcome
from ..journal.key import format_id
from ..journal.ledger import EventKind, Happened
from ..journal.noted import moment
from ..journal.outcomes import Rejected, Succeeded
from ..journal.plain_values import plain_text
from ..objects.reconciliation import acts_of, contract_in, sent_as

if TYPE_CHECKING:
    from ..journal.code_registry import TypeCard
    from ..journal.keyspace import PartitionSpace
    from ..journal.ledger_reading import Noticed
    from ..journal.receivers_registry import ReceiverCard
    from ..objects.recovery import Contract

#: What the receiver itself has said, or not said.
_ANSWERS: Final = frozenset(
    {
        EventKind.SUCCEEDED,
        EventKind.REJECTED,
        EventKind.UNKNOWN,
        EventKind.FOUND,
        EventKind.ABSENT,
        EventKind.LOOKUP_FAILED,
        EventKind.NOT_SENT,
    }
)


@dataclass(frozen=True, slots=True)
class Desk:
    """What is known beside the effects: their receivers, and the time.

    Args:
        cards: The receivers of the namespace.
        code: What the code of its object types does.
        now_ms: The partition's time.
    """

    cards: dict[str, ReceiverCard]
    code: dict[str, TypeCard]
    now_ms: int

    def contract_of(self, type_name: str, entry: EffectEntry) -> Contract | None:
        """Return what is promised of an effect, as the code that owns it has it; None where that has no such effect."""
        hosted = self.code.get(type_name)
        if hosted is not None and not hosted.has(entry.receiver, entry.effect):
            return None
        return contract_in(self.cards.get(entry.receiver), entry.effect)


def case_of(space: PartitionSpace, key_text: str, entry: EffectEntry, desk: Desk) -> EffectCase:
    """Return what people are shown of an effect."""
    card = desk.cards.get(entry.receiver)
    allowed, forbidden = acts_of(entry, desk.contract_of(space.type_name, entry), desk.now_ms)
    is_with_people = entry.state is EffectState.UNRESOLVED and entry.reconcile_by_ms is not None
    return EffectCase(
        object_name=space.type_name,
        key=key_text,
        operation_id=entry.operation,
        sent_as=sent_as(card, space.namespace, space.type_name, key_text, entry.operation),
        effect=entry.effect,
        receiver=entry.receiver,
        state=entry.state,
        read_at=moment(desk.now_ms),
        since=moment(entry.since_ms),
        why=entry.why,
        owner=entry.assigned or ("" if card is None else card.owner),
        deadline=moment(entry.reconcile_by_ms or 0) if is_with_people else None,
        is_overdue=is_with_people and desk.now_ms >= (entry.reconcile_by_ms or 0),
        params=_value(entry.params),
        params_text=plain_text(entry.params),
        attempts=entry.attempt,
        lookups=entry.lookups,
        approval=entry.approval,
        receipt_text=_receipt(entry),
        tried=entry.life,
        last_answer=_last_answer(entry.life),
        waiting=tuple(format_id(space.type_name, space.number, each.invocation) for each in entry.waiters),
        allowed=allowed,
        forbidden=forbidden,
        runbook="" if card is None else card.runbook,
    )


def _value(packed: bytes) -> Any:
    if is_reference(packed):
        return None
    try:
        return unpack(packed)
    except Undecodable:
        return None


def _receipt(entry: EffectEntry) -> str:
    if entry.outcome is None:
        return ""
    try:
        outcome = decode_effect_outcome(entry.outcome)
    except Undecodable as error:
        return error.message
    match outcome:
        case Succeeded():
            return plain_text(outcome.result)
        case Rejected(failure=failure):
            return failure.message
        case Unknown():
            return ""
        case _:
            return entry.why


def _last_answer(life: tuple[Happened, ...]) -> str:
    last = next((each for each in reversed(life) if each.kind in _ANSWERS), None)
    if last is None:
        return ""
    return f"{last.kind.value}: {last.detail}" if last.detail else last.kind.value


def alert_of(noticed: Noticed) -> Alert:
    """Return an alert as people get it; of one that can't be read, that it was raised."""
    space, event = noticed.space, noticed.event
    cursor = noticed.entry_id.decode()
    if event is None:
        detail = noticed.problem or ""
        return Alert(space.type_name, "", "", "unreadable", "", detail, moment(noticed.at_ms), "", space.number, cursor)
    happened = event.happened
    return Alert(
        space.type_name,
        event.key,
        event.subject,
        happened.kind.value,
        event.owner,
        happened.detail,
        moment(happened.at_ms),
        event.receiver,
        space.number,
        cursor,
    )
