"""Gives each invocation context variables of its own, though its task serves many."""

from __future__ import annotations

import contextvars
import types
from collections.abc import Coroutine, Generator
from typing import Any


@types.coroutine
def in_own_context(coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Run a coroutine so that what it sets in context variables is gone when it ends.

    A slot's task lives for as long as the worker; without this a handler would find what the one before it has set,
    perhaps for another tenant.
    """
    run = contextvars.copy_context().run
    try:
        awaited = run(coroutine.send, None)
        while True:
            try:
                got = yield awaited
            except GeneratorExit:
                run(coroutine.close)
                raise
            except BaseException as error:  # noqa: BLE001, it is the coroutine's to handle
                awaited = run(coroutine.throw, error)
            else:
                awaited = run(coroutine.send, got)
    except StopIteration as ended:
        return ended.value
