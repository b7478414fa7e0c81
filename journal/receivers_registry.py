"""The receivers of a namespace, as the worker that started last declares them: for those who don't have the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

from .cards import read_cards, register_cards
from .fields import Layout, a_flag, a_number, a_text, decode_tagged, pack
from .keyspace import receivers_key
from .store import Store

#: What a receiver promises of one effect, by the name of each promise.
Promises: TypeAlias = "Mapping[str, int | bool | None]"


@dataclass(frozen=True, slots=True)
class ReceiverCard:
    """What is to be known of a receiver by whoever settles an effect there, or reads its books.

    Args:
        name: Its name.
        owner: Who settles by hand what stays unknown there.
        runbook: What that person should know.
        is_verbatim: Whether it sees operation ids as handlers write them.
        id_limit: How many characters of an operation id it takes.
        effects: What it promises of each of its effects, by the effect's name.
    """

    name: str
    owner: str
    runbook: str = ""
    is_verbatim: bool = False
    id_limit: int = 200
    effects: Mapping[str, Promises] = field(default_factory=dict[str, "Promises"])

    def encode(self) -> bytes:
        """Return the bytes of the card."""
        effects = {name: dict(promises) for name, promises in self.effects.items()}
        return pack((_CARD, self.name, self.owner, self.runbook, self.is_verbatim, self.id_limit, effects))

    @classmethod
    def decode(cls, data: bytes) -> ReceiverCard:
        """Return the card that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        return decode_tagged(data, _LAYOUTS, "receiver")


def _promises(value: object) -> Mapping[str, Promises]:
    """Read what is promised of effects; what is none of it is left out, as a later version may have more."""
    if not isinstance(value, dict):
        return {}
    effects = cast("dict[object, object]", value)
    return {
        name: {str(each): said for each, said in cast("dict[object, Any]", promises).items()}
        for name, promises in effects.items()
        if isinstance(name, str) and isinstance(promises, dict)
    }


_CARD: Final = 170
_LAYOUTS: Final[Mapping[int, Layout[ReceiverCard]]] = {
    _CARD: Layout(ReceiverCard, (a_text, a_text, a_text, a_flag, a_number, _promises))
}


async def register_receivers(store: Store, cards: Sequence[ReceiverCard]) -> None:
    """Write what this deployment declares of its receivers; what stands there already is not written again.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands in the registry's place.
    """
    await register_cards(store, receivers_key(store.namespace), cards)


async def read_receivers(store: Store) -> dict[str, ReceiverCard]:
    """Read the receivers of the namespace, by name; one that can't be read is left out.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands in the registry's place.
    """
    return await read_cards(store, receivers_key(store.namespace), ReceiverCard.decode)
