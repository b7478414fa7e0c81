"""The object types of a namespace: their partition counts and owners, for callers that don't have the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import redis.exceptions

from .errors import CallError, SchemaMismatch, WrongKeyType
from .keyspace import owners_key, types_key
from .refusals import key_error
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
        StoreFull: It has no memory for what is new in it.
        WrongKeyType: A foreign key stands in a registry's place.
    """
    types, in_charge = types_key(store.namespace), owners_key(store.namespace)
    known = await _ask(store, [("HMGET", types, *partitions), ("HMGET", in_charge, *owners)], [types, in_charge])
    # Who is refused leaves nothing behind: what it would write of other types is as wrong, and stays for ever.
    _check_counts(types, partitions, known[0])
    missing = [name for name, found in zip(partitions, known[0], strict=True) if found is None]
    others = [name for name, found in zip(owners, known[1], strict=True) if found != owners[name].encode()]
    # What stands there already is not written again: a worker that starts while memory is full could not.
    writes: list[tuple[Any, ...]] = [("HSET", in_charge, name, owners[name]) for name in others]
    writes += [("HSETNX", types, name, partitions[name]) for name in missing]
    keys = [in_charge] * len(others) + [types] * len(missing)
    *_, counts = await _ask(store, [*writes, ("HMGET", types, *partitions)], [*keys, types])
    _check_counts(types, partitions, counts)


def _check_counts(key: bytes, partitions: Mapping[str, int], counts: Sequence[bytes | None]) -> None:
    for (name, count), found in zip(partitions.items(), counts, strict=True):
        if found is None:
            continue
        if not found.isdigit():
            raise WrongKeyType(key.decode())
        if int(found) != count:
            raise SchemaMismatch(f"partitions of {name}:", int(found), count)


async def _ask(store: Store, commands: Sequence[tuple[Any, ...]], keys: Sequence[bytes]) -> list[Any]:
    replies = await store.together(commands)
    for key, reply in zip(keys, replies, strict=True):
        if isinstance(reply, redis.exceptions.ResponseError):
            raise key_error(reply, key, store.url) from reply
    return replies


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
        raise key_error(error, key, store.url) from error
    try:
        return {name.decode(): int(count) for name, count in zip(flat[::2], flat[1::2], strict=True)}
    except ValueError as error:
        # Nothing of ours writes a count that is no number.
        raise WrongKeyType(key.decode()) from error


def unused(namespace: str) -> CallError:
    """Return the error of who asks for something in a namespace that has nothing."""
    return CallError(f"namespace {namespace!r} has no object types: no worker has run in it")


async def check_used(store: Store) -> None:
    """Refuse a namespace that no worker has run in: its name may be misspelt.

    Raises:
        CallError: It has no object types.
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands in the registry's place.
    """
    if not await read_types(store):
        raise unused(store.namespace)


async def read_owners(store: Store) -> dict[str, str]:
    """Read who is in charge of each object type.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands in the registry's place.
    """
    key = owners_key(store.namespace)
    try:
        flat = await store.call("HGETALL", key)
    except redis.exceptions.ResponseError as error:
        raise key_error(error, key, store.url) from error
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return {name.decode(errors="replace"): owner.decode(errors="replace") for name, owner in pairs}


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
        raise key_error(error, key, store.url) from error
    return None if owner is None else owner.decode(errors="replace")
