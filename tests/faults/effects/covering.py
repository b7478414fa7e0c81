"""A part of the grid in which each pair occurs: of a contract, a hit and a behaviour, two at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeAlias

from .cells import Behaviour, Cell, Hit, Promise

Pair: TypeAlias = tuple[Promise | Hit | Behaviour, Promise | Hit | Behaviour]


def pairs_of(cell: Cell) -> set[Pair]:
    """Return the three pairs that a cell has."""
    return {(cell.promise, cell.hit), (cell.hit, cell.behaviour), (cell.promise, cell.behaviour)}


def all_pairs(cells: Iterable[Cell]) -> set[Pair]:
    """Return the pairs that cells have together."""
    return {pair for cell in cells for pair in pairs_of(cell)}


def covering(cells: Collection[Cell], share: float) -> list[Cell]:
    """Return a share of the cells, and at least so many that no pair of any cell is left out.

    Those that bring most that is new come first; the same cells are chosen each time.
    """
    left = dict.fromkeys(cells)
    missing = all_pairs(cells)
    chosen: list[Cell] = []
    while missing or len(chosen) < share * len(cells):
        # The first of the best: an order that does not depend on how strings are hashed.
        cell = max(left, key=lambda each: len(pairs_of(each) & missing))
        del left[cell]
        missing -= pairs_of(cell)
        chosen.append(cell)
    return chosen
