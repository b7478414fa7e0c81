"""Where a key lives: the partition that holds it, found without asking anybody once its type is known."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from ..journal.errors import CallError, UnknownObject
from ..journal.key import InvocationId, Key, partition_of
from ..journal.keyspace import PartitionSpace
from ..journal.promise import read_replicas
from ..journal.store import Store
from ..journal.types_registry import read_owner, read_types
from ..objects.virtual_object import VirtualObject
from .door import LocalRoutes

if TYPE_CHECKING:
    from .remote import Patience, Remote

#: Keys whose partition is remembered; beyond it all are forgotten and found again.
KEYS_REMEMBERED: Final = 65_536


class Places:
    """The partitions of a namespace, as one process knows them.

    Args:
        store: The open store.
        local: What this process hosts itself.
    """

    def __init__(self, store: Store, local: LocalRoutes | None) -> None:
        self._store = store
        self._local = local
        self._partitions: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        self._spaces: dict[tuple[str, str], PartitionSpace] = {}

    def known(self, object_name: str, key_text: str) -> PartitionSpace | None:
        """Return the partition of a key, where the number of partitions of its type is known.

        Raises:
            InvalidKey: The text is no key.
        """
        place = (object_name, key_text)
        space = self._spaces.get(place)
        if space is not None:
            return space
        Key.parse(key_text)
        count = self._count(object_name)
        if count is None:
            return None
        space = self._store.space(object_name, partition_of(key_text, count))
        if len(self._spaces) >= KEYS_REMEMBERED:
            self._spaces.clear()
        self._spaces[place] = space
        return space

    async def place(self, object_name: str, key_text: str) -> PartitionSpace:
        """Return the partition of a key; the store is asked where its type is new to this process.

        Raises:
            InvalidKey: The text is no key.
            UnknownObject: The namespace has no such type.
            StoreUnavailable: No answer came.
        """
        return self.known(object_name, key_text) or await self.learned(object_name, key_text)

    async def learned(self, object_name: str, key_text: str, declared: int | None = None) -> PartitionSpace:
        """Return the partition of a key of a type that is new to this process.

        Args:
            object_name: The type.
            key_text: The key.
            declared: How many partitions the caller's own declaration gives the type; counts while the namespace has
                not been used yet.

        Raises:
            UnknownObject: The namespace has no such type, and it is not declared here.
            StoreUnavailable: No answer came.
        """
        types = await read_types(self._store)
        self._partitions.update(types)
        await self.learn_durability()
        space = self.known(object_name, key_text)
        if space is not None:
            return space
        if declared is None:
            raise UnknownObject(object_name, tuple(sorted(types)))
        # Not remembered: the first worker may write another number.
        return self._store.space(object_name, partition_of(key_text, declared))

    async def place_of(self, invocation: InvocationId) -> PartitionSpace:
        """Return the partition that an invocation id names.

        Raises:
            UnknownObject: The namespace has no such type.
            CallError: The type has no such partition.
            StoreUnavailable: No answer came.
        """
        name, number = invocation.type_name, invocation.partition
        count = self._count(name)
        if count is None:
            types = await read_types(self._store)
            self._partitions.update(types)
            count = self._count(name)
            if count is None:
                raise UnknownObject(name, tuple(sorted(types)))
        if number >= count:
            why = f"nothing is known of it: {name} has {count} partitions"
            raise CallError(why, invocation_id=str(invocation))
        return self._store.space(name, number)

    async def learn_durability(self) -> None:
        """Wait from now on for as many replicas as the workers of the namespace do.

        Raises:
            StoreUnavailable: The store is away.
        """
        self._store.replicas = max(self._store.replicas, await read_replicas(self._store))

    async def owner(self, object_name: str) -> str:
        """Return who is in charge of a type, or words that say that nobody is known."""
        owner = self._owners.get(object_name)
        if owner is None:
            owner = await read_owner(self._store, object_name) or "nobody known"
            self._owners[object_name] = owner
        return owner

    def partitions(self, object_name: str) -> int:
        """Return how many partitions a type has that is known to this process."""
        return self._count(object_name) or 0

    def _count(self, object_name: str) -> int | None:
        count = self._partitions.get(object_name)
        if count is None and self._local is not None:
            count = self._local.partitions(object_name)
        return count


def name_of(target: VirtualObject | str) -> str:
    """Return the name of an object type that is given itself or by its name.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(target, str):
        return target
    if isinstance(target, VirtualObject):  # pyright: ignore[reportUnnecessaryIsInstance] - a user gives it
        return target.name
    raise TypeError(f"the object type is given itself, or by its name, not as {type(target).__name__}")


def name_if_any(target: VirtualObject | str | None) -> str | None:
    """Return the name of an object type; None where none is given.

    Raises:
        TypeError: It is something else.
    """
    return None if target is None else name_of(target)


async def place_if_any(
    places: Places, remote: Remote, object_name: str, key_text: str, patience: Patience
) -> PartitionSpace | None:
    """Return the partition of a key, also while the store is away for a while; None where there is no such type.

    Raises:
        CallTimeout: The patience has ended.
        StoreUnavailable: The store was away for too long.
    """
    try:
        return places.known(object_name, key_text) or await remote.persist(
            partial(places.learned, object_name, key_text), patience
        )
    except UnknownObject:
        return None
