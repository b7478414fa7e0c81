"""What a server's refusal means: which function said what, which node has the slot, and which error of ours it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis.exceptions

from .errors import StoreError, StoreFull, StoreUnavailable, WrongKeyType

_UNAVAILABLE = ("LOADING", "BUSY", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "MISCONF", "NOREPLICAS", "UNBLOCKED")
#: What the client library knows by name; a function's own code may begin with the same letters (MOVED_ON).
_UNAVAILABLE_KINDS = (
    redis.exceptions.ReadOnlyError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
    redis.exceptions.AskError,
)
#: What a caller is told of a partition whose slot is between two nodes: it goes on by itself.
SLOT_IS_MOVING = "its slot is being moved to another node of the cluster, and the partition stands still until it is"


class Refusal(Exception):
    """A function's refusal, as the code and the text that its head describes."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        """Return the refusal as the function said it."""
        return f"{self.code} {self.text}".rstrip()


@dataclass(frozen=True, slots=True)
class Redirect:
    """A node's word that it does not serve a slot, or not the keys of it that were asked for.

    Args:
        slot: The slot.
        host: Where it is served; empty for the host that was asked.
        port: The port there.
        is_ask: Whether only this command belongs there, as the slot is still on its way.
    """

    slot: int
    host: str
    port: int
    is_ask: bool


def redirect_of(reply: object) -> Redirect | None:
    """Return the redirection that a reply is, None for any other reply."""
    if not isinstance(reply, redis.exceptions.AskError):
        return None
    told: Any = reply
    is_ask = not isinstance(reply, redis.exceptions.MovedError)
    return Redirect(int(told.slot_id), str(told.host), int(told.port), is_ask)


def is_missing_function(error: Exception) -> bool:
    """Return whether the server lacks our library, as after a flush or on a node that is new in a cluster."""
    return "Function not found" in str(error)


def refusal(error: redis.exceptions.ResponseError) -> Refusal:
    """Split a function's refusal into code and text."""
    code, _, text = str(error).partition(" ")
    return Refusal(code, text)


def store_error(error: Exception, url: str) -> Exception:
    """Translate an exception of the client library; a refusal of the server that is not about the store stays."""
    if isinstance(error, redis.exceptions.OutOfMemoryError) or str(error).startswith("OOM"):
        return StoreFull(str(error))
    if isinstance(error, redis.exceptions.ResponseError):
        is_unavailable = isinstance(error, _UNAVAILABLE_KINDS) or str(error).startswith(_UNAVAILABLE)
        return StoreUnavailable(url, why_unavailable(error)) if is_unavailable else error
    if isinstance(error, StoreError):
        return error
    return StoreUnavailable(url, str(error))


def key_error(error: Exception, key: bytes, url: str) -> StoreError:
    """Return what a refused or lost command about a key means: where its type is no reason, the server's word is."""
    if str(error).startswith("WRONGTYPE"):
        return WrongKeyType(key.decode(errors="replace"))
    named = store_error(error, url)
    return named if isinstance(named, StoreError) else StoreUnavailable(url, str(error))


def said(error: Exception | None) -> str:
    """Return what went wrong in the words of the error; a time that ran out has none."""
    return str(error or "") or "no answer"


def why_unavailable(error: Exception) -> str:
    """Say why a store does not take a command now, in words that tell what it waits for."""
    match error:
        case redis.exceptions.TryAgainError() | redis.exceptions.AskError():
            return SLOT_IS_MOVING
        case redis.exceptions.ClusterDownError():
            return f"the cluster does not serve this slot now: {error}"
        case redis.exceptions.ReadOnlyError():
            return f"the server is a replica now: {error}"
        case _:
            return str(error)
