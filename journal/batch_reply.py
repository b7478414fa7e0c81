"""What a server's reply to a batch means for it."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, Final

import redis.exceptions

from .link import LinkLost

_NOT_APPLIED = (
    "LOADING", "BUSY", "READONLY", "TRYAGAIN", "MOVED", "ASK", "CLUSTERDOWN", "MASTERDOWN", "MISCONF",
    "NOREPLICAS", "GAP", "ERR Function not found", "Function not found",
)  # fmt: skip


#: Refusals that are about the slot of one partition, not about the server.
OF_THE_SLOT: Final = (
    redis.exceptions.AskError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
)


class Answer(Enum):
    """What a reply to a batch means for it."""

    APPLIED = auto()
    SEND_AGAIN = auto()
    FULL = auto()
    FENCED = auto()
    REFUSED = auto()


def classify(reply: Any) -> Answer:
    """Decide what a reply or exception means.

    Args:
        reply: The partition time of an applied batch, or the exception that the link handed over.
    """
    match reply:
        case int():
            return Answer.APPLIED
        case LinkLost() | redis.exceptions.ConnectionError():
            return Answer.SEND_AGAIN
        case redis.exceptions.ResponseError():
            return _classify_error(reply)
        case _:
            return Answer.REFUSED


def _classify_error(error: redis.exceptions.ResponseError) -> Answer:
    text = str(error)
    if text.startswith("FENCED"):
        return Answer.FENCED
    if isinstance(error, redis.exceptions.OutOfMemoryError) or text.startswith("OOM"):
        return Answer.FULL
    retried = (
        redis.exceptions.ReadOnlyError
        | redis.exceptions.TryAgainError
        | redis.exceptions.AskError
        | redis.exceptions.ClusterDownError
    )
    if isinstance(error, retried) or text.startswith(_NOT_APPLIED):
        return Answer.SEND_AGAIN
    return Answer.REFUSED


def is_gap(reply: Any) -> bool:
    """Return whether a batch does not follow the last one that was applied."""
    return str(reply).startswith("GAP")
