"""The object types of a namespace: their partition counts and owners, for callers that don't have the code."""

from __future__ import annotations

from collections.abc import Mapping

import redis.exceptions

from .errors import SchemaMismatch, WrongKeyType
from .keyspace import owners_key, types_key
from .store import Store


async def register_types(store: Store, partitions: Mapping[str, int], owners: Mapping[str, str]) -> None:
    """Write types' partition counts at their first use; they are fixed from then on. Who is in charge may change.

    All go out in one turn, so that a client that finds the namespace finds all of an app's types or none.

    Args:
        store: The open store.
        partitions: How many partitions each type has.
        owners: Who is in charge of each.

    Raises:
        SchemaMismatch: The namespace has a type with another count.
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands in a registry's place.
    """
    types, in_charge = types_key(store.namespace), owners_key(store.namespace)
    writes = [("HSETNX", types, name, count) for name, count in partitions.items()]
    replies = await store.together(
        [
            ("HSET", in_charge, *(word for pair in owners.items() for word in pair)),
            *writes,
            ("HMGET", types, *partitions),
        ]
    )
    for key, reply in zip([in_charge, *[types] * (len(writes) + 1)], replies, strict=True):
        if isinstance(reply, redis.exceptions.ResponseError):
            raise WrongKeyType(key.decode()) from reply
    for (name, count), found in zip(partitions.items(), replies[-1], strict=True):
        if int(found) != count:
            raise SchemaMismatch(f"partitions of {name}:", int(found), count)


async def read_types(store: Store) -> dict[str, int]:
    """Read the object types of the namespace and how many partitions each has.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands in the registry's place.
    """
    key = types_key(store.namespace)
    try:
        flat = await store.call("HGETALL", key)
    except redis.exceptions.ResponseError as error:
        raise WrongKeyType(key.decode()) from error
    return {name.decode(): int(count) for name, count in zip(flat[::2], flat[1::2], strict=True)}


async def read_owner(store: Store, type_name: str) -> str | None:
    """Read who is in charge of an object type, None where nobody has said so.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands in the registry's place.
    """
    key = owners_key(store.namespace)
    try:
        owner = await store.call("HGET", key, type_name)
    except redis.exceptions.ResponseError as error:
        raise WrongKeyType(key.decode()) from error
    return None if owner is None else owner.decode()
