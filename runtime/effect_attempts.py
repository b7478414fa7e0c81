"""Further attempts of effects: what was not sent, what is sent again, and what had to wait for another one.

Each has an intent of its own. Before one that may be the first to reach the receiver, facts are looked at again, and
whether anybody wants it still.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from ..journal.effects import EffectEntry, EffectState
from ..journal.errors import TerminalError
from ..journal.ledger import EventKind, Happened
from ..journal.outcomes import Rejected
from .effect_calls import Work
from .effect_checks import checked
from .effect_facts import Change, blocker_of, blocks, effect_of, in_words, intent
from .effect_plans import given_up, settled
from .failures import failure_of
from .partition import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..journal.batch import Operation
    from ..objects.settings import Settings
    from .at_hand import AtHand
    from .effect_checks import ApprovalCheck
    from .lane import Lane
    from .partition import Partition
    from .settling import Settling

logger = logging.getLogger("keylane.effects")

#: How soon an attempt is thought of again that could not be made for reasons of ours.
AGAIN_MS: Final = 1_000
REFUSED_HERE: Final = "it must not be done any more"
NOBODY: Final = "nothing was sent, and nobody wants it any more"


class EffectAttempts:
    """The further attempts of one worker.

    Args:
        settings: The effective settings.
        settling: Calls, and records what that has come to.
        at_hand: Brings objects into memory.
    """

    def __init__(self, settings: Settings, settling: Settling, at_hand: AtHand) -> None:
        self._send_within_ms = int(settings.send_within_seconds * 1000)
        self._settling = settling
        self._at_hand = at_hand
        #: Looks once more at the approval that an effect has used up before it had to wait.
        self.approvals: ApprovalCheck | None = None

    def give(self, partition: Partition, key_text: str, entry: EffectEntry, kind: EventKind) -> None:
        """Have the next attempt of an effect made, unless something is under way with it.

        Args:
            partition: The partition.
            key_text: The object.
            entry: Where it stands.
            kind: `INTENDED` where nothing was done so far, `RESENT` where that is not known.
        """
        calls = self._settling.calls
        if calls.hold(partition, key_text, entry.operation):
            calls.give(Work(partition, key_text, entry.operation, partial(self._attempt, entry, kind)))

    async def _attempt(self, entry: EffectEntry, kind: EventKind, work: Work) -> None:
        partition = work.partition
        partition.calling += 1
        try:
            if partition.phase is not Phase.OPEN:
                # The owner that comes finds it due.
                return
            checked_entry = entry if kind is EventKind.RESENT else await self._checked(work, entry)
            if checked_entry is not None:
                await self.make(partition, work.key_text, checked_entry, kind)
        finally:
            partition.calling -= 1

    async def make(
        self, partition: Partition, key_text: str, entry: EffectEntry, kind: EventKind, *, by: str = "",
        detail: str = "", more: Callable[[], list[Operation]] | None = None,
    ) -> bool:  # fmt: skip
        """Write the intent of the next attempt, call, and record what that has come to; return whether it was made.

        Args:
            partition: The partition.
            key_text: The object.
            entry: Where the effect stands: in no other state is the attempt made.
            kind: `INTENDED` where nothing was done so far, `RESENT` where that is not known.
            by: Who asks for it; empty for the runtime itself.
            detail: Why there is another attempt.
            more: Returns what is written with the intent.
        """

        def decide(found: EffectEntry, now_ms: int) -> Change | None:
            if (found.state, found.attempt) != (entry.state, entry.attempt):
                return None
            lane = partition.lanes[key_text]
            if kind is EventKind.INTENDED and _is_blocked(lane, found):
                return _behind(found, now_ms)
            return intent(found.but(facts=entry.facts), now_ms, self._send_within_ms, kind, detail, by)

        intended = await self._settling.changes.change(partition, key_text, entry.operation, decide, more)
        if intended is None or intended.state is not EffectState.INTENDED:
            return False
        await self._settling.call(partition, key_text, entry.operation, intended.attempt)
        return True

    async def _checked(self, work: Work, entry: EffectEntry) -> EffectEntry | None:
        """Return an effect of which nothing was done, with the facts that allow it now; None where it has to wait."""
        partition, key_text = work.partition, work.key_text
        effect = effect_of(partition, entry)
        found = await self._at_hand.bring(partition, key_text)
        if found is None:
            return None
        lane = found[0]
        if effect is None or partition.memory.is_full:
            await self._change(work, _later)
            return None
        if not await self._settling.changes.is_wanted(lane, entry):
            # Whoever has come to wait for it meanwhile may want it.
            await self._change(
                work,
                lambda each, now_ms: (
                    given_up(each, now_ms, NOBODY) if each.waiters == entry.waiters else _later(each, now_ms)
                ),
            )
            return None
        try:
            facts = await checked(lane, effect, entry.params, entry.approval, self.approvals)
        except TerminalError as error:
            refusal = Rejected(failure_of(error))
            # The receiver has not said so: it was not asked.
            why = f"{REFUSED_HERE}: {in_words(error)}"
            await self._change(
                work, lambda each, now_ms: settled(each, refusal, now_ms, EventKind.NOT_SENT, detail=why)
            )
            return None
        except Exception as error:  # noqa: BLE001, whatever it raises, the facts are not known
            logger.info("%s: what it depends on can't be looked at now: %s", entry.operation, in_words(error))
            await self._change(work, _later)
            return None
        return entry.but(facts=facts)

    async def _change(self, work: Work, decide: Callable[[EffectEntry, int], Change]) -> None:
        def if_nothing_was_sent(entry: EffectEntry, now_ms: int) -> Change | None:
            return None if entry.state is EffectState.INTENDED or entry.is_settled else decide(entry, now_ms)

        await self._settling.changes.change(work.partition, work.key_text, work.operation, if_nothing_was_sent)


def _is_blocked(lane: Lane, entry: EffectEntry) -> bool:
    """Return whether an effect has to wait until another one at its receiver is settled."""
    effect = effect_of(lane.partition, entry)
    is_first = entry.state in (EffectState.BLOCKED, EffectState.NOT_SENT)
    return is_first and effect is not None and blocks(effect) and blocker_of(lane, entry) is not None


def _behind(entry: EffectEntry, now_ms: int) -> Change:
    happened = () if entry.state is EffectState.BLOCKED else (Happened(now_ms, EventKind.BLOCKED, entry.attempt),)
    return Change(entry.but(state=EffectState.BLOCKED, since_ms=now_ms, next_ms=0), happened)


def _later(entry: EffectEntry, now_ms: int) -> Change:
    return Change(entry.but(next_ms=now_ms + AGAIN_MS), ())
