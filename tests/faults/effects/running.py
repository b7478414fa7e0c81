"""Runs windows of the grid, a few at a time: most of what they do is wait."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Final

import anyio

from .cells import Cell, Hit
from .crash_window import BesideTheMarkError
from .expected import table
from .observed import Observed
from .window import Window

AT_A_TIME: Final = 3
TRIES: Final = 4


async def run_cells(store_url: str, cells: Collection[Cell], *, mutant: str = "") -> dict[Cell, Observed]:
    """Run cells, those of one hit in one window, and return what has become of each.

    Args:
        store_url: The store.
        cells: What is run.
        mutant: Which safeguard all workers lack.
    """
    outcomes: dict[Cell, Observed] = {}
    limiter = anyio.CapacityLimiter(AT_A_TIME)

    async def run(hit: Hit) -> None:
        async with limiter:
            outcomes.update(await _run_window(store_url, hit, [cell for cell in cells if cell.hit is hit], mutant))

    async with anyio.create_task_group() as tasks:
        for hit in dict.fromkeys(cell.hit for cell in cells):
            tasks.start_soon(run, hit)
    return outcomes


async def _run_window(store_url: str, hit: Hit, cells: list[Cell], mutant: str) -> dict[Cell, Observed]:
    """Run a window, and what the machine was too slow for again; whatever was seen once counts."""
    outcomes: dict[Cell, Observed] = {}
    why = BesideTheMarkError("whoever settled came each time when nothing lagged any more")
    for _ in range(TRIES):
        try:
            outcomes |= await _run_once(store_url, hit, [cell for cell in cells if cell not in outcomes], mutant)
        except BesideTheMarkError as error:
            why = error
        if len(outcomes) == len(cells):
            return outcomes
    raise why


async def _run_once(store_url: str, hit: Hit, cells: list[Cell], mutant: str) -> dict[Cell, Observed]:
    namespace = f"grid-{secrets.token_hex(6)}"
    with tempfile.TemporaryDirectory(prefix="kl-grid-") as folder:
        async with Window(store_url, namespace, Path(folder), hit, cells, mutant=mutant) as window:
            return await window.run()


def differences(outcomes: dict[Cell, Observed]) -> dict[Cell, str]:
    """Return the cells that are not as the page says, with what they are."""
    return {
        cell: f"{observed}, and should be: {table()[cell]}"
        for cell, observed in outcomes.items()
        if observed.says != str(table()[cell]) or observed.problems
    }
