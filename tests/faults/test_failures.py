"""Handlers that fail, in one process: what is retried, what is kept, and what a caller is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from keylane import Client, InvocationFailed, InvocationPaused, PayloadTooLarge, Runtime
from tests.objects_catalogue import (
    Colour,
    Item,
    Typed,
    add,
    add_blocking,
    app,
    echo,
    fail,
    flaky,
    get,
    keep,
    last,
    marks,
    never_works,
    three_blocking_steps,
    values,
)

from .harness import StoreServer

pytestmark = pytest.mark.anyio

KEY = "acme/one"


@pytest.fixture
async def client(shared_server: StoreServer, namespace: str) -> AsyncIterator[Client]:
    async with Runtime(app, store=shared_server.url, namespace=namespace) as runtime:
        yield runtime.client


async def test_a_terminal_error_reaches_the_caller_with_all_its_parts(client: Client) -> None:
    """Message, code and details cross the journal; nothing is retried."""
    with pytest.raises(InvocationFailed) as failed:
        await client.call(fail, KEY, "no stock", timeout=10)

    assert failed.value.message == "no stock"
    assert failed.value.code == "asked-to"
    assert failed.value.details == {"key": KEY}


async def test_a_retried_handler_ends_with_the_writes_of_its_last_attempt_only(client: Client, trail: Path) -> None:
    """Each attempt starts from the durable state, so a write is never counted twice."""
    assert await client.call(flaky, KEY, str(trail), timeout=10) == 3
    assert await client.call(values, KEY, timeout=10) == [1, None]


async def test_spent_retries_pause_and_the_caller_is_told_at_once(client: Client, trail: Path) -> None:
    """As many attempts as the policy allows, then a pause with reason, owner and id; the lane stands visibly."""
    with pytest.raises(InvocationPaused) as paused:
        await client.call(never_works, KEY, str(trail), timeout=10)

    assert paused.value.reason == "retries_spent"
    assert paused.value.owner == "catalogue"
    assert "it never works" in paused.value.detail
    assert paused.value.invocation_id is not None
    assert len(marks(trail)) == 2


async def test_a_resumed_invocation_gets_its_retries_anew(client: Client, trail: Path) -> None:
    """Whoever resumes says that another try is worth it: the policy's attempts are counted from the start."""
    with pytest.raises(InvocationPaused) as paused:
        await client.call(never_works, KEY, str(trail), timeout=10)
    invocation_id = paused.value.invocation_id
    assert invocation_id is not None

    await client.resume(invocation_id, reason="repaired", by="ada", timeout=10)
    with pytest.raises(InvocationPaused):
        await client.attach(invocation_id).result(timeout=10)

    assert len(marks(trail)) == 4


async def test_plain_functions_do_what_coroutines_do(client: Client, trail: Path) -> None:
    """State, lane and steps are the same for handlers in threads."""
    assert await client.call(add, KEY, 1, timeout=10) == 1
    assert await client.call(add_blocking, KEY, 10, timeout=10) == 11
    assert await client.call(get, KEY, timeout=10) == 11

    done = await client.call(three_blocking_steps, KEY, str(trail), timeout=10)

    assert [token for _, token in marks(trail)] == done


async def test_a_result_that_is_too_large_fails_that_invocation_only(client: Client) -> None:
    """The caller is told which value was too large, and the lane goes on."""
    with pytest.raises((PayloadTooLarge, InvocationFailed), match="1,048,576"):
        await client.call(keep, KEY, 2_000_000, timeout=10)

    assert await client.call(keep, KEY, 1_000, timeout=10) == 1_000


async def test_typed_values_pass_through_state_and_steps_unchanged(client: Client) -> None:
    """Input, step result, state and output are equal to what was given."""
    item = Item(amount=Decimal("10.00"), note=None)
    value = Typed(
        items=[item, Item(amount=Decimal("0.1"), note="x")],
        by_name={"one": item},
        colour=Colour.BLUE,
        at=datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC),
        raw=b"\x00\xff",
        large=2**70,
        pair=(1, "two"),
        kinds={1, 2, 3},
    )

    assert await client.call(echo, KEY, value, timeout=10) == value
    assert await client.call(last, KEY, timeout=10) == value
