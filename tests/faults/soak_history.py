"""What the callers of a long run noted of their calls: one line before a call is sent, one for whatever comes of it.

The lines survive the process that wrote them, so that its successor can go on asking for what is still open, and the
times are those of one clock of the machine, so that calls of different processes can be put in order.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any


class Kind(StrEnum):
    """What was called."""

    ADD = "add"
    READ = "read"
    STEPS = "steps"
    FLAKY = "flaky"
    WAITS = "waits"
    CANCEL = "cancel"


@dataclass(slots=True)
class Operation:
    """One call, over all attempts to get an answer to it.

    Args:
        name: Its own name, also its idempotency key if it has one.
        kind: What was called.
        key: The object's key.
        handler: The handler.
        sent: When it was sent first.
        is_idempotent: Whether it is asked again, under its idempotency key, until there is an answer.
        invocation: Its id, once one was given out: from then on it is durable, and must come to an end.
        answered: When its answer came.
        value: Its answer.
        refused: The error that says that it never ran.
        failed: An error that no call of these may end with.
        given_up: The error after which nobody can know whether it ran.
    """

    name: str
    kind: Kind
    key: str
    handler: str
    sent: float
    is_idempotent: bool = False
    invocation: str | None = None
    answered: float | None = None
    value: Any = None
    refused: str | None = None
    failed: str | None = None
    given_up: str | None = None

    @property
    def is_answered(self) -> bool:
        """Whether it has an answer."""
        return self.answered is not None

    @property
    def is_open(self) -> bool:
        """Whether there is a way to learn its answer, and nobody has learned it yet."""
        return (
            self.answered is None
            and not (self.refused or self.failed or self.given_up)
            and (self.is_idempotent or self.invocation is not None)
        )

    @property
    def may_have_run(self) -> bool:
        """Whether it may have run without anybody having seen its answer."""
        return not self.is_answered and self.refused is None and self.kind is not Kind.READ

    def __str__(self) -> str:
        told = (
            f"answered {self.value!r} at {self.answered:.6f}" if self.answered is not None else self._without_answer()
        )
        return f"{self.name} ({self.kind} {self.handler} {self.key}, sent {self.sent:.6f}, {told})"

    def _without_answer(self) -> str:
        return self.refused or self.failed or self.given_up or f"no answer, id {self.invocation}"


class HistoryFile:
    """The history of one slot of callers, to which each of its processes in turn appends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def sent(self, operation: Operation) -> None:
        """Note a call before it is sent."""
        plain = {field.name: getattr(operation, field.name) for field in fields(operation)}
        self._write({name: value for name, value in plain.items() if value is not None})

    def learned(self, operation: Operation, **changes: Any) -> None:
        """Note what has become of a call."""
        for name, value in changes.items():
            setattr(operation, name, value)
        self._write({"name": operation.name, **changes})

    def answered(self, operation: Operation, value: Any) -> None:
        """Note an answer, that came just now."""
        self.learned(operation, answered=time.monotonic(), value=value)

    def read(self) -> list[Operation]:
        """Return all calls that were noted so far; a line that its process could not finish is left out."""
        operations: dict[str, Operation] = {}
        for noted in self._lines():
            operation = operations.get(noted["name"])
            if operation is None:
                noted["kind"] = Kind(noted["kind"])
                operations[noted["name"]] = Operation(**noted)
            else:
                for name, value in noted.items():
                    setattr(operation, name, value)
        return list(operations.values())

    def _lines(self) -> Iterator[dict[str, Any]]:
        for line in self._path.read_bytes().splitlines() if self._path.exists() else ():
            with contextlib.suppress(ValueError):
                yield json.loads(line)

    def _write(self, facts: dict[str, Any]) -> None:
        # A line is there whole when its process is killed after it; one that was torn ends where the next one begins.
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(self._descriptor, b"\n" + json.dumps(facts).encode())
