"""Who this worker is, and the lock by which workers of the same machine know at once that it died.

A worker holds an exclusive flock on a file of its own for as long as its process lives; the kernel lets go of it when
the process ends, however it ends, and not when it is merely stopped. Whoever gets a shared lock on the file of another
worker knows that this worker is dead. A file that is not there proves nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import secrets
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

logger = logging.getLogger("keylane.presence")

#: Files of dead workers are swept when they are older than this.
STALE_FILE_SECONDS = 3600.0
#: At most this many are looked at when a worker starts.
SWEEP_FILES = 1000

_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def new_worker_identity() -> str:
    """Return a name that is new at each process start: host and process number for people, the rest against chance."""
    host = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-")[:32] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(8)}"


class Presence:
    """The proof that this process lives, for workers of the same machine.

    Args:
        worker: This worker's identity.
        folder: Where the files are; by default a folder of this user in the system's temporary folder.

    Attributes:
        machine: Equal texts mean the same boot of the same machine and the same folder; empty where no proof is
            possible, and then others wait for the lease.
    """

    def __init__(self, worker: str, *, folder: Path | None = None) -> None:
        self.worker = worker
        self.machine = ""
        self._folder = (folder or Path(tempfile.gettempdir()) / f"keylane-{os.getuid()}").absolute()
        self._boot = _boot_digest()
        self._descriptor: int | None = None

    def open(self) -> None:
        """Take the lock; where that is not possible, `machine` stays empty and the log says why."""
        try:
            self._prepare_folder()
            self._sweep()
            self._lock()
        except OSError as error:
            logger.warning("no presence file in %s: others will wait for the lease if this worker dies: %s",
                           self._folder, error)  # fmt: skip
            return
        self.machine = f"{self._boot}:{self._folder}"

    def close(self) -> None:
        """Remove the file and let go of it. Call it after the partitions were handed over."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            self._file(self.worker).unlink()
        os.close(self._descriptor)
        self._descriptor = None

    def abandon(self) -> None:
        """Let go of the file as a process does that is killed: it stays behind, and proves that its owner is dead."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def same_machine_dead(self, machine: str, worker: str) -> bool:
        """Return whether a worker is known to be dead: it ran here, and its lock is free.

        Args:
            machine: Where it ran, as its announcement or a partition says.
            worker: Its identity.
        """
        if not machine or machine != self.machine or not _IDENTITY.fullmatch(worker):
            return False
        return _is_unlocked(self._file(worker))

    def _file(self, worker: str) -> Path:
        return self._folder / f"{self._boot}-{worker}.lock"

    def _prepare_folder(self) -> None:
        if not self._boot:
            raise OSError("the system has no boot id")
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # Whoever could write here could make a live worker look dead.
        found = self._folder.lstat()
        foreign = not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022
        if foreign:
            raise OSError(f"{self._folder} is not a folder that only this user can write to")

    def _lock(self) -> None:
        path = self._file(self.worker)
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        # Some network and sandbox file systems grant every lock; there a free lock means nothing.
        if _lock_alone(descriptor) and not _is_unlocked(path):
            self._descriptor = descriptor
            return
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise OSError("the file system does not keep locks")

    def _sweep(self) -> None:
        oldest = time.time() - STALE_FILE_SECONDS
        for path, _ in zip(self._folder.glob("*.lock"), range(SWEEP_FILES), strict=False):
            with contextlib.suppress(OSError):
                # A young file may belong to a worker that is about to lock it, or be the proof that one just died.
                if path.stat().st_mtime < oldest and _is_unlocked(path):
                    path.unlink()


def _lock_alone(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_unlocked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # Shared, so that two who ask at once both get the answer.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _boot_digest() -> str:
    """Return a digest of machine id and boot id, or nothing where there is no boot id.

    The machine id is meant to stay on its machine, so only the digest is written to the store.
    """
    boot = _boot_id()
    if not boot:
        return ""
    machine = _first_text("/etc/machine-id", "/var/lib/dbus/machine-id")
    return hashlib.blake2b(f"{machine}\0{boot}".encode(), digest_size=8, person=b"keylane").hexdigest()


def _boot_id() -> str:
    if sys.platform != "darwin":
        return _first_text("/proc/sys/kernel/random/boot_id")
    try:
        asked = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(asked, capture_output=True, text=True, timeout=2, check=True).stdout.strip()  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""


def _first_text(*paths: str) -> str:
    for path in paths:
        with contextlib.suppress(OSError):
            text = Path(path).read_text(encoding="ascii", errors="replace").strip()
            if text:
                return text
    return ""
