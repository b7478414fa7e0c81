"""Losing a connection on purpose: an answer that closes the socket instead of being sent."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_EXTENSION = "payments.abort_connection"


class DroppableProtocol(H11Protocol):
    """uvicorn's HTTP protocol that also hands each request the means to lose its connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app = _with_abort(self.app, transport.abort)


class Dropped(Response):
    """An answer that never leaves: the peer sees its connection closed and no byte of a reply."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - it sends nothing
        abort: Callable[[], None] | None = scope.get("extensions", {}).get(_EXTENSION)
        if abort is None:
            raise RuntimeError("this server can't lose a connection: run it with http=DroppableProtocol")
        abort()
        # The server notices the loss a turn later; returning before would make it try to send a reply.
        while (await receive())["type"] != "http.disconnect":
            pass


def _with_abort(app: Any, abort: Callable[[], None]) -> ASGIApp:
    async def droppable(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"] = {**scope.get("extensions", {}), _EXTENSION: abort}
        await app(scope, receive, send)

    return droppable
