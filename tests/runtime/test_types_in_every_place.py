"""The type table in every position: a value is equal after it was argument, state, step result and output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio.from_thread
import pytest
from anyio.from_thread import BlockingPortal

from keylane import App, Client, ObjectContext, Runtime, SharedContext, VirtualObject
from keylane.objects.handler import Handler
from tests.objects.type_table import TYPE_TABLE, TYPE_TABLE_NAMES, exactly

SEEN: dict[int, Any] = {}


def echo_object() -> tuple[VirtualObject, list[Handler[Any, Any]], list[Handler[Any, Any]]]:
    """Make an object with a writing and a reading handler for each row, whose annotations are the row's type."""
    declared = {f"value{number}": form for number, (_, form, _) in enumerate(TYPE_TABLE)}
    echo = VirtualObject("Echo", owner="tests", state=declared)
    writers = [_writer(echo, number, form) for number, (_, form, _) in enumerate(TYPE_TABLE)]
    readers = [_reader(echo, number, form) for number, (_, form, _) in enumerate(TYPE_TABLE)]
    return echo, writers, readers


def _writer(echo: VirtualObject, number: int, form: Any) -> Handler[Any, Any]:
    async def same(value: Any) -> Any:
        return value

    async def write(ctx: ObjectContext, value: Any) -> Any:
        SEEN[number] = value
        ctx.set(f"value{number}", value)
        from_state = await ctx.get(f"value{number}", form)
        return await ctx.run("same", same, from_state, type=form)

    write.__annotations__.update(value=form, **{"return": form}, ctx=ObjectContext)
    decorated: Any = echo.handler(name=f"write{number}")
    return decorated(write)


def _reader(echo: VirtualObject, number: int, form: Any) -> Handler[Any, Any]:
    async def read(ctx: SharedContext) -> Any:
        return await ctx.get(f"value{number}", form)

    read.__annotations__.update(**{"return": form | None if isinstance(form, type) else form}, ctx=SharedContext)
    decorated: Any = echo.shared(name=f"read{number}")
    return decorated(read)


ECHO, WRITERS, READERS = echo_object()


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with anyio.from_thread.start_blocking_portal("asyncio") as portal:
        yield portal


@pytest.fixture(scope="module")
def clients(portal: BlockingPortal, store_url: str) -> Iterator[dict[str, Client]]:
    """Give a client in the owner's process, and one that goes through the inbox."""
    runtime = Runtime(App([ECHO]), store=store_url, namespace="type-table")
    outside = Client(store_url, namespace="type-table")
    with portal.wrap_async_context_manager(runtime), portal.wrap_async_context_manager(outside):
        yield {"inside": runtime.client, "outside": outside}


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("number", range(len(TYPE_TABLE)), ids=TYPE_TABLE_NAMES)
def test_a_value_is_equal_after_it_was_everywhere(
    portal: BlockingPortal, clients: dict[str, Client], where: str, number: int
) -> None:
    """Argument, state, step result and output, from the owner's process and from another."""
    _, _, value = TYPE_TABLE[number]
    client, key = clients[where], f"{where}/k"

    async def pass_through() -> tuple[Any, Any]:
        returned = await client.call(WRITERS[number], key, value, timeout=20)
        return returned, await client.call(READERS[number], key, timeout=20)

    returned, kept = portal.call(pass_through)

    assert exactly(SEEN[number]) == exactly(value), "the argument"
    assert exactly(returned) == exactly(value), "state, step and output"
    assert exactly(kept) == exactly(value), "the state as a reader sees it"
