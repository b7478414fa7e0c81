"""The receiver as a child of a test, and the way to it for those who ask it for something."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.faults.worker_process import ChildProcess

from .manner import Booking, Manner, read_books

#: Names the receiver's socket to the workers.
VARIABLE = "KEYLANE_TEST_RECEIVER"


class NoAnswerError(ConnectionError):
    """The receiver has closed the connection without an answer."""


class Question:
    """One request, over a connection of its own.

    Args:
        reader: What the receiver says.
        writer: What it is told.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def __aenter__(self) -> Self:
        """Have the connection closed at the end."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self._writer.close()

    def send(self, request: dict[str, Any]) -> None:
        """Send the request; its bytes leave before this returns."""
        self._writer.write(json.dumps(request).encode() + b"\n")

    async def answer(self) -> dict[str, Any]:
        """Wait for the answer.

        Raises:
            NoAnswerError: There is none.
        """
        try:
            line = await self._reader.readline()
        except ConnectionError as error:
            raise NoAnswerError(str(error)) from error
        if not line.endswith(b"\n"):
            raise NoAnswerError("the connection was closed")
        return json.loads(line)


async def connect(socket: str) -> Question:
    """Connect to the receiver; nothing is sent.

    Raises:
        OSError: It is not there.
    """
    return Question(*await asyncio.open_unix_connection(socket))


async def ask(socket: str, request: dict[str, Any]) -> dict[str, Any]:
    """Send one request and return the answer.

    Raises:
        NoAnswerError: There is none.
        OSError: The receiver is not there: nothing was sent.
    """
    async with await connect(socket) as question:
        question.send(request)
        return await question.answer()


class ReceiverProcess(ChildProcess):
    """The receiver, on a folder of its own; may be killed, and started again on what it has written.

    Args:
        folder: Where its socket and its ledger lie; the path is short, because sockets need that.
        manner: How it treats orders about which nothing else is said.
        manners: How it treats the others, from its first moment on.
    """

    def __init__(self, folder: Path, manner: Manner | None = None, manners: Mapping[str, Manner] | None = None) -> None:
        self.socket = str(folder / "r")
        self.ledger = folder / "ledger"
        # That of one that was killed is still there.
        Path(self.socket).unlink(missing_ok=True)
        others = folder / "manners"
        others.write_text(json.dumps({order: each.as_json() for order, each in (manners or {}).items()}))
        said = json.dumps((manner or Manner()).as_json())
        arguments = [
            *("--socket", self.socket, "--ledger", str(self.ledger)),
            *("--manner", said, "--manners", str(others)),
        ]
        super().__init__("tests.faults.effects.receiver_main", arguments, {})

    async def treat(self, order: str, manner: Manner) -> None:
        """Say how an order is treated from now on."""
        await ask(self.socket, {"do": "treat", "order": order, "manner": manner.as_json()})

    async def go(self, orders: Iterable[str]) -> None:
        """Let what is held for orders go on."""
        for order in orders:
            await ask(self.socket, {"do": "go", "order": order})

    @property
    def books(self) -> list[Booking]:
        """What its ledger says."""
        return read_books(self.ledger)

    def times(self, word: str, order: str) -> int:
        """Return how many times something has happened about an order."""
        return sum(line.startswith(f"{word} {order} ") for line in tuple(self.lines))
