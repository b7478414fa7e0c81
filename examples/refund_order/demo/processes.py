"""The processes of the demo: each with its own log, and none that outlives the demo."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import Process

from ..payments.wire import Behaviour

STOP_LIMIT_S = 8.0
LOG_LINES_SHOWN = 15
PACKAGE = __name__.rsplit(".", 2)[0]
ROOT = Path(__file__).resolve().parents[__name__.count(".")]


class ProcessDied(Exception):
    """A process ended that should have gone on; the message has the end of its log."""

    def __init__(self, name: str, status: int, log: Path) -> None:
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        super().__init__("\n".join([f"{name} ended with status {status}; the end of {log}:", *lines]))


@dataclass(eq=False, slots=True)
class Child:
    """One process that was started here."""

    name: str
    log: Path
    process: Process
    may_end: bool = field(default=False)

    def kill(self) -> None:
        """Kill it with SIGKILL: it gets no chance to tidy up."""
        self.may_end = True
        self.process.kill()

    async def watch(self) -> None:
        """Return when it ends after `kill` or `stop`.

        Raises:
            ProcessDied: It ended by itself.
        """
        status = await self.process.wait()
        if not self.may_end:
            raise ProcessDied(self.name, status, self.log)

    async def stop(self) -> None:
        """Ask it to end, and kill it if it has not within the limit."""
        self.may_end = True
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(STOP_LIMIT_S):
            await self.process.wait()
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self.process.aclose()


class Processes:
    """Starts processes and ends them all when the block ends, however it ends.

    Args:
        logs: The folder for one log file each.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for child in self._children:
                    group.start_soon(child.stop)

    @property
    def process_ids(self) -> list[int]:
        """The ids of all processes that were started, the ended ones too."""
        return [child.process.pid for child in self._children]

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """End the block with `ProcessDied` when one of the processes ends by itself."""
        async with anyio.create_task_group() as group:
            for child in self._children:
                group.start_soon(child.watch)
            yield
            group.cancel_scope.cancel()

    async def payments(self, ledger: Path, behaviour: Behaviour | None = None) -> str:
        """Start a payment service that behaves as it is told, and return its URL."""
        switches = (behaviour or Behaviour()).model_dump_json()
        arguments = ("--ledger", str(ledger), "--behaviour", switches)
        child = await self._start(ledger.stem, f"{PACKAGE}.payments", *arguments, piped=True)
        return await _first_line(child)

    async def worker(self, number: int, store_url: str, environment: Mapping[str, str]) -> Child:
        """Start a worker that hosts the order object."""
        arguments = ("worker", f"{PACKAGE}.app:app", "--store", store_url)
        return await self._start(f"worker-{number}", "keylane", *arguments, environment=environment)

    async def _start(
        self,
        name: str,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        piped: bool = False,
    ) -> Child:
        log = self._logs / f"{name}.log"
        with log.open("wb") as output:
            process = await anyio.open_process(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else output,
                stderr=output,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                # Ctrl-C reaches the demo alone, which then ends its processes in order.
                start_new_session=True,
            )
        child = Child(name, log, process)
        self._children.append(child)
        return child


async def _first_line(child: Child) -> str:
    """Read the line with which a process says that it is ready."""
    output, text = child.process.stdout, b""
    if output is None:
        raise ValueError(f"{child.name} was started without a pipe")
    try:
        while not text.endswith(b"\n"):
            text += await output.receive()
    except anyio.EndOfStream:
        raise ProcessDied(child.name, await child.process.wait(), child.log) from None
    return text.decode().strip()
