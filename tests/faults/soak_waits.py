"""What the callers of a long run do with invocations that wait: complete their waits, each once, or cancel them.

A process that takes an operation over begins with its first message again: those that were acknowledged are known
by their ids, or by who sent them, and change nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable
from typing import Any

from keylane import Accepted, AlreadyCompleted, Client, Handle, WaitVerdict

from .soak_history import HistoryFile, Operation

#: How many waits each of these invocations has.
EACH = 4
#: To a wait that is not there yet, or whose invocation is over.
LOOK_SECONDS = 0.2


class Waits:
    """Performs the operations of one slot that are about waits.

    Args:
        client: Makes the calls.
        history: Where the slot notes them.
    """

    def __init__(self, client: Client, history: HistoryFile) -> None:
        self._client = client
        self._history = history

    async def complete(self, operation: Operation, timeout: float) -> list[int]:
        """Have an invocation wait, send it what it waits for until each message is acknowledged, and return its answer.

        The value of each message is its number, so the answer shows what was seen, how often, and in which order.
        """
        handle = await self._begun(operation, EACH)
        for number in range(EACH):
            if not self._is_acknowledged(operation, await self._send(operation, handle, number, timeout)):
                return await handle.result(timeout=LOOK_SECONDS)
        return await handle.result(timeout=timeout)

    async def cancel(self, operation: Operation, trail: str, timeout: float) -> list[Any]:
        """Have an invocation sleep for long, cancel it, and return its outcome and what the report says was undone."""
        handle = await self._begun(operation, trail)
        report = await handle.cancel(by=operation.name, reason="a long run", timeout=timeout)
        return [str(report.outcome), list(report.undone)]

    async def _begun(self, operation: Operation, argument: Any) -> Handle[Any]:
        if operation.invocation is None:
            name = "Sleeper" if operation.handler == "nap" else "Waiter"
            handle: Handle[Any] = await self._client.send(
                name, operation.key, operation.handler, argument, idempotency_key=operation.name
            )
            self._history.learned(operation, invocation=handle.id)
            return handle
        return self._client.attach(operation.invocation)

    def _send(self, operation: Operation, handle: Handle[Any], number: int, timeout: float) -> Awaitable[WaitVerdict]:
        if operation.handler == "decide":
            # An awakeable that is not made yet is unknown, and that is the answer to this id for good.
            message = secrets.token_hex(8)
            awakeable = f"{handle.id}.{2 * number}"
            return self._client.resolve_awakeable(
                awakeable, number, message_id=message, by=operation.name, timeout=timeout
            )
        if operation.handler == "collect":
            message = f"{operation.name}-{number}"
            return self._client.signal_object(
                "Waiter", operation.key, "go", number, message_id=message, timeout=timeout
            )
        return handle.signal("go", number, message_id=str(number), timeout=timeout)

    @staticmethod
    def _is_acknowledged(operation: Operation, verdict: WaitVerdict) -> bool:
        match verdict:
            case Accepted():
                return True
            case AlreadyCompleted(by=by):
                return by == operation.name
            case _:
                return False
