"""What is known or suspected to be lost: a span of a partition's time in which records may be missing.

A server that was killed may have lost the end of what it had confirmed, a promoted replica what had not reached it, and
a copy that was put back lacks everything since it was made. Nothing in the store can tell; so the span is written down.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What an acquisition found out about the history that it goes on from."""

    WHOLE = ""
    LOST = "lost"
    DOUBT = "doubt"


@dataclass(frozen=True, slots=True)
class DoubtSpan:
    """A span of a partition's time in which records may be missing.

    Args:
        from_ms: Where it begins.
        until_ms: Where it ends; may lie ahead.
    """

    from_ms: int
    until_ms: int

    def reaches(self, since_ms: int) -> bool:
        """Return whether something was open in it that is open now, and has been since a time.

        One that was taken in before it may have gone on in it, too: the records of that would be among the missing.
        """
        return since_ms <= self.until_ms


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a worker knows of a tenure of its own that has ended, to compare with what the store has of it.

    Args:
        epoch: The tenure's epoch.
        token: Its token.
        batch: Number of the last batch that the store had confirmed, 0 when there was none.
        ids: Some invocations that were known to be durable.
        is_newest: Whether nobody has had the partition since, as far as is known: a store that has as much as this may
            have lost what another one wrote.
    """

    epoch: int
    token: bytes
    batch: int
    ids: tuple[bytes, ...] = ()
    is_newest: bool = True
