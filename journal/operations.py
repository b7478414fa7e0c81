"""What each change writes: facts in, operations of a commit out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .agenda import AgendaItem
from .batch import Operation
from .blobs import member_of
from .facts import often_made
from .fields import pack
from .keyspace import PartitionSpace
from .ledger import LedgerEvent
from .messages import Attached
from .numbering import HISTORY_FIELD
from .outcomes import IdempotencyEntry
from .proposals import ProposalEntry, proposal_field
from .record_bytes import encode
from .records import Accepted, Finished, Record, Released, Scheduled
from .requests import Answer
from .snapshots import encode_values

#: State values written since the last durable point; None stands for a value that was cleared.
Delta = dict[str, bytes | None]


@often_made
@dataclass(frozen=True, slots=True)
class StateChange:
    """What a commit does to an object's state: a delta, or all of it at once as a snapshot.

    `version` is that of the state, where the change has to say it.
    """

    delta: Delta
    snapshot: dict[str, bytes] | None = None
    version: int | None = None

    def fields(self) -> tuple[bytes, bytes]:
        """Return the field of the entry that carries the change, and its value."""
        if self.snapshot is not None:
            return b"s", encode_values(self.snapshot, self.version)
        return b"d", encode_values(self.delta, self.version)


def accept(space: PartitionSpace, record: Accepted) -> list[Operation]:
    """Take an invocation in that outlives its first commit: its stream begins, and its lane has work."""
    raw_id, key_text = record.invocation, record.key
    return [
        (b"a", space.invocation(raw_id), 2, b"r", encode(record)),
        (b"a", space.object(key_text), 2, b"a", pack((raw_id, record.handler))),
        (b"q", space.lane(key_text), raw_id, key_text),
    ]


def accept_later(space: PartitionSpace, record: Accepted, delay_ms: int) -> list[Operation]:
    """Take an invocation in that is to wait before it enters its lane."""
    stream = space.invocation(record.invocation)
    return [
        (b"a", stream, 2, b"r", encode(record)),
        (b"a", stream, 2, b"r", encode(Scheduled(delay_ms))),
        schedule(record.invocation, delay_ms),
    ]


def release(space: PartitionSpace, record: Accepted) -> list[Operation]:
    """Let an invocation enter its lane whose time has come."""
    raw_id, key_text = record.invocation, record.key
    return [
        (b"a", space.invocation(raw_id), 2, b"r", encode(Released())),
        (b"a", space.object(key_text), 2, b"a", pack((raw_id, record.handler))),
        (b"q", space.lane(key_text), raw_id, key_text),
        unschedule(raw_id),
    ]


def post(space: PartitionSpace, target: str, message: bytes) -> Operation:
    """Send a message to a partition, named `Type.number`; the batch gives it its number."""
    return (b"x", space.outbox(target), message)


def acknowledge(outbox: bytes, number: int) -> Operation:
    """Take out of an outbox what has arrived, up to a number."""
    return (b"y", outbox, number)


def rebase(space: PartitionSpace, target: str, base: str) -> Operation:
    """Note where the numbers that a partition is sent begin anew."""
    return (b"h", space.bases, target, base)


def begin_history(space: PartitionSpace, history: str) -> Operation:
    """Note the history that the numbers sent from here on belong to."""
    return (b"h", space.sent, HISTORY_FIELD, history)


def record(space: PartitionSpace, raw_id: bytes, fact: Record) -> Operation:
    """Append a record to an invocation's stream."""
    return (b"a", space.invocation(raw_id), 2, b"r", encode(fact))


def change(space: PartitionSpace, key_text: str, raw_id: bytes, state: StateChange) -> Operation:
    """Write state at a durable point of an invocation that goes on."""
    field, value = state.fields()
    return (b"a", space.object(key_text), 4, field, value, b"i", raw_id)


def migrate(space: PartitionSpace, key_text: str, state: StateChange, from_version: int, to_version: int) -> Operation:
    """Write an object's state as the code of another version has it, and that this was done."""
    field, value = state.fields()
    return (b"a", space.object(key_text), 4, field, value, b"m", pack((from_version, to_version)))


def finish_short(space: PartitionSpace, key_text: str, fact: Finished, state: StateChange | None) -> Operation:
    """Write the one entry of a short invocation."""
    if state is None:
        return (b"a", space.object(key_text), 2, b"f", encode(fact))
    field, value = state.fields()
    return (b"a", space.object(key_text), 4, b"f", encode(fact), field, value)


def finish_long(
    space: PartitionSpace, key_text: str, raw_id: bytes, last: Record, retention_ms: int
) -> list[Operation]:
    """End an invocation that has a stream: it leaves its lane, and its stream is kept for the retention."""
    stream = space.invocation(raw_id)
    return [
        (b"a", stream, 2, b"r", encode(last)),
        (b"e", stream, retention_ms),
        (b"u", space.lane(key_text), raw_id, key_text),
    ]


def result(space: PartitionSpace, raw_id: bytes, outcome: bytes, retention_ms: int) -> Operation:
    """Keep an outcome for those who ask later."""
    return (b"s", space.result(raw_id), outcome, retention_ms)


