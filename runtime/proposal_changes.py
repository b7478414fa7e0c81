"""Writes what becomes of a proposal, and ends the waits of those who wait for the decision."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from ..journal import operations
from ..journal.agenda import AgendaItem, AgendaKind
from ..journal.command_records import ApprovalAwaited, WaitCompleted
from ..journal.errors import ApprovalDeclined, ApprovalExpired, Fenced, Superseded
from ..journal.ledger import EventKind, LedgerEvent
from ..journal.outcomes import Outcome, Rejected, Succeeded, encode_outcome
from ..journal.proposals import CLOSED, ProposalState, proposal_field
from ..objects.approvals import Approval
from ..objects.proposing import approval_of, proposal_id
from ..objects.types import boundary_of
from .failures import failure_with_fields
from .large_values import weigh
from .partition import OwnershipLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..journal.batch import Operation
    from ..journal.effects import Waiter
    from ..journal.ledger import Happened
    from ..journal.proposals import ProposalEntry
    from .docket import Docket
    from .invocation import Invocation
    from .lane import Lane
    from .partition import Partition
    from .waits import Waits

#: One that waits for ever is due in the index after as long as anything can be waited for.
FOREVER_MS: Final = 400 * 86_400_000
#: Those that could not be told of a decision at once are looked for again so soon.
TELL_AGAIN_MS: Final = 1_000
#: It is told that a proposal is about to expire when this part of its time is left, and that long before at least.
WARN_PART: Final = 10
WARN_AT_LEAST_MS: Final = 60_000

APPROVAL: Final = boundary_of(Approval, where="the approval")


def newest_version(docket: Docket, action: str) -> int:
    """Return the version of the newest proposal of an action, 0 where there was none."""
    return max((each.version for each in docket.proposals.values() if each.action == action), default=0)


def item_of(lane: Lane, entry: ProposalEntry) -> AgendaItem:
    """Return the name of a proposal in the indexes of its partition."""
    return AgendaItem(AgendaKind.PROPOSAL, lane.key_text, entry.field)


def old_item_of(lane: Lane, entry: ProposalEntry) -> AgendaItem:
    """Return the name under which a closed proposal is on the agenda."""
    return AgendaItem(AgendaKind.OLD_PROPOSAL, lane.key_text, entry.field)


def ledger_event(lane: Lane, entry: ProposalEntry, event: Happened) -> LedgerEvent:
    """Return what the ledger says of something that has happened to a proposal."""
    return LedgerEvent(lane.key_text, entry.field, "", "", lane.partition.virtual_object.owner, event)


def warn_ms(entry: ProposalEntry) -> int | None:
    """Return when it is told that a proposal is about to expire, None where it is not told, or was."""
    if entry.expires_ms is None or entry.is_overdue:
        return None
    lasts_ms = entry.expires_ms - entry.proposed_ms
    before_ms = max(lasts_ms // WARN_PART, WARN_AT_LEAST_MS)
    # Of one that lasts no longer than the warning goes ahead of its end, whoever proposed it knows.
    return entry.expires_ms - before_ms if before_ms < lasts_ms else None


def due_ms(entry: ProposalEntry, now_ms: int, retention_ms: int) -> int | None:
    """Return when something is to be done about a proposal by itself, None for never.

    Args:
        entry: The proposal.
        now_ms: The partition's time.
        retention_ms: How long a closed one is kept.
    """
    if entry.waiters and entry.state is not ProposalState.OPEN:
        return now_ms + TELL_AGAIN_MS
    if entry.state in CLOSED:
        return entry.since_ms + retention_ms
    warned_ms = warn_ms(entry)
    return entry.expires_ms if warned_ms is None else warned_ms


def retention_ms(partition: Partition) -> int:
    """Return how long a closed proposal is kept."""
    return partition.settings.ledger_retention_days * 86_400_000


def outcome_of(lane: Lane, docket: Docket, entry: ProposalEntry) -> Outcome | None:
    """Return with what the wait for a decision ends, None while there is none."""
    space = lane.partition.space
    name = proposal_id(space.type_name, lane.key_text, entry)
    match entry.state:
        case ProposalState.OPEN:
            return None
        case ProposalState.APPROVED | ProposalState.CONSUMED:
            return Succeeded(APPROVAL.dump(approval_of(space.type_name, lane.key_text, entry)))
        case ProposalState.DECLINED:
            last = entry.decisions[-1]
            return Rejected(failure_with_fields(ApprovalDeclined(name, last.by, last.reason)))
        case ProposalState.REVOKED:
            event = next(each for each in reversed(entry.life) if each.kind is EventKind.REVOKED)
            return Rejected(failure_with_fields(ApprovalDeclined(name, event.by, f"taken back: {event.detail}")))
        case ProposalState.EXPIRED:
            return Rejected(failure_with_fields(ApprovalExpired(name)))
        case ProposalState.SUPERSEDED:
            newest = newest_version(docket, entry.action)
            return Rejected(failure_with_fields(Superseded(f"version {newest} of {entry.action!r}")))


class ProposalChanges:
    """Writes what becomes of the proposals of one worker's objects, and tells those who wait.

    Args:
        waits: Ends waits.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        #: Told that something of a partition falls due after a delay.
        self.ask_after: Callable[[Lane, int], None] = _unheard
        waits.on_withdrawn.append(self._forget_waiter)

    def changed(
        self, lane: Lane, docket: Docket, entry: ProposalEntry, event: Happened | None = None
    ) -> list[Operation]:
        """Return what writes where a proposal stands, with what follows of it for the indexes of its partition.

        Args:
            lane: The lane of its object, whose next commit this goes into.
            docket: Its docket, which has it from here on.
            entry: The proposal from now on.
            event: What has happened to it, for the ledger.
        """
        partition = lane.partition
        before, item = docket.proposals.get(entry.field), item_of(lane, entry)
        if before is None or before.state is not entry.state:
            partition.meters.decided(partition, entry.action, entry.state.value)
        weigh(lane, entry.bound + entry.notes)
        writes = [docket.write_proposal(entry), *self.agenda(lane, entry)]
        if before is None:
            left_ms = FOREVER_MS if entry.expires_ms is None else max(entry.expires_ms - partition.now_ms(), 0)
            writes.append(operations.open_proposal(partition.space, item, left_ms))
        elif before.state is ProposalState.OPEN and entry.state is not ProposalState.OPEN:
            writes.append(operations.close_proposal(partition.space, item))
        if event is not None:
            writes.append(operations.note_in_ledger(partition.space, ledger_event(lane, entry, event)))
        return writes

    def agenda(self, lane: Lane, entry: ProposalEntry) -> list[Operation]:
        """Return what has a proposal looked at when something is to be done about it."""
        partition, item = lane.partition, item_of(lane, entry)
        now_ms = partition.now_ms()
        at_ms = due_ms(entry, now_ms, retention_ms(partition))
        if at_ms is None:
            return [operations.take_off_agenda(partition.space, item)]
        delay_ms = max(at_ms - now_ms, 0)
        self.ask_after(lane, delay_ms)
        if entry.state in CLOSED and not entry.waiters:
            # Nobody waits for it to be forgotten.
            old = old_item_of(lane, entry)
            return [
                operations.take_off_agenda(partition.space, item),
                operations.put_on_agenda(partition.space, old, delay_ms),
            ]
        return [operations.put_on_agenda(partition.space, item, delay_ms)]

    def write(
        self,
        lane: Lane,
        docket: Docket,
        entry: ProposalEntry,
        event: Happened,
        more: list[Operation],
        done: Callable[[], None],
        again: Callable[[], None],
    ) -> None:
        """Write what has become of a proposal; if it is decided, end the waits for it.

        The first wait that can be ended ends in the same commit. What a crash leaves of the others is on the agenda.

        Args:
            lane: The lane of its object.
            docket: Its docket.
            entry: The proposal from now on.
            event: What has happened to it.
            more: What else goes into the commit.
            done: Called once it is durable.
            again: Does all of it once more, where the store has refused the lane's commits.
        """
        outcome = outcome_of(lane, docket, entry)
        first = None if outcome is None else _first_awaiting(lane.partition, entry)
        if outcome is None or first is None:
            writes = [*self.changed(lane, docket, entry, event), *more]
            lane.commit(writes, None, partial(settled, lane.partition, done, again))
        else:
            waiter, invocation = first
            writes = [*self.changed(lane, docket, _without(entry, waiter), event), *more]
            self._waits.complete(invocation, _fact(lane, entry, waiter, outcome), writes, done, again)
        self.tell(lane, entry.field)

    def tell(self, lane: Lane, field: str) -> None:
        """End the waits for a proposal that is decided."""
        docket = lane.docket
        entry = None if docket is None else docket.proposals.get(field)
        if docket is None or entry is None or entry.state is ProposalState.OPEN:
            return
        for waiter in entry.waiters:
            if waiter.invocation in lane.partition.open:
                self._tell_one(lane, field, waiter)
            else:
                found = partial(self._tell_one, lane, field, waiter)
                lane.partition.host.find_parked(lane, waiter.invocation, found)

    def _tell_one(self, lane: Lane, field: str, waiter: Waiter) -> None:
        """End one wait, or forget one that is over already."""
        docket = lane.docket
        entry = None if docket is None else docket.proposals.get(field)
        if docket is None or entry is None or waiter not in entry.waiters or not lane.loaded or lane.error is not None:
            # It was told meanwhile; or what is known of the lane is about to change, and the agenda has it.
            return
        invocation, outcome = awaiting(lane.partition, entry, waiter), outcome_of(lane, docket, entry)
        more = self.changed(lane, docket, _without(entry, waiter))
        if invocation is None or outcome is None:
            lane.commit(more)
        else:
            fact = _fact(lane, entry, waiter, outcome)
            self._waits.complete(invocation, fact, more, _nothing, partial(self.tell, lane, field))

    def _forget_waiter(self, lane: Lane, invocation: Invocation, wait: object) -> list[Operation]:
        """Return what takes away the registration of a wait that is withdrawn."""
        docket = lane.docket
        if docket is None or not isinstance(wait, ApprovalAwaited):
            return []
        entry = docket.proposals.get(proposal_field(wait.action, wait.version))
        waiter = None if entry is None else waiter_at(entry, invocation, wait)
        return [] if entry is None or waiter is None else self.changed(lane, docket, _without(entry, waiter))


