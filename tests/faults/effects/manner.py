"""How the receiver treats the requests about one order, and what passes between it and those who ask."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self


class Hold(StrEnum):
    """Where the receiver lets a request wait until it is told to go on."""

    RECEIVED = "received"  # it has read the request and done nothing
    COMMITTED = "committed"  # it has done it and answered nothing
    ASKED = "asked"  # it has read a look-up and answered nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How requests about one order are treated; times are in ms.

    Args:
        dedup_ms: For how long an operation id is taken once; None if it is taken again at once.
        can_look_up: Whether look-ups are answered.
        lag_ms: Within which time something is found: after half of it, and not by the first who asks within it.
        found_ms: For how long it is found; None for ever.
        delay_ms: How long it takes from the request to the commit.
        drops: Whether the first request is done and its connection closed without an answer.
        refuses: Whether every request is refused.
        holds: Where requests wait.
    """

    dedup_ms: int | None = None
    can_look_up: bool = False
    lag_ms: int = 0
    found_ms: int | None = None
    delay_ms: int = 0
    drops: bool = False
    refuses: bool = False
    holds: tuple[Hold, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it for the wire."""
        return asdict(self)

    @classmethod
    def of_json(cls, data: dict[str, Any]) -> Self:
        """Read it from the wire."""
        values: dict[str, Any] = {**data, "holds": tuple(Hold(each) for each in data["holds"])}
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Booking:
    """A line of the receiver's ledger: money that has moved, or a refusal.

    Args:
        receipt: Its number; empty for a refusal.
        operation: The operation id that the receiver saw.
        order: The order that it was for.
        amount: How much.
        at_ms: When, by the receiver's clock.
    """

    receipt: str
    operation: str
    order: str
    amount: str
    at_ms: float = field(compare=False)

    @property
    def is_paid(self) -> bool:
        """Whether money has moved."""
        return bool(self.receipt)


def read_books(path: Path) -> list[Booking]:
    """Return the lines of a receiver's ledger; a last line that is torn was never answered for."""
    if not path.exists():
        return []
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [Booking(**json.loads(line)) for line in whole]
