"""The registries of a namespace when somebody else has written to them, or may not be read."""

from __future__ import annotations

import pytest
import redis.exceptions

from keylane import SchemaMismatch, StoreFull, StoreUnavailable, WrongKeyType
from keylane.journal.keyspace import owners_key, types_key
from keylane.journal.refusals import key_error
from keylane.journal.store import Store
from keylane.journal.types_registry import read_owner, read_owners, read_types, register_types

NO_RIGHTS = "this user has no permissions to access one of the keys used as arguments"


@pytest.mark.parametrize(
    ("refusal", "kind", "words"),
    [
        (redis.exceptions.ResponseError("WRONGTYPE Operation against a key"), WrongKeyType, "did not write"),
        (redis.exceptions.NoPermissionError(NO_RIGHTS), StoreUnavailable, NO_RIGHTS),
        (redis.exceptions.ResponseError("READONLY You can't write"), StoreUnavailable, "READONLY"),
        (redis.exceptions.OutOfMemoryError("command not allowed"), StoreFull, "full"),
    ],
)
def test_a_refused_command_is_told_by_what_the_server_said(refusal: Exception, kind: type, words: str) -> None:
    """A user who lacks a right on a key is not told that somebody else has written there."""
    error = key_error(refusal, b"{ns}:types", "redis://host")

    assert type(error) is kind
    assert words in error.message


@pytest.mark.anyio
async def test_a_registry_with_something_foreign_in_it_is_named(store_url: str, namespace: str) -> None:
    """A count that is no number is nobody's of ours; of who is in charge, anything can be shown."""
    async with Store(store_url, namespace=namespace) as store:
        await store.call("HSET", types_key(namespace), "Order", "many")
        await store.call("HSET", owners_key(namespace), "Order", b"\xff")

        with pytest.raises(WrongKeyType, match="types"):
            await read_types(store)
        with pytest.raises(WrongKeyType, match="types"):
            await register_types(store, {"Order": 4}, {"Order": "me"})
        assert await read_owner(store, "Order") == "\ufffd"
        assert await read_owners(store) == {"Order": "\ufffd"}


@pytest.mark.anyio
async def test_who_is_refused_for_one_type_writes_nothing_of_others(store_url: str, namespace: str) -> None:
    """A count is fixed for ever: what a worker with a wrong number of partitions left would refuse the right ones."""
    async with Store(store_url, namespace=namespace) as store:
        await register_types(store, {"Order": 4}, {"Order": "me"})

        with pytest.raises(SchemaMismatch, match="partitions of Order"):
            await register_types(store, {"Customer": 8, "Order": 8}, {"Customer": "you", "Order": "you"})

        assert await read_types(store) == {"Order": 4}
        assert await read_owners(store) == {"Order": "me"}
