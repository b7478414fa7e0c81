"""`Replicated(n)`: a write is told of as durable once n replicas have it, as `WAIT` says on the same connection.

`WAIT` blocks its connection, also for those who only read, so calls that have to be durable have one of their own. Its
answer covers everything that the connection wrote before, and nothing that another one wrote: behind a call that may
have been applied before, `witness` writes something over this one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from .library import Library
from .link import Link, LinkLost

logger = logging.getLogger("keylane.commit")

#: How long one WAIT blocks at most; it is asked again.
WAIT_MS: Final = 500
#: How long a single call asks again before it counts as lost; whoever made it sends it again.
CALL_SECONDS: Final = 2.0

AllDone: TypeAlias = Callable[[list[Any]], None]


def too_few(have: int, needed: int) -> str:
    """Say why something does not become durable."""
    return f"only {have} of the {needed} replicas that durability asks for have it"


def witness_words(library: Library, key: bytes) -> tuple[Any, ...]:
    """Return the call that makes a WAIT behind it count."""
    return ("FCALL", library.function("witness"), 1, key)


class _Call:
    """Commands whose replies are held back until enough replicas have what they wrote."""

    __slots__ = ("done", "is_sound", "note", "replies")

    def __init__(self, count: int, done: AllDone, note: Callable[[str | None], None]) -> None:
        self.note = note
        self.replies: list[Any] = [None] * count
        self.done = done
        self.is_sound = False

    def take(self, position: int, reply: Any) -> None:
        """Keep a reply; the replies arrive before that of the WAIT behind them."""
        self.replies[position] = reply

    def witnessed(self, reply: Any) -> None:
        """Take note of whether something was written for sure."""
        self.is_sound = isinstance(reply, int)


class DurableCalls:
    """Calls to one server that are told of once enough replicas have what was written up to them.

    Args:
        link: A connection that is used for nothing else.
        library: The functions.
    """

    def __init__(self, link: Link, library: Library) -> None:
        self._link = link
        self._library = library
        self._calls: list[_Call] = []
        self._replicas = 0

    def send(
        self,
        commands: Sequence[tuple[Any, ...]],
        witness: bytes,
        replicas: int,
        done: AllDone,
        note: Callable[[str | None], None],
    ) -> None:
        """Send commands, and hand over their replies once they are durable.

        Args:
            commands: What to send.
            witness: A key of their slot that is there for nothing else.
            replicas: How many have to have it.
            done: Handed the replies, or in each place `LinkLost`: then the outcome is unknown. Must not raise.
            note: Told what is in the way while too few replicas answer, and None when enough have.
        """
        call = _Call(len(commands), done, note)
        for position, words in enumerate(commands):
            self._link.submit(words, partial(call.take, position))
        self._link.submit(witness_words(self._library, witness), call.witnessed)
        self._replicas = max(self._replicas, replicas)
        self._calls.append(call)
        if len(self._calls) == 1:
            # Everybody who is ready in this turn of the loop shares the question.
            asyncio.get_running_loop().call_soon(self._ask)

    def _ask(self) -> None:
        calls, self._calls = self._calls, []
        self._wait(calls, self._replicas, time.monotonic() + CALL_SECONDS)
        self._replicas = 0

    def _wait(self, calls: list[_Call], replicas: int, deadline: float) -> None:
        self._link.submit(("WAIT", replicas, WAIT_MS), partial(self._answered, calls, replicas, deadline))

    def _answered(self, calls: list[_Call], replicas: int, deadline: float, reply: Any) -> None:
        is_enough = isinstance(reply, int) and reply >= replicas
        why = too_few(reply, replicas) if isinstance(reply, int) else str(reply)
        for call in calls:
            call.note(None if is_enough else why)
        if isinstance(reply, int) and not is_enough and time.monotonic() < deadline:
            self._wait(calls, replicas, deadline)
            return
        for call in calls:
            if is_enough and call.is_sound:
                call.done(call.replies)
            else:
                call.done([_refused_or_lost(each, why) for each in call.replies])


def _refused_or_lost(reply: Any, why: str) -> Any:
    """Return what a caller is told without the replicas: a refusal stays, whatever else was answered is unknown."""
    return reply if isinstance(reply, Exception) else LinkLost(why)
