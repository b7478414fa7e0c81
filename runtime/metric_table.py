"""What is measured: the name of each metric, what tells its numbers apart, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram", "summary"]
Labels: TypeAlias = tuple[str, ...]

_MOMENTS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_SYNCS: Final = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_SIZES: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 150.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that is measured.

    Args:
        name: Its name, without the prefix of the program and the endings of its kind.
        kind: Whether it only grows, goes up and down, or is a distribution.
        labels: What tells its numbers apart.
        text: What it says, in one sentence.
        buckets: The upper bounds of a distribution.
    """

    name: str
    kind: Kind
    labels: Labels
    text: str
    buckets: tuple[float, ...] = ()


INVOCATIONS: Final = Metric(
    "invocations", "counter", ("object", "handler", "end"), "Exclusive invocations that have ended, by how."
)
LANE_WAIT: Final = Metric(
    "lane_wait_seconds",
    "histogram",
    ("object",),
    "From intake by this worker to the first run of the handler.",
    _MOMENTS,
)
RETRIES: Final = Metric(
    "retries", "counter", ("object", "what"), "Failed attempts of handlers, steps and effects that are tried again."
)
PAUSES: Final = Metric("pauses", "counter", ("object", "reason"), "Invocations that were paused, by reason.")
ACQUISITIONS: Final = Metric(
    "partitions_acquired",
    "counter",
    ("object", "how"),
    "Partitions that this worker took: free, or from a silent one.",
)
RECOVERY: Final = Metric(
    "recovery_seconds",
    "histogram",
    ("object",),
    "From the take-over of a partition with open work to the first commit of its new owner.",
    _MOMENTS,
)
BATCH: Final = Metric("commit_batch_size", "histogram", (), "Commits in one batch to the store.", _SIZES)
COMMIT: Final = Metric(
    "commit_seconds", "histogram", (), "From the sending of a batch to the store's durable answer.", _SYNCS
)
JOB_COST: Final = Metric(
    "job_cost",
    "summary",
    ("object", "handler", "tenant", "currency"),
    "What the model calls of ended invocations cost: sum by count is the cost of one.",
)
UNPRICED: Final = Metric(
    "model_answers_unpriced", "counter", ("object", "handler", "model"), "Answers of models that named no cost."
)
MODEL_CALLS: Final = Metric("model_calls", "counter", ("object", "handler", "model"), "Calls of models that began.")
MODEL_TOKENS: Final = Metric(
    "model_tokens", "counter", ("object", "handler", "model", "direction"), "Tokens that models were given and gave."
)
BILLED_TWICE: Final = Metric(
    "model_calls_maybe_billed_twice",
    "counter",
    ("object", "handler", "model"),
    "Calls of models that were made again, though the one before may have been billed: nobody knows its end.",
)
EFFECTS: Final = Metric(
    "effects",
    "counter",
    ("object", "receiver", "effect", "outcome"),
    "Calls of receivers, by what they led to.",
)
SETTLED: Final = Metric(
    "unknown_outcomes_settled", "counter", ("object", "receiver", "how"), "Unknown outcomes that were settled."
)
PREVENTED: Final = Metric(
    "duplicate_effects_prevented",
    "counter",
    ("object", "receiver", "how"),
    "Second effects that did not happen: one was asked for under a known id, or sent again to who had it.",
)
DECISIONS: Final = Metric(
    "approvals", "counter", ("object", "action", "state"), "Proposals, by each state that they came to."
)
QUEUED: Final = Metric(
    "queued_invocations", "gauge", ("object",), "Invocations in the hands of this worker that have not begun."
)
QUEUE_AGE: Final = Metric(
    "queue_age_seconds", "gauge", ("object",), "How long the oldest of them has waited in this worker."
)
OPEN: Final = Metric("open_invocations", "gauge", ("object",), "Invocations that this worker has in memory.")
PARTITIONS: Final = Metric("partitions", "gauge", ("object",), "Partitions that this worker holds.")
UNKNOWN_OPEN: Final = Metric(
    "unknown_outcomes_open",
    "gauge",
    ("object", "receiver", "settled_by"),
    "Effects of its objects whose outcome is not known, and who is to settle them: the runtime or people.",
)
APPROVALS_OPEN: Final = Metric(
    "approvals_open", "gauge", ("object",), "Proposals that wait for a decision, of this worker's objects."
)
APPROVALS_OVERDUE: Final = Metric(
    "approvals_overdue", "gauge", ("object",), "Those of them whose time has passed, and which have not expired yet."
)

METRICS: Final[tuple[Metric, ...]] = (
    INVOCATIONS,
    LANE_WAIT,
    QUEUED,
    QUEUE_AGE,
    OPEN,
    RETRIES,
    PAUSES,
    BATCH,
    COMMIT,
    PARTITIONS,
    ACQUISITIONS,
    RECOVERY,
    EFFECTS,
    UNKNOWN_OPEN,
    SETTLED,
    PREVENTED,
    DECISIONS,
    APPROVALS_OPEN,
    APPROVALS_OVERDUE,
    MODEL_CALLS,
    MODEL_TOKENS,
    UNPRICED,
    BILLED_TWICE,
    JOB_COST,
)


def exported_name(metric: Metric) -> str:
    """Return the name under which a metric is shown, by the conventions of Prometheus."""
    return f"keylane_{metric.name}{'_total' if metric.kind == 'counter' else ''}"
