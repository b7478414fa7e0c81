"""The append-only file of a server under test, and its loss: what a machine that loses power had not synced yet."""

from __future__ import annotations

import os
from pathlib import Path

from .harness import StoreServer, wait_for


def aof_of(server: StoreServer) -> Path:
    """Return the file to which the server appends."""
    (path,) = (server.directory / "appendonlydir").glob("*.incr.aof")
    return path


def aof_bytes(server: StoreServer) -> int:
    """Return how much of it there is, with all that the server has answered for.

    One that does not wait for the disk answers before it writes, and holds that back while a sync is under way.
    """
    wait_for(lambda: b"aof_buffer_length:0\r" in server.ask("INFO", "persistence"), "the file has what was answered")
    return aof_of(server).stat().st_size


def cut_aof(server: StoreServer, to_bytes: int) -> int:
    """Cut the end of the file off, in the middle of a command if need be; returns how much that was.

    The server must not run; it starts on what is left, since `aof-load-truncated` is on by default.
    """
    path = aof_of(server)
    lost = path.stat().st_size - to_bytes
    assert lost >= 0
    os.truncate(path, to_bytes)
    return lost
