"""Puts the indexes of a partition right about one effect or proposal: as its owner has it in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..journal import operations
from ..journal.agenda import AgendaItem, AgendaKind
from ..journal.codec import Undecodable
from ..journal.effects import EffectEntry, EffectState
from ..journal.proposals import ProposalEntry, ProposalState
from .at_hand import written
from .effect_facts import agenda_of
from .proposal_changes import FOREVER_MS

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from .agenda import Agenda
    from .at_hand import AtHand
    from .lane import Lane
    from .partition import Partition
    from .proposal_changes import ProposalChanges

_EFFECTS = frozenset({AgendaKind.EFFECT, AgendaKind.OLD_EFFECT})


class DocketMending:
    """Mends what names effects and proposals, for one worker.

    Args:
        at_hand: Brings objects into memory.
        proposals: Says when something is to be done about a proposal.
        agenda: Asked for what becomes due.
    """

    def __init__(self, at_hand: AtHand, proposals: ProposalChanges, agenda: Agenda) -> None:
        self._at_hand = at_hand
        self._proposals = proposals
        self._agenda = agenda

    async def mend(self, partition: Partition, name: bytes, writes: list[Operation]) -> list[str]:
        """Write what the indexes have to say of one effect or proposal, and say so."""
        del writes
        try:
            item = AgendaItem.decode(name)
        except Undecodable:
            return []
        while (found := await self._at_hand.bring(partition, item.key)) is not None:
            lane, docket = found
            if item.kind in _EFFECTS:
                did = self._effect(lane, item, docket.effects.get(item.name))
            else:
                did = self._proposal(lane, item, docket.proposals.get(item.name))
            self._agenda.ask_in(partition, 0)
            if await written(lane):
                return [did]
        return []

    @staticmethod
    def _effect(lane: Lane, item: AgendaItem, entry: EffectEntry | None) -> str:
        partition, space = lane.partition, lane.partition.space
        named, old = (AgendaItem(kind, item.key, item.name) for kind in (AgendaKind.EFFECT, AgendaKind.OLD_EFFECT))
        if entry is None:
            lane.commit([operations.take_off_agenda(space, each) for each in (named, old)])
            lane.commit([operations.leave_queue(space, named)])
            return f"took effect {item.name} of {item.key}, of which nothing is kept, out of agenda and queue"
        now_ms = partition.now_ms()
        writes = agenda_of(partition, lane.key_text, entry, now_ms)
        if entry.state is EffectState.UNRESOLVED:
            left_ms = max((entry.reconcile_by_ms or now_ms) - now_ms, 0)
            writes.append(operations.enter_queue(space, named, left_ms))
        else:
            writes.append(operations.leave_queue(space, named))
        lane.commit(writes)
        return f"wrote anew when effect {item.name} of {item.key}, which is {entry.state.value}, is looked at"

    def _proposal(self, lane: Lane, item: AgendaItem, entry: ProposalEntry | None) -> str:
        partition, space = lane.partition, lane.partition.space
        named, old = (AgendaItem(kind, item.key, item.name) for kind in (AgendaKind.PROPOSAL, AgendaKind.OLD_PROPOSAL))
        if entry is None:
            lane.commit([operations.take_off_agenda(space, each) for each in (named, old)])
            lane.commit([operations.close_proposal(space, named)])
            return f"took proposal {item.name} of {item.key}, of which nothing is kept, out of the indexes"
        writes = self._proposals.agenda(lane, entry)
        if entry.state is ProposalState.OPEN:
            left_ms = FOREVER_MS if entry.expires_ms is None else max(entry.expires_ms - partition.now_ms(), 0)
            writes.append(operations.open_proposal(space, named, left_ms))
        else:
            writes.append(operations.close_proposal(space, named))
        lane.commit(writes)
        return f"wrote anew when proposal {item.name} of {item.key}, which is {entry.state.value}, is looked at"