def _fact(lane: Lane, entry: ProposalEntry, waiter: Waiter, outcome: Outcome) -> WaitCompleted:
    """Return the record that ends a wait."""
    last = entry.decisions[-1] if entry.decisions else None
    message, by = (b"", "") if last is None else (last.message, last.by)
    value = encode_outcome(outcome)
    weigh(lane, value)
    return WaitCompleted(waiter.place, message, value, by)


def settled(
    partition: Partition, done: Callable[[], None], again: Callable[[], None], now_ms: int, error: BaseException | None
) -> None:
    """Go on after a commit: once it is durable, or has been refused and what it was about is known anew."""
    del now_ms
    if error is None:
        done()
    elif not isinstance(error, Fenced | OwnershipLost):
        partition.recall_again.append(again)


def _first_awaiting(partition: Partition, entry: ProposalEntry) -> tuple[Waiter, Invocation] | None:
    for waiter in entry.waiters:
        invocation = awaiting(partition, entry, waiter)
        if invocation is not None:
            return waiter, invocation
    return None


def awaiting(partition: Partition, entry: ProposalEntry, waiter: Waiter) -> Invocation | None:
    """Return the invocation that waits for a decision, if it is in memory and still does."""
    invocation = partition.open.get(waiter.invocation)
    if invocation is None or invocation.ended or invocation.standing is None:
        return None
    wait = invocation.standing.wait_at(waiter.place)
    is_for_it = isinstance(wait, ApprovalAwaited) and (wait.action, wait.version) == (entry.action, entry.version)
    return invocation if is_for_it else None


def _without(entry: ProposalEntry, waiter: Waiter) -> ProposalEntry:
    return replace(entry, waiters=tuple(each for each in entry.waiters if each != waiter))


def waiter_at(entry: ProposalEntry, invocation: Invocation, wait: ApprovalAwaited) -> Waiter | None:
    """Return the registration of a wait, if there is one."""
    for each in entry.waiters:
        if (each.invocation, each.place) == (invocation.raw_id, wait.index):
            return each
    return None


def _nothing() -> None:
    pass


def _unheard(lane: Lane, delay_ms: int) -> None:
    del lane, delay_ms
