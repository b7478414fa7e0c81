"""`BlockingClient`: the same calls without await, from any thread, and never inside a running loop."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import anyio
import pytest

from keylane.journal import store as store_module
from keylane.journal.codec import pack
from keylane.journal.errors import CallTimeout, InvocationFailed, StoreError, StoreUnavailable
from keylane.journal.key import partition_of
from keylane.journal.outcomes import Failure, Outcome, Rejected, Succeeded
from keylane.journal.store import Store
from keylane.objects.context import ObjectContext
from keylane.objects.virtual_object import VirtualObject
from keylane.runtime.blocking import BlockingClient
from tests.runtime.hand_owner import HandOwner

KEY = "acme/o-1001"

order = VirtualObject("Order", owner="refunds-oncall", partitions=1)


@order.handler
async def double(ctx: ObjectContext, number: int) -> int:
    del ctx
    return 2 * number


@contextmanager
def owner_in_a_thread(store_url: str, namespace: str, *outcomes: Outcome) -> Generator[None]:
    """Answer the next requests in turn, on a loop in another thread."""

    async def answer() -> None:
        async with Store(store_url, namespace=namespace) as store:
            owner = HandOwner(store, store.space("Order", partition_of(KEY, 1)))
            for outcome in outcomes:
                await owner.end(await owner.next(), outcome)

    thread = threading.Thread(target=anyio.run, args=(answer,))
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_calls_without_await(store_url: str, namespace: str) -> None:
    """Call, send, result, verdict and errors are those of `Client`."""
    failed = Rejected(Failure("E", "no", "declined", None, ""))
    outcomes = (Succeeded(pack(4)), Succeeded(pack(6)), failed)
    with (
        owner_in_a_thread(store_url, namespace, *outcomes),
        BlockingClient(store_url, namespace=namespace) as client,
    ):
        assert client.call(double, KEY, 2, timeout=10) == 4
        handle = client.send(double, KEY, 3)
        assert handle.result(timeout=10) == 6
        assert not handle.accepted(timeout=10).replayed
        assert client.attach(handle.id).result(timeout=10) == 6
        with pytest.raises(InvocationFailed, match="no") as caught:
            client.call(double, KEY, 2, timeout=10)

    assert caught.value.code == "declined"


def test_threads_share_a_client(store_url: str, namespace: str) -> None:
    """Many threads call at once, and each gets its answer."""
    with (
        owner_in_a_thread(store_url, namespace, *[Succeeded(pack(number)) for number in range(20)]),
        BlockingClient(store_url, namespace=namespace) as client,
        ThreadPoolExecutor(8) as threads,
    ):

        def call(number: int) -> int:
            return client.call(double, KEY, number, timeout=10)

        answers = threads.map(call, range(20))

        assert sorted(answers) == list(range(20))


def test_timeout_is_an_error_with_an_id(store_url: str, namespace: str) -> None:
    """As with `Client`."""
    with BlockingClient(store_url, namespace=namespace) as client, pytest.raises(CallTimeout) as caught:
        client.call(double, KEY, 1, timeout=0.05)

    assert (caught.value.invocation_id or "").startswith("Order.0.")


@pytest.mark.anyio
async def test_inside_a_running_loop_it_names_the_client_to_use(store_url: str, namespace: str) -> None:
    """Making, opening and calling it in a loop's thread are refused, with the name of what to use."""
    with pytest.raises(RuntimeError, match="`Client`"):
        BlockingClient(store_url, namespace=namespace)

    made = await anyio.to_thread.run_sync(lambda: BlockingClient(store_url, namespace=namespace))
    with pytest.raises(RuntimeError, match="`Client`"):
        made.__enter__()
    with pytest.raises(RuntimeError, match="`Client`"):
        made.call(double, KEY, 1)


def test_closed_client_says_how_to_open_it(store_url: str, namespace: str) -> None:
    """Before and after its `with` block nothing is sent."""
    client = BlockingClient(store_url, namespace=namespace)
    with pytest.raises(RuntimeError, match="with BlockingClient"):
        client.call(double, KEY, 1)
    with client:
        pass
    with pytest.raises(RuntimeError, match="with BlockingClient"):
        client.call(double, KEY, 1)


def test_a_client_that_is_open_is_not_opened_again(store_url: str, namespace: str) -> None:
    """The thread of the first opening would have nobody who ends it; once it is closed it may be opened again."""
    before = threading.active_count()
    client = BlockingClient(store_url, namespace=namespace)
    with client, pytest.raises(StoreError, match="open already"), client:
        pass
    with client:
        pass

    assert threading.active_count() == before


def test_store_that_is_not_there_is_unavailable_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first contact fails with the same error, and the loop's thread ends."""
    monkeypatch.setattr(store_module, "CONNECT_TIMEOUT_SECONDS", 0.2)
    before = threading.active_count()

    with pytest.raises(StoreUnavailable), BlockingClient("unix:///nowhere/at/all"):
        pass

    assert threading.active_count() == before
