"""The expected table, read from the page on which people read it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

from .cells import Behaviour, Cell, Hit, Promise

PAGE: Final = Path(__file__).parents[3] / "docs" / "crash-windows.md"
_REASON: Final = re.compile(r"- \*\*([a-z])\*\*: (.+)")
_SENSELESS: Final = re.compile(r"– ([a-z])")


class Money(StrEnum):
    """What the receiver's ledger says."""

    PAID = "paid"
    REFUSED = "refused"
    NOT_PAID = "not paid"


class Ending(StrEnum):
    """How the effect ended."""

    ANSWER = "by answer"
    LOOKUP = "by look-up"
    RESEND = "by resend"
    ATTEMPT = "by another attempt"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True, slots=True)
class Expected:
    """What must follow, as the page says it: `paid, by answer`."""

    money: Money
    ending: Ending

    @classmethod
    def parse(cls, text: str) -> Expected:
        """Read it."""
        money, _, ending = text.partition(", ")
        return cls(Money(money), Ending(ending))

    def __str__(self) -> str:
        return f"{self.money}, {self.ending}"


@cache
def table() -> dict[Cell, Expected]:
    """Return every cell that makes sense, with what must follow."""
    return {cell: Expected.parse(text) for cell, text in _cells() if not _SENSELESS.fullmatch(text)}


@cache
def senseless() -> dict[Cell, str]:
    """Return every cell that makes none, with the reason."""
    found = ((cell, _SENSELESS.fullmatch(text)) for cell, text in _cells())
    reasons: dict[str, str] = dict(_REASON.findall(PAGE.read_text()))
    return {cell: reasons[letter[1]] for cell, letter in found if letter}


def _cells() -> Iterator[tuple[Cell, str]]:
    for section in PAGE.read_text().split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        if title not in set(Promise):
            continue
        rows = [_fields(line) for line in body.splitlines() if line.startswith("|")]
        (_, *behaviours), _, *lines = rows
        for hit, *texts in lines:
            for behaviour, text in zip(behaviours, texts, strict=True):
                yield Cell(Promise(title), Hit(hit), Behaviour(behaviour)), text


def _fields(line: str) -> list[str]:
    return [field.strip() for field in line.strip("|").split("|")]
