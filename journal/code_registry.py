"""What the code of object types does, as the worker that started last declares: for those who don't have the code.

Receivers stay known for as long as there is anything of them (`receivers_registry`). This says what is deployed now: an
effect that is not settled and that nobody's code has any more is not looked into by anybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .cards import read_cards, register_cards
from .fields import Layout, a_flag, a_text, decode_tagged, pack, sequence_of
from .keyspace import code_key
from .store import Store


@dataclass(frozen=True, slots=True)
class TypeCard:
    """What is to be known of an object type's code.

    Args:
        name: Its name.
        effects: The effects that it declares, each as `payments.refund`.
        asks_authority: Whether it says who may approve what.
    """

    name: str
    effects: tuple[str, ...] = ()
    asks_authority: bool = False

    def has(self, receiver: str, effect: str) -> bool:
        """Return whether it declares an effect."""
        return f"{receiver}.{effect}" in self.effects

    def encode(self) -> bytes:
        """Return the bytes of the card."""
        return pack((_CARD, self.name, self.effects, self.asks_authority))

    @classmethod
    def decode(cls, data: bytes) -> TypeCard:
        """Return the card that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        return decode_tagged(data, _LAYOUTS, "object type")


_CARD: Final = 171
_LAYOUTS: Final[Mapping[int, Layout[TypeCard]]] = {_CARD: Layout(TypeCard, (a_text, sequence_of(a_text), a_flag))}


async def register_code(store: Store, cards: Sequence[TypeCard]) -> None:
    """Write what the code of this deployment does; what stands there already is not written again.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands in the registry's place.
    """
    await register_cards(store, code_key(store.namespace), cards)


async def read_code(store: Store) -> dict[str, TypeCard]:
    """Read what the code of object types does, by their names; what can't be read is left out.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands in the registry's place.
    """
    return await read_cards(store, code_key(store.namespace), TypeCard.decode)
