"""One commit for each kind of change that the journal knows, so that a test may say that it has seen them all."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from keylane.journal import batch, operations
from keylane.journal.agenda import AgendaItem, AgendaKind
from keylane.journal.batch import Operation
from keylane.journal.command_records import StepCompleted
from keylane.journal.effects import EffectEntry, EffectState
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.ledger import EventKind, Happened, LedgerEvent
from keylane.journal.messages import Attached, Caller
from keylane.journal.operations import StateChange
from keylane.journal.outcomes import IdempotencyEntry, Succeeded, encode_outcome
from keylane.journal.proposals import ProposalEntry, ProposalState
from keylane.journal.records import Accepted, Completed, Finished

KEY = "acme/o-1"
DAY = 20_000
HOUR_MS = 3_600_000
#: Plain letters, so that the names of their keys are no patterns.
SHORT, LONG, PARKED, LATER = b"s" * 16, b"l" * 16, b"p" * 16, b"e" * 16
CLIENT = b"client-1"
DIGEST = b"d" * 16
LATER_MS = 4_000_000_000_000
#: Where an entry of the inbox would be, if it had any.
ENTRY = b"1-1"
EVENT = LedgerEvent(KEY, "refund-1", "payments", "refund", "payments-oncall", Happened(1, EventKind.INTENDED, 1))
EFFECT = EffectEntry(
    operation="refund-1",
    effect="refund",
    receiver="payments",
    state=EffectState.INTENDED,
    params=b"\x80",
    digest=DIGEST,
    attempt=1,
    invocation=LONG,
    first_ms=1,
    intended_ms=1,
    send_before_ms=2,
    since_ms=1,
)
PROPOSAL = ProposalEntry(
    action="refund",
    version=1,
    state=ProposalState.OPEN,
    bound=b"\x80",
    notes=b"\x80",
    digest=DIGEST,
    quorum=1,
    invocation=LONG,
    proposed_ms=1,
    expires_ms=None,
    since_ms=1,
)
EFFECT_ITEM = AgendaItem(AgendaKind.EFFECT, KEY, EFFECT.operation)
PROPOSAL_ITEM = AgendaItem(AgendaKind.PROPOSAL, KEY, PROPOSAL.field)
ATTACHED = Attached(Caller("Desk", 1, "acme/d-1", LONG, 0, ()), PARKED)


def every_commit(space: PartitionSpace) -> Iterator[list[Operation]]:
    """Return commits that together use every operation, in an order in which they may follow each other."""
    result = encode_outcome(Succeeded(b"\x01"))
    entry = IdempotencyEntry(SHORT, b"f" * 8, b"r" * 8, "c", 1)
    finished = Finished(SHORT, "add", 1, b"\x01", "c", None)
    yield [operations.finish_short(space, KEY, finished, None)]
    yield [
        operations.finish_short(space, KEY, finished, StateChange({"a": b"1", "b": None})),
        operations.result(space, SHORT, result, HOUR_MS),
        operations.remember(space, DAY, b"d" * 16, entry),
        operations.forget_day(space, DAY, HOUR_MS),
        operations.settle_entry(ENTRY),
        operations.announce(CLIENT, SHORT, result),
    ]
    yield operations.accept(space, Accepted(LONG, "refund", 1, KEY, b"\x01", None, CLIENT))
    yield [
        operations.record(space, LONG, StepCompleted(0, "step", b"\x01")),
        operations.change(space, KEY, LONG, StateChange({"a": b"2"})),
        operations.schedule(LONG, 0),
    ]
    yield [
        operations.unschedule(LONG),
        *operations.finish_long(space, KEY, LONG, Completed(), HOUR_MS),
        operations.change(space, KEY, LONG, StateChange({}, {"a": b"2"})),
        operations.trim(space, KEY, HOUR_MS),
    ]
    yield operations.accept_later(space, Accepted(LATER, "refund", 1, KEY, b"\x01", None, CLIENT), HOUR_MS)
    yield operations.release(space, Accepted(LATER, "refund", 1, KEY, b"\x01", None, CLIENT))
    yield [operations.stand_still(KEY), operations.unpark(KEY)]
    yield [
        operations.post(space, "Stock.2", b"message"),
        operations.post(space, "Stock.2", b"another"),
        operations.rebase(space, "Stock.2", "0:1"),
        operations.begin_history(space, "1-abcdef01"),
        operations.acknowledge(space.outbox("Stock.2"), 1),
    ]
    yield operations.accept(space, Accepted(PARKED, "refund", 1, KEY, b"\x01", None, None))
    yield operations.park(KEY, PARKED)
    yield [operations.leave_lane(space, KEY, PARKED)]
    yield [operations.rejoin_lane(space, KEY, PARKED), operations.unpark(KEY)]
    yield operations.go_last(space, KEY, PARKED)
    yield [
        operations.restore_lane(space, KEY, [PARKED], is_runnable=True),
        operations.keep_for(space.result(SHORT), HOUR_MS),
    ]
    yield [operations.keep_undecodable(b"\xc1"), operations.index_history(space, KEY, HOUR_MS)]
    yield operations.shrink(space, KEY, {"a": b"2"})
    yield [operations.migrate(space, KEY, StateChange({}, {"a": b"3"}, 2), 1, 2)]
    yield [*operations.keep_blob(space, KEY, DIGEST, b"large"), operations.set_aside(space, KEY, PARKED)]
    yield [operations.touch_blob(space, KEY, DIGEST), operations.take_up(space, KEY, PARKED)]
    yield [operations.pause(space, KEY, b"facts"), operations.end_pause(space, KEY)]
    yield [operations.note_blocked(space, KEY), operations.attach(space, PARKED, ATTACHED)]
    yield [operations.forget_blocked(space, KEY), operations.detach(space, PARKED, ATTACHED)]
    yield operations.collect_blob(space, KEY, DIGEST, LATER_MS)
    yield [operations.forget_entry(space.history, b"no key")]
    yield operations.keep_signal(space, KEY, 1, b"early", HOUR_MS)
    yield [*operations.keep_signal(space, KEY, 2, b"later", HOUR_MS), operations.take_signal(space, KEY, 1)]
    yield [
        operations.write_effect(space, KEY, EFFECT.operation, EFFECT.encode()),
        operations.put_on_agenda(space, EFFECT_ITEM, HOUR_MS),
        operations.enter_queue(space, EFFECT_ITEM, HOUR_MS),
        operations.note_in_ledger(space, EVENT),
        operations.raise_alert(space, EVENT),
    ]
    yield [
        operations.forget_effect(space, KEY, EFFECT.operation),
        operations.take_off_agenda(space, EFFECT_ITEM),
        operations.leave_queue(space, EFFECT_ITEM),
        operations.trim_ledger(space, HOUR_MS),
        operations.trim_alerts(space, HOUR_MS),
    ]
    yield [
        operations.write_proposal(space, KEY, PROPOSAL),
        operations.open_proposal(space, PROPOSAL_ITEM, HOUR_MS),
    ]
    yield [
        operations.forget_proposal(space, KEY, PROPOSAL.action, PROPOSAL.version),
        operations.close_proposal(space, PROPOSAL_ITEM),
    ]


def letters_used(space: PartitionSpace) -> set[bytes]:
    """Return the letters of the operations in `every_commit`."""
    return {operation[0] for commit in every_commit(space) for operation in commit}


def letters_known() -> set[bytes]:
    """Return the letters that a batch may hold."""
    return {*batch.KEYED, *batch.FIXED, b"p"}


def changes_used() -> set[str]:
    """Return the functions of `operations` that `every_commit` calls."""
    return set(every_commit.__code__.co_names) & changes_known()


def changes_known() -> set[str]:
    """Return the functions that `operations` offers."""
    return {
        name
        for name, value in inspect.getmembers(operations, inspect.isfunction)
        if value.__module__ == operations.__name__ and not name.startswith("_")
    }
