"""Reads what the ledger of a namespace says of one receiver, for a comparison with that receiver's books."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from .agenda import AgendaItem, AgendaKind
from .auditing import OurEffect, Qualify, amount_in
from .blobs import is_reference
from .codec import Undecodable, unpack
from .effects import EffectEntry, EffectState
from .errors import KeylaneError
from .keyspace import PartitionSpace
from .ledger import EventKind, LedgerEvent
from .ledger_reading import ENTRIES_AT_ONCE, Found, Indexed, read_agenda, read_effects, read_ledger, read_queue
from .store import Store

#: The items of an agenda that are about effects: those that are in question, and those that are to be forgotten.
_EFFECTS: Final = frozenset({AgendaKind.EFFECT, AgendaKind.OLD_EFFECT})
#: What an event says of where its effect stands, for one whose entry is no longer kept.
_STATES: Final[Mapping[EventKind, EffectState]] = {
    EventKind.INTENDED: EffectState.INTENDED,
    EventKind.BLOCKED: EffectState.BLOCKED,
    EventKind.NOT_SENT: EffectState.NOT_SENT,
    EventKind.SUCCEEDED: EffectState.SUCCEEDED,
    EventKind.FOUND: EffectState.SUCCEEDED,
    EventKind.MARKED_SUCCEEDED: EffectState.SUCCEEDED,
    EventKind.REJECTED: EffectState.REJECTED,
    EventKind.MARKED_NOT_DONE: EffectState.REJECTED,
    EventKind.UNKNOWN: EffectState.UNKNOWN,
    EventKind.RESENT: EffectState.INTENDED,
    EventKind.QUEUED: EffectState.UNRESOLVED,
}


class LedgerUnreadable(KeylaneError):
    """Something of the ledger can't be read by this code, so that no comparison with it would be whole."""

    code = "ledger-unreadable"


@dataclass(frozen=True, slots=True)
class _Last:
    """What the ledger says last of where an effect stands; None where only the agenda knows of it."""

    event: LedgerEvent | None
    state: EffectState | None


async def read_ours(
    store: Store, spaces: Sequence[PartitionSpace], receiver: str, qualify: Qualify, amount_field: str | None = None
) -> AsyncGenerator[OurEffect]:
    """Return all effects at a receiver that the ledger knows of: settled ones, and those in question.

    Args:
        store: The open store.
        spaces: The partitions.
        receiver: The receiver's name.
        qualify: Gives the operation id that the receiver sees.
        amount_field: The field of the parameters that holds the amount, where amounts are compared.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where one of ours belongs.
        LedgerUnreadable: An event or an effect can't be read.
    """
    due_ms = {(each.space, each.item): each.due_ms async for page in read_queue(store, spaces) for each in page}
    known = await _known(store, spaces, receiver)
    members = [Indexed(space, item, 0) for space, item in known]
    for start in range(0, len(members), ENTRIES_AT_ONCE):
        for found in await read_effects(store, members[start : start + ENTRIES_AT_ONCE]):
            each = (found.space, found.item)
            effect = _effect(found, known[each], receiver, qualify, amount_field)
            if effect is not None:
                yield replace(effect, due_ms=due_ms.get(each)) if effect.is_in_question else effect


async def _known(
    store: Store, spaces: Sequence[PartitionSpace], receiver: str
) -> dict[tuple[PartitionSpace, AgendaItem], _Last]:
    """Return the effects that ledger or agenda name: what is in question may be older than the ledger reaches back."""
    known: dict[tuple[PartitionSpace, AgendaItem], _Last] = {}
    async for page in read_agenda(store, spaces):
        for each in page:
            if each.item is not None and each.item.kind in _EFFECTS:
                known[each.space, replace(each.item, kind=AgendaKind.EFFECT)] = _Last(None, None)
    async for page in read_ledger(store, spaces):
        for noticed in page:
            if noticed.event is None:
                raise LedgerUnreadable(f"the ledger of {noticed.space} can't be read: {noticed.problem}")
            _note(known, noticed.space, noticed.event, receiver)
    return known


def _note(
    known: dict[tuple[PartitionSpace, AgendaItem], _Last], space: PartitionSpace, event: LedgerEvent, receiver: str
) -> None:
    item = AgendaItem(AgendaKind.EFFECT, event.key, event.subject)
    state = _STATES.get(event.happened.kind)
    if event.receiver == receiver and state is not None:
        known[space, item] = _Last(event, state)
    elif event.receiver not in ("", receiver):
        # That of another receiver need not be read.
        known.pop((space, item), None)


def _effect(
    found: Found[EffectEntry], last: _Last, receiver: str, qualify: Qualify, amount_field: str | None
) -> OurEffect | None:
    """Return what is known of an effect by its entry, or where that is no longer kept by the ledger alone."""
    space, item, entry = found.space, found.item, found.entry
    operation_id = qualify(space.type_name, item.key, item.name)
    if entry is not None:
        if entry.receiver != receiver:
            return None
        amount, problem = (None, "") if amount_field is None else _amount(entry.params, amount_field)
        return OurEffect(
            operation_id=operation_id, type_name=space.type_name, key=item.key, operation=item.name,
            effect=entry.effect, state=entry.state, at_ms=entry.since_ms, why=entry.why, amount=amount,
            amount_problem=problem,
        )  # fmt: skip
    if not found.is_gone:
        raise LedgerUnreadable(f"effect {item.name!r} of {space.type_name} {item.key} can't be read: {found.problem}")
    if last.event is None or last.state is None:
        return None
    told = last.event
    return OurEffect(
        operation_id=operation_id, type_name=space.type_name, key=item.key, operation=item.name, effect=told.effect,
        state=last.state, at_ms=told.happened.at_ms, why=told.happened.detail,
        amount_problem="its parameters are no longer kept",
    )  # fmt: skip


def _amount(params: bytes, path: str) -> tuple[Decimal | None, str]:
    if is_reference(params):
        return None, "our parameters are a large value, which is not read"
    try:
        return amount_in(unpack(params), path), ""
    except (ValueError, Undecodable) as error:
        return None, str(error)
