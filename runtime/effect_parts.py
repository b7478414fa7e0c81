"""The parts of a worker that make and settle effects, and those that have people decide, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..journal.agenda import AgendaKind
from .agenda import Agenda
from .approval_checks import ApprovalChecks
from .at_hand import AtHand
from .authority import AUTHORITY_SLOTS, Authority, Question, tenant_of
from .deciding import Deciding
from .docket import Dockets
from .docket_mending import DocketMending
from .effect_attempts import EffectAttempts
from .effect_calls import EffectCalls
from .effect_changes import EffectChanges
from .proposal_changes import ProposalChanges
from .reconciling import Reconciling
from .reservation_releases import ReservationReleases
from .settling import Settling
from .settling_by_hand import SettlingByHand
from .slots import Slots

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..journal.agenda import AgendaItem
    from ..journal.store import Store
    from ..objects.settings import Settings
    from .effects import Effects
    from .errands import Errands
    from .idle import Resting
    from .lane import Lane
    from .waits import Waits


class EffectParts:
    """What one worker needs for what lies with objects: their effects and their proposals.

    Args:
        store: The open store.
        settings: The effective settings.
        errands: Runs what takes more than one look.
        waits: Ends waits.
    """

    def __init__(self, store: Store, settings: Settings, errands: Errands, waits: Waits) -> None:
        self.dockets = Dockets(store, errands)
        self.at_hand = AtHand(self.dockets)
        self.agenda = Agenda(store, errands, self.at_hand)
        self.calls = EffectCalls()
        self.changes = EffectChanges(self.at_hand, waits, self.agenda)
        self.settling = Settling(settings, self.calls, self.changes, self.at_hand, self.agenda)
        self.settling.attempts = EffectAttempts(settings, self.settling, self.at_hand)
        self.by_hand = SettlingByHand(self.settling, settings.send_within_seconds)
        self.reconciling = Reconciling(store, errands, self.at_hand, self.by_hand)
        self.releases = ReservationReleases(self.at_hand, self.agenda)
        self.authority = Authority()
        self.proposals = ProposalChanges(waits)
        self.proposals.ask_after = self.agenda.ask_after
        self.mending = DocketMending(self.at_hand, self.proposals, self.agenda)
        self.deciding = Deciding(self.dockets, self.authority, self.proposals)
        self.approvals = ApprovalChecks(self.authority, self.proposals)
        self.settling.attempts.approvals = self.approvals
        for kind in (AgendaKind.PROPOSAL, AgendaKind.OLD_PROPOSAL):
            self.agenda.on_due[kind] = self._decide
        self._send_within_ms = int(settings.send_within_seconds * 1000)
        self._waits = waits

    def start(self, settings: Settings, tasks: TaskGroup) -> None:
        """Begin to run user code: calls and look-ups, and the functions that say who may approve."""
        self.calls.start(settings.effect_slots, tasks)
        self.authority.slots = Slots[Question](AUTHORITY_SLOTS, self.authority.turn, tenant_of, tasks)

    @property
    def resting(self) -> tuple[Resting, ...]:
        """What runs user code."""
        return self.calls.slots, self.authority.slots

    async def _decide(self, lane: Lane, item: AgendaItem) -> None:
        """Do what is due about a proposal."""
        self.deciding.fall_due(lane, item.name)

    def serve(self, effects: Effects) -> None:
        """Have the handlers' effects made here."""
        effects.dockets, effects.settling, effects.changes = self.dockets, self.settling, self.changes
        effects.proposals, effects.approvals = self.proposals, self.approvals
        self.releases.space_of = effects.space_of
        effects.send_within_ms = self._send_within_ms
        self._waits.on_withdrawn.append(effects.withdrawn)
