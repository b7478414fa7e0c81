"""Gives each invocation context variables of its own, though its task serves many."""

from __future__ import annotations

import contextvars
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

from .misuse import NotTheHandlersOwn

if TYPE_CHECKING:
    from .branch_tasks import BranchTasks
    from .branches import Branch
    from .context import ExclusiveContext


@types.coroutine
def in_own_context(
    coroutine: Coroutine[Any, Any, Any], ctx: ExclusiveContext | None = None
) -> Generator[Any, Any, Any]:
    """Run a handler's coroutine so that what it sets in context variables is gone when it ends.

    A slot's task lives for as long as the worker; without this a handler would find what the one before it has set,
    perhaps for another tenant. A handler with branches is also watched, as they are.
    """
    run = contextvars.copy_context().run
    is_closing = False
    try:
        awaited = run(coroutine.send, None)
        while True:
            if ctx is not None and ctx.conductor is not None:
                ctx.conductor.saw_awaiting(ctx.conductor.main, awaited)
            try:
                got = yield awaited
            except GeneratorExit:
                is_closing = True
                run(coroutine.close)
                raise
            except BaseException as error:  # noqa: BLE001, it is the coroutine's to handle
                conductor = None if ctx is None else ctx.conductor
                told = error if conductor is None else conductor.told(conductor.main, error)
                awaited = run(coroutine.throw, told)
            else:
                awaited = run(coroutine.send, got)
    except StopIteration as ended:
        return ended.value
    except GeneratorExit as error:
        if is_closing:
            raise
        raise NotTheHandlersOwn(error) from error


_threads = threading.local()


def is_of_the_runtime() -> bool:
    """Return whether this thread is one in which the runtime runs plain functions."""
    return getattr(_threads, "is_of_the_runtime", False)


def in_thread(run: Callable[[], Any]) -> Any:
    """Run a plain function in its thread; what would take the worker with it ends no more than the function."""
    _threads.is_of_the_runtime = True
    try:
        return run()
    except GeneratorExit as error:
        raise NotTheHandlersOwn(error) from error


@types.coroutine
def watched(coroutine: Coroutine[Any, Any, Any], conductor: BranchTasks, branch: Branch) -> Generator[Any, Any, Any]:
    """Run the coroutine of a branch and tell what it awaits at each pause."""
    try:
        awaited = coroutine.send(None)
        while True:
            conductor.saw_awaiting(branch, awaited)
            try:
                got = yield awaited
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001, it is the coroutine's to handle
                awaited = coroutine.throw(conductor.told(branch, error))
            else:
                awaited = coroutine.send(got)
    except StopIteration as ended:
        return ended.value
