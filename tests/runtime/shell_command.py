"""The `keylane` command as its users run it: a process of its own, with a folder to stand in and real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.faults.harness import eventually

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 30.0

#: A short lease keeps the tests fast.
FAST: Mapping[str, str] = {
    "KEYLANE_LEASE_SECONDS": "0.6",
    "KEYLANE_RENEWAL_SECONDS": "0.15",
    "KEYLANE_SWEEP_SECONDS": "0.2",
}


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The last JSON line of stderr."""
        return json.loads(self.err.splitlines()[-1])


def run(*arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None, stdin: str = "") -> Done:
    """Run a command to its end."""
    done = subprocess.run(
        words(arguments),
        cwd=cwd,
        env=environment(env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def words(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "keylane", *arguments]


def environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """Return our environment without settings of whoever runs the tests, and with both roots on the module path."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KEYLANE_")}
    inherited = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), str(ROOT), inherited]))
    return {**clean, "PYTHONPATH": path, **FAST, **(more or {})}


def heed_signals() -> None:
    """Give the signals that end a command their usual meaning."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Command:
    """A command that runs until it is told to end.

    Args:
        arguments: Behind `keylane`.
        cwd: Where it stands.
        env: What is added to the environment.
        pass_fds: Descriptors that it inherits.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._process = subprocess.Popen(
            words(arguments),
            cwd=cwd,
            env=environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
            # Tests may run where interrupts are ignored, as in the background of a shell, and a child inherits that.
            preexec_fn=heed_signals,  # noqa: PLW1509, nothing else is done between fork and exec
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=_collect, args=(stream, into), daemon=True)
            for stream, into in ((self._process.stdout, self.lines), (self._process.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        """Have it killed at the end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()

    @property
    def said(self) -> str:
        """All that it has written so far."""
        return "\n".join([*self.lines, *self.errors])

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    async def says(self, text: str, seconds: float = 15.0) -> None:
        """Wait until it has written something, to stdout or stderr."""
        await eventually(lambda: text in self.said or self.has_ended, f"{text!r}\n{self.said}", seconds=seconds)
        assert text in self.said, f"ended before it said {text!r}:\n{self.said}"

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self._process.pid, number)

    async def ended(self, seconds: float = 15.0) -> int:
        """Wait for its end; returns the exit code."""
        try:
            await eventually(lambda: self.has_ended, "the end", seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.said}") from error
        for reader in self._readers:
            reader.join()
        return self._process.wait()


def _collect(stream: Any, into: list[str]) -> None:
    with stream:
        into.extend(line.rstrip("\n") for line in stream)