def remember(space: PartitionSpace, day: int, digest: bytes, entry: IdempotencyEntry) -> Operation:
    """Note what an idempotency key stands for."""
    return (b"h", space.idempotency(day), digest, entry.encode())


def forget_day(space: PartitionSpace, day: int, retention_ms: int) -> Operation:
    """Let the idempotency keys of a day expire when the youngest of them has been kept long enough."""
    return (b"e", space.idempotency(day), retention_ms)


def trim(space: PartitionSpace, key_text: str, retention_ms: int) -> Operation:
    """Drop what is older than the retention from an object's stream; legal behind a new snapshot."""
    return (b"t", space.object(key_text), retention_ms)


def index_history(space: PartitionSpace, key_text: str, delay_ms: int) -> Operation:
    """Note that an object's history may be shrunk after a delay."""
    return (b"n", space.history, delay_ms, key_text)


def shrink(
    space: PartitionSpace,
    key_text: str,
    values: dict[str, bytes],
    aside: Sequence[bytes] = (),
    version: int | None = None,
) -> list[Operation]:
    """Drop an object's history: one snapshot is left of it, or nothing at all where it has no state.

    The stream is dropped as a whole and begun anew: of one that is trimmed, the bytes of dropped entries may stay.

    Args:
        space: The partition.
        key_text: The object.
        values: Its state.
        aside: The ids of parked invocations that have left its lane: nothing else in the store leads to them from here.
        version: The version of its state, where it is to be said.
    """
    stream = space.object(key_text)
    fields = [b"s", encode_values(values, version if values else None), *((b"p", pack(list(aside))) if aside else ())]
    kept: list[Operation] = [(b"a", stream, len(fields), *fields)] if values or aside else []
    return [(b"k", stream), *kept, (b"o", space.history, key_text)]


def forget_entry(index: bytes, member: bytes) -> Operation:
    """Take out of a sorted set what no owner has put there: it names nothing that it could be about."""
    return (b"o", index, member)


def park(key_text: str, raw_id: bytes) -> list[Operation]:
    """Take a lane out of the runnable ones: its head waits for somebody."""
    return [(b"l", key_text), (b"c", raw_id)]


def stand_still(key_text: str) -> Operation:
    """Take a lane out of the runnable ones: its head waits for another object, or for its time."""
    return (b"l", key_text)


def unpark(key_text: str) -> Operation:
    """Make a lane runnable again."""
    return (b"w", key_text)


def leave_lane(space: PartitionSpace, key_text: str, raw_id: bytes) -> Operation:
    """Take a parked invocation out of its lane, so that others go on."""
    return (b"u", space.lane(key_text), raw_id, key_text)


def go_last(space: PartitionSpace, key_text: str, raw_id: bytes) -> list[Operation]:
    """Put an invocation of a lane behind all others in it."""
    return [leave_lane(space, key_text, raw_id), (b"q", space.lane(key_text), raw_id, key_text)]


def rejoin_lane(space: PartitionSpace, key_text: str, raw_id: bytes) -> Operation:
    """Put an invocation at the head of its lane."""
    return (b"f", space.lane(key_text), raw_id, key_text)


def restore_lane(space: PartitionSpace, key_text: str, ids: Sequence[bytes], *, is_runnable: bool) -> Operation:
    """Write a lane's list anew, as its owner has it in memory; one without open invocations is never runnable."""
    works = b"1" if is_runnable and ids else b"0"
    return (b"r", space.lane(key_text), len(ids), *ids, works, key_text)


def keep_for(key: bytes, retention_ms: int) -> Operation:
    """Let a key expire that has lost its end."""
    return (b"e", key, retention_ms)


def schedule(raw_id: bytes, delay_ms: int) -> Operation:
    """Note that an invocation is due after a delay."""
    return (b"d", raw_id, delay_ms)


def unschedule(raw_id: bytes) -> Operation:
    """Note that an invocation is not due any more."""
    return (b"c", raw_id)


def settle_entry(entry: bytes) -> Operation:
    """Take an entry out of the inbox: what it asked for is written in the same commit."""
    return (b"i", entry)


def keep_undecodable(data: bytes) -> Operation:
    """Keep bytes that could not be read."""
    return (b"b", data)


def announce(client: bytes, raw_id: bytes, outcome: bytes | None) -> Operation:
    """Tell a waiting client."""
    return (b"p", Answer(client, raw_id, outcome).encode())


def keep_blob(space: PartitionSpace, key_text: str, digest: bytes, packed: bytes) -> list[Operation]:
    """Keep the bytes of a large value; they are found by the sweep if what refers to them is never written."""
    return [(b"h", space.blobs(key_text), digest, packed), touch_blob(space, key_text, digest)]


def touch_blob(space: PartitionSpace, key_text: str, digest: bytes) -> Operation:
    """Note that a large value was referred to just then."""
    return (b"j", space.blob_index, 0, member_of(key_text, digest))


def collect_blob(space: PartitionSpace, key_text: str, digest: bytes, before_ms: int) -> list[Operation]:
    """Delete a large value, unless it was referred to after a moment."""
    return [
        (b"z", space.blob_index, member_of(key_text, digest), before_ms),
        (b"g", space.blobs(key_text), digest),
    ]


