"""A call whose answer was lost is sent again: the second one of the same words writes nothing and answers as the first.

Nothing sends it again by itself: redis-py's retries are off, since they don't know which calls may be repeated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files
from typing import Any

import pytest
import redis

from keylane.journal import operations
from keylane.journal.batch import Commit, build_batch
from keylane.journal.connections import sync_client_to
from keylane.journal.key import new_invocation_id
from keylane.journal.keyspace import registry_key
from keylane.journal.library import VERBS
from keylane.journal.requests import Request, RequestKind
from keylane.journal.store import Store
from keylane.journal.urls import SocketAddress
from tests.journal.every_operation import every_commit
from tests.journal.owning import Owner, WiredStore, opened, took

pytestmark = pytest.mark.anyio

Words = tuple[Any, ...]
HOUR_MS = 3_600_000


@pytest.fixture
async def store(each_store_url: str, namespace: str) -> AsyncIterator[WiredStore]:
    async with opened(each_store_url, namespace) as store:
        yield store


def call(store: Store, verb: str, keys: list[bytes], *arguments: Any) -> Words:
    return (*store.words(verb, keys), *arguments)


async def a_batch(store: Store, owner: Owner) -> Words:
    commits = [Commit(each, _ignore) for each in every_commit(owner.space)]
    return build_batch(store.library.function("commit"), owner.space, owner.tenure, 1, 1, 0, commits).words


async def an_acquisition(store: Store, owner: Owner) -> Words:
    lease = await owner.field("lease")
    seen = (64, owner.tenure.epoch, lease)
    server = ("", "", 0, 0, HOUR_MS, "", b"", 0, 0)
    return call(store, "acquire", [owner.space.owner], *seen, b"t" * 16, "other", "machine", *server)


async def a_hand_over(store: Store, owner: Owner) -> Words:
    return call(store, "release", [owner.space.owner], owner.tenure.epoch, owner.tenure.token)


async def an_announcement(store: Store, owner: Owner) -> Words:
    del owner
    return call(store, "announce", [registry_key(store.namespace)], "worker", b"bytes")


async def a_withdrawal(store: Store, owner: Owner) -> Words:
    await store.call(*await an_announcement(store, owner))
    return call(store, "withdraw", [registry_key(store.namespace)], "worker", b"other bytes")


async def a_request_that_was_dealt_with(store: Store, owner: Owner) -> Words:
    raw_id, space = new_invocation_id(), owner.space
    owner.append("dealt with", "acme/a", operations.result(space, raw_id, b"outcome", HOUR_MS))
    await owner.answered()
    keys = [space.owner, space.inbox, space.inbox_channel, space.result(raw_id), space.invocation(raw_id)]
    return call(store, "submit", keys, 100, Request(RequestKind.SEND, raw_id, "refund", "acme/a", None).encode())


def _ignore(now_ms: int, error: BaseException | None) -> None:
    del now_ms, error


CALLS: dict[str, Callable[[Store, Owner], Awaitable[Words]]] = {
    "commit": a_batch,
    "acquire": an_acquisition,
    "release": a_hand_over,
    "announce": an_announcement,
    "withdraw": a_withdrawal,
    # While it still lies in the inbox, both copies lie there, and the owner takes the second for what it is.
    "submit": a_request_that_was_dealt_with,
}
#: May be repeated, though they write or answer otherwise then: a renewal, a witness or a doubt that ends later harms
#: nobody, what was mended is found to be whole, and messages that were taken are counted and not taken.
AGAIN = {"deliver", "mend", "renew", "restored", "witness"}


@pytest.mark.parametrize("verb", CALLS)
async def test_the_same_words_again_write_nothing_and_answer_the_same(store: WiredStore, verb: str) -> None:
    """Byte by byte, over all keys of the namespace."""
    owner = await took(store)
    words = await CALLS[verb](store, owner)

    first = await answer(store, words)
    before = await everything(store)
    again = await answer(store, words)

    assert again == first
    assert await everything(store) == before


def test_every_function_that_writes_is_among_them() -> None:
    """One that is added later is not forgotten here."""
    lua = files("keylane.journal") / "lua"
    writing = {verb for verb in VERBS if "'no-writes'" not in (lua / f"{verb}.lua").read_text(encoding="utf-8")}

    assert writing == {*CALLS, *AGAIN}


@pytest.mark.one_server
async def test_no_connection_sends_anything_again_by_itself(store: WiredStore) -> None:
    """Neither that of the loop nor that of the lease's thread."""
    connection: Any = store.new_connection()
    assert isinstance(store.address, SocketAddress)
    client: Any = sync_client_to(store.address, timeout_seconds=5)

    told: list[dict[str, Any]] = [vars(connection._inner), client.connection_pool.connection_kwargs]
    for options in told:
        assert options["retry"]._retries == 0
        assert not options.get("retry_on_error")
    client.close()


async def answer(store: Store, words: Words) -> Any:
    """Send words and return what is said to them, without the time that some functions say beside it."""
    try:
        said = await store.call(*words)
        return [said[0], *said[2:]] if "acquire" in words[1] else said
    except redis.ResponseError as refused:
        return str(refused)


async def everything(store: Store) -> dict[bytes, bytes]:
    keys = sorted(await store.call("KEYS", f"*{store.namespace}*"))
    return {key: await store.call("DUMP", key) for key in keys}
