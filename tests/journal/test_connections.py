"""Connections of redis-py, as ours are."""

from __future__ import annotations

import asyncio
import gc
from contextlib import ExitStack
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from keylane.journal.connections import connection_to
from keylane.journal.urls import SocketAddress, parse_store_url
from tests.faults.harness import StoreServer


@pytest.mark.anyio
@pytest.mark.one_server
async def test_the_end_of_a_broken_connection_is_never_reported_as_overlooked() -> None:
    """Whoever reads from it is told of it; asyncio would report it once more, in the log of a service."""
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    usual = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    with ExitStack() as at_end:
        at_end.callback(loop.set_exception_handler, usual)
        server = at_end.enter_context(StoreServer())
        address = parse_store_url(server.url)
        assert isinstance(address, SocketAddress)
        connection: Any = connection_to(address)
        await connection.connect()
        transport = connection._writer.transport
        protocol = transport.get_protocol()
        transport._force_close(BrokenPipeError("gone"))
        await connection.disconnect(nowait=True)
        await anyio.lowlevel.checkpoint()

        # Whether it is taken apart before what belongs to it is up to the collector.
        assert protocol._closed.done()
        del protocol._closed
        gc.collect()

    assert reported == []
