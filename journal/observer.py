"""The seam at which tests kill, cut or delay: it is told of every function call that changes the store."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Is called around each send of a state change; the default does nothing.

    `what` is the verb of the function, `partition` its printed name (`Order:3`) and `number` the batch number,
    or 0 for a function without one.
    """

    def before_send(self, what: str, partition: str, number: int) -> None:
        """Run before the bytes are handed to the connection."""
        ...

    def after_answer(self, what: str, partition: str, number: int) -> None:
        """Run when the store's answer has arrived, before anybody else sees it."""
        ...

    def deliver(self, channel: bytes) -> bool:
        """Return whether a pub/sub message on this channel is handed on; tests drop them all."""
        ...


class NoObserver:
    """The observer of production: sees nothing and lets everything pass."""

    __slots__ = ()

    def before_send(self, what: str, partition: str, number: int) -> None:
        """Do nothing."""

    def after_answer(self, what: str, partition: str, number: int) -> None:
        """Do nothing."""

    def deliver(self, channel: bytes) -> bool:
        """Let every message pass."""
        del channel
        return True
