"""One crash window: cells of one hit beside each other, each an object of its own in the worker that is hit."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio

from keylane import Handle
from keylane.journal.effects import EffectEntry, EffectState
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.proposals import proposal_field
from tests.faults.harness import NeverHappenedError, eventually, eventually_answers

from .cells import IN_FLIGHT_MS, SLOW_MS, Behaviour, Cell, Hit, Promise
from .crash_window import REST_SECONDS, BesideTheMarkError, CrashWindow
from .manner import Hold, Manner
from .observed import OPERATION, Facts, Observed, docket_of, queue_of
from .points import Hold as CallHold
from .points import Point, Strike, What
from .workers import GridWorker

APPROVED: Final = frozenset({Hit.BEFORE_CONSUMED, Hit.AFTER_CONSUMED})
HELD: Final[Mapping[Hit, tuple[Hold, ...]]] = {
    Hit.SENT: (Hold.RECEIVED,),
    Hit.COMMITTED: (Hold.COMMITTED,),
    Hit.SETTLING: (Hold.RECEIVED, Hold.ASKED),
    Hit.STOPPED_SENT: (Hold.RECEIVED,),
    Hit.HANDED_OVER: (Hold.RECEIVED,),
    Hit.INVOCATION_KILLED: (Hold.RECEIVED,),
    Hit.BOTH_KILLED: (Hold.RECEIVED,),
}


#: Where every effect stands in the store at the moment of the hit, None for nowhere; else the hit was beside the mark.
STANDS: Final[Mapping[Hit, frozenset[EffectState | None]]] = {
    Hit.BEFORE_INTENT: frozenset({None}),
    Hit.BEFORE_CONSUMED: frozenset({None}),
    Hit.AFTER_RECORD: frozenset(EffectState) - {EffectState.INTENDED, EffectState.NOT_SENT},
}


class Window(CrashWindow):
    """Runs cells of one hit.

    Args:
        store_url: The store.
        namespace: A namespace that nothing else uses.
        folder: A folder of its own; the path is short.
        hit: When the worker is hit.
        cells: The cells; all of this hit.
        mutant: Which safeguard all workers lack.
    """

    def __init__(
        self, store_url: str, namespace: str, folder: Path, hit: Hit, cells: Sequence[Cell], *, mutant: str = ""
    ) -> None:
        assert all(cell.hit is hit for cell in cells)
        self._hit = hit
        self._cells = cells
        manners = {cell.key: self._manner(cell) for cell in cells}
        super().__init__(store_url, namespace, folder, manners, mutant)
        self._handles: dict[Cell, Handle[str]] = {}
        self._held_since = 0.0

    async def run(self) -> dict[Cell, Observed]:
        """Have every object ask, hit the worker, let others go on, and say what has become of each cell.

        A cell is missing where whoever settled it came when nothing lagged any more, and nothing contradicts itself.

        Raises:
            BesideTheMarkError: Another window was hit.
        """
        self._held_since = time.monotonic()
        async with anyio.create_task_group() as tasks:
            for cell in self._cells:
                tasks.start_soon(self._ask, cell)
        await self._strike_and_go_on()
        await self._at_rest()
        await self._end()
        outcomes = {cell: await self._observe(cell) for cell in self._cells}
        return {cell: found for cell, found in outcomes.items() if found.problems or not self._has_overslept(cell)}

    @property
    def _hold(self) -> CallHold | None:
        points = {Hit.ANSWERED: Point.ANSWER, Hit.STOPPED_FIRST_BYTE: Point.FIRST_BYTE}
        point = points.get(self._hit)
        return None if point is None else CallHold(point, len(self._cells))

    @property
    def _strike(self) -> Strike | None:
        count = len(self._cells)
        match self._hit:
            case Hit.BEFORE_INTENT | Hit.BEFORE_CONSUMED:
                return Strike(What.INTENT, count, is_after=False, number=signal.SIGKILL)
            case Hit.AFTER_INTENT | Hit.AFTER_CONSUMED:
                return Strike(What.INTENT, count, is_after=True, number=signal.SIGKILL)
            case Hit.STOPPED_INTENT:
                return Strike(What.INTENT, count, is_after=True, number=signal.SIGSTOP)
            case Hit.BEFORE_RECORD:
                return Strike(What.OUTCOME, count, is_after=False, number=signal.SIGKILL)
            case Hit.AFTER_RECORD:
                return Strike(What.OUTCOME, count, is_after=True, number=signal.SIGKILL)
            case _:
                return None

    async def _ask(self, cell: Cell) -> None:
        wish = {
            "receiver": cell.receiver,
            "terms": {"order": cell.key, "amount": "40.00"},
            "is_approved": self._hit in APPROVED,
        }
        self._handles[cell] = await self._client.send("Cell", cell.key, "pay", wish)
        if self._hit in APPROVED:
            await self._approve(cell)

    async def _approve(self, cell: Cell) -> None:
        action = f"pay-{cell.receiver}"

        async def is_proposed() -> bool:
            docket = await docket_of(self._client, self._space(cell), cell.key)
            return proposal_field(action, 1) in docket.proposals

        await eventually_answers(is_proposed, f"{cell} is proposed", seconds=REST_SECONDS)
        await self._client.approve(f"Cell/{cell.key}#{proposal_field(action, 1)}", by="ann", reason="checked")

    async def _strike_and_go_on(self) -> None:
        match self._hit:
            case Hit.NOTHING:
                return
            case Hit.STOPPED_INTENT | Hit.STOPPED_FIRST_BYTE:
                await eventually(lambda: self._first.is_stopped, "it stands", seconds=REST_SECONDS)
                await self._check_mark()
                await self._spare.start()
            case _ if self._strike is not None:
                assert await self._first.ended(REST_SECONDS) == -signal.SIGKILL
                await self._check_mark()
                await self._spare.start()
            case Hit.ANSWERED:
                await self._first.says(*(f"has the answer for {cell.key}" for cell in self._cells))
                self._first.kill()
                self._check_held()
                await self._check_mark()
                await self._spare.start()
            case _:
                await self._strike_while_held()

    async def _strike_while_held(self) -> None:
        words = ("committed", "refused") if self._hit is Hit.COMMITTED else ("received",)
        await self._all_have(words)
        match self._hit:
            case Hit.STOPPED_SENT:
                await self._first.stop()
                self._check_held()
                await self._let_go_while_settling(self._spare)
            case Hit.HANDED_OVER:
                self._first.terminate()
                await self._spare.start()
                assert self._first.returncode is None, "it has not waited for its calls"
                await self._go(self._cells)
                self._check_held()
                await self._first.ended(REST_SECONDS)
            case Hit.INVOCATION_KILLED:
                await self._kill_invocations()
                await self._go(self._cells)
                self._check_held()
            case Hit.SETTLING:
                self._first.kill()
                self._check_held()
                await self._strike_who_settles()
            case _:
                if self._hit is Hit.BOTH_KILLED:
                    await self._kill_invocations()
                self._first.kill()
                self._check_held()
                await self._check_mark()
                await self._let_go_while_settling(self._spare)

    async def _kill_invocations(self) -> None:
        for handle in self._handles.values():
            await self._client.kill(handle.id, reason="to see what becomes of it", by="the grid")

    async def _let_go_while_settling(self, worker: GridWorker) -> None:
        """Let the receiver go on: for slow ones only when another worker has begun to ask or to send again."""
        await self._go(cell for cell in self._cells if cell.behaviour is not Behaviour.SLOW)
        slow = [cell for cell in self._cells if cell.behaviour is Behaviour.SLOW]
        await worker.start()
        await eventually(lambda: all(map(self._is_settling, slow)), "somebody asks", seconds=REST_SECONDS)
        await self._go(slow)
        if slow:
            self._check_held()

    async def _strike_who_settles(self) -> None:
        second, third = self._spare, self._worker()
        # The third one has to ask while what was done last can't be found yet.
        fast = [cell for cell in self._cells if cell.behaviour not in (Behaviour.SLOW, Behaviour.LAGS)]
        await self._go(fast)
        await self._all_have(("committed", "refused"), fast)
        for cell in fast:
            await self._receiver.treat(cell.key, self._manner(cell))
        await second.start()
        await eventually(lambda: all(map(self._is_settling, self._cells)), "somebody asks", seconds=REST_SECONDS)
        second.kill()
        await self._go(self._cells)
        if len(fast) < len(self._cells):
            self._check_held()
        await third.start()

    async def _check_mark(self) -> None:
        entries = {cell: await self._entry(cell) for cell in self._cells}
        stands = {cell: None if entry is None else entry.state for cell, entry in entries.items()}
        wanted = STANDS.get(self._hit, frozenset({EffectState.INTENDED}))
        wrong = {str(cell): state for cell, state in stands.items() if state not in wanted}
        if not wrong:
            return
        # What is durable was answered for, so without a reason on our side the store or the worker has lost it.
        was_late = self._held_ms > IN_FLIGHT_MS or await self._has_lost_a_lease(self._handles[self._cells[0]].id)
        assert was_late, f"{self._hit}: {wrong}, and nothing was late"
        raise BesideTheMarkError(f"{self._hit}: {wrong}")

    def _check_held(self) -> None:
        if self._held_ms > IN_FLIGHT_MS:
            raise BesideTheMarkError(f"held for {self._held_ms:.0f} ms")

    @property
    def _held_ms(self) -> float:
        return (time.monotonic() - self._held_since) * 1000 + SLOW_MS

    def _has_overslept(self, cell: Cell) -> bool:
        return self._receiver.times("overslept", cell.key) > 0

    def _is_settling(self, cell: Cell) -> bool:
        times = self._receiver.times
        if cell.promise is Promise.NEITHER:
            return True
        if cell.promise is Promise.DEDUP:
            return times("received", cell.key) > 1
        return times("asked", cell.key) > 0

    async def _all_have(self, words: Iterable[str], cells: Sequence[Cell] | None = None) -> None:
        def have() -> bool:
            return all(
                any(self._receiver.times(word, cell.key) for word in words)
                for cell in (self._cells if cells is None else cells)
            )

        await eventually(have, f"all are {words}", seconds=REST_SECONDS)

    def _manner(self, cell: Cell) -> Manner:
        return replace(cell.manner, holds=HELD.get(self._hit, ()))

    async def _go(self, cells: Iterable[Cell]) -> None:
        await self._receiver.go(cell.key for cell in cells)

    async def _at_rest(self) -> None:
        """Wait until each cell is settled, and its handler has ended, or lies with people.

        What does not come to rest is reported as it stands.
        """

        async def rest() -> bool:
            for cell in self._cells:
                entry = await self._entry(cell)
                if entry is None or not (entry.is_settled or entry.state is EffectState.UNRESOLVED):
                    return False
                if entry.is_settled and await self._status(cell) in ("running", "waiting", "queued"):
                    return False
            return True

        try:
            await eventually_answers(rest, "all are at rest", seconds=REST_SECONDS)
        except NeverHappenedError:
            return

    async def _end(self) -> None:
        """Have every worker end in order, those that were stopped first, so that nothing happens any more."""
        if self._first.returncode is None and self._first.is_stopped:
            self._first.go_on()
            # What it still does comes too late, and has to be seen; then it is asked to end.
            await self._first.rests(REST_SECONDS)
        for worker in self._workers:
            if worker.returncode is None and "ready" in worker.lines:
                worker.terminate()
                await worker.ended(REST_SECONDS)

    def _space(self, cell: Cell) -> PartitionSpace:
        return self._space_of(self._handles[cell].id)

    async def _entry(self, cell: Cell) -> EffectEntry | None:
        return (await docket_of(self._client, self._space(cell), cell.key)).effects.get(OPERATION)

    async def _status(self, cell: Cell) -> str | None:
        return (await self._client.describe(self._handles[cell].id)).status

    async def _observe(self, cell: Cell) -> Observed:
        docket = await docket_of(self._client, self._space(cell), cell.key)
        status = await self._status(cell)
        proposal = docket.proposals.get(proposal_field(f"pay-{cell.receiver}", 1))
        is_approved = self._hit in APPROVED
        facts = Facts(
            entry=docket.effects.get(OPERATION),
            is_queued=(cell.key, OPERATION) in await queue_of(self._client, self._space(cell)),
            bookings=tuple(each for each in self._receiver.books if each.order == cell.key),
            told=await self._handles[cell].result(timeout=5) if status == "completed" else None,
            may_be_told=status != "killed",
            approval=(proposal.state, proposal.operation) if proposal else ("missing", "") if is_approved else None,
        )
        return facts.observe()
