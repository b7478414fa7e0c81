"""A TLS connection that is given up is closed at once, whatever the server does."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import anyio
import pytest

from keylane.journal.connections import connection_to
from keylane.journal.urls import Access, Host, ServerAddress, Tls
from tests.faults.guards import made_certificates, needs_openssl

pytestmark = [pytest.mark.anyio, needs_openssl]


class Mute(asyncio.Protocol):
    """The raw side of a server that shakes hands by hand, and then says nothing more, not even farewell."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.shook, self.gone = asyncio.Event(), asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self.shook.is_set():
            return
        self._incoming.write(data)
        try:
            self._ssl.do_handshake()
            self.shook.set()
        except ssl.SSLWantReadError:
            pass
        self._transport.write(self._outgoing.read())

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.gone.set()


async def test_a_server_that_does_not_say_farewell_is_not_waited_for(tmp_path: Path) -> None:
    """It may have stopped; a socket that waits for it would outlive the worker's loop."""
    certificates = made_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    mute = Mute(context)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: mute, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    tls = Tls(str(certificates.ca), check_hostname=False)
    connection = connection_to(ServerAddress(Host("127.0.0.1", port), Access(tls=tls)))

    with anyio.move_on_after(5) as given_up:
        async with anyio.create_task_group() as group:
            group.start_soon(connection.connect)
            await mute.shook.wait()
            group.cancel_scope.cancel()
    assert not given_up.cancelled_caught
    await connection.disconnect(nowait=True)

    with anyio.fail_after(5):
        await mute.gone.wait()
    server.close()
