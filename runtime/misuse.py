"""What a handler is told that uses its context in a way that no replay could repeat."""

from __future__ import annotations


class ForeignTask(RuntimeError):
    """A durable call was made from a task that the runtime did not make."""

    def __init__(self, call: str) -> None:
        super().__init__(
            f"ctx.{call} was awaited in a task other than the handler's own, so its place in the journal is not "
            "defined: await it in the handler itself, one after the other; asyncio.gather and task groups of other "
            "libraries may run inside a step"
        )


class ContextClosed(RuntimeError):
    """A context was used after its handler had ended."""

    def __init__(self, call: str) -> None:
        super().__init__(f"ctx.{call} was called after the handler had ended; it belongs to no invocation any more")


class NestedStep(RuntimeError):
    """A step was begun while another one of the same invocation had not ended."""

    def __init__(self, name: str, outer: str) -> None:
        super().__init__(
            f"step {name!r} was begun inside step {outer!r}, so its place in the journal is not defined: a step calls "
            "plain functions; await ctx.run in the handler itself, one after the other"
        )


class InterruptedStep(RuntimeError):
    """The handler went on after a step had been cancelled under it."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"step {name!r} was cancelled by a timeout or cancel scope around ctx.run, which a replay could not tell "
            "again: use ctx.run(…, timeout=) instead, whose end is recorded"
        )


class InterruptedWait(RuntimeError):
    """The handler went on after a wait had been cancelled under it."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"ctx.{what} was cancelled by a timeout or cancel scope around it, which a replay could not tell again: "
            "let it end, and bound the work where it is done"
        )
