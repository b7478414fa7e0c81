from __future__ import annotations

import pytest

from . import running
from .cells import Behaviour, Cell, Hit, Promise
from .crash_window import BesideTheMarkError
from .observed import Observed

pytestmark = pytest.mark.anyio

SEEN = Cell(Promise.BOTH, Hit.SENT, Behaviour.FAST)
OVERSLEPT = Cell(Promise.BOTH, Hit.SENT, Behaviour.LAGS)


def play(monkeypatch: pytest.MonkeyPatch, *runs: dict[Cell, Observed] | Exception) -> list[list[Cell]]:
    """Have windows end like this, one after the other; return the cells of each, as they are run."""
    left, asked = list(runs), list[list[Cell]]()

    async def run_once(store_url: str, hit: Hit, cells: list[Cell], mutant: str) -> dict[Cell, Observed]:
        asked.append(cells)
        end = left.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.setattr(running, "_run_once", run_once)
    return asked


async def test_what_was_seen_once_counts_and_only_the_rest_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that is not as it should be can't be run until it is, for the sake of another one beside it."""
    wrong, right = Observed("paid 2 times", ()), Observed("paid, by look-up", ())
    asked = play(monkeypatch, {SEEN: wrong}, BesideTheMarkError("a lease ran out"), {OVERSLEPT: right})

    assert await running.run_cells("", [SEEN, OVERSLEPT]) == {SEEN: wrong, OVERSLEPT: right}
    assert asked == [[SEEN, OVERSLEPT], [OVERSLEPT], [OVERSLEPT]]


async def test_what_the_machine_is_not_to_blame_for_is_never_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An intent that was answered for and is not in the store is a fault, however often the next one is there."""
    asked = play(monkeypatch, AssertionError("nothing was late"))

    with pytest.raises(ExceptionGroup) as raised:
        await running.run_cells("", [SEEN])

    assert raised.group_contains(AssertionError, match="nothing was late")
    assert asked == [[SEEN]]


async def test_a_window_that_is_never_hit_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that were not seen are not green."""
    asked = play(monkeypatch, *[BesideTheMarkError("a lease ran out")] * running.TRIES)

    with pytest.raises(ExceptionGroup) as raised:
        await running.run_cells("", [SEEN])

    assert raised.group_contains(BesideTheMarkError)
    assert len(asked) == running.TRIES
