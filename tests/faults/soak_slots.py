"""The places of a long run: each held by one process after another, which are started, killed, drained and replaced."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread

from .harness import NeverHappenedError
from .proxy import Proxy
from .soak_store import StoreFaults
from .worker_process import ChildProcess, environment_of

#: Short, so that snapshots are made, history is dropped and results expire in the middle of a long run; yet longer than
#: the slowest call takes, where the store goes away again and again.
SETTINGS = {"snapshot_every_deltas": 8, "result_retention_seconds": 180, "partitions": 16}
READY_SECONDS = 90.0
END_SECONDS = 30.0
#: A worker that starts while the store is away may give up, as under any supervisor that starts it again.
STARTS = 10
START_AGAIN_SECONDS = 1.0
#: Whether a process hears no notification at all is drawn at its start.
DEAF_SHARE = 0.25


class Slot:
    """A place in the run, held by one process after another, behind one proxy where the store is one server.

    Args:
        name: Its name; `w…` hosts, `c…` only calls.
        store: The store.
        common: Arguments of every process.
        choose: Decides which of its processes are deaf.
        logs: Where what its processes said on stderr is kept.
    """

    def __init__(self, name: str, store: StoreFaults, common: list[str], choose: random.Random, logs: Path) -> None:
        self.name = name
        self._store = store
        self._proxy = None if store.socket is None else Proxy(store.socket, store.socket.parent / f"p-{name}")
        self.wrong: list[str] = []
        self.is_busy = False
        self._common = common
        self._choose = choose
        self._logs = logs
        self._incarnation = 0
        self._process: ChildProcess | None = None
        #: All whose end nobody has seen yet: of a fault that is broken off, one may be left that has no place any more.
        self._living: list[ChildProcess] = []

    @property
    def process(self) -> ChildProcess:
        """The process that holds the place."""
        assert self._process is not None
        return self._process

    @property
    def hosts(self) -> bool:
        """Whether its processes are workers."""
        return self.name.startswith("w")

    @property
    def wire(self) -> Proxy:
        """The proxy between its processes and the only server."""
        assert self._proxy is not None
        return self._proxy

    @property
    def url(self) -> str:
        """What its processes connect to."""
        return self._store.servers.url if self._proxy is None else self._proxy.url

    def heal(self) -> None:
        """Let everything pass."""
        if self._proxy is not None:
            self._proxy.heal()

    def __enter__(self) -> Self:
        """Open the proxy."""
        if self._proxy is not None:
            self._proxy.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill its processes and close the proxy."""
        for process in [*self._living]:
            process.kill()
            self._keep_log(process)
        if self._proxy is not None:
            self._proxy.__exit__(kind, error, trace)

    async def start(self) -> None:
        """Have a new process in the place, and wait until it is ready."""
        for _ in range(STARTS):
            self._process = self._spawn()
            try:
                await self._process.ready(READY_SECONDS)
            except AssertionError:
                await self._gave_up(self._process)
                await anyio.sleep(START_AGAIN_SECONDS)
            else:
                return
        self.wrong.append(f"{self.name} did not start {STARTS} times in a row")

    async def revive(self) -> None:
        """Have a new process in the place of one that has ended by itself, which none may."""
        if self.process.returncode is not None:
            self.wrong.append(f"{self.name}-{self.process.pid} ended with {self.process.returncode} by itself")
            self._keep_log(self.process)
            await self.start()

    async def kill(self) -> None:
        """SIGKILL the process."""
        process = self.process
        # Its end is not for a loop to wait for that has other faults to cause.
        await anyio.to_thread.run_sync(process.kill)
        self._keep_log(process)

    async def drain(self) -> None:
        """SIGTERM the process and wait until it has ended."""
        await self._drain(self.process)

    async def replace(self) -> None:
        """Start a new process first, and then drain the old one, as a rolling deploy does."""
        old = self.process
        await self.start()
        await self._drain(old)
        self.process.send(signal.SIGUSR2)

    async def _drain(self, process: ChildProcess) -> None:
        process.terminate()
        try:
            returncode = await process.ended(END_SECONDS)
        except NeverHappenedError as error:
            self.wrong.append(f"{self.name}-{process.pid} goes on after SIGTERM: {error}")
            await anyio.to_thread.run_sync(process.kill)
        else:
            if returncode != 0:
                self.wrong.append(f"{self.name}-{process.pid} ended with {returncode} after SIGTERM")
        self._keep_log(process)

    async def _gave_up(self, process: ChildProcess) -> None:
        await anyio.to_thread.run_sync(process.kill)
        self._keep_log(process, "-start")
        # While a killed primary is not back as a replica, nothing could be acknowledged as was asked for.
        known = ("StoreUnavailable", *(("the server has 0 replicas connected",) if self._store.replicas else ()))
        if not any(each in process.stderr for each in known):
            self.wrong.append(f"{self.name}-{process.pid} did not start: {process.stderr[-2000:]}")

    def _spawn(self) -> ChildProcess:
        self._incarnation += 1
        deaf = self._choose.random() < DEAF_SHARE
        arguments = [
            *("--store", self.url, "--slot", self.name, "--incarnation", str(self._incarnation)),
            *self._common,
            *(["--hosts"] if self.hosts else []),
        ]
        process = ChildProcess("tests.faults.soak_main", arguments, environment_of(SETTINGS, "drop" if deaf else ""))
        self._living.append(process)
        return process

    def _keep_log(self, process: ChildProcess, suffix: str = "") -> None:
        """Keep what a process that is over has said."""
        if process in self._living:
            self._living.remove(process)
        (self._logs / f"log-{self.name}-{process.pid}{suffix}").write_text(process.stderr + "\n")
