"""Whether code may take over what is open of effects: it has to declare each, and to read its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..journal.agenda import AgendaKind
from ..journal.errors import KeylaneError
from ..journal.ledger_reading import ENTRIES_AT_ONCE, read_agenda, read_effects, read_queue
from .effect_facts import unreadable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from ..journal.effects import EffectEntry
    from ..journal.keyspace import PartitionSpace
    from ..journal.ledger_reading import Found
    from ..journal.store import Store
    from ..objects.app import App

NOT_DECLARED: Final = "this code has no such effect"


@dataclass(frozen=True, slots=True)
class UnfitEffect:
    """An effect that is not settled, and that code can neither send nor look up.

    Args:
        type_name: The object type.
        key: The object.
        operation: The operation id.
        effect: The effect, as `payments.refund`.
        state: Where it stands.
        why: What the code lacks.
    """

    type_name: str
    key: str
    operation: str
    effect: str
    state: str
    why: str


async def unfit_effects(app: App, store: Store, types: Mapping[str, int]) -> list[UnfitEffect]:
    """Return the effects that are not settled and that would go before people at once under this code.

    Args:
        app: The code.
        store: The open store; it is only read.
        types: The object types that are looked at, all of them hosted by the app, and how many partitions each has.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where one of ours belongs.
    """
    spaces = [store.space(name, number) for name, count in sorted(types.items()) for number in range(count)]
    unfit: dict[tuple[PartitionSpace, str, str], UnfitEffect] = {}
    async for found in _open_ones(store, spaces):
        entry, space, key = found.entry, found.space, found.item.key
        why = None if entry is None or entry.is_settled else _why_unfit(app, space, entry)
        if entry is not None and why is not None:
            name = f"{entry.receiver}.{entry.effect}"
            told = UnfitEffect(space.type_name, key, entry.operation, name, entry.state.value, why)
            unfit[space, key, entry.operation] = told
    return list(unfit.values())


async def _open_ones(store: Store, spaces: list[PartitionSpace]) -> AsyncGenerator[Found[EffectEntry]]:
    """Return what agendas and queues name; one that stands in both comes twice."""
    async for members in read_agenda(store, spaces):
        named = [each for each in members if each.item is not None and each.item.kind is AgendaKind.EFFECT]
        for start in range(0, len(named), ENTRIES_AT_ONCE):
            for found in await read_effects(store, named[start : start + ENTRIES_AT_ONCE]):
                yield found
    async for page in read_queue(store, spaces):
        for found in page:
            yield found


def _why_unfit(app: App, space: PartitionSpace, entry: EffectEntry) -> str | None:
    effect = app.find(space.type_name).find_effect(entry.receiver, entry.effect)
    if effect is None:
        return NOT_DECLARED
    try:
        effect.params.load(entry.params)
    except KeylaneError as error:
        return unreadable(error)
    return None
