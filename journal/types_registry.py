"""The object types of a namespace: their partition counts and owners, for callers that don't have the code."""

from __future__ import annotations

import redis.exceptions

from .errors import SchemaMismatch, WrongKeyType
from .keyspace import owners_key, types_key
from .store import Store


async def register_type(store: Store, type_name: str, partitions: int, owner: str) -> None:
    """Write a type's partition count at its first use; it is fixed from then on. Who is in charge may change.

    Raises:
        SchemaMismatch: The namespace has the type with another count.
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands in the registry's place.
    """
    key = types_key(store.namespace)
    try:
        await store.call("HSETNX", key, type_name, partitions)
        found = await store.call("HGET", key, type_name)
    except redis.exceptions.ResponseError as error:
        raise WrongKeyType(key.decode()) from error
    if int(found) != partitions:
        raise SchemaMismatch(f"partitions of {type_name}:", int(found), partitions)
    if owner:
        await store.call("HSET", owners_key(store.namespace), type_name, owner)


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
