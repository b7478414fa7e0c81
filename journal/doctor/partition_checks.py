"""The rules for a partition, a type and a server: who owns it, what it is written with, and whether its queues move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ..key import format_id
from ..keyspace import SCHEMA_VERSION
from ..safety import Durability, ServerFacts, doubts
from ..urls import Kind as StoreKind
from .facts import PartitionFacts, Sign, TypeFacts
from .findings import Finding, InboxRepair, Kind, OwnerRepair, Place
from .report import ServerReport

#: A request that a live owner leaves in its inbox for so long is stuck. One for a shared handler lies there while that
#: runs, and where it was called by its name alone the request does not say so.
STUCK_MS: Final = 60_000
#: A due time that a live owner lets pass by so much is stuck.
OVERDUE_MS: Final = 10_000

#: The fields that every owner hash has from its first owner on, all but the first two as numbers.
_NUMBERS: Final = ("lease", "batch", "serial", "epoch")

PartitionCheck = Callable[[PartitionFacts], Finding | None]


def _place(facts: PartitionFacts, name: bytes = b"") -> Place:
    return Place(facts.space.type_name, facts.space.number, name=name.decode(errors="replace") or None)


def broken_fields(owner: Mapping[str, str]) -> list[str]:
    """Return what an owner hash has lost; the clock of a partition that nobody has owned yet may stand there alone."""
    if not owner.keys() - {"offset"}:
        return []
    lost = [name for name in ("schema", "partitions") if name not in owner]
    lost.extend(name for name in _NUMBERS if not owner.get(name, "").isdigit())
    if "time" in owner and not owner["time"].isdigit():
        lost.append("time")
    if "token" not in owner and owner.get("released") != "1":
        lost.append("token")
    return lost


def its_owner_hash_is_whole(facts: PartitionFacts) -> Finding | None:
    """A hash that lacks what every tenure writes keeps each would-be owner out."""
    lost = broken_fields(facts.owner)
    if not lost or not _is_registered(facts) or facts.owner.get("schema", SCHEMA_VERSION) != SCHEMA_VERSION:
        return None
    cause = f"its owner hash has lost {', '.join(lost)}: who wants to own it can't compare what was there"
    remedy = "the fields are written anew; where writes can't be told apart without them, the tenure ends"
    repair = OwnerRepair(facts.space.type_name, facts.space.number)
    return Finding(Kind.OWNER_BROKEN, _place(facts, facts.space.owner), cause, remedy, repair)


def its_schema_is_ours(facts: PartitionFacts) -> Finding | None:
    """A partition of another release, or of another division of the keys, is left alone by everybody."""
    schema, partitions = facts.owner.get("schema"), facts.owner.get("partitions")
    if schema is not None and schema != SCHEMA_VERSION:
        cause = f"it was written with schema {schema}, and this release has {SCHEMA_VERSION}"
        return Finding(Kind.SCHEMA_MISMATCH, _place(facts), cause, "use the release that wrote it")
    if _is_registered(facts) and partitions is not None and partitions != str(facts.partitions):
        cause = f"it was written with {partitions} partitions of its type, and the registry says {facts.partitions}"
        remedy = "use the partition count that was fixed at first use"
        return Finding(Kind.SCHEMA_MISMATCH, _place(facts), cause, remedy)
    return None


def _is_registered(facts: PartitionFacts) -> bool:
    return facts.partitions is not None and facts.space.number < facts.partitions


def its_type_is_registered(facts: PartitionFacts) -> Finding | None:
    """No worker and no client looks into a partition that the registry of types does not name."""
    if _is_registered(facts):
        return None
    why = "the namespace has no such type" if facts.partitions is None else f"the type has {facts.partitions}"
    cause = f"there are keys of it, and {why}: nobody will ever own it"
    remedy = "start a worker that hosts the type, which registers it; what is not wanted any more can be deleted"
    return Finding(Kind.PARTITION_UNKNOWN, _place(facts), cause, remedy)


def it_has_an_owner(facts: PartitionFacts) -> Finding | None:
    """Work needs a live owner."""
    if facts.is_live or facts.health.sign is Sign.UNREADABLE or not facts.backlog.has_work:
        return None
    cause = f"it has {_work(facts)}, and {_silence(facts)}"
    remedy = (
        "a live worker hosts the type and should have taken it over within a lease: look into its log"
        if facts.is_hosted
        else f"start a worker that hosts {facts.space.type_name}"
    )
    return Finding(Kind.PARTITION_WITHOUT_OWNER, _place(facts), cause, remedy)


def _work(facts: PartitionFacts) -> str:
    backlog = facts.backlog
    parts = [
        (backlog.inbox, "requests in its inbox"),
        (backlog.open, "open invocations"),
        (backlog.due, "due times"),
        (backlog.unsent, "messages in its outboxes"),
        (backlog.unsettled, "effects and proposals that are not settled"),
    ]
    return ", ".join(f"{count} {what}" for count, what in parts if count) or "runnable lanes"


def _silence(facts: PartitionFacts) -> str:
    health = facts.health
    match health.sign:
        case Sign.SILENT:
            watched = f"the {health.watched_seconds:.1f} s for which it was watched"
            return f"the counter of its owner {health.worker} stood still for {watched}"
        case Sign.RELEASED:
            return f"worker {health.worker} has handed it over to nobody"
        case _:
            return "no worker has owned it yet"


def its_inbox_moves(facts: PartitionFacts) -> Finding | None:
    """A live owner takes requests in; one that stays the first all the while was passed over, or the owner is full."""
    oldest = facts.oldest_request
    if oldest is None or not oldest.is_unmoved or oldest.age_ms < STUCK_MS or not facts.is_live:
        return None
    cause = f"entry {oldest.name.decode()} has been in it for {oldest.age_ms / 1000:.0f} s, and its owner lives"
    remedy = (
        "its owner reads the inbox again and takes in what it has passed over; one that has too much in hand takes "
        "nothing more in, and a shared handler that was called by its name may be running"
    )
    repair = InboxRepair(facts.space.type_name, facts.space.number)
    return Finding(Kind.INBOX_ENTRY_STUCK, _place(facts, facts.space.inbox), cause, remedy, repair)


def its_due_times_fire(facts: PartitionFacts) -> Finding | None:
    """A live owner asks each sweep what is due."""
    due = facts.earliest_due
    if due is None or not due.is_unmoved or due.age_ms < OVERDUE_MS or not facts.is_live:
        return None
    space = facts.space
    invocation = format_id(space.type_name, space.number, due.name)
    cause = f"it was due {due.age_ms / 1000:.0f} s ago, and its owner lives"
    remedy = "look into the log of its owner: it can't read the invocation, or has too much in hand"
    return Finding(Kind.DUE_TIME_OVERDUE, Place(space.type_name, space.number, invocation=invocation), cause, remedy)


def its_histories_shrink(facts: PartitionFacts) -> Finding | None:
    """A live owner looks at idle objects at each sweep, the longest due ones first."""
    due = facts.earliest_history
    if due is None or not due.is_unmoved or due.age_ms < STUCK_MS or not facts.is_live:
        return None
    cause = f"the history of {due.name.decode(errors='replace')} was to be shrunk {due.age_ms / 1000:.0f} s ago"
    remedy = "look into the log of its owner: it can't read the object, or the store refuses it"
    return Finding(Kind.HISTORY_OVERDUE, _place(facts, facts.space.history), cause, remedy)


def it_keeps_nothing_undecodable(facts: PartitionFacts) -> Finding | None:
    """Bytes that nobody could read are kept for somebody to look at."""
    count = facts.backlog.undecodable
    if not count:
        return None
    cause = f"{count} requests could not be read; their bytes are kept"
    whom = facts.in_charge or "somebody"
    remedy = f"{whom} looks at them (XRANGE, field m), and deletes the key when they are dealt with"
    return Finding(Kind.UNDECODABLE_KEPT, _place(facts, facts.space.undecodable), cause, remedy)


def its_work_is_not_in_doubt(facts: PartitionFacts) -> Finding | None:
    """After a lost tail, what was accepted in a span of time may have been done before."""
    until_ms = facts.doubt_until_ms
    if until_ms is None:
        return None
    left_seconds = (until_ms - facts.now_ms) / 1000
    cause = f"the store may have lost its last writes; what is accepted in the next {left_seconds:.0f} s is in doubt"
    remedy = "nothing to do but to wait: effects of this span are settled with their receivers"
    return Finding(Kind.WORK_IN_DOUBT, _place(facts), cause, remedy)


#: Every rule for a partition; another one is added by adding it here.
PARTITION_CHECKS: Final[tuple[PartitionCheck, ...]] = (
    its_owner_hash_is_whole,
    its_schema_is_ours,
    its_type_is_registered,
    it_has_an_owner,
    its_inbox_moves,
    its_due_times_fire,
    its_histories_shrink,
    it_keeps_nothing_undecodable,
    its_work_is_not_in_doubt,
)


def type_has_a_worker(facts: TypeFacts) -> Finding | None:
    """Calls of a type that nobody hosts wait for ever; one without work may rest."""
    if facts.workers or not facts.partitions_with_work:
        return None
    cause = f"no live worker hosts it, and {facts.partitions_with_work} of its partitions have work"
    whom = facts.in_charge or "somebody"
    return Finding(Kind.TYPE_WITHOUT_WORKER, Place(facts.name), cause, f"{whom} starts a worker that hosts it")


def server_is_safe(facts: ServerFacts, durability: Durability, kind: StoreKind, place: Place) -> list[Finding]:
    """Return what stands against the declared durability."""
    return [Finding(Kind.STORE_UNSAFE, place, each.why, each.remedy) for each in doubts(facts, durability, kind)]


def memory_has_room(server: ServerReport) -> Finding | None:
    """Owners stop taking work in before a server's memory is full, so that what runs can end."""
    if not server.max_memory_bytes or server.memory_ratio < server.memory_limit_ratio:
        return None
    cause = f"{100 * server.memory_ratio:.0f} % of the server's memory is used: new work is refused, what runs may end"
    remedy = "raise maxmemory, shorten the retention, or wait for results and histories to expire"
    return Finding(Kind.STORE_NEARLY_FULL, server.place, cause, remedy)
