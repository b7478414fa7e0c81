"""What the fault tests share: a server of their own, and a way to wait for what must come true."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from keylane.journal.embedded import bundled_binary

#: How long a server that lives may take until it answers: one that loads its files has nothing else to say meanwhile,
#: and on a machine that is busy with other things that takes as long as it takes.
START_SECONDS = 60.0
ASK_SECONDS = 10.0
POLL_SECONDS = 0.01
#: How often something is timed at most that is late where the machine has other things to do.
ATTEMPTS = 3
#: The name of our connections, by which faults that cut those of everybody else leave them alone.
OURS = "keylane-tests"
#: Names another server program to run the fault tests on, such as `redis-server`.
VARIABLE = "KEYLANE_TEST_SERVER"


class NeverHappenedError(AssertionError):
    """What a test waited for did not come true in time."""


#: What a check may raise that asks servers, some of which are away, or none of which is yet what it asks for.
AWAY = (redis.RedisError, NeverHappenedError)


async def eventually(check: Callable[[], object], what: str, *, seconds: float = 10.0) -> None:
    """Wait until a check is true; that a server can't be asked at the moment means that it is not true yet.

    Args:
        check: Looks at the outside world: a server, a process, a file.
        what: What must come true, for the message.
        seconds: How long it may take.
    """

    async def checked() -> object:
        return check()

    await eventually_answers(checked, what, seconds=seconds)


async def eventually_answers(check: Callable[[], Awaitable[object]], what: str, *, seconds: float = 10.0) -> None:
    """The same for a check that is awaited."""
    deadline = time.monotonic() + seconds
    while True:
        why = ""
        try:
            if await check():
                return
        except AWAY as error:
            why = f": {error!r}"
        if time.monotonic() > deadline:
            raise NeverHappenedError(f"{what}: not within {seconds:g} s{why}")
        await anyio.sleep(POLL_SECONDS)


def wait_for(check: Callable[[], object], what: str, *, seconds: float = START_SECONDS) -> None:
    """The same where there is no event loop."""
    deadline = time.monotonic() + seconds
    while True:
        why = ""
        try:
            if check():
                return
        except AWAY as error:
            why = f": {error!r}"
        if time.monotonic() > deadline:
            raise NeverHappenedError(f"{what}: not within {seconds:g} s{why}")
        time.sleep(POLL_SECONDS)


async def eventually_aside(check: Callable[[], object], what: str, *, seconds: float = 10.0) -> None:
    """The same for a check that waits for servers: in a thread, so that it does not hold up what is under load here."""

    async def checked() -> object:
        return await anyio.to_thread.run_sync(check)

    await eventually_answers(checked, what, seconds=seconds)


async def quickest(limit_seconds: float, attempt: Callable[[], Awaitable[float]]) -> float:
    """Return the least of up to three times, in seconds: a machine that does other things is late once, a fault always.

    Args:
        limit_seconds: What takes less is not tried again.
        attempt: Does it, and returns how long it took.
    """
    taken = [await attempt()]
    while len(taken) < ATTEMPTS and taken[-1] >= limit_seconds:
        taken.append(await attempt())
    return min(taken)


class StoreServer:
    """A server with a directory and a socket of its own that keeps every write; may be killed and started again."""

    #: What the default user has to say, None for nothing.
    password: str | None = None

    def __init__(self, binary: str | None = None, *options: str) -> None:
        self._binary = binary or os.environ.get(VARIABLE) or str(bundled_binary())
        self._options = options
        self._directory = tempfile.TemporaryDirectory(prefix="kl-faults-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def directory(self) -> Path:
        """Where its socket and its files lie; the path is short, because sockets need that."""
        return Path(self._directory.name)

    @property
    def socket(self) -> Path:
        """Its socket."""
        return self.directory / "s"

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"unix://{self.socket}"

    def __enter__(self) -> Self:
        """Start it."""
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it and remove its directory."""
        self.kill()
        self._directory.cleanup()

    def start(self, *more_options: str) -> None:
        """Start it on what its directory holds, and wait until it answers."""
        self._process = subprocess.Popen(
            [
                self._binary,
                *("--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.directory)),
                *("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--logfile", "log"),
                *self._options,
                *more_options,
            ],
            stdin=subprocess.DEVNULL,
        )
        try:
            wait_for(lambda: not self._is_alive or self.ask("PING"), "the server answers")
        except NeverHappenedError as error:
            raise NeverHappenedError(f"{error}: {self._log_end}") from error
        if not self._is_alive:
            raise NeverHappenedError(f"the server did not start: {self._log_end}")

    @property
    def _is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def _log_end(self) -> str:
        log = self.directory / "log"
        return log.read_text()[-500:] if log.exists() else "it has no log"

    def kill(self) -> None:
        """SIGKILL it; what it had synced stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self.socket.unlink(missing_ok=True)

    @property
    def is_running(self) -> bool:
        """Whether it was started and not killed."""
        return self._process is not None

    def stop(self) -> None:
        """SIGSTOP it: connections stay open and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT it."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process is None:
            raise NeverHappenedError("the server is not running")
        os.kill(self._process.pid, number)

    def ask(self, *words: Any) -> Any:
        """Send one command over a connection of its own and return the raw reply."""
        client: Any = redis.Redis(
            unix_socket_path=str(self.socket),
            password=self.password,
            protocol=2,
            socket_timeout=ASK_SECONDS,
            client_name=OURS,
            # Before a connection has its name, it is cut with those of everybody else.
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        )
        client.response_callbacks.clear()
        with client:
            return client.execute_command(*words)

    def keys(self, pattern: str) -> list[bytes]:
        """Return the keys that match, sorted."""
        return sorted(self.ask("KEYS", pattern))
