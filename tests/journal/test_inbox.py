"""The two ends of an inbox, against a real server and through a proxy that loses answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
import redis

from keylane.journal.embedded import bundled_binary
from keylane.journal.errors import Overloaded, SchemaMismatch, StoreFull, StoreUnavailable, WrongKeyType
from keylane.journal.inbox import INBOX_LIMIT, KNOWN, START, comparable, read_after, submit
from keylane.journal.key import new_invocation_id
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.requests import Request, RequestKind
from keylane.journal.store import Store
from tests.faults.harness import StoreServer, eventually
from tests.faults.proxy import Proxy
from tests.plain import plain, server_of


@pytest.fixture
async def store(store_url: str, namespace: str) -> AsyncGenerator[Store]:
    async with Store(store_url, namespace=namespace) as store:
        yield store


@asynccontextmanager
async def behind_proxy(store_url: str, namespace: str, folder: Path) -> AsyncGenerator[tuple[Store, Proxy]]:
    with Proxy(Path(urlsplit(store_url).path), folder / "p") as proxy:
        async with Store(proxy.url, namespace=namespace, answer_timeout_seconds=1.0) as store:
            yield store, proxy


def a_request(handler: str = "refund") -> Request:
    return Request(RequestKind.SEND, new_invocation_id(), handler, "acme/o-1", b"\x01")


async def requests_in(store: Store, space: PartitionSpace) -> list[Request]:
    return [Request.decode(data) for _, data in await read_after(store, space, START, 100)]


@pytest.mark.anyio
async def test_requests_are_read_in_order_of_submission(store: Store) -> None:
    """What one client submits in turn lies in the inbox in that order, also before anybody has owned the partition."""
    space = store.space("Order", 0)
    sent = [a_request(f"h{number}") for number in range(5)]

    entries = [await submit(store, space, request) for request in sent]

    read = await read_after(store, space, START, 100)
    assert [entry for entry, _ in read] == entries == sorted(entries, key=comparable)
    assert [Request.decode(data) for _, data in read] == sent


@pytest.mark.anyio
async def test_reading_goes_on_behind_the_cursor(store: Store) -> None:
    """A reader gets at most what it asked for, and next what came behind the last one."""
    space = store.space("Order", 0)
    entries = [await submit(store, space, a_request()) for _ in range(3)]

    first = await read_after(store, space, START, 2)
    rest = await read_after(store, space, first[-1][0], 2)

    assert [entry for entry, _ in first + rest] == entries
    assert await read_after(store, space, entries[-1], 2) == []


@pytest.mark.anyio
async def test_request_with_a_result_is_known(store: Store, store_url: str) -> None:
    """A request whose id has an outcome already is not put into the inbox a second time."""
    space, request = store.space("Order", 0), a_request()
    plain(store_url, "SET", space.result(request.invocation), b"outcome")

    assert await submit(store, space, request) == KNOWN
    assert await requests_in(store, space) == []


@pytest.mark.anyio
async def test_request_with_an_invocation_stream_is_known(store: Store, store_url: str) -> None:
    """Nor one whose invocation has begun to be written down."""
    space, request = store.space("Order", 0), a_request()
    plain(store_url, "XADD", space.invocation(request.invocation), "*", "r", b"accepted")

    assert await submit(store, space, request) == KNOWN
    assert await requests_in(store, space) == []


@pytest.mark.anyio
async def test_full_inbox_refuses_and_names_a_time(store: Store, store_url: str) -> None:
    """Nobody takes in: the bound is an error with a time to wait, and nothing is written."""
    space = store.space("Order", 0)
    plain(
        store_url, "EVAL", f"for i = 1, {INBOX_LIMIT} do redis.call('XADD', KEYS[1], '*', 'm', '') end", 1, space.inbox
    )

    with pytest.raises(Overloaded) as caught:
        await submit(store, space, a_request())

    assert caught.value.retry_after > 0
    assert plain(store_url, "XLEN", space.inbox) == INBOX_LIMIT


@pytest.mark.anyio
async def test_other_schema_is_refused(store: Store, store_url: str) -> None:
    """A partition that another release has written is left alone."""
    space = store.space("Order", 0)
    plain(store_url, "HSET", space.owner, "schema", "0")

    with pytest.raises(SchemaMismatch) as caught:
        await submit(store, space, a_request())

    assert caught.value.found == "0"
    assert plain(store_url, "EXISTS", space.inbox) == 0


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["owner", "inbox"])
async def test_foreign_key_is_named_and_left_alone(store: Store, store_url: str, name: str) -> None:
    """A key of another type where ours belongs is an error that names it."""
    space = store.space("Order", 0)
    key: bytes = getattr(space, name)
    plain(store_url, "SET", key, "theirs")

    with pytest.raises(WrongKeyType) as caught:
        await submit(store, space, a_request())

    assert caught.value.key == key.decode()
    assert plain(store_url, "GET", key) == b"theirs"


@pytest.mark.anyio
async def test_reading_a_foreign_inbox_names_the_key(store: Store, store_url: str) -> None:
    """The owner is told the same."""
    space = store.space("Order", 0)
    plain(store_url, "SET", space.inbox, "theirs")

    with pytest.raises(WrongKeyType):
        await read_after(store, space, START, 10)


@pytest.mark.anyio
async def test_entry_of_a_foreign_form_has_no_bytes(store: Store, store_url: str) -> None:
    """What somebody else wrote into the inbox reaches the owner as something undecodable."""
    space = store.space("Order", 0)
    plain(store_url, "XADD", space.inbox, "*", "other", "x")

    [(_, data)] = await read_after(store, space, START, 10)

    assert data == b""


@pytest.mark.anyio
async def test_full_memory_refuses_what_comes_in() -> None:
    """Taking in is refused while memory is full, so that what has begun can finish."""
    with StoreServer(str(bundled_binary())) as server:
        async with Store(server.url, namespace="full") as store:
            plain(server.url, "CONFIG", "SET", "maxmemory", "1mb")

            with pytest.raises(StoreFull):
                await submit(store, store.space("Order", 0), a_request())


@pytest.mark.anyio
async def test_lost_library_is_loaded_again(store: Store, store_url: str) -> None:
    """A server that was flushed of its functions gets them back, and the request goes in once."""
    space, request = store.space("Order", 0), a_request()
    plain(store_url, "FUNCTION", "FLUSH")

    await submit(store, space, request)

    assert [each.invocation for each in await requests_in(store, space)] == [request.invocation]


@pytest.mark.one_server
@pytest.mark.anyio
async def test_lost_answer_sends_the_same_id_again_and_says_so(store_url: str, namespace: str, tmp_path: Path) -> None:
    """The connection is cut after the request was applied: it is sent again under its id, marked as such."""
    async with behind_proxy(store_url, namespace, tmp_path) as (store, proxy):
        space, request = store.space("Order", 0), a_request()
        proxy.drop_replies()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(submit, store, space, request)
            await eventually(lambda: plain(store_url, "XLEN", space.inbox) == 1, "the first one is in the inbox")
            proxy.heal()
            proxy.cut()

        # Its other connections may have noticed the cut, or not yet.
        async with Store(store_url, namespace=namespace) as direct:
            first, second = await requests_in(direct, space)

    assert (first.invocation, first.again) == (request.invocation, False)
    assert (second.invocation, second.again) == (request.invocation, True)


@pytest.mark.one_server
@pytest.mark.anyio
async def test_lost_answer_of_a_request_that_was_dealt_with_is_known(
    store_url: str, namespace: str, tmp_path: Path
) -> None:
    """The owner has answered before the request is sent again: it is not put into the inbox a second time."""
    async with behind_proxy(store_url, namespace, tmp_path) as (store, proxy):
        space, request = store.space("Order", 0), a_request()
        verdicts: list[bytes] = []

        async def send() -> None:
            verdicts.append(await submit(store, space, request))

        proxy.drop_replies()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await eventually(lambda: plain(store_url, "XLEN", space.inbox) == 1, "the first one is in the inbox")
            plain(store_url, "SET", space.result(request.invocation), b"outcome")
            proxy.heal()
            proxy.cut()

    assert verdicts == [KNOWN]
    assert plain(store_url, "XLEN", space.inbox) == 1


@pytest.mark.one_server
@pytest.mark.anyio
async def test_store_that_stays_away_is_unavailable_after_the_limit(
    store_url: str, namespace: str, tmp_path: Path
) -> None:
    """The caller's limit bounds the tries, and the error says that the outcome is unknown."""
    async with behind_proxy(store_url, namespace, tmp_path) as (store, proxy):
        proxy.refuse()

        with anyio.fail_after(5), pytest.raises(StoreUnavailable, match="unknown"):
            await submit(store, store.space("Order", 0), a_request(), limit_seconds=0.3)


@pytest.mark.anyio
async def test_submission_announces_its_entry(store: Store, store_url: str) -> None:
    """The owner is told of the new entry on the partition's own channel."""
    space = store.space("Order", 0)
    server = server_of(store_url, ("SPUBLISH", space.inbox_channel))
    with redis.Redis.from_url(server) as client:  # pyright: ignore[reportUnknownMemberType]
        listener: Any = client.pubsub()  # pyright: ignore[reportUnknownMemberType]
        listener.ssubscribe(space.inbox_channel.decode())
        listener.get_message(timeout=5)

        entry = await submit(store, space, a_request())

        message = listener.get_message(timeout=5)
        listener.close()
    assert message["data"] == entry


def test_entry_ids_compare_as_numbers() -> None:
    """The text of an id does not sort, its numbers do."""
    assert comparable(b"9-2") < comparable(b"10-1") < comparable(b"10-11")
    assert comparable(START) < comparable(b"0-1")
