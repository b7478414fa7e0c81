from __future__ import annotations

from typing import cast

import pytest

from tests.faults.harness import StoreServer

from .cells import Cell
from .covering import covering
from .expected import table
from .observed import Observed
from .running import differences, run_cells
from .test_expected_table import THIRD

#: What a window holds is late soon, so on a machine that has much else to do most of them would be run again.
pytestmark = [pytest.mark.anyio, pytest.mark.one_server, pytest.mark.counts_runs, pytest.mark.quiet]


@pytest.fixture(scope="module")
async def outcomes(shared_server: StoreServer, request: pytest.FixtureRequest) -> dict[Cell, Observed]:
    """What has become of every cell that is asked for."""
    asked = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    cells = [cast("Cell", item.callspec.params["cell"]) for item in asked]
    return await run_cells(shared_server.url, dict.fromkeys(cells))


@pytest.mark.slow
@pytest.mark.parametrize("cell", covering(table(), THIRD), ids=str)
async def test_money_moves_once_or_it_is_known_to_be_unknown(cell: Cell, outcomes: dict[Cell, Observed]) -> None:
    """The receiver's ledger and the end of the effect are as the page says, in a third that has every pair."""
    assert differences({cell: outcomes[cell]}) == {}


@pytest.mark.nightly
@pytest.mark.parametrize("cell", table(), ids=str)
async def test_every_cell_is_as_the_page_says(cell: Cell, outcomes: dict[Cell, Observed]) -> None:
    """The same for every cell of the grid."""
    assert differences({cell: outcomes[cell]}) == {}
