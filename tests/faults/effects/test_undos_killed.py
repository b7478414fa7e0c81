"""SIGKILL around undos that are effects: the receiver's ledger has each once, and none of what nobody knows."""

from __future__ import annotations

import pytest

from tests.faults.harness import StoreServer

from .cells import Promise
from .mutants import Safeguard
from .undo_cells import CELLS, PAID, TAKEN_BACK, Books, Moment, UndoCell, Way
from .undo_window import run_undos

pytestmark = [pytest.mark.anyio, pytest.mark.one_server, pytest.mark.counts_runs, pytest.mark.quiet]

#: What is killed in the night alone, as what has to wait until absence counts.
NIGHTLY = {Moment.ASKED, Moment.INTENDED, Moment.ANSWERED}


def resting(moment: Moment, cell: UndoCell) -> Books:
    """Return what the books say once nothing goes on by itself."""
    used_by = TAKEN_BACK if cell.way is Way.APPROVED else ""
    match moment, cell.promise, cell.way:
        case Moment.ASKED, Promise.PUNCTUAL, Way.OUTCOME:
            # Nobody wants it any more.
            return Books(0, 0)
        case Moment.ASKED | Moment.PAID, Promise.NEITHER, _:
            return Books(int(moment is Moment.PAID), 0, PAID)
        case Moment.KNOWN, _, _:
            return Books(1, 1, "", used_by)
        case _, Promise.NEITHER, _:
            return Books(1, int(moment is not Moment.INTENDED), TAKEN_BACK, used_by)
        case _:
            return Books(1, 1, "", used_by)


def ended(moment: Moment, cell: UndoCell) -> Books:
    """Return what they say once a person has said that what was in question was done."""
    before = resting(moment, cell)
    if before.asked == PAID:
        return Books(before.paid, 1, "", TAKEN_BACK if cell.way is Way.APPROVED else "")
    return Books(before.paid, before.taken_back, "", before.approval)


def used_up(moment: Moment) -> str:
    """Return what has used an approval up when the worker is killed: the undo, in the commit of its intent."""
    return "" if moment in (Moment.ASKED, Moment.PAID, Moment.KNOWN) else TAKEN_BACK


@pytest.mark.parametrize(
    "moment",
    [pytest.param(each, marks=pytest.mark.nightly if each in NIGHTLY else [], id=each.name) for each in Moment],
)
async def test_what_was_done_is_undone_once_whenever_the_worker_is_killed(
    shared_server: StoreServer, moment: Moment
) -> None:
    """By another worker; while nobody knows what became of effect or undo, nothing is sent, and people are asked."""
    seen = await run_undos(shared_server.url, moment)

    assert seen.used_up == {cell: used_up(moment) for cell in CELLS if cell.way is Way.APPROVED}
    assert seen.resting == {cell: resting(moment, cell) for cell in CELLS}
    assert seen.ended == {cell: ended(moment, cell) for cell in CELLS}


#: What is different without a safeguard: the moment, the object, and what the books say in the end, or None where it is
#: the approval that is unused while the undo is under way.
RED = {
    Safeguard.KNOWN: (Moment.PAID, UndoCell(Promise.NEITHER, Way.OUTCOME), Books(1, 1)),
    Safeguard.INTENT: (Moment.KNOWN, UndoCell(Promise.NEITHER, Way.EFFECT), Books(1, 2)),
    Safeguard.SAME_ID: (Moment.TAKEN_BACK, UndoCell(Promise.DEDUP, Way.EFFECT), Books(1, 2)),
    Safeguard.USED_UP: (Moment.TAKEN_BACK, UndoCell(Promise.PUNCTUAL, Way.APPROVED), None),
}
EACH_TIME = {Safeguard.KNOWN, Safeguard.SAME_ID}


@pytest.mark.parametrize(
    "safeguard",
    [pytest.param(each, marks=[] if each in EACH_TIME else pytest.mark.nightly, id=each.name) for each in RED],
)
async def test_without_a_safeguard_an_undo_is_done_twice_or_on_a_guess(
    shared_server: StoreServer, safeguard: Safeguard
) -> None:
    """What stays green whatever is missing shows nothing."""
    moment, cell, books = RED[safeguard]
    seen = await run_undos(shared_server.url, moment, [cell], safeguard)

    if books is None:
        assert seen.used_up == {cell: ""}
        assert used_up(moment)
    else:
        assert seen.resting == {cell: books}
        assert books != resting(moment, cell)
