"""How far an owner has come in the inbox of a partition, and what it has left there for want of memory."""

from __future__ import annotations

from ..journal.inbox import START, comparable, just_before
from .inbox_page import InboxPage


class InboxPlace:
    """Where the reading of one inbox stands.

    Attributes:
        cursor: The last entry that was read.
        behind: The last of the entries that were left where they are, or put back, for want of memory: nothing may pass
            them.
        ahead: Entries that were dealt with ahead of their turn.
        looked: How far the inbox was looked through for such.
        page: How much the next reading asks for.
    """

    __slots__ = ("ahead", "behind", "cursor", "looked", "page")

    def __init__(self) -> None:
        self.cursor = START
        self.behind: bytes | None = None
        self.ahead: set[bytes] = set()
        self.looked = START
        self.page = InboxPage()

    def leave(self, entry: bytes) -> None:
        """Leave an entry where it is; until it is taken in, nothing that comes later may go ahead of it."""
        if self.behind is None or comparable(self.behind) < comparable(entry):
            self.behind = entry

    def put_back(self, entry: bytes) -> None:
        """Have the inbox read again from an entry on."""
        self.leave(entry)
        self.ahead.discard(entry)
        before = just_before(entry)
        self.cursor = min(self.cursor, before, key=comparable)
        self.looked = min(self.looked, before, key=comparable)
