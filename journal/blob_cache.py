"""The large values that a process has at hand, the most recently used of them up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

#: As many bytes of large values a process keeps at hand.
CACHE_BYTES: Final = 64 << 20


class BlobCache:
    """Packed values by their digest, which says all about them: no two values have the same.

    Args:
        limit_bytes: How many bytes are kept.
    """

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._values: OrderedDict[bytes, bytes] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        """How many bytes are kept now."""
        return self._bytes

    def get(self, digest: bytes) -> bytes | None:
        """Return a value, if it is at hand."""
        packed = self._values.get(digest)
        if packed is not None:
            self._values.move_to_end(digest)
        return packed

    def put(self, digest: bytes, packed: bytes) -> None:
        """Keep a value at hand; those that were not used for longest go."""
        if digest in self._values or len(packed) > self._limit_bytes:
            return
        self._values[digest] = packed
        self._bytes += len(packed)
        while self._bytes > self._limit_bytes:
            _, dropped = self._values.popitem(last=False)
            self._bytes -= len(dropped)
