"""Futures of callers that may have given up meanwhile: the end of what they wait for is handed over once."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

Value = TypeVar("Value")


def resolve(future: asyncio.Future[Value], value: Value, error: BaseException | None) -> None:
    """Hand over a value, or the error that stands for it; a caller that waits no longer is passed over."""
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def resolve_reply(future: asyncio.Future[Any], reply: Any) -> None:
    """Hand over the reply to a command, which may be an exception."""
    resolve(future, reply, reply if isinstance(reply, Exception) else None)
