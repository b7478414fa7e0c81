"""Cards: what the worker that started last declares of something, by its name, for those who don't have the code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from .codec import Undecodable
from .errors import StoreFull
from .lane_reading import ask
from .store import Store


class Card(Protocol):
    """What is declared of one thing."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    def encode(self) -> bytes:
        """Return the bytes of the card."""
        ...


CardT = TypeVar("CardT", bound=Card)


async def register_cards(store: Store, key: bytes, cards: Sequence[Card]) -> None:
    """Write cards into a hash of the namespace; what stands there already is not written again.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands in the hash's place.
    """
    if not cards:
        return
    (known,) = await ask(store, [("HMGET", key, *(card.name for card in cards))], [key])
    new = [card for card, found in zip(cards, known, strict=True) if found != card.encode()]
    if not new:
        return
    # Where memory is full workers go on nevertheless: people are told what was so before, until one starts again.
    with suppress(StoreFull):
        await ask(store, [("HSET", key, *(word for card in new for word in (card.name, card.encode())))], [key])


async def read_cards(store: Store, key: bytes, decode: Callable[[bytes], CardT]) -> dict[str, CardT]:
    """Read the cards of a hash, by name; one that can't be read is left out.

    Args:
        store: The open store.
        key: The hash.
        decode: Reads one card; raises Undecodable for what is none.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands in the hash's place.
    """
    (flat,) = await ask(store, [("HGETALL", key)], [key])
    cards: dict[str, CardT] = {}
    for data in flat[1::2]:
        with suppress(Undecodable):
            card = decode(data)
            cards[card.name] = card
    return cards
