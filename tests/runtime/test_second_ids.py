"""The id that a call gets whose idempotency key was known: whatever is done to it is done to the first call."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from keylane import Accepted, Client, Expired, Handle, InvocationCancelled, Runtime, WaitVerdict
from tests import cancel_catalogue, signals_catalogue
from tests.faults.harness import eventually_answers

pytestmark = pytest.mark.anyio

APP = [signals_catalogue.waiter, cancel_catalogue.sleeper]


@pytest.fixture
async def client(store_url: str, namespace: str) -> AsyncIterator[Client]:
    async with Runtime(APP, store=store_url, namespace=namespace), Client(store_url, namespace=namespace) as client:
        yield client


async def both(client: Client, handler: str) -> tuple[Handle[list[int]], Handle[list[int]]]:
    """Send a call, and again as somebody does who has not heard that it arrived."""
    first, second = [await client.send("Waiter", "acme/one", handler, 2, idempotency_key="the same") for _ in range(2)]
    assert first.id != second.id
    return first, second


async def test_a_signal_to_a_second_id_is_seen_by_the_first_call(client: Client) -> None:
    """And the same message id is the same message under both: nothing is seen twice."""
    first, second = await both(client, "collect")

    for number in range(2):
        for handle in (second, first, second):
            told = await handle.signal("go", number, message_id=str(number), timeout=10)
            assert isinstance(told, Accepted), told

    assert await first.result(timeout=10) == [0, 1]
    assert await second.result(timeout=10) == [0, 1]
    assert isinstance(await second.signal("go", 2, timeout=10), Expired)


async def test_an_awakeable_is_known_by_a_second_id(client: Client) -> None:
    """Its place is the same, whichever id of the call it was written with."""
    first, second = await both(client, "decide")

    for number in range(2):
        told: list[WaitVerdict] = []

        async def is_taken(number: int = number, told: list[WaitVerdict] = told) -> bool:
            told[:] = [await client.resolve_awakeable(f"{second.id}.{2 * number}", number, timeout=10)]
            return isinstance(told[0], Accepted)

        await eventually_answers(is_taken, "it waits")

    assert await first.result(timeout=10) == [0, 1]


async def test_cancelling_a_second_id_cancels_the_first_call(client: Client, tmp_path: object) -> None:
    """Whoever asks again for a call under its key, to take it back, takes back the call that there is."""
    first, second = [
        await client.send("Sleeper", "acme/one", "nap", f"{tmp_path}/trail", idempotency_key="the same")
        for _ in range(2)
    ]

    report = await second.cancel(by="ada", reason="twice", timeout=10)

    assert report.outcome == "cancelled"
    for handle in (first, second):
        with pytest.raises(InvocationCancelled):
            await handle.result(timeout=10)
    assert (await client.inspect("Sleeper", "acme/one")).lane.open == ()
