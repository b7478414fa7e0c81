"""Calls of counters whose history is kept, made from whichever process, with every error read as what it means."""

from __future__ import annotations

import itertools
import time

from keylane import CallTimeout, Client, Draining, KeylaneError, Overloaded, StoreUnavailable

from .soak_history import HistoryFile, Kind, Operation

TIMEOUT_SECONDS = 8.0


class Recorder:
    """Calls through a client and notes what is seen.

    Args:
        client: Makes the calls.
        history: Where they are noted.
        name: Whose calls these are; each gets a number behind it.
    """

    def __init__(self, client: Client, history: HistoryFile, name: str) -> None:
        self._client = client
        self._history = history
        self._name = name
        self._numbers = itertools.count(1)

    async def add(self, key: str) -> Operation:
        """Add one to a counter."""
        return await self.call(Kind.ADD, key)

    async def read(self, key: str) -> Operation:
        """Read a counter."""
        return await self.call(Kind.READ, key)

    async def call(self, kind: Kind, key: str) -> Operation:
        """Make one call, and return what is known of it; it never raises."""
        handler, *argument = ("add", 1) if kind is Kind.ADD else ("get",)
        operation = Operation(f"{self._name}-{next(self._numbers)}", kind, key, handler, time.monotonic())
        self._history.sent(operation)
        try:
            answer = await self._client.call("Counter", key, handler, *argument, timeout=TIMEOUT_SECONDS)
        except (Draining, Overloaded) as error:
            self._history.learned(operation, refused=repr(error))
        except (CallTimeout, StoreUnavailable) as error:
            self._history.learned(operation, given_up=repr(error))
        except KeylaneError as error:
            self._history.learned(operation, failed=repr(error))
        else:
            self._history.answered(operation, answer)
        return operation
