"""What a client works with: it is at hand while the client is open, and in the event loop that it was opened in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ..journal.errors import StoreError

if TYPE_CHECKING:
    from ..journal.store import Store
    from .cancel_client import CancelClient
    from .places import Places
    from .remote import Remote

NOT_OPEN: Final = (
    "this client is not open: use `async with Client(…) as client`, or a runtime's client while that runtime is open"
)
ELSEWHERE: Final = "this client belongs to another event loop: open one in each loop, or a BlockingClient for threads"


class OpenClient:
    """The part of `Client` that its other parts reach the store by, and nothing but what is open.

    A client that is not open would wait for a connection that nobody makes, and one that is used from another loop for
    an answer that nobody there is told of.
    """

    _id: bytes
    _payload_limit_bytes: int
    _store: Store
    _remote: Remote
    _all_places: Places
    _all_cancels: CancelClient
    _loop: asyncio.AbstractEventLoop | None = None

    @property
    def store(self) -> Store:
        """The open store."""
        self._check_use()
        return self._store

    @property
    def remote(self) -> Remote:
        """The way to the owners."""
        self._check_use()
        return self._remote

    @property
    def _places(self) -> Places:
        self._check_use()
        return self._all_places

    @property
    def _cancels(self) -> CancelClient:
        self._check_use()
        return self._all_cancels

    def _check_use(self) -> None:
        """Refuse a use for which nobody would ever have an answer.

        Raises:
            StoreError: The client is not open, or belongs to another event loop.
        """
        if self._loop is None:
            raise StoreError(NOT_OPEN)
        if _running_loop() is not self._loop:
            raise StoreError(ELSEWHERE)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