def attach(space: PartitionSpace, raw_id: bytes, attached: Attached) -> Operation:
    """Note that another invocation waits for the end of one, without having asked for it."""
    return (b"m", space.attached(raw_id), attached.encode())


def detach(space: PartitionSpace, raw_id: bytes, attached: Attached) -> Operation:
    """Note that it waits no longer; its answer leaves in the same commit."""
    return (b"v", space.attached(raw_id), attached.encode())


def note_blocked(space: PartitionSpace, key_text: str) -> Operation:
    """Note a lane in which a call waits behind one that waits for a call itself: the next owner looks for circles."""
    return (b"m", space.blocked, key_text)


def forget_blocked(space: PartitionSpace, key_text: str) -> Operation:
    """Note that no call waits in a lane any more."""
    return (b"v", space.blocked, key_text)


def keep_signal(space: PartitionSpace, key_text: str, number: int, signal: bytes, kept_ms: int) -> list[Operation]:
    """Keep a signal to an object for which nobody waits, behind those that came before it."""
    key = space.signals(key_text)
    return [(b"h", key, str(number), signal), (b"e", key, kept_ms)]


def take_signal(space: PartitionSpace, key_text: str, number: int) -> Operation:
    """Take out a signal that somebody got, or that was kept for long enough."""
    return (b"G", space.signals(key_text), str(number))


def pause(space: PartitionSpace, field: str, facts: bytes) -> Operation:
    """Note that exclusive work of an object, or of all objects, has to stop."""
    return (b"h", space.paused, field, facts)


def end_pause(space: PartitionSpace, field: str) -> Operation:
    """Note that it goes on."""
    return (b"G", space.paused, field)


def set_aside(space: PartitionSpace, key_text: str, raw_id: bytes) -> Operation:
    """Note that an invocation outside of its lane goes on needing its large values."""
    return (b"m", space.set_aside(key_text), raw_id)


def take_up(space: PartitionSpace, key_text: str, raw_id: bytes) -> Operation:
    """Note that an invocation that was set aside is in its lane again."""
    return (b"v", space.set_aside(key_text), raw_id)


def write_effect(space: PartitionSpace, key_text: str, operation: str, entry: bytes) -> Operation:
    """Note where an effect of an object stands, by its encoded entry."""
    return (b"h", space.effects(key_text), operation, entry)


def forget_effect(space: PartitionSpace, key_text: str, operation: str) -> Operation:
    """Forget an effect that was settled long enough ago."""
    return (b"G", space.effects(key_text), operation)


def write_proposal(space: PartitionSpace, key_text: str, entry: ProposalEntry) -> Operation:
    """Note where a proposal of an object stands."""
    return (b"h", space.proposals(key_text), proposal_field(entry.action, entry.version), entry.encode())


def forget_proposal(space: PartitionSpace, key_text: str, action: str, version: int) -> Operation:
    """Forget a proposal that was settled long enough ago."""
    return (b"G", space.proposals(key_text), proposal_field(action, version))


def put_on_agenda(space: PartitionSpace, item: AgendaItem, delay_ms: int) -> Operation:
    """Note that something of an object is due after a delay, in place of when it was due before."""
    return (b"n", space.agenda, delay_ms, item.encode())


def take_off_agenda(space: PartitionSpace, item: AgendaItem) -> Operation:
    """Note that nothing of it is due any more."""
    return (b"o", space.agenda, item.encode())


def enter_queue(space: PartitionSpace, item: AgendaItem, delay_ms: int) -> Operation:
    """Put an effect before people, who have to settle it within a delay."""
    return (b"n", space.queue, delay_ms, item.encode())


def leave_queue(space: PartitionSpace, item: AgendaItem) -> Operation:
    """Take an effect back from people: it is settled."""
    return (b"o", space.queue, item.encode())


def open_proposal(space: PartitionSpace, item: AgendaItem, delay_ms: int) -> Operation:
    """Enter a proposal among those that wait for a decision, due after a delay."""
    return (b"n", space.proposed, delay_ms, item.encode())


def close_proposal(space: PartitionSpace, item: AgendaItem) -> Operation:
    """Take a proposal out of those that wait for a decision."""
    return (b"o", space.proposed, item.encode())


def note_in_ledger(space: PartitionSpace, event: LedgerEvent) -> Operation:
    """Append to the ledger what happened to an effect or a proposal."""
    return (b"a", space.ledger, 2, b"e", event.encode())


def trim_ledger(space: PartitionSpace, retention_ms: int) -> Operation:
    """Drop what is older than the retention from a partition's ledger."""
    return (b"t", space.ledger, retention_ms)


def raise_alert(space: PartitionSpace, event: LedgerEvent) -> Operation:
    """Append something that a person has to hear of; in the commit that notes that it was raised, so only once."""
    return (b"a", space.alerts, 2, b"e", event.encode())


def trim_alerts(space: PartitionSpace, retention_ms: int) -> Operation:
    """Drop alerts that are older than the retention."""
    return (b"t", space.alerts, retention_ms)
