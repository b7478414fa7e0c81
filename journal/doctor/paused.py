"""What operators have paused: no damage, but nothing of it goes on until somebody named lets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ..errors import WrongKeyType
from ..keyspace import PartitionSpace
from ..pauses import ALL, Pausing, described, read_pauses
from ..store import Store

#: So many paused objects are told of one by one.
TOLD_MAX: Final = 50


async def pauses_in_words(
    store: Store, spaces: Sequence[PartitionSpace], in_charge: Mapping[str, str]
) -> tuple[str, ...]:
    """Return what is paused, in sentences: types first, each once.

    Raises:
        StoreUnavailable: The store is away.
    """
    types: dict[str, list[Pausing]] = {}
    objects: list[str] = []
    count = 0
    there = await store.together([("HLEN", space.paused) for space in spaces])
    for space, length in zip(spaces, there, strict=True):
        if not isinstance(length, int) or not length:
            continue
        try:
            found = await read_pauses(store, space, TOLD_MAX)
        except WrongKeyType:
            # The walk says so.
            continue
        count += length - (ALL in found)
        for key_text, pausing in found.items():
            if key_text == ALL:
                types.setdefault(space.type_name, []).append(pausing)
            elif len(objects) < TOLD_MAX:
                objects.append(_object(space, key_text, pausing, in_charge))
    more = [f"{count} objects are paused; {len(objects)} of them are told of"] if count > len(objects) else []
    return (*(_type(name, each, in_charge) for name, each in types.items()), *objects, *more)


def _object(space: PartitionSpace, key_text: str, pausing: Pausing, in_charge: Mapping[str, str]) -> str:
    pause = described("object", pausing, in_charge.get(space.type_name))
    return f"{space.type_name} {key_text}: {pause}; {pause.in_charge or 'somebody'} has to resume it"


def _type(name: str, pausings: Sequence[Pausing], in_charge: Mapping[str, str]) -> str:
    pause = described("type", min(pausings, key=_since), in_charge.get(name))
    where = f" in {len(pausings)} partitions"
    return f"{name}: {pause}{where}; {pause.in_charge or 'somebody'} has to resume it"


def _since(pausing: Pausing) -> int:
    return pausing.since_ms
