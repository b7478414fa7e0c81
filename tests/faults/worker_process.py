"""Processes under test: a worker, or a process that calls, each a Python of its own that real signals reach."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .fault_points import VARIABLE
from .harness import NeverHappenedError, eventually
from .mutants import VARIABLE as MUTANT
from .mutants import Mutant
from .soak_history import HistoryFile, Kind

ROOT = Path(__file__).parents[2]
END_SECONDS = 10.0
#: A process that sleeps as often as this in a row, when it is looked at, is at rest.
LOOKS_AT_REST = 30

#: A short lease keeps the tests fast; everything that is derived from it shrinks with it.
FAST: Mapping[str, object] = {
    "lease_seconds": 0.6,
    "renewal_seconds": 0.15,
    "sweep_seconds": 0.2,
    "drain_limit_seconds": 5,
}


class ChildProcess:
    """A Python child that says `ready` on a line of its own.

    Args:
        module: What it runs.
        arguments: Its arguments.
        environment: What is added to ours.
        is_told: Whether it reads what `tell` says.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], *, is_told: bool = False
    ) -> None:
        inherited = os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), str(ROOT), inherited]))
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, **environment},
            stdin=subprocess.PIPE if is_told else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.lines: list[str] = []
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._collect, args=(stream, into), daemon=True)
            for stream, into in ((self._process.stdout, self.lines), (self._process.stderr, self._errors))
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
        self.kill()

    @staticmethod
    def _collect(stream: Any, into: list[str]) -> None:
        with stream:
            into.extend(line.decode(errors="replace").rstrip("\n") for line in stream)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def stderr(self) -> str:
        """What it has written to stderr so far."""
        return "\n".join(self._errors)

    @property
    def returncode(self) -> int | None:
        """How it ended, None while it runs; minus the signal that killed it."""
        return self._process.poll()

    @property
    def is_stopped(self) -> bool:
        """Whether SIGSTOP has taken effect."""
        return self._stat()[0] == "T"

    @property
    def cpu_seconds(self) -> float:
        """User and system time that it has used so far."""
        fields = self._stat()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _stat(self) -> list[str]:
        # The name of the program stands in brackets and may hold anything.
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()

    async def ready(self, seconds: float = 30.0) -> None:
        """Wait until it says that it is ready.

        Raises:
            AssertionError: It ended or kept silent; with its stderr.
        """
        try:
            await eventually(lambda: "ready" in self.lines or self.returncode is not None, "ready", seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.stderr}") from error
        if "ready" not in self.lines:
            raise AssertionError(f"ended with {self.returncode} before it was ready\n{self.stderr}")

    async def ended(self, seconds: float = END_SECONDS) -> int:
        """Wait until it has ended and everything that it wrote is read; returns how."""
        try:
            await eventually(lambda: self.returncode is not None, f"the end of {self.pid}", seconds=seconds)
        except NeverHappenedError as error:
            raise NeverHappenedError(f"{error}\n{self.stderr}") from error
        for reader in self._readers:
            reader.join(END_SECONDS)
        returncode = self.returncode
        if returncode is None:
            raise AssertionError("it runs again")
        return returncode

    async def rests(self, seconds: float = END_SECONDS) -> None:
        """Wait until it has nothing left to do but what it does from time to time.

        On a busy machine, who wants to run and has no processor is seen running: only one that waits is asleep.
        """
        looks = [False]

        def is_asleep() -> bool:
            looks.append(self._stat()[0] == "S")
            return all(looks[-LOOKS_AT_REST:])

        await eventually(is_asleep, f"{self.pid} rests", seconds=seconds)

    def kill(self) -> None:
        """SIGKILL it and take it off the process table."""
        if self.returncode is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        for reader in self._readers:
            reader.join(END_SECONDS)

    async def stop(self) -> None:
        """SIGSTOP it and wait until it stands."""
        os.kill(self.pid, signal.SIGSTOP)
        await eventually(lambda: self.is_stopped, f"{self.pid} stands")

    def go_on(self) -> None:
        """SIGCONT it."""
        os.kill(self.pid, signal.SIGCONT)

    def tell(self, line: str) -> None:
        """Write a line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def terminate(self) -> None:
        """SIGTERM it: it drains and ends."""
        self.send(signal.SIGTERM)

    def send(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)


class WorkerProcess(ChildProcess):
    """A worker that hosts an app.

    Args:
        store_url: The store.
        namespace: The test's namespace.
        app: `module:attribute`.
        settings: Settings by name, over those of `FAST`.
        faults: What goes wrong inside, as `fault_points` reads it.
        durability: What its answers promise.
        temporary: Its folder for temporary files: with one of its own, others take it for a worker of another machine,
            and wait for its lease when it dies.
    """

    def __init__(
        self,
        store_url: str,
        namespace: str,
        *,
        app: str = "tests.objects_catalogue:app",
        settings: Mapping[str, object] | None = None,
        faults: str = "",
        durability: str = "fsync",
        temporary: Path | None = None,
    ) -> None:
        arguments = ["--store", store_url, "--namespace", namespace, "--app", app, "--durability", durability]
        environment = environment_of(settings, faults)
        if temporary is not None:
            environment["TMPDIR"] = str(temporary)
        super().__init__("tests.faults.worker_main", arguments, environment)


class PuppetProcess(ChildProcess):
    """A worker that makes the calls that it is told to make, and notes their history.

    Args:
        store_url: The store.
        namespace: The test's namespace.
        history: The file of the history.
        mutant: Which safeguard it lacks.
        faults: What goes wrong inside, as `fault_points` reads it.
    """

    def __init__(
        self, store_url: str, namespace: str, history: Path, *, mutant: Mutant = Mutant.NONE, faults: str = ""
    ) -> None:
        arguments = ["--store", store_url, "--namespace", namespace, "--history", str(history)]
        environment = environment_of(None, faults) | {MUTANT: mutant}
        super().__init__("tests.faults.puppet_main", arguments, environment, is_told=True)
        self.history = HistoryFile(history)

    def call(self, kind: Kind, key: str) -> None:
        """Have it make a call."""
        self.tell(f"{kind} {key}")

    @property
    def answered(self) -> int:
        """How many of its calls have an answer."""
        return sum(each.is_answered for each in self.history.read())


class CallerProcess(ChildProcess):
    """A process that calls one handler many times at once, starts when told, and prints what it was answered.

    Args:
        store_url: The store.
        namespace: The test's namespace.
        call: Object type, key, handler and argument, if it takes one.
        times: How many calls, all at once.
        hosts: Whether it is a worker as well, so that some calls stay inside it.
        settings: Settings by name, over those of `FAST`.
        faults: What goes wrong inside, as `fault_points` reads it.
        timeout_seconds: How long each call may take.
    """

    def __init__(
        self,
        store_url: str,
        namespace: str,
        call: tuple[str, str, str] | tuple[str, str, str, object],
        *,
        times: int = 1,
        hosts: bool = False,
        settings: Mapping[str, object] | None = None,
        faults: str = "",
        timeout_seconds: float = 10.0,
    ) -> None:
        object_name, key, handler, *argument = call
        arguments = [
            *("--store", store_url, "--namespace", namespace, "--object", object_name, "--key", key),
            *("--handler", handler, "--arguments", json.dumps(argument), "--times", str(times)),
            *("--timeout", str(timeout_seconds)),
            *(["--hosts"] if hosts else []),
        ]
        super().__init__("tests.faults.caller_main", arguments, environment_of(settings, faults))

    def start(self) -> None:
        """Let it call."""
        os.kill(self.pid, signal.SIGUSR1)

    async def answers(self, seconds: float = 20.0) -> list[Any]:
        """Return what each call was answered: a value, or `{"error": code, "message": …}`."""
        returncode = await self.ended(seconds)
        if returncode != 0:
            raise AssertionError(f"the caller ended with {returncode}\n{self.stderr}")
        return json.loads(self.lines[-1])


def environment_of(settings: Mapping[str, object] | None, faults: str) -> dict[str, str]:
    """Return the environment variables of settings and faults."""
    chosen = {**FAST, **(settings or {})}
    return {f"KEYLANE_{name.upper()}": str(value) for name, value in chosen.items()} | {VARIABLE: faults}
