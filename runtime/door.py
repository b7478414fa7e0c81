"""The short way into a partition that is owned by the caller's own process, as the client sees it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from ..journal.outcomes import Outcome


class DoorClosed(Exception):
    """The partition is no longer owned here: whether the call was taken in stands in the store, under its id."""


class LocalDoor(Protocol):
    """The owner of one partition in this process, open once it has taken in the whole inbox."""

    @property
    def taken_in(self) -> bytes:
        """Id of the last inbox entry that was taken in."""
        ...

    def is_shared(self, handler_name: str) -> bool:
        """Return whether a handler only reads, so that `read` serves it; an unknown one does not."""
        ...

    def call(
        self,
        handler_name: str,
        key: str,
        payload: bytes | None,
        basis: bytes | None,
        idempotency_key: str | None,
        raw_id: bytes,
        /,
    ) -> asyncio.Future[Outcome]:
        """Take a call in.

        The caller may cancel the future or end it with its timeout, so it is looked at before it is set.

        Returns:
            The outcome once it is durable; the exceptions are those of `journal.errors`, `InvocationPaused` among them,
            and `DoorClosed`.
        """
        ...

    async def read(self, handler_name: str, key: str, payload: bytes | None, raw_id: bytes, /) -> Outcome:
        """Run a shared handler in the caller's own task.

        Raises:
            DoorClosed: The partition is not held here any more.
            UnknownHandler: The type has none of this name.
        """
        ...

    def accepted(self, raw_id: bytes) -> asyncio.Future[None]:
        """Commit the acceptance of a call by itself, so that its id may be given out.

        Returns:
            Done once the acceptance, or the outcome, is durable.
        """
        ...


class LocalRoutes(Protocol):
    """What the runtime tells the client of its own process."""

    def route(self, object_name: str, key_text: str) -> LocalDoor | None:
        """Return the door of the partition that holds a key; None where it is owned elsewhere, or not open yet.

        Raises:
            InvalidKey: The text is no key.
        """
        ...

    def partitions(self, object_name: str) -> int | None:
        """Return how many partitions a hosted type has; None for one that is not hosted here."""
        ...
