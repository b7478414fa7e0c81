"""What the engine tells of itself in numbers: it calls these methods, which do nothing unless somebody counts.

Nothing here knows of an exporter. `Counters` keeps plain numbers, which `metrics` hands to whoever asks for them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, cast

from ..journal.command_records import ModelCallBegun, ModelUsage
from ..journal.effects import EffectState
from ..journal.ledger import EventKind
from ..journal.model_calls import spending_of
from ..journal.outcomes import Outcome, Rejected, Stopped
from .metric_table import (
    ACQUISITIONS,
    BATCH,
    BILLED_TWICE,
    COMMIT,
    DECISIONS,
    EFFECTS,
    INVOCATIONS,
    JOB_COST,
    LANE_WAIT,
    MODEL_CALLS,
    MODEL_TOKENS,
    OPEN,
    PARTITIONS,
    PAUSES,
    PREVENTED,
    QUEUE_AGE,
    QUEUED,
    RECOVERY,
    RETRIES,
    SETTLED,
    UNPRICED,
    Labels,
    Metric,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from decimal import Decimal

    from ..journal.effects import EffectEntry
    from .effect_facts import Change
    from .invocation import Invocation
    from .partition import Partition

#: So many tenants have numbers of their own in one process; the others share some, under a name that no tenant has.
TENANTS_MAX: Final = 1_000
OTHER_TENANTS: Final = "/other"
SENT_AGAIN: Final = "sent again"

_OUTCOMES: Final = frozenset({EventKind.SUCCEEDED, EventKind.REJECTED, EventKind.NOT_SENT, EventKind.UNKNOWN})
_BY_PEOPLE: Final = frozenset({EventKind.MARKED_SUCCEEDED, EventKind.MARKED_NOT_DONE})


class Meters:
    """What the engine calls; here nobody listens, and a call costs as little as one can."""

    __slots__ = ()

    def began(self, invocation: Invocation) -> None:
        """Take note that the handler of an invocation is about to run, for the first time or again."""

    def ended(self, invocation: Invocation, outcome: Outcome) -> None:
        """Take note that the end of an invocation is durable."""

    def retried(self, partition: Partition, what: str) -> None:
        """Take note that a failed attempt is recorded and another follows."""

    def paused(self, partition: Partition, reason: str) -> None:
        """Take note that an invocation was paused."""

    def acquired(self, partition: Partition, *, from_a_silent_one: bool) -> None:
        """Take note that a partition has come to this worker."""

    def watch(self, partition: Partition) -> None:
        """Have the batches of a partition told."""

    def model_asked(self, invocation: Invocation, begun: ModelCallBegun, *, is_again: bool) -> None:
        """Take note that a model is asked; `is_again` where nobody knows the end of the call before it."""

    def model_answered(self, invocation: Invocation, usage: ModelUsage) -> None:
        """Take note of what an answer took."""

    def effect_changed(self, partition: Partition, key_text: str, before: EffectEntry | None, change: Change) -> None:
        """Take note of what is about to be written of an effect."""

    def prevented(self, partition: Partition, receiver: str, how: str) -> None:
        """Take note that a second effect did not happen."""

    def decided(self, partition: Partition, action: str, state: str) -> None:
        """Take note that a proposal is settled."""


NO_METERS: Final = Meters()


class Distribution:
    """How often something was how large.

    Args:
        buckets: The upper bounds.
    """

    __slots__ = ("_buckets", "counts", "total")

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def note(self, value: float) -> None:
        """Count one."""
        self.counts[bisect_left(self._buckets, value)] += 1
        self.total += value


class Counters(Meters):
    """Counts what it is told, in numbers that another thread may read."""

    __slots__ = ("_tenants", "counts", "distributions", "sums", "unknown")

    def __init__(self) -> None:
        self.counts: dict[Metric, dict[Labels, float]] = {}
        self.distributions: dict[Metric, dict[Labels, Distribution]] = {}
        #: Summaries: how many, and their sum.
        self.sums: dict[Metric, dict[Labels, tuple[int, float]]] = {}
        #: The receivers of effects that are being settled, by partition, object and operation.
        self.unknown: dict[tuple[Partition, str, str], str] = {}
        self._tenants: set[str] = set()

    def _count(self, metric: Metric, *labels: str, by: float = 1.0) -> None:
        add_to(self.counts.setdefault(metric, {}), labels, by)

    def _note(self, metric: Metric, value: float, *labels: str) -> None:
        found = self.distributions.setdefault(metric, {})
        distribution = found.get(labels)
        if distribution is None:
            distribution = found[labels] = Distribution(metric.buckets)
        distribution.note(value)

    def _sum(self, metric: Metric, value: Decimal, *labels: str) -> None:
        sums = self.sums.setdefault(metric, {})
        count, total = sums.get(labels, (0, 0.0))
        sums[labels] = count + 1, total + float(value)

    def began(self, invocation: Invocation) -> None:
        """Note how long it has waited for its lane, when it runs for the first time."""
        if invocation.records or invocation.attempts or invocation.restarts:
            return
        waited = time.monotonic() - invocation.arrived_at
        self._note(LANE_WAIT, waited, _object_of(invocation))

    def ended(self, invocation: Invocation, outcome: Outcome) -> None:
        """Count an end, and what the model calls behind it cost."""
        self._count(INVOCATIONS, *_handler_of(invocation), end_of(outcome))
        spent = invocation.spent_before + spending_of(invocation.records)
        for currency, amount in spent.cost.items():
            tenant = self._tenant(invocation.lane.key.tenant)
            self._sum(JOB_COST, amount, *_handler_of(invocation), tenant, currency)

    def _tenant(self, tenant: str) -> str:
        if tenant not in self._tenants:
            if len(self._tenants) >= TENANTS_MAX:
                return OTHER_TENANTS
            self._tenants.add(tenant)
        return tenant

    def retried(self, partition: Partition, what: str) -> None:
        """Count a retry."""
        self._count(RETRIES, partition.space.type_name, what)

    def paused(self, partition: Partition, reason: str) -> None:
        """Count a pause."""
        self._count(PAUSES, partition.space.type_name, reason)

    def acquired(self, partition: Partition, *, from_a_silent_one: bool) -> None:
        """Count a partition that has come here."""
        how = "from a silent worker" if from_a_silent_one else "free"
        self._count(ACQUISITIONS, partition.space.type_name, how)

    def watch(self, partition: Partition) -> None:
        """Have the batches of a partition counted and timed."""

        def applied(commits: int, seconds: float) -> None:
            self._note(BATCH, commits)
            self._note(COMMIT, seconds)
            taken_at, partition.taken_at = partition.taken_at, None
            if taken_at is not None:
                self._note(RECOVERY, time.monotonic() - taken_at, partition.space.type_name)

        partition.writer.on_applied = applied

    def model_asked(self, invocation: Invocation, begun: ModelCallBegun, *, is_again: bool) -> None:
        """Count a call of a model, and that the one before it may have been billed as well."""
        labels = (*_handler_of(invocation), begun.model)
        self._count(MODEL_CALLS, *labels)
        if is_again:
            self._count(BILLED_TWICE, *labels)

    def model_answered(self, invocation: Invocation, usage: ModelUsage) -> None:
        """Count the tokens of an answer."""
        labels = (*_handler_of(invocation), usage.model)
        self._count(MODEL_TOKENS, *labels, "in", by=usage.input_tokens)
        self._count(MODEL_TOKENS, *labels, "out", by=usage.output_tokens)
        if usage.cost is None:
            self._count(UNPRICED, *labels)

    def effect_changed(self, partition: Partition, key_text: str, before: EffectEntry | None, change: Change) -> None:
        """Count what a call has come to, how an unknown outcome was settled, and what is unknown still."""
        entry, type_name = change.entry, partition.space.type_name
        for happened in change.happened:
            if happened.kind in _OUTCOMES:
                self._count(EFFECTS, type_name, entry.receiver, entry.effect, happened.kind.value)
            if happened.kind is EventKind.RESENT or (happened.kind is EventKind.INTENDED and entry.attempt > 1):
                self._count(RETRIES, type_name, "effect")
        how = _how_settled(before, change)
        if how is not None:
            self._count(SETTLED, type_name, entry.receiver, how)
        if how == SENT_AGAIN:
            self.prevented(partition, entry.receiver, SENT_AGAIN)
        if entry.state is EffectState.UNKNOWN and not change.forgets:
            self.unknown[partition, key_text, entry.operation] = entry.receiver
        else:
            self.unknown.pop((partition, key_text, entry.operation), None)

    def prevented(self, partition: Partition, receiver: str, how: str) -> None:
        """Count a second effect that did not happen."""
        self._count(PREVENTED, partition.space.type_name, receiver, how)

    def unknown_of(self, partitions: Collection[Partition]) -> list[tuple[str, str]]:
        """Return object type and receiver of each effect that is being settled in these partitions, and in no others.

        Those that an owner before has left appear when something is done about them.
        """
        for name in [each for each in self.unknown if each[0] not in partitions]:
            del self.unknown[name]
        return [(partition.space.type_name, receiver) for (partition, _, _), receiver in self.unknown.items()]

    def decided(self, partition: Partition, action: str, state: str) -> None:
        """Count a proposal that is settled."""
        self._count(DECISIONS, partition.space.type_name, action, state)


def queue_of(partitions: Sequence[Partition]) -> dict[Metric, dict[Labels, float]]:
    """Return how much a worker has in hand, and how long the oldest of it has waited, as it is at this moment."""
    found: dict[Metric, dict[Labels, float]] = {QUEUED: {}, QUEUE_AGE: {}, OPEN: {}, PARTITIONS: {}}
    now = time.monotonic()
    for partition in partitions:
        labels = (partition.space.type_name,)
        waiting = [each.arrived_at for each in partition.open.values() if _has_not_begun(each)]
        add_to(found[PARTITIONS], labels, 1)
        add_to(found[OPEN], labels, len(partition.open))
        add_to(found[QUEUED], labels, len(waiting))
        age = now - min(waiting) if waiting else 0.0
        found[QUEUE_AGE][labels] = max(found[QUEUE_AGE].get(labels, 0.0), age)
    return found


def add_to(counts: dict[Labels, float], labels: Labels, count: float) -> None:
    """Add to a number."""
    counts[labels] = counts.get(labels, 0.0) + count


def _has_not_begun(invocation: Invocation) -> bool:
    is_running = invocation.lane.running is invocation
    return not (invocation.ended or is_running or invocation.is_waiting or invocation.records)


def _object_of(invocation: Invocation) -> str:
    return invocation.lane.partition.space.type_name


def _handler_of(invocation: Invocation) -> tuple[str, str]:
    return _object_of(invocation), handler_name_of(invocation)


def handler_name_of(invocation: Invocation) -> str:
    """Return the name of an invocation's handler; one whose handler this code lacks can still be killed."""
    is_known = cast("object", invocation.handler) is not None
    return invocation.handler.name if is_known else invocation.asked_for[0]


def _how_settled(before: EffectEntry | None, change: Change) -> str | None:
    """Return by what an unknown outcome is known from now on; None where it was known, or is not yet."""
    entry = change.entry
    if before is None or before.is_settled or not entry.is_settled:
        return None
    if any(each.kind in _BY_PEOPLE for each in change.happened):
        return "a person"
    if before.state in (EffectState.UNKNOWN, EffectState.UNRESOLVED):
        return "look-up"
    was_sent_again = any(each.kind is EventKind.RESENT for each in before.life)
    return SENT_AGAIN if was_sent_again else None


def end_of(outcome: Outcome) -> str:
    """Return in a word how an invocation has ended."""
    match outcome:
        case Rejected():
            return "failed"
        case Stopped():
            return outcome.how
        case _:
            return "completed"
