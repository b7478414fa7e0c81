"""Where an embedded server is reached: the `endpoint` file, and asking the server whether it lives."""

import json
import os
import socket
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import hiredis

# The kernel cuts a socket's path at 108 bytes on Linux and at 104 on macOS.
SOCKET_PATH_BYTES_MAX = 100
ASK_TIMEOUT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What the file `endpoint` says.

    Attributes:
        socket_path: The server's unix socket.
        pid: The server's process, or None where the file could not be read.
    """

    socket_path: str
    pid: int | None

    @property
    def url(self) -> str:
        """The store URL of the server."""
        return f"unix://{quote(self.socket_path)}"


@dataclass(frozen=True, slots=True)
class Sighting:
    """A server that answered: its process, and whether it has read its data."""

    pid: int
    is_ready: bool


def absolute(folder: str | os.PathLike[str]) -> Path:
    """Return the folder of an embedded store as every process names it."""
    return Path(folder).expanduser().resolve()


def find_endpoint(folder: str | os.PathLike[str]) -> str | None:
    """Return the URL of the server that runs on this folder, or None when none answers."""
    endpoint = read_endpoint(absolute(folder))
    if endpoint is None or not is_live(endpoint):
        return None
    return endpoint.url


def is_live(endpoint: Endpoint) -> bool:
    """Tell whether the server that the endpoint names answers and has read its data."""
    seen = sight(endpoint.socket_path)
    return seen is not None and seen.is_ready and endpoint.pid in {None, seen.pid}


def read_endpoint(folder: Path) -> Endpoint | None:
    """Return what the file says, None where there is no file, and the usual place where it is garbage."""
    try:
        text = (folder / "endpoint").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        written: Any = json.loads(text)
        return Endpoint(unquote(urlsplit(str(written["url"])).path), int(written["pid"]))
    except (ValueError, TypeError, KeyError):
        return Endpoint(usual_socket(folder), None)


def write_endpoint(folder: Path, endpoint: Endpoint) -> None:
    """Replace the file in one move, so that nobody reads half of it."""
    draft = folder / f"endpoint.{os.getpid()}"
    draft.write_text(json.dumps({"url": endpoint.url, "pid": endpoint.pid}) + "\n")
    draft.replace(folder / "endpoint")


def usual_socket(folder: Path) -> str:
    """Return where the server of this folder listens: in it, or in the temporary folder when the path is too long."""
    beside = str(folder / "server.sock")
    if len(os.fsencode(beside)) <= SOCKET_PATH_BYTES_MAX:
        return beside
    name = blake2b(os.fsencode(folder), digest_size=8).hexdigest()
    return str(Path(gettempdir()) / f"keylane-{os.getuid()}" / f"{name}.sock")


def sight(socket_path: str) -> Sighting | None:
    """Ask the server at a socket who it is; None when nobody answers."""
    try:
        pong, info = _ask(socket_path, "PING", "INFO server")
    except OSError:
        return None
    pid = _process_id(info)
    return None if pid is None else Sighting(pid, is_ready=pong == b"PONG")


def _process_id(info: object) -> int | None:
    if not isinstance(info, bytes):
        return None
    for line in info.splitlines():
        name, _, value = line.partition(b":")
        if name == b"process_id":
            return int(value)
    return None


def _ask(socket_path: str, *commands: str) -> list[Any]:
    # redis-py would say hello, select a database and name itself first, and bring its own retries.
    reader = hiredis.Reader()
    replies: list[Any] = []
    with closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.settimeout(ASK_TIMEOUT_SECONDS)
        connection.connect(socket_path)
        connection.sendall("".join(f"{command}\r\n" for command in commands).encode())
        while len(replies) < len(commands):
            reply = reader.gets()
            if reply is not False:
                replies.append(reply)
                continue
            data = connection.recv(65536)
            if not data:
                raise ConnectionResetError(socket_path)
            reader.feed(data)
    return replies
