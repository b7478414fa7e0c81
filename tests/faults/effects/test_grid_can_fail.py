from __future__ import annotations

import pytest

from tests.faults.harness import StoreServer

from .cells import Behaviour, Cell, Hit, Promise
from .mutants import Safeguard
from .running import TRIES, differences, run_cells

pytestmark = [pytest.mark.anyio, pytest.mark.one_server, pytest.mark.counts_runs, pytest.mark.quiet]

#: The cells that turn red without a safeguard, and what they then say. The first of each is part of every run.
RED = {
    Safeguard.INTENT: {
        Cell(Promise.NEITHER, Hit.BEFORE_INTENT, Behaviour.FAST): "paid 2 times",
        Cell(Promise.LOOKUP, Hit.BEFORE_INTENT, Behaviour.FAST): "paid 2 times",
        Cell(Promise.PUNCTUAL, Hit.BEFORE_CONSUMED, Behaviour.FAST): "paid 2 times",
    },
    Safeguard.SAME_ID: {
        Cell(Promise.DEDUP, Hit.SENT, Behaviour.FAST): "paid 2 times",
        Cell(Promise.DEDUP, Hit.COMMITTED, Behaviour.DROPS): "paid 2 times",
        Cell(Promise.BOTH, Hit.SENT, Behaviour.SLOW): "paid 2 times",
    },
    Safeguard.FENCE: {
        Cell(Promise.NEITHER, Hit.STOPPED_SENT, Behaviour.FAST): "by answer",
    },
    Safeguard.LEASE: {
        Cell(Promise.PUNCTUAL, Hit.STOPPED_INTENT, Behaviour.FAST): "paid 2 times",
        Cell(Promise.NEITHER, Hit.STOPPED_INTENT, Behaviour.FAST): "paid, unresolved",
        Cell(Promise.LOOKUP, Hit.STOPPED_INTENT, Behaviour.SLOW): "paid, unresolved",
    },
    Safeguard.WAITING: {
        Cell(Promise.PUNCTUAL, Hit.SENT, Behaviour.SLOW): "paid 2 times",
        Cell(Promise.PUNCTUAL, Hit.COMMITTED, Behaviour.LAGS): "paid 2 times",
    },
}


async def assert_red(server: StoreServer, safeguard: Safeguard, cells: list[Cell]) -> None:
    """Run cells until each has turned red once, in the words for it.

    A worker that goes on after it was stopped may be told first that its lease is lost, and then has no need of what
    is missing; and of two attempts the one that should have come too late may be the only one.
    """
    left, said = set(cells), dict[Cell, str]()
    for _ in range(TRIES):
        outcomes = await run_cells(server.url, left, mutant=safeguard)
        said = {cell: outcomes[cell].says for cell in left}
        left -= {cell for cell in differences(outcomes) if RED[safeguard][cell] in said[cell]}
        if not left:
            return
    pytest.fail(f"not red without {safeguard}: { ({cell: said[cell] for cell in left}) }")


@pytest.mark.slow
@pytest.mark.parametrize("safeguard", RED)
async def test_without_a_safeguard_a_cell_turns_red(shared_server: StoreServer, safeguard: Safeguard) -> None:
    """A grid that stays green whatever is missing shows nothing."""
    await assert_red(shared_server, safeguard, [next(iter(RED[safeguard]))])


@pytest.mark.nightly
@pytest.mark.parametrize("safeguard", RED)
async def test_without_a_safeguard_all_its_cells_turn_red(shared_server: StoreServer, safeguard: Safeguard) -> None:
    """The same for every cell that is named for it."""
    await assert_red(shared_server, safeguard, list(RED[safeguard]))
