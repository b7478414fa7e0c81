"""One moment at which a worker is killed whose objects undo what they did, and what has become of the money."""

from __future__ import annotations

import secrets
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio

from keylane import Handle, Reconciled
from keylane.journal.effects import EffectState
from keylane.journal.proposals import ProposalState, proposal_field
from keylane.runtime.docket import Docket
from tests.faults.harness import eventually, eventually_answers

from .cells import IN_FLIGHT_MS
from .crash_window import REST_SECONDS, BesideTheMarkError, CrashWindow
from .manner import Hold, Manner
from .observed import docket_of
from .points import Hold as CallHold
from .points import Point, Strike, What
from .undo_cells import ACTION, CELLS, CODE, PAID, TAKEN_BACK, Books, Moment, UndoCell, Way, manner_of, order_of_undo

UNDO_APP: Final = "tests.faults.effects.undo_app:app"
#: A worker that is killed holds its partition so long: long for whatever happens until then on a machine that is busy.
SETTINGS: Final = {"lease_seconds": 0.6, "renewal_seconds": 0.1}
TRIES: Final = 4


#: Where effect and undo stand in the store at the moment of the kill.
STANDS: Final = {
    Moment.ASKED: (EffectState.INTENDED, None),
    Moment.PAID: (EffectState.INTENDED, None),
    Moment.KNOWN: (EffectState.SUCCEEDED, None),
    Moment.INTENDED: (EffectState.SUCCEEDED, EffectState.INTENDED),
    Moment.TAKEN_BACK: (EffectState.SUCCEEDED, EffectState.INTENDED),
    Moment.ANSWERED: (EffectState.SUCCEEDED, EffectState.INTENDED),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What has become of the objects.

    Args:
        used_up: The operation that had used the approval of an undo up when the worker was killed; empty for none.
        resting: The books once nothing goes on by itself.
        ended: The books once people have said that what is in question was done.
    """

    used_up: dict[UndoCell, str]
    resting: dict[UndoCell, Books]
    ended: dict[UndoCell, Books]


class UndoWindow(CrashWindow):
    """Has objects fail behind an effect, kills their worker, and lets another one go on.

    Args:
        store_url: The store.
        folder: A folder of its own; the path is short.
        moment: When the worker is killed.
        cells: The objects.
        mutant: Which safeguard all workers lack.
    """

    app = UNDO_APP
    settings = SETTINGS

    def __init__(self, store_url: str, folder: Path, moment: Moment, cells: Sequence[UndoCell], mutant: str) -> None:
        self._moment, self._cells = moment, cells
        manners = {order: manner for cell in cells for order, manner in self._manners(cell).items()}
        super().__init__(store_url, f"undo-{secrets.token_hex(6)}", folder, manners, mutant)
        self._handles: dict[UndoCell, Handle[None]] = {}
        self._begun = 0.0

    async def run(self) -> Seen:
        """Return what has become of the objects.

        Raises:
            BesideTheMarkError: The machine was so slow that another moment was hit.
        """
        self._begun = time.monotonic()
        async with anyio.create_task_group() as tasks:
            for cell in self._cells:
                tasks.start_soon(self._ask, cell)
        await self._kill()
        used_up = await self._check_mark()
        await self._receiver.go(order for cell in self._cells for order in self._manners(cell))
        await self._spare.start()
        found = await self._each(self._at_rest)
        settled = await self._each(self._settled)
        # What a worker that has ended had under way is done.
        self._spare.terminate()
        await self._spare.ended(REST_SECONDS)
        return Seen(used_up, found, {cell: self._counted(cell, books) for cell, books in settled.items()})

    def _manners(self, cell: UndoCell) -> dict[str, Manner]:
        manner = manner_of(cell.promise)
        held = replace(manner, holds=(Hold.COMMITTED,))
        order = cell.key
        return {
            order: held if self._moment is Moment.PAID else manner,
            order_of_undo(order): held if self._moment is Moment.TAKEN_BACK else manner,
        }

    @property
    def _hold(self) -> CallHold | None:
        return CallHold(Point.ANSWER, len(self._cells)) if self._moment is Moment.ANSWERED else None

    @property
    def _strike(self) -> Strike | None:
        match self._moment:
            case Moment.ASKED:
                what, is_after = What.INTENT, True
            case Moment.KNOWN | Moment.INTENDED:
                what, is_after = What.UNDO, self._moment is Moment.INTENDED
            case _:
                return None
        return Strike(what, len(self._cells), is_after=is_after, number=signal.SIGKILL)

    async def _ask(self, cell: UndoCell) -> None:
        terms = {"order": cell.key, "amount": "40.00"}
        asked = {"promise": cell.promise.value, "way": cell.way.value, "terms": terms}
        self._handles[cell] = await self._client.send("Cell", cell.key, "pay_and_fail", asked)
        if cell.way is not Way.APPROVED:
            return
        name = proposal_field(ACTION, 1)

        async def is_proposed() -> bool:
            return name in (await self._docket(cell)).proposals

        await eventually_answers(is_proposed, f"{cell} is proposed", seconds=REST_SECONDS)
        await self._client.approve(f"Cell/{cell.key}#{name}", by="ann", reason="as agreed")

    async def _kill(self) -> None:
        match self._moment:
            case Moment.ASKED | Moment.KNOWN | Moment.INTENDED:
                assert await self._first.ended(REST_SECONDS) == -signal.SIGKILL
                return
            case Moment.ANSWERED:
                await self._first.says(*(f"has the answer for {order_of_undo(cell.key)}" for cell in self._cells))
            case Moment.PAID:
                await self._committed([cell.key for cell in self._cells])
            case Moment.TAKEN_BACK:
                await self._committed([order_of_undo(cell.key) for cell in self._cells])
        self._first.kill()

    async def _committed(self, orders: list[str]) -> None:
        def is_done() -> bool:
            return all(self._receiver.times("committed", order) for order in orders)

        await eventually(is_done, f"{orders} are done", seconds=REST_SECONDS)

    async def _check_mark(self) -> dict[UndoCell, str]:
        """See that this is the moment, and return what has used the approvals up."""
        dockets = {cell: await self._docket(cell) for cell in self._cells}
        wrong = {
            cell.key: stands for cell, docket in dockets.items() if (stands := _stands(docket)) != STANDS[self._moment]
        }
        if wrong:
            held_ms = (time.monotonic() - self._begun) * 1000
            was_late = held_ms > IN_FLIGHT_MS or await self._has_lost_a_lease(self._handles[self._cells[0]].id)
            assert was_late, f"{wrong}, and nothing was late"
            raise BesideTheMarkError(f"{self._moment}: {wrong}")
        return {cell: _used_by(docket) for cell, docket in dockets.items() if cell.way is Way.APPROVED}

    async def _each(self, look: Callable[[UndoCell], Awaitable[Books]]) -> dict[UndoCell, Books]:
        books: dict[UndoCell, Books] = {}

        async def one(cell: UndoCell) -> None:
            books[cell] = await look(cell)

        async with anyio.create_task_group() as tasks:
            for cell in self._cells:
                tasks.start_soon(one, cell)
        return books

    async def _at_rest(self, cell: UndoCell) -> Books:
        """Wait until an object has failed, or waits for what lies with people; the books of that moment."""
        asked = [""]

        async def rests() -> bool:
            docket = await self._docket(cell)
            asked[0] = next(
                (each.operation for each in docket.effects.values() if each.waiters and _is_with_people(each.state)), ""
            )
            return bool(asked[0]) or await self._has_failed(cell)

        await eventually_answers(rests, f"{cell} rests: {self._spare.stderr}", seconds=REST_SECONDS)
        used_by = _used_by(await self._docket(cell)) if cell.way is Way.APPROVED else ""
        return self._counted(cell, Books(0, 0, asked[0], used_by))

    async def _settled(self, cell: UndoCell) -> Books:
        """Have a person say that what is in question was done, and wait until all has ended."""
        while (books := await self._at_rest(cell)).asked:
            verdict = await self._client.reconcile_succeeded(
                "Cell", cell.key, books.asked, "seen", by="ann", reason="it is in their books"
            )
            assert isinstance(verdict, Reconciled), verdict
            await self._is_told(cell, books.asked)
        return books

    async def _is_told(self, cell: UndoCell, operation: str) -> None:
        async def is_told() -> bool:
            return not (await self._docket(cell)).effects[operation].waiters

        await eventually_answers(is_told, f"{cell} goes on", seconds=REST_SECONDS)

    def _counted(self, cell: UndoCell, books: Books) -> Books:
        orders = [each.order for each in self._receiver.books]
        return replace(books, paid=orders.count(cell.key), taken_back=orders.count(order_of_undo(cell.key)))

    async def _has_failed(self, cell: UndoCell) -> bool:
        told = await self._client.describe(self._handles[cell].id)
        if told.status != "failed":
            return False
        assert told.error is not None
        assert told.error.code == CODE
        return True

    async def _docket(self, cell: UndoCell) -> Docket:
        return await docket_of(self._client, self._space_of(self._handles[cell].id), cell.key)


def _stands(docket: Docket) -> tuple[EffectState | None, EffectState | None]:
    effect, undo = docket.effects.get(PAID), docket.effects.get(TAKEN_BACK)
    return (None if effect is None else effect.state), (None if undo is None else undo.state)


def _is_with_people(state: EffectState) -> bool:
    return state is EffectState.UNRESOLVED


def _used_by(docket: Docket) -> str:
    proposal = docket.proposals[proposal_field(ACTION, 1)]
    return proposal.operation if proposal.state is ProposalState.CONSUMED else ""


async def run_undos(store_url: str, moment: Moment, cells: Sequence[UndoCell] = CELLS, mutant: str = "") -> Seen:
    """Run one moment, again where the machine was too slow for it.

    Args:
        store_url: The store.
        moment: When the worker is killed.
        cells: The objects.
        mutant: Which safeguard all workers lack.
    """
    why = BesideTheMarkError("")
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory(prefix="kl-undo-") as folder:
            try:
                async with UndoWindow(store_url, Path(folder), moment, cells, mutant) as window:
                    return await window.run()
            except BesideTheMarkError as error:
                why = error
    raise why
