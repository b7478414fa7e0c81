"""How many entries of an inbox one reading asks for: many small ones, few large ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

ENTRIES_AT_FIRST: Final = 16
ENTRIES_MAX: Final = 256
#: A reply is to be about so large at most; its size is known only once it is there.
PAGE_BYTES: Final = 2 << 20


class InboxPage:
    """The size of the next reading of one inbox, learned from those before."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = ENTRIES_AT_FIRST

    def saw(self, requests: Sequence[bytes]) -> None:
        """Take note of what the last reading brought."""
        if len(requests) < self.count and self.count == ENTRIES_MAX:
            return
        size_bytes = sum(map(len, requests))
        if size_bytes > PAGE_BYTES:
            self.count = max(PAGE_BYTES * len(requests) // size_bytes, 1)
        elif len(requests) == self.count and size_bytes * 4 <= PAGE_BYTES:
            self.count = min(self.count * 4, ENTRIES_MAX)
