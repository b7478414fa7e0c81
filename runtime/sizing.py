"""How many partitions a type gets that says nothing itself: in a cluster enough for every primary to have its share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..journal.types_registry import read_types
from ..journal.urls import ClusterAddress

if TYPE_CHECKING:
    from ..journal.store import Store
    from ..objects.app import App
    from ..objects.settings import Settings

#: Fewer would be spread so unevenly that one primary has most of the work.
PARTITIONS_PER_PRIMARY: Final = 8


def partitions_for(settings: Settings, store: Store) -> int:
    """Return how many partitions a type gets at its first use."""
    if not _is_sized(settings, store):
        return settings.partitions
    return max(settings.partitions, PARTITIONS_PER_PRIMARY * len(store.nodes))


async def sized(settings: Settings, store: Store, app: App) -> Settings:
    """Return the settings with the number of partitions that fits the store, or that the namespace has already.

    The number is fixed at first use, and a cluster may have grown since, or have a primary less for the moment.

    Raises:
        StoreUnavailable: The store is away.
    """
    if not _is_sized(settings, store):
        return settings
    wanted = partitions_for(settings, store)
    types = await read_types(store)
    found = [types[each.name] for each in app.objects.values() if each.partitions is None and each.name in types]
    return settings.model_copy(update={"partitions": found[0] if found else wanted})


def _is_sized(settings: Settings, store: Store) -> bool:
    """Return whether the number depends on how many primaries there are."""
    return isinstance(store.address, ClusterAddress) and "partitions" not in settings.model_fields_set
