"""Foreign data that fills a server's memory, and goes away again when told to."""

from __future__ import annotations

import redis.exceptions

from .harness import StoreServer

ROOM_BYTES = 20 << 20
#: From coarse to fine, so that in the end there is no room for anything.
SIZES = (1 << 20, 1 << 16, 1 << 12)
#: The limit in the end, as a part of what is in use then.
BEYOND = 0.98


class Filler:
    """Fills one server.

    Args:
        server: The server; from now on its memory is limited.
        room_bytes: How much more than now it may use.
    """

    def __init__(self, server: StoreServer, room_bytes: int = ROOM_BYTES) -> None:
        self._server = server
        self._count = 0
        self.limit_bytes = self.used_bytes + room_bytes
        server.ask("CONFIG", "SET", "maxmemory", self.limit_bytes)

    @property
    def used_bytes(self) -> int:
        """What the server says that it uses."""
        info: bytes = self._server.ask("INFO", "memory")
        return int(info.partition(b"used_memory:")[2].split()[0])

    def fill_to(self, ratio: float) -> None:
        """Fill up to a part of the limit, which the server still lets in."""
        while self.used_bytes < self.limit_bytes * ratio:
            self._add(1 << 16)

    def fill(self) -> None:
        """Fill until the server refuses everything that takes memory."""
        for size in SIZES:
            while self._fits(size):
                continue
        # What was too large for the rest would leave room for something small.
        self._server.ask("CONFIG", "SET", "maxmemory", int(self.used_bytes * BEYOND))

    def _fits(self, size: int) -> bool:
        try:
            self._add(size)
        except redis.exceptions.OutOfMemoryError:
            return False
        return True

    def _add(self, size: int) -> None:
        self._server.ask("SET", f"foreign:{self._count}", bytes(size))
        self._count += 1

    def empty(self) -> None:
        """Take the foreign data away."""
        self._server.ask("CONFIG", "SET", "maxmemory", self.limit_bytes)
        self._server.ask("UNLINK", *(f"foreign:{number}" for number in range(self._count)))
        self._count = 0
