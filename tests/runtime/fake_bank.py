"""A receiver in the test's own process: it keeps books, and does what the test says with the next calls."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
from pydantic import BaseModel

from keylane import NotSent, Rejected


class Terms(BaseModel):
    """What is to be paid back."""

    amount: int
    note: str = ""


class Receipt(BaseModel):
    """What the bank answers."""

    id: str
    amount: int


@dataclass
class Bank:
    """Its books and its whims.

    Args:
        is_deduplicating: Whether it takes an operation id once.
    """

    is_deduplicating: bool = False
    #: What was done, by operation id: each payment once more.
    books: dict[str, list[Receipt]] = field(default_factory=dict[str, list[Receipt]])
    #: How often each operation id was sent, and asked for.
    sent: Counter[str] = field(default_factory=Counter[str])
    asked: Counter[str] = field(default_factory=Counter[str])
    #: What becomes of the next calls and look-ups; then all goes well.
    whims: deque[str] = field(default_factory=deque[str])
    answers: deque[str] = field(default_factory=deque[str])
    #: Calls that a `wait` holds up, and lets go on.
    waiting: anyio.Event = field(default_factory=anyio.Event)
    gate: anyio.Event = field(default_factory=anyio.Event)
    #: Called as a call arrives.
    on_call: Callable[[str], Awaitable[None]] | None = None

    def empty(self) -> None:
        """Begin anew."""
        self.books.clear()
        self.sent.clear()
        self.asked.clear()
        self.whims.clear()
        self.answers.clear()
        self.waiting, self.gate, self.on_call = anyio.Event(), anyio.Event(), None

    async def pay(self, operation_id: str, terms: Terms) -> Receipt:
        """Pay, or not."""
        self.sent[operation_id] += 1
        if self.on_call is not None:
            await self.on_call(operation_id)
        match self.whims.popleft() if self.whims else "pay":
            case "refuse" if not (self.is_deduplicating and operation_id in self.books):
                raise Rejected("no such customer")
            case "unreachable":
                raise NotSent("connection refused")
            case "lose the request":
                raise ConnectionError("connection lost")
            case "lose the answer":
                self._enter(operation_id, terms)
                raise ConnectionError("connection lost")
            case "hang":
                await anyio.sleep_forever()
            case "wait":
                await self._wait()
            case "wait, then lose the answer":
                await self._wait()
                self._enter(operation_id, terms)
                raise ConnectionError("connection lost")
            case _:
                pass
        return self._enter(operation_id, terms)

    async def _wait(self) -> None:
        self.waiting.set()
        await self.gate.wait()

    def _enter(self, operation_id: str, terms: Terms) -> Receipt:
        done = self.books.setdefault(operation_id, [])
        if not (done and self.is_deduplicating):
            done.append(Receipt(id=f"{operation_id}#{len(done) + 1}", amount=terms.amount))
        return done[0]

    async def find(self, operation_id: str, terms: Terms) -> Receipt | None:
        """Say what was done."""
        del terms
        self.asked[operation_id] += 1
        match self.answers.popleft() if self.answers else "look":
            case "lose the answer":
                raise ConnectionError("connection lost")
            case "not yet":
                return None
            case _:
                done = self.books.get(operation_id)
                return done[0] if done else None

    def payments(self, operation: str) -> int:
        """How often an operation of a handler was done."""
        return sum(len(done) for each, done in self.books.items() if each.endswith(f".{operation}"))

    def calls(self, operation: str) -> int:
        """How often it was sent."""
        return sum(count for each, count in self.sent.items() if each.endswith(f".{operation}"))

    def questions(self, operation: str) -> int:
        """How often the bank was asked what became of it."""
        return sum(count for each, count in self.asked.items() if each.endswith(f".{operation}"))
